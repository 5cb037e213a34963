"""Where Spark finds `format("kvitto-archive")`: it imports every top-level module named pyspark_* and takes its `DefaultSource`.

Imported at the start of every PySpark program on this machine, so nothing heavy is loaded before it is used.
"""

from __future__ import annotations

from kvitto.spark.archive.source import ArchiveDataSource


class DefaultSource(ArchiveDataSource):
    """Registered by Spark as format `kvitto-archive`."""

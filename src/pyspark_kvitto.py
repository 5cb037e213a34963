"""Where Spark finds `format("amqp")`: it imports every top-level module named pyspark_* and takes its `DefaultSource`.

Imported at the start of every PySpark program on this machine, so nothing heavy is loaded before it is used.
"""

from __future__ import annotations

from kvitto.spark.source import AmqpDataSource


class DefaultSource(AmqpDataSource):
    """Registered by Spark as format `amqp`."""

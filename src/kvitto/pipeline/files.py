"""A table of Parquet files to which a streaming query adds each batch once, for every reader of Parquet. `land.py`
calls it.

The files of a batch are written to another directory and then renamed to names made of the query's id and the batch's
number. A repeated batch replaces its own files, but none that another driver puts there meanwhile. So the table has
each batch once without a list that only Spark reads. This works on every file system that Spark can reach.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from kvitto.pipeline.session import JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class BatchFiles:
    """The files that one query adds to a table."""

    def __init__(self, spark: SparkSession, table: str, query: str, run: str = "") -> None:
        """`run` is a part of the names, if files of an earlier run must stay."""
        self.table = table
        self.query = query
        self.run = run
        self._jvm: Any = spark._jvm
        self._fs = self._path(table).getFileSystem(spark._jsc.hadoopConfiguration())
        self._first = not run
        self._token = uuid.uuid4().hex[:8]

    def put(self, batch: int, rows: DataFrame | None) -> list[Any]:
        """Add these rows as the batch. Return the files of the batch as Hadoop's FileStatus; None for a batch without rows."""
        if self._first:  # only the first batch of a run may have been begun before
            self._drop(batch)
            self._first = False
        if rows is None:
            return []
        # readers ignore names that begin with _; no other driver writes to this one
        aside = f"{self.table}/_{self._prefix(batch)}staging-{self._token}"
        rows.write.mode("overwrite").parquet(aside)
        written = [file.getPath() for file in self._fs.listStatus(self._path(aside))]
        parts = sorted(
            (file for file in written if file.getName().startswith("part-")), key=lambda file: file.getName()
        )
        put = []
        for number, file in enumerate(parts):
            name = f"{self.table}/{self._prefix(batch)}{self.run}{number:05}.parquet"
            if self._fs.exists(self._path(name)):
                raise JobError(
                    f"{name} is there, and was not when this batch began: another driver with the same checkpoint writes it."
                    " Stop one of them; its file is left as it is"
                )
            if not self._fs.rename(file, self._path(name)):
                raise JobError(f"{file} could not be renamed to {name}; is there room, and the right to write?")
            put.append(self._fs.getFileStatus(self._path(name)))
        self._fs.delete(self._path(aside), True)
        return put

    def _drop(self, batch: int) -> None:
        """Remove the files that a killed attempt has left, in both directories."""
        if self._fs.exists(self._path(self.table)):
            for file in self._fs.listStatus(self._path(self.table)):
                if file.getPath().getName().startswith((self._prefix(batch), f"_{self._prefix(batch)}")):
                    self._fs.delete(file.getPath(), True)

    def _prefix(self, batch: int) -> str:
        return f"{self.query}-{batch:08}-"

    def _path(self, text: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(text)


def exists(spark: SparkSession, path: str) -> bool:
    """Return whether the file or directory exists on Spark's file system."""
    jvm: Any = spark._jvm
    at = jvm.org.apache.hadoop.fs.Path(path)
    return bool(at.getFileSystem(spark._jsc.hadoopConfiguration()).exists(at))


def read_text(spark: SparkSession, path: str) -> str | None:
    """Return a small file on any file system of Spark; None if it does not exist."""
    jvm: Any = spark._jvm
    at = jvm.org.apache.hadoop.fs.Path(path)
    fs = at.getFileSystem(spark._jsc.hadoopConfiguration())
    if not fs.exists(at):
        return None
    stream = fs.open(at)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write it in one step: under another name, then renamed."""
    jvm: Any = spark._jvm
    at, aside = jvm.org.apache.hadoop.fs.Path(path), jvm.org.apache.hadoop.fs.Path(f"{path}.new")
    fs = at.getFileSystem(spark._jsc.hadoopConfiguration())
    stream = fs.create(aside, True)
    stream.write(bytearray(text.encode()))
    stream.close()
    if not fs.rename(aside, at):
        raise JobError(f"{aside} could not be renamed to {at}; is there room, and the right to write?")

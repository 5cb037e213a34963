"""A Delta table to which a streaming query adds each batch once, without Delta's jar: the package deltalake commits.
`land.py` calls it.

Spark's executors write the files of a batch into the table's directory, where readers do not see them before one commit
adds them. The commit contains (query, batch) as an application transaction of Delta. So a repeated batch finds itself
in the table, and of two drivers that commit the same batch the second one fails.
"""

from __future__ import annotations

import importlib.util
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from kvitto.pipeline.files import BatchFiles
from kvitto.pipeline.session import JobError

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def check(table: str) -> str:
    """Return the directory of a Delta table that exists or can be made. Raise JobError if there is none."""
    if importlib.util.find_spec("deltalake") is None:
        raise JobError("format delta needs the package deltalake: pip install 'kvitto[delta]'")
    parts = urlsplit(table)
    if parts.scheme not in ("", "file") or parts.netloc:
        raise JobError(f"format delta needs a directory that is mounted here and on Spark's machines, not {table!r}")
    directory = unquote(parts.path) if parts.scheme else table
    if not is_delta(directory) and any(Path(directory).glob("*.parquet")):
        raise JobError(
            f"{table} holds Parquet files and is no Delta table: give another directory, or --format parquet"
        )
    return directory


def is_delta(directory: str) -> bool:
    return Path(directory, "_delta_log").is_dir()


class DeltaBatches:
    """The batches that one query adds to a table."""

    def __init__(self, spark: SparkSession, table: str, query: str) -> None:
        self.directory = check(table)
        self.query = query
        # names of this run only: a file that a commit may have named is never written again
        self._files = BatchFiles(spark, table, query, run=f"{uuid.uuid4().hex[:8]}-")
        self._table: DeltaTable | None = None
        # Delta's times are in microseconds; Spark's own default is an older type. Only the batches use this `spark`
        # session
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")

    def put(self, batch: int, rows: DataFrame | None) -> None:
        """Add these rows as the batch, if the table does not have it yet. Return None for a batch without rows."""
        from deltalake import CommitProperties, Transaction

        if rows is None:
            return
        table = self._open(rows.schema)
        done = table.transaction_version(self.query)
        if done is not None and done >= batch:
            rows.write.format("noop").mode("overwrite").save()  # they are counted while they are read
            return
        added = [action for file in self._files.put(batch, rows) if (action := self._action(file)) is not None]
        if added:
            noted = CommitProperties(app_transactions=[Transaction(self.query, batch)])
            table.create_write_transaction(added, "append", table.schema(), commit_properties=noted)

    def _open(self, schema: StructType) -> DeltaTable:
        """Return the table in its current state. It is made if it does not exist."""
        from deltalake import DeltaTable, Schema

        if self._table is not None:
            self._table.update_incremental()
            return self._table
        try:
            wanted = Schema.from_json(schema.toNullable().json())
        except ValueError as error:
            raise JobError(f"{self.directory}: the schema does not fit a Delta table: {error}") from None
        table = DeltaTable.create(self.directory, wanted, mode="ignore")
        here = {each.name: each.type for each in table.schema().fields}
        for each in wanted.fields:
            if here.get(each.name) != each.type:
                has = f"column {each.name} as {here[each.name]}" if each.name in here else f"no column {each.name}"
                raise JobError(
                    f"the Delta table {self.directory} has {has}, and what is landed has it as {each.type}: change one of"
                    " them, or land in another table"
                )
        if columns := table.metadata().partition_columns:
            raise JobError(
                f"the Delta table {self.directory} is partitioned by {', '.join(columns)}: land in one that is not"
            )
        self._table = table
        return table

    def _action(self, file: Any) -> Any:
        """Return the log entry of a file, from its status in Hadoop; None for a file without rows."""
        import pyarrow.parquet as pq
        from deltalake.transaction import AddAction

        name = file.getPath().getName()
        count = pq.read_metadata(Path(self.directory, name)).num_rows
        if not count:
            return None
        stats = f'{{"numRecords": {count}}}'
        return AddAction(quote(name), file.getLen(), {}, file.getModificationTime(), True, stats)

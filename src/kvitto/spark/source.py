"""`format("amqp")`: what Spark calls. The driver side plans and settles, the executors read (reading.py); the sink is in sink.py.

Settling follows Spark's commit log: `latestOffset(start)` is only called with a `start` whose batch is committed, at once
when it is and also when nothing new has come, so that is where messages are settled. `commit` alone would leave the last
batch unsettled as long as nothing new comes. Settling again is harmless, so a restart needs no memory of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kvitto.spark.offsets import Offsets
from kvitto.spark.options import Options, read_options
from kvitto.spark.schema import check_schema, full_schema
from kvitto.spark.sink_options import read_sink_options

if TYPE_CHECKING:
    import pyarrow as pa

    from kvitto.spark.driver import Driver
    from kvitto.spark.reading import RangePartition
    from kvitto.spark.sink import AmqpStreamWriter, AmqpWriter


class AmqpDataSource(DataSource):
    """Queues of an AMQP broker, read by range of offsets and settled once Spark has committed. See docs/spark.md."""

    @cached_property
    def checked(self) -> Options:
        """The options of the source; those of the sink are others."""
        return read_options(dict(self.options))

    @classmethod
    def name(cls) -> str:
        return "amqp"

    def schema(self) -> StructType:
        return full_schema(self.checked.include_headers)

    def reader(self, schema: StructType) -> AmqpReader:
        check_schema(schema, self.checked.include_headers)
        return AmqpReader(self.checked, schema)

    def streamReader(self, schema: StructType) -> AmqpStreamReader:
        check_schema(schema, self.checked.include_headers)
        return AmqpStreamReader(self.checked, schema)

    def writer(self, schema: StructType, overwrite: bool) -> AmqpWriter:
        from kvitto.spark.sink import AmqpWriter

        return AmqpWriter(schema, read_sink_options(dict(self.options)), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> AmqpStreamWriter:
        from kvitto.spark.sink import AmqpStreamWriter

        # output mode `complete` says overwrite: the rows of the whole result are published with each batch
        return AmqpStreamWriter(schema, read_sink_options(dict(self.options)))


class AmqpReader(DataSourceReader):
    """A batch: what is in the queues now, nothing settled."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        from kvitto.spark.driver import Driver

        driver = Driver(self.options)
        try:
            return list(driver.plan_once())
        finally:
            driver.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, self.schema, partition)


class AmqpStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's part of a query. Pickled for the executors before it is used: it connects when first called."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._driver: Driver | None = None
        self._vhost = options.vhost

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            from kvitto.spark.driver import Driver

            self._driver = Driver(self.options)
        return self._driver

    def initialOffset(self) -> dict[str, Any]:
        return self.driver.begin().to_json(self._vhost)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.max_offsets_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        return self.driver.advance(self._offsets(start), most).to_json(self._vhost)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        latest = self.driver.latest
        return latest.to_json(self._vhost) if latest is not None else None

    def prepareForTriggerAvailableNow(self) -> None:
        self.driver.fix_target()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[RangePartition]:
        return self.driver.plan(self._offsets(start), self._offsets(end))

    def commit(self, end: dict[str, Any]) -> None:
        self.driver.settle(self._offsets(end))

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, self.schema, partition)

    def _offsets(self, value: dict[str, Any]) -> Offsets:
        return Offsets.from_json(value, self._vhost)


def _read(options: Options, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    from kvitto.spark.reading import RangePartition, read_range

    # Spark makes an empty partition of its own if a batch read has none
    return read_range(options, schema, partition) if isinstance(partition, RangePartition) else iter(())

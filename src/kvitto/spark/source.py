"""`format("amqp")`: called by Spark. The sink is in sink.py. How a queue is read depends on the read mode: driver.py
and reading.py (range), stream.py (stream), staged.py and staging.py (staged).

Messages are settled in `latestOffset(start)`, because Spark calls it only with a `start` whose batch is committed, at
once after the commit and also when nothing new has arrived. `commit` alone would leave the last batch unsettled as long
as nothing new arrives. Settling again is harmless, so a restart needs no record of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kvitto.spark.errors import SourceError
from kvitto.spark.offsets import Offsets
from kvitto.spark.options import AUTO, Options, from_the_start, read_options
from kvitto.spark.schema import check_schema, full_schema
from kvitto.spark.sink_options import read_sink_options

if TYPE_CHECKING:
    import pyarrow as pa

    from kvitto.spark.modes import ModeDriver
    from kvitto.spark.sink import AmqpStreamWriter, AmqpWriter

LIST_S: Final = 1.0
"""The minimum time between two requests for the queues that match a pattern."""


class AmqpDataSource(DataSource):
    """Queues of an AMQP broker, whose messages are settled after Spark has committed them. See docs/spark.md."""

    @cached_property
    def checked(self) -> Options:
        """The options of the source; the sink has others."""
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

        # output mode `complete` means overwrite: the rows of the whole result are published with each batch
        return AmqpStreamWriter(schema, read_sink_options(dict(self.options)))


class AmqpReader(DataSourceReader):
    """A batch: the messages that are in the queues now. Nothing is settled."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        from kvitto.spark.driver import FIRST_CONTACT_S
        from kvitto.spark.modes import choose, driver_of

        options = self.options
        if options.pattern:
            from kvitto.spark.discovery import matching

            options = replace(options, queues=matching(options, options.mode, (), FIRST_CONTACT_S))
        driver = driver_of(options, choose(options))
        try:
            return list(driver.plan_once())
        finally:
            driver.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, self.schema, partition)


class AmqpStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's part of a query. Spark pickles it for the executors before it is used, so it connects when it is first called."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._driver: ModeDriver | None = None
        self._available_now = False
        self._planned = False
        self._list_at = 0.0
        self._vhost = options.vhost

    def initialOffset(self) -> dict[str, Any]:
        from kvitto.spark.modes import choose

        options = replace(self.options, queues=self._queues(self.options.mode))
        driver = self._drive(choose(options), options)
        begun = driver.begin()
        if options.pattern:
            # Spark asks again after a crash in its first batch: later messages have no position in its log
            driver.include(options.queues)
        return begun.to_json(self._vhost)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.max_offsets_per_trigger:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.max_bytes_per_trigger:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = self._offsets(start)
        # Spark passes one limit, and there may be two; its value only says whether there are any
        limits = (0, 0)
        if not isinstance(limit, ReadAllAvailable):
            limits = (self.options.max_offsets_per_trigger, self.options.max_bytes_per_trigger)
        driver = self._continue(begin)
        if self.options.pattern and self._planned and not self._available_now and time.monotonic() >= self._list_at:
            driver.include(self._queues(begin.mode, begin))
            self._list_at = time.monotonic() + LIST_S
        self._planned = True
        return driver.advance(begin, *limits).to_json(self._vhost)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        latest = self._driver.latest if self._driver is not None else None
        return latest.to_json(self._vhost) if latest is not None else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        upto = self._offsets(end)
        return self._continue(upto).plan(self._offsets(start), upto)

    def commit(self, end: dict[str, Any]) -> None:
        upto = self._offsets(end)
        self._continue(upto).settle(upto)

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, self.schema, partition)

    def _continue(self, at: Offsets) -> ModeDriver:
        """Return the driver of a query that is at these offsets."""
        if self._driver is not None or not self.options.pattern:
            return self._drive(at.mode, self.options)
        return self._drive(at.mode, from_the_start(self.options, self._queues(at.mode, at)))

    def _queues(self, mode: str, at: Offsets | None = None) -> tuple[str, ...]:
        """Return the queues to read now; `at` are the offsets of the query."""
        if not self.options.pattern:
            return self.options.queues
        from kvitto.spark.discovery import matching
        from kvitto.spark.driver import FIRST_CONTACT_S

        timeout_s = FIRST_CONTACT_S if at is None else self.options.reconnect_timeout_s
        return matching(self.options, mode, at.queues if at is not None else (), timeout_s)

    def _drive(self, mode: str, options: Options) -> ModeDriver:
        """Return the driver of that read mode, made with those options. With readMode auto it is the mode of the checkpoint."""
        if self.options.mode not in (AUTO, mode):
            raise SourceError(
                f"this checkpoint was made with readMode {mode}, and option readMode is {self.options.mode}: say {mode}, or"
                " start with a new checkpoint"
            )
        if self._driver is None:
            from kvitto.spark.modes import driver_of

            self._driver = driver_of(options, mode)
            if self._available_now:
                self._driver.fix_target()
        return self._driver

    def _offsets(self, value: dict[str, Any]) -> Offsets:
        return Offsets.from_json(value, self._vhost)


def _read(options: Options, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    from kvitto.spark.reading import FilesPartition, RangePartition, StreamPartition, read_range

    if isinstance(partition, RangePartition):
        return read_range(options, schema, partition)
    if isinstance(partition, StreamPartition):
        from kvitto.spark.stream import read_stream

        return read_stream(options, schema, partition)
    if isinstance(partition, FilesPartition):
        from kvitto.spark.staged import read_files

        return read_files(options, schema, partition)
    return iter(())  # Spark makes an empty partition of its own if a batch read has none

"""`format("kvitto-archive")`: called by Spark. The driver lists segments, the executors read them (reading.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from kvitto.spark.archive.options import MESSAGES, Options, read_options, to_ms
from kvitto.spark.archive.schema import check_schema, full_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from kvitto.spark.archive.planning import Bounds


class ArchiveDataSource(DataSource):
    """Messages or settlements in a broker's data directory or archive. See docs/archive.md."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.checked: Options = read_options(dict(options))

    @classmethod
    def name(cls) -> str:
        return "kvitto-archive"

    def schema(self) -> StructType:
        return full_schema(self.checked)

    def reader(self, schema: StructType) -> ArchiveReader:
        check_schema(schema, self.checked)
        # Spark refuses every reader that takes filters unless they are enabled in its configuration
        return (FilteringReader if self.checked.push_filters else ArchiveReader)(self.checked, schema)


class ArchiveReader(DataSourceReader):
    """The contents of the files when they are read."""

    def __init__(self, options: Options, schema: StructType) -> None:
        from kvitto.spark.archive.planning import Bounds

        self.options = options
        self.schema = schema
        self.bounds: Bounds = Bounds(None, options.queues or None, None, options.start_ms, options.end_ms)

    def partitions(self) -> Sequence[InputPartition]:
        from kvitto.spark.archive.files import find
        from kvitto.spark.archive.planning import choose, marks, together
        from kvitto.spark.archive.reading import SegmentPartition

        by_publishing = self.options.table == MESSAGES
        segments = choose(find(self.options.path), self.bounds, by_publishing)
        delivered = marks(segments) if by_publishing and "deliveries" in self.schema.names else {}
        return [SegmentPartition(group, delivered) for group in together(segments)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from kvitto.spark.archive.reading import SegmentPartition, read_partition

        # Spark makes an empty partition of its own if there is none
        if not isinstance(partition, SegmentPartition):
            return iter(())
        return read_partition(self.options, self.bounds, self.schema, partition)


class FilteringReader(ArchiveReader):
    """Leaves out whole segments and batches that a filter on names or time excludes; Spark filters the rest."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            self.bounds = limit(self.bounds, each, "published" if self.options.table == MESSAGES else "settled")
        return filters


def limit(bounds: Bounds, condition: Filter, time: str) -> Bounds:
    """Return the bounds within which the condition may be true; they may be wider."""
    column, value = getattr(condition, "attribute", ()), getattr(condition, "value", None)
    if isinstance(condition, EqualTo | In):
        names = frozenset([value] if isinstance(condition, EqualTo) else value or ())
        if column == ("vhost",):
            bounds = replace(bounds, vhosts=_both(bounds.vhosts, names))
        if column == ("queue",):
            bounds = replace(bounds, queues=_both(bounds.queues, names))
        if column == ("queue_id",):
            bounds = replace(bounds, ids=_both(bounds.ids, names))
    if column == (time,) and isinstance(value, datetime):
        at = to_ms(value)
        if isinstance(condition, EqualTo | GreaterThan | GreaterThanOrEqual):
            bounds = replace(bounds, start_ms=max(bounds.start_ms, at))
        if isinstance(condition, EqualTo | LessThan | LessThanOrEqual):
            bounds = replace(bounds, end_ms=min(bounds.end_ms, at + 1))
    return bounds


def _both(before: frozenset[str] | None, names: frozenset[str]) -> frozenset[str]:
    return names if before is None else before & names

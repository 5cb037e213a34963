"""The executor's part: reads the segments of one partition, with the outcome of each message."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from kvitto.spark.archive.columns import FATE_COLUMNS, META_COLUMNS, message_batches, settlement_batches
from kvitto.spark.archive.files import ArchiveError, Segment
from kvitto.spark.archive.options import MESSAGES, Options
from kvitto.spark.archive.planning import Bounds
from kvitto.spark.archive.segment import Damage, Messages, SegmentFile, Wanted
from kvitto.spark.archive.settlements import Entries, Outcomes, read_entries
from kvitto.spark.columns import arrow_schema


class SegmentPartition(InputPartition):
    """One task's work: segments in order. `marks`: the delivered mark by queue id, as of planning."""

    def __init__(self, segments: list[Segment], marks: dict[str, int]) -> None:
        super().__init__(None)
        self.segments = segments
        self.marks = marks


def read_partition(
    options: Options, bounds: Bounds, schema: StructType, part: SegmentPartition
) -> Iterator[pa.RecordBatch]:
    """Yield all rows of the partition's segments within the bounds, as Arrow batches of that schema."""
    columns = arrow_schema(schema)
    for segment in part.segments:
        if options.table == MESSAGES:
            yield from _messages(options, bounds, columns, segment, part.marks.get(segment.queue.id, 0))
        else:
            entries = _entries(segment, segment.archived, options.ignore_damage)
            yield from settlement_batches(entries, segment.queue, bounds.start_ms, bounds.end_ms, columns)


def _messages(
    options: Options, bounds: Bounds, columns: pa.Schema, segment: Segment, mark: int
) -> Iterator[pa.RecordBatch]:
    names = set(columns.names)
    wanted = Wanted(bounds.start_ms, bounds.end_ms, bool(names & META_COLUMNS), "body" in names)
    fate = mark if names & FATE_COLUMNS else None
    for found, outcomes in segment_messages(segment, wanted, fate, options.ignore_damage):
        yield from message_batches(found, segment.queue, outcomes, columns)


def segment_messages(
    segment: Segment, wanted: Wanted, mark: int | None, ignore_damage: bool
) -> Iterator[tuple[Messages, Outcomes | None]]:
    """Yield the messages of a segment, with their outcomes unless `mark`, its queue's delivered mark, is None."""
    file, moved = _open(segment)
    with file:
        archived = segment.archived or moved
        reader = SegmentFile(file, file.name, segment.base, archived, ignore_damage)
        outcomes = None if mark is None else Outcomes(_entries(segment, archived, ignore_damage), mark)
        for found in reader.messages(wanted):
            yield found, outcomes


def _open(segment: Segment) -> tuple[BinaryIO, bool]:
    """Open the segment. Return whether it has moved into the archive since it was listed."""
    for k, path in enumerate(segment.paths(".log")):
        try:
            return open(path, "rb", buffering=0), k > 0
        except FileNotFoundError:
            continue
    raise _gone(segment)


def _entries(segment: Segment, archived: bool, ignore_damage: bool) -> Entries:
    """Return the entries of its settlement log, wherever that is by now; none if nothing is settled yet."""
    paths = segment.paths(".ack")
    for k, path in enumerate(paths):
        try:
            with open(path, "rb") as file:
                return read_entries(file.read(), path, archived or k > 0, ignore_damage)
        except FileNotFoundError:
            continue
    if not any(os.path.exists(path) for path in segment.paths(".log")):
        raise _gone(segment)
    if archived and not ignore_damage:
        raise Damage(paths[-1], "the settlement log of an archived segment is missing")
    return read_entries(b"", paths[0], False, True)


def _gone(segment: Segment) -> ArchiveError:
    return ArchiveError(
        f"{segment.paths('.log')[0]} is gone since the read began: it became too old for the archive (x-archive-max-age,"
        " x-archive-max-length-bytes), or its queue was deleted. Read again"
    )

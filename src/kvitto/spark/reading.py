"""Read mode `range`, the executor's part: reads one range of offsets of a queue, as often as Spark asks for it.

Nothing is consumed, so a retried or a speculative task reads the same messages again. Each worker process keeps one
connection from task to task. If it breaks in the middle of a range, reading goes on after the last batch that was
passed to Spark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from kvitto.client import Batch, Channel, ChannelClosed, ConnectFailed
from kvitto.spark.columns import arrow_schema, to_arrow
from kvitto.spark.errors import DataLossError
from kvitto.spark.link import LOST, Link, Patience, explain
from kvitto.spark.options import Options

BATCH_BYTES: Final = 4 << 20
"""The bytes of bodies that are collected before they are passed to Spark."""
CHUNK_OFFSETS: Final = 1 << 18
"""The number of offsets in one request; it bounds a batch of messages without a body."""

_links: dict[tuple[int, str, bool], Link] = {}
"""The links by process, URI and kind. Spark's workers are forked, and a child must not use its parent's socket."""


def worker_link(options: Options, *, by_range: bool) -> Link:
    """Return the connection of this worker process."""
    key = (os.getpid(), options.uri, by_range)
    return _links.setdefault(key, Link(options.uri, "kvitto spark reader", by_range=by_range))


class RangePartition(InputPartition):
    """One task's work: offsets [start, end) of one incarnation of a queue, in which `count` messages wait."""

    def __init__(self, queue: str, incarnation: str, start: int, end: int, count: int) -> None:
        super().__init__(None)
        self.queue = queue
        self.incarnation = incarnation
        self.start = start
        self.end = end
        self.count = count

    def __repr__(self) -> str:
        return f"offsets {self.start} to {self.end} of queue {self.queue!r}"


class StreamPartition(InputPartition):
    """One task's work: offsets [start, end) of a stream."""

    def __init__(self, queue: str, start: int, end: int) -> None:
        super().__init__(None)
        self.queue = queue
        self.start = start
        self.end = end

    def __repr__(self) -> str:
        return f"offsets {self.start} to {self.end} of stream {self.queue!r}"


class FilesPartition(InputPartition):
    """One task's work: staged files of a queue, by number and path."""

    def __init__(self, queue: str, files: list[tuple[int, str]]) -> None:
        super().__init__(None)
        self.queue = queue
        self.files = files

    def __repr__(self) -> str:
        return f"staged files {self.files[0][0]} to {self.files[-1][0]} of queue {self.queue!r}"


def read_range(options: Options, schema: StructType, part: RangePartition) -> Iterator[pa.RecordBatch]:
    """Yield the unsettled messages of the range as Arrow batches of that schema, in order."""
    columns = arrow_schema(schema)
    patience = Patience(options.reconnect_timeout_s)
    link = worker_link(options, by_range=True)
    position, count = part.start, 0
    whole = False
    try:
        while position < part.end:
            try:
                # kept in a variable so that `finally` closes the connection first: ending the request would read it to
                # its end
                chunk = _chunk(link.channel(), part, position, options.fail_on_data_loss)
                for batch, after in chunk:
                    patience.progress()
                    yield from to_arrow(batch, part.queue, columns)
                    position = after
                    count += batch.count
            except ChannelClosed as error:
                raise explain(error, part.queue) from None
            except (ConnectFailed, *LOST) as error:
                link.close()
                patience.wait(error)
        if count < part.count and options.fail_on_data_loss:
            raise DataLossError(missing(part.queue, part.start, part.end, count, part.count))
        whole = True
    finally:
        if not whole:  # Spark needs no more (limit), or failed: messages on their way are not for the next task
            link.close()


def _chunk(channel: Channel, part: RangePartition, position: int, strict: bool) -> Iterator[tuple[Batch, int]]:
    """Yield messages from `position` on, each batch with the offset after it; at most one chunk."""
    end = min(part.end, position + CHUNK_OFFSETS)
    if not _still_there(channel, part, strict):
        yield Batch(), part.end
        return
    for batch in channel.log_batches(part.queue, position, end, BATCH_BYTES):
        yield batch, batch.tags.view(8 * batch.count - 8).cast("Q")[0]
    done = channel.last_read
    # the same incarnation before and after means the same in between, because none ever comes back
    if not _still_there(channel, part, strict):
        yield Batch(), part.end
        return
    if strict and done is not None and done.next < end:
        raise DataLossError(
            f"queue {part.queue!r} ends at offset {done.next}, but Spark was promised messages up to {end}: the broker's"
            " disk was set back? Start with a new checkpoint, or set failOnDataLoss = false to go on with what is there"
        )
    yield Batch(), end


def _still_there(channel: Channel, part: RangePartition, strict: bool) -> bool:
    incarnation = channel.log_inspect(part.queue).incarnation
    if incarnation != part.incarnation and strict:
        raise declared_again(part.queue, part.incarnation, incarnation)
    return incarnation == part.incarnation


def missing(queue: str, first: int, last: int, count: int, planned: int) -> str:
    """Return the error for a batch with fewer messages than when it was planned."""
    return (
        f"queue {queue!r}: of the {planned} messages that were planned to be read from offsets {first} to {last}, {planned - count}"
        " are gone: the queue was purged, somebody else consumed them while the query was stopped, or the broker's disk is"
        " damaged (its log says so). Start with a new checkpoint, or set failOnDataLoss = false to go on without them"
    )


def declared_again(queue: str, before: str, now: str) -> DataLossError:
    """Return the error for a queue that was deleted and declared again while a query was reading it."""
    return DataLossError(
        f"queue {queue!r} was deleted and declared again since this query read it (incarnation {before} then, {now}"
        " now): what was in it is gone. Start with a new checkpoint, or set failOnDataLoss = false to go on with the new queue"
    )

"""Read mode `stream`: a queue of type stream, read by offset as often as needed, on any broker that has streams.

No broker reports the end of a stream: counts are late, and the first offset is not available at all. Only deliveries
are certain. So the driver finds both ends by consuming, and executors read until they have seen the last offset of
their range. Offsets may have gaps. Acks only give credit; nothing is settled, and the broker's retention applies.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from kvitto.base.errors import ConnectionError_
from kvitto.client import Batch, Channel, ChannelClosed, ConnectFailed, Connection, ConsumerCancelled, Properties
from kvitto.spark.columns import arrow_schema, received, to_arrow
from kvitto.spark.driver import FIRST_CONTACT_S, not_named
from kvitto.spark.errors import DataLossError, SourceError
from kvitto.spark.link import LOST, Link, Patience, ack_timed_out, explain
from kvitto.spark.offsets import Offsets, Position
from kvitto.spark.options import EARLIEST, LATEST, STREAM, Options, from_the_start
from kvitto.spark.planning import fit_bytes, limit_offsets, parallelism, split
from kvitto.spark.properties import Ints
from kvitto.spark.reading import StreamPartition, worker_link
from kvitto.wire.tables import Value

log = logging.getLogger("kvitto.spark")
T = TypeVar("T")

PREFETCH: Final = 1000
"""The number of messages on their way to an executor."""
TAIL_PREFETCH: Final = 200
"""The number of messages on their way to the driver between two looks."""
QUIET_S: Final = 0.05
"""If no message arrives for this time, the last one is the end. A time that is too short is harmless: the rest belongs
to the next batch."""
LOOK_S: Final = 0.5
"""The maximum time of one look at a stream to which messages are always published."""
FIRST_S: Final = 1.0
"""The time to wait for an empty stream; ten times as long if the broker says that it has messages."""
SILENT_S: Final = 5.0
"""An executor that has waited for this time checks whether the stream still reaches the end of its range."""
_OFFSET = re.compile(rb"\x0fx-stream-offsetl", re.DOTALL)


class Seen(NamedTuple):
    """A message of a stream: its offset, and a digest to recognise it. `size` is the number of bytes of its body."""

    offset: int
    mark: str
    size: float


def stream_offsets(batch: Batch, queue: str) -> Ints:
    """Return the header x-stream-offset of each message. Raise SourceError if one has none: then the queue is not a stream."""
    ends, data = batch.properties.buffers()
    borders = np.frombuffer(ends, dtype="<u4").astype(np.int64)
    found = np.array([match.end() for match in _OFFSET.finditer(data)], dtype=np.int64)
    # if each property list has exactly one, it is the broker's, which puts one into every message
    if len(found) == batch.count and (found > borders[:-1]).all() and (found + 8 <= borders[1:]).all():
        raw = np.frombuffer(data, dtype=np.uint8)[found[:, None] + np.arange(8)]
        return np.ascontiguousarray(raw).view(">i8").ravel().astype(np.int64)
    return np.array([_offset_of(raw, queue) for raw in batch.properties.tolist()], dtype=np.int64)


def _offset_of(raw: bytes, queue: str) -> int:
    try:
        offset = (Properties.decode(raw).headers or {}).get("x-stream-offset")
    except ConnectionError_:
        offset = None
    if not isinstance(offset, int):
        raise SourceError(
            f"queue {queue!r} is no stream: it delivers messages without x-stream-offset; leave option readMode out, or"
            " set it to staged"
        )
    return offset


def peek(connection: Connection, queue: str, where: Value, wait_s: float) -> Seen | None:
    """Return the first message at `where` or after it; None if none arrives in time."""
    channel = connection.channel()
    try:
        channel.qos(1)
        channel.consume(queue, arguments={"x-stream-offset": where})
        batch = channel.receive(wait_s)
        # RabbitMQ does not limit so exactly, and sends the rest of a chunk too
        return _seen(batch, stream_offsets(batch, queue), 0) if batch.count else None
    finally:
        if connection.closed is None:
            channel.close()


def _seen(batch: Batch, offsets: Ints, k: int) -> Seen:
    digest = hashlib.blake2b(batch.routing_keys[k], digest_size=16)
    digest.update(batch.bodies[k])
    return Seen(int(offsets[k]), digest.hexdigest(), batch.bodies.data.n / batch.count)


class Tail:
    """The end of one stream: a consumer at its last messages, kept open so that a look without news costs next to nothing."""

    def __init__(self, connection: Connection, queue: str, known: bool = False) -> None:
        """`known`: the stream has messages, because this query has read some."""
        self.connection = connection
        self.queue = queue
        self.known = known
        self.last: Seen | None = None
        self.verified = False
        """Whether it is certain that this stream is the one that the query read before this consumer began."""
        self._open()

    def _open(self) -> None:
        self.channel = self.connection.channel()
        self.channel.qos(TAIL_PREFETCH)
        self.waiting = self._count()
        self.channel.consume(self.queue, arguments={"x-stream-offset": "last"})

    def look(self) -> Seen | None:
        """Return the last message, or None while there is none."""
        began = time.monotonic()
        wait_s = 0.0
        if self.last is None:
            wait_s = 10 * FIRST_S if self.waiting or self.known else FIRST_S
        taken = 0
        self._count()
        while batch := self.channel.receive(wait_s):
            self.last = _seen(batch, stream_offsets(batch, self.queue), batch.count - 1)
            self.channel.ack(batch.delivery_tags()[-1], multiple=True)
            taken += batch.count
            if time.monotonic() - began > LOOK_S:
                break
            if taken >= TAIL_PREFETCH:  # the publisher is faster than this consumer
                self.channel.close()
                self._open()
                taken = 0
            # on RabbitMQ an answer comes after all messages for which the acks gave credit
            self._count()
            wait_s = QUIET_S
        return self.last

    def _count(self) -> int:
        return self.channel.queue_declare(self.queue, passive=True).message_count


class StreamDriver:
    """One query's view of its streams. `latest` is the end of the streams at the last look."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.latest: Offsets | None = None
        self._target: dict[str, int] | None = None
        self._known: set[str] = set()
        self._tails: dict[str, Tail] = {}
        self._link = Link(options.uri, "kvitto spark driver", by_range=False)

    # --- called by source.py

    def include(self, queues: tuple[str, ...]) -> None:
        """Read these streams from now on; new ones from their start."""
        self.options = from_the_start(self.options, queues)

    def begin(self) -> Offsets:
        """Return the start of a query without a checkpoint."""
        lasts = self._look(FIRST_CONTACT_S)
        return self._offsets({name: self._first(name, last) for name, last in lasts.items()})

    def advance(self, start: Offsets, most: int, most_bytes: int = 0) -> Offsets:
        """Return the end of the next batch: `most` offsets or about `most_bytes` of bodies, 0 means all."""
        self._known = {name for name, at in start.queues.items() if at.next > 0}
        lasts = self._look()
        begins = {name: self._continue(name, start.queues.get(name), last) for name, last in lasts.items()}
        ends = {name: max(_end(last), begins[name].next) for name, last in lasts.items()}
        self.latest = self._moved(begins, ends, lasts)
        if self._target is not None:
            ends = {name: max(begins[name].next, min(end, self._target.get(name, 0))) for name, end in ends.items()}
        sizes = [last.size for last in lasts.values() if last is not None]
        most = fit_bytes(most, most_bytes, sum(sizes) / max(1, len(sizes)))
        if most:
            ends = limit_offsets({name: at.next for name, at in begins.items()}, ends, most)
        return self._moved(begins, ends, lasts)

    def fix_target(self) -> None:
        """From now on read nothing beyond the end that the streams have at this moment (Trigger.AvailableNow)."""
        self._target = {name: _end(last) for name, last in self._look().items()}

    def plan(self, start: Offsets, end: Offsets) -> list[StreamPartition]:
        """Return the tasks of a batch, new or repeated after a crash."""
        ranges: list[tuple[str, int, int]] = []
        for name, to in end.queues.items():
            at = start.queues.get(name)
            first = at.next if at is not None and at.begin == to.begin else max(to.begin, 0)
            if to.next > first and name not in self.options.queues:
                self._lost(not_named(name))
            elif to.next > first:
                ranges.append((name, self._readable(name, first, to.next), to.next))
        return self._tasks(ranges)

    def plan_once(self) -> list[StreamPartition]:
        """Return the tasks of a batch read: from startingOffsets to endingOffsets at this moment."""
        ranges: list[tuple[str, int, int]] = []
        ending = self.options.ending
        for name, last in self._look(FIRST_CONTACT_S).items():
            start = self._first(name, last).next
            end = ending[name] if isinstance(ending, dict) else LATEST
            end = {LATEST: _end(last), EARLIEST: start}.get(end, min(end, _end(last)))
            ranges.append((name, start, max(start, end)))
        return self._tasks(ranges)

    def settle(self, end: Offsets) -> None:
        """Do nothing: a stream is not consumed."""

    def close(self) -> None:
        """Disconnect."""
        self._tails = {}
        self._link.close()

    # --- the broker

    def _look(self, timeout_s: float | None = None) -> dict[str, Seen | None]:
        def look(channel: Channel) -> dict[str, Seen | None]:
            return {name: self._ask(name, lambda name=name: self._tail(channel, name)) for name in self.options.queues}  # type: ignore[misc]

        return self._link.call(look, self.options.reconnect_timeout_s if timeout_s is None else timeout_s)

    def _tail(self, channel: Channel, name: str) -> Seen | None:
        tail = self._tails.get(name)
        if tail is None or tail.connection is not channel.connection or tail.channel.closed is not None:
            tail = self._tails[name] = Tail(channel.connection, name, name in self._known)
        try:
            return tail.look()
        except ConsumerCancelled:  # the stream was deleted, or its leader moved: it is examined again
            tail = self._tails[name] = Tail(channel.connection, name, name in self._known)
            return tail.look()

    def _peek(self, name: str, where: Value, wait_s: float) -> Seen | None:
        def look(channel: Channel) -> Seen | None:
            return self._ask(name, lambda: peek(channel.connection, name, where, wait_s))

        return self._link.call(look, self.options.reconnect_timeout_s)

    def _ask(self, queue: str, action: Callable[[], T]) -> T:
        """Send a request about one stream; a refusal of the server becomes an error that names the stream."""
        try:
            return action()
        except ConsumerCancelled as error:
            raise SourceError(f"queue {queue!r}: {error}; declare the stream again and start the query anew") from None
        except ChannelClosed as error:
            if ack_timed_out(error):
                raise TimeoutError(str(error)) from None  # treated like a lost connection
            raise explain(error, queue) from None

    # --- start and continuation

    def _first(self, name: str, last: Seen | None) -> Position:
        """Return the first offset for a query that has not read this stream yet."""
        if last is None:
            return Position("", 0, 0)
        place: int = self.options.starting[name] if isinstance(self.options.starting, dict) else self.options.starting
        stamp = self.options.starting_timestamp
        if stamp is not None:
            seen = self._peek(name, datetime.fromtimestamp(stamp, UTC), FIRST_S)
            place = seen.offset if seen is not None else LATEST
        if place == LATEST:
            return Position(last.mark, last.offset + 1, last.offset + 1)
        first = self._peek(name, "first", 10 * FIRST_S)
        begin = first.offset if first is not None else 0
        if place == EARLIEST:
            return Position("", begin, begin)
        if not begin <= place <= last.offset + 1:
            self._lost(
                f"option startingOffsets asks for offset {place} of stream {name!r}, which holds {begin} to"
                f" {last.offset + 1}: choose one of those, or earliest"
            )
            place = min(max(place, begin), last.offset + 1)
        return Position("", place, place)

    def _continue(self, name: str, start: Position | None, last: Seen | None) -> Position:
        """Return the first offset of the next batch of a stream: that of `start`, unless it is another stream now."""
        if start is None:  # the stream was added to option queues later
            return self._first(name, last)
        tail = self._tails[name]
        if start.next == 0 or (tail.verified and _end(last) >= start.next):
            return start
        before = self._peek(name, start.next - 1, FIRST_S if _end(last) >= start.next else 10 * FIRST_S)
        text = ""
        if before is None:
            text = (
                f"stream {name!r} ends at offset {_end(last)}, but this query has read up to {start.next}: it was deleted"
                f" and declared again, or the broker's disk was set back. {_ANEW}"
            )
        elif before.offset == start.next - 1 and start.incarnation not in ("", before.mark):
            text = (
                f"stream {name!r}: the message at offset {before.offset} is another one than this query has read there:"
                f" the stream was deleted and declared again, what was in it is gone. {_ANEW}"
            )
        tail.verified = True
        if text:
            self._lost(text)
            # read from the start of the new stream; plan() sees it by another `begin`
            return Position("", -1 if start.begin >= 0 else 0, 0)
        return start

    def _readable(self, name: str, first: int, end: int) -> int:
        """Return the first offset of a batch that can be read."""
        held = self._peek(name, "first", 10 * FIRST_S)
        # an empty stream begins at 0 or 1, depending on the broker
        if held is None or held.offset <= max(first, 1):
            return first
        self._lost(aged_out(name, first, held.offset))
        return min(held.offset, end)

    def _lost(self, text: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLossError(text)
        log.warning("%s; going on because failOnDataLoss = false", text)

    def _moved(self, begins: dict[str, Position], ends: dict[str, int], lasts: dict[str, Seen | None]) -> Offsets:
        queues = {}
        for name, at in begins.items():
            mark = at.incarnation
            if ends[name] != at.next:
                last = lasts[name]
                seen = last if _end(last) == ends[name] else self._peek(name, ends[name] - 1, FIRST_S)
                mark = seen.mark if seen is not None and seen.offset == ends[name] - 1 else ""
            queues[name] = Position(mark, at.begin, ends[name])
        return self._offsets(queues)

    def _offsets(self, queues: dict[str, Position]) -> Offsets:
        return Offsets("", queues, STREAM)

    def _tasks(self, ranges: list[tuple[str, int, int]]) -> list[StreamPartition]:
        return [StreamPartition(*piece) for piece in split(ranges, *parallelism(self.options.min_partitions))]


_ANEW = "Start with a new checkpoint, or set failOnDataLoss = false to go on with what is there"


def _end(last: Seen | None) -> int:
    return last.offset + 1 if last is not None else 0


def aged_out(queue: str, wanted: int, first: int) -> str:
    """Return the error text if retention was faster than the query."""
    return (
        f"stream {queue!r}: messages from offset {wanted} to {first} are gone before they were read: the stream's retention"
        " (x-max-age, x-max-length-bytes) dropped them. Read faster or keep more, or set failOnDataLoss = false to go on"
        f" at {first}"
    )


# --- the executor's part


def read_stream(options: Options, schema: StructType, part: StreamPartition) -> Iterator[pa.RecordBatch]:
    """Yield the messages of the range as Arrow batches of that schema, in order."""
    columns = arrow_schema(schema)
    patience = Patience(options.reconnect_timeout_s)
    link = worker_link(options, by_range=False)
    position = part.start
    whole = False
    try:
        while position < part.end:
            try:
                # kept in a variable so that `finally` closes the connection before the request ends
                found = _deliveries(link.channel().connection, part, position, options)
                for batch, offsets in found:
                    patience.progress()
                    rows = slice(*np.searchsorted(offsets, (position, part.end)).tolist())
                    yield from to_arrow(received(batch, offsets), part.queue, columns, rows)
                    position = max(position, int(offsets[-1]) + 1)
                position = part.end
            except ChannelClosed as error:
                if not ack_timed_out(error):
                    raise explain(error, part.queue) from None
                link.close()
            except ConsumerCancelled:
                raise SourceError(f"stream {part.queue!r} was deleted while {part} were read; {_ANEW}") from None
            except (ConnectFailed, *LOST) as error:
                link.close()
                patience.wait(error)
        whole = True
    finally:
        if not whole:  # Spark needs no more (limit), or failed: messages on their way are not for the next task
            link.close()


def _deliveries(
    connection: Connection, part: StreamPartition, position: int, options: Options
) -> Iterator[tuple[Batch, Ints]]:
    """Yield the messages from `position` on, at least to the end of the range; offsets ascend."""
    channel = connection.channel()
    channel.qos(min(PREFETCH, part.end - position))
    channel.consume(part.queue, arguments={"x-stream-offset": position})
    silent_s = 0.0
    started = False
    looked = False
    least = max(1, min(PREFETCH // 2, part.end - position))
    while True:
        batch = channel.receive(QUIET_S, least=least)
        if not batch.count:
            silent_s += QUIET_S
            if silent_s >= SILENT_S and not looked:
                looked = True
                if not _reaches(connection, part, options):
                    break
            if silent_s >= options.reconnect_timeout_s:
                raise SourceError(
                    f"stream {part.queue!r}: no message for {silent_s:.0f} s (option reconnectTimeout) from offset {position}"
                    f" on, though the stream reaches to {part.end}; look at the broker's log and at the stream's leader. The"
                    " query goes on from its checkpoint when it is started again"
                )
            continue
        silent_s = 0.0
        channel.ack(batch.delivery_tags()[-1], multiple=True)
        offsets = stream_offsets(batch, part.queue)
        if not started and offsets[0] > max(position, 1):
            _check_gap(connection, part, position, options)
        started = True
        yield batch, offsets
        position = int(offsets[-1]) + 1
        if position >= part.end:
            break
    channel.close()


def _check_gap(connection: Connection, part: StreamPartition, position: int, options: Options) -> None:
    """Check a range that begins later than asked: it has a gap, or messages were dropped."""
    held = peek(connection, part.queue, "first", 10 * FIRST_S)
    if held is not None and held.offset > position:
        text = aged_out(part.queue, position, held.offset)
        if options.fail_on_data_loss:
            raise DataLossError(text)
        log.warning("%s; going on because failOnDataLoss = false", text)


def _reaches(connection: Connection, part: StreamPartition, options: Options) -> bool:
    """Return whether the stream is as long as when the batch was planned. Raise DataLossError if not, unless that is allowed."""
    end = _end(Tail(connection, part.queue).look())
    if end >= part.end:
        return True
    text = (
        f"stream {part.queue!r} ends at offset {end}, but Spark was promised messages up to {part.end}: it was deleted and"
        f" declared again, or the broker's disk was set back. {_ANEW}"
    )
    if options.fail_on_data_loss:
        raise DataLossError(text)
    log.warning("%s; going on because failOnDataLoss = false", text)
    return False

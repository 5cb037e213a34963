"""Read mode `range`, the driver's part: one connection that is attached as the group; it inspects, plans and settles.

Every call may be repeated and survives a restart of the broker. If data was lost - the queue was declared again, or
messages that Spark has yet to read are missing - the query ends, or with failOnDataLoss = false a warning is logged.
"""

from __future__ import annotations

import logging
import secrets
import uuid
from collections.abc import Callable
from typing import Final, TypeVar

from kvitto.client import Batch, Channel, ChannelClosed
from kvitto.spark.errors import DataLossError, SourceError, TakenError
from kvitto.spark.link import Link, explain
from kvitto.spark.offsets import Offsets, Position, start_of
from kvitto.spark.options import EARLIEST, LATEST, Bound, Options, from_the_start
from kvitto.spark.planning import fit_bytes, limit_offsets, parallelism, split
from kvitto.spark.reading import RangePartition, declared_again, missing
from kvitto.wire import methods as m

log = logging.getLogger("kvitto.spark")
T = TypeVar("T")
FIRST_CONTACT_S: Final = 5.0
"""If the broker of a new query does not answer for this time, the uri is probably wrong, and the query fails early."""
SAMPLE: Final = 100
"""The number of messages whose mean size stands for that of all messages in a batch."""


class Driver:
    """One query's view of its queues. `latest` is the end of the queues at the last inspection."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.group = ""
        self._holder = ""
        """The group under which this driver attaches. Another driver with the same checkpoint has another one, and is refused."""
        self._attached: dict[str, str] = {}
        self.latest: Offsets | None = None
        self._target: dict[str, Position] | None = None
        self._link = Link(options.uri, "kvitto spark driver", self._prepare)

    # --- called by source.py

    def include(self, queues: tuple[str, ...]) -> None:
        """Read these queues from now on; new ones from their start."""
        new = set(queues) - set(self.options.queues)
        self.options = from_the_start(self.options, queues)
        if new:
            self._link.call(self._prepare, self.options.reconnect_timeout_s)

    def begin(self) -> Offsets:
        """Return the start of a query without a checkpoint, after attaching to its queues."""
        self._join(self.options.group or f"spark-{uuid.uuid4().hex[:16]}")
        found = self._look(FIRST_CONTACT_S)
        return Offsets(self.group, {name: self._first(name, at) for name, at in found.items()})

    def advance(self, start: Offsets, most: int, most_bytes: int = 0) -> Offsets:
        """Settle up to `start`, which Spark has committed, and return the end of the next batch: at most `most`
        offsets, 0 means all."""
        self._join(start.group)
        self._leave({name: at for name, at in start.queues.items() if name not in self.options.queues})
        found = self._look()
        begins = {name: self._continue(name, start.queues.get(name), at) for name, at in found.items()}
        self._settle(begins, found)
        ends = {name: max(at.next, begins[name].next) for name, at in found.items()}
        self.latest = self._moved(begins, ends)
        if self._target is not None:
            ends = {name: self._until_target(name, begins[name], end) for name, end in ends.items()}
        if most_bytes:
            most = fit_bytes(most, most_bytes, self._mean_size(begins))
        if most:
            ends = limit_offsets({name: at.next for name, at in begins.items()}, ends, most)
        return Offsets(self.group, {name: self._planned(name, at, ends[name]) for name, at in begins.items()})

    def fix_target(self) -> None:
        """From now on read nothing beyond the end that the queues have at this moment (Trigger.AvailableNow)."""
        found = self._look()
        self._target = {name: Position(at.incarnation, at.first, at.next) for name, at in found.items()}

    def plan(self, start: Offsets, end: Offsets) -> list[RangePartition]:
        """Return the tasks of a batch, new or repeated after a crash."""
        self._join(end.group)
        found = self._look()
        ranges: list[tuple[str, int, int]] = []
        for name, to in end.queues.items():
            first = start_of(start.queues.get(name), to)
            if to.next > first and self._named(name) and self._readable(name, first, to, found[name]):
                ranges.append((name, first, to.next))
        for name, first, last in ranges:
            self._hold(name, end.queues[name], first, last)  # the whole batch, before its pieces are counted
        tasks = []
        for name, first, last in self._pieces(ranges):
            to = end.queues[name]
            tasks.append(RangePartition(name, to.incarnation, first, last, self._hold(name, to, first, last).count))
        for name, first, _ in ranges:
            self._complete(name, end.queues[name], first, sum(task.count for task in tasks if task.queue == name))
        return tasks

    def plan_once(self) -> list[RangePartition]:
        """Return the tasks of a batch read: from startingOffsets to endingOffsets at this moment. Nothing is attached or settled."""
        found = self._look(FIRST_CONTACT_S)
        ranges: list[tuple[str, int, int]] = []
        for name, at in found.items():
            start = max(_resolve(self.options.starting, name, at), at.first)
            ranges.append((name, start, max(start, min(_resolve(self.options.ending, name, at), at.next))))

        def count(channel: Channel) -> list[RangePartition]:
            tasks = []
            for name, first, last in self._pieces(ranges):
                inc = found[name].incarnation
                tasks.append(
                    RangePartition(name, inc, first, last, _ask(channel.log_count, name, inc, first, last).count)
                )
            return tasks

        return self._link.call(count, self.options.reconnect_timeout_s)

    def settle(self, end: Offsets) -> None:
        """Settle everything before `end`, because Spark has committed it."""
        self._join(end.group)
        found = self._look()
        same = {name: at for name, at in end.queues.items() if found.get(name, at).incarnation == at.incarnation}
        self._settle(same, found)

    def close(self) -> None:
        """Detach the group and disconnect."""
        self._link.close()

    # --- one query, one group

    def _join(self, group: str) -> None:
        """Attach to all queues as `group`; a restarted query finds the name in its checkpoint."""
        if self.group != group:
            self._link.close()  # a channel that is open already is not attached as this group
            self.group = group
            self._holder = f"{group}#{secrets.token_hex(4)}"

    def _prepare(self, channel: Channel) -> None:
        """Attach on each new channel, if this query has a group."""
        if self.group:
            for name in self.options.queues:
                self._attach(channel, name)

    def _attach(self, channel: Channel, name: str) -> None:
        try:
            self._attached[name] = channel.log_attach(name, self._holder).incarnation
        except ChannelClosed as error:
            if f"by group '{self.group}#" in error.text:
                raise TakenError(
                    f"queue {name!r}: {error}; another driver with the same checkpoint reads it: a checkpoint belongs to one"
                    " running query, so stop that one first. If its machine is gone, the broker will know after two heartbeats"
                ) from None
            raise explain(error, name) from None

    def _look(self, timeout_s: float | None = None) -> dict[str, m.LogInspectOk]:
        def look(channel: Channel) -> dict[str, m.LogInspectOk]:
            found = {name: _ask(channel.log_inspect, name) for name in self.options.queues}
            for name, at in found.items():
                if self.group and at.incarnation != self._attached.get(name):  # it was declared again
                    self._attach(channel, name)
            return found

        return self._link.call(look, self.options.reconnect_timeout_s if timeout_s is None else timeout_s)

    def _settle(self, upto: dict[str, Position], found: dict[str, m.LogInspectOk]) -> None:
        """Settle up to these offsets if that has not been done yet."""
        due = {name: at for name, at in upto.items() if name in found and found[name].first < at.next}

        def settle(channel: Channel) -> None:
            for name, at in due.items():
                _ask(channel.log_settle, name, self._holder, at.incarnation, at.next)

        if due:
            self._link.call(settle, self.options.reconnect_timeout_s)

    def _leave(self, queues: dict[str, Position]) -> None:
        """Settle what Spark has committed of queues that the options no longer name, and leave the queues to other readers."""

        for name, at in queues.items():

            def leave(channel: Channel, name: str = name, at: Position = at) -> None:
                channel.log_attach(name, self._holder)
                channel.log_settle(name, self._holder, at.incarnation, at.next)
                channel.log_detach(name, self._holder)

            try:
                self._link.call(leave, self.options.reconnect_timeout_s)
            except ChannelClosed as error:
                log.warning("queue %r is no longer read, and not settled: %s", name, error)

    def _mean_size(self, begins: dict[str, Position]) -> float:
        """Return the mean bytes of a body, from the next messages of each queue."""

        def look(channel: Channel) -> list[Batch]:
            return [_ask(channel.log_read, name, at.next, at.next + SAMPLE) for name, at in begins.items()]

        batches = self._link.call(look, self.options.reconnect_timeout_s)
        return sum(each.bodies.data.n for each in batches) / max(1, sum(each.count for each in batches))

    # --- start and continuation

    def _first(self, name: str, at: m.LogInspectOk) -> Position:
        if self.options.starting_timestamp is not None:
            raise SourceError(
                f"option startingTimestamp: queue {name!r} is no stream, its messages are not found by time; say where to"
                " start with startingOffsets"
            )
        place = _resolve(self.options.starting, name, at)
        if place < at.first or place > at.next:
            self._lost(
                f"option startingOffsets asks for offset {place} of queue {name!r}, which holds {at.first} to {at.next}:"
                " choose one of those, or earliest"
            )
            place = min(max(place, at.first), at.next)
        if at.first < place < at.next:  # no message may wait at this offset

            def count(channel: Channel) -> m.LogCountOk:
                return _ask(channel.log_count, name, at.incarnation, place, place)

            place = self._link.call(count, self.options.reconnect_timeout_s).end
        return Position(at.incarnation, place, place)

    def _hold(self, name: str, at: Position, first: int, last: int) -> m.LogHoldOk:
        """Have the broker hold the messages below `last`, and count those from `first` on."""

        def hold(channel: Channel) -> m.LogHoldOk:
            return _ask(channel.log_hold, name, self._holder, at.incarnation, first, last)

        return self._link.call(hold, self.options.reconnect_timeout_s)

    def _planned(self, name: str, begin: Position, end: int) -> Position:
        """Return the end of a batch that goes up to `end`. A message waits at the start of each batch, so none may be
        missing there."""
        if end <= begin.next:
            return begin
        held = self._hold(name, begin, begin.next, end)
        if held.first > begin.next:
            self._lost(gone(name, begin.next, held.first))
        return Position(begin.incarnation, begin.begin, max(end, held.end), held.count)

    def _continue(self, name: str, start: Position | None, at: m.LogInspectOk) -> Position:
        """Return the first offset of the next batch of a queue: that of `start`, unless data was lost."""
        if start is None:  # the queue was added to option queues later
            return self._first(name, at)
        if start.incarnation != at.incarnation:
            self._lost(str(declared_again(name, start.incarnation, at.incarnation)))
            return Position(at.incarnation, at.first, at.first)
        if at.first > start.next:
            self._lost(gone(name, start.next, at.first))
            return Position(at.incarnation, start.begin, at.first)
        if at.next < start.next:
            self._lost(
                f"queue {name!r} ends at offset {at.next}, but this query has read up to {start.next}: the broker's disk was"
                " set back? Start with a new checkpoint, or set failOnDataLoss = false"
            )
        return start

    def _named(self, name: str) -> bool:
        """Return whether the options still name a queue of a batch."""
        if name not in self.options.queues:
            self._lost(not_named(name))
        return name in self.options.queues

    def _readable(self, name: str, first: int, to: Position, at: m.LogInspectOk) -> bool:
        """Return whether the messages of a batch are still there, or enough of them for failOnDataLoss = false."""
        if to.incarnation != at.incarnation:
            self._lost(str(declared_again(name, to.incarnation, at.incarnation)))
            return False
        if at.next < to.next or (to.count is None and at.first > first):
            self._lost(
                f"queue {name!r} holds offsets {at.first} to {at.next}, but the batch is {first} to {to.next}: messages"
                " expired, were purged, or the checkpoint is older than the queue. Set failOnDataLoss = false to go on without them"
            )
        return True

    def _complete(self, name: str, to: Position, first: int, count: int) -> None:
        """End the query, or warn, if a batch has fewer messages than planned."""
        if to.count is not None and count < to.count:
            self._lost(missing(name, first, to.next, count, to.count))

    def _lost(self, text: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLossError(text)
        log.warning("%s; going on because failOnDataLoss = false", text)

    def _until_target(self, name: str, begin: Position, end: int) -> int:
        target = self._target.get(name) if self._target is not None else None
        if target is None or target.incarnation != begin.incarnation:
            return begin.next
        return max(begin.next, min(end, target.next))

    def _moved(self, begins: dict[str, Position], ends: dict[str, int]) -> Offsets:
        queues = {name: Position(at.incarnation, at.begin, ends[name]) for name, at in begins.items()}
        return Offsets(self.group, queues)

    def _pieces(self, ranges: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
        return split(ranges, *parallelism(self.options.min_partitions))


def gone(queue: str, first: int, last: int) -> str:
    """Return the error text for a queue whose lowest message is not the first of the next batch."""
    return (
        f"queue {queue!r}: messages {first} to {last} are gone before they were read: expired, purged, or dropped by a length"
        " limit. Read faster or allow the queue more, or set failOnDataLoss = false"
    )


def not_named(name: str) -> str:
    """Return the error text for a batch that was planned with other options."""
    return (
        f"the batch to be repeated has messages of queue {name!r}, which the options do not name any more: name it until this"
        " batch is done, or set failOnDataLoss = false to go on without them"
    )


def _resolve(place: Bound, name: str, at: m.LogInspectOk) -> int:
    offset = place[name] if isinstance(place, dict) else place
    return {EARLIEST: at.first, LATEST: at.next}.get(offset, offset)


def _ask(request: Callable[..., T], queue: str, *arguments: object) -> T:
    """Send a request about one queue; a refusal of the server becomes an error that names the queue."""
    try:
        return request(queue, *arguments)
    except ChannelClosed as error:
        raise explain(error, queue) from None

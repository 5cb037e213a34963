"""The hold of a group that reads a queue by range: messages that it has planned to read, and that are not settled (docs/adr/0017).

Held messages are neither ready nor unacked, though figures add them to the unacked ones: they do not expire, are not dropped, and go
to no consumer. They are below the queue's cursor. `end` is in the queue's definition, so a restart restores the hold.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from kvitto.broker import walls
from kvitto.broker.queues import sizes, waiting
from kvitto.broker.queues.ranges import RangeSet
from kvitto.format.settlement import DROPPED, RANGE_SETTLED
from kvitto.store.reading import Window

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue
    from kvitto.broker.queues.work_queue import WorkQueue

log = logging.getLogger("kvitto.broker")

RANKED_PER_PIECE = 100
"""How many messages of a queue with priorities are released in one piece. Each one is read for its priority."""
READ_PER_PIECE = 50
"""At most this many runs are released in one piece if the queue has a limit in bytes, because their sizes are read from the log."""
HOLD_MS = 86_400_000
"""How long messages stay held for a group that has left, in ms, since it may come back."""


class Hold:
    """`fresh`: messages that were never delivered. `again`: those that were delivered before, or are sorted by priority."""

    def __init__(self, queue: WorkQueue, end: int = 0) -> None:
        self.queue = queue
        self.end = end
        self.fresh = RangeSet()
        self.again = RangeSet()
        self.bytes = 0
        self.going_back = False
        self.outline = Window(outline=True)
        """The batch that a piece has read last for its sizes; the next one may need it again."""

    @property
    def count(self) -> int:
        return self.fresh.count + self.again.count

    def __contains__(self, offset: int) -> bool:
        return offset in self.fresh or offset in self.again

    def lowest(self) -> int:
        return min(runs.lowest() for runs in (self.fresh, self.again) if runs.count)

    def mark(self, cursor: int) -> int:
        """Return the delivered mark of a queue with that cursor. If fresh messages reach up to the cursor, it is in front of them."""
        if self.fresh.count and self.fresh.lowest() + self.fresh.count == cursor:
            return self.fresh.lowest()
        return cursor

    def take(self, end: int) -> None:
        """Hold every ready message below `end`."""
        queue, backlog = self.queue, self.queue.backlog
        if backlog.ranked:
            backlog.admit()
        before = queue.ready_bytes
        sizes.take_below(queue, end, self.outline)
        for start, n in backlog.requeued.remove_below(end):
            self.again.add(start, n)
        if end > backlog.cursor:
            self.fresh.add(backlog.cursor, end - backlog.cursor)
            backlog.cursor = end
        if not queue.ready:
            queue.ready_bytes = queue.estimates = 0
        self.bytes += before - queue.ready_bytes
        self.end = max(self.end, end)
        queue.mark_dirty()

    def settle_below(self, end: int, outcome: int = RANGE_SETTLED) -> int:
        """Settle the held messages below `end`. Returns how many there were."""
        total, gone = self.count, 0
        for runs, deliveries in ((self.fresh, 0), (self.again, 0 if self.queue.backlog.ranked else 1)):
            for start, n in runs.remove_below(end):
                self.queue.settle(start, n, outcome, deliveries)
                gone += n
        self.bytes -= self.bytes * gone // max(total, 1)
        return gone

    def lose(self, start: int, count: int) -> None:
        """Remove messages that cannot be read because of damage on the disk."""
        for runs in (self.fresh, self.again):
            for offset, n in runs.remove(start, count):
                self.queue.settle(offset, n, DROPPED)

    def give_back(self) -> None:
        """Return some of the held messages to their positions, flagged as redelivered, since the group may have read them."""
        queue = self.queue
        runs = self.again if self.again.count else self.fresh
        for start, n in self._first(runs):
            if queue.max_bytes >= 0:
                size = queue.log.reader.body_bytes(start, n, self.outline)
            else:
                queue.estimates += 1
                size = self.bytes * n // max(self.count, 1)
            runs.remove(start, n)
            self.bytes -= size
            queue.backlog.requeued.add(start, n)
            queue.ready_bytes += size

    def _first(self, runs: RangeSet) -> list[tuple[int, int]]:
        """Take as many of the held messages as one piece may release."""
        ranked = self.queue.backlog.ranked
        left = RANKED_PER_PIECE if ranked else waiting.OFFSETS_PER_PIECE
        few = ranked or self.queue.max_bytes >= 0
        found = []
        for start, n in islice(runs, READ_PER_PIECE if self.queue.max_bytes >= 0 else waiting.RUNS_PER_PIECE):
            found.append((start, min(n, left) if few else n))
            left -= n
            if few and left <= 0:
                break
        return found


def hold(queue: WorkQueue, end: int, holder: object) -> Iterator[None]:
    """Hold the messages that wait below `end`, in pieces, and note `end` in the definition. The answer waits until that is durable.

    It ends early if `holder`, the channel that asked for it, has left. The messages that are not held yet then stay as they are.
    """
    end = min(end, queue.log.announced_end)
    before = 0 if queue.hold is None else queue.hold.end
    try:
        for _ in waiting.in_pieces(queue, end, lambda stop: walls.within(queue, _take, queue, stop)):
            yield
            if holder not in queue.group_holders:
                return
    finally:
        if queue.hold is not None:
            queue.hold.outline.release()
    if queue.hold is not None and queue.hold.end > before and not queue.deleted:
        queue.vhost.define_queue(queue)
    drop_if_empty(queue)


def _take(queue: WorkQueue, end: int) -> None:
    if queue.hold is None:
        queue.hold = Hold(queue)
    queue.hold.take(end)


def restore(queue: Queue) -> None:
    """Restore the hold at a start. This must come after the journal was replayed and before messages expire."""
    if queue.hold is not None:
        queue.hold.take(min(queue.hold.end, queue.next))
        queue.hold.outline.release()
        drop_if_empty(queue)
        wait_for_group(queue)


def drop_if_empty(queue: Queue) -> None:
    """Drop the hold if it is empty. The number in the definition may stay, because no message waits below it."""
    if queue.hold is not None and not queue.hold.count:
        queue.hold = None


def release(queue: Queue) -> Iterator[None]:
    """Release the held messages to consumers, in pieces. Nothing is delivered before the last piece is done.

    After a crash in between, all held messages that are not settled are held again, until the first consumer has them released.
    """
    queue.broker.timers.cancel(_lapse, queue)
    held = queue.hold
    if held is None or held.going_back:
        return
    held.going_back = True
    queue.begin_return()
    try:
        while queue.hold is held and held.count and queue.group is None and not queue.deleted:
            walls.within(queue, held.give_back)
            yield
    finally:
        held.going_back = False
        held.outline.release()
        queue.end_return()
    if queue.hold is held and not held.count and not queue.deleted:
        queue.hold = None
        queue.vhost.define_queue(queue)


def join_group(queue: Queue, group: str, holder: object) -> None:
    """Add a holder of the group that reads this queue by range. It finds the messages that the group held before."""
    queue.broker.timers.cancel(_lapse, queue)
    queue.group = group
    if holder not in queue.group_holders:
        queue.group_holders.append(holder)


def leave_group(queue: Queue, holder: object) -> None:
    """Remove a holder. After the last one, ordinary consumers are possible again, and held messages wait for the group."""
    queue.group_holders = [h for h in queue.group_holders if h is not holder]
    if not queue.group_holders:
        queue.group = None
        queue.used_ms = queue.broker.timers.now_ms
        wait_for_group(queue)


def wait_for_group(queue: Queue) -> None:
    if queue.hold is not None and not queue.deleted:
        queue.broker.timers.after(HOLD_MS, _lapse, queue)


def forget(queue: Queue) -> None:
    """Drop the hold of a queue that is deleted."""
    queue.broker.timers.cancel(_lapse, queue)
    queue.hold = None


def _lapse(queue: Queue) -> None:
    if queue.group is None and not queue.deleted:
        log.info("queue %r: the group has not come back, its held messages are released", queue.name)
        queue.broker.jobs.start(release(queue), owner=queue)

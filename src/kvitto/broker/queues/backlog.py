"""The messages that wait in a work queue: which are ready, in which order, and where each can be read.

Invariants: every offset below `cursor` is settled, unacked, moving, parked, delayed, held or in `requeued`. Every offset from `cursor`
on is ready. An offset that is never written is below the cursor. So ready = next - cursor + requeued, and a message that waits in the
order of arrival costs no memory.
`WorkQueue` owns the backlog, delivers and writes. It is the backlog's `Keeper`, which settles messages that are lost to damage.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Protocol

from kvitto.broker.queues.deliveries import Deliveries
from kvitto.broker.queues.ranges import RangeSet
from kvitto.broker.queues.ranks import Ranks
from kvitto.format.settlement import DROPPED
from kvitto.store.batch import Batch, Body
from kvitto.store.reading import Window

if TYPE_CHECKING:
    from kvitto.broker.queues.hosts import Turns
    from kvitto.broker.queues.tail import Tail
    from kvitto.store.log import Log
    from kvitto.store.recovery import Recovered


class Keeper(Protocol):
    """What a backlog needs of its queue."""

    checking: bool
    """Whether a large batch is being checked in pieces. Nothing is delivered meanwhile."""

    def settle(self, offset: int, n: int, outcome: int, deliveries: int = 0) -> None:
        """Settle messages that have left the backlog because they are lost to damage."""
        ...

    def lose_held(self, start: int, count: int) -> None:
        """Settle the held messages among these, because they are lost to damage."""
        ...

    def check(self, steps: Iterator[None]) -> None:
        """Check a large batch in pieces. Until that is done nothing is delivered."""
        ...


class Backlog:
    def __init__(self, log: Log, tail: Tail, keeper: Keeper, turns: Turns, ranked: bool) -> None:
        self.log = log
        self.tail = tail
        self.keeper = keeper
        self._turns = turns
        """It gets back the batches that nobody reads any more."""
        self.cursor = 0
        self.flagged_below = 0
        """Messages below this offset are flagged as redelivered, since they may have been delivered before the start."""
        self.ranked = ranked
        """Whether messages are ordered by priority. Each is then put into `requeued` as soon as it has come."""
        self.priority_max = 0
        """The highest priority that counts. The queue sets it with its settings."""
        self.requeued: RangeSet = Ranks(self.rank_runs) if ranked else RangeSet()
        """Ready messages below the cursor: those that came back, or all ready messages of a queue with priorities."""
        self.redeliveries = Deliveries()
        self.front: Batch | None = None
        """The batch at the cursor, if it is neither closed nor open in the tail."""
        self._ahead, self._behind, self.outline = Window(), Window(), Window(outline=True)
        self._ahead.patient = True
        self._has_read = False
        """Whether a window may hold messages that were read from a file. If not, `release_unused` has nothing to release."""

    def ready(self):  # type: ignore[no-untyped-def]
        """The number of messages that can be delivered now."""
        return self.tail.next - self.cursor + self.requeued.count

    def any_ready(self):  # type: ignore[no-untyped-def]
        """Whether `ready` is more than 0."""
        return self.tail.next > self.cursor or self.requeued.count > 0

    # -- in order of arrival ---------------------------------------------------------------------------------

    def window(self):  # type: ignore[no-untyped-def]
        """Return the batch with the message at the cursor, or None if that message is lost or its batch must be checked first."""
        f = self.front
        if f is not None and f.first <= self.cursor and self.cursor < f.first + f.count:
            return f
        t = self.tail.batch
        if t is not None and self.cursor >= t.first:
            return t
        return self.load_front()

    def load_front(self) -> Batch | None:
        """Do the work of `window` if the batch is not the current one."""
        self.release_front()
        closed = self.tail.closed_at(self.cursor)
        if closed is not None:
            return closed
        self.front = self._load_at_cursor(self._ahead)
        return self.front

    def _load_at_cursor(self, window: Window) -> Batch | None:
        """Read the batch with the message at the cursor. Returns None if that message is lost or its batch must be checked first."""
        self._has_read = True
        found = self.log.reader.load(window, self.cursor)
        self.write_off_lost()
        if window.waits is not None:
            self._check(window)
            return None
        if found and self.cursor >= window.batch.first:
            return window.batch
        self.cursor = window.batch.first if found else self.tail.unwritten_from
        return window.batch if found else None

    def outline_at_cursor(self) -> Batch | None:
        """Do the work of `window` for callers that do not need bodies. A large batch is not checked."""
        found = self.in_memory(self.cursor)
        return self._load_at_cursor(self.outline) if found is None else found[0]

    def _check(self, window: Window) -> None:
        """Start the check of the large batch that the window waits for."""
        waits, window.waits = window.waits, None
        if waits is not None:
            self.keeper.check(self.log.reader.check_steps(*waits))

    def keep_front(self, batch: Batch, wanted: bool) -> None:
        """Keep a batch that was written in memory, if it is the next one to be delivered and is `wanted`."""
        if wanted and self.front is None and batch.first <= self.cursor < batch.first + batch.count:
            self.front = batch
        else:
            self._turns.give_batch(batch)

    def skip_to(self, end: int) -> None:
        """Move the cursor to `end`, because the messages in between have left the backlog."""
        self.cursor = end
        self.release_front()

    # -- what came back --------------------------------------------------------------------------------------

    def take_requeued(self) -> RangeSet:
        """Take all messages that came back."""
        taken, self.requeued = self.requeued, Ranks(self.rank_runs) if self.ranked else RangeSet()
        return taken

    def forget_unreadable(self, offset: int) -> None:
        """Remove a message that came back and is lost to damage."""
        if self.requeued.discard(offset):
            self.keeper.settle(offset, 1, DROPPED)

    def earlier(self, offset: int) -> int:
        """Return how often a message in `requeued` was delivered before."""
        return self.redeliveries.of(offset, 0 if self.ranked and offset >= self.flagged_below else 1)

    def order_by_priority(self, ranks: Ranks) -> None:
        """Order messages by priority from now on. `ranks` has all ready messages."""
        self.ranked = True
        self.requeued = ranks

    def admit(self) -> None:
        """Sort new messages by priority, in a queue with x-max-priority. Then no message is left from the cursor on.

        This does not check a large batch; that is done when its messages are read.
        """
        ranks = self.requeued
        assert isinstance(ranks, Ranks)
        while self.cursor < self.tail.next:
            w = self.outline_at_cursor()
            if w is not None:
                for rank, first, count in self._runs(w, self.cursor - w.first, w.count):
                    ranks.put(rank, first, count)
                self.cursor = w.first + w.count

    def rank_runs(self, start: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield the priorities of `count` stored messages from the offset `start` on, as runs (priority, first offset, number).

        A message that cannot be read has priority 0.
        """
        end = start + count
        while start < end:
            outline = self.find_outline(start)
            if outline is None:
                yield 0, start, 1
                start += 1
            else:
                w, i = outline
                yield from self._runs(w, i, min(i + end - start, w.count))
                start = w.first + w.count

    def _runs(self, w: Batch, i: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield the priorities of the messages of a batch from index `i` to `end`, as `rank_runs` does."""
        most = self.priority_max
        while i < end:
            rank, first = min(w.priority_of(i), most), i
            i += 1
            while i < end and min(w.priority_of(i), most) == rank:
                i += 1
            yield rank, w.first + first, i - first

    # -- find ------------------------------------------------------------------------------------------------

    def head(self) -> tuple[Batch, int] | None:
        """Find the first ready message. Returns None if it was lost to damage, so that another one is first, or must be checked first."""
        if self.ranked:
            self.admit()
        if self.requeued.count:
            offset = self.requeued.first()
            found = self.find(offset, True)
            if found is None and not self.keeper.checking:
                self.forget_unreadable(offset)
            return found
        w = self.window()
        return None if w is None else (w, self.cursor - w.first)

    def in_memory(self, offset: int) -> tuple[Batch, int] | None:
        """Return (batch, index) of a message in memory, or None if it must be read."""
        for b in (self.tail.batch, self.front, self._behind.batch, *self.tail.closed):
            if b is not None and b.first <= offset < b.first + b.count:
                return b, offset - b.first
        return None

    def find(self, offset: int, patient: bool) -> tuple[Batch, int] | None:
        """Find any stored message. Returns None if it is lost to damage, or if a `patient` caller has to wait for a check of its batch."""
        found = self.in_memory(offset)
        if found is None:
            self._behind.patient = patient
            found = self._load_behind(self._behind, offset)
        return found

    def find_outline(self, offset: int) -> tuple[Batch, int] | None:
        """Do the work of `find` for callers that do not need the body. A large batch is not checked."""
        return self.in_memory(offset) or self._load_behind(self.outline, offset)

    def _load_behind(self, window: Window, offset: int) -> tuple[Batch, int] | None:
        if not window.holds(offset):
            self._has_read = True
            found = self.log.reader.load(window, offset)
            self.write_off_lost()
            if window.waits is not None:
                self._check(window)
                return None
            if not found or not window.holds(offset):
                return None
        return window.batch, offset - window.batch.first

    def read_steps(self, offset: int) -> Generator[None, None, tuple[bytes, bytes, Body, int] | None]:
        """Read (key, props, body, flags) of a message in pieces: a large batch is checked slice by slice.

        None if it is lost to damage. A large body is returned without being copied or read.
        """
        found = self.in_memory(offset)
        if found is None:
            window = self._behind
            try:
                loaded = yield from self.log.reader.load_steps(window, offset)
            finally:
                self._has_read = True  # not before: a write of the queue between two steps clears it
            self.write_off_lost()
            if not loaded or not window.holds(offset):
                return None
            found = window.batch, offset - window.batch.first
        return found[0].parts(found[1])

    # -- damage ----------------------------------------------------------------------------------------------

    def write_off_lost(self) -> None:
        """Remove messages that were lost to damage from the queue. The store has raised the alarm."""
        lost = self.log.reader.lost
        if not lost:
            return
        for start, count in lost:
            for offset, n in self.requeued.remove(start, count):
                self.keeper.settle(offset, n, DROPPED)
            self.keeper.lose_held(start, count)
            n = start + count - self.cursor
            if start <= self.cursor and n > 0:  # damage further ahead is found again when the cursor gets there
                self.keeper.settle(self.cursor, n, DROPPED)
                self.cursor += n
        lost.clear()

    # -- memory and start ------------------------------------------------------------------------------------

    def release_front(self) -> None:
        """Release the batch at the cursor."""
        if self.front is not None and self.front is not self._ahead.batch:
            self._turns.give_batch(self.front)
        self.front = None

    def release_unused(self) -> None:
        """Release batches that are no longer read. Called after a write."""
        if not self._has_read:
            return
        if self._ahead.segment is not None and not self.any_ready():
            self.release_front()
            self._ahead.release()
        if self._behind.segment is not None and not self.requeued.count:
            self._behind.release()
        if self.outline.segment is not None:
            self.outline.release()
        self._has_read = self._ahead.segment is not None or self._behind.segment is not None

    def release(self) -> None:
        """Release all batches that were read."""
        self.release_front()
        self._ahead.release()
        self._behind.release()
        self.outline.release()

    def recover(self, found: Recovered) -> None:
        """Take the state that a start has found in the files."""
        self.cursor = found.cursor
        self.redeliveries = Deliveries(found.redeliveries.items())
        for start, count in found.requeued:
            self.requeued.add(start, count)
        self.flagged_below = found.flagged_below

    def take(self, offset: int) -> int | None:
        """Take one message, wherever it is. Returns its number of earlier deliveries, None if it is not in the backlog."""
        if offset >= self.cursor:
            if offset > self.cursor:
                self.requeued.add(self.cursor, offset - self.cursor)
            self.cursor = offset + 1
            return 0
        deliveries = self.earlier(offset)
        return deliveries if self.requeued.discard(offset) else None

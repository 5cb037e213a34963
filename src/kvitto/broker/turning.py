"""The turn of a broker: it delivers, writes and settles what has changed since the last one. `broker.py` makes its parts.

Its costs are estimates in units of about a microsecond of compiled work; a limit by time holds where the machine is slower than that
(docs/adr/0034). `state.py` has the part that queues, channels and connections look at.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kvitto.base.clock import Clock
from kvitto.base.errors import StoreFull
from kvitto.broker import walls
from kvitto.broker.queues.later_writes import Places
from kvitto.broker.queues.queue import Queue
from kvitto.broker.state import ALLOWANCE, TurnState
from kvitto.store import pieces
from kvitto.store.store import Store

if TYPE_CHECKING:
    from kvitto.broker.faults import Faults
    from kvitto.broker.jobs import Jobs
    from kvitto.broker.queues.reader import RangeReaders
    from kvitto.broker.transfers.deadletter import DeadLetters
    from kvitto.broker.transfers.records import Records
    from kvitto.broker.transfers.stages import Stages

log = logging.getLogger("kvitto.broker")

Targets = dict[Queue, int]
"""By queue, the offset below which messages must be in the files."""
QUEUE_COST = 25
"""The cost of one write of a queue, without the bytes of its messages, in units of about a microsecond."""
FIRST_COST = 500
"""The cost of the first write of a queue, which makes a directory and a file. The file system takes most of it."""
LOOK_COST = 2
"""The cost of finding that a queue has to wait."""
SLICE_COST = 1200
"""The cost of writing a slice of a large batch (store/pieces.py). Most slices take less time, some take several times as long."""
BEHIND_BYTES = 64 << 20
"""If more bytes of messages than this wait to be written, publishers are not read from."""
LEAST_WRITTEN = 32
"""A turn writes at least so many queues that have files, also if it is out of time: what has come for the others is not in a file when
the process is killed now."""

_LEAST_COST, _QUEUE_COST = LEAST_WRITTEN * QUEUE_COST, QUEUE_COST  # C variables when compiled


class Turning(TurnState):
    faults: Faults
    jobs: Jobs
    readers: RangeReaders
    records: Records
    dead_letters: DeadLetters
    stages: Stages
    queues: dict[str, Queue]

    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__(store, clock)
        self._queue_size = 0.0
        self._applied: deque[tuple[int, int]] = deque()
        """Records of the journal that were applied in memory, each with the value that `written` must reach for them to be in the files."""
        self._noted = 0
        """The last record that has been put into `_applied`."""
        self._applied_to_slow: deque[tuple[Targets, Places, int]] = deque()
        """Applied records that still wait until slow queues, and those that waited in `later_writes`, have been written."""
        self.on_full: Callable[[bool], None] = lambda full: None

    # -- turn ------------------------------------------------------------------------------------------------

    def idle(self) -> bool:
        """Whether nothing has changed since the last turn."""
        return not (
            self.dirty
            or self.late
            or self.readers.waiting
            or self.records.waiting
            or self.dead_letters.waiting
            or self.stages.waiting
            or self.later_writes.waiting
            or self.store.has_work()
        )

    def unfinished(self) -> bool:
        """Whether the last turn has left work that the next turn can do at once."""
        return bool(
            self.dirty
            or self.late
            or self.records.waiting
            or self.jobs.waiting
            or self.readers.waiting
            or (self.later_writes.waiting and self.later_writes.may_go_on)
            or self.store.has_work()
        )

    def turn(self, most: int = sys.maxsize) -> None:
        """Deliver, write and settle what has changed. Work beyond a cost of `most`, in units of about a microsecond, is left `dirty`.

        Raises StoreError if the disk fails for good.
        """
        if not self.clock_is_read:
            self.read_clock()
        self.clock_is_read = False
        self.changes_left = self.changes_each
        self.turns += 1
        if self.store.has_work():
            self.store.work()
        if self.records.waiting:
            self.records.apply(most)
        if self.store.journal.applied > self._noted:
            self._noted = self.store.journal.applied
            self._applied.append((self.changes, self._noted))
        if self.late:
            self._pump_late()
        if self.readers.waiting:
            walls.run(self.readers, self.readers.pump)
        later_writes = self.later_writes
        later_writes.limited = most < sys.maxsize
        if later_writes.waiting:
            # half of the turn is for the queues that do not wait: who waits for those does not wait for all others
            most -= self._write_later(most - most // 2)
        while True:
            most = self._write_dirty(most)
            if self.faults.waiting:
                self.faults.end_failed()
            if self.dead_letters.waiting:
                walls.run(self.dead_letters, self.dead_letters.run)
            if self.stages.waiting:
                walls.run(self.stages, self.stages.run)
            if not self.dirty or most <= 0 or self.out_of_time():
                break
        if self.unmarked:
            self.write_marks()
        if self.dead_letters.waiting and not self.dead_letters.held_up:
            self.timers.after(0, nothing)  # asks for another turn soon
        if self.slow:
            for queue in [queue for queue in self.slow if queue.deleted]:
                del self.slow[queue]
                queue.tail.closed.clear()
        if (self._applied or self._applied_to_slow) and not self.unwritten:
            self._note_applied()
        waiting = (len(self.dirty) + later_writes.waiting) * self._queue_size + later_writes.bytes
        self.behind = waiting > BEHIND_BYTES
        self.left, self.allowance = self.allowance, ALLOWANCE
        self.changes_left = self.changes_each

    def _write_dirty(self, most: int) -> int:
        """Deliver and write the messages of the queues that are dirty now. Returns what is left of the cost."""
        least = most - _LEAST_COST
        for _ in range(len(self.dirty)):
            if most <= 0 or (most <= least and self.out_of_time()):
                break
            queue = self.dirty.popleft()
            queue.dirty = False
            try:
                if queue.yields and queue.lets_others_first():
                    most -= LOOK_COST
                    self.written += 1
                    continue
                queue.pump()
            except Exception as error:  # noqa: BLE001 - the wall around this queue
                queue.contain(error)
            if self.slow and queue in self.slow:
                size, cost = _slice(queue)
            else:
                tail = queue.tail.batch
                size = 0 if tail is None else min(tail.size(), pieces.WHOLE_BYTES)
                cost = _QUEUE_COST + (size >> 11)
            self.flush(queue)
            if queue.waits_for_commit:
                cost = LOOK_COST
            elif not queue.has_files and queue.log.segments:
                cost += FIRST_COST
            most -= cost
            self._queue_size += (size - self._queue_size) / 64
            self.written += 1
        return most

    def _write_later(self, most: int) -> int:
        """Write queues that have waited, while their commit has room for them, and up to a cost of `most`. Returns the cost."""
        cost = 0
        while cost < most and not (cost and self.out_of_time()) and (queue := self.later_writes.next()) is not None:
            if queue.deleted:
                continue
            if queue.has_files:
                cost += _slice(queue)[1] if queue in self.slow else QUEUE_COST
                walls.run(queue, queue.waits_no_more)
                self.flush(queue)
            else:
                self.flush(queue)
                cost += FIRST_COST if queue.log.segments else LOOK_COST
            # it is slow, or the disk is full: whoever waits for it has to go on waiting
            if queue.unwritten_from < queue.next:
                for targets, _, _ in self._applied_to_slow:
                    targets.setdefault(queue, queue.next)
        return cost

    def _note_applied(self) -> None:
        """Note in the journal up to which record the files of the queues have everything."""
        applied = -1
        late = self._applied_to_slow
        while self._applied and self._applied[0][0] <= self.written:
            applied = self._applied.popleft()[1]
            if late or self.slow or self.later_writes.waiting:
                late.append((self.targets(self.slow), self.later_writes.end, applied))
                applied = -1
        while late and self.reached(late[0][0]) and self.later_writes.reached(late[0][1]):
            applied = late.popleft()[2]
        if applied >= 0:
            self.store.journal.turn_written(applied)

    @staticmethod
    def targets(queues: Iterable[Queue]) -> Targets:
        """Note the present end of each queue. `reached` tells later whether everything up to there is in the files."""
        return {queue: queue.next for queue in queues}

    @staticmethod
    def reached(targets: Targets) -> bool:
        return all(queue.deleted or queue.unwritten_from >= end for queue, end in targets.items())

    def pump_later(self, queue: Queue) -> None:
        """Let a queue go on delivering in the next turn, behind those that are late already. This turn's allowance is used up."""
        if not queue.late:
            queue.late = True
            self.late.append(queue)

    def _pump_late(self) -> None:
        for _ in range(len(self.late)):
            if self.allowance <= 0:
                return
            queue = self.late.popleft()
            queue.late = False
            walls.run(queue, queue.pump)
            if self.out_of_time():
                return

    def flush(self, queue: Queue) -> bool:
        """Write what this turn has brought to a queue. Returns False if the disk is full; a later turn tries again."""
        if queue.deleted:
            return True
        try:
            queue.flush()
        except StoreFull as error:
            self._no_room(str(error))
            self.unwritten[queue] = None
            return False
        except Exception as error:  # noqa: BLE001 - the wall around this queue
            queue.contain(error)
        return True

    def write_marks(self) -> None:
        """Write delivered marks. Called before output goes to a socket, so that after a kill the files know of all deliveries sent (A9).

        If the disk has no room for one, its deliveries are sent all the same, and `retry_writes` tries again.
        """
        if not self.unmarked:
            return
        unmarked, self.unmarked = self.unmarked, {}
        for queue in unmarked:
            if queue.shown and not self.flush(queue):
                queue.shown = False

    def _no_room(self, text: str) -> None:
        if not self.full:
            self.full = True
            log.error("%s; publishers wait until there is room", text)
            self.on_full(True)

    def press(self, on: bool) -> None:
        """Make large batches wait for the disk (True), or let those that have waited go on in the next turn (False)."""
        self.store.pressed = on
        if not on:
            pressed, self.pressed = self.pressed, {}
            for queue in pressed:
                queue.mark_dirty()
            self.jobs.resume()

    def retry_writes(self) -> None:
        """Try again the writes that a full disk has refused."""
        self.press(False)
        for queue in list(self.unwritten):
            if self.flush(queue):
                self.unwritten.pop(queue, None)  # a queue out of service is never written
        try:
            self.store.write_definitions()
        except StoreFull:
            return
        if self.full and not self.unwritten:
            self.full = False
            log.warning("there is room on the disk again")
            self.on_full(False)

    def make_room(self, short: bool) -> None:
        """While the disk is nearly full, release preallocated space, and drop settled segments at once, however small they are."""
        self.store.make_room(short)
        for queue in list(self.queues.values()) if short else ():
            if queue.fault is None:
                walls.run(queue, queue.log.trim)
                walls.run(queue, queue.log.drop_settled)


def _slice(queue: Queue) -> tuple[int, int]:
    """Return how much memory a queue's large batches take, up to that of one write, and the cost of writing their first slice."""

    def look() -> tuple[int, int]:
        size = min(sum(batch.own_bytes() for batch in queue.tail.closed), pieces.WHOLE_BYTES)
        return size, QUEUE_COST + SLICE_COST * min(queue.unwritten_bytes, pieces.SLICE_BYTES) // pieces.SLICE_BYTES

    return walls.run(queue, look) or (0, QUEUE_COST)


def nothing() -> None:
    """The callback of a timer that only asks for a turn."""

"""Parked dead letters (X4): no queue can take them, so they stay in their queue, invisible to consumers, until the obstacle is gone.

They cost memory for each run of offsets, and no work while nothing changes. Letters without a target queue are routed again, one by one,
when the routing has changed, since each may have its own key. Letters for a full queue wait for room there, and letters that did not
fit on the disk wait for some time. Then one letter is tried, and after each success twice as many. All queues share one limit of
letters that are tried at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from kvitto.broker.queues.ranges import RangeSet
from kvitto.broker.walls import Service

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.queues.queue import Queue
    from kvitto.broker.queues.work_queue import WorkQueue

log = logging.getLogger("kvitto.broker")

LOOK_MS = 1000
"""The interval between two checks for changes."""
WAIT_MAX_MS = 30_000
"""The longest wait of the exponential back-off: after failed attempts the wait is 1, 2, 4 ... seconds, up to this."""
GOING_MS, VAIN_MS = 5, 100
"""The time from one slice to the next: after a slice of which letters were taken, and after one of which none was."""
SLICE = 100

Obstacle: TypeAlias = "Queue | str"
"""The reason why a letter is parked: a queue that is full or out of service, or one of the texts below."""
NOBODY = "no queue is bound for them"
CHANGED = "the routing has changed"
"""Replaces NOBODY after a change of the routing, until the letter has been routed again."""
DISK = "the disk has no room"


class Kind:
    """Letters of one queue with the same reason and obstacle."""

    def __init__(self, epoch: int) -> None:
        self.offsets = RangeSet()
        self.epoch = epoch
        self.rerouted = False
        """Whether the letters have to be routed again, even if there is no room at the obstacle."""
        self.tried = 0
        self.out = RangeSet()
        """Offsets of the last attempt that have not been parked again."""
        self.most = 1
        self.wait_ms = LOOK_MS
        self.due_ms = 0

    def judge_last_attempt(self, now_ms: int) -> None:
        """Set the time and the size of the next attempt from the result of the last one."""
        if self.tried:
            if self.out:
                self.wait_ms = LOOK_MS
            if len(self.out) < self.tried:
                self.most, self.due_ms = 1, now_ms + self.wait_ms
            if not self.out:
                self.wait_ms = min(2 * self.wait_ms, WAIT_MAX_MS)
        self.tried = 0
        self.out.clear()


class Parked:
    """The parked letters of one queue."""

    def __init__(self) -> None:
        self.kinds: dict[tuple[str, Obstacle], Kind] = {}
        self.count = 0
        self.reported: set[str] = set()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield runs of offsets as (start, count)."""
        return (run for kind in self.kinds.values() for run in kind.offsets)

    def runs(self) -> Iterator[tuple[str, int, int]]:
        """Yield runs of offsets as (reason, start, count)."""
        return ((reason, *run) for (reason, _), kind in self.kinds.items() for run in kind.offsets)

    def __contains__(self, offset: int) -> bool:
        return any(offset in kind.offsets for kind in self.kinds.values())

    def add(self, offset: int, reason: str, obstacle: Obstacle, epoch: int) -> None:
        kind = self.kinds.get((reason, obstacle))
        if kind is None:
            kind = self.kinds[reason, obstacle] = Kind(epoch)
        kind.offsets.add(offset, 1)
        kind.out.discard(offset)
        self.count += 1

    def take(self, kind: Kind, most: int) -> list[tuple[int, int]]:
        """Take up to `most` letters from the start of a kind. Returns them as runs."""
        runs = []
        while most and kind.offsets:
            start, n = kind.offsets.first_run()
            runs += kind.offsets.remove(start, min(n, most))
            most -= runs[-1][1]
        for start, n in runs:
            kind.tried += n
            kind.out.add(start, n)
            self.count -= n
        return runs

    def reroute(self) -> None:
        """Note that the queue's dead-letter exchange or key has changed, or that it has none any more."""
        for kind in self.kinds.values():
            kind.rerouted, kind.due_ms = True, 0

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]


class Parking(Service):
    """All queues with parked letters. It decides when these are tried again."""

    stopped = "dead letters whose target was missing or full stay in their queues"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.store)
        self.broker = broker
        self._queues: dict[WorkQueue, None] = {}
        self._sent = 0
        self._back = 0

    @property
    def under_way(self) -> bool:
        """Whether some letters of the latest slice were taken. Then the next slice is tried at once."""
        return self._sent > self._back

    def park(self, queue: WorkQueue, offset: int, reason: str, obstacle: Obstacle) -> None:
        """Park a dead letter that no queue can take now."""
        queue.park(offset, reason, obstacle)
        self._back += 1
        if not self._queues:
            self._look_in(LOOK_MS)
        self._queues[queue] = None
        why = (
            obstacle
            if isinstance(obstacle, str)
            else f"queue {obstacle.name!r} is {'full' if obstacle.fault is None else 'out of service'}"
        )
        if why not in queue.parked.reported:
            queue.parked.reported.add(why)
            what = "dead letters" if queue.forwards_to == queue.settings.dead_letter_exchange else "messages"
            log.warning("queue %r: %s for exchange %r stay: %s", queue.name, what, queue.forwards_to, why)

    def forget(self, queue: Queue) -> None:
        self._queues.pop(queue, None)  # type: ignore[call-overload]

    def _look_in(self, ms: int) -> None:
        self.broker.timers.after(ms, self._look)

    def _look(self) -> None:
        """Try a slice of the letters whose obstacle may be gone."""
        if self._sent and self._back >= self._sent:
            self._sent = 0
            self._look_in(VAIN_MS)
            return
        self._sent = self._back = 0
        if self.broker.dead_letters.waiting:  # the last slice still waits to be moved
            self._look_in(LOOK_MS if self.broker.dead_letters.held_up else GOING_MS)
            return
        for queue in list(self._queues):
            del self._queues[queue]
            if len(queue.parked):
                self._queues[queue] = None  # at the end of the rotation
                self._try(queue)
            else:
                queue.parked.clear()
            if self._sent >= SLICE:
                break
        if self._queues:
            self._look_in(GOING_MS if self._sent else LOOK_MS)

    def _try(self, queue: WorkQueue) -> None:
        now_ms, parked = self.broker.timers.now_ms, queue.parked
        for (reason, obstacle), kind in list(parked.kinds.items()):
            kind.judge_last_attempt(now_ms)
            if not kind.offsets:
                del parked.kinds[reason, obstacle]
            elif obstacle is NOBODY:
                if kind.epoch != queue.vhost.epoch.value and (reason, CHANGED) not in parked.kinds:
                    parked.kinds[reason, CHANGED] = parked.kinds.pop((reason, obstacle))
                    self._send(queue, reason, kind, SLICE)
            elif obstacle is CHANGED:
                self._send(queue, reason, kind, SLICE)
            elif now_ms >= kind.due_ms and (kind.rerouted or may_take(obstacle)):
                self._send(queue, reason, kind, kind.most)
                kind.most = min(2 * kind.most, SLICE)

    def _send(self, queue: WorkQueue, reason: str, kind: Kind, most: int) -> None:
        for start, n in queue.parked.take(kind, min(most, SLICE - self._sent)):
            queue.moving += n
            self.broker.dead_letters.add(queue, start, n, reason)
            self._sent += n


def may_take(obstacle: Obstacle) -> bool:
    """Whether the obstacle may be gone."""
    if isinstance(obstacle, str):
        return True
    if obstacle.fault is not None:
        return False
    return obstacle.deleted or not (obstacle.rejects and obstacle.is_full(0))

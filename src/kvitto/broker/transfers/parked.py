"""Dead letters that nobody takes (X4): they stay in their queue, out of reach, until what keeps them there has changed.

They cost memory by the run, and no work while nothing changes. Those that no queue is bound for are looked at again when the routing
is another one, each, for each may have a key of its own. Those whose queue is full wait for room there, those for which the disk had no
room for a while; then one is tried, and more and more as long as they are taken. All queues share what is tried at a time.
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
"""How often it is asked whether anything has changed."""
WAIT_MAX_MS = 30_000
"""After attempts in vain it is waited for 1, 2, 4 ... seconds, up to this."""
GOING_MS, VAIN_MS = 5, 100
"""From one slice to the next: when letters were taken, and when none of them was."""
SLICE = 100

Obstacle: TypeAlias = "Queue | str"
"""What keeps a letter: a queue that is full, or one of these."""
NOBODY = "no queue is bound for them"
CHANGED = "the routing has changed"
"""NOBODY, until it has been looked at again."""
DISK = "the disk has no room"


class Kind:
    """Letters of one queue with the same reason and obstacle."""

    def __init__(self, epoch: int) -> None:
        self.offsets = RangeSet()
        self.epoch = epoch
        self.rerouted = False
        """They may go elsewhere now, whether there is room at the obstacle or not."""
        self.tried = 0
        self.out = RangeSet()
        """Those of the last attempt that have not come back."""
        self.most = 1
        self.wait_ms = LOOK_MS
        self.due_ms = 0

    def judge_last_attempt(self, now_ms: int) -> None:
        """Learn from the last attempt."""
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
        """Runs of offsets as (start, count)."""
        return (run for kind in self.kinds.values() for run in kind.offsets)

    def runs(self) -> Iterator[tuple[str, int, int]]:
        """Runs of offsets as (reason, start, count)."""
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
        """Up to `most` of the first letters of a kind, as runs."""
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
        """The queue's dead letters go elsewhere from now on, or nowhere."""
        for kind in self.kinds.values():
            kind.rerouted, kind.due_ms = True, 0

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]


class Parking(Service):
    """All queues with parked letters, and when these are tried again."""

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
        """Nobody takes this dead letter for now."""
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
            exchange = queue.settings.dead_letter_exchange
            log.warning("queue %r: dead letters for exchange %r stay: %s", queue.name, exchange, why)

    def forget(self, queue: Queue) -> None:
        self._queues.pop(queue, None)  # type: ignore[call-overload]

    def _look_in(self, ms: int) -> None:
        self.broker.timers.after(ms, self._look)

    def _look(self) -> None:
        """Try a slice of what may be possible now."""
        if self._sent and self._back >= self._sent:
            self._sent = 0
            self._look_in(VAIN_MS)
            return
        self._sent = self._back = 0
        if self.broker.dead_letters.moves:  # the last ones still wait
            self._look_in(LOOK_MS if self.broker.dead_letters.held_up else GOING_MS)
            return
        for queue in list(self._queues):
            del self._queues[queue]
            if len(queue.parked):
                self._queues[queue] = None  # behind the others
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
    """Whether it may be gone."""
    if isinstance(obstacle, str):
        return True
    if obstacle.fault is not None:
        return False
    return obstacle.deleted or not (obstacle.rejects and obstacle.is_full(0))

"""Delayed retry of a work queue (A15): messages that a consumer has returned wait for a while before they are ready again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvitto.broker.queues.delays import Delays, RetryDelay
from kvitto.format.settlement import DROPPED
from kvitto.store.scratch import Scratch

if TYPE_CHECKING:
    from kvitto.broker.administration.arguments import QueueSettings
    from kvitto.broker.queues.work_queue import WorkQueue

RETRIES_PER_TURN = 300
"""Messages of one queue that come back in one turn."""
DUE_PER_TURN, DUE_MIN = 600, 20
"""The same for all queues together, which takes about 2 ms, and the fewest of one queue, if any."""
RUNS_PER_PIECE = 200
CLOCK_MS = 1
"""A reading of the clock is up to so much behind the time: a message that began to wait then would come early by as much."""


class Retries:
    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue
        self._delays_of = "all"
        self._delay = RetryDelay()
        self._scratch = Scratch(queue.log.store.disk, queue.log.queue_id)
        self.delays = Delays(self._scratch)
        """The messages that wait."""
        self._wakes_ms: int | None = None
        """When the timer is due, if it is set."""

    def contain(self, error: Exception) -> None:
        """A timer of this queue has failed."""
        self._queue.contain(error)

    def take_settings(self, settings: QueueSettings) -> None:
        """Take new settings, which apply to messages that fail from now on."""
        self._delays_of = settings.retry_of
        self._delay.least_ms, self._delay.most_ms = settings.retry_min_ms, settings.retry_max_ms
        self._delay.linear = settings.retry_linear

    def delays_those(self, how: str) -> bool:
        """Whether messages that come back in this way ("failed" or "returned") are delayed."""
        return self._delay.least_ms >= 0 and self._delays_of in ("all", how)

    def delay(self, offset: int) -> None:
        """Delay one message. The caller must call `wake` afterwards."""
        queue = self._queue
        found = queue.backlog.find_outline(offset)
        if found is None:
            queue.settle(offset, 1, DROPPED)
        else:
            delay_ms = self._delay.after(queue.backlog.redeliveries.of(offset, 1))
            self.delays.add(queue.broker.timers.now_ms + delay_ms, offset, found[0].body_bytes(found[1], 1))

    def wake(self, soonest_ms: int = 1) -> None:
        """Set the timer for the first message that is due: not before the next turn, whatever is due already."""
        due_ms = self.delays.next_ms
        if due_ms is not None:
            timers = self._queue.broker.timers
            at_ms = max(due_ms + CLOCK_MS, timers.now_ms + soonest_ms)
            # a timer that is set is never moved back: messages that keep coming would put off what is due again and again
            if self._wakes_ms is None or at_ms < self._wakes_ms:
                self._wakes_ms = at_ms
                timers.after(at_ms - timers.now_ms, self._due)

    def _due(self) -> None:
        self._wakes_ms = None
        queue = self._queue
        budget = queue.broker.waking
        share = budget.share(queue.broker.turns)
        most = min(queue.may_come_back(), RETRIES_PER_TURN, share)
        taken = self.delays.take(queue.broker.timers.now_ms - CLOCK_MS, most)
        for offset, size in taken:
            queue.comes_back(offset, size)
        budget.spend(self.delays.cost)
        # if there is too little for all, those that have got nothing come first in the next turn
        self.wake(2 if taken and share < RETRIES_PER_TURN else 1)

    def end(self) -> Iterator[None]:
        """Make all delayed messages ready now, in pieces."""
        delays, free = self.delays, self.delays.index.clear()
        while len(delays):
            for start, n, size in delays.take_runs(RUNS_PER_PIECE):
                self._queue.put_back(start, n, size)
            yield
        yield from free
        for _ in delays.index.clear():  # what failed meanwhile has come back, too
            yield

    def cancel(self) -> None:
        """The queue is deleted."""
        self._queue.broker.timers.cancel(self._due)
        self._wakes_ms = None
        _, steps = self.delays.take_all()
        self._queue.broker.jobs.start(steps)
        self._scratch.remove()

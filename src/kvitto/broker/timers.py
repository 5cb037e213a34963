"""Calls functions after a delay: for expiry of messages and queues, retries and others. The server asks when to call `run`.

Timers use the monotonic clock, so a change of the wall clock does not affect them.
There is one timer for each callback with its arguments, and setting it again moves it. The heap holds only numbers, so a cancelled
callback is released at once. Its dead number is removed when it comes up, or when most numbers in the heap are dead.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

from kvitto.broker import walls

Call = tuple[Callable[..., None], tuple[Any, ...]]

DEAD_MAX = 64
"""The number of dead numbers up to which they are not swept out."""
RUN_MAX = 50
"""The most calls in one `run`. Further timers wait for the next `run`, so that connections are served between the two."""


class Timers:
    def __init__(self, now_ms: int = 0, out_of_time: Callable[[], bool] = lambda: False) -> None:
        """`out_of_time`: whether further calls have to wait for the next `run`."""
        self._out_of_time = out_of_time
        self.now_ms = now_ms
        """The monotonic clock when the broker last read it."""
        self._heap: list[tuple[int, int]] = []
        self._numbers: dict[Call, int] = {}
        self._calls: dict[int, Call] = {}
        self._order = count()
        self.next_ms: int | None = None
        """When the next call is due."""

    def __len__(self) -> int:
        return len(self._calls)

    def after(self, delay_ms: int, callback: Callable[..., None], *args: Any) -> None:
        """Set the timer of this callback, or move it: the call is due `delay_ms` milliseconds from now."""
        self.cancel(callback, *args)
        number = next(self._order)
        self._numbers[callback, args] = number
        self._calls[number] = (callback, args)
        heapq.heappush(self._heap, (self.now_ms + delay_ms, number))
        self._look()

    def cancel(self, callback: Callable[..., None], *args: Any) -> None:
        """Cancel a timer, if it is set."""
        number = self._numbers.pop((callback, args), None)
        if number is not None:
            del self._calls[number]
            if len(self._heap) > 2 * len(self._calls) + DEAD_MAX:
                self._heap = [entry for entry in self._heap if entry[1] in self._calls]
                heapq.heapify(self._heap)
            self._look()

    def _look(self) -> None:
        """Note when the next call is due."""
        heap = self._heap
        while heap and heap[0][1] not in self._calls:
            heapq.heappop(heap)
        self.next_ms = heap[0][0] if heap else None

    def contain(self, error: Exception) -> None:
        """Log an error of a callback that belongs to nobody, as `walls.Routine` does. StoreError is raised again."""
        walls.note(self, error)

    def run(self) -> None:
        """Call what is due, at most RUN_MAX callbacks, and one if there is no time.

        If one raises, only the owner of that timer is affected (broker/walls.py).
        """
        for _ in range(RUN_MAX):
            due = self.next_ms
            if due is None or due > self.now_ms:
                return
            call = self._calls.pop(heapq.heappop(self._heap)[1])
            self._look()
            del self._numbers[call]
            callback, args = call
            walls.run(walls.owner_of(callback, args), callback, *args)
            if self._out_of_time():
                return

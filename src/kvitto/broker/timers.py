"""Things to be done after a while: expiring messages and queues, retries. The server asks when to call `run`.

Time is that of the monotonic clock: a wall clock that is set delays nothing and makes nothing early.

There is one timer for a callback and its arguments: whoever sets it again moves it. The heap holds nothing but numbers, so what is
cancelled is forgotten at once, whenever it would have been due; its number goes when it comes up, or when most numbers are dead.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

from kvitto.broker import walls

Call = tuple[Callable[..., None], tuple[Any, ...]]

DEAD_MAX = 64
"""Dead numbers that are not worth a sweep."""


RUN_MAX = 500
"""Calls in one `run`; what is due beyond them waits for the next one, between which others are served."""


class Timers(walls.Routine):
    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        """The monotonic clock, as the broker has read it last."""
        self._heap: list[tuple[int, int]] = []
        self._numbers: dict[Call, int] = {}
        self._calls: dict[int, Call] = {}
        self._order = count()

    def __len__(self) -> int:
        return len(self._calls)

    def after(self, delay_ms: int, callback: Callable[..., None], *args: Any) -> None:
        """Call it so many milliseconds from now, and not when it was to be called before."""
        self.cancel(callback, *args)
        number = next(self._order)
        self._numbers[callback, args] = number
        self._calls[number] = (callback, args)
        heapq.heappush(self._heap, (self.now_ms + delay_ms, number))

    def cancel(self, callback: Callable[..., None], *args: Any) -> None:
        """A timer that is not set is fine."""
        number = self._numbers.pop((callback, args), None)
        if number is not None:
            del self._calls[number]
            if len(self._heap) > 2 * len(self._calls) + DEAD_MAX:
                self._heap = [entry for entry in self._heap if entry[1] in self._calls]
                heapq.heapify(self._heap)

    @property
    def next_ms(self) -> int | None:
        heap = self._heap
        while heap and heap[0][1] not in self._calls:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def run(self) -> None:
        """Call what is due, RUN_MAX at most. What a callback raises hits the owner of that timer only (broker/walls.py)."""
        for _ in range(RUN_MAX):
            due = self.next_ms
            if due is None or due > self.now_ms:
                return
            call = self._calls.pop(heapq.heappop(self._heap)[1])
            del self._numbers[call]
            callback, args = call
            walls.run(walls.owner_of(callback, args), callback, *args)

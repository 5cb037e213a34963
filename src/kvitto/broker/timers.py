"""Things to be done at a wall time: expiring messages and queues, retries. The server asks when to call `run`."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, when_ms: int, callback: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when_ms, next(self._order), callback))

    @property
    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def run(self, now_ms: int) -> None:
        """Call what is due."""
        while self._heap and self._heap[0][0] <= now_ms:
            heapq.heappop(self._heap)[2]()

"""Messages that came back and are due again later (A15). No consumer gets them until then, and other messages do not wait for them.

They are kept only in memory, with some 150 bytes each, so after a restart they are due at once.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator

from kvitto.broker.queues.ranges import RangeSet

JITTER = 0.1
"""At most this part of a delay is added to it, so that messages that failed together do not all come back together."""
DOUBLINGS_MAX = 40
FREED_PER_PIECE = 2000


class Delays:
    def __init__(self, least_ms: int, most_ms: int) -> None:
        self.least_ms = least_ms
        self.most_ms = most_ms
        self.linear = False
        """Whether each delay is `least_ms` longer than the one before, without jitter, as with RabbitMQ's x-delayed-retry-*."""
        self.bytes = 0
        self._heap: list[tuple[int, int, int]] = []
        """For each message (time when it is due, offset, size)."""
        self.offsets = RangeSet()

    def __len__(self) -> int:
        return self.offsets.count

    def __iter__(self) -> Iterator[int]:
        """Yield the offsets in order."""
        return (o for start, count in self.offsets for o in range(start, start + count))

    def __contains__(self, offset: int) -> bool:
        return offset in self.offsets

    @property
    def lowest(self) -> int:
        """The lowest offset. There must be one."""
        return self.offsets.lowest()

    def add(self, now_ms: int, offset: int, size: int, deliveries: int) -> None:
        """Delay a message of `size` bytes that has failed after `deliveries` deliveries."""
        if self.linear:
            delay = min(self.least_ms * deliveries, self.most_ms)
        else:
            delay = min(self.least_ms << min(deliveries - 1, DOUBLINGS_MAX), self.most_ms)
            delay += int(delay * JITTER * random.random())
        self.bytes += size
        self.offsets.add(offset, 1)
        heapq.heappush(self._heap, (now_ms + delay, offset, size))

    @property
    def next_ms(self) -> int:
        """The time when the first message is due. There must be one."""
        return self._heap[0][0]

    def take(self, now_ms: int, most: int) -> list[tuple[int, int]]:
        """Return (offset, size) of the first `most` messages that are due by that time, in order."""
        taken: list[tuple[int, int, int]] = []
        while len(taken) < most and self._heap and self._heap[0][0] <= now_ms:
            taken.append(heapq.heappop(self._heap))
            self.offsets.discard(taken[-1][1])
        found = sorted((offset, size) for _, offset, size in taken)
        self.bytes -= sum(size for _, size in found)
        return found

    def take_all(self) -> tuple[RangeSet, Iterator[None]]:
        """Forget all delayed messages. Returns their offsets, and the steps that free the memory."""
        taken, self.offsets = self.offsets, RangeSet()
        heap, self._heap = self._heap, []
        self.bytes = 0
        return taken, _free(heap)


def _free(heap: list[tuple[int, int, int]]) -> Iterator[None]:
    while heap:
        del heap[-FREED_PER_PIECE:]
        yield

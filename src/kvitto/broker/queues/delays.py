"""Messages that are due later: those that came back (A15), and those of an exchange that delays (`DelayQueue`).

No consumer gets them until then, and other messages do not wait for them. `offsets` says which messages wait; `index` says when each is
due, and may still have entries of messages that were removed. An offset that was removed before it was due is never added again.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator

from kvitto.broker.queues import due
from kvitto.broker.queues.due import DueIndex, RunFiles
from kvitto.broker.queues.ranges import RangeSet

JITTER = 0.1
"""At most this part of a delay is added to it, so that messages that failed together do not all come back together."""
DOUBLINGS_MAX = 40
REMOVED_COST = 4
"""So many entries of removed messages are as much work as one message that is due."""


class Delays:
    def __init__(self, files: RunFiles) -> None:
        self.bytes = 0
        self.offsets = RangeSet()
        self.index = DueIndex(files)
        self.cost = 0
        """What the last call of `take` cost, in messages."""

    def __len__(self) -> int:
        return self.offsets.count

    @property
    def next_ms(self) -> int | None:
        """The time when the first message is due. None if none waits."""
        return self.index.next_ms if self.offsets.count else None

    def add(self, due_ms: int, offset: int, size: int) -> None:
        """Have a message of `size` bytes wait until `due_ms`."""
        self.bytes += size
        self.offsets.add(offset, 1)
        self.index.add(due_ms, offset, size)

    def remove(self, offset: int, size: int) -> bool:
        """Remove a message before it is due. Returns False if it does not wait."""
        if not self.offsets.discard(offset):
            return False
        self.bytes -= size
        if not self.offsets.count:
            deque(self.index.clear(), 0)  # it may have entries of removed messages, which are due in ten years
        return True

    def take(self, now_ms: int, most: int) -> list[tuple[int, int]]:
        """Return (offset, size) of the first `most` messages that are due by that time, in this order. Fewer if many were removed."""
        taken: list[tuple[int, int]] = []
        left = most * REMOVED_COST
        while left > 0 and (packed := self.index.take(now_ms)) is not None:
            offset, size = due.offset_of(packed), due.size_of(packed)
            if self.remove(offset, size):
                taken.append((offset, size))
                left -= REMOVED_COST
            else:
                left -= 1
        self.cost = most - left // REMOVED_COST
        return taken

    def in_order(self) -> Iterator[tuple[int, int]]:
        """Yield (due time, offset) of the messages that wait, by due time. Messages may come and go while the reader pauses."""
        for packed in self.index.in_order():
            offset = due.offset_of(packed)
            if offset in self.offsets:
                yield due.due_of(packed), offset

    def take_runs(self, most: int) -> list[tuple[int, int, int]]:
        """Take up to `most` runs of messages from the lowest offset on, as (first offset, count, bytes).

        Only the sum of the bytes is exact: the index does not know the size of each message. The caller clears the index.
        """
        runs: list[tuple[int, int, int]] = []
        while self.offsets.count and len(runs) < most:
            start, n = self.offsets.first_run()
            size = self.bytes * n // self.offsets.count
            self.offsets.remove(start, n)
            self.bytes -= size
            runs.append((start, n, size))
        return runs

    def take_all(self) -> tuple[RangeSet, Iterator[None]]:
        """Forget all messages. Returns their offsets, and the steps that free the memory."""
        taken, self.offsets = self.offsets, RangeSet()
        self.bytes = 0
        return taken, self.index.clear()


class RetryDelay:
    """How long a message that came back waits."""

    def __init__(self) -> None:
        self.least_ms = self.most_ms = -1
        self.linear = False
        """Whether each delay is `least_ms` longer than the one before, without jitter, as with RabbitMQ's x-delayed-retry-*."""

    def after(self, deliveries: int) -> int:
        """Return the delay in ms of a message that has failed after `deliveries` deliveries."""
        if self.linear:
            return min(self.least_ms * deliveries, self.most_ms)
        delay = min(self.least_ms << min(deliveries - 1, DOUBLINGS_MAX), self.most_ms)
        return delay + int(delay * JITTER * random.random())

"""A set of offsets as sorted, disjoint ranges: what a queue must deliver again costs memory per run, not per message.

Offsets leave at the front far more often than elsewhere, so what is left of `_head` has gone already: to remove the first range
costs no shift of the others. The lists are cut when most of them is gone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice


class RangeSet:
    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._head = 0
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __contains__(self, offset: int) -> bool:
        i = bisect_right(self._starts, offset, self._head) - 1
        return i >= self._head and offset < self._ends[i]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges as (start, count)."""
        ranges = islice(zip(self._starts, self._ends, strict=True), self._head, None)
        return ((s, e - s) for s, e in ranges)

    def add(self, start: int, count: int) -> None:
        """Add offsets none of which is in the set."""
        end, head = start + count, self._head
        i = bisect_left(self._starts, start, head)
        assert (i == head or self._ends[i - 1] <= start) and (i == len(self._starts) or end <= self._starts[i])
        joins_left = i > head and self._ends[i - 1] == start
        joins_right = i < len(self._starts) and self._starts[i] == end
        if joins_left and joins_right:
            self._ends[i - 1] = self._ends.pop(i)
            del self._starts[i]
        elif joins_left:
            self._ends[i - 1] = end
        elif joins_right:
            self._starts[i] = start
        elif i == head and head:
            self._head -= 1
            self._starts[i - 1], self._ends[i - 1] = start, end
        else:
            self._starts.insert(i, start)
            self._ends.insert(i, end)
        self.count += count

    def first(self) -> int:
        return self._starts[self._head]

    def lowest(self) -> int:
        """The lowest offset, whatever the order of delivery."""
        return self._starts[self._head]

    def first_run(self) -> tuple[int, int]:
        start = self._starts[self._head]
        return start, self._ends[self._head] - start

    def pop_first(self) -> int:
        offset = self._starts[self._head]
        if offset + 1 < self._ends[self._head]:
            self._starts[self._head] = offset + 1
        else:
            self._drop_before(self._head + 1)
        self.count -= 1
        return offset

    def _drop_before(self, i: int) -> None:
        """The ranges before index i are gone."""
        self._head = i
        if 2 * i > len(self._starts):
            del self._starts[:i], self._ends[:i]
            self._head = 0

    def remove_below(self, end: int) -> list[tuple[int, int]]:
        """Remove every offset below `end`; return the removed ranges as (start, count)."""
        removed = []
        i = bisect_left(self._starts, end, self._head)
        for k in range(self._head, i):
            stop = min(self._ends[k], end)
            removed.append((self._starts[k], stop - self._starts[k]))
        if i > self._head and self._ends[i - 1] > end:
            i -= 1
            self._starts[i] = end
        self._drop_before(i)
        self.count -= sum(n for _, n in removed)
        return removed

    def remove(self, start: int, count: int) -> list[tuple[int, int]]:
        """Remove what the set has of the `count` offsets from `start` on; return it as ranges (start, count)."""
        end, removed, rest = start + count, [], []
        i = k = bisect_right(self._ends, start, self._head)
        while k < len(self._starts) and self._starts[k] < end:
            low, high = max(self._starts[k], start), min(self._ends[k], end)
            removed.append((low, high - low))
            rest += [(a, b) for a, b in ((self._starts[k], low), (high, self._ends[k])) if a < b]
            k += 1
        if i == self._head and not rest:
            self._drop_before(k)
        else:
            self._starts[i:k] = [a for a, _ in rest]
            self._ends[i:k] = [b for _, b in rest]
        self.count -= sum(n for _, n in removed)
        return removed

    def discard(self, offset: int) -> bool:
        """Remove one offset; False if it was not there."""
        return bool(self.remove(offset, 1))

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]

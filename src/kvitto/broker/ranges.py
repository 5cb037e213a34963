"""A set of offsets as sorted, disjoint ranges: what a queue must deliver again costs memory per run, not per message."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class RangeSet:
    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __contains__(self, offset: int) -> bool:
        i = bisect_right(self._starts, offset) - 1
        return i >= 0 and offset < self._ends[i]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges as (start, count)."""
        return ((s, e - s) for s, e in zip(self._starts, self._ends, strict=True))

    def add(self, start: int, count: int) -> None:
        """Add offsets none of which is in the set."""
        end = start + count
        i = bisect_left(self._starts, start)
        assert (i == 0 or self._ends[i - 1] <= start) and (i == len(self._starts) or end <= self._starts[i])
        joins_left = i > 0 and self._ends[i - 1] == start
        joins_right = i < len(self._starts) and self._starts[i] == end
        if joins_left and joins_right:
            self._ends[i - 1] = self._ends.pop(i)
            del self._starts[i]
        elif joins_left:
            self._ends[i - 1] = end
        elif joins_right:
            self._starts[i] = start
        else:
            self._starts.insert(i, start)
            self._ends.insert(i, end)
        self.count += count

    def first(self) -> int:
        return self._starts[0]

    def lowest(self) -> int:
        """The lowest offset, whatever the order of delivery."""
        return self._starts[0]

    def first_run(self) -> tuple[int, int]:
        return self._starts[0], self._ends[0] - self._starts[0]

    def pop_first(self) -> int:
        offset = self._starts[0]
        self.remove_below(offset + 1)
        return offset

    def remove_below(self, end: int) -> list[tuple[int, int]]:
        """Remove every offset below `end`; return the removed ranges as (start, count)."""
        removed = []
        i = bisect_left(self._starts, end)
        for k in range(i):
            stop = min(self._ends[k], end)
            removed.append((self._starts[k], stop - self._starts[k]))
        if i and self._ends[i - 1] > end:
            i -= 1
            self._starts[i] = end
        del self._starts[:i], self._ends[:i]
        self.count -= sum(n for _, n in removed)
        return removed

    def remove(self, start: int, count: int) -> list[tuple[int, int]]:
        """Remove what the set has of the `count` offsets from `start` on; return it as ranges (start, count)."""
        end, removed, rest = start + count, [], []
        i = k = bisect_right(self._ends, start)
        while k < len(self._starts) and self._starts[k] < end:
            low, high = max(self._starts[k], start), min(self._ends[k], end)
            removed.append((low, high - low))
            rest += [(a, b) for a, b in ((self._starts[k], low), (high, self._ends[k])) if a < b]
            k += 1
        self._starts[i:k] = [a for a, _ in rest]
        self._ends[i:k] = [b for _, b in rest]
        self.count -= sum(n for _, n in removed)
        return removed

    def discard(self, offset: int) -> bool:
        """Remove one offset; False if it was not there."""
        return bool(self.remove(offset, 1))

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]

"""A set of offsets as sorted, disjoint ranges: what a queue must deliver again costs memory per run, not per message.

The ranges are kept as their boundaries, start, end, start, end, ..., which ascend strictly because ranges that touch are one: 16
bytes per range. They are cut into chunks of at most `CHUNK` boundaries, so that a change anywhere moves one chunk's bytes at most.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from kvitto.broker.queues.counted import Counted

CHUNK = 1024
"""Boundaries in a chunk, at most; always whole ranges."""


class RangeSet(Counted):
    def __init__(self) -> None:
        self._chunks: list[array[int]] = []
        self._lows: list[int] = []
        """The first boundary of each chunk."""
        self.count = 0

    def __len__(self) -> int:
        return self.count

    @property
    def chunks(self) -> int:
        """The number of chunks, which is the cost of going through the whole set."""
        return len(self._chunks)

    def __contains__(self, offset: int) -> bool:
        k = bisect_right(self._lows, offset) - 1
        return k >= 0 and bisect_right(self._chunks[k], offset) & 1 == 1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges as (start, count)."""
        return ((chunk[i], chunk[i + 1] - chunk[i]) for chunk in self._chunks for i in range(0, len(chunk), 2))

    def copy(self) -> RangeSet:
        """Return the ranges as they are now."""
        other = RangeSet()
        other._chunks, other._lows, other.count = [chunk[:] for chunk in self._chunks], self._lows[:], self.count
        return other

    def after(self, offset: int) -> Iterator[tuple[int, int]]:
        """The ranges as (start, count), beginning with the one that holds `offset`, or else the first above it."""
        k = max(bisect_right(self._lows, offset) - 1, 0)
        for chunk in self._chunks[k : k + 1]:
            first = bisect_right(chunk, offset) // 2 * 2
            yield from ((chunk[i], chunk[i + 1] - chunk[i]) for i in range(first, len(chunk), 2))
        for n in range(k + 1, len(self._chunks)):
            chunk = self._chunks[n]
            yield from ((chunk[i], chunk[i + 1] - chunk[i]) for i in range(0, len(chunk), 2))

    def count_in(self, start: int, end: int) -> int:
        """How many offsets of [start, end) are in the set."""
        if start >= end:
            return 0
        first, last = max(bisect_right(self._lows, start) - 1, 0), bisect_left(self._lows, end)
        if last - first > len(self._chunks) // 2 + 1:  # the others are fewer to look at
            return self.count - self.count_in(0, start) - self.count_in(end, 1 << 64)
        total = 0
        for chunk in self._chunks[first:last]:
            i, j = bisect_right(chunk, start), bisect_left(chunk, end)
            inside = chunk[i:j]  # an odd index lies inside of a range, which then begins or ends at the border
            total += sum(inside[1 - (i & 1) :: 2]) - sum(inside[i & 1 :: 2])
            total += (end if j & 1 else 0) - (start if i & 1 else 0)
        return total

    def add(self, start: int, count: int) -> None:
        """Add offsets none of which is in the set."""
        end = start + count
        k = max(bisect_right(self._lows, start) - 1, 0)
        if k + 1 < len(self._lows) and self._lows[k + 1] <= end:
            end = self._join_next(k + 1, end)
        if not self._chunks:
            self._chunks.append(array("Q"))
            self._lows.append(start)
        chunk = self._chunks[k]
        i = bisect_left(chunk, start)
        joins_left = i & 1 and chunk[i] == start
        j = i + 1 if joins_left else i
        assert not j & 1 and (j == len(chunk) or end <= chunk[j]), "some of these offsets are in the set"
        joins_right = j < len(chunk) and chunk[j] == end
        if joins_left and joins_right:
            del chunk[i : i + 2]
        elif joins_left:
            chunk[i] = end
        elif joins_right:
            chunk[i] = start
        else:
            chunk[i:i] = array("Q", (start, end))
        self.count += count
        if i == 0 or len(chunk) > CHUNK:
            self._changed(k)

    def _join_next(self, k: int, end: int) -> int:
        """The first range of chunk k begins at `end`: take it out, to become part of one in the chunk before; return its end."""
        chunk = self._chunks[k]
        assert chunk[0] == end, "some of these offsets are in the set"
        end = chunk[1]
        del chunk[:2]
        self._changed(k)
        return end

    def _changed(self, k: int) -> None:
        """Restore what holds of chunk k: it is not empty, not too long, and its first boundary is known."""
        chunk = self._chunks[k]
        if not chunk:
            del self._chunks[k], self._lows[k]
            return
        self._lows[k] = chunk[0]
        if len(chunk) > CHUNK:
            half = len(chunk) // 4 * 2
            self._chunks.insert(k + 1, chunk[half:])
            self._lows.insert(k + 1, chunk[half])
            del chunk[half:]

    def first(self) -> int:
        return self._lows[0]

    def lowest(self) -> int:
        """The lowest offset, whatever the order of delivery."""
        return self._lows[0]

    def first_run(self) -> tuple[int, int]:
        start = self._lows[0]
        return start, self._chunks[0][1] - start

    def pop_first(self) -> int:
        offset, chunk = self._lows[0], self._chunks[0]
        if offset + 1 < chunk[1]:
            chunk[0] = self._lows[0] = offset + 1
        else:
            del chunk[:2]
            self._changed(0)
        self.count -= 1
        return offset

    def remove_below(self, end: int) -> list[tuple[int, int]]:
        """Remove every offset below `end`; return the removed ranges as (start, count)."""
        return self.remove(0, end)

    def remove(self, start: int, count: int) -> list[tuple[int, int]]:
        """Remove what the set has of the `count` offsets from `start` on; return it as ranges (start, count)."""
        end, removed = start + count, []
        k = max(bisect_right(self._lows, start) - 1, 0)
        while k < len(self._lows) and self._lows[k] < end:
            before = len(self._chunks)
            removed += self._cut(k, start, end)
            k += 1 + len(self._chunks) - before
        self.count -= sum(n for _, n in removed)
        return removed

    def _cut(self, k: int, start: int, end: int) -> list[tuple[int, int]]:
        """Take what lies in [start, end) out of chunk k. An odd index lies inside of a range, which then ends or begins there."""
        chunk = self._chunks[k]
        i, j = bisect_right(chunk, start), bisect_left(chunk, end)
        if i & 1 and chunk[i - 1] == start:
            i -= 1
        if j & 1 and chunk[j] == end:
            j += 1
        left, right = [start] if i & 1 else [], [end] if j & 1 else []
        taken = [*left, *chunk[i:j], *right]
        chunk[i:j] = array("Q", left + right)
        self._changed(k)
        return [(a, b - a) for a, b in zip(taken[::2], taken[1::2], strict=True)]

    def discard(self, offset: int) -> bool:
        """Remove one offset; False if it was not there."""
        return bool(self.remove(offset, 1))

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]

"""The ready messages of a queue with x-max-priority: one RangeSet per priority. The first is the oldest one of the highest priority.

Such a queue takes every message out of the order of arrival as soon as it has come (`Backlog.admit`), so a waiting message
costs memory here, once per run of equal priority.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator

from kvitto.broker.queues.ranges import RangeSet


class Ranks(RangeSet):
    """Like RangeSet but for the order. `rank_runs` gives the priorities of offsets (`Backlog.rank_runs`)."""

    def __init__(self, rank_runs: Callable[[int, int], Iterable[tuple[int, int, int]]]) -> None:
        self._rank_runs = rank_runs
        self._levels: dict[int, RangeSet] = {}
        self.count = 0

    @property
    def chunks(self) -> int:
        return sum(level.chunks for level in self._levels.values())

    def __contains__(self, offset: int) -> bool:
        return any(offset in level for level in self._levels.values())

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges as (start, count), the highest priority first."""
        return (run for rank in sorted(self._levels, reverse=True) for run in self._levels[rank])

    def copy(self) -> Ranks:
        other = Ranks(self._rank_runs)
        other._levels = {rank: level.copy() for rank, level in self._levels.items()}
        other.count = self.count
        return other

    def after(self, offset: int) -> Iterator[tuple[int, int]]:
        """The ranges as (start, count), in the order of arrival, beginning with the first that ends above `offset`."""
        return heapq.merge(*(level.after(offset) for level in self._levels.values()))

    def count_in(self, start: int, end: int) -> int:
        """How many offsets of [start, end) are in the set."""
        return sum(level.count_in(start, end) for level in self._levels.values())

    def add(self, start: int, count: int) -> None:
        """Add offsets none of which is in the set."""
        for rank, first, n in self._rank_runs(start, count):
            self.put(rank, first, n)

    def put(self, rank: int, start: int, count: int) -> None:
        """Do the same as `add` for offsets whose priority is known."""
        level = self._levels.get(rank)
        if level is None:
            level = self._levels[rank] = RangeSet()
        level.add(start, count)
        self.count += count

    def _top(self) -> RangeSet:
        return self._levels[max(self._levels)]

    def first(self) -> int:
        return self._top().first()

    def first_run(self) -> tuple[int, int]:
        return self._top().first_run()

    def lowest(self) -> int:
        return min(level.first() for level in self._levels.values())

    def pop_first(self) -> int:
        rank = max(self._levels)
        level = self._levels[rank]
        offset = level.pop_first()
        if not level:
            del self._levels[rank]
        self.count -= 1
        return offset

    def remove_below(self, end: int) -> list[tuple[int, int]]:
        """Remove every offset below `end`; return the removed ranges as (start, count), in no order."""
        return self._taken([run for level in self._levels.values() for run in level.remove_below(end)])

    def remove(self, start: int, count: int) -> list[tuple[int, int]]:
        """Remove what the set has of the `count` offsets from `start` on; return it as ranges, in no order."""
        return self._taken([run for level in self._levels.values() for run in level.remove(start, count)])

    def _taken(self, removed: list[tuple[int, int]]) -> list[tuple[int, int]]:
        for rank in [rank for rank, level in self._levels.items() if not level]:
            del self._levels[rank]
        self.count -= sum(n for _, n in removed)
        return removed

    def clear(self) -> None:
        self._levels.clear()
        self.count = 0

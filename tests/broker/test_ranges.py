"""RangeSet against a set of integers."""

from __future__ import annotations

import itertools
import time

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvitto.broker.ranges import RangeSet

offsets = st.integers(0, 40)
counts = st.integers(1, 8)


class RangesModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ranges = RangeSet()
        self.model: set[int] = set()

    @rule(start=offsets, count=counts)
    def add(self, start: int, count: int) -> None:
        """Only what is not there yet may be added."""
        new = set(range(start, start + count))
        if not new & self.model:
            self.ranges.add(start, count)
            self.model |= new

    @rule(start=offsets, count=counts)
    def remove(self, start: int, count: int) -> None:
        removed = self.ranges.remove(start, count)
        assert flat(removed) == sorted(o for o in self.model if start <= o < start + count)
        self.model -= set(flat(removed))

    @rule(end=offsets)
    def remove_below(self, end: int) -> None:
        removed = self.ranges.remove_below(end)
        assert flat(removed) == sorted(o for o in self.model if o < end)
        self.model -= set(flat(removed))

    @rule(offset=offsets)
    def discard(self, offset: int) -> None:
        assert self.ranges.discard(offset) == (offset in self.model)
        self.model.discard(offset)

    @precondition(lambda self: self.model)
    @rule()
    def pop_first(self) -> None:
        assert self.ranges.first() == min(self.model)
        assert self.ranges.pop_first() == min(self.model)
        self.model.remove(min(self.model))

    @rule()
    def clear(self) -> None:
        self.ranges.clear()
        self.model.clear()

    @invariant()
    def same(self) -> None:
        ranges = list(self.ranges)
        assert flat(ranges) == sorted(self.model)
        assert len(self.ranges) == self.ranges.count == len(self.model)
        assert all(o in self.ranges for o in self.model)
        assert not any(o in self.ranges for o in range(-1, 50) if o not in self.model)
        assert all(a + n < b for (a, n), (b, _) in itertools.pairwise(ranges)), "neighbours are joined"
        if ranges:
            assert self.ranges.first_run() == ranges[0]


def flat(ranges: list[tuple[int, int]]) -> list[int]:
    return [o for start, count in ranges for o in range(start, start + count)]


TestRanges = RangesModel.TestCase


def test_the_front_goes_without_a_shift_of_the_rest() -> None:
    """A deep queue of ragged offsets cost a shift of two long lists per message."""

    def seconds_for_a_thousand(ragged: int) -> float:
        ranges = RangeSet()
        for offset in range(0, 2 * ragged, 2):
            ranges.add(offset, 1)
        began = time.process_time()
        for _ in range(1000):
            ranges.pop_first()
        return time.process_time() - began

    few = min(seconds_for_a_thousand(2_000) for _ in range(5))
    many = min(seconds_for_a_thousand(300_000) for _ in range(2))
    assert many < 10 * few

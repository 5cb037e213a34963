"""RangeSet against a set of integers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvitto.broker.queues import ranges
from kvitto.broker.queues.ranges import RangeSet

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
        found = list(self.ranges)
        assert flat(found) == sorted(self.model)
        assert len(self.ranges) == self.ranges.count == len(self.model)
        assert all(o in self.ranges for o in self.model)
        assert not any(o in self.ranges for o in range(-1, 50) if o not in self.model)
        assert all(a + n < b for (a, n), (b, _) in itertools.pairwise(found)), "neighbours are joined"
        if found:
            assert self.ranges.first_run() == found[0]


def flat(found: list[tuple[int, int]]) -> list[int]:
    return [o for start, count in found for o in range(start, start + count)]


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Iterator[None]:
    """So that a few ranges are in several chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "CHUNK", 4)
        yield


TestRanges = RangesModel.TestCase


def seconds_for_a_thousand_in_the_middle(ragged: int) -> float:
    found = RangeSet()
    for offset in range(0, 4 * ragged, 4):
        found.add(offset, 1)
    began = time.process_time()
    for offset in range(2 * ragged + 2, 2 * ragged + 4002, 4):
        found.add(offset, 1)
    for offset in range(2 * ragged + 2, 2 * ragged + 4002, 4):
        assert found.discard(offset)
    return time.process_time() - began


def test_a_change_in_the_middle_costs_no_shift_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two consumers that had 400,000 messages by turns and ended took 5 seconds, the rest of the list being moved for each."""
    monkeypatch.setattr(ranges, "CHUNK", 1024)
    few = min(seconds_for_a_thousand_in_the_middle(2_000) for _ in range(5))
    many = min(seconds_for_a_thousand_in_the_middle(200_000) for _ in range(2))
    assert many < 30 * few


def test_the_front_goes_without_a_shift_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deep queue of ragged offsets cost a shift of two long lists per message."""
    monkeypatch.setattr(ranges, "CHUNK", 1024)

    def seconds_for_a_thousand(ragged: int) -> float:
        found = RangeSet()
        for offset in range(0, 2 * ragged, 2):
            found.add(offset, 1)
        began = time.process_time()
        for _ in range(1000):
            found.pop_first()
        return time.process_time() - began

    few = min(seconds_for_a_thousand(2_000) for _ in range(5))
    many = min(seconds_for_a_thousand(300_000) for _ in range(2))
    assert many < 50 * few

"""Columns, the window of unconfirmed publishes against a set, and the histogram."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitto.client.columns import Latencies, Window

CONFIRMS = st.lists(
    st.one_of(
        st.tuples(st.just("sent"), st.integers(1, 6000), st.just(True), st.just(True)),
        st.tuples(st.just("confirm"), st.integers(0, 8000), st.booleans(), st.booleans()),
    ),
    max_size=30,
)


@given(CONFIRMS)
def test_the_window_is_a_set_of_tags(steps: list[tuple[str, int, bool, bool]]) -> None:
    window = Window()
    waiting: set[int] = set()
    sent = acked = nacked = 0
    for what, number, multiple, ok in steps:
        if what == "sent":
            assert window.sent(number) == sent + 1
            waiting |= set(range(sent + 1, sent + number + 1))
            sent += number
            continue
        last = sent if multiple and number == 0 else number
        settled = {tag for tag in waiting if (tag <= last if multiple else tag == number)} if last <= sent else set()
        assert window.settle(number, multiple, ok) == len(settled)
        waiting -= settled
        acked, nacked = (acked + len(settled), nacked) if ok else (acked, nacked + len(settled))
    assert window.unconfirmed() == sorted(waiting)
    assert (window.outstanding, window.acked, window.nacked) == (len(waiting), acked, nacked)


def test_a_confirm_for_nothing_is_counted() -> None:
    window = Window()
    window.sent(2)
    for tag in (1, 1, 3):
        window.settle(tag, False, True)
    assert (window.unexpected, window.acked) == (2, 1)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200))
def test_percentiles_are_near_the_exact_ones(values: list[int]) -> None:
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    ordered = sorted(values)
    for share in (0.5, 0.99, 1.0):
        exact = next(v for k, v in enumerate(ordered, 1) if k >= share * len(ordered))
        assert exact <= latencies.percentile(share) <= exact * 1.04


def test_histograms_add_up() -> None:
    one, two = Latencies(), Latencies()
    one.add(10)
    two.add(1000)
    one.merge(two)
    assert (one.total, one.largest, one.percentile(0.5)) == (2, 1000, 10)
    assert Latencies().percentile(0.99) == 0


def test_a_negative_latency_counts_as_none() -> None:
    latencies = Latencies()
    latencies.add(-5)
    assert latencies.percentile(1.0) == pytest.approx(0)

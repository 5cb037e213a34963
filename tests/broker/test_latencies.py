"""Histograms: each value is in its bucket with its weight, and what is timed is timed from the right moment."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kvitto.broker.latencies import SIZES, TIMED_MAX_US, WORK_US, Histogram, Latencies, Timed
from kvitto.store.batch import Batch
from tests.support.clock import ManualClock
from tests.support.harness import BrokerHarness, Taker

VALUES = st.lists(st.tuples(st.integers(-5, 20_000_000), st.integers(1, 1000)), max_size=50)


@given(VALUES)
def test_each_bucket_has_the_values_up_to_its_bound(values: list[tuple[int, int]]) -> None:
    histogram = Histogram(WORK_US)
    for value, weight in values:
        histogram.add(value, weight)
    for bound, count in histogram.buckets():
        assert count == sum(n for value, n in values if bound is None or value <= bound)
    assert [bound for bound, _ in histogram.buckets()] == [*WORK_US, None]
    assert histogram.sum == sum(max(value, 0) * n for value, n in values)


def batch_of(sizes: list[int]) -> Batch:
    batch = Batch()
    batch.start(0, 0)
    for size in sizes:
        batch.put(b"\0\1q", b"\0\0", bytes(size), -1, 0)
    return batch


def test_a_small_batch_is_counted_exactly() -> None:
    latencies = Latencies()
    sizes = [0, 100, 101, 1000, 5000, 5000, 20_000]
    latencies.note_sizes(batch_of(sizes))
    for bound, count in latencies.sizes.buckets():
        assert count == sum(1 for size in sizes if bound is None or size <= bound)
    assert latencies.sizes.sum == sum(sizes)


def test_of_a_large_batch_samples_stand_for_the_rest_and_the_sum_is_exact() -> None:
    """Sizes that alternate come out right, which a fixed step would not give."""
    latencies = Latencies()
    rng = Random(3)
    total = 0
    for _ in range(200):
        sizes = [10, 5000] * rng.randrange(20, 60)
        total += len(sizes)
        latencies.note_sizes(batch_of(sizes))
    counts = dict(latencies.sizes.buckets())
    assert counts[None] == total
    assert latencies.sizes.sum == total // 2 * 5010
    assert 0.45 < counts[SIZES[0]] / total < 0.55
    assert counts[10_000] == total


def test_one_delivery_at_a_time_is_measured() -> None:
    clock, latencies = ManualClock(), Latencies()
    timed = Timed(latencies, clock)

    def begin(tag: int) -> None:
        latencies.now_us = clock.monotonic_us()
        timed.begin(tag)

    begin(1)
    clock.advance(0.002)
    begin(2)
    assert timed.tag == 1
    timed.end(True)
    assert (timed.tag, latencies.ack.sum) == (0, 2000)
    begin(3)
    timed.end(False)
    assert dict(latencies.ack.buckets())[None] == 1
    begin(4)
    clock.advance(TIMED_MAX_US / 1e6)
    begin(5)
    assert timed.tag == 5
    assert dict(latencies.ack.buckets())[None] == 2


def test_messages_wait_from_their_arrival_until_their_first_delivery() -> None:
    harness = BrokerHarness()
    queue = harness.declare("q")
    found = harness.broker.latencies.deliver
    for _ in range(3):
        harness.publish("q", b"x")
    harness.clock.advance(0.030)
    harness.turn()
    assert dict(found.buckets())[None] == 0
    taker = Taker(queue)
    queue.add_consumer(taker)
    harness.turn()
    assert (found.sum, dict(found.buckets())[None]) == (90_000, 3)
    harness.broker.latencies.deliver.add(0, 1)
    assert dict(found.buckets())[50] == 1


def test_in_a_queue_with_priorities_they_do_too_and_a_redelivery_counts_no_more() -> None:
    harness = BrokerHarness()
    queue = harness.declare("q", x_max_priority=3)
    found = harness.broker.latencies.deliver
    for _ in range(3):
        harness.publish("q", b"x")
    harness.turn()
    harness.clock.advance(0.030)
    taker = Taker(queue)
    queue.add_consumer(taker)
    harness.turn()
    assert [delivery.redelivered for delivery in taker.got] == [False] * 3
    assert (found.sum, dict(found.buckets())[None]) == (90_000, 3)
    assert harness.broker.latencies.now_us == harness.clock.monotonic_us()
    queue.requeue(taker.got[0].offset, 1, 1)
    harness.turn()
    assert len(taker.got) == 4
    assert dict(found.buckets())[None] == 3


def test_after_a_restart_the_stored_time_counts() -> None:
    harness = BrokerHarness()
    harness.declare("q")
    harness.publish("q", b"x")
    harness.settle_down()
    harness.clock.advance(5)
    harness.restart()
    queue = harness.queue("q")
    queue.add_consumer(Taker(queue))
    harness.turn()
    assert harness.broker.latencies.deliver.sum == 5_000_000

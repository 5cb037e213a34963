"""x-max-priority: the highest first, the oldest first within a priority, whatever happens in between."""

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitto.broker.queues.ranges import RangeSet
from kvitto.broker.queues.ranks import Ranks
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.wire.properties import Properties
from tests.support.harness import BrokerHarness, Taker, address


def publish(harness: BrokerHarness, priority: int | None, body: bytes) -> None:
    props = Properties(priority=priority).encode()
    assert harness.queue("q").append_bytes(address("q"), props, body, -1, 0)


def fill(harness: BrokerHarness) -> WorkQueue:
    queue = harness.declare("q", x_max_priority=5)
    for priority, body in ((1, b"a"), (4, b"b"), (None, b"c"), (4, b"d"), (9, b"e"), (5, b"f")):
        publish(harness, priority, body)
    return queue


IN_ORDER = [b"e", b"f", b"b", b"d", b"a", b"c"]  # 9 counts as 5, none as 0


def test_highest_priority_first_then_order_of_arrival() -> None:
    harness = BrokerHarness()
    fill(harness)
    assert harness.drain("q") == IN_ORDER


def test_first_delivery_is_not_called_a_redelivery() -> None:
    """Each delivery is counted once, and the flag and the count come with the second."""
    harness = BrokerHarness()
    queue = fill(harness)
    first = Taker(queue, room=2)
    queue.add_consumer(first)
    queue.pump()
    assert [(d.body, d.redelivered, d.count) for d in first.got] == [(b"e", False, None), (b"f", False, None)]
    first.unacked = 0
    queue.remove_consumer(first)
    queue.requeue(first.got[1].offset, 1, 1)
    queue.requeue(first.got[0].offset, 1, 1)
    second = Taker(queue)
    while queue.get(second):
        pass
    assert [d.body for d in second.got] == IN_ORDER
    assert [d.redelivered for d in second.got] == [True, True, False, False, False, False]
    assert [d.count for d in second.got[:2]] == [1, 1]


def test_a_late_message_of_high_priority_overtakes_what_waits() -> None:
    harness = BrokerHarness()
    queue = fill(harness)
    harness.settle_down()
    publish(harness, 5, b"late")
    taker = Taker(queue, room=3)
    queue.add_consumer(taker)
    queue.pump()
    assert [d.body for d in taker.got] == [b"e", b"f", b"late"]


@pytest.mark.parametrize("how", ["restart", "kill", "cut"])
def test_order_and_counts_survive(how: str) -> None:
    """After a stop of any kind the order is the same; only a power cut may leave in doubt what was delivered."""
    harness = BrokerHarness()
    queue = fill(harness)
    taker = Taker(queue, room=3)
    queue.add_consumer(taker)
    queue.pump()
    queue.ack(taker.got[1].offset, 1)
    harness.settle_down()
    getattr(harness, how)(*([Random(1)] if how == "cut" else []))
    queue = harness.queue("q")
    assert queue.ready == 5
    again = Taker(queue)
    while queue.get(again):
        pass
    assert [d.body for d in again.got] == [b"e", b"b", b"d", b"a", b"c"]
    assert [d.redelivered for d in again.got][:2] == [True, True]
    if how != "cut":
        assert [d.redelivered for d in again.got] == [True, True, False, False, False]


def test_purge_and_limits_take_waiting_messages() -> None:
    harness = BrokerHarness()
    queue = fill(harness)
    harness.settle_down()
    assert queue.purge() == 6 and queue.ready == 0
    publish(harness, 3, b"x")
    assert harness.drain("q") == [b"x"]
    limited = harness.declare("short", x_max_priority=5, x_max_length=2)
    for priority in (1, 2, 3):
        limited.append_bytes(address("short"), Properties(priority=priority).encode(), b"%d" % priority, -1, 0)
    harness.settle_down()
    assert harness.drain("short") == [b"2", b"1"]  # the head goes first, as with RabbitMQ


def test_whatever_the_headers_hold_the_priority_is_read() -> None:
    """W8: a header's name that is no UTF-8 ended the broker, and each start after that."""
    harness = BrokerHarness()
    queue = harness.declare("q", x_max_priority=5)
    headers = b"\0\0\0\x04\x02\xff\xfeV"
    for props in (b"\x20\0" + headers, b"\x28\0" + headers + b"\x04"):
        queue.append_bytes(address("q"), props, props[-1:], -1, 0)
    harness.settle_down()
    harness.kill()
    assert harness.drain("q") == [b"\x04", b"V"]


@given(st.lists(st.tuples(st.sampled_from(["add", "pop", "remove", "below"]), st.integers(0, 60), st.integers(1, 9))))
def test_ranks_hold_what_a_range_set_holds(steps: list[tuple[str, int, int]]) -> None:
    """The same set as RangeSet; only which one is first differs."""

    def rank_runs(start: int, count: int) -> Iterator[tuple[int, int, int]]:
        return ((offset * 7 % 3, offset, 1) for offset in range(start, start + count))

    ranks, plain = Ranks(rank_runs), RangeSet()
    for what, start, count in steps:
        if what == "add" and not any(o in plain for o in range(start, start + count)):
            ranks.add(start, count)
            plain.add(start, count)
        elif what == "pop" and plain:
            best = min((o for s, n in plain for o in range(s, s + n)), key=lambda o: (-(o * 7 % 3), o))
            assert ranks.first() == best and ranks.first_run()[0] == best
            assert ranks.pop_first() == best and plain.discard(best)
        elif what == "remove":
            assert offsets(ranks.remove(start, count)) == offsets(plain.remove(start, count))
        elif what == "below":
            assert offsets(ranks.remove_below(start)) == offsets(plain.remove_below(start))
        assert offsets(ranks) == offsets(plain) and ranks.count == plain.count
        assert all((o in ranks) == (o in plain) for o in range(70))
        if plain:
            assert ranks.lowest() == plain.lowest()


def offsets(ranges: object) -> list[int]:
    return sorted(o for s, n in ranges for o in range(s, s + n))  # type: ignore[attr-defined]

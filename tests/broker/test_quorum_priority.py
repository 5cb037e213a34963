"""Priorities of a quorum queue, which has them without an argument (RabbitMQ 4.3): 0 to 31, the highest first."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.wire.properties import Properties
from tests.support.harness import BrokerHarness, Taker, address


def publish(harness: BrokerHarness, priority: int | None, body: bytes) -> None:
    assert harness.queue("q").append_bytes(address("q"), Properties(priority=priority).encode(), body, -1, 0)


def declared(harness: BrokerHarness, **arguments: Any) -> WorkQueue:
    return harness.declare("q", **{"x_queue_type": "quorum", **arguments})


def fill(harness: BrokerHarness) -> WorkQueue:
    queue = declared(harness)
    for priority, body in ((None, b"a"), (0, b"b"), (4, b"c"), (31, b"d"), (200, b"e"), (4, b"f"), (None, b"g")):
        publish(harness, priority, body)
    return queue


IN_ORDER = [b"d", b"e", b"c", b"f", b"a", b"b", b"g"]  # 200 counts as 31


def test_the_highest_priority_comes_first() -> None:
    harness = BrokerHarness()
    fill(harness)
    assert harness.drain("q") == IN_ORDER


def test_what_waits_behind_a_long_backlog_comes_first() -> None:
    """None of those that wait is looked at: a backlog without priorities costs nothing."""
    harness = BrokerHarness()
    queue = declared(harness)
    for _ in range(500):
        publish(harness, None, b"slow")
    harness.settle_down()
    assert not queue.backlog.ranked
    publish(harness, 1, b"urgent")
    assert queue.backlog.ranked and queue.backlog._behind.segment is None
    assert harness.drain("q") == [b"urgent", *[b"slow"] * 500]


def test_without_priorities_the_queue_is_like_any_other() -> None:
    harness = BrokerHarness()
    queue = declared(harness)
    for body in (b"a", b"b"):
        publish(harness, 0, body)
    publish(harness, None, b"c")
    assert not queue.backlog.ranked and harness.drain("q") == [b"a", b"b", b"c"]


def test_a_classic_queue_has_priorities_by_its_argument_alone() -> None:
    harness = BrokerHarness()
    declared(harness, x_queue_type="classic")
    publish(harness, 0, b"a")
    publish(harness, 9, b"b")
    assert harness.drain("q") == [b"a", b"b"]


def test_an_argument_says_how_many_there_are() -> None:
    harness = BrokerHarness()
    declared(harness, x_max_priority=0)
    publish(harness, 0, b"a")
    publish(harness, 9, b"b")
    assert harness.drain("q") == [b"a", b"b"]


@pytest.mark.parametrize("how", ["restart", "kill", "cut"])
def test_the_order_survives(how: str) -> None:
    harness = BrokerHarness()
    fill(harness)
    harness.settle_down()
    getattr(harness, how)(*([Random(1)] if how == "cut" else []))
    assert harness.queue("q").backlog.ranked
    publish(harness, 31, b"new")
    assert harness.drain("q") == [b"d", b"e", b"new", b"c", b"f", b"a", b"b", b"g"]


@pytest.mark.parametrize("how", ["stay", "restart", "kill"])
def test_what_was_delivered_before_the_first_priority_is_redelivered(how: str) -> None:
    """A8, A9: before it the queue noted no deliveries, since its cursor told; what was never delivered is not flagged."""
    harness = BrokerHarness()
    queue = declared(harness)
    for body in (b"1", b"2", b"3"):
        publish(harness, None, body)
    taker = Taker(queue, room=2)
    queue.add_consumer(taker)
    queue.pump()
    queue.requeue(taker.got[0].offset, 1, 1)  # 2 is unacked, 3 was never delivered
    taker.room = 0
    publish(harness, 5, b"4")
    harness.settle_down()
    if how == "stay":
        queue.remove_consumer(taker)
        queue.requeue(taker.got[1].offset, 1, 1)
    else:
        getattr(harness, how)()
    again = Taker(harness.queue("q"))
    while harness.queue("q").get(again):
        pass
    assert [(d.body, d.redelivered, d.count) for d in again.got] == [
        (b"4", False, None),
        (b"1", True, 1),
        (b"2", True, 1),
        (b"3", False, None),
    ]

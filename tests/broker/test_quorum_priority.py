"""Priorities of a quorum queue, which has them without an argument (RabbitMQ 4.3): 0 to 31, the highest first."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.wire.properties import Properties
from tests.support.rig import Rig, Taker, address


def publish(rig: Rig, priority: int | None, body: bytes) -> None:
    assert rig.queue("q").append_bytes(address("q"), Properties(priority=priority).encode(), body, -1, 0)


def declared(rig: Rig, **arguments: Any) -> WorkQueue:
    return rig.declare("q", **{"x_queue_type": "quorum", **arguments})


def fill(rig: Rig) -> WorkQueue:
    queue = declared(rig)
    for priority, body in ((None, b"a"), (0, b"b"), (4, b"c"), (31, b"d"), (200, b"e"), (4, b"f"), (None, b"g")):
        publish(rig, priority, body)
    return queue


IN_ORDER = [b"d", b"e", b"c", b"f", b"a", b"b", b"g"]  # 200 counts as 31


def test_the_highest_priority_comes_first() -> None:
    rig = Rig()
    fill(rig)
    assert rig.drain("q") == IN_ORDER


def test_what_waits_behind_a_long_backlog_comes_first() -> None:
    """None of those that wait is looked at: a backlog without priorities costs nothing."""
    rig = Rig()
    queue = declared(rig)
    for _ in range(500):
        publish(rig, None, b"slow")
    rig.settle_down()
    assert not queue.backlog.ranked
    publish(rig, 1, b"urgent")
    assert queue.backlog.ranked and queue.backlog._behind.segment is None
    assert rig.drain("q") == [b"urgent", *[b"slow"] * 500]


def test_without_priorities_the_queue_is_like_any_other() -> None:
    rig = Rig()
    queue = declared(rig)
    for body in (b"a", b"b"):
        publish(rig, 0, body)
    publish(rig, None, b"c")
    assert not queue.backlog.ranked and rig.drain("q") == [b"a", b"b", b"c"]


def test_a_classic_queue_has_priorities_by_its_argument_alone() -> None:
    rig = Rig()
    declared(rig, x_queue_type="classic")
    publish(rig, 0, b"a")
    publish(rig, 9, b"b")
    assert rig.drain("q") == [b"a", b"b"]


def test_an_argument_says_how_many_there_are() -> None:
    rig = Rig()
    declared(rig, x_max_priority=0)
    publish(rig, 0, b"a")
    publish(rig, 9, b"b")
    assert rig.drain("q") == [b"a", b"b"]


@pytest.mark.parametrize("how", ["restart", "kill", "cut"])
def test_the_order_survives(how: str) -> None:
    rig = Rig()
    fill(rig)
    rig.settle_down()
    getattr(rig, how)(*([Random(1)] if how == "cut" else []))
    assert rig.queue("q").backlog.ranked
    publish(rig, 31, b"new")
    assert rig.drain("q") == [b"d", b"e", b"new", b"c", b"f", b"a", b"b", b"g"]


@pytest.mark.parametrize("how", ["stay", "restart", "kill"])
def test_what_was_delivered_before_the_first_priority_is_redelivered(how: str) -> None:
    """A8, A9: before it the queue noted no deliveries, since its cursor told; what was never delivered is not flagged."""
    rig = Rig()
    queue = declared(rig)
    for body in (b"1", b"2", b"3"):
        publish(rig, None, body)
    taker = Taker(queue, room=2)
    queue.add_consumer(taker)
    queue.pump()
    queue.requeue(taker.got[0].offset, 1, 1)  # 2 is unacked, 3 was never delivered
    taker.room = 0
    publish(rig, 5, b"4")
    rig.settle_down()
    if how == "stay":
        queue.remove_consumer(taker)
        queue.requeue(taker.got[1].offset, 1, 1)
    else:
        getattr(rig, how)()
    again = Taker(rig.queue("q"))
    while rig.queue("q").get(again):
        pass
    assert [(d.body, d.redelivered, d.count) for d in again.got] == [
        (b"4", False, None),
        (b"1", True, 1),
        (b"2", True, 1),
        (b"3", False, None),
    ]

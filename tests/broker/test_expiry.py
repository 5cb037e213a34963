"""Messages that leave because they have expired: how many in a turn."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.broker.queues import leaving
from kvitto.broker.queues.deliveries import Deliveries
from kvitto.broker.queues.work_queue import WorkQueue
from tests.support.rig import Rig, Taker

DEAD = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}


def expired(rig: Rig, count: int, size: int = 10, **arguments: Any) -> WorkQueue:
    """A live message, many that have expired, another live one."""
    queue = rig.declare("q", **arguments)
    rig.publish("q", b"first")
    for _ in range(count):
        rig.publish("q", bytes(size), ttl_ms=10)
    rig.publish("q", b"last")
    rig.settle_down()
    rig.clock.advance(1)
    rig.turn()
    assert queue.ready == count + 2
    return queue


@pytest.mark.parametrize(
    "arguments", [{}, DEAD, {"x_max_priority": 3}], ids=["dropped", "dead-lettered", "by priority"]
)
def test_a_delivery_has_so_many_expired_messages_leave_and_asks_for_another_turn(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """W8: all that were behind the message went in one turn."""
    monkeypatch.setattr(leaving, "LEAVING_PER_TURN", 7)
    monkeypatch.setattr(leaving, "AGAIN_LEAVES", 0)
    rig = Rig()
    dead = rig.declare("dead")
    queue = expired(rig, 30, **arguments)
    taker = Taker(queue)
    queue.add_consumer(taker)
    for left in (24, 17, 10, 3, 0):
        rig.turn()
        assert queue.ready == left
        assert not left or rig.broker.timers.next_ms == rig.clock.monotonic_ms()
        rig.broker.tick()
    assert [delivery.body for delivery in taker.got] == [b"first", b"last"]
    rig.settle_down()
    assert dead.ready == (30 if arguments == DEAD else 0)


def test_large_messages_leave_in_smaller_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read when they come to the head."""
    monkeypatch.setattr(leaving, "LEAVING_PER_TURN", 100)
    rig = Rig()
    queue = expired(rig, 50, 20_000)
    for _ in range(20):
        rig.publish("q", bytes(20_000), ttl_ms=10)
        rig.settle_down()
    queue.get(Taker(queue))
    before = queue.ready
    rig.turn()
    assert before - queue.ready == 50  # those in one batch are read together


def test_get_says_what_it_has_not_seen_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "LEAVING_PER_TURN", 7)
    monkeypatch.setattr(leaving, "AGAIN_LEAVES", 0)
    rig = Rig()
    queue = expired(rig, 10)
    taker = Taker(queue)
    assert queue.get(taker)
    rig.turn()
    assert not queue.get(taker) and queue.ready == 4
    rig.turn()
    assert queue.get(taker) and queue.ready == 0
    assert [delivery.body for delivery in taker.got] == [b"first", b"last"]


def test_what_failed_too_often_before_a_kill_leaves_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A8."""
    monkeypatch.setattr(leaving, "LEAVING_PER_TURN", 7)
    monkeypatch.setattr(leaving, "AGAIN_LEAVES", 0)
    rig = Rig()
    queue = rig.declare("q", x_delivery_limit=0)
    for _ in range(20):
        rig.publish("q", b"poison")
    rig.settle_down()
    taker = Taker(queue)
    while queue.get(taker):
        pass
    rig.turn()
    rig.kill()
    queue = rig.queue("q")
    queue.backlog.redeliveries = Deliveries((offset, 1) for offset in range(20))
    queue.add_consumer(Taker(queue))
    for left in (13, 6, 0):
        rig.turn()
        assert queue.ready == left
        rig.broker.tick()


def test_a_length_limit_waits_for_what_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took live messages that a consumer had credit for, since more expired ones were before them than may leave in one turn."""
    monkeypatch.setattr(leaving, "LEAVING_PER_TURN", 2)
    rig = Rig()
    queue = rig.declare("q", x_max_length=3)
    taker = Taker(queue, room=3)
    queue.add_consumer(taker)
    for _ in range(2):
        rig.publish("q", b"short", ttl_ms=10)
    for i in range(4):
        rig.publish("q", b"live %d" % i)
    rig.settle_down()
    rig.clock.advance(11)
    queue.requeue(0, 3, 16)
    taker.unacked -= 3
    for _ in range(3):
        rig.turn()
        rig.broker.tick()
    assert [delivery.body for delivery in taker.got[3:]] == [b"live 0", b"live 1", b"live 2"]
    assert queue.ready == 1

"""Messages that leave because they have expired: how many in a turn."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.broker.broker import LOOK_MS, LOOKED_AT_FIRST, LOOKED_AT_ONCE
from kvitto.broker.queues import leaving
from kvitto.broker.queues.deliveries import Deliveries
from kvitto.broker.queues.work_queue import WorkQueue
from tests.support.harness import BrokerHarness, Taker

DEAD = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}


def expired(harness: BrokerHarness, count: int, size: int = 10, **arguments: Any) -> WorkQueue:
    """A live message, many that have expired, another live one."""
    queue = harness.declare("q", **arguments)
    harness.publish("q", b"first")
    for _ in range(count):
        harness.publish("q", bytes(size), ttl_ms=10)
    harness.publish("q", b"last")
    harness.settle_down()
    harness.clock.advance(1)
    harness.turn()
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
    harness = BrokerHarness()
    dead = harness.declare("dead")
    queue = expired(harness, 30, **arguments)
    taker = Taker(queue)
    queue.add_consumer(taker)
    for left in (24, 17, 10, 3, 0):
        harness.turn()
        assert queue.ready == left
        assert not left or harness.broker.timers.next_ms == harness.clock.monotonic_ms()
        harness.broker.tick()
    assert [delivery.body for delivery in taker.got] == [b"first", b"last"]
    harness.settle_down()
    assert dead.ready == (30 if arguments == DEAD else 0)


def test_large_messages_leave_in_smaller_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read when they come to the head."""
    monkeypatch.setattr(leaving, "LEAVING_PER_TURN", 100)
    harness = BrokerHarness()
    queue = expired(harness, 50, 20_000)
    for _ in range(20):
        harness.publish("q", bytes(20_000), ttl_ms=10)
        harness.settle_down()
    queue.get(Taker(queue))
    before = queue.ready
    harness.turn()
    assert before - queue.ready == 50  # those in one batch are read together


def test_get_says_what_it_has_not_seen_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "LEAVING_PER_TURN", 7)
    monkeypatch.setattr(leaving, "AGAIN_LEAVES", 0)
    harness = BrokerHarness()
    queue = expired(harness, 10)
    taker = Taker(queue)
    assert queue.get(taker)
    harness.turn()
    assert not queue.get(taker) and queue.ready == 4
    harness.turn()
    assert queue.get(taker) and queue.ready == 0
    assert [delivery.body for delivery in taker.got] == [b"first", b"last"]


def test_what_failed_too_often_before_a_kill_leaves_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A8."""
    monkeypatch.setattr(leaving, "LEAVING_PER_TURN", 7)
    monkeypatch.setattr(leaving, "AGAIN_LEAVES", 0)
    harness = BrokerHarness()
    queue = harness.declare("q", x_delivery_limit=0)
    for _ in range(20):
        harness.publish("q", b"poison")
    harness.settle_down()
    taker = Taker(queue)
    while queue.get(taker):
        pass
    harness.turn()
    harness.kill()
    queue = harness.queue("q")
    queue.backlog.redeliveries = Deliveries((offset, 1) for offset in range(20))
    queue.add_consumer(Taker(queue))
    for left in (13, 6, 0):
        harness.turn()
        assert queue.ready == left
        harness.broker.tick()


def test_a_length_limit_waits_for_what_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took live messages that a consumer had credit for, since more expired ones were before them than may leave in one turn."""
    monkeypatch.setattr(leaving, "LEAVING_PER_TURN", 2)
    harness = BrokerHarness()
    queue = harness.declare("q", x_max_length=3)
    taker = Taker(queue, room=3)
    queue.add_consumer(taker)
    for _ in range(2):
        harness.publish("q", b"short", ttl_ms=10)
    for i in range(4):
        harness.publish("q", b"live %d" % i)
    harness.settle_down()
    harness.clock.advance(11)
    queue.requeue(0, 3, 16)
    taker.unacked -= 3
    for _ in range(3):
        harness.turn()
        harness.broker.tick()
    assert [delivery.body for delivery in taker.got[3:]] == [b"live 0", b"live 1", b"live 2"]
    assert queue.ready == 1


def test_behind_a_start_all_of_many_queues_look_at_their_first_message() -> None:
    """The first ones at once, the others a few at a time behind it, and without keeping what they have read."""
    harness = BrokerHarness()
    names = [f"q{number}" for number in range(LOOKED_AT_FIRST + 3 * LOOKED_AT_ONCE + 1)]
    for name in names:
        harness.declare(name)
        harness.publish(name, b"late", ttl_ms=10)
        harness.publish(name, b"waits")
    harness.settle_down()
    harness.clock.advance(1)
    harness.kill()
    left = [name for name in names if harness.queue(name).ready == 2]
    assert left == names[LOOKED_AT_FIRST:]
    assert harness.drain(left[-1]) == [b"waits"], "whoever takes a message looks, too"
    harness.turn()
    for looks in (1, 2, 3):
        assert [harness.queue(name).ready for name in left].count(1) == looks * LOOKED_AT_ONCE
        harness.clock.advance(LOOK_MS / 1000)
        harness.broker.tick()
        harness.turn()
    assert [harness.queue(name).ready for name in names[:-1]] == [1] * (len(names) - 1)
    assert [name for name in names if harness.queue(name).backlog.front is not None] == []

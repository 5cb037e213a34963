"""A wall clock that is set, by its owner or by NTP, while the broker runs or between two starts."""

from __future__ import annotations

import pytest

from kvitto.broker.timers import RUN_MAX
from tests.support.rig import Rig

HOUR_S = 3600


def pass_time(rig: Rig, seconds: float) -> None:
    rig.clock.advance(seconds)
    rig.broker.tick()
    rig.turn()


def test_messages_from_before_the_clock_was_set_back_expire() -> None:
    """They blocked the head of their queue for as long as the clock had been set back."""
    rig = Rig()
    queue = rig.declare("q")
    rig.publish("q", b"old", ttl_ms=10_000)
    rig.turn()
    rig.clock.set(-3 * HOUR_S)
    pass_time(rig, 1)
    rig.publish("q", b"new", ttl_ms=10_000)
    rig.turn()
    assert queue.ready == 2
    pass_time(rig, 10)
    pass_time(rig, 1)
    assert queue.ready == 0


def test_a_consumer_is_not_given_what_has_expired_since_the_clock_was_set_back() -> None:
    rig = Rig()
    rig.declare("q")
    rig.publish("q", b"old", ttl_ms=10_000)
    rig.publish("q", b"stays")
    rig.turn()
    rig.clock.set(-3 * HOUR_S)
    rig.turn()
    rig.clock.advance(11)
    rig.turn()
    assert rig.drain("q") == [b"stays"]


def test_a_tail_from_before_the_clock_was_set_back_takes_messages_that_live_as_long_as_they_should() -> None:
    rig = Rig()
    queue = rig.declare("q")
    rig.publish("q", b"old", ttl_ms=10_000)
    rig.clock.set(-3 * HOUR_S)
    rig.broker.read_clock()
    rig.clock.advance(2)
    rig.broker.read_clock()
    rig.publish("q", b"new", ttl_ms=10_000)
    pass_time(rig, 9)  # 11 s after the first of them
    assert queue.ready == 1 and rig.peek("q") == [b"new"]
    pass_time(rig, 2)
    assert queue.ready == 0


def test_a_clock_that_was_set_back_while_the_broker_was_down_holds_up_nothing() -> None:
    rig = Rig()
    rig.declare("q")
    rig.publish("q", b"old", ttl_ms=10_000)
    rig.publish("q", b"stays")
    rig.clock.set(-3 * HOUR_S)
    rig.restart()
    queue = rig.queue("q")
    assert queue.ready == 2
    pass_time(rig, 11)
    pass_time(rig, 1)
    assert queue.ready == 1 and rig.drain("q") == [b"stays"]


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_clock_that_is_set_neither_stops_nor_hurries_what_lasts(hours: int) -> None:
    """x-expires and delayed retries last as long as they should."""
    rig = Rig()
    rig.declare("unused", x_expires=60_000)
    queue = rig.declare("q", x_retry_delay_min=20_000)
    rig.publish("q", b"x")
    for delivery in rig.take("q"):
        queue.retry(delivery.offset, 1, 1)
    rig.clock.set(hours * HOUR_S)
    pass_time(rig, 19)
    assert queue.ready == 0 and "unused" in queue.vhost.queues
    pass_time(rig, 4)
    assert queue.ready == 1
    pass_time(rig, 36)
    assert "unused" in queue.vhost.queues
    pass_time(rig, 2)
    assert "unused" not in queue.vhost.queues


@pytest.mark.parametrize("hours", [-3, 3])
def test_dead_letters_that_wait_are_tried_again_in_time_although_the_clock_was_set(hours: int) -> None:
    rig = Rig()
    rig.declare("full", x_max_length=1, x_overflow="reject-publish")
    rig.declare("q", x_message_ttl=1000, x_dead_letter_exchange="", x_dead_letter_routing_key="full")
    rig.publish("full", b"first")
    rig.publish("q", b"x")
    rig.turn()
    for _ in range(3):
        pass_time(rig, 1)
        rig.settle_down()
    assert rig.queue("q").messages == 1
    rig.clock.set(hours * HOUR_S)
    rig.drain("full")
    for _ in range(40):
        pass_time(rig, 1)
        rig.settle_down()
    assert rig.bodies("full") == [b"x"]


def test_so_many_timers_are_called_at_a_time() -> None:
    """What is due at one moment, as x-expires of 100,000 queues, waits in portions, and nobody waits for all of it."""
    rig, called = Rig(), list[int]()
    for i in range(2 * RUN_MAX + 1):
        rig.broker.timers.after(1000, called.append, i)
    rig.clock.advance(2)
    sizes = []
    for _ in range(3):
        rig.broker.tick()
        sizes.append(len(called))
    assert sizes == [RUN_MAX, 2 * RUN_MAX, 2 * RUN_MAX + 1] and called == sorted(called)
    assert rig.broker.timers.next_ms is None

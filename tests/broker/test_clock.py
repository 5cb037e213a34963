"""A wall clock that is set, by its owner or by NTP, while the broker runs or between two starts."""

from __future__ import annotations

import pytest

from kvitto.broker.timers import RUN_MAX
from tests.support.harness import BrokerHarness

HOUR_S = 3600


def pass_time(harness: BrokerHarness, seconds: float) -> None:
    harness.clock.advance(seconds)
    harness.broker.tick()
    harness.turn()


def test_messages_from_before_the_clock_was_set_back_expire() -> None:
    """They blocked the head of their queue for as long as the clock had been set back."""
    harness = BrokerHarness()
    queue = harness.declare("q")
    harness.publish("q", b"old", ttl_ms=10_000)
    harness.turn()
    harness.clock.set(-3 * HOUR_S)
    pass_time(harness, 1)
    harness.publish("q", b"new", ttl_ms=10_000)
    harness.turn()
    assert queue.ready == 2
    pass_time(harness, 10)
    pass_time(harness, 1)
    assert queue.ready == 0


def test_a_consumer_is_not_given_what_has_expired_since_the_clock_was_set_back() -> None:
    harness = BrokerHarness()
    harness.declare("q")
    harness.publish("q", b"old", ttl_ms=10_000)
    harness.publish("q", b"stays")
    harness.turn()
    harness.clock.set(-3 * HOUR_S)
    harness.turn()
    harness.clock.advance(11)
    harness.turn()
    assert harness.drain("q") == [b"stays"]


def test_a_tail_from_before_the_clock_was_set_back_takes_messages_that_live_as_long_as_they_should() -> None:
    harness = BrokerHarness()
    queue = harness.declare("q")
    harness.publish("q", b"old", ttl_ms=10_000)
    harness.clock.set(-3 * HOUR_S)
    harness.broker.read_clock()
    harness.clock.advance(2)
    harness.broker.read_clock()
    harness.publish("q", b"new", ttl_ms=10_000)
    pass_time(harness, 9)  # 11 s after the first of them
    assert queue.ready == 1 and harness.peek("q") == [b"new"]
    pass_time(harness, 2)
    assert queue.ready == 0


def test_a_clock_that_was_set_back_while_the_broker_was_down_holds_up_nothing() -> None:
    harness = BrokerHarness()
    harness.declare("q")
    harness.publish("q", b"old", ttl_ms=10_000)
    harness.publish("q", b"stays")
    harness.clock.set(-3 * HOUR_S)
    harness.restart()
    queue = harness.queue("q")
    assert queue.ready == 2
    pass_time(harness, 11)
    pass_time(harness, 1)
    assert queue.ready == 1 and harness.drain("q") == [b"stays"]


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_clock_that_is_set_neither_stops_nor_hurries_what_lasts(hours: int) -> None:
    """x-expires and delayed retries last as long as they should."""
    harness = BrokerHarness()
    harness.declare("unused", x_expires=60_000)
    queue = harness.declare("q", x_retry_delay_min=20_000)
    harness.publish("q", b"x")
    for delivery in harness.take("q"):
        queue.retry(delivery.offset, 1, 1)
    harness.clock.set(hours * HOUR_S)
    pass_time(harness, 19)
    assert queue.ready == 0 and "unused" in queue.vhost.queues
    pass_time(harness, 4)
    assert queue.ready == 1
    pass_time(harness, 36)
    assert "unused" in queue.vhost.queues
    pass_time(harness, 2)
    assert "unused" not in queue.vhost.queues


@pytest.mark.parametrize("hours", [-3, 3])
def test_dead_letters_that_wait_are_tried_again_in_time_although_the_clock_was_set(hours: int) -> None:
    harness = BrokerHarness()
    harness.declare("full", x_max_length=1, x_overflow="reject-publish")
    harness.declare("q", x_message_ttl=1000, x_dead_letter_exchange="", x_dead_letter_routing_key="full")
    harness.publish("full", b"first")
    harness.publish("q", b"x")
    harness.turn()
    for _ in range(3):
        pass_time(harness, 1)
        harness.settle_down()
    assert harness.queue("q").messages == 1
    harness.clock.set(hours * HOUR_S)
    harness.drain("full")
    for _ in range(40):
        pass_time(harness, 1)
        harness.settle_down()
    assert harness.bodies("full") == [b"x"]


def test_so_many_timers_are_called_at_a_time() -> None:
    """What is due at one moment, as x-expires of 100,000 queues, waits in portions, and nobody waits for all of it."""
    harness, called = BrokerHarness(), list[int]()
    for i in range(2 * RUN_MAX + 1):
        harness.broker.timers.after(1000, called.append, i)
    harness.clock.advance(2)
    sizes = []
    for _ in range(3):
        harness.broker.tick()
        sizes.append(len(called))
    assert sizes == [RUN_MAX, 2 * RUN_MAX, 2 * RUN_MAX + 1] and called == sorted(called)
    assert harness.broker.timers.next_ms is None

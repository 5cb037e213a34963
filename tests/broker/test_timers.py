"""Timers: each once, in order; what is cancelled is neither called nor kept."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvitto.broker.timers import DEAD_MAX, Timers
from tests.support.harness import BrokerHarness


@given(st.lists(st.tuples(st.sampled_from(["after", "after", "cancel", "run"]), st.integers(0, 5), st.integers(0, 30))))
def test_timers_do_what_a_dict_of_times_does(steps: list[tuple[str, int, int]]) -> None:
    timers, due, called, now = Timers(), dict[int, int](), list[int](), 0
    for what, name, time in steps:
        if what == "after":
            timers.after(time, called.append, name)
            due.pop(name, None)
            due[name] = now + time
        elif what == "cancel":
            timers.cancel(called.append, name)
            due.pop(name, None)
        else:
            now = timers.now_ms = max(now, time)
            called.clear()
            timers.run()
            expected = [n for n, t in sorted(due.items(), key=lambda item: item[1]) if t <= now]
            assert called == expected
            due = {n: t for n, t in due.items() if t > now}
        assert timers.next_ms == min(due.values(), default=None)
        assert len(timers) == len(due)


def test_the_heap_does_not_grow_with_what_is_moved() -> None:
    timers = Timers()
    for i in range(10_000):
        timers.after(i, timers.run, i % 3)
        assert len(timers._heap) <= 2 * 3 + DEAD_MAX + 1


def test_deleted_queues_are_forgotten_whenever_they_would_have_expired() -> None:
    """They stayed in memory until their time was up, a day with x-expires of a day."""
    harness = BrokerHarness()
    seen: list[weakref.ref[Any]] = []
    for i in range(3):
        queue = harness.declare(f"q{i}", durable=False, x_expires=86_400_000, x_message_ttl=86_400_000)
        harness.publish(f"q{i}", b"x")
        harness.turn()
        seen.append(weakref.ref(queue))
        harness.delete(f"q{i}")
    del queue
    harness.settle_down()
    gc.collect()
    assert len(harness.broker.timers) == 0 and [ref() for ref in seen] == [None] * 3


def test_a_queue_has_one_timer_for_its_messages() -> None:
    """Each earlier expiry at the head had set one more."""
    harness = BrokerHarness()
    queue = harness.declare("q")
    for ttl_ms in (5000, 4000, 3000):
        harness.publish("q", b"x", ttl_ms=ttl_ms)
        harness.turn()
        harness.drain("q")
    assert len(harness.broker.timers) <= 1
    harness.publish("q", b"x", ttl_ms=1000)
    harness.turn()
    harness.clock.advance(1.0)
    harness.broker.tick()
    harness.turn()
    assert queue.ready == 0

"""Dead letters that nobody takes: what they cost while nothing changes, and how they go on when something has (X4)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kvitto.broker.transfers import parked
from kvitto.broker.transfers.parked import DISK, NOBODY
from tests.support.harness import BrokerHarness, address

TO_DEAD: dict[str, Any] = {"x_message_ttl": 10, "x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
TO_X: dict[str, Any] = {"x_message_ttl": 10, "x_dead_letter_exchange": "x"}


class Watch:
    """A broker whose dead letters are counted when they are looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.harness = BrokerHarness()
        self.looks = 0
        letters = self.harness.broker.dead_letters
        address = letters.address_steps

        def counted(*args):  # type: ignore[no-untyped-def]
            self.looks += 1
            return address(*args)

        monkeypatch.setattr(letters, "address_steps", counted)

    def park(self, name: str, count: int, **arguments: Any) -> None:
        queue = self.harness.declare(name, **arguments)
        for i in range(count):
            self.harness.publish(name, b"%d" % i)
        self.harness.settle_down()
        self.pass_time(1)
        assert queue.ready == 0
        self.looks = 0

    def step(self) -> None:
        self.harness.broker.tick()
        self.harness.settle_down()

    def pass_time(self, seconds: float) -> None:
        """As the server does: whenever a timer is due."""
        clock, timers = self.harness.clock, self.harness.broker.timers
        end = clock.monotonic_ms() + round(seconds * 1000)
        while (due := timers.next_ms) is not None and due <= end:
            clock.advance(max(due - clock.monotonic_ms(), 0) / 1000)
            self.step()
        clock.advance((end - clock.monotonic_ms()) / 1000)
        self.step()

    def bind(self, queue: str, key: str = "") -> None:
        vhost = self.harness.broker.vhosts["/"]
        vhost.declare_exchange("x", "topic", True, False, False, {})
        vhost.bind("x", self.harness.queue(queue), key or "#", {})


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def test_they_cost_nothing_while_nothing_changes(watch: Watch) -> None:
    """W8: each was read, decoded and routed every second, all in one turn."""
    watch.park("q", 300, **TO_X)
    assert list(watch.harness.queue("q").parked) == [(0, 300)]
    assert watch.harness.queue("q").messages == len(watch.harness.queue("q").parked) == 300
    watch.pass_time(60)
    assert watch.looks == 0


def test_they_are_looked_at_when_the_routing_has_changed_some_at_a_time(watch: Watch) -> None:
    watch.park("q", 300, **TO_X)
    watch.harness.declare("another")
    most = 0
    for _ in range(60):
        before = watch.looks
        watch.pass_time(0.1)
        most = max(most, watch.looks - before)
    assert watch.looks == 300 and most <= parked.SLICE
    watch.pass_time(60)
    assert watch.looks == 300, "once for a change"
    watch.bind("another")
    watch.pass_time(2)
    assert watch.harness.queue("q").messages == 0
    assert watch.harness.peek("another") == [b"%d" % i for i in range(300)]


def test_one_that_cannot_go_does_not_hold_up_those_that_can(watch: Watch) -> None:
    """Without a key of the queue's each letter has its own."""
    queue = watch.harness.declare("q", **TO_X)
    watch.harness.declare("dead")
    for i in range(250):
        queue.append_bytes(address("no" if i < 240 else "yes"), b"\0\0", b"%d" % i, -1, 0)
    watch.harness.settle_down()
    watch.pass_time(1)
    watch.bind("dead", "yes")
    watch.pass_time(10)
    assert watch.harness.queue("dead").ready == 10 and list(queue.parked) == [(0, 240)]


def test_those_of_a_full_queue_wait_for_room(watch: Watch) -> None:
    """One is tried, more if it was taken: letters that find no room are not read in vain."""
    watch.harness.declare("dead", x_max_length=5, x_overflow="reject-publish")
    watch.park("q", 100, **TO_DEAD)
    queue, dead = watch.harness.queue("q"), watch.harness.queue("dead")
    assert dead.ready == 5 and len(queue.parked) == 95
    watch.pass_time(30)
    assert watch.looks == 0
    got = []
    for _ in range(200):
        got += watch.harness.drain("dead")
        watch.pass_time(1)
        assert dead.ready <= 5
        assert watch.looks <= 3 * len(got) + 3
    assert got == [b"%d" % i for i in range(100)]


def test_those_of_a_queue_that_is_deleted_are_tried(watch: Watch) -> None:
    watch.harness.declare("dead", x_max_length=0, x_overflow="reject-publish")
    watch.park("q", 10, **TO_DEAD)
    watch.harness.delete("dead")
    watch.pass_time(5)
    assert watch.harness.queue("q").parked.kinds.keys() == {("expired", NOBODY)}
    watch.harness.declare("dead")
    watch.pass_time(5)
    assert watch.harness.queue("dead").ready == 10


def test_a_letter_larger_than_the_room_is_tried_less_and_less_often(watch: Watch) -> None:
    watch.harness.declare("dead", x_max_length_bytes=10, x_overflow="reject-publish")
    watch.harness.publish("dead", b"12345")
    queue = watch.harness.declare("q", **TO_DEAD)
    watch.harness.publish("q", b"123456")
    watch.pass_time(1)
    assert len(queue.parked) == 1
    watch.looks = 0
    watch.pass_time(31)
    assert watch.looks == 5  # after 1, 2, 4 ... seconds
    watch.pass_time(300)
    assert 14 <= watch.looks <= 16
    watch.harness.drain("dead")
    watch.pass_time(31)
    assert watch.harness.peek("dead") == [b"123456"]


def test_those_without_room_on_the_disk_are_tried_less_and_less_often(watch: Watch) -> None:
    """D4."""
    watch.harness.declare("dead")
    queue = watch.harness.declare("q", **TO_DEAD)
    for i in range(200):
        watch.harness.publish("q", b"%d" % i)
    watch.harness.settle_down()
    watch.harness.clock.advance(1)
    watch.harness.disk.full = True
    watch.harness.broker.tick()
    watch.harness.turn()
    while watch.harness.broker.dead_letters.waiting:
        watch.harness.turn()
    assert len(queue.parked) == 200 and queue.parked.kinds.keys() == {("expired", DISK)}
    watch.looks = 0
    for _ in range(1200):
        watch.harness.clock.advance(0.1)
        watch.harness.broker.tick()
        watch.harness.turn()
    assert 5 <= watch.looks <= 10
    watch.harness.disk.full = False
    watch.harness.broker.retry_writes()
    watch.pass_time(40)
    assert watch.harness.queue("dead").ready == 200 and queue.messages == 0


def test_the_log_says_so_once_until_it_changes(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    """It said so every second."""
    caplog.set_level(logging.WARNING)
    watch.harness.declare("dead", x_max_length=1, x_overflow="reject-publish")
    watch.park("q", 20, **TO_DEAD)
    for _ in range(5):
        watch.harness.drain("dead")
        watch.pass_time(3)
    assert [r.message for r in caplog.records] == ["queue 'q': dead letters for exchange '' stay: queue 'dead' is full"]
    watch.harness.delete("dead")
    watch.pass_time(5)
    assert [r.message for r in caplog.records][1:] == [
        "queue 'q': dead letters for exchange '' stay: no queue is bound for them"
    ]
    watch.harness.declare("dead")
    watch.pass_time(5)
    assert watch.harness.queue("q").messages == 0
    watch.harness.delete("dead")
    watch.harness.publish("q", b"another")
    watch.pass_time(3)
    assert len(caplog.records) == 3


def test_queues_share_what_is_tried_at_a_time(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked, "SLICE", 10)
    for name in ("a", "b", "c"):
        watch.park(name, 30, **TO_X)
    watch.harness.declare("another")
    watch.pass_time(1.5)
    found = watch.harness.queue("a"), watch.harness.queue("b"), watch.harness.queue("c")
    seen = [queue.parked.kinds["expired", NOBODY].offsets.count for queue in found]
    assert sum(seen) == watch.looks and max(seen) - min(seen) <= 20, seen
    watch.pass_time(5)
    assert watch.looks == 90
    watch.bind("another")
    watch.pass_time(5)
    assert watch.harness.queue("another").ready == 90


def test_a_purge_and_a_restart_take_them_from_their_place(watch: Watch) -> None:
    watch.park("q", 20, **TO_X)
    watch.harness.settle_down()
    watch.harness.kill()
    queue = watch.harness.queue("q")
    watch.harness.settle_down()
    assert len(queue.parked) == 20 == queue.messages
    queue.purge()
    assert queue.messages == 0 == len(queue.parked)
    watch.pass_time(5)
    watch.harness.kill()
    assert watch.harness.queue("q").messages == 0

"""Deletions of what has much to be taken away: in pieces, between which others are served."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from kvitto.base.errors import ChannelError
from kvitto.broker import jobs
from kvitto.broker.administration import removal
from kvitto.broker.queues.queue import Queue
from kvitto.broker.vhost import VHost
from kvitto.store.repair.survey import Survey
from tests.support.harness import BrokerHarness, Taker
from tests.support.simdisk import PowerCut

PER_PIECE = jobs.PIECE // removal.BINDING
"""Bindings that go in one piece."""


class Changes:
    """Counts the definitions that are written: what a deletion costs most."""

    def __init__(self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.most = self.seen = 0
        delete = harness.store.definitions.delete

        def counted(kind: str, key: Any) -> None:
            self.count += 1
            delete(kind, key)

        monkeypatch.setattr(harness.store.definitions, "delete", counted)

    def look(self) -> None:
        """A piece has ended."""
        self.most, self.seen = max(self.most, self.count - self.seen), self.count


def pieces(steps: Iterator[bool], changes: Changes) -> int:
    count = 0
    for _ in steps:
        changes.look()
        count += 1
    changes.look()
    return count


def bound(harness: BrokerHarness, count: int) -> VHost:
    """An exchange `x` with so many bindings to queue `q`."""
    vhost = harness.broker.vhosts["/"]
    vhost.declare_exchange("x", "direct", True, False, False, {})
    queue = harness.declare("q")
    for i in range(count):
        vhost.bind("x", queue, f"k{i}", {})
    harness.settle_down()
    return vhost


def test_an_exchange_with_many_bindings_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = BrokerHarness()
    vhost = bound(harness, 300)
    changes = Changes(harness, monkeypatch)
    steps = vhost.exchange_deletion("x")
    assert next(steps) and "x" in vhost.exchanges and vhost.bindings < 300
    changes.look()
    with pytest.raises(ChannelError, match="no exchange 'x'"):
        vhost.bind("x", harness.queue("q"), "another", {})
    assert pieces(steps, changes) >= 300 // PER_PIECE - 1 and changes.most <= PER_PIECE + 1
    assert vhost.bindings == 0 and "x" not in vhost.exchanges and not vhost.going
    harness.restart()
    vhost = harness.broker.vhosts["/"]
    assert "x" not in vhost.exchanges and vhost.bindings == 0


def test_a_queue_with_many_bindings_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = BrokerHarness()
    vhost = bound(harness, 300)
    changes = Changes(harness, monkeypatch)
    assert pieces(vhost.queue_deletion(harness.queue("q")), changes) >= 300 // PER_PIECE - 1
    assert changes.most <= PER_PIECE + 1 and vhost.bindings == 0 and "q" not in vhost.queues


def test_a_name_that_is_being_freed_can_be_taken_when_little_is_left() -> None:
    harness = BrokerHarness()
    vhost = bound(harness, PER_PIECE * 2)
    before = harness.queue("q")
    harness.broker.jobs.start(vhost.queue_deletion(before))
    assert harness.queue("q") is before
    assert harness.declare("q") is not before and harness.queue("q").ready == 0
    for _ in range(5):
        harness.turn()
    assert not vhost.going and "q" in vhost.queues


def test_a_name_that_is_being_freed_is_refused_while_much_is_left() -> None:
    harness = BrokerHarness()
    vhost = bound(harness, PER_PIECE * 50)
    harness.broker.jobs.start(vhost.queue_deletion(harness.queue("q")))
    with pytest.raises(ChannelError, match="is being deleted") as refused:
        harness.declare("q")
    assert refused.value.code == 405
    harness.settle_down()
    assert harness.declare("q").ready == 0 and vhost.bindings == 0


def test_wherever_the_deletion_of_an_exchange_or_a_queue_ends_the_next_start_does_the_rest() -> None:
    """D2: it was there with some of its bindings, so that messages went nowhere of which the publisher had been told nothing."""
    for kind in ("exchange", "queue"):
        gone, cut_at = 0, 0
        while True:
            cut_at += 1
            harness = BrokerHarness()
            vhost = bound(harness, 60)
            other = vhost.declare_queue("other", True, False, False, {}, None)
            vhost.bind("x" if kind == "queue" else "amq.topic", other, "o", {})
            harness.settle_down()
            before = {(k, key) for k, key, _ in harness.store.definitions._list()}
            harness.disk.cut_at = harness.disk.operations + cut_at
            try:
                vhost.delete_exchange("x") if kind == "exchange" else vhost.delete_queue(harness.queue("q"))
                harness.settle_down()
            except PowerCut:
                pass
            else:
                break
            for found in (harness.disk.copy().kill(), harness.disk.survivor(Random(cut_at), hostile=True)):
                assert not Survey(found.copy()).findings
                started = BrokerHarness(found)
                after = {(k, key) for k, key, _ in started.store.definitions._list()}
                lost = before - after
                assert not after - before and len(lost) in (0, 61) and "other" in started.broker.vhosts["/"].queues
                assert (kind, ("/", "x" if kind == "exchange" else "q")) in lost or not lost
                gone += bool(lost)
        assert gone > 60


def test_a_new_queue_of_that_name_stays_without_the_bindings_of_the_deleted_one() -> None:
    harness = BrokerHarness()
    steps = bound(harness, 300).queue_deletion(harness.queue("q"))
    next(steps)
    harness.publish("q", b"to the queue that goes")
    harness.kill()
    assert "q" not in harness.broker.vhosts["/"].queues and harness.broker.vhosts["/"].bindings == 0
    harness.declare("q")
    harness.settle_down()
    for _ in range(2):
        harness.kill()
        assert harness.queue("q").messages == 0 and harness.broker.vhosts["/"].bindings == 0


def test_what_stays_because_its_deletion_has_failed_is_there_after_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is used again, so the next start must not delete it."""
    for kind in ("exchange", "queue"):
        harness = BrokerHarness()
        vhost = bound(harness, 300)
        steps = vhost.exchange_deletion("x") if kind == "exchange" else vhost.queue_deletion(harness.queue("q"))
        next(steps)
        with monkeypatch.context() as patched:
            patched.setattr(vhost, "drop_binding", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                next(steps)
        assert not vhost.going
        harness.publish("q", b"stays")
        harness.settle_down()
        harness.kill()
        vhost = harness.broker.vhosts["/"]
        assert harness.bodies("q") == [b"stays"] and 0 < vhost.bindings < 300 and "x" in vhost.exchanges


def test_it_stays_too_if_whoever_needs_the_name_ran_the_steps_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark stayed, and the next start deleted a queue that was in use."""
    harness = BrokerHarness()
    vhost = bound(harness, 3 * PER_PIECE)
    harness.broker.jobs.start(vhost.queue_deletion(harness.queue("q")), owner=vhost)
    with monkeypatch.context() as patched:
        patched.setattr(vhost, "drop_binding", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            harness.declare("q")
    harness.settle_down()
    assert not vhost.going
    harness.publish("q", b"stays")
    harness.settle_down()
    harness.kill()
    assert harness.bodies("q") == [b"stays"]


def test_what_changes_the_definition_meanwhile_does_not_take_the_mark_away() -> None:
    harness = BrokerHarness()
    vhost = bound(harness, 300)
    steps = vhost.queue_deletion(harness.queue("q"))
    next(steps)
    vhost.define_queue(harness.queue("q"))
    harness.kill()
    assert "q" not in harness.broker.vhosts["/"].queues


def test_a_deletion_of_what_has_no_bindings_writes_one_line() -> None:
    harness = BrokerHarness()
    harness.declare("q")
    harness.settle_down()
    before = harness.store.definitions.file.end
    harness.delete("q")
    data = harness.store.definitions.file.read_at(before, 1 << 20)
    assert data.count(b"\n") == 1 and b'"op": "delete"' in data


def test_many_exclusive_queues_of_a_connection_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 of them were deleted while everybody waited."""
    harness = BrokerHarness()
    vhost = harness.broker.vhosts["/"]
    queues: list[Queue] = [harness.declare(f"q{i}", durable=False) for i in range(200)]
    steps = removal.delete_queues(queues)
    gone = []
    for _ in steps:
        gone.append(len(queues) - len(vhost.queues))
    most = max(b - a for a, b in zip([0, *gone], gone, strict=False))
    assert most <= jobs.PIECE // removal.QUEUE + 1 and not vhost.queues and not vhost.going


def test_a_queue_that_is_to_go_can_be_declared_again_at_once() -> None:
    """A client comes back while the exclusive queues of its last connection are on their way out."""
    harness = BrokerHarness()
    queues: list[Queue] = [harness.declare(f"q{i}", durable=False) for i in range(50)]
    harness.broker.jobs.start(removal.delete_queues(queues))
    again = harness.declare("q49", durable=False)
    assert again is not queues[49]
    harness.settle_down()
    assert list(harness.broker.vhosts["/"].queues) == ["q49"] and harness.queue("q49") is again


def test_a_long_chain_of_auto_delete_exchanges_goes_one_by_one() -> None:
    """Each deleted the one before from within: a chain of some hundred was deeper than Python goes."""
    harness = BrokerHarness()
    vhost = harness.broker.vhosts["/"]
    for i in range(2000):
        vhost.declare_exchange(f"x{i}", "fanout", False, True, False, {})
    for i in range(1999):
        vhost.bind(f"x{i}", vhost.exchange(f"x{i + 1}"), "", {})
    vhost.bind("x1999", harness.declare("q", durable=False), "", {})
    harness.delete("q")
    assert vhost.bindings == 0 and not any(name.startswith("x") for name in vhost.exchanges)


def test_a_cycle_of_auto_delete_exchanges_stays_until_one_of_them_is_deleted() -> None:
    harness = BrokerHarness()
    vhost = harness.broker.vhosts["/"]
    for i in range(3):
        vhost.declare_exchange(f"x{i}", "fanout", False, True, False, {})
    for i in range(3):
        vhost.bind(f"x{i}", vhost.exchange(f"x{(i + 1) % 3}"), "", {})
    vhost.delete_exchange("x1")
    assert vhost.bindings == 0 and not any(name.startswith("x") for name in vhost.exchanges)


def test_queues_that_expire_at_one_moment_go_in_pieces() -> None:
    harness = BrokerHarness()
    vhost = harness.broker.vhosts["/"]
    for i in range(300):
        harness.declare(f"q{i}", durable=False, x_expires=60_000)
    harness.clock.advance(61)
    left = [300]
    while left[-1]:
        harness.broker.tick()
        before = len(vhost.queues)
        harness.turn()
        left.append(len(vhost.queues))
        assert before - left[-1] <= 4 * (jobs.PIECE // removal.QUEUE + 1)
    assert len(left) > 5


def test_a_queue_that_is_used_again_before_its_turn_comes_does_not_expire() -> None:
    harness = BrokerHarness()
    harness.declare("q", durable=False, x_expires=60_000)
    harness.clock.advance(61)
    harness.broker.read_clock()
    harness.broker.expire_unused(harness.queue("q"))
    queue = harness.queue("q")
    queue.add_consumer(Taker(queue))
    harness.broker.tick()
    harness.turn()
    assert harness.queue("q") is queue


def test_a_virtual_host_goes_in_pieces() -> None:
    harness = BrokerHarness()
    vhost = harness.broker.add_vhost("v")
    for i in range(100):
        vhost.declare_queue(f"q{i}", True, False, False, {}, None)
        vhost.bind("amq.topic", vhost.queue(f"q{i}"), "#", {})
    harness.settle_down()
    count = sum(1 for _ in removal.delete_vhost(harness.broker, vhost))
    assert count > 5 and "v" not in harness.broker.vhosts and not vhost.queues and vhost.bindings == 0
    harness.restart()
    assert "v" not in harness.broker.vhosts


def test_an_auto_delete_exchange_that_is_bound_again_meanwhile_stays() -> None:
    """Whoever bound it had been told that it was done, and what was published there went nowhere."""
    harness = BrokerHarness()
    vhost = bound(harness, 300)
    for name in ("again", "unused"):
        vhost.declare_exchange(name, "fanout", False, True, False, {})
        vhost.bind(name, harness.queue("q"), "", {})
    steps = vhost.queue_deletion(harness.queue("q"))
    next(steps)
    assert vhost.exchange("again").unused
    other = harness.declare("other")
    vhost.bind("again", other, "", {})
    removal.at_once(steps)
    assert "again" in vhost.exchanges and list(vhost.exchange("again").bindings_to(other))
    assert "unused" not in vhost.exchanges and "q" not in vhost.queues

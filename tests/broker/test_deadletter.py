"""Dead letters on their way: how many at a time, and what they find at their target."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.broker.routing import index
from kvitto.broker.transfers import deadletter, records
from kvitto.protocol.hub import WRITE_COST
from kvitto.wire import methods as m
from kvitto.wire.properties import Properties
from kvitto.wire.tables import Table
from tests.protocol import sessions
from tests.protocol.sansio import ProtocolHarness
from tests.protocol.test_limits import ask
from tests.support.harness import BrokerHarness, Taker, address

TO_DEAD: dict[str, Any] = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}


def held(harness: BrokerHarness, name: str, count: int, size: int = 10, **arguments: Any) -> WorkQueue:
    """A queue all of whose messages are with a consumer."""
    queue = harness.declare(name, **TO_DEAD, **arguments)
    for i in range(count):
        harness.publish(name, f"{name} {i}".encode().ljust(size, b"."))
    harness.settle_down()
    taker = Taker(queue)
    while queue.get(taker):
        pass
    return queue


def rejected(harness: BrokerHarness, name: str, count: int, size: int = 10, **arguments: Any) -> None:
    """Messages of a new queue that a consumer has rejected; the turn has not come yet."""
    held(harness, name, count, size, **arguments).reject(0, count)


def test_dead_letters_keep_to_the_limit_of_their_target() -> None:
    """X4: those of one record, and those that waited for a sync, were not counted, and went in past x-max-length."""
    harness = BrokerHarness()
    dead = harness.declare("dead", x_max_length=5, x_overflow="reject-publish")
    rejected(harness, "one", 3)
    harness.turn()
    rejected_too = harness.declare("two", **TO_DEAD, x_message_ttl=10)
    for i in range(50):
        harness.publish("two", b"two %d" % i)
    harness.clock.advance(1)
    harness.broker.tick()
    harness.turn()
    assert not harness.publish("dead", b"it is full")
    harness.settle_down()
    assert dead.ready == 5 and dead.coming == dead.coming_bytes == 0
    assert rejected_too.messages == 48


def test_what_finds_no_room_in_the_journal_gives_back_its_room_in_the_queue() -> None:
    """X4, D4."""
    harness = BrokerHarness()
    dead = harness.declare("dead", x_max_length_bytes=25, x_overflow="reject-publish")
    rejected(harness, "q", 3)
    harness.disk.full = True
    harness.turn()
    assert dead.coming == dead.coming_bytes == 0 and harness.queue("q").messages == 3
    harness.disk.full = False
    harness.clock.advance(60)
    for _ in range(3):
        harness.broker.tick()
        harness.settle_down()
    assert len(harness.peek("dead")) == 2


def test_what_is_on_its_way_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """W8: all bodies were in memory until the sync, and all letters were sent in one turn."""
    monkeypatch.setattr(deadletter, "IN_FLIGHT_BYTES", 10_000)
    monkeypatch.setattr(deadletter, "RECORD_BYTES", 3_000)
    monkeypatch.setattr(deadletter, "LETTERS_PER_TURN", 7)
    harness = BrokerHarness()
    dead = harness.declare("dead")
    rejected(harness, "q", 60, 1000)
    letters, most = harness.broker.dead_letters, 0
    for _ in range(60):
        before = dead.ready
        harness.turn()
        most = max(most, letters.in_flight)
        if letters.held_up:
            harness.sync()
            harness.turn()
        assert dead.ready - before <= 15
    harness.settle_down()
    assert 9_000 < most < 12_000 and letters.in_flight == 0
    assert [body.split(b".")[0] for body in harness.peek("dead")] == [b"q %d" % i for i in range(60)]


def test_what_one_sync_has_made_durable_is_applied_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of many turns wait for one sync; nothing of a turn's budget is left for others if all are applied behind it."""
    monkeypatch.setattr(deadletter, "LETTERS_PER_TURN", 10)
    monkeypatch.setattr(records, "APPLIED_PER_TURN", 10)
    harness = BrokerHarness()
    dead = harness.declare("dead")
    rejected(harness, "q", 60, 10)
    while harness.broker.dead_letters.waiting:
        harness.broker.turn(WRITE_COST)
    assert dead.ready == 0
    for _ in range(2):  # the first one makes the file of the journal known
        job = harness.store.begin_sync(everything=True)
        job.run()
        harness.store.end_sync(job)
    for turn in range(1, 7):
        assert not harness.broker.idle() and harness.broker.unfinished()
        harness.broker.turn(WRITE_COST)
        assert dead.ready == 10 * turn
    harness.settle_down()
    assert [body.split(b".")[0] for body in harness.peek("dead")] == [b"q %d" % i for i in range(60)]


def test_letters_are_applied_faster_than_they_are_sent() -> None:
    """Those that waited grew to 40,000 objects, which a look for garbage took 30 ms for."""
    assert records.APPLIED_PER_TURN > deadletter.LETTERS_PER_TURN


def test_letters_too_large_for_the_limit_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """X4: a limit on what is on its way must not keep a large letter for ever."""
    monkeypatch.setattr(deadletter, "IN_FLIGHT_BYTES", 1_000)
    harness = BrokerHarness()
    harness.declare("dead")
    rejected(harness, "q", 3, 5000)
    harness.settle_down()
    assert len(harness.peek("dead")) == 3


@pytest.mark.parametrize("durable", [True, False])
def test_a_turn_sends_no_more_than_it_may_and_asks_for_another(durable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadletter, "LETTERS_PER_TURN", 7)
    harness = BrokerHarness()
    dead = harness.declare("dead", durable)
    queue = harness.declare("q", durable, **TO_DEAD)
    for _ in range(20):
        harness.publish("q", b"m")
    harness.settle_down()
    harness.take("q")
    harness.settle_down()
    queue.reject(0, 20)
    for moving in (13, 6, 0):
        harness.turn()
        assert sum(n for line in harness.broker.dead_letters.waiting.values() for _, n, _ in line) == moving
        assert moving == 0 or harness.broker.timers.next_ms == harness.clock.monotonic_ms()
    harness.settle_down()
    assert dead.ready == 20 and queue.messages == 0


def test_queues_take_turns_at_dead_lettering(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue with many dead letters does not hold up those of another; each keeps its order."""
    monkeypatch.setattr(deadletter, "SLICE", 5)
    harness = BrokerHarness()
    harness.declare("dead")
    many, few = held(harness, "many", 40), held(harness, "few", 4)
    many.reject(0, 40)
    few.reject(0, 4)
    harness.settle_down()
    bodies = harness.peek("dead")
    assert max(i for i, body in enumerate(bodies) if body.startswith(b"few")) < 10
    assert [b for b in bodies if b.startswith(b"many")] == [f"many {i}".ljust(10, ".").encode() for i in range(40)]


def test_dead_letters_that_wait_cost_no_memory_each() -> None:
    """A reject of many at once is one range until they have their turn."""
    harness = BrokerHarness()
    harness.declare("dead")
    rejected(harness, "q", 30)
    assert list(harness.broker.dead_letters.waiting[harness.queue("q")]) == [(0, 30, "rejected")]
    harness.queue("q").dead_letter(30, 2, "rejected", 0)
    assert list(harness.broker.dead_letters.waiting[harness.queue("q")]) == [(0, 32, "rejected")]


def test_a_letter_that_no_record_can_hold_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """X4: the length of a record is 32 bits; one that was larger ended the broker."""
    monkeypatch.setattr(deadletter, "LETTER_MAX", 3_000)
    harness = BrokerHarness()
    vhost = harness.broker.vhosts["/"]
    vhost.declare_exchange("x", "fanout", True, False, False, {})
    for i in range(4):
        vhost.bind("x", harness.declare(f"dead{i}"), "", {})
    queue = harness.declare("q", x_dead_letter_exchange="x", x_message_ttl=10)
    harness.publish("q", bytes(1000))
    harness.clock.advance(1)
    harness.broker.tick()
    harness.settle_down()
    assert queue.messages == 1 and harness.peek("dead0") == []


def test_deleted_queues_leave_no_letters_behind() -> None:
    harness = BrokerHarness()
    harness.declare("dead")
    rejected(harness, "q", 3)
    harness.delete("q")
    harness.settle_down()
    assert harness.broker.dead_letters.waiting == {} and harness.peek("dead") == []


def test_w8_a_letter_with_a_long_way_is_routed_in_pieces_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """One alone, with 1,000 keys in CC and an exchange at its limit, held everybody for seconds."""
    monkeypatch.setattr(deadletter, "STEPS_PER_TURN", index.PIECE_STEPS)
    harness = BrokerHarness()
    vhost = harness.broker.vhosts["/"]
    harness.declare("dead")
    harness.declare("other dead")
    vhost.declare_exchange("x", "fanout", False, False, False, {})
    vhost.bind("x", harness.queue("dead"), "", {})
    for i in range(10):
        vhost.declare_exchange(f"x{i}", "fanout", False, False, False, {})
        vhost.bind("x", vhost.exchange(f"x{i}"), "", {})
    long = harness.declare("long", x_dead_letter_exchange="x")
    harness.declare("short", x_dead_letter_exchange="", x_dead_letter_routing_key="other dead")
    copies = Properties(headers={"CC": [str(i) for i in range(5000)]}).encode()
    long.append_bytes(address("long"), copies, b"far", -1, 0)
    harness.publish("short", b"near")
    for name in ("long", "short"):
        for delivery in harness.take(name):
            harness.queue(name).reject(delivery.offset, 1)
    for _ in range(5):
        harness.sync()
    assert long.moving == 1 and harness.bodies("other dead") == [b"near"]
    harness.settle_down()
    assert long.messages == 0 and harness.bodies("dead") == [b"far"]


def test_a_queue_that_is_deleted_while_its_letter_is_routed_is_forgotten() -> None:
    harness = BrokerHarness()
    vhost = harness.broker.vhosts["/"]
    vhost.declare_exchange("x", "fanout", False, False, False, {})
    for i in range(100):
        vhost.declare_exchange(f"x{i}", "fanout", False, False, False, {})
        vhost.bind("x", vhost.exchange(f"x{i}"), "", {})
    queue = harness.declare("q", x_dead_letter_exchange="x")
    copies = Properties(headers={"CC": [str(i) for i in range(1000)]}).encode()
    queue.append_bytes(address("q"), copies, b"far", -1, 0)
    for delivery in harness.take("q"):
        queue.reject(delivery.offset, 1)
    harness.turn()
    assert queue.moving == 1
    harness.delete("q")
    harness.settle_down()
    assert not harness.broker.dead_letters.waiting and not harness.broker.dead_letters._addressing


def test_letters_with_very_many_headers_take_more_turns() -> None:
    """Fifty of them in one turn, each with a table of 128 KiB, held the loop for more than a second."""
    harness = BrokerHarness()
    dead = harness.declare("dead")
    queue = harness.declare("q", **TO_DEAD)
    props = Properties(headers={f"{i:x}": None for i in range(15_000)}).encode()
    for _ in range(20):
        queue.append_bytes(address("q"), props, b"", -1, 0)
    harness.settle_down()
    taker = Taker(queue)
    while queue.get(taker):
        pass
    queue.reject(0, 20)
    most = before = 0
    for _ in range(100):
        harness.sync()
        most, before = max(most, dead.ready - before), dead.ready
    assert dead.ready == 20 and most <= 2


def test_a_reject_in_a_transaction_leaves_no_bytes_of_unacked_messages() -> None:
    harness = ProtocolHarness()
    wire = harness.wire()
    to_dead: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    ask(wire, m.QueueDeclare("dead", durable=True), m.QueueDeclare("q", durable=True, arguments=to_dead))
    ask(wire, m.TxSelect())
    for _ in range(3):
        wire.feed(sessions.content(1, m.BasicPublish("", "q"), b"\0\0", b"body"))
    ask(wire, m.TxCommit())
    for _ in range(3):
        wire.put(1, m.BasicGet("q"))
    harness.settle_down()
    queue = harness.broker.vhosts["/"].queues["q"]
    assert (queue.unacked, queue.unacked_bytes) == (3, 12)
    wire.put(1, m.BasicNack(3, True, False))
    ask(wire, m.TxCommit())
    harness.settle_down()
    assert (queue.messages, queue.unacked_bytes) == (0, 0)

"""Transactions, T1-T6 of the contract, on the wire. What a crash leaves of them is shown in tests/crash and tests/store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvitto.base.errors import ChannelError
from kvitto.store.batch import HEADER, BatchHeader
from kvitto.wire import methods as m
from tests.protocol.raw import NO_PROPERTIES, Raw, content
from tests.protocol.sansio import ProtocolHarness
from tests.support.harness import work_queue
from tests.support.limited import limit

More = Callable[..., Raw]


@pytest.fixture
def tx(raw: Raw, name: str) -> Raw:
    """A connection whose channel 1 is transactional, with channel 2 beside it and a queue."""
    raw.channel(2)
    raw.declare(name, 2)
    raw.call(1, m.TxSelect(), m.TxSelectOk)
    return raw


def commit(raw: Raw) -> None:
    raw.call(1, m.TxCommit(), m.TxCommitOk)


def rollback(raw: Raw) -> None:
    raw.call(1, m.TxRollback(), m.TxRollbackOk)


@pytest.mark.parametrize("method", [m.TxCommit(), m.TxRollback()], ids=lambda x: x.NAME)
def test_without_select_it_is_a_mistake(raw: Raw, method: m.Method) -> None:
    """T1."""
    raw.put(1, method)
    raw.channel_error(406)


def test_select_twice_and_empty_commits_are_fine(tx: Raw) -> None:
    """T1."""
    tx.call(1, m.TxSelect(), m.TxSelectOk)
    commit(tx)
    rollback(tx)
    commit(tx)


@pytest.mark.parametrize("durable", [False, True])
def test_publishes_come_with_the_commit(tx: Raw, name: str, durable: bool) -> None:
    """T2, T6: in order; rolled back ones never."""
    queue = tx.declare(name + ".d", 2, durable=durable)
    for body in (b"0", b"1"):
        tx.publish(1, "", queue, body)
    assert tx.count(queue, 2) == 0
    rollback(tx)
    for body in (b"2", b"3"):
        tx.publish(1, "", queue, body)
    assert tx.count(queue, 2) == 0
    commit(tx)
    assert tx.drain(queue, 2) == [b"2", b"3"]


def test_acks_nacks_and_rejects_come_with_the_commit(tx: Raw, name: str) -> None:
    """T2."""
    tx.put_in(name, *(b"%d" % n for n in range(6)))
    for _ in range(5):
        tx.get(name)
    tx.put(1, m.BasicAck(2, True), m.BasicNack(3, False, True), m.BasicReject(4, False))
    assert tx.count(name, 2) == 1
    commit(tx)
    assert tx.count(name, 2) == 2
    tx.call(1, m.ChannelClose(200, "bye"), m.ChannelCloseOk)
    assert tx.drain(name, 2) == [b"2", b"4", b"5"]


def test_rollback_leaves_deliveries_unacked(tx: Raw, name: str) -> None:
    """T6: they can be settled again, and come back with the end of the channel."""
    tx.put_in(name, b"0", b"1", b"2")
    for _ in range(3):
        tx.get(name)
    tx.put(1, m.BasicAck(2, True), m.BasicReject(3, True))
    rollback(tx)
    assert tx.count(name, 2) == 0
    tx.put(1, m.BasicAck(1))
    commit(tx)
    tx.call(1, m.ChannelClose(200, "bye"), m.ChannelCloseOk)
    assert tx.drain(name, 2) == [b"1", b"2"]


def test_a_tag_that_the_transaction_holds_is_unknown(tx: Raw, name: str) -> None:
    """A4 inside a transaction: the mistake is told at once, and rolls back."""
    tx.put_in(name, b"0")
    tx.get(name)
    tx.put(1, m.BasicAck(1), m.BasicAck(1))
    tx.channel_error(406)
    assert tx.drain(name, 2) == [b"0"]


def test_closing_a_channel_rolls_back(tx: Raw, name: str) -> None:
    """T6."""
    tx.put_in(name, b"0")
    tx.get(name)
    tx.put(1, m.BasicAck(1))
    tx.publish(1, "", name, b"never")
    tx.call(1, m.ChannelClose(200, "bye"), m.ChannelCloseOk)
    assert tx.drain(name, 2) == [b"0"]


def test_declares_and_consumes_do_not_take_part(tx: Raw, name: str) -> None:
    """T2."""
    tx.declare(name + ".now", 1)
    assert tx.count(name + ".now", 2) == 0
    tx.put_in(name, b"0")
    tx.consume(name, 1)
    assert tx.message().body == b"0"
    rollback(tx)
    assert tx.count(name + ".now", 2) == 0


def test_the_exchange_must_exist_at_publish(tx: Raw, name: str) -> None:
    """T3."""
    tx.publish(1, name + ".none", "", b"x")
    tx.channel_error(404)


def test_routing_happens_at_commit(tx: Raw, name: str) -> None:
    """T3: a binding that comes in between counts, so does a queue that goes."""
    tx.publish(1, "amq.direct", name, b"routed later")
    tx.publish(1, "", name + ".gone", b"x")
    tx.call(2, m.QueueBind(name, "amq.direct", name), m.QueueBindOk)
    commit(tx)
    assert tx.drain(name, 2) == [b"routed later"]


def test_returns_precede_commit_ok(tx: Raw, name: str) -> None:
    """T3."""
    tx.publish(1, "amq.direct", name + ".none", b"back", mandatory=True)
    tx.publish(1, "", name, b"kept", mandatory=True)
    tx.put(1, m.TxCommit())
    back = tx.message(m.BasicReturn)
    assert (back.body, back.method.reply_code) == (b"back", 312)
    tx.expect(m.TxCommitOk)
    assert tx.drain(name, 2) == [b"kept"]


def test_commit_ok_waits_for_the_disk() -> None:
    """T4: publishes and acks."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("a", durable=True), m.QueueDeclare("b", durable=True))
    harness.settle_down()
    wire.feed(content(1, m.BasicPublish("", "a"), NO_PROPERTIES, b"x"))
    harness.settle_down()
    wire.put(1, m.BasicGet("a"), m.TxSelect(), m.BasicAck(1))
    wire.feed(content(1, m.BasicPublish("", "b"), NO_PROPERTIES, b"y"))
    harness.settle_down()
    wire.frames()
    wire.put(1, m.TxCommit())
    harness.turn()
    assert wire.methods() == []
    harness.settle_down()
    assert wire.methods() == [m.TxCommitOk()]
    harness = ProtocolHarness(harness.disk.kill())
    queues = harness.broker.vhosts["/"].queues
    assert (queues["a"].messages, queues["b"].messages) == (0, 1)


def test_requests_behind_a_commit_are_answered_behind_it() -> None:
    """T4: the channel's order holds while the commit waits for the disk."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("a", durable=True), m.TxSelect())
    harness.settle_down()
    wire.frames()
    wire.feed(content(1, m.BasicPublish("", "a"), NO_PROPERTIES, b"x"))
    wire.put(1, m.TxCommit(), m.BasicQos(0, 1))
    harness.turn()
    assert wire.methods() == []
    harness.settle_down()
    assert wire.methods() == [m.TxCommitOk(), m.BasicQosOk()]


def test_a_channel_that_is_closed_during_its_commit_hears_no_more() -> None:
    """commit-ok came behind the close, on a number that may be another channel's by then."""
    harness = ProtocolHarness()
    wire = harness.wire()
    for queue in ("a", "b"):
        wire.put(1, m.QueueDeclare(queue, durable=True))
        harness.settle_down()
    wire.put(1, m.TxSelect())
    for queue in ("a", "b"):
        wire.feed(content(1, m.BasicPublish("", queue), NO_PROPERTIES, b"x"))
    harness.settle_down()
    wire.frames()
    wire.put(1, m.TxCommit())
    wire.connection.fail_channel(wire.connection.channels[1], ChannelError(541, "a queue is out of service"))
    harness.settle_down()
    assert [type(method) for method in wire.methods()] == [m.ChannelClose] and wire.reading


def test_a_queue_that_refuses_fails_all_of_it(tx: Raw, name: str) -> None:
    """T5: 406, and nothing is applied: no publish, no ack."""
    full = tx.declare(name + ".full", 2, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    tx.put_in(name, b"0")
    tx.get(name)
    tx.put(1, m.BasicAck(1))
    for queue in (name, full, full):
        tx.publish(1, "", queue, b"x")
    tx.put(1, m.TxCommit())
    tx.channel_error(406)
    assert (tx.count(full, 2), tx.drain(name, 2)) == (0, [b"0"])


def test_what_a_transaction_brings_has_its_room_until_it_is_there() -> None:
    """T5: two that waited for one sync found the same room, and a publish beside them too."""
    harness = ProtocolHarness()
    wires = [harness.wire() for _ in range(2)]
    limited: dict[str, Any] = {"x-max-length": 3, "x-overflow": "reject-publish"}
    wires[0].put(1, m.QueueDeclare("q", durable=True, arguments=limited))
    harness.settle_down()
    for wire in wires:
        wire.frames()
        wire.put(1, m.TxSelect())
        for _ in range(2):
            wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"x"))
        wire.put(1, m.TxCommit())
    harness.settle_down()
    answers = [wire.methods()[-1] for wire in wires]
    assert answers[0] == m.TxCommitOk() and isinstance(answers[1], m.ChannelClose)
    queue = work_queue(harness.broker, "q")
    assert (queue.ready, queue.coming, queue.coming_bytes) == (2, 0, 0)


def test_transactions_of_two_channels_do_not_mix(tx: Raw, more: More, name: str) -> None:
    """T2."""
    other = more()
    other.call(1, m.TxSelect(), m.TxSelectOk)
    tx.publish(1, "", name, b"first")
    other.publish(1, "", name, b"second")
    commit(other)
    rollback(tx)
    assert tx.drain(name, 2) == [b"second"]


def test_a_commit_delivers(tx: Raw, more: More, name: str) -> None:
    """T4: a waiting consumer gets the messages, unflagged, in order."""
    other = more()
    other.consume(name)
    for number in range(3):
        tx.publish(1, "", name, b"%d" % number)
    commit(tx)
    got = [other.message() for _ in range(3)]
    assert [(g.body, g.method.redelivered) for g in got] == [(b"0", False), (b"1", False), (b"2", False)]


def test_properties_are_checked_at_publish(tx: Raw, name: str) -> None:
    """T3: user_id, expiration."""
    tx.publish(1, "", name, b"x", expiration="soon")
    tx.channel_error(406)


def test_copies_and_headers_are_routed_at_commit(tx: Raw, name: str) -> None:
    """T3, Q: CC and a headers exchange inside a transaction."""
    tx.declare(name + ".cc", 2)
    tx.publish(1, "", name, b"x", headers={"CC": [name + ".cc"]})
    tx.call(2, m.QueueBind(name, "amq.headers", "", arguments={"k": 1}), m.QueueBindOk)
    tx.publish(1, "amq.headers", "", b"y", headers={"k": 1})
    commit(tx)
    assert (tx.drain(name, 2), tx.drain(name + ".cc", 2)) == ([b"x", b"y"], [b"x"])


def test_a_transaction_has_a_limit(tx: Raw, name: str, allow: Callable[..., None]) -> None:
    """W8: it is held in memory, so it must end somewhere; and it counts from zero again."""
    allow(tx_max=1_000_000)
    for _ in range(3):
        for _ in range(9):
            tx.publish(1, "", name, bytes(100_000))
        commit(tx)
    assert len(tx.drain(name, 2)) == 27
    for _ in range(11):
        tx.publish(1, "", name, bytes(100_000))
    assert "commit more often" in tx.channel_error(406).reply_text
    assert tx.count(name, 2) == 0


def test_the_copies_of_a_transaction_have_a_limit(tx: Raw, name: str, allow: Callable[..., None]) -> None:
    """W8: one record of the journal holds them all; nothing is applied if it would be too large."""
    allow(tx_max=100_000)
    tx.call(2, m.ExchangeDeclare(name, "fanout"), m.ExchangeDeclareOk)
    queues = [tx.declare(f"{name}.{n}", 2) for n in range(5)]
    for queue in queues:
        tx.call(2, m.QueueBind(queue, name), m.QueueBindOk)
    tx.publish(1, name, "", bytes(90_000))
    tx.put(1, m.TxCommit())
    assert "commit more often" in tx.channel_error(406).reply_text
    assert [tx.count(queue, 2) for queue in queues] == [0] * 5


def test_empty_messages_and_settlements_count_too(tx: Raw, name: str, allow: Callable[..., None]) -> None:
    """W8: each takes memory."""
    allow(tx_max=100_000)
    for _ in range(250):
        tx.publish(1, "", name, b"")
    tx.call(1, m.TxRollback(), m.TxRollbackOk)
    tx.put_in(name, *[b"x"] * 250)
    for _ in range(250):
        tx.get(name)
    tx.put(1, m.BasicNack(0, True, False))
    for _ in range(50):
        tx.publish(1, "", name, b"")
    commit(tx)
    for _ in range(400):
        tx.publish(1, "", name, b"")
    assert "commit more often" in tx.channel_error(406).reply_text
    assert tx.count(name, 2) == 50


def test_all_transactions_of_a_connection_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """W8: 2047 channels may hold one each. What is committed, rolled back or closed is out of it."""
    harness = ProtocolHarness()
    limit(harness.broker, transactions_max=2_500)
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q", durable=True))
    harness.settle_down()
    for channel in range(2, 6):
        wire.put(channel, m.ChannelOpen(), m.TxSelect())

    def publish(channel: int) -> None:
        wire.feed(content(channel, m.BasicPublish("", "q"), NO_PROPERTIES, bytes(700)))

    for end in (m.TxCommit(), m.TxRollback(), m.ChannelClose(200, "bye")):
        for channel in (2, 3):
            publish(channel)
        assert wire.connection.in_transactions > 1_400
        for channel in (2, 3):
            wire.put(channel, end)
            harness.settle_down()
        assert wire.connection.in_transactions == 0
    wire.put(2, m.ChannelOpen(), m.TxSelect())
    wire.put(3, m.ChannelOpen(), m.TxSelect())
    harness.settle_down()
    wire.frames()
    for channel in (2, 3, 4):
        publish(channel)
    harness.settle_down()
    (close,) = wire.methods()
    assert isinstance(close, m.ChannelClose) and close.reply_code == 406 and "commit more often" in close.reply_text
    for channel in (2, 3):
        wire.put(channel, m.TxCommit())
        harness.settle_down()
    assert wire.methods() == [m.TxCommitOk()] * 2 and wire.connection.in_transactions == 0
    publish(5)
    wire.connection.lost()
    assert wire.connection.in_transactions == 0


@pytest.mark.parametrize(("size", "count"), [(30_000, 20), (0, 700)])
def test_rejects_with_their_dead_letters_have_a_limit(size: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """W8, T5: all their copies are in one record, and were not counted. Nothing is applied if it would be too large."""
    harness = ProtocolHarness()
    wire = harness.wire()
    vhost = harness.broker.vhosts["/"]
    vhost.declare_exchange("x", "fanout", True, False, False, {})
    targets = [vhost.declare_queue(f"dead{i}", True, False, False, {}, None) for i in range(4)]
    for target in targets:
        vhost.bind("x", target, "", {})
    queue = vhost.declare_queue("q", True, False, False, {"x-dead-letter-exchange": "x"}, None)
    for _ in range(count):
        queue.append_bytes(b"\0\1q", b"\0\0", bytes(size), -1, 0)
    harness.settle_down()
    wire.put(1, m.TxSelect(), *[m.BasicGet("q")] * count)
    harness.settle_down()
    wire.frames()
    limit(harness.broker, tx_max=200_000)
    wire.put(1, m.BasicNack(2, True, False), m.TxCommit())
    harness.settle_down()
    assert wire.methods() == [m.TxCommitOk()] and [t.ready for t in targets] == [2] * 4
    reads = []
    address = harness.broker.dead_letters.address_steps
    monkeypatch.setattr(
        harness.broker.dead_letters, "address_steps", lambda *args: reads.append(args[2]) or address(*args)
    )
    wire.put(1, m.BasicNack(0, True, False), m.TxCommit())
    harness.settle_down()
    (close,) = wire.methods()
    assert isinstance(close, m.ChannelClose) and close.reply_code == 406 and "commit more often" in close.reply_text
    assert 0 < len(reads) * max(size, 1) <= 800_000
    assert [t.ready for t in targets] == [2] * 4 and queue.ready == count - 2
    assert all(work_queue(harness.broker, t.name).coming == 0 for t in targets) and wire.connection.in_transactions == 0


def test_rejects_of_a_transaction_keep_to_the_limit_of_their_dead_letter_queue() -> None:
    """X4, T5: those that find no room in it stay where they are; its own publishes come first."""
    harness = ProtocolHarness()
    wire = harness.wire()
    vhost = harness.broker.vhosts["/"]
    full = {"x-max-length": 3, "x-overflow": "reject-publish"}
    dead = vhost.declare_queue("dead", True, False, False, full, None)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    queue = vhost.declare_queue("q", True, False, False, arguments, None)
    for _ in range(5):
        queue.append_bytes(b"\0\1q", b"\0\0", b"x", -1, 0)
    harness.settle_down()
    wire.put(1, m.TxSelect(), *[m.BasicGet("q")] * 5)
    harness.settle_down()
    wire.frames()
    wire.put(1, m.BasicNack(0, True, False))
    wire.feed(content(1, m.BasicPublish("", "dead"), NO_PROPERTIES, b"published"))
    wire.put(1, m.TxCommit())
    harness.settle_down()
    assert wire.methods() == [m.TxCommitOk()]
    assert (dead.ready, work_queue(harness.broker, "dead").coming, queue.messages) == (3, 0, 3)


def test_large_transactions_of_one_sync_are_batches_of_their_own() -> None:
    """T4: what is read back is one transaction at a time."""
    harness = ProtocolHarness()
    wires = [harness.wire(), harness.wire()]
    wires[0].put(1, m.QueueDeclare("q", durable=True))
    harness.settle_down()
    for wire in wires:
        wire.put(1, m.TxSelect())
        for _ in range(5):
            wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, bytes(16 << 20)))
        wire.put(1, m.TxCommit())
    harness.settle_down()
    (part,) = harness.broker.vhosts["/"].queues["q"].log.segments
    head = BatchHeader(part.file.read_at(part.position_before(0), HEADER), 0)
    assert (head.first, head.count) == (0, 5)
    assert ProtocolHarness(harness.disk.kill()).broker.vhosts["/"].queues["q"].ready == 10


def test_what_comes_back_in_a_commit_is_delivered_before_what_it_publishes(tx: Raw, name: str) -> None:
    """T2, A5: the publish is a batch alone of its queue, which needs no record of the journal."""
    queue = tx.declare(name + ".d", 2, durable=True)
    tx.publish(2, "", queue, b"first")
    tx.call(1, m.BasicConsume(queue, "c"), m.BasicConsumeOk)
    assert tx.message().body == b"first"
    tx.publish(1, "", queue, b"second")
    tx.put(1, m.BasicNack(1, False, True))
    commit(tx)
    assert [tx.message().body for _ in range(2)] == [b"first", b"second"]

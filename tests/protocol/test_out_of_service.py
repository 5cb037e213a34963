"""D6: a queue in whose work something unexpected has been raised is out of service, and the others are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvitto.store import pieces
from kvitto.wire import methods as m
from tests.protocol.raw import NO_PROPERTIES, content
from tests.protocol.sansio import ProtocolHarness, Wire


@pytest.fixture
def harness() -> Iterator[ProtocolHarness]:
    """Queue "bad", which cannot be written from now on, and "good"; each has one message already, and both are bound to amq.fanout."""
    yield from failing_harness({})


@pytest.fixture
def ranked_harness() -> Iterator[ProtocolHarness]:
    """The same with queues that have priorities."""
    yield from failing_harness({"x-max-priority": 3})


def failing_harness(arguments: dict[str, Any]) -> Iterator[ProtocolHarness]:
    harness = ProtocolHarness()
    wire = harness.wire()
    for name in ("bad", "good"):
        declare = m.QueueDeclare(name, durable=True, arguments=arguments)
        wire.put(1, declare, m.QueueBind(name, "amq.fanout", ""))
        harness.settle_down()
        wire.feed(content(1, m.BasicPublish("", name), NO_PROPERTIES, b"before"))
    harness.settle_down()
    bad = harness.broker.vhosts["/"].queues["bad"].log

    def failing(batch: Any) -> None:
        raise RuntimeError("a bug")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bad, "write", failing)
        yield harness


SHORT: dict[str, Any] = {"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "good"}


def publisher(harness: ProtocolHarness) -> Wire:
    wire = harness.wire()
    wire.put(1, m.ConfirmSelect())
    harness.settle_down()
    wire.frames()
    return wire


def publish(wire: Wire, exchange: str, key: str) -> list[type]:
    """What the publisher is told."""
    wire.feed(content(1, m.BasicPublish(exchange, key), NO_PROPERTIES, b"x"))
    wire.harness.settle_down()
    return [type(method) for method in wire.methods()]


def test_what_was_published_to_it_in_that_turn_is_not_confirmed_and_the_connection_lives(
    harness: ProtocolHarness,
) -> None:
    first, other = publisher(harness), publisher(harness)
    first.feed(content(1, m.BasicPublish("", "bad"), NO_PROPERTIES, b"x"))
    other.feed(content(1, m.BasicPublish("", "good"), NO_PROPERTIES, b"x"))
    harness.settle_down()
    close = first.methods()[-1]
    assert isinstance(close, m.ChannelClose) and close.reply_code == 541 and "queue 'bad'" in close.reply_text
    assert not first.closed
    assert [type(method) for method in other.methods()] == [m.BasicAck]


def test_later_publishes_are_nacked_and_other_queues_get_their_copies(harness: ProtocolHarness) -> None:
    publish(publisher(harness), "", "bad")
    wire = publisher(harness)
    assert publish(wire, "amq.fanout", "") == [m.BasicNack]
    assert publish(wire, "", "bad") == [m.BasicNack]
    assert publish(wire, "", "good") == [m.BasicAck]
    assert harness.broker.vhosts["/"].queues["good"].ready == 3


def test_without_confirms_a_publish_to_it_closes_the_channel(harness: ProtocolHarness) -> None:
    publish(publisher(harness), "", "bad")
    assert publish(harness.wire(), "", "bad") == [m.ChannelClose]


@pytest.mark.parametrize(
    "method",
    [
        m.BasicGet("bad"),
        m.BasicConsume("bad"),
        m.QueuePurge("bad"),
        m.QueueDelete("bad"),
        m.QueueDeclare("bad", durable=True),
        m.QueueBind("bad", "amq.direct", "k"),
    ],
    ids=lambda method: method.NAME,
)
def test_its_operations_get_541(harness: ProtocolHarness, method: m.Method) -> None:
    publish(publisher(harness), "", "bad")
    wire = harness.wire()
    wire.put(1, method)
    harness.settle_down()
    close = wire.methods()[-1]
    assert isinstance(close, m.ChannelClose) and close.reply_code == 541


def test_its_consumers_are_cancelled_and_acks_of_what_they_hold_are_passed_over(harness: ProtocolHarness) -> None:
    wire = harness.wire(login=False)
    wire.login(consumer_cancel_notify=True)
    wire.put(1, m.BasicConsume("bad", "b"), m.BasicConsume("good", "g"))
    harness.settle_down()
    wire.frames()
    publish(publisher(harness), "", "bad")
    assert [method.consumer_tag for method in wire.methods() if isinstance(method, m.BasicCancel)] == ["b"]
    wire.put(1, m.BasicAck(0, True))
    assert publish(publisher(harness), "", "good") == [m.BasicAck]
    assert [method.consumer_tag for method in wire.methods() if isinstance(method, m.BasicDeliver)] == ["g"]


def test_a_transaction_that_it_takes_part_in_is_refused(harness: ProtocolHarness) -> None:
    wire = harness.wire()
    wire.put(1, m.TxSelect())
    for name in ("good", "bad"):
        wire.feed(content(1, m.BasicPublish("", name), NO_PROPERTIES, b"tx"))
    publish(publisher(harness), "", "bad")
    wire.put(1, m.TxCommit())
    harness.settle_down()
    close = wire.methods()[-1]
    assert isinstance(close, m.ChannelClose) and close.reply_code == 541
    assert harness.broker.vhosts["/"].queues["good"].ready == 1


def test_a_restart_flags_the_messages_of_a_queue_with_priorities_too(ranked_harness: ProtocolHarness) -> None:
    test_an_alarm_says_so_and_a_restart_brings_it_back_with_its_messages_flagged(ranked_harness)


def test_an_alarm_says_so_and_a_restart_brings_it_back_with_its_messages_flagged(harness: ProtocolHarness) -> None:
    publish(publisher(harness), "", "bad")
    (alarm,) = harness.store.alarms
    assert "queue 'bad'" in alarm and "restart" in alarm.lower()
    again = ProtocolHarness(harness.disk.kill(), harness.clock)
    assert not again.store.alarms
    wire = again.wire()
    for name, flagged in (("bad", True), ("good", False)):
        wire.put(1, m.BasicGet(name, True))
        again.settle_down()
        (got,) = wire.methods()
        assert isinstance(got, m.BasicGetOk) and got.redelivered is flagged
    assert not again.broker.faults.restored


def test_what_settles_messages_that_it_never_wrote_does_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record waited until they would be durable: each sync asked for another one, and no transaction of anybody was committed."""
    monkeypatch.setattr(pieces, "WHOLE_BYTES", 100)
    monkeypatch.setattr(pieces, "SLICE_BYTES", 50)  # so the messages are dead before they are written
    harness = ProtocolHarness()
    wire, other = harness.wire(), harness.wire()
    wire.put(1, m.QueueDeclare("bad", durable=True, arguments=SHORT), m.QueueDeclare("good", durable=True))
    harness.settle_down()
    other.put(1, m.TxSelect())
    harness.settle_down()
    other.frames()
    for _ in range(3):
        wire.feed(content(1, m.BasicPublish("", "bad"), NO_PROPERTIES, bytes(100)))
    harness.turn()
    harness.broker.vhosts["/"].queues["bad"].contain(RuntimeError("a bug"))
    other.feed(content(1, m.BasicPublish("", "good"), NO_PROPERTIES, b"tx"))
    other.feed(content(1, m.BasicPublish("amq.fanout", ""), NO_PROPERTIES, b"tx"))
    other.put(1, m.TxCommit())
    harness.settle_down()
    assert [type(method) for method in other.methods()] == [m.TxCommitOk]
    assert harness.broker.vhosts["/"].queues["good"].ready == 1

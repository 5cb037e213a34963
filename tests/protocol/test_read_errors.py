"""D6: a disk that cannot read the files of one queue takes that queue out of service, whoever meets it; the broker goes on."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.base.errors import StoreError
from kvitto.store.reading import LogReader
from kvitto.store.stream import StreamLog
from kvitto.wire import methods as m
from tests.protocol.raw import NO_PROPERTIES, content
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.support.harness import work_queue


def cannot_read(monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
    """From now on, but for so many reads."""
    left, load = after, LogReader.load

    def failing(self: LogReader, window: Any, offset: int) -> bool:
        nonlocal left
        left -= 1
        if left < 0:
            raise StoreError("cannot read: input/output error")
        return bool(load(self, window, offset))

    monkeypatch.setattr(LogReader, "load", failing)


def filled(harness: ProtocolHarness, count: int, **arguments: Any) -> Wire:
    """Queue "q" with so many messages, which are on disk and no longer in memory."""
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("dead", durable=True))
    harness.settle_down()
    wire.put(1, m.QueueDeclare("q", durable=True, arguments=arguments))
    harness.settle_down()
    wire.put(1, m.ConfirmSelect())
    wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"x") * count)
    harness.settle_down()
    wire.put(2, m.ChannelOpen())
    harness.settle_down()
    wire.frames()
    return wire


def out_of_service(wire: Wire) -> bool:
    """Whether the peer was told so, and nobody else has to suffer for it."""
    harness = wire.harness
    harness.settle_down()
    close = [method for method in wire.methods() if isinstance(method, m.ChannelClose)][-1]
    other = harness.wire()
    other.put(1, m.QueueDeclare("other"))
    harness.settle_down()
    assert isinstance(other.methods()[-1], m.QueueDeclareOk)
    assert harness.broker.vhosts["/"].queues["q"].fault is not None
    return close.reply_code == 541 and "queue 'q'" in close.reply_text


def test_a_declaration_that_looks_for_expired_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, Any] = {"x-message-ttl": 60_000}
    wire = filled(ProtocolHarness(), 3, **arguments)
    cannot_read(monkeypatch)
    wire.put(2, m.QueueDeclare("q", durable=True, arguments=arguments))
    assert out_of_service(wire)


def test_a_reader_by_range(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = filled(ProtocolHarness(), 3)
    cannot_read(monkeypatch)
    wire.put(2, m.LogRead("q", "r", 0, 3))
    assert out_of_service(wire)


def consumed(harness: ProtocolHarness, count: int, **arguments: Any) -> Wire:
    """Channel 2 holds all of them."""
    wire = filled(harness, count, **arguments)
    wire.put(2, m.BasicConsume("q", "c"))
    harness.settle_down()
    wire.put(2, m.BasicCancel("c"))
    harness.settle_down()
    wire.frames()
    return wire


@pytest.mark.parametrize("after", [0, 1, 2])
def test_messages_that_come_back_and_are_looked_at(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """In the first piece of a nack, and in a later one."""
    wire = consumed(ProtocolHarness(), 30_000, **{"x-delivery-limit": 0})
    cannot_read(monkeypatch, after)
    wire.put(2, m.BasicNack(0, True, True))
    assert out_of_service(wire)


@pytest.mark.parametrize("after", [0, 2])
def test_messages_of_a_connection_that_is_lost(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    harness = ProtocolHarness()
    wire = consumed(harness, 30_000, **{"x-delivery-limit": 0})
    cannot_read(monkeypatch, after)
    wire.connection.lost()
    harness.settle_down()
    assert harness.broker.vhosts["/"].queues["q"].fault is not None


def test_the_dead_letters_of_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    wire = consumed(ProtocolHarness(), 3, **arguments)
    wire.put(2, m.TxSelect(), m.BasicNack(0, True, False))
    cannot_read(monkeypatch)
    wire.put(2, m.TxCommit())
    assert out_of_service(wire)


def test_a_reader_of_a_stream_that_begins_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = filled(ProtocolHarness(), 3, **{"x-queue-type": "stream"})

    def failing(self: StreamLog, time_ms: int) -> int:
        raise StoreError("cannot read: input/output error")

    monkeypatch.setattr(StreamLog, "offset_at", failing)
    wire.put(2, m.BasicQos(0, 1), m.BasicConsume("q", "c", arguments={"x-stream-offset": "1h"}))
    assert out_of_service(wire)


def test_what_a_refused_transaction_would_bring_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that refuses when it is full is not as full as if the transaction had been committed."""
    arguments: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    wire = consumed(ProtocolHarness(), 3, **arguments)
    harness = wire.harness
    other = harness.wire()
    other.put(1, m.QueueDeclare("small", arguments={"x-max-length": 1, "x-overflow": "reject-publish"}))
    wire.put(2, m.TxSelect(), m.BasicNack(0, True, False))
    wire.feed(content(2, m.BasicPublish("", "small"), NO_PROPERTIES, b"x"))
    cannot_read(monkeypatch)
    wire.put(2, m.TxCommit())
    assert out_of_service(wire)
    assert work_queue(harness.broker, "small").coming == 0

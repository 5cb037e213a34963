"""D6: a disk that cannot read the files of one queue takes that queue out of service, whoever meets it; the broker goes on."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.base.errors import StoreError
from kvitto.store.reading import LogReader
from kvitto.store.stream import StreamLog
from kvitto.wire import methods as m
from tests.protocol.raw import NO_PROPERTIES, content
from tests.protocol.sansio import House, Wire
from tests.support.rig import work_queue


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


def filled(house: House, count: int, **arguments: Any) -> Wire:
    """Queue "q" with so many messages, which are on disk and no longer in memory."""
    wire = house.wire()
    wire.put(1, m.QueueDeclare("dead", durable=True))
    house.settle()
    wire.put(1, m.QueueDeclare("q", durable=True, arguments=arguments))
    house.settle()
    wire.put(1, m.ConfirmSelect())
    wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"x") * count)
    house.settle()
    wire.put(2, m.ChannelOpen())
    house.settle()
    wire.frames()
    return wire


def out_of_service(wire: Wire) -> bool:
    """Whether the peer was told so, and nobody else has to suffer for it."""
    house = wire.house
    house.settle()
    close = [method for method in wire.methods() if isinstance(method, m.ChannelClose)][-1]
    other = house.wire()
    other.put(1, m.QueueDeclare("other"))
    house.settle()
    assert isinstance(other.methods()[-1], m.QueueDeclareOk)
    assert house.broker.vhosts["/"].queues["q"].fault is not None
    return close.reply_code == 541 and "queue 'q'" in close.reply_text


def test_a_declaration_that_looks_for_expired_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, Any] = {"x-message-ttl": 60_000}
    wire = filled(House(), 3, **arguments)
    cannot_read(monkeypatch)
    wire.put(2, m.QueueDeclare("q", durable=True, arguments=arguments))
    assert out_of_service(wire)


def test_a_reader_by_range(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = filled(House(), 3)
    cannot_read(monkeypatch)
    wire.put(2, m.LogRead("q", "r", 0, 3))
    assert out_of_service(wire)


def consumed(house: House, count: int, **arguments: Any) -> Wire:
    """Channel 2 holds all of them."""
    wire = filled(house, count, **arguments)
    wire.put(2, m.BasicConsume("q", "c"))
    house.settle()
    wire.put(2, m.BasicCancel("c"))
    house.settle()
    wire.frames()
    return wire


@pytest.mark.parametrize("after", [0, 1, 2])
def test_messages_that_come_back_and_are_looked_at(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """In the first piece of a nack, and in a later one."""
    wire = consumed(House(), 30_000, **{"x-delivery-limit": 0})
    cannot_read(monkeypatch, after)
    wire.put(2, m.BasicNack(0, True, True))
    assert out_of_service(wire)


@pytest.mark.parametrize("after", [0, 2])
def test_messages_of_a_connection_that_is_lost(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    house = House()
    wire = consumed(house, 30_000, **{"x-delivery-limit": 0})
    cannot_read(monkeypatch, after)
    wire.connection.lost()
    house.settle()
    assert house.broker.vhosts["/"].queues["q"].fault is not None


def test_the_dead_letters_of_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    wire = consumed(House(), 3, **arguments)
    wire.put(2, m.TxSelect(), m.BasicNack(0, True, False))
    cannot_read(monkeypatch)
    wire.put(2, m.TxCommit())
    assert out_of_service(wire)


def test_a_reader_of_a_stream_that_begins_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = filled(House(), 3, **{"x-queue-type": "stream"})

    def failing(self: StreamLog, time_ms: int) -> int:
        raise StoreError("cannot read: input/output error")

    monkeypatch.setattr(StreamLog, "offset_at", failing)
    wire.put(2, m.BasicQos(0, 1), m.BasicConsume("q", "c", arguments={"x-stream-offset": "1h"}))
    assert out_of_service(wire)


def test_what_a_refused_transaction_would_bring_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that refuses when it is full is not as full as if the transaction had been committed."""
    arguments: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    wire = consumed(House(), 3, **arguments)
    house = wire.house
    other = house.wire()
    other.put(1, m.QueueDeclare("small", arguments={"x-max-length": 1, "x-overflow": "reject-publish"}))
    wire.put(2, m.TxSelect(), m.BasicNack(0, True, False))
    wire.feed(content(2, m.BasicPublish("", "small"), NO_PROPERTIES, b"x"))
    cannot_read(monkeypatch)
    wire.put(2, m.TxCommit())
    assert out_of_service(wire)
    assert work_queue(house.broker, "small").coming == 0

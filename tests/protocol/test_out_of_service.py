"""D6: a queue in whose work something unexpected has been raised is out of service, and the others are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvitto.wire import methods as m
from tests.protocol.raw import NO_PROPERTIES, content
from tests.protocol.sansio import House, Wire


@pytest.fixture
def house() -> Iterator[House]:
    """Queue "bad", which cannot be written from now on, and "good"; each has one message already, and both are bound to amq.fanout."""
    yield from failing_house({})


@pytest.fixture
def ranked_house() -> Iterator[House]:
    """The same with queues that have priorities."""
    yield from failing_house({"x-max-priority": 3})


def failing_house(arguments: dict[str, Any]) -> Iterator[House]:
    house = House()
    wire = house.wire()
    for name in ("bad", "good"):
        declare = m.QueueDeclare(name, durable=True, arguments=arguments)
        wire.put(1, declare, m.QueueBind(name, "amq.fanout", ""))
        house.settle()
        wire.feed(content(1, m.BasicPublish("", name), NO_PROPERTIES, b"before"))
    house.settle()
    bad = house.broker.vhosts["/"].queues["bad"].log

    def failing(batch: Any) -> None:
        raise RuntimeError("a bug")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bad, "write", failing)
        yield house


def publisher(house: House) -> Wire:
    wire = house.wire()
    wire.put(1, m.ConfirmSelect())
    house.settle()
    wire.frames()
    return wire


def publish(wire: Wire, exchange: str, key: str) -> list[type]:
    """What the publisher is told."""
    wire.feed(content(1, m.BasicPublish(exchange, key), NO_PROPERTIES, b"x"))
    wire.house.settle()
    return [type(method) for method in wire.methods()]


def test_what_was_published_to_it_in_that_turn_is_not_confirmed_and_the_connection_lives(house: House) -> None:
    first, other = publisher(house), publisher(house)
    first.feed(content(1, m.BasicPublish("", "bad"), NO_PROPERTIES, b"x"))
    other.feed(content(1, m.BasicPublish("", "good"), NO_PROPERTIES, b"x"))
    house.settle()
    close = first.methods()[-1]
    assert isinstance(close, m.ChannelClose) and close.reply_code == 541 and "queue 'bad'" in close.reply_text
    assert not first.closed
    assert [type(method) for method in other.methods()] == [m.BasicAck]


def test_later_publishes_are_nacked_and_other_queues_get_their_copies(house: House) -> None:
    publish(publisher(house), "", "bad")
    wire = publisher(house)
    assert publish(wire, "amq.fanout", "") == [m.BasicNack]
    assert publish(wire, "", "bad") == [m.BasicNack]
    assert publish(wire, "", "good") == [m.BasicAck]
    assert house.broker.vhosts["/"].queues["good"].ready == 3


def test_without_confirms_a_publish_to_it_closes_the_channel(house: House) -> None:
    publish(publisher(house), "", "bad")
    assert publish(house.wire(), "", "bad") == [m.ChannelClose]


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
def test_its_operations_get_541(house: House, method: m.Method) -> None:
    publish(publisher(house), "", "bad")
    wire = house.wire()
    wire.put(1, method)
    house.settle()
    close = wire.methods()[-1]
    assert isinstance(close, m.ChannelClose) and close.reply_code == 541


def test_its_consumers_are_cancelled_and_acks_of_what_they_hold_are_passed_over(house: House) -> None:
    wire = house.wire(login=False)
    wire.login(consumer_cancel_notify=True)
    wire.put(1, m.BasicConsume("bad", "b"), m.BasicConsume("good", "g"))
    house.settle()
    wire.frames()
    publish(publisher(house), "", "bad")
    assert [method.consumer_tag for method in wire.methods() if isinstance(method, m.BasicCancel)] == ["b"]
    wire.put(1, m.BasicAck(0, True))
    assert publish(publisher(house), "", "good") == [m.BasicAck]
    assert [method.consumer_tag for method in wire.methods() if isinstance(method, m.BasicDeliver)] == ["g"]


def test_a_transaction_that_it_takes_part_in_is_refused(house: House) -> None:
    wire = house.wire()
    wire.put(1, m.TxSelect())
    for name in ("good", "bad"):
        wire.feed(content(1, m.BasicPublish("", name), NO_PROPERTIES, b"tx"))
    publish(publisher(house), "", "bad")
    wire.put(1, m.TxCommit())
    house.settle()
    close = wire.methods()[-1]
    assert isinstance(close, m.ChannelClose) and close.reply_code == 541
    assert house.broker.vhosts["/"].queues["good"].ready == 1


def test_a_restart_flags_the_messages_of_a_queue_with_priorities_too(ranked_house: House) -> None:
    test_an_alarm_says_so_and_a_restart_brings_it_back_with_its_messages_flagged(ranked_house)


def test_an_alarm_says_so_and_a_restart_brings_it_back_with_its_messages_flagged(house: House) -> None:
    publish(publisher(house), "", "bad")
    (alarm,) = house.store.alarms
    assert "queue 'bad'" in alarm and "restart" in alarm.lower()
    again = House(house.disk.kill(), house.clock)
    assert not again.store.alarms
    wire = again.wire()
    for name, flagged in (("bad", True), ("good", False)):
        wire.put(1, m.BasicGet(name, True))
        again.settle()
        (got,) = wire.methods()
        assert isinstance(got, m.BasicGetOk) and got.redelivered is flagged
    assert not again.broker.faults.restored

"""basic.get that cannot be answered at once: what fails in a later turn closes its channel, as in the first one."""

from __future__ import annotations

from kvitto.wire import methods as m
from kvitto.wire.properties import Properties
from tests.protocol.raw import content
from tests.protocol.sansio import House, Wire

QUEUE = "q"
FRAME_MAX = 4096


def publish(wire: Wire, count: int, properties: Properties) -> None:
    wire.feed(content(1, m.BasicPublish("", QUEUE), properties.encode(), b"x") * count)


def test_a_message_that_does_not_fit_behind_many_expired_ones_closes_the_channel_only() -> None:
    house = House()
    publisher, getter = house.wire(), house.wire(login=False)
    getter.login(frame_max=FRAME_MAX)
    publisher.put(1, m.QueueDeclare(QUEUE))
    house.settle()
    publish(publisher, 1, Properties())
    publish(publisher, 25_000, Properties(expiration="1"))
    publish(publisher, 1, Properties(headers={"k": "x" * 2 * FRAME_MAX}))
    house.settle()
    house.clock.advance(1000)
    getter.put(1, m.BasicGet(QUEUE), m.BasicGet(QUEUE))
    house.settle()
    methods = getter.methods()
    assert isinstance(methods[0], m.BasicGetOk)
    close = methods[-1]
    assert isinstance(close, m.ChannelClose) and close.reply_code == 406
    assert (close.class_id, close.method_id) == (60, 70)
    assert not getter.closed
    publisher.put(1, m.BasicGet(QUEUE))
    house.settle()
    assert isinstance(publisher.methods()[-1], m.BasicGetOk)

"""basic.get that cannot be answered at once: what fails in a later turn closes its channel, as in the first one."""

from __future__ import annotations

from kvitto.wire import methods as m
from kvitto.wire.properties import Properties
from tests.protocol.raw import content
from tests.protocol.sansio import ProtocolHarness, Wire

QUEUE = "q"
FRAME_MAX = 4096


def publish(wire: Wire, count: int, properties: Properties) -> None:
    wire.feed(content(1, m.BasicPublish("", QUEUE), properties.encode(), b"x") * count)


def test_a_message_that_does_not_fit_behind_many_expired_ones_closes_the_channel_only() -> None:
    harness = ProtocolHarness()
    publisher, getter = harness.wire(), harness.wire(login=False)
    getter.login(frame_max=FRAME_MAX)
    publisher.put(1, m.QueueDeclare(QUEUE))
    harness.settle_down()
    publish(publisher, 1, Properties())
    publish(publisher, 25_000, Properties(expiration="1"))
    publish(publisher, 1, Properties(headers={"k": "x" * 2 * FRAME_MAX}))
    harness.settle_down()
    harness.clock.advance(1000)
    getter.put(1, m.BasicGet(QUEUE), m.BasicGet(QUEUE))
    harness.settle_down()
    methods = getter.methods()
    assert isinstance(methods[0], m.BasicGetOk)
    close = methods[-1]
    assert isinstance(close, m.ChannelClose) and close.reply_code == 406
    assert (close.class_id, close.method_id) == (60, 70)
    assert not getter.closed
    publisher.put(1, m.BasicGet(QUEUE))
    harness.settle_down()
    assert isinstance(publisher.methods()[-1], m.BasicGetOk)

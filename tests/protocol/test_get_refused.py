"""A basic.get whose message does not fit into the connection's frames is refused, and changes nothing of the gets before it."""

from __future__ import annotations

from kvitto.wire import methods as m
from kvitto.wire.properties import Properties
from tests.protocol.raw import content
from tests.protocol.sansio import ProtocolHarness

LARGE = Properties(headers={"h": "x" * 8000}).encode()


def test_a_get_before_a_refused_one_is_answered_and_its_message_goes_back_with_the_channel() -> None:
    """Both come in one read: the answer to the first has not left the buffer when the second is refused."""
    harness = ProtocolHarness()
    publisher, getter = harness.wire(), harness.wire(login=False)
    publisher.put(1, m.QueueDeclare("q", durable=True))
    harness.settle_down()
    publisher.feed(content(1, m.BasicPublish("", "q"), b"\0\0", b"small"))
    publisher.feed(content(1, m.BasicPublish("", "q"), LARGE, b"large"))
    harness.settle_down()
    getter.login(frame_max=4096)
    getter.put(1, m.BasicGet("q"), m.BasicGet("q"))
    harness.settle_down()
    kinds = [type(method) for method in getter.methods()]
    assert kinds == [m.BasicGetOk, m.ChannelClose]
    queue = harness.broker.vhosts["/"].queues["q"]
    assert (queue.unacked, queue.ready) == (0, 2)

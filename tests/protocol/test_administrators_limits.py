"""Limits that an administrator sets for a virtual host or a user, with RabbitMQ's codes and texts."""

from __future__ import annotations

from kvitto.wire import methods as m
from kvitto.wire.methods import Method
from kvitto.wire.spec import PROTOCOL_HEADER
from tests.protocol.sansio import ProtocolHarness, Wire


def closes(wire: Wire, harness: ProtocolHarness) -> list[Method]:
    harness.settle_down()
    return [x for x in wire.methods() if isinstance(x, m.ChannelClose | m.ConnectionClose)]


def opening(harness: ProtocolHarness) -> list[Method]:
    """What a further connection is told from its Open on."""
    wire = harness.wire(login=False)
    wire.feed(PROTOCOL_HEADER)
    wire.put(0, m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US"), m.ConnectionTuneOk(2047, 131072, 0))
    wire.put(0, m.ConnectionOpen("/"))
    return closes(wire, harness)


def test_queues_of_a_vhost() -> None:
    harness = ProtocolHarness()
    parameters = harness.broker.parameters
    parameters.set_limit("/", "max-queues", 2)
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("a"), m.QueueDeclare("b", exclusive=True), m.QueueDeclare("a"))
    assert not closes(wire, harness)
    wire.put(1, m.QueueDeclare("c"))
    (close,) = closes(wire, harness)
    assert isinstance(close, m.ChannelClose) and (close.reply_code, close.class_id, close.method_id) == (406, 50, 10)
    assert close.reply_text == (
        "PRECONDITION_FAILED - cannot declare queue 'c': queue limit in vhost '/' (2) is reached"
    )
    assert harness.broker.refused["queues"] == 1
    parameters.set_limit("/", "max-queues", -1)
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("c"))
    assert not closes(wire, harness)


def test_connections_of_a_vhost() -> None:
    harness = ProtocolHarness()
    harness.broker.parameters.set_limit("/", "max-connections", 1)
    first = harness.wire()
    (close,) = opening(harness)
    assert isinstance(close, m.ConnectionClose) and (close.reply_code, close.class_id, close.method_id) == (530, 10, 40)
    assert close.reply_text == (
        "NOT_ALLOWED - access to vhost '/' refused for user 'guest': connection limit (1) is reached"
    )
    first.connection.lost()
    harness.settle_down()
    assert not opening(harness)


def test_connections_of_a_user() -> None:
    harness = ProtocolHarness()
    harness.broker.users.set_limits("guest", {"max-connections": 1})
    harness.wire()
    (close,) = opening(harness)
    assert isinstance(close, m.ConnectionClose) and close.reply_code == 530
    assert close.reply_text == "NOT_ALLOWED - connection refused for user 'guest': user connection limit (1) is reached"


def test_channels_of_a_user_on_all_connections() -> None:
    harness = ProtocolHarness()
    harness.broker.users.set_limits("guest", {"max-channels": 2})
    _, second = harness.wire(), harness.wire()  # each has opened channel 1
    second.put(2, m.ChannelOpen())
    (close,) = closes(second, harness)
    assert isinstance(close, m.ConnectionClose) and close.reply_code == 530
    assert close.reply_text == (
        "NOT_ALLOWED - number of channels opened for user 'guest' has reached the maximum allowed user limit of (2)"
    )

"""D4, C6: `x-on-alarm=nack`: in place of being blocked, a publisher that takes confirms hears no, and goes on."""

from __future__ import annotations

from typing import Any

import kvitto
from kvitto.base.errors import CONNECTION_FORCED, ConnectionError_
from kvitto.wire import methods as m
from kvitto.wire.methods import Method
from kvitto.wire.properties import Properties
from tests.http.api import Http
from tests.protocol.raw import NO_PROPERTIES, Raw, content
from tests.protocol.sansio import BLOCKED, ProtocolHarness, Wire
from tests.support.wait import wait_until

NACK: dict[str, Any] = {"x-on-alarm": "nack"}


def publisher(harness: ProtocolHarness, confirm: bool = True) -> Wire:
    wire = Wire(harness)
    wire.login(**BLOCKED)
    more = [m.ConfirmSelect()] if confirm else []
    wire.put(1, m.QueueDeclare("polite", durable=True), m.QueueDeclare("frank", durable=True, arguments=NACK), *more)
    harness.settle_down()
    wire.frames()
    return wire


def publish(wire: Wire, key: str, exchange: str = "", body: bytes = b"x", props: bytes = NO_PROPERTIES) -> None:
    wire.feed(content(1, m.BasicPublish(exchange, key), props, body))


def heard(wire: Wire) -> list[Method]:
    wire.harness.settle_down()
    return wire.methods()


def ready(harness: ProtocolHarness) -> dict[str, int]:
    return {name: queue.ready for name, queue in harness.broker.vhosts["/"].queues.items()}


def test_it_is_nacked_and_nobody_is_blocked() -> None:
    harness = ProtocolHarness()
    wire = publisher(harness)
    publish(wire, "frank")
    assert heard(wire) == [m.BasicAck(1, False)]
    harness.hub.alarms.block("no room")
    for _ in range(2):
        publish(wire, "frank")
    wire.feed(content(1, m.BasicPublish("", "frank"), NO_PROPERTIES, bytes(300_000)))  # in several frames
    assert heard(wire) == [m.BasicNack(n, False, False) for n in (2, 3, 4)]
    assert wire.reading and ready(harness)["frank"] == 1
    harness.hub.alarms.block(None)
    publish(wire, "frank")
    assert heard(wire) == [m.BasicAck(5, False)]
    assert ready(harness)["frank"] == 2


def test_without_confirms_a_publisher_is_blocked() -> None:
    """Nobody would hear the no: nothing is dropped."""
    harness = ProtocolHarness()
    wire = publisher(harness, confirm=False)
    harness.hub.alarms.block("no room")
    wire.feed(content(1, m.BasicPublish("", "frank"), NO_PROPERTIES, b"x") * 2)
    assert heard(wire) == [m.ConnectionBlocked("no room")]
    assert not wire.reading
    harness.hub.alarms.block(None)
    assert heard(wire) == [m.ConnectionUnblocked()] and ready(harness)["frank"] == 2


def test_nothing_is_said_behind_a_close() -> None:
    """W6: an alarm that ends while a blocked connection is being closed."""
    harness = ProtocolHarness()
    wire = publisher(harness, confirm=False)
    harness.hub.alarms.block("no room")
    publish(wire, "frank")
    heard(wire)
    wire.connection.close(ConnectionError_(CONNECTION_FORCED, "shutdown"))
    harness.hub.alarms.block(None)
    assert [type(method) for method in heard(wire)] == [m.ConnectionClose]


def test_a_transaction_is_blocked() -> None:
    """T5: a commit takes all or nothing, and no part of it is nacked."""
    harness = ProtocolHarness()
    wire = publisher(harness, confirm=False)
    wire.put(1, m.TxSelect())
    harness.hub.alarms.block("no room")
    wire.feed(content(1, m.BasicPublish("", "frank"), NO_PROPERTIES, b"x"))
    heard(wire)
    assert not wire.reading
    harness.hub.alarms.block(None)
    wire.put(1, m.TxCommit())
    assert m.TxCommitOk() in heard(wire) and ready(harness)["frank"] == 1


def test_all_queues_of_a_message_must_say_so() -> None:
    """One that does not gets its copy, as before: then its publisher is blocked. No message is taken by half."""
    harness = ProtocolHarness()
    wire = publisher(harness)
    wire.put(1, *(m.QueueBind(name, "amq.fanout") for name in ("polite", "frank")))
    heard(wire)
    harness.hub.alarms.block("no room")
    wire.feed(content(1, m.BasicPublish("amq.fanout", "k"), NO_PROPERTIES, b"x") * 2)
    assert heard(wire) == [m.ConnectionBlocked("no room"), m.BasicAck(1, False)]
    assert not wire.reading and ready(harness) == {"polite": 1, "frank": 1}
    harness.hub.alarms.block(None)
    assert heard(wire) == [m.ConnectionUnblocked(), m.BasicAck(2, False)]


def test_copies_to_other_queues_are_refused_with_it() -> None:
    """CC: never an ack for what was dropped."""
    harness = ProtocolHarness()
    wire = publisher(harness)
    harness.hub.alarms.block("no room")
    publish(wire, "frank", props=Properties(headers={"CC": ["polite"]}).encode())
    assert heard(wire) == [m.BasicNack(1, False, False)]
    assert ready(harness) == {"polite": 0, "frank": 0}


def test_mistakes_are_what_they_were() -> None:
    """W5: a missing exchange, an unroutable message."""
    harness = ProtocolHarness()
    wire = publisher(harness)
    harness.hub.alarms.block("no room")
    publish(wire, "k", exchange="missing")
    [closed] = [x for x in heard(wire) if isinstance(x, m.ChannelClose)]
    assert closed.reply_code == 404


def test_an_alarm_between_the_frames_of_a_message() -> None:
    """It counts when the message is whole: begun before the alarm it is refused, begun during it is taken."""
    harness = ProtocolHarness()
    wire = publisher(harness)
    whole = content(1, m.BasicPublish("", "frank"), NO_PROPERTIES, b"0123456789")
    for alarm, answer in (("no room", m.BasicNack(1, False, False)), (None, m.BasicAck(2, False))):
        wire.feed(whole[:-5])
        harness.turn()
        harness.hub.alarms.block(alarm)
        wire.feed(whole[-5:])
        assert heard(wire) == [answer]


def test_those_refused_while_the_disk_is_full_take_no_memory() -> None:
    """W8, C5: until there is room nothing is confirmed, and what was refused is remembered as runs of numbers."""
    harness = ProtocolHarness()
    wire = publisher(harness)
    harness.disk.full = True
    publish(wire, "frank")
    assert [type(method) for method in heard(wire)] == [m.ConnectionBlocked]
    for _ in range(3000):
        publish(wire, "frank")
    assert heard(wire) == [m.BasicNack(n, False, False) for n in range(2, 3002)]
    nacked = wire.connection.channels[1].nacked
    assert nacked is not None and list(nacked) == [(2, 3000)]
    harness.disk.full = False
    harness.broker.retry_writes()
    publish(wire, "frank")
    assert heard(wire) == [m.ConnectionUnblocked(), m.BasicAck(3002, True)] and not nacked


def test_who_waits_for_a_confirm_that_found_no_room_is_told() -> None:
    """C, D4: silence and a blocked notice. Who publishes message by message heard nothing: its next publish would have said it."""
    harness = ProtocolHarness()
    waiting, idle, no_confirms, deaf = (publisher(harness, confirm=n != 2) for n in range(4))
    deaf.connection.can_block = False
    publish(idle, "frank")
    assert heard(idle) == [m.BasicAck(1, False)]
    harness.disk.full = True
    for wire in (waiting, no_confirms, deaf):
        publish(wire, "polite")
    [told] = heard(waiting)
    assert isinstance(told, m.ConnectionBlocked)
    assert told.reason.startswith("low on disk: no room for messages with 0.0 MiB free, 16 MiB are kept free for acks")
    assert waiting.reading and not idle.methods() and not no_confirms.methods() and not deaf.methods()
    publish(waiting, "polite")
    assert not waiting.reading and heard(waiting) == []
    harness.disk.full = False
    harness.broker.retry_writes()
    assert heard(waiting) == [m.ConnectionUnblocked(), m.BasicAck(2, True)] and waiting.reading
    assert heard(deaf) == [m.BasicAck(1, False)] and not idle.methods()


def test_a_message_that_was_begun_before_the_alarm_blocks_its_publisher() -> None:
    """D4: it was taken, was not written, and nobody heard of it."""
    harness = ProtocolHarness()
    wire = publisher(harness)
    whole = content(1, m.BasicPublish("", "polite"), NO_PROPERTIES, b"0123456789")
    wire.feed(whole[:-5])
    harness.hub.alarms.block("no room")
    wire.feed(whole[-5:])
    assert not wire.reading and heard(wire) == [m.ConnectionBlocked("no room"), m.BasicAck(1, False)]
    harness.hub.alarms.block(None)
    assert wire.reading and heard(wire) == [m.ConnectionUnblocked()]


def test_a_policy_says_it_for_queues_that_are_there() -> None:
    """A real broker short of memory: who is blocked goes on, and hears no."""
    with kvitto.Broker(http_port=0) as broker, Raw(broker.port, capabilities={"connection.blocked": True}) as raw:
        assert broker._server is not None
        marks, api = broker._server._watermarks, Http(broker.http_url)
        raw.channel(1)
        raw.declare("q", durable=True)
        raw.call(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        policy = {"pattern": "", "definition": {"on-alarm": "nack"}, "apply-to": "queues"}
        assert api.put("/api/policies/%2F/frank", policy) == 201
        before, marks._memory_limit = marks._memory_limit, 1
        wait_until(lambda: marks.memory_low, what="an alarm")
        raw.publish(1, "", "q", b"x")
        assert raw.expect(m.BasicNack).delivery_tag == 1
        assert api.get("/api/connections")[0]["state"] == "running"
        marks._memory_limit = before
        wait_until(lambda: not marks.memory_low, what="its end")
        raw.publish(1, "", "q", b"y")
        assert raw.expect(m.BasicAck).delivery_tag == 2

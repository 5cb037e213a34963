"""Single active consumer (x-single-active-consumer, Q and A12 of the contract), on the wire: what RabbitMQ 3.10 does too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest

from kvitto.wire import methods as m
from tests.protocol.raw import NO_PROPERTIES, Raw, content
from tests.protocol.sansio import ProtocolHarness, Wire

More = Callable[..., Raw]
BODIES = [b"%d" % number for number in range(9)]
SINGLE: dict[str, Any] = {"x-single-active-consumer": True}


@pytest.fixture
def queue(raw: Raw, name: str) -> str:
    return raw.declare(name, durable=True, arguments=SINGLE)


def consuming(more: More, queue: str, tag: str, prefetch: int = 0, **options: Any) -> Raw:
    """A connection of its own with a consumer."""
    client = more()
    client.call(1, m.BasicQos(0, prefetch), m.BasicQosOk)
    client.consume(queue, consumer_tag=tag, **options)
    return client


def got(client: Raw, count: int) -> list[tuple[str, bytes, bool]]:
    """(consumer's tag, body, redelivered) of the next deliveries."""
    found = [client.message() for _ in range(count)]
    return [(each.method.consumer_tag, each.body, each.method.redelivered) for each in found]


def nothing_came(*clients: Raw) -> None:
    for client in clients:
        client.call(1, m.BasicQos(0, 0), m.BasicQosOk)


def test_the_first_consumer_is_served_alone(raw: Raw, more: More, queue: str) -> None:
    """Q, A12: also while it has no credit; its acks bring more."""
    first, second = consuming(more, queue, "first", 2), consuming(more, queue, "second")
    raw.put_in(queue, *BODIES[:5])
    assert got(first, 2) == [("first", b"0", False), ("first", b"1", False)]
    nothing_came(second)
    first.put(1, m.BasicAck(2, True))
    assert got(first, 2) == [("first", b"2", False), ("first", b"3", False)]
    nothing_came(second)
    assert raw.call(1, m.QueueDeclare(queue, passive=True), m.QueueDeclareOk).consumer_count == 2


@pytest.mark.parametrize("end", ["channel", "connection"])
def test_the_next_one_begins_with_what_the_first_had_not_settled(raw: Raw, more: More, queue: str, end: str) -> None:
    """Q, A5, A6: requeued messages come first, at their place, flagged; then the rest in order."""
    first, second, third = (consuming(more, queue, tag, n) for tag, n in (("first", 3), ("second", 0), ("third", 0)))
    raw.put_in(queue, *BODIES[:5])
    got(first, 3)
    first.put(1, m.BasicAck(2))
    got(first, 1)
    if end == "channel":
        first.call(1, m.ChannelClose(200, "bye"), m.ChannelCloseOk)
    else:
        first.reset()
    expected = [("second", b"0", True), ("second", b"2", True), ("second", b"3", True), ("second", b"4", False)]
    assert got(second, 4) == expected
    nothing_came(third)


def test_a_cancelled_one_keeps_what_it_has_until_it_settles_it(raw: Raw, more: More, queue: str) -> None:
    """Q, A5: cancelling ends its turn; what it gives back goes to the next, before what was behind it."""
    first = consuming(more, queue, "first", 2)
    second, third = consuming(more, queue, "second"), consuming(more, queue, "third")
    raw.put_in(queue, *BODIES[:3])
    got(first, 2)
    first.call(1, m.BasicCancel("first"), m.BasicCancelOk)
    first.put(1, m.BasicAck(1), m.BasicNack(2, False, True))
    assert sorted(got(second, 2)) == [("second", b"1", True), ("second", b"2", False)]
    raw.put_in(queue, b"3")
    assert got(second, 1) == [("second", b"3", False)]
    nothing_came(first, third)


def test_who_comes_back_is_the_last(raw: Raw, more: More, queue: str) -> None:
    """Q: the order is that of registration; also of several consumers on one channel."""
    raw.put_in(queue, b"x")
    clients = [consuming(more, queue, "a"), consuming(more, queue, "b")]
    assert got(clients[0], 1) == [("a", b"x", False)]
    clients[0].consume(queue, consumer_tag="c")
    clients[0].call(1, m.BasicCancel("a"), m.BasicCancelOk)
    clients[0].consume(queue, consumer_tag="a")
    clients[0].put(1, m.BasicNack(1, False, True))
    assert got(clients[1], 1) == [("b", b"x", True)]
    clients[1].drop()
    assert got(clients[0], 1) == [("c", b"x", True)]
    clients[0].call(1, m.BasicCancel("c"), m.BasicCancelOk)
    clients[0].put(1, m.BasicNack(2, False, True))
    assert got(clients[0], 1) == [("a", b"x", True)]


def test_priority_decides_who_is_next_and_takes_nothing_over(raw: Raw, more: More, queue: str) -> None:
    """A12, Q: a higher x-priority comes first among those that wait."""
    raw.put_in(queue, b"x")
    clients = {}
    for tag, priority in (("none", None), ("low", -1), ("zero", 0), ("high", 3), ("higher", 4), ("high too", 3)):
        arguments = {} if priority is None else {"x-priority": priority}
        clients[tag] = consuming(more, queue, tag, arguments=arguments)
    assert got(clients["none"], 1) == [("none", b"x", False)]
    clients["none"].drop()
    for tag in ("higher", "high", "high too", "zero", "low"):
        assert got(clients[tag], 1) == [(tag, b"x", True)]
        clients[tag].drop()


def test_without_acks(raw: Raw, more: More, queue: str) -> None:
    """Q, A2."""
    first, second = consuming(more, queue, "first", no_ack=True), consuming(more, queue, "second", no_ack=True)
    raw.put_in(queue, *BODIES[:3])
    assert got(first, 3) == [("first", body, False) for body in BODIES[:3]]
    first.call(1, m.BasicCancel("first"), m.BasicCancelOk)
    raw.put_in(queue, b"3")
    assert got(second, 1) == [("second", b"3", False)]


def test_get_takes_what_is_ready(raw: Raw, more: More, queue: str) -> None:
    """A14, Q: it is no consumer."""
    consuming(more, queue, "first", 1)
    raw.put_in(queue, *BODIES[:2])
    found = raw.get(queue)
    assert found is not None and (found.body, found.method.redelivered) == (b"1", False)
    assert raw.get(queue) is None


def test_an_exclusive_consumer_is_refused(raw: Raw, more: More, queue: str) -> None:
    """Q: also where there is no other consumer."""
    for _ in range(2):
        raw.put(1, m.BasicConsume(queue, exclusive=True))
        assert f"queue '{queue}' in vhost '/' in exclusive use" in raw.channel_error(403).reply_text
        raw.channel(1)
        consuming(more, queue, "")


def test_an_auto_delete_queue_goes_with_its_last_consumer(raw: Raw, more: More, name: str) -> None:
    """Q: not with the active one."""
    raw.declare(name, auto_delete=True, arguments=SINGLE)
    first, second = consuming(more, name, "first"), consuming(more, name, "second")
    first.call(1, m.BasicCancel("first"), m.BasicCancelOk)
    raw.put_in(name, b"x")
    assert got(second, 1) == [("second", b"x", False)]
    second.call(1, m.BasicCancel("second"), m.BasicCancelOk)
    raw.put(1, m.QueueDeclare(name, passive=True))
    raw.channel_error(404)


def test_those_that_wait_are_told_of_the_queues_end(raw: Raw, more: More, queue: str) -> None:
    """A14."""
    clients = [consuming(more, queue, "first"), consuming(more, queue, "second")]
    raw.call(1, m.QueueDelete(queue), m.QueueDeleteOk)
    assert [client.expect(m.BasicCancel).consumer_tag for client in clients] == ["first", "second"]


@pytest.fixture
def harness() -> ProtocolHarness:
    return ProtocolHarness()


def filled(harness: ProtocolHarness) -> Wire:
    """A connection, and queue "q" with three messages that are durable."""
    wire = harness.wire()
    wire.put(1, m.ConfirmSelect(), m.QueueDeclare("q", durable=True, arguments=SINGLE))
    harness.settle_down()
    for body in BODIES[:3]:
        wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, body))
    harness.settle_down()
    return wire


def test_a_queue_may_be_deleted_while_messages_wait(harness: ProtocolHarness) -> None:
    """Q: in the turn in which they came."""
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q", arguments=SINGLE), m.BasicQos(0, 1), m.BasicConsume("q", "a"))
    wire.put(1, m.BasicConsume("q", "b"))
    for body in BODIES[:3]:
        wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, body))
    wire.put(1, m.QueueDelete("q"))
    harness.settle_down()
    assert isinstance(wire.methods()[-1], m.QueueDeleteOk)


def test_it_survives_a_kill(harness: ProtocolHarness) -> None:
    """Q, D2."""
    filled(harness)
    harness = ProtocolHarness(harness.disk.kill())
    wire = harness.wire()
    wire.put(1, m.BasicQos(0, 1), m.BasicConsume("q", "a"), m.BasicConsume("q", "b"))
    harness.settle_down()
    assert [each.consumer_tag for each in wire.methods() if isinstance(each, m.BasicDeliver)] == ["a"]


def test_a_group_reads_by_range_when_nobody_consumes(harness: ProtocolHarness) -> None:
    """Q, class log: those that wait are consumers; a group keeps all of them out, reads and settles as from any queue."""
    wire = filled(harness)
    wire.put(1, m.BasicConsume("q", "a", no_ack=True), m.BasicConsume("q", "b"), m.BasicCancel("a"))
    wire.put(1, m.LogAttach("q", "readers"))
    harness.settle_down()
    refusal = wire.methods()[-1]
    assert isinstance(refusal, m.ChannelClose) and refusal.reply_code == 403
    wire.put(1, m.ChannelCloseOk(), m.ChannelOpen(), m.LogAttach("q", "readers"), m.LogRead("q", "r", 0, 9))
    wire.put(2, m.ChannelOpen(), m.BasicConsume("q", "c"))
    harness.settle_down()
    methods = wire.methods()
    assert [each.delivery_tag for each in methods if isinstance(each, m.BasicDeliver)] == [1, 2, 3]
    (refusal,) = [each for each in methods if isinstance(each, m.ChannelClose)]
    assert refusal.reply_code == 403 and "read by range" in refusal.reply_text
    wire.put(1, m.LogSettle("q", "readers", "", 2), m.LogDetach("q", "readers"))
    wire.put(1, m.BasicConsume("q", "d"))
    harness.settle_down()
    assert [each.consumer_tag for each in wire.methods() if isinstance(each, m.BasicDeliver)] == ["d"]


def test_pika(port: int, name: str) -> None:
    """Q: two workers, the first goes in the middle of its work."""
    parameters = pika.ConnectionParameters("127.0.0.1", port)
    with pika.BlockingConnection(parameters) as connection:
        ours, theirs = connection.channel(), connection.channel()
        ours.queue_declare(name, durable=True, arguments=SINGLE)
        for body in BODIES[:3]:
            ours.basic_publish("", name, body)
        worked = []
        for method, _, body in ours.consume(name, inactivity_timeout=20):
            worked.append(body)
            if body == BODIES[1]:
                break
            ours.basic_ack(method.delivery_tag)
        waiting = theirs.consume(name, inactivity_timeout=0.05)
        assert next(waiting) == (None, None, None)
        ours.close()
        theirs.cancel()
        for method, _, body in theirs.consume(name, inactivity_timeout=20):
            worked.append((body, method.redelivered))
            if body == BODIES[2]:
                break
        assert worked == [b"0", b"1", (b"1", True), (b"2", True)]


@pytest.mark.parametrize(
    ("arguments", "received"),
    [
        ({}, "none but current is the value 'true' of type 'bool'"),
        ({**SINGLE, "x-single-active-consumer": False}, "'false' but current is 'true'"),
    ],
    ids=["without", "false"],
)
def test_another_declaration_is_refused(raw: Raw, queue: str, arguments: dict[str, Any], received: str) -> None:
    """D1, in RabbitMQ's words."""
    raw.declare(queue, durable=True, arguments=SINGLE)
    raw.put(1, m.QueueDeclare(queue, durable=True, arguments=arguments))
    text = f"inequivalent arg 'x-single-active-consumer' for queue '{queue}' in vhost '/': received {received}"
    assert raw.channel_error(406).reply_text.endswith(text)


@pytest.mark.parametrize("value", ["yes", 1])
def test_the_argument_is_a_boolean(raw: Raw, name: str, value: Any) -> None:
    """Q."""
    raw.put(1, m.QueueDeclare(name, durable=True, arguments={"x-single-active-consumer": value}))
    assert "invalid arg 'x-single-active-consumer'" in raw.channel_error(406).reply_text

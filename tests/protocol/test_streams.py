"""Streams on the wire (Q): what RabbitMQ's clients see, and what Kvitto adds.

The tests above the line need nothing of Kvitto's own: they are compared with RabbitMQ (AMQP_PORT).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pika
import pytest

from kvitto.wire import methods as m
from kvitto.wire.methods import Method
from kvitto.wire.properties import Properties
from tests.protocol.raw import Message, Raw, content
from tests.protocol.sansio import ProtocolHarness

More = Callable[..., Raw]
STREAM: dict[str, Any] = {"x-queue-type": "stream"}


@pytest.fixture
def stream(raw: Raw, name: str) -> str:
    """An empty stream; `raw` has a prefetch count of 100 and manual acks."""
    raw.declare(name, durable=True, arguments=STREAM)
    raw.call(1, m.BasicQos(0, 100, False), m.BasicQosOk)
    return name


def follow(raw: Raw, stream: str, channel: int = 1, tag: str = "", **arguments: Any) -> str:
    known = {key.replace("_", "-"): value for key, value in arguments.items()}
    return raw.consume(stream, channel, consumer_tag=tag, arguments=known)


def taken(raw: Raw, n: int) -> list[Message]:
    return [raw.message() for _ in range(n)]


def offsets(messages: list[Message]) -> list[int]:
    return [message.headers["x-stream-offset"] for message in messages]


def refused(raw: Raw, method: Method, code: int, says: str) -> None:
    raw.put(1, method)
    if code == 540:
        close: Any = raw.connection_error(code)
    else:
        close = raw.channel_error(code)
    assert says in close.reply_text, close.reply_text


# -- declaring -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [{}, {"durable": True, "exclusive": True}, {"durable": True, "auto_delete": True}])
def test_a_stream_is_durable_and_for_all(raw: Raw, name: str, flags: dict[str, Any]) -> None:
    refused(raw, m.QueueDeclare(name, arguments=STREAM, **flags), 406, f"for queue '{name}' in vhost '/'")


@pytest.mark.parametrize(
    "argument",
    [
        {"x-max-age": "7"},
        {"x-max-age": "7d"},
        {"x-max-age": 7},
        {"x-max-length-bytes": -1},
        {"x-message-ttl": 1000},
        {"x-expires": 1000},
        {"x-max-priority": 5},
        {"x-overflow": "drop-head"},
        {"x-dead-letter-exchange": ""},
        {"x-delivery-limit": 1},
        {"x-single-active-consumer": True},
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(raw: Raw, name: str, argument: dict[str, Any]) -> None:
    said = f"invalid arg '{next(iter(argument))}' for queue '{name}' in vhost '/'"
    refused(raw, m.QueueDeclare(name, durable=True, arguments=STREAM | argument), 406, said)


@pytest.mark.parametrize(
    ("name_", "before", "after"),
    [
        ("x-queue-type", STREAM, {}),
        ("x-queue-type", {}, STREAM),
        ("x-max-age", STREAM | {"x-max-age": "1D"}, STREAM | {"x-max-age": "2D"}),
        ("x-max-length-bytes", STREAM | {"x-max-length-bytes": 1000}, STREAM),
        ("x-stream-max-segment-size-bytes", STREAM, STREAM | {"x-stream-max-segment-size-bytes": 1000}),
    ],
)
def test_declaring_again_with_other_arguments_is_refused(
    raw: Raw, name: str, name_: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """D1."""
    for _ in range(2):
        raw.declare(name, durable=True, arguments=before)
    said = f"inequivalent arg '{name_}' for queue '{name}'"
    refused(raw, m.QueueDeclare(name, durable=True, arguments=after), 406, said)


def test_a_stream_has_a_name(raw: Raw) -> None:
    refused(
        raw, m.QueueDeclare("", durable=True, arguments=STREAM), 406, "Cannot declare a server-named queue for type"
    )


# -- consuming -------------------------------------------------------------------------------------------------


def test_two_consumers_get_everything_with_its_offset(raw: Raw, stream: str) -> None:
    """Not redelivered, not taken away; offsets begin at 0."""
    raw.put_in(stream, b"a", b"b", b"c")
    for n in (2, 3):
        raw.channel(n)
        raw.call(n, m.BasicQos(0, 10, False), m.BasicQosOk)
        follow(raw, stream, n, x_stream_offset="first")
        got = taken(raw, 3)
        assert [message.body for message in got] == [b"a", b"b", b"c"]
        assert offsets(got) == [0, 1, 2]
        assert not any(message.method.redelivered for message in got)
        raw.put(n, m.BasicAck(3, True))


def test_properties_and_headers_are_kept_beside_the_offset(raw: Raw, stream: str) -> None:
    """Also a header of that name that the publisher had set: it is replaced."""
    given: list[dict[str, Any]] = [
        {},
        {"content_type": "t" * 200, "delivery_mode": 2, "message_id": "i", "timestamp": 5},
        {"content_encoding": "e", "headers": {}, "correlation_id": "c"},
        {"content_type": "t", "content_encoding": "e", "headers": {"a": "b", "l": "c"}, "app_id": "a"},
        {"headers": {"n": 1, "x-stream-offset": 99}, "type": "x"},
    ]
    for properties in given:
        raw.put_in(stream, b"body", **properties)
    follow(raw, stream, x_stream_offset="first")
    for offset, (message, properties) in enumerate(zip(taken(raw, len(given)), given, strict=True)):
        headers = properties.get("headers", {}) | {"x-stream-offset": offset}
        assert message.headers == headers
        message.properties.headers = None
        assert message.properties == Properties(**(properties | {"headers": None}))
        assert message.body == b"body"


def test_the_offset_is_a_long(raw: Raw, stream: str) -> None:
    raw.put_in(stream, b"a")
    follow(raw, stream, x_stream_offset="first")
    raw.expect(m.BasicDeliver)
    assert b"\x0fx-stream-offsetl\0\0\0\0\0\0\0\0" in raw.next()[2]


@pytest.mark.parametrize(
    ("given", "begins"), [("first", 0), (0, 0), (3, 3), ("last", 4), ("next", 5), (None, 5), (7, 7)]
)
def test_a_consumer_begins_where_it_says(raw: Raw, stream: str, given: Any, begins: int) -> None:
    for i in range(5):
        raw.put_in(stream, b"%d" % i)
    arguments = {} if given is None else {"x_stream_offset": given}
    follow(raw, stream, **arguments)
    got = taken(raw, 5 - begins) if begins < 5 else []
    for i in range(5, 8):
        raw.publish(1, "", stream, b"%d" % i)
    got += taken(raw, min(3, 8 - begins))
    assert offsets(got) == list(range(begins, 8))


@pytest.mark.parametrize(
    ("given", "begins"),
    [
        (datetime.now(UTC) - timedelta(hours=1), 0),
        (datetime.now(UTC) + timedelta(days=1), 3),
        ("1h", 0),
        ("1Y", 0),
    ],
)
def test_a_consumer_begins_at_a_time(raw: Raw, stream: str, given: Any, begins: int) -> None:
    raw.put_in(stream, b"0", b"1", b"2")
    follow(raw, stream, x_stream_offset=given)
    got = taken(raw, 3 - begins)
    raw.publish(1, "", stream, b"3")
    got += taken(raw, 1)
    assert offsets(got) == list(range(begins, 4))


def test_it_is_not_given_away_without_prefetch(raw: Raw, name: str) -> None:
    raw.declare(name, durable=True, arguments=STREAM)
    refused(raw, m.BasicConsume(name), 406, f"consumer prefetch count is not set for 'queue '{name}' in vhost '/''")


def test_it_is_not_given_away_without_acks(raw: Raw, stream: str) -> None:
    refused(raw, m.BasicConsume(stream, no_ack=True), 540, "automatic acknowledgement not supported by stream queues")


def test_a_priority_and_a_limit_for_the_channel_are_refused(raw: Raw, more: More, stream: str) -> None:
    refused(raw, m.BasicConsume(stream, arguments={"x-priority": 1}), 406, "invalid arg 'x-priority'")
    other = more()
    other.call(1, m.BasicQos(0, 10, False), m.BasicQosOk)
    other.call(1, m.BasicQos(0, 10, True), m.BasicQosOk)
    refused(other, m.BasicConsume(stream), 540, "does not support global qos")


def test_there_is_no_get(raw: Raw, stream: str) -> None:
    refused(raw, m.BasicGet(stream), 540, "basic.get not supported by stream queues")


def test_there_is_no_purge(raw: Raw, stream: str) -> None:
    refused(raw, m.QueuePurge(stream), 540, "")


def test_deleting_it_cancels_its_consumers(raw: Raw, more: More, stream: str) -> None:
    raw.put_in(stream, b"a")
    other = more()
    other.call(1, m.BasicQos(0, 10, False), m.BasicQosOk)
    tag = follow(other, stream, x_stream_offset="first")
    assert taken(other, 1)[0].body == b"a"
    raw.call(1, m.QueueDelete(stream), m.QueueDeleteOk)
    assert other.expect(m.BasicCancel).consumer_tag == tag
    refused(raw, m.QueueDeclare(stream, passive=True), 404, "no queue")


def test_publishing_is_as_to_every_queue(raw: Raw, stream: str) -> None:
    """C2, C4: bindings, confirms, mandatory."""
    raw.call(1, m.QueueBind(stream, "amq.topic", "k.*"), m.QueueBindOk)
    raw.channel(2, confirm=True)
    raw.publish(2, "amq.topic", "k.1", b"a", mandatory=True)
    assert raw.expect(m.BasicAck).delivery_tag == 1
    raw.publish(2, "amq.topic", "other", b"b", mandatory=True)
    raw.message(m.BasicReturn)
    assert raw.expect(m.BasicAck).delivery_tag == 2
    follow(raw, stream, x_stream_offset="first")
    (message,) = taken(raw, 1)
    assert (message.method.exchange, message.method.routing_key, message.body) == ("amq.topic", "k.1", b"a")


def test_a_transaction_publishes_to_it(raw: Raw, stream: str, name: str) -> None:
    """T4."""
    raw.declare(name + ".too", durable=True)
    raw.channel(2)
    raw.call(2, m.TxSelect(), m.TxSelectOk)
    for body in (b"a", b"b"):
        raw.publish(2, "", stream, body)
        raw.publish(2, "", name + ".too", body)
    raw.call(2, m.TxCommit(), m.TxCommitOk)
    raw.publish(2, "", stream, b"c")
    raw.call(2, m.TxRollback(), m.TxRollbackOk)
    follow(raw, stream, x_stream_offset="first")
    assert [message.body for message in taken(raw, 2)] == [b"a", b"b"]
    raw.call(1, m.QueueDelete(name + ".too"), m.QueueDeleteOk)


def test_pika_reads_it(port: int, name: str) -> None:
    """A client that knows of streams only what its arguments say."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments=STREAM)
        channel.confirm_delivery()
        for i in range(20):
            channel.basic_publish("", name, b"%d" % i, pika.BasicProperties(headers={"i": i}))
        channel.basic_qos(prefetch_count=5)
        got = []
        for method, properties, body in channel.consume(name, arguments={"x-stream-offset": 10}, inactivity_timeout=20):
            got.append((properties.headers["x-stream-offset"], properties.headers["i"], body))
            channel.basic_ack(method.delivery_tag)
            if len(got) == 10:
                break
        channel.cancel()
        assert got == [(i, i, b"%d" % i) for i in range(10, 20)]
        channel.queue_delete(name)


# == Kvitto's own ===============================================================================================


def test_prefetch_is_the_credit_and_acks_give_it_back(raw: Raw, stream: str) -> None:
    """To the message; RabbitMQ sends whole chunks."""
    raw.call(1, m.BasicQos(0, 2, False), m.BasicQosOk)
    raw.put_in(stream, *(b"%d" % i for i in range(6)))
    follow(raw, stream, x_stream_offset="first")
    assert offsets(taken(raw, 2)) == [0, 1]
    raw.call(1, m.BasicQos(0, 2, False), m.BasicQosOk)
    raw.put(1, m.BasicAck(2, True))
    assert offsets(taken(raw, 2)) == [2, 3]
    raw.put(1, m.BasicAck(3, False))
    assert offsets(taken(raw, 1)) == [4]


@pytest.mark.parametrize("given", ["", "second", "1x", -1, [1], {"a": 1}], ids=str)
def test_a_wrong_offset_is_refused(raw: Raw, stream: str, given: Any) -> None:
    """By RabbitMQ with 541."""
    refused(raw, m.BasicConsume(stream, arguments={"x-stream-offset": given}), 406, "x-stream-offset")


def test_nested_headers_are_kept_too(raw: Raw, stream: str) -> None:
    """RabbitMQ drops tables and arrays from a stream's headers."""
    given = {"k": {"x-stream-offset": 7}, "l": [1, {"a": 2}], "s": "\x0fx-stream-offset"}
    raw.put_in(stream, b"a", headers=given)
    raw.put_in(stream, b"b", headers=given | {"x-stream-offset": "mine"})
    follow(raw, stream, x_stream_offset="first")
    assert [message.headers for message in taken(raw, 2)] == [given | {"x-stream-offset": i} for i in range(2)]


def test_nack_and_reject_give_credit_and_change_nothing(raw: Raw, stream: str) -> None:
    raw.call(1, m.BasicQos(0, 1, False), m.BasicQosOk)
    raw.put_in(stream, b"a", b"b", b"c", b"d")
    follow(raw, stream, x_stream_offset="first")
    assert offsets(taken(raw, 1)) == [0]
    raw.put(1, m.BasicNack(1, False, True))
    assert offsets(taken(raw, 1)) == [1]
    raw.put(1, m.BasicReject(2, False))
    assert offsets(taken(raw, 1)) == [2]
    raw.put(1, m.BasicNack(3, False, False))
    assert offsets(taken(raw, 1)) == [3]
    assert raw.count(stream) == 4


def test_acks_of_a_transaction_give_credit_when_it_is_committed(raw: Raw, stream: str) -> None:
    raw.call(1, m.BasicQos(0, 1, False), m.BasicQosOk)
    raw.call(1, m.TxSelect(), m.TxSelectOk)
    raw.put_in(stream, b"a", b"b")
    follow(raw, stream, x_stream_offset="first")
    taken(raw, 1)
    raw.put(1, m.BasicAck(1, False))
    raw.put(1, m.TxCommit())
    assert raw.expect(m.TxCommitOk)
    assert offsets(taken(raw, 1)) == [1]


def test_a_consumer_with_a_tag_of_its_own_goes_on_where_it_had_acked(raw: Raw, more: More, stream: str) -> None:
    raw.put_in(stream, b"0", b"1", b"2", b"3")
    tracked: dict[str, Any] = {"x_stream_offset": "first", "x_stream_automatic_offset_tracking": True}
    for begins in (0, 2):
        client = more()
        client.call(1, m.BasicQos(0, 10, False), m.BasicQosOk)
        follow(client, stream, tag="mine", **tracked)
        assert offsets(taken(client, 4 - begins)) == list(range(begins, 4))
        client.put(1, m.BasicAck(2, True))
        client.call(1, m.ChannelClose(200, ""), m.ChannelCloseOk)
    client = more()
    client.call(1, m.BasicQos(0, 10, False), m.BasicQosOk)
    follow(client, stream, tag="mine")
    raw.put_in(stream, b"4")
    assert offsets(taken(client, 1)) == [4]


def test_what_is_unacked_when_the_channel_ends_comes_again(raw: Raw, more: More, stream: str) -> None:
    client = more()
    client.call(1, m.BasicQos(0, 10, False), m.BasicQosOk)
    follow(client, stream, tag="mine")
    raw.put_in(stream, b"0", b"1", b"2")
    taken(client, 3)
    client.put(1, m.BasicAck(1, False))
    client.call(1, m.ChannelClose(200, ""), m.ChannelCloseOk)
    client.channel(1)
    client.call(1, m.BasicQos(0, 10, False), m.BasicQosOk)
    follow(client, stream, tag="mine")
    assert offsets(taken(client, 2)) == [1, 2]


def test_reading_by_range_works_beside_consumers(raw: Raw, stream: str) -> None:
    """Class log: read and inspect."""
    raw.put_in(stream, *(b"%d" % i for i in range(6)))
    follow(raw, stream)
    raw.channel(2)
    at = raw.call(2, m.LogInspect(stream), m.LogInspectOk)
    assert (at.first, at.next, at.settled) == (0, 6, 0)
    raw.put(2, m.LogRead(stream, "r", 2, 5))
    got = [raw.message() for _ in range(3)]
    assert [message.method.delivery_tag for message in got] == [3, 4, 5]
    assert [message.body for message in got] == [b"2", b"3", b"4"]
    ok = raw.expect(m.LogReadOk)
    assert (ok.next, ok.count) == (5, 3)


@pytest.mark.parametrize("method", [lambda s: m.LogAttach(s, "g"), lambda s: m.LogSettle(s, "g", "", 1)])
def test_it_is_not_attached_to_and_not_settled(raw: Raw, stream: str, method: Callable[[str], Method]) -> None:
    refused(raw, method(stream), 406, f"queue '{stream}' in vhost '/' is a stream: ")


def test_a_stage_is_committed_to_it(raw: Raw, stream: str) -> None:
    """Class stage: all at once, in order, once."""
    raw.channel(2, confirm=True)
    raw.call(2, m.StageOpen(stream, 1, "task"), m.StageOpenOk)
    for body in (b"a", b"b", b"c"):
        raw.publish(2, "", stream, body)
    while raw.expect(m.BasicAck).delivery_tag < 3:
        pass
    follow(raw, stream, x_stream_offset="first")
    raw.channel(3)
    for fresh in (True, False):
        assert raw.call(3, m.StageCommit(stream, 1, b"task"), m.StageCommitOk).fresh == fresh
        if fresh:
            assert [message.body for message in taken(raw, 3)] == [b"a", b"b", b"c"]
    assert raw.count(stream) == 3


def test_properties_that_leave_no_room_for_the_offset() -> None:
    """The consumer's frames are too small: it is cancelled, as from any queue, and others go on."""
    harness = ProtocolHarness()
    publisher, small, large = harness.wire(), harness.wire(login=False), harness.wire()
    small.login(frame_max=4096, consumer_cancel_notify=True)
    publisher.put(1, m.QueueDeclare("s", durable=True, arguments=STREAM))
    for wire in (small, large):
        wire.put(1, m.BasicQos(0, 10, False))
        wire.put(1, m.BasicConsume("s", "c", arguments={"x-stream-offset": "first"}))
    harness.settle_down()
    properties = Properties(headers={"k": "v" * 4050}).encode()
    publisher.feed(content(1, m.BasicPublish("", "s"), properties, b""))
    harness.settle_down()
    assert [type(method) for method in small.methods()][-1] is m.BasicCancel
    assert m.BasicDeliver in [type(method) for method in large.methods()]


def test_many_messages_come_in_order_through_a_slow_socket(raw: Raw, more: More, stream: str) -> None:
    """Prefetch is far above what one turn delivers."""
    raw.put_in(stream, *(b"%05d" % i + b"x" * 2000 for i in range(3000)))
    client = more()
    client.call(1, m.BasicQos(0, 10000, False), m.BasicQosOk)
    follow(client, stream, x_stream_offset="first")
    got = taken(client, 3000)
    assert offsets(got) == list(range(3000))
    assert all(message.body[:5] == b"%05d" % i for i, message in enumerate(got))
    client.put(1, m.BasicAck(3000, True))
    assert raw.count(stream) == 3000


def test_a_filter_of_rabbitmqs_clients(raw: Raw, more: More, stream: str) -> None:
    """Exact, where RabbitMQ's clients have to look once more themselves; prefetch and acks count what is delivered."""
    others = more()
    others.call(1, m.BasicQos(0, 1000, False), m.BasicQosOk)
    follow(others, stream, x_stream_offset="first")
    for i, text in enumerate(("se", "no", None, "se", "dk", "no")):
        raw.put_in(stream, b"%d" % i, **({} if text is None else {"headers": {"x-stream-filter-value": text}}))
    raw.call(1, m.BasicQos(0, 2, False), m.BasicQosOk)
    follow(raw, stream, tag="mine", x_stream_offset="first", x_stream_filter=["se", "no"])
    first = taken(raw, 2)
    assert offsets(first) == [0, 1] and first[0].headers["x-stream-filter-value"] == "se"
    raw.put(1, m.BasicAck(first[1].method.delivery_tag, True))
    assert offsets(taken(raw, 2)) == [3, 5]
    raw.channel(2)
    raw.call(2, m.BasicQos(0, 100, False), m.BasicQosOk)
    follow(raw, stream, 2, x_stream_offset="first", x_stream_filter="dk", x_stream_match_unfiltered=True)
    assert offsets(taken(raw, 2)) == [2, 4]
    assert offsets(taken(others, 6)) == [0, 1, 2, 3, 4, 5]


def test_an_argument_that_is_no_filter(raw: Raw, stream: str) -> None:
    consume = m.BasicConsume(stream, arguments={"x-stream-filter": 5})
    refused(raw, consume, 406, f"invalid arg 'x-stream-filter' for queue '{stream}' in vhost '/': expected a string")

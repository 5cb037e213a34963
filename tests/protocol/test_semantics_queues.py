"""Queues: properties, arguments, limits, ends; D1 and Q of the contract, on the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest

from kvitto.base.errors import ConnectionError_
from kvitto.broker.queues import leaving
from kvitto.wire import methods as m
from kvitto.wire.methods import Method
from tests.protocol.raw import NO_PROPERTIES, Raw, content
from tests.protocol.sansio import ProtocolHarness
from tests.support.wait import wait_until

More = Callable[..., Raw]
DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"


def refused(raw: Raw, method: Method, code: int, says: str = "", channel: int = 1) -> None:
    """The method closes the channel with this code; the channel is opened again."""
    raw.put(channel, method)
    close = raw.channel_error(code, channel)
    assert says in close.reply_text, close.reply_text
    assert (close.class_id, close.method_id) == (method.CLASS_ID, method.METHOD_ID)
    raw.channel(channel)


# -- D1: declaring again -------------------------------------------------------------------------------------


def test_the_same_declaration_again_is_fine(raw: Raw, name: str) -> None:
    """D1: with its counts."""
    arguments: dict[str, Any] = {"x-max-length": 5, "x-message-ttl": 60000, "x-unknown": [1]}
    for _ in range(2):
        raw.declare(name, durable=True, arguments=arguments)
    raw.put_in(name, b"0")
    raw.consume(name)
    raw.message()
    ok = raw.call(1, m.QueueDeclare(name, durable=True, arguments=arguments), m.QueueDeclareOk)
    assert (ok.queue, ok.message_count, ok.consumer_count) == (name, 0, 1)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("durable", {"durable": False}),
        ("auto_delete", {"auto_delete": True}),
        ("exclusive", {"exclusive": True}),
        ("x-max-length", {"arguments": {"x-max-length": 6}}),
        ("x-max-length", {"arguments": {}}),
        ("x-message-ttl", {"arguments": {"x-max-length": 5, "x-message-ttl": 1}}),
        ("x-dead-letter-exchange", {"arguments": {"x-max-length": 5, "x-dead-letter-exchange": ""}}),
    ],
)
def test_another_declaration_is_refused(raw: Raw, name: str, field: str, change: dict[str, Any]) -> None:
    """D1: inequivalent arg; an exclusive one is locked (405)."""
    same: dict[str, Any] = {"durable": True, "arguments": {"x-max-length": 5}}
    raw.declare(name, **same)
    code, says = (405, "locked") if field == "exclusive" else (406, f"inequivalent arg '{field}' for queue '{name}'")
    refused(raw, m.QueueDeclare(name, **(same | change)), code, says)


def test_numbers_of_another_width_are_the_same(raw: Raw, name: str) -> None:
    """D1: clients choose the integer type by value or by habit."""
    raw.declare(name, arguments={"x-max-length": 5})
    wide = m.QueueDeclare(name, arguments={"x-max-length": 5}).encode()
    wide = wide.replace(b"I\x00\x00\x00\x05", b"l\x00\x00\x00\x00\x00\x00\x00\x05").replace(
        b"\x00\x00\x00\x12", b"\x00\x00\x00\x16"
    )
    raw.send(b"\x01\x00\x01" + len(wide).to_bytes(4, "big") + wide + b"\xce")
    raw.expect(m.QueueDeclareOk)


# -- names ---------------------------------------------------------------------------------------------------


def test_the_server_names_a_queue(raw: Raw) -> None:
    """Q: amq.gen-..., another one each time."""
    one, two = raw.declare(), raw.declare()
    assert one.startswith("amq.gen-") and two.startswith("amq.gen-") and one != two
    assert raw.count(one) == 0


def test_no_name_is_the_queue_declared_last(raw: Raw, name: str) -> None:
    """Q: on this channel; for bind the key too, if that is missing."""
    refused(raw, m.BasicGet(""), 404)
    refused(raw, m.QueuePurge(""), 404)
    raw.declare(name)
    raw.call(1, m.QueueBind("", "amq.direct", ""), m.QueueBindOk)
    raw.call(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    raw.publish(1, "amq.direct", name, b"0")
    raw.expect(m.BasicAck)
    assert raw.drain("") == [b"0"]
    raw.consume("")
    raw.publish(1, "", name, b"1")
    assert {type(raw.method()[1]) for _ in range(1)} <= {m.BasicDeliver, m.BasicAck}


def test_reserved_names(raw: Raw) -> None:
    """Q: 403 for a new one that begins with amq."""
    refused(raw, m.QueueDeclare("amq.mine"), 403, "reserved")
    refused(raw, m.ExchangeDeclare("amq.mine", "direct"), 403, "reserved")


def test_passive(raw: Raw, name: str) -> None:
    """Q: looks, and changes nothing; other properties do not matter."""
    refused(raw, m.QueueDeclare(name, passive=True), 404, f"no queue '{name}' in vhost '/'")
    raw.declare(name, durable=True)
    raw.call(1, m.QueueDeclare(name, passive=True, durable=False, auto_delete=True), m.QueueDeclareOk)


# -- life ----------------------------------------------------------------------------------------------------


def test_exclusive_is_for_one_connection(raw: Raw, more: More, name: str) -> None:
    """Q: 405 for all others; gone with its connection."""
    owner = more()
    owner.declare(name, exclusive=True)
    owner.channel(2)
    assert owner.count(name, 2) == 0
    for method in (
        m.QueueDeclare(name, passive=True),
        m.QueueDeclare(name, exclusive=True),
        m.BasicConsume(name),
        m.BasicGet(name),
        m.QueuePurge(name),
        m.QueueDelete(name),
        m.QueueBind(name, "amq.fanout"),
    ):
        refused(raw, method, 405)
    owner.call(0, m.ConnectionClose(200, "bye"), m.ConnectionCloseOk)
    refused(raw, m.QueueDeclare(name, passive=True), 404)


def test_exclusive_goes_when_the_socket_does(raw: Raw, more: More, name: str) -> None:
    """Q."""
    owner = more()
    owner.declare(name, exclusive=True, durable=True)
    owner.reset()

    def gone() -> bool:
        raw.put(1, m.QueueDeclare(name, passive=True))
        method = raw.method()[1]
        if isinstance(method, m.QueueDeclareOk):
            return False
        assert isinstance(method, m.ChannelClose)
        raw.put(1, m.ChannelCloseOk())
        raw.channel(1)
        return method.reply_code == 404

    assert wait_until(gone)


def test_auto_delete_goes_with_its_last_consumer(raw: Raw, name: str) -> None:
    """Q: not before the first, not while one is left."""
    raw.declare(name, auto_delete=True)
    assert raw.count(name) == 0
    for tag in "ab":
        raw.consume(name, consumer_tag=tag)
    raw.call(1, m.BasicCancel("a"), m.BasicCancelOk)
    assert raw.count(name) == 0
    raw.call(1, m.BasicCancel("b"), m.BasicCancelOk)
    refused(raw, m.QueueDeclare(name, passive=True), 404)


def test_auto_delete_goes_with_the_channel_of_its_consumer(raw: Raw, name: str) -> None:
    """Q."""
    raw.channel(2)
    raw.declare(name, auto_delete=True)
    raw.consume(name, 2)
    raw.call(2, m.ChannelClose(200, "bye"), m.ChannelCloseOk)
    refused(raw, m.QueueDeclare(name, passive=True), 404)


def test_delete(raw: Raw, name: str) -> None:
    """W5: if_unused, if_empty; how many were in it; again is fine."""
    raw.declare(name)
    raw.put_in(name, b"0", b"1")
    refused(raw, m.QueueDelete(name, if_empty=True), 406)
    tag = raw.consume(name, consumer_tag="c")
    raw.message(), raw.message()
    raw.channel(2)
    refused(raw, m.QueueDelete(name, if_unused=True), 406, channel=2)
    raw.call(1, m.BasicCancel(tag), m.BasicCancelOk)
    raw.put(1, m.BasicNack(0, True, True))
    assert wait_until(lambda: raw.count(name) == 2)
    assert raw.call(1, m.QueueDelete(name), m.QueueDeleteOk).message_count == 2
    assert raw.call(1, m.QueueDelete(name), m.QueueDeleteOk).message_count == 0


def test_purge_takes_what_is_ready(raw: Raw, name: str) -> None:
    """Q: the unacked stay."""
    raw.declare(name)
    raw.put_in(name, b"0", b"1", b"2")
    raw.get(name)
    assert raw.call(1, m.QueuePurge(name), m.QueuePurgeOk).message_count == 2
    raw.put(1, m.BasicReject(1, True))
    assert wait_until(lambda: raw.drain(name)) == [b"0"]


def test_exclusive_consumers(raw: Raw, more: More, name: str) -> None:
    """W5: 403, whoever comes second."""
    raw.declare(name)
    other = more()
    tag = raw.consume(name, exclusive=True)
    refused(other, m.BasicConsume(name), 403, "exclusive")
    assert other.get(name) is None, "asking for one is no consuming"
    raw.call(1, m.BasicCancel(tag), m.BasicCancelOk)
    other.consume(name)
    refused(raw, m.BasicConsume(name, exclusive=True), 403, "exclusive")


def test_no_wait_gets_no_answer(raw: Raw, name: str) -> None:
    """W: but it is done."""
    raw.put(
        1,
        m.QueueDeclare(name, no_wait=True),
        m.ExchangeDeclare(name, "fanout", no_wait=True),
        m.QueueBind(name, name, no_wait=True),
        m.BasicConsume(name, "c", no_ack=True, no_wait=True),
        m.ConfirmSelect(True),
    )
    raw.publish(1, name, "", b"x")
    assert {type(raw.method()[1]), raw.next()[0], raw.next()[0]} >= {m.BasicDeliver, 2, 3}
    raw.expect(m.BasicAck)
    raw.put(1, m.BasicCancel("c", True), m.QueuePurge(name, True), m.ExchangeDelete(name, no_wait=True))
    raw.put(1, m.QueueDelete(name, no_wait=True), m.BasicQos(0, 1))
    raw.expect(m.BasicQosOk)
    refused(raw, m.QueueDeclare(name, passive=True), 404)


# -- arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argument",
    [
        {"x-message-ttl": -1},
        {"x-message-ttl": "60"},
        {"x-message-ttl": 1 << 40},
        {"x-expires": 0},
        {"x-expires": True},
        {"x-max-length": -1},
        {"x-max-length": "many"},
        {"x-max-length-bytes": -5},
        {"x-overflow": "away"},
        {"x-overflow": 1},
        {"x-dead-letter-exchange": 5},
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": 5},
        {"x-queue-type": "none"},
        {"x-max-priority": -1},
        {"x-max-priority": 256},
        {"x-single-active-consumer": "yes"},
    ],
    ids=str,
)
def test_wrong_arguments_are_named(raw: Raw, name: str, argument: dict[str, Any]) -> None:
    """Q: 406 invalid arg."""
    refused(raw, m.QueueDeclare(name, durable=True, arguments=argument), 406, list(argument)[-1])
    refused(raw, m.QueueDeclare(name, passive=True), 404)


def test_a_wrong_delivery_limit_is_named(raw: Raw, name: str) -> None:
    """Q, A8."""
    arguments: dict[str, Any] = {"x-queue-type": "quorum", "x-delivery-limit": "few"}
    refused(raw, m.QueueDeclare(name, durable=True, arguments=arguments), 406, "x-delivery-limit")


def test_an_unknown_argument_is_ignored(raw: Raw, name: str) -> None:
    """Q."""
    raw.declare(name, arguments={"x-of-mine": {"any": [1, None]}, "other": 5})
    raw.declare(name, arguments={"other": 6})


# -- expiry --------------------------------------------------------------------------------------------------


def test_ttl_zero_is_for_whoever_waits(raw: Raw, name: str) -> None:
    """Q: x-message-ttl=0 expires at once, but not before a consumer with credit got it."""
    raw.declare(name, arguments={"x-message-ttl": 0})
    raw.put_in(name, b"nobody")
    assert wait_until(lambda: raw.count(name) == 0)
    raw.consume(name, no_ack=True)
    raw.publish(1, "", name, b"somebody")
    assert raw.message().body == b"somebody"


@pytest.fixture
def harness() -> ProtocolHarness:
    return ProtocolHarness()


def ready(harness: ProtocolHarness, queue: str) -> int:
    found = harness.broker.vhosts["/"].queues.get(queue)
    return -1 if found is None else found.ready


def pass_time(harness: ProtocolHarness, seconds: float) -> None:
    harness.clock.advance(seconds)
    harness.broker.tick()
    harness.settle_down()


def test_messages_expire_when_their_time_is_up(harness: ProtocolHarness) -> None:
    """Q: the queue's ttl, the message's expiration, the smaller one of both."""
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q", durable=True, arguments={"x-message-ttl": 10_000}))
    harness.settle_down()
    for expiration in (b"", b"\x03500", b"\x0520000"):
        props = b"\x01\x00" + expiration if expiration else NO_PROPERTIES
        wire.feed(content(1, m.BasicPublish("", "q"), props, b"x"))
    harness.settle_down()
    pass_time(harness, 0.4)
    assert ready(harness, "q") == 3
    pass_time(harness, 9.0)
    assert ready(harness, "q") == 3, "only the head is looked at, like both peers"
    pass_time(harness, 0.7)
    assert ready(harness, "q") == 0


def test_the_time_of_a_message_begins_when_it_comes_in(harness: ProtocolHarness) -> None:
    """Q: not with the broker's last turn, which may be a second ago; nor with that of a message that it shares a batch with."""
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q", arguments={"x-message-ttl": 600}))
    harness.settle_down()
    for _ in range(2):
        harness.clock.advance(0.5)
        wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"x"))
    harness.settle_down()
    assert ready(harness, "q") == 2
    pass_time(harness, 0.2)
    assert ready(harness, "q") == 1
    pass_time(harness, 0.5)
    assert ready(harness, "q") == 0


def test_a_clock_that_is_set_back_does_not_make_messages_live_for_ever(harness: ProtocolHarness) -> None:
    """Q."""
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q", arguments={"x-message-ttl": 600}))
    harness.settle_down()
    wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"before"))
    harness.clock.advance(-60.0)
    wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"after"))
    harness.settle_down()
    pass_time(harness, 61.0)
    assert ready(harness, "q") == 0


def test_get_finds_what_is_behind_very_many_that_have_expired(
    harness: ProtocolHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A14: they leave over several turns; until then nobody is told that the queue is empty."""
    monkeypatch.setattr(leaving, "LEAVING_PER_TURN", 3)
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q", durable=True))
    harness.settle_down()
    for props in (NO_PROPERTIES, *[b"\x01\x00\x0210"] * 20, NO_PROPERTIES):
        wire.feed(content(1, m.BasicPublish("", "q"), props, b"x"))
    harness.settle_down()
    harness.clock.advance(1.0)
    wire.frames()
    wire.put(1, m.BasicGet("q", True), m.BasicGet("q", True), m.BasicGet("q", True), m.BasicQos(0, 1))
    for _ in range(10):
        pass_time(harness, 0.001)
    assert [type(method) for method in wire.methods()] == [m.BasicGetOk, m.BasicGetOk, m.BasicGetEmpty, m.BasicQosOk]


@pytest.mark.parametrize("end", ["delete", "close", "lost"])
def test_a_get_that_waits_ends_with_its_queue_or_connection(
    harness: ProtocolHarness, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "LEAVING_PER_TURN", 1)
    wire, other = harness.wire(), harness.wire()
    wire.put(1, m.QueueDeclare("q", durable=True))
    harness.settle_down()
    for props in (*[b"\x01\x00\x0210"] * 20, NO_PROPERTIES):
        wire.feed(content(1, m.BasicPublish("", "q"), props, b"x"))
    harness.settle_down()
    harness.clock.advance(1.0)
    harness.turn()
    wire.frames()
    wire.put(1, m.BasicGet("q"))
    assert wire.methods() == [] and not wire.reading
    if end == "delete":
        other.put(1, m.QueueDelete("q"))
    elif end == "close":
        wire.connection.close(ConnectionError_(320, "enough"))
    else:
        wire.connection.lost()
    for _ in range(30):
        pass_time(harness, 0.002)
    assert wire.reading or end == "lost"
    answers = {"delete": [m.BasicGetEmpty], "close": [m.ConnectionClose], "lost": []}
    assert [type(method) for method in wire.methods()] == answers[end]


def test_expiry_counts_over_a_restart(harness: ProtocolHarness) -> None:
    """Q, P4: the time of a message goes on."""
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q", durable=True, arguments={"x-message-ttl": 10_000}))
    harness.settle_down()
    wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"x"))
    harness.settle_down()
    harness.clock.advance(6.0)
    again = ProtocolHarness(harness.disk.kill(), harness.clock)
    again.broker.tick()
    assert ready(again, "q") == 1
    pass_time(again, 5.0)
    assert ready(again, "q") == 0


def test_an_unused_queue_expires(harness: ProtocolHarness) -> None:
    """Q: x-expires; gets, declarations and consumers are use."""
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q", arguments={"x-expires": 10_000}))
    for method in (m.BasicGet("q"), m.QueueDeclare("q", passive=True)):
        pass_time(harness, 6.0)
        wire.put(1, method)
        harness.settle_down()
    wire.put(1, m.BasicConsume("q", "c"))
    harness.settle_down()
    pass_time(harness, 60.0)
    assert ready(harness, "q") == 0
    wire.put(1, m.BasicCancel("c"))
    harness.settle_down()
    pass_time(harness, 9.0)
    assert ready(harness, "q") == 0
    pass_time(harness, 2.0)
    assert ready(harness, "q") == -1


@pytest.mark.parametrize("expiration", ["", "-1", "soon", "1.5", " 1", "315360000001", "٣"])
def test_a_wrong_expiration_is_refused(raw: Raw, name: str, expiration: str) -> None:
    """Q: 406."""
    raw.declare(name)
    raw.publish(1, "", name, b"x", expiration=expiration)
    raw.channel_error(406)
    raw.channel(1)
    assert raw.count(name) == 0


# -- lengths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
def test_drop_head_keeps_the_newest(raw: Raw, name: str, durable: bool) -> None:
    """Q: x-max-length."""
    raw.declare(name, durable=durable, arguments={"x-max-length": 3})
    raw.put_in(name, *(b"%d" % n for n in range(10)))
    assert raw.drain(name) == [b"7", b"8", b"9"]


def test_the_limit_is_about_what_is_ready(raw: Raw, name: str) -> None:
    """Q: unacked messages do not count; those that come back are the oldest."""
    raw.declare(name, arguments={"x-max-length": 2})
    raw.put_in(name, b"0", b"1")
    raw.get(name), raw.get(name)
    raw.put_in(name, b"2", b"3")
    assert raw.count(name) == 2
    raw.put(1, m.BasicNack(2, True, True))
    assert wait_until(lambda: raw.count(name) == 2)
    assert raw.drain(name) == [b"2", b"3"]


def test_a_limit_of_bytes(raw: Raw, name: str) -> None:
    """Q: x-max-length-bytes counts bodies."""
    raw.declare(name, arguments={"x-max-length-bytes": 10})
    raw.put_in(name, b"aaaa", b"bbbb", b"cc", b"ddd", content_type="x" * 200)
    assert raw.drain(name) == [b"bbbb", b"cc", b"ddd"]
    raw.put_in(name, b"e" * 11)
    assert raw.drain(name) == []


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_reject_publish_keeps_the_oldest(raw: Raw, name: str, overflow: str) -> None:
    """Q, C6: nothing is refused to consumers that wait."""
    raw.declare(name, arguments={"x-max-length": 1, "x-overflow": overflow})
    raw.channel(2, confirm=True)
    for number, kind in enumerate([m.BasicAck, m.BasicNack, m.BasicNack]):
        raw.publish(2, "", name, b"%d" % number)
        raw.expect(kind)
    assert raw.drain(name) == [b"0"]


def test_reject_publish_by_bytes(raw: Raw, name: str) -> None:
    """Q: a message that does not fit is refused. RabbitMQ takes the one that crosses the line."""
    raw.declare(name, arguments={"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
    raw.channel(2, confirm=True)
    raw.publish(2, "", name, b"x" * 10)
    raw.expect(m.BasicAck)
    raw.publish(2, "", name, b"x")
    raw.expect(m.BasicNack)


# -- properties that mean something --------------------------------------------------------------------------


def test_user_id_must_be_right(raw: Raw, name: str) -> None:
    """Q: 406."""
    raw.declare(name)
    raw.publish(1, "", name, b"x", user_id="guest")
    message = wait_until(lambda: raw.get(name, no_ack=True))
    assert message.properties.user_id == "guest"
    raw.publish(1, "", name, b"x", user_id="mallory")
    assert "user_id" in raw.channel_error(406).reply_text


def test_copies(raw: Raw, name: str) -> None:
    """Q: CC and BCC route like the key; BCC is not shown; one copy per queue."""
    for queue in ("", ".cc", ".bcc"):
        raw.declare(name + queue)
    headers = {"CC": [name + ".cc", name], "BCC": [name + ".bcc"], "own": 1}
    raw.put_in(name, b"x", headers=headers)
    for queue in ("", ".cc", ".bcc"):
        message = raw.get(name + queue, no_ack=True)
        assert message is not None and message.method.routing_key == name
        assert message.headers == {"CC": [name + ".cc", name], "own": 1}
        assert raw.get(name + queue) is None


@pytest.mark.parametrize("headers", [{"CC": "one"}, {"BCC": 5}, {"CC": [1]}], ids=str)
def test_wrong_copies_are_refused(raw: Raw, name: str, headers: dict[str, Any]) -> None:
    """Q: 406."""
    raw.declare(name)
    raw.publish(1, "", name, b"x", headers=headers)
    raw.channel_error(406)


def test_properties_arrive_as_they_were_sent(raw: Raw, name: str) -> None:
    """Q: every field."""
    fields: dict[str, Any] = {
        "content_type": "a/b",
        "content_encoding": "utf-8",
        "headers": {"s": "x", "i": -5, "l": 1 << 40, "t": True, "v": None, "a": [1, {"k": b"\xff"}]},
        "delivery_mode": 2,
        "priority": 9,
        "correlation_id": "c",
        "reply_to": "r",
        "message_id": "m",
        "timestamp": 1_700_000_000,
        "type": "t",
        "user_id": "guest",
        "app_id": "a",
        "cluster_id": "k",
        "expiration": "600000",
    }
    raw.declare(name)
    raw.put_in(name, b"x", **fields)
    message = raw.get(name, no_ack=True)
    assert message is not None
    assert {key: getattr(message.properties, key) for key in fields} == fields


# -- direct reply-to -----------------------------------------------------------------------------------------


def test_direct_reply_to(raw: Raw, more: More, name: str) -> None:
    """Q: the request carries an address that leads back to the channel, without a queue."""
    raw.declare(name)
    raw.consume(DIRECT_REPLY_TO, consumer_tag="replies", no_ack=True)
    raw.publish(1, "", name, b"question", reply_to=DIRECT_REPLY_TO, correlation_id="7")
    server = more()
    question = wait_until(lambda: server.get(name, no_ack=True))
    address = question.properties.reply_to
    assert address is not None and address.startswith(DIRECT_REPLY_TO + ".")
    server.call(1, m.QueueDeclare(address, passive=True), m.QueueDeclareOk)
    server.publish(1, "", address, b"answer", correlation_id="7")
    answer = raw.message()
    assert (answer.body, answer.method.consumer_tag, answer.properties.correlation_id) == (b"answer", "replies", "7")
    assert (answer.method.exchange, answer.method.redelivered) == ("", False)


def test_a_reply_to_nobody_is_unroutable(raw: Raw, more: More, name: str) -> None:
    """Q: the requester has gone."""
    asker = more()
    raw.declare(name)
    asker.consume(DIRECT_REPLY_TO, no_ack=True)
    asker.publish(1, "", name, b"?", reply_to=DIRECT_REPLY_TO)
    reply_to = wait_until(lambda: raw.get(name, no_ack=True)).properties.reply_to
    assert isinstance(reply_to, str)
    asker.call(0, m.ConnectionClose(200, "bye"), m.ConnectionCloseOk)
    raw.publish(1, "", reply_to, b"!", mandatory=True)
    assert raw.message(m.BasicReturn).method.reply_code == 312
    refused(raw, m.QueueDeclare(reply_to, passive=True), 404)


def test_direct_reply_to_has_its_rules(raw: Raw, name: str) -> None:
    """Q: automatic acks only, one consumer per channel, none without a request behind it."""
    refused(raw, m.BasicConsume(DIRECT_REPLY_TO), 406)
    raw.consume(DIRECT_REPLY_TO, no_ack=True, consumer_tag="one")
    refused(raw, m.BasicConsume(DIRECT_REPLY_TO, "two", no_ack=True), 406)
    raw.declare(name)
    raw.publish(1, "", name, b"?", reply_to=DIRECT_REPLY_TO)
    raw.channel_error(406)


def test_pika_and_the_classic_queue(port: int, name: str) -> None:
    """Q: the usual client, the usual things."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True)
        channel.basic_qos(prefetch_count=1)
        for number in range(5):
            properties = pika.BasicProperties(delivery_mode=2, headers={"n": number})
            channel.basic_publish("", name, b"%d" % number, properties)
        got = []
        for method, properties, body in channel.consume(name, inactivity_timeout=10):
            got.append((properties.headers["n"], body))
            channel.basic_ack(method.delivery_tag)
            if len(got) == 5:
                break
        channel.cancel()
        assert got == [(n, b"%d" % n) for n in range(5)]
        channel.queue_delete(name)

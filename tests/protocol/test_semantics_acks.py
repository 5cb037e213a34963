"""Consumer acknowledgements, A1-A14 of the contract, on the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvitto.base.limits import PROPERTIES_MAX
from kvitto.wire import methods as m
from kvitto.wire.properties import Properties
from kvitto.wire.spec import FRAME_HEADER
from tests.protocol.raw import NO_PROPERTIES, Raw, content
from tests.protocol.sansio import ProtocolHarness, Wire

More = Callable[..., Raw]


def fill(raw: Raw, name: str, count: int, **options: Any) -> None:
    """Declare the queue and put messages b"0", b"1", ... into it."""
    raw.declare(name, **options)
    raw.put_in(name, *(b"%d" % number for number in range(count)))


def bodies(raw: Raw, count: int) -> list[bytes]:
    return [raw.message().body for _ in range(count)]


def answered(raw: Raw, channel: int = 1) -> None:
    """Everything sent so far has been handled, and nothing else has come back."""
    raw.call(channel, m.BasicQos(0, 0), m.BasicQosOk)


def test_a_message_leaves_only_when_settled(raw: Raw, more: More, name: str) -> None:
    """A1: manual is the default."""
    fill(raw, name, 2)
    raw.consume(name)
    assert bodies(raw, 2) == [b"0", b"1"]
    raw.put(1, m.BasicAck(1))
    raw.call(1, m.ChannelClose(200, "bye"), m.ChannelCloseOk)
    assert more().drain(name) == [b"1"]


def test_no_ack_settles_with_the_delivery(raw: Raw, more: More, name: str) -> None:
    """A2."""
    fill(raw, name, 2)
    raw.consume(name, no_ack=True)
    assert bodies(raw, 2) == [b"0", b"1"]
    raw.call(1, m.ChannelClose(200, "bye"), m.ChannelCloseOk)
    assert more().count(name) == 0


def test_multiple_settles_up_to_and_including(raw: Raw, more: More, name: str) -> None:
    """A3: tags 2,3,4,5: ack 5 multiple settles 2-5."""
    fill(raw, name, 6)
    raw.consume(name)
    bodies(raw, 6)
    raw.put(1, m.BasicAck(1), m.BasicAck(5, True))
    raw.call(1, m.ChannelClose(200, "bye"), m.ChannelCloseOk)
    assert more().drain(name) == [b"5"]


def test_one_ack_leaves_those_before_it(raw: Raw, more: More, name: str) -> None:
    """A3: ack 5 alone leaves 2,3,4."""
    fill(raw, name, 5)
    raw.consume(name)
    bodies(raw, 5)
    raw.put(1, m.BasicAck(1), m.BasicAck(5))
    raw.call(1, m.ChannelClose(200, "bye"), m.ChannelCloseOk)
    assert more().drain(name) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("method", [m.BasicAck(0, True), m.BasicNack(0, True, False)], ids=["ack", "nack"])
def test_tag_0_with_multiple_is_all(raw: Raw, more: More, name: str, method: m.Method) -> None:
    """A3; also when nothing is unacked."""
    fill(raw, name, 3)
    raw.consume(name)
    bodies(raw, 3)
    raw.put(1, method, method)
    answered(raw)
    raw.call(1, m.ChannelClose(200, "bye"), m.ChannelCloseOk)
    assert more().count(name) == 0


def test_nack_multiple_requeues_in_order(raw: Raw, name: str) -> None:
    """A3, A5."""
    fill(raw, name, 4)
    tag = raw.consume(name)
    bodies(raw, 4)
    raw.call(1, m.BasicCancel(tag), m.BasicCancelOk)
    raw.put(1, m.BasicNack(3, True, True))
    assert raw.count(name) == 3
    assert raw.drain(name) == [b"0", b"1", b"2"]


def test_reject_concerns_one(raw: Raw, name: str) -> None:
    """A3."""
    fill(raw, name, 3)
    tag = raw.consume(name)
    bodies(raw, 3)
    raw.call(1, m.BasicCancel(tag), m.BasicCancelOk)
    raw.put(1, m.BasicReject(2, True), m.BasicReject(3, False))
    assert raw.drain(name) == [b"1"]


@pytest.mark.parametrize(
    "method",
    [
        m.BasicAck(2),
        m.BasicAck(0),
        m.BasicAck(9, True),
        m.BasicNack(2, False, True),
        m.BasicReject(2, True),
        m.BasicAck(2**63),
        m.BasicAck(2**64 - 1, True),
    ],
    ids=repr,
)
def test_an_unknown_tag_closes_the_channel(raw: Raw, name: str, method: m.Method) -> None:
    """A4."""
    fill(raw, name, 1)
    raw.consume(name)
    bodies(raw, 1)
    raw.put(1, method)
    close = raw.channel_error(406)
    assert "unknown delivery tag" in close.reply_text
    assert (close.class_id, close.method_id) == (60, method.METHOD_ID)
    raw.channel(1)
    assert raw.drain(name) == [b"0"]


def test_a_repeated_tag_closes_the_channel(raw: Raw, name: str) -> None:
    """A4."""
    fill(raw, name, 2)
    raw.consume(name)
    bodies(raw, 2)
    raw.put(1, m.BasicAck(1), m.BasicAck(1))
    assert raw.channel_error(406).reply_text == "PRECONDITION_FAILED - unknown delivery tag 1"


def test_tags_belong_to_one_channel(raw: Raw, name: str) -> None:
    """A3."""
    fill(raw, name, 2)
    raw.channel(2)
    assert raw.get(name, 1).method.delivery_tag == 1
    assert raw.get(name, 2).method.delivery_tag == 1
    raw.put(2, m.BasicAck(1))
    raw.put(2, m.BasicAck(1))
    raw.channel_error(406, 2)
    raw.put(1, m.BasicAck(1))
    answered(raw)


def test_tags_count_on_over_deliveries_that_need_no_ack(raw: Raw, name: str) -> None:
    """A3: one channel with manual and automatic consumers; every tag means the message it came with."""
    fill(raw, name, 4)
    fill(raw, name + ".auto", 2)
    tags = [
        raw.get(queue, no_ack=auto).method.delivery_tag
        for queue, auto in [(name, False), (name + ".auto", True), (name, False), (name + ".auto", True), (name, False)]
    ]
    assert tags == [1, 2, 3, 4, 5]
    raw.put(1, m.BasicAck(3))
    answered(raw)
    raw.put(1, m.BasicReject(1, True))
    answered(raw)
    raw.put(1, m.BasicAck(5, True))
    answered(raw)
    assert raw.drain(name) == [b"0", b"3"]


def test_a_tag_that_needed_no_ack_is_unknown(raw: Raw, name: str) -> None:
    """A4."""
    fill(raw, name, 2)
    raw.get(name)
    raw.get(name, no_ack=True)
    raw.put(1, m.BasicAck(2))
    raw.channel_error(406)


def test_requeue_goes_back_to_the_original_position(raw: Raw, name: str) -> None:
    """A5: at once ready, flagged, before what came later."""
    fill(raw, name, 3)
    first = raw.get(name)
    assert first is not None and not first.method.redelivered
    raw.put(1, m.BasicReject(1, True))
    again = [raw.get(name) for _ in range(3)]
    assert [(a.body, a.method.redelivered) for a in again if a] == [(b"0", True), (b"1", False), (b"2", False)]


def test_requeued_messages_of_several_sort_themselves_in(raw: Raw, name: str) -> None:
    """A5: requeued in any order, they come in the order in which they were published."""
    fill(raw, name, 5)
    for _ in range(4):
        raw.get(name)
    raw.put(1, *(m.BasicNack(tag, False, True) for tag in (3, 1, 4, 2)))
    assert raw.drain(name) == [b"%d" % n for n in range(5)]


def test_another_consumer_gets_what_one_gives_back(raw: Raw, more: More, name: str) -> None:
    """A5."""
    fill(raw, name, 1)
    other = more()
    raw.consume(name)
    delivery = raw.message()
    raw.call(1, m.BasicCancel(delivery.method.consumer_tag), m.BasicCancelOk)
    other.consume(name)
    raw.put(1, m.BasicNack(1, False, True))
    again = other.message()
    assert again.body == b"0" and again.method.redelivered


@pytest.mark.parametrize("end", ["channel", "connection", "socket", "reset", "error"])
def test_what_is_gone_gives_its_messages_back(raw: Raw, more: More, name: str, end: str) -> None:
    """A6: all of them, in order, flagged."""
    fill(raw, name, 3, durable=True)
    other = more()
    other.call(1, m.BasicQos(0, 2), m.BasicQosOk)
    other.consume(name)
    bodies(other, 2)
    raw.consume(name)
    assert raw.message().body == b"2"
    match end:
        case "channel":
            other.call(1, m.ChannelClose(200, "bye"), m.ChannelCloseOk)
        case "connection":
            other.call(0, m.ConnectionClose(200, "bye"), m.ConnectionCloseOk)
        case "socket":
            other.drop()
        case "reset":
            other.reset()
        case "error":
            other.put(1, m.BasicAck(99))
            other.channel_error(406)
    back = [raw.message(), raw.message()]
    assert [(b.body, b.method.redelivered) for b in back] == [(b"0", True), (b"1", True)]


def test_a_silent_consumer_loses_its_messages() -> None:
    """A6, W6: two heartbeat intervals without a word. Time is the test's."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q"), m.BasicConsume("q", "c"))
    wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"x"))
    harness.turn()
    assert harness.broker.vhosts["/"].queues["q"].unacked == 1
    beats = [wire.connection.beat() for _ in range(5)]
    assert beats == [True] * 4 + [False]
    wire.connection.lost()
    harness.turn()
    queue = harness.broker.vhosts["/"].queues["q"]
    assert (queue.ready, queue.unacked) == (1, 0)


def test_reject_without_requeue_drops(raw: Raw, name: str) -> None:
    """A7, without a dead-letter exchange."""
    fill(raw, name, 2)
    raw.get(name)
    raw.put(1, m.BasicReject(1, False))
    assert raw.drain(name) == [b"1"]


def test_reject_without_requeue_dead_letters(raw: Raw, name: str) -> None:
    """A7, with one."""
    raw.declare(name + ".dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name + ".dead"}
    fill(raw, name, 1, arguments=arguments)
    raw.consume(name + ".dead", no_ack=True)
    raw.get(name)
    raw.put(1, m.BasicNack(1, False, False))
    assert raw.message().headers["x-death"][0]["reason"] == "rejected"


def test_the_delivery_limit_is_a_number_of_failed_deliveries(raw: Raw, name: str) -> None:
    """A8: with 2, the third failure ends it; the header counts earlier deliveries."""
    raw.declare(name + ".dead")
    arguments = {
        "x-queue-type": "quorum",
        "x-delivery-limit": 2,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": name + ".dead",
    }
    fill(raw, name, 1, durable=True, arguments=arguments)
    raw.consume(name)
    counts = []
    for tag in (1, 2, 3):
        delivery = raw.message()
        counts.append((delivery.headers.get("x-delivery-count"), delivery.method.redelivered))
        raw.put(1, m.BasicReject(tag, True))
    assert counts == [(None, False), (1, True), (2, True)]
    raw.channel(2)
    raw.consume(name + ".dead", 2, no_ack=True)
    death = raw.message().headers["x-death"][0]
    assert (death["reason"], death["queue"], death["count"]) == ("delivery_limit", name, 1)


def test_a_delivery_limit_without_dead_letters_drops(raw: Raw, name: str) -> None:
    """A8."""
    fill(raw, name, 1, durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 0})
    raw.consume(name)
    raw.message()
    raw.put(1, m.BasicNack(1, False, True))
    answered(raw)
    raw.put(1, m.QueueDelete(name))
    assert raw.expect(m.QueueDeleteOk).message_count == 0


def test_redelivered_and_the_count_survive_a_restart() -> None:
    """A9."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q", durable=True))
    harness.settle_down()
    for body in (b"twice", b"once", b"never"):
        wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, body))
    harness.settle_down()
    wire.put(1, m.BasicGet("q"), m.BasicNack(1, False, True), m.BasicGet("q"), m.BasicGet("q"))
    harness.settle_down()
    harness = ProtocolHarness(harness.disk.kill())
    wire = harness.wire()
    wire.put(1, m.BasicGet("q"), m.BasicGet("q"), m.BasicGet("q"))
    harness.settle_down()
    redelivered = [method.redelivered for method in wire.methods() if isinstance(method, m.BasicGetOk)]
    assert redelivered == [True, True, False]
    assert b"x-delivery-count" in wire.written


def test_prefetch_is_per_consumer(raw: Raw, name: str) -> None:
    """A10: global=false, for the consumers made after it."""
    fill(raw, name, 10)
    raw.call(1, m.BasicQos(0, 2), m.BasicQosOk)
    raw.consume(name, consumer_tag="two")
    assert bodies(raw, 2) == [b"0", b"1"]
    raw.call(1, m.BasicQos(0, 3), m.BasicQosOk)
    raw.consume(name, consumer_tag="three")
    assert [raw.message().method.consumer_tag for _ in range(3)] == ["three"] * 3
    answered(raw)
    raw.put(1, m.BasicAck(1))
    assert raw.message().method.consumer_tag == "two"
    assert raw.count(name) == 4


def test_global_prefetch_is_per_channel(raw: Raw, name: str) -> None:
    """A10: global=true."""
    fill(raw, name, 10)
    raw.call(1, m.BasicQos(0, 3, True), m.BasicQosOk)
    for tag in ("a", "b"):
        raw.put(1, m.BasicConsume(name, tag))
    got: list[Any] = []
    while len(got) < 5:
        method = raw.method()[1]
        got.append(method)
        if isinstance(method, m.BasicDeliver):
            raw.next(), raw.next()
    assert sum(isinstance(method, m.BasicDeliver) for method in got) == 3
    assert raw.count(name) == 7
    raw.put(1, m.BasicAck(3, True))
    bodies(raw, 3)
    assert raw.count(name) == 4


def test_both_prefetch_limits_hold(raw: Raw, name: str) -> None:
    """A10."""
    fill(raw, name, 10)
    raw.call(1, m.BasicQos(0, 4, True), m.BasicQosOk)
    raw.call(1, m.BasicQos(0, 3), m.BasicQosOk)
    raw.consume(name, consumer_tag="a")
    bodies(raw, 3)
    raw.consume(name, consumer_tag="b")
    assert raw.message().method.consumer_tag == "b"
    assert raw.count(name) == 6


def test_no_ack_is_not_limited_by_prefetch(raw: Raw, name: str) -> None:
    """A10."""
    fill(raw, name, 10)
    raw.call(1, m.BasicQos(0, 1), m.BasicQosOk)
    raw.consume(name, no_ack=True)
    assert len(bodies(raw, 10)) == 10


def test_prefetch_size_is_not_implemented(raw: Raw) -> None:
    """A10."""
    raw.put(1, m.BasicQos(1, 0))
    raw.connection_error(540)


def test_settling_frees_credit_at_once(raw: Raw, name: str) -> None:
    """A10: with a prefetch of one, every ack brings the next."""
    fill(raw, name, 50)
    raw.call(1, m.BasicQos(0, 1), m.BasicQosOk)
    raw.consume(name)
    for number in range(50):
        delivery = raw.message()
        assert delivery.body == b"%d" % number
        raw.put(1, m.BasicAck(delivery.method.delivery_tag))
    assert raw.count(name) == 0


def test_consumers_take_turns(raw: Raw, name: str) -> None:
    """A12: round robin."""
    raw.declare(name)
    for tag in "abc":
        raw.consume(name, consumer_tag=tag)
    for number in range(9):
        raw.publish(1, "", name, b"%d" % number)
    tags = [raw.message().method.consumer_tag for _ in range(9)]
    assert sorted(tags[:3]) == ["a", "b", "c"] and tags[:3] * 3 == tags


def test_who_has_no_credit_is_passed_over(raw: Raw, name: str) -> None:
    """A12."""
    raw.declare(name)
    raw.call(1, m.BasicQos(0, 1), m.BasicQosOk)
    raw.consume(name, consumer_tag="one")
    raw.call(1, m.BasicQos(0, 0), m.BasicQosOk)
    raw.consume(name, consumer_tag="all")
    for _ in range(6):
        raw.publish(1, "", name)
    tags = [raw.message().method.consumer_tag for _ in range(6)]
    assert sorted(tags) == ["all"] * 5 + ["one"]


def test_higher_priority_first(raw: Raw, name: str) -> None:
    """A12: the lower one gets what the higher has no credit for."""
    raw.declare(name)
    raw.call(1, m.BasicQos(0, 2), m.BasicQosOk)
    for tag, priority in (("low", -1), ("high", 5), ("none", None)):
        raw.consume(name, consumer_tag=tag, arguments={} if priority is None else {"x-priority": priority})
    for _ in range(6):
        raw.publish(1, "", name)
    assert [raw.message().method.consumer_tag for _ in range(6)] == ["high"] * 2 + ["none"] * 2 + ["low"] * 2


def test_equal_priorities_share(raw: Raw, name: str) -> None:
    """A12."""
    raw.declare(name)
    for tag, priority in (("low", 0), ("a", 5), ("b", 5)):
        raw.consume(name, consumer_tag=tag, arguments={"x-priority": priority})
    for _ in range(6):
        raw.publish(1, "", name)
    assert sorted(raw.message().method.consumer_tag for _ in range(6)) == ["a"] * 3 + ["b"] * 3


def test_priority_must_be_an_integer(raw: Raw, name: str) -> None:
    """A12, Q: a wrong type is refused."""
    raw.declare(name)
    raw.put(1, m.BasicConsume(name, arguments={"x-priority": "high"}))
    raw.channel_error(406)


def test_recover_requeues_all(raw: Raw, name: str) -> None:
    """A13."""
    fill(raw, name, 2)
    raw.consume(name)
    bodies(raw, 2)
    raw.put(1, m.BasicRecover(True))
    kinds: list[Any] = []
    again = []
    while len(kinds) < 3:
        method = raw.method()[1]
        kinds.append(type(method))
        if isinstance(method, m.BasicDeliver):
            raw.next()
            again.append((raw.next()[2], method.redelivered))
    assert m.BasicRecoverOk in kinds
    assert again == [(b"0", True), (b"1", True)]


def test_recover_without_requeue_is_not_implemented(raw: Raw) -> None:
    """A13."""
    raw.put(1, m.BasicRecover(False))
    raw.connection_error(540)


def test_get(raw: Raw, name: str) -> None:
    """A14: with the number of those that are left."""
    fill(raw, name, 2)
    first, second = raw.get(name), raw.get(name, no_ack=True)
    assert first is not None and second is not None
    assert (first.body, first.method.message_count, first.method.exchange, first.method.routing_key) == (
        b"0",
        1,
        "",
        name,
    )
    assert (second.body, second.method.message_count) == (b"1", 0)
    assert raw.get(name) is None


def test_cancel_of_an_unknown_tag_is_fine(raw: Raw) -> None:
    """A14."""
    assert raw.call(1, m.BasicCancel("nobody"), m.BasicCancelOk).consumer_tag == "nobody"


def test_after_cancel_nothing_comes_and_the_unacked_stay(raw: Raw, name: str) -> None:
    """A14: cancel ends deliveries, not what has been delivered."""
    fill(raw, name, 1)
    tag = raw.consume(name)
    raw.message()
    raw.call(1, m.BasicCancel(tag), m.BasicCancelOk)
    raw.publish(1, "", name, b"later")
    assert raw.count(name) == 1
    raw.put(1, m.BasicAck(1))
    assert raw.drain(name) == [b"later"]


def test_the_broker_cancels_when_the_queue_goes(raw: Raw, more: More, name: str) -> None:
    """A14: only who can take it is told."""
    raw.declare(name)
    able, unable = raw, more(capabilities={})
    able.consume(name, consumer_tag="able")
    unable.consume(name, consumer_tag="unable")
    other = more()
    other.call(1, m.QueueDelete(name), m.QueueDeleteOk)
    assert able.expect(m.BasicCancel).consumer_tag == "able"
    answered(unable)


def test_acks_for_a_queue_that_is_gone_are_fine(raw: Raw, name: str) -> None:
    """A14, A4: the tags stay known."""
    fill(raw, name, 3)
    for _ in range(3):
        raw.get(name)
    raw.call(1, m.QueueDelete(name), m.QueueDeleteOk)
    raw.put(1, m.BasicAck(1), m.BasicNack(2, False, True), m.BasicReject(3, False))
    answered(raw)


def test_a_channel_that_holds_one_message_for_long_does_not_grow() -> None:
    """W8: the books of a channel are about what is unacked, not about all that ever was."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q"), m.BasicQos(0, 2), m.BasicConsume("q", "c"))
    one = content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"")
    wire.feed(one)
    harness.turn()
    for tag in range(2, 20_000):
        wire.feed(one)
        harness.turn()
        wire.put(1, m.BasicAck(tag))
    channel = wire.connection.channels[1]
    assert channel.unacked == 1 and channel._tags.cap < 16_384


def harness_with(props: bytes) -> tuple[ProtocolHarness, Wire]:
    """One message with these properties in queue q, and a peer with large frames."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q", durable=True))
    harness.settle_down()
    wire.feed(content(1, m.BasicPublish("", "q"), props, b"x"))
    harness.settle_down()
    wire.frames()
    return harness, wire


def headers_of(wire: Wire) -> list[bytes]:
    """Payloads of the content headers that came since the last call; none is larger than the frames that were agreed on."""
    frames = wire.frames()
    assert all(len(payload) + 8 <= wire.connection.frame_max for _, _, payload in frames)
    return [payload for kind, _, payload in frames if kind == FRAME_HEADER]


@pytest.mark.parametrize("room", [0, 25, 26, 100])
def test_the_count_is_left_out_where_it_does_not_fit(room: int) -> None:
    """A8: the redelivered message was larger than a frame, and the consumer was cut off again and again."""
    props = Properties(headers={"own": b"x" * (PROPERTIES_MAX - room - 15)}).encode()
    assert len(props) == PROPERTIES_MAX - room
    harness, wire = harness_with(props)
    for _ in range(2):
        wire.put(1, m.BasicGet("q"))
        harness.settle_down()
        last = headers_of(wire)[-1]
        wire.put(1, m.BasicNack(0, True, True))
    assert last.startswith(b"\0\x3c\0\0" + b"\0" * 7 + b"\x01" + props[:2])
    assert (b"x-delivery-count" in last) == (room >= 26)


def test_a_redelivered_message_keeps_the_types_of_its_headers() -> None:
    """A8: an array of bytes became one of 32-bit numbers."""
    small = b"\x01hA\0\0\x01\0" + b"b\x01" * 128
    harness, wire = harness_with(b"\x20\0" + len(small).to_bytes(4, "big") + small)
    for _ in range(2):
        wire.put(1, m.BasicGet("q"), m.BasicNack(0, True, True))
    harness.settle_down()
    first, again = headers_of(wire)
    assert small in first and small in again and b"x-delivery-countl" + (1).to_bytes(8, "big") in again


@pytest.mark.parametrize("redelivered", [False, True])
def test_properties_that_do_not_fit_its_frames_cancel_the_consumer(redelivered: bool) -> None:
    """W8: sent all the same, they ended its connection, and the next one. The message waits for somebody else."""
    harness, wire = harness_with(Properties(headers={"own": b"x" * 5000}).encode())
    if redelivered:
        wire.put(1, m.BasicGet("q"), m.BasicNack(0, True, True))
        harness.settle_down()
        wire.frames()
    small = harness.wire(login=False)
    small.login(frame_max=4096, consumer_cancel_notify=True)
    small.put(1, m.BasicConsume("q", "tag"))
    harness.settle_down()
    queue = harness.broker.vhosts["/"].queues["q"]
    assert small.methods() == [m.BasicConsumeOk("tag"), m.BasicCancel("tag", True)]
    assert (queue.ready, queue.unacked, queue.consumers) == (1, 0, [])
    small.put(1, m.BasicGet("q"))
    harness.settle_down()
    (close,) = small.methods()
    assert isinstance(close, m.ChannelClose) and close.reply_code == 406
    assert (queue.ready, queue.unacked) == (1, 0)
    wire.put(1, m.BasicConsume("q", "large", False, True))
    harness.settle_down()
    assert len(headers_of(wire)) == 1 and queue.messages == 0


def test_others_go_on_when_a_consumer_is_turned_away() -> None:
    """A12."""
    harness, wire = harness_with(NO_PROPERTIES)
    small = harness.wire(login=False)
    small.login(frame_max=4096, consumer_cancel_notify=True)
    for peer in (small, wire):
        peer.put(1, m.BasicConsume("q", "tag", False, True))
    harness.settle_down()
    large = Properties(headers={"own": b"x" * 5000}).encode()
    for props in (large, large, NO_PROPERTIES, large):
        wire.feed(content(1, m.BasicPublish("", "q"), props, b"x"))
    harness.settle_down()
    queue = harness.broker.vhosts["/"].queues["q"]
    assert (queue.ready, len(queue.consumers), queue.delivered) == (0, 1, 5)
    assert isinstance(small.methods()[-1], m.BasicCancel)

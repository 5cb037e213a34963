"""The compiled core of the asyncio client, without sockets: which acks go out, and which publish gets which confirm."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitto.base.errors import ConnectionError_
from kvitto.client.aio.core import ChannelCore, ConnectionCore, ConsumerCore, IncomingMessage
from kvitto.client.aio.errors import AlreadySettled, Nacked, Returned
from kvitto.wire import methods as m
from kvitto.wire.properties import Properties
from tests.support.running import asynchronous


class BrokerHarness:
    """A connection core with channel 1 and a consumer on it."""

    def __init__(self, new_future: Callable[[], Any] = lambda: None, *, no_ack: bool = False) -> None:
        self.core = ConnectionCore(lambda callback: None, lambda: None)
        self.channel: ChannelCore = self.core.open_channel(1, new_future)
        self.consumer = ConsumerCore()
        self.consumer.no_ack = no_ack
        self.channel.add_consumer("c", self.consumer)

    def receive(self, data: bytes, step: int = 1 << 16) -> None:
        for at in range(0, len(data), step):
            self.core.inp.add(data[at : at + step])
            self.core.received(0)

    def deliver(self, tag: int, body: bytes = b"body", **options: Any) -> bytes:
        """The frames of a delivery."""
        method = m.BasicDeliver("c", tag, options.get("redelivered", False), "exchange", options.get("key", "key"))
        return frames(method, body)

    def settled(self) -> list[m.Method]:
        """The methods that would be sent now."""
        data, found = self.core.take(), []
        while data:
            size = int.from_bytes(data[3:7], "big")
            found.append(m.decode(data[7 : 7 + size]))
            data = data[8 + size :]
        return found


def frames(method: m.Method, body: bytes, step: int = 1000) -> bytes:
    properties = Properties(message_id="m").encode()
    header = b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + properties
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    return b"".join(
        [m.frame(1, 1, method.encode()), m.frame(2, 1, header), *(m.frame(3, 1, piece) for piece in pieces)]
    )


class BrokerChannel:
    """Which deliveries a broker holds as unsettled; it refuses what a broker refuses."""

    def __init__(self) -> None:
        self.unsettled: set[int] = set()
        self.acked: set[int] = set()
        self.rejected: set[int] = set()

    def take(self, method: m.Method) -> None:
        assert isinstance(method, m.BasicAck | m.BasicReject | m.BasicNack)
        tag = method.delivery_tag
        assert tag in self.unsettled, f"unknown delivery tag {tag}"
        many = not isinstance(method, m.BasicReject) and method.multiple
        tags = {t for t in self.unsettled if t <= tag} if many else {tag}
        self.unsettled -= tags
        (self.acked if isinstance(method, m.BasicAck) else self.rejected).update(tags)


STEPS = st.lists(
    st.one_of(
        st.just(("deliver", 0)),
        st.tuples(st.sampled_from(["ack", "ack", "ack", "reject", "nack many", "ack many"]), st.integers(0, 600)),
        st.just(("flush", 0)),
    ),
    max_size=300,
)


@given(STEPS, st.booleans())
def test_exactly_the_acked_deliveries_are_acked_with_as_few_frames_as_that_takes(
    steps: list[tuple[str, int]], combine: bool
) -> None:
    harness, broker = BrokerHarness(), BrokerChannel()
    harness.channel.combine = combine
    taken: list[IncomingMessage] = []
    acked: set[int] = set()
    rejected: set[int] = set()

    def flush() -> None:
        for method in harness.settled():
            broker.take(method)

    for step, number in [("deliver", 0)] * 3 + steps:
        if step == "deliver":
            tag = len(taken) + 1
            broker.unsettled.add(tag)
            harness.receive(harness.deliver(tag))
            message = harness.consumer.take()
            assert message is not None and message.delivery_tag == tag
            taken.append(message)
        elif step == "flush":
            flush()
        else:
            message = taken[number % len(taken)]
            tag = message.delivery_tag
            if tag in acked | rejected:
                assert message.settled
                with pytest.raises(AlreadySettled):
                    message.ack()
                continue
            assert not message.settled
            earlier = {t for t in range(1, tag) if t not in acked | rejected}
            if step == "ack":
                assert message.ack()
                acked.add(tag)
            elif step == "ack many":
                assert message.ack(multiple=True)
                acked |= earlier | {tag}
            elif step == "reject":
                assert message.reject()
                rejected.add(tag)
            else:
                assert message.nack(multiple=True)
                rejected |= earlier | {tag}
    flush()
    assert (broker.acked, broker.rejected) == (acked, rejected)


def test_acks_in_a_row_become_one_and_a_gap_is_left_open() -> None:
    harness = BrokerHarness()
    harness.receive(b"".join(harness.deliver(tag) for tag in range(1, 1001)))
    messages = list(harness.consumer.messages)
    for message in messages[:500] + messages[600:602]:
        message.ack()
    assert harness.settled() == [m.BasicAck(500, True), m.BasicAck(601), m.BasicAck(602)]
    for message in messages[500:600]:
        message.ack()
    assert harness.settled() == [m.BasicAck(600, True)]


def test_odd_delivery_tags_are_acked_one_by_one() -> None:
    harness = BrokerHarness()
    harness.receive(b"".join(harness.deliver(tag) for tag in (1, 2, 1 << 60, 7)))
    for message in list(harness.consumer.messages):
        message.ack()
    assert harness.settled() == [m.BasicAck(1), m.BasicAck(2), m.BasicAck(1 << 60), m.BasicAck(7)]


def test_deliveries_that_need_no_ack_cost_no_memory() -> None:
    harness = BrokerHarness(no_ack=True)
    for tag in range(1, 2000):
        harness.receive(harness.deliver(tag))
    assert harness.channel.unacked_low == 2000
    message = harness.consumer.take()
    assert message is not None and message.settled
    with pytest.raises(AlreadySettled):
        message.ack()


def test_acks_after_the_end_say_so() -> None:
    harness = BrokerHarness()
    harness.receive(harness.deliver(1) + harness.deliver(2))
    first, second = harness.consumer.messages
    harness.channel.die()
    assert first.ack() is False
    assert second.reject() is False
    assert harness.settled() == [] and harness.core.dropped == 2


@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=5), st.integers(1, 50))
def test_messages_arrive_whole_however_they_are_cut(bodies: list[bytes], step: int) -> None:
    harness = BrokerHarness()
    data = b"".join(harness.deliver(tag, body, key=f"key {tag % 2}") for tag, body in enumerate(bodies, 1))
    harness.receive(data, step)
    found = [harness.consumer.take() for _ in bodies]
    assert [(f.body, f.routing_key, f.consumer_tag) for f in found if f is not None] == [
        (body, f"key {tag % 2}", "c") for tag, body in enumerate(bodies, 1)
    ]
    assert found[0] is not None and found[0].properties == Properties(message_id="m")


CONFIRMS = st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.booleans()), max_size=40)


@given(st.integers(1, 40), CONFIRMS)
def test_each_publish_gets_the_confirm_that_the_broker_sent_for_it(
    count: int, confirms: list[tuple[int, bool, bool]]
) -> None:
    class Future:
        outcome: object = "waits"

        def done(self) -> bool:
            return self.outcome != "waits"

        def set_result(self, value: object) -> None:
            assert not self.done()
            self.outcome = "acked"

        def set_exception(self, error: Exception) -> None:
            assert not self.done() and isinstance(error, Nacked)
            self.outcome = "nacked"

    harness = BrokerHarness(Future)
    harness.channel.confirms = True
    futures: list[Any] = [harness.channel.publish("", "q", 0, b"\0\0", b"x") for _ in range(count)]
    expected = ["waits"] * count
    for tag, multiple, ok in confirms:
        method = m.BasicAck(tag, multiple) if ok else m.BasicNack(tag, multiple, False)
        if tag > count:
            with pytest.raises(ConnectionError_):
                harness.receive(m.frame(1, 1, method.encode()))
            break
        harness.receive(m.frame(1, 1, method.encode()))
        tags = range(1, (tag or count) + 1) if multiple else [tag] if tag else []
        for settled in tags:
            if expected[settled - 1] == "waits":
                expected[settled - 1] = "acked" if ok else "nacked"
    assert [future.outcome for future in futures] == expected
    assert len(harness.channel.unconfirmed()) == expected.count("waits")


def test_a_confirm_on_a_channel_without_confirms_is_an_error() -> None:
    with pytest.raises(ConnectionError_):
        BrokerHarness().receive(m.frame(1, 1, m.BasicAck(1).encode()))


@asynchronous
async def test_a_return_belongs_to_the_first_publish_like_it() -> None:
    harness = BrokerHarness(asyncio.get_running_loop().create_future)
    harness.channel.confirms = True
    publish = harness.channel.publish
    futures: list[Any] = [
        publish("", key, 1, b"\0\0", body) for key, body in [("a", b"1"), ("b", b"1"), ("b", b"1"), ("b", b"2")]
    ]
    returned = m.BasicReturn(312, "NO_ROUTE", "", "b")
    harness.receive(frames(returned, b"1") + frames(returned, b"2") + frames(returned, b"3"))
    harness.receive(m.frame(1, 1, m.BasicAck(4, True).encode()))
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes] == ["NoneType", "Returned", "NoneType", "Returned"]
    ((_, kind, _, nobodys),) = harness.core.events
    assert kind == 4 and nobodys.body == b"3"  # type: ignore[attr-defined]
    assert not harness.channel.mandatory


@asynchronous
async def test_a_return_of_a_publish_that_is_sent_again_is_not_its_outcome() -> None:
    new_future = asyncio.get_running_loop().create_future
    first, second = BrokerHarness(new_future), BrokerHarness(new_future)
    first.channel.confirms = first.channel.keep = second.channel.confirms = second.channel.keep = True
    routed = first.channel.publish("", "a", 1, b"\0\0", b"1")
    lost = first.channel.publish("", "b", 1, b"\0\0", b"2")
    returned = m.BasicReturn(312, "NO_ROUTE", "", "a")
    first.receive(frames(returned, b"1") + frames(m.BasicReturn(312, "NO_ROUTE", "", "b"), b"2"))
    for _, waiting in first.channel.unconfirmed():  # the connection is lost before they are confirmed
        second.channel.publish_again(waiting)
    second.receive(frames(m.BasicReturn(312, "NO_ROUTE", "", "b"), b"2"))
    second.receive(m.frame(1, 1, m.BasicAck(2, True).encode()))
    assert routed is not None and lost is not None and await routed is None
    with pytest.raises(Returned):
        await lost
    assert not second.core.events and not second.channel.mandatory


@given(st.binary(max_size=300))
def test_any_bytes_are_handled_or_refused(data: bytes) -> None:
    harness = BrokerHarness()
    with contextlib.suppress(ConnectionError_):
        harness.receive(data)


@given(st.sampled_from([m.BasicDeliver("c", 1, False, "e", "k"), m.BasicGetOk(1), m.BasicReturn(1, "t")]), st.data())
def test_a_method_with_content_that_is_cut_or_changed_is_handled_or_refused(
    method: m.Method, data: st.DataObject
) -> None:
    payload = bytearray(method.encode())
    for _ in range(data.draw(st.integers(0, 3))):
        payload[data.draw(st.integers(4, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(4, len(payload)))])
    harness = BrokerHarness()
    header = b"\0\x3c\0\0" + (1).to_bytes(8, "big") + b"\0\0"
    with contextlib.suppress(ConnectionError_):
        harness.receive(m.frame(1, 1, cut) + m.frame(2, 1, header) + m.frame(3, 1, b"x"))

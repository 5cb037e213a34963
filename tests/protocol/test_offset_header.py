"""Offsets of ordinary queues on request: consumer argument x-offset-header, and for basic.get a capability of the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvitto.wire import methods as m
from tests.protocol.raw import ALL_CAPABILITIES, Message, Raw, content
from tests.protocol.sansio import ProtocolHarness, Wire

More = Callable[..., Raw]
ASK: dict[str, Any] = {"x-offset-header": True}


@pytest.fixture
def queue(raw: Raw, name: str) -> str:
    raw.declare(name, durable=True)
    raw.put_in(name, b"0", b"1", b"2")
    return name


def offset_of(message: Message | None) -> Any:
    assert message is not None
    return message.headers.get("x-stream-offset")


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"headers": {"n": 1}, "message_id": "id", "content_type": "text/plain"},
        {"headers": {"x-stream-offset": 99, "n": 1}, "type": "x"},
    ],
    ids=["none", "some", "with one of another stream"],
)
def test_a_consumer_that_asks_gets_each_offset(raw: Raw, queue: str, properties: dict[str, Any]) -> None:
    """Beside what the message has; also when it comes back, with its count of deliveries (A8)."""
    raw.put_in(queue, b"3", **properties)
    tag = raw.consume(queue, arguments=ASK)
    got = [raw.message() for _ in range(4)]
    assert [(message.body, offset_of(message)) for message in got] == [(b"%d" % n, n) for n in range(4)]
    raw.put(1, m.BasicNack(got[3].method.delivery_tag, False, True))
    again = raw.message()
    wanted = properties.get("headers", {}) | {"x-stream-offset": 3}
    assert (got[3].headers, again.headers) == (wanted, wanted | {"x-delivery-count": 1})
    assert again.properties.message_id == properties.get("message_id")
    raw.call(1, m.BasicCancel(tag), m.BasicCancelOk)


def one_waits(harness: ProtocolHarness) -> tuple[Wire, Wire]:
    """A publisher, and a consumer that asks for offsets; both are logged in, and queue `q` is there."""
    publisher, consumer = harness.wire(), harness.wire()
    publisher.put(1, m.QueueDeclare("q", durable=True))
    harness.settle_down()
    consumer.put(1, m.BasicConsume("q", "tag", arguments=ASK))
    harness.settle_down()
    consumer.frames()
    return publisher, consumer


def delivered(consumer: Wire) -> int:
    return sum(isinstance(method, m.BasicDeliver) for method in consumer.methods())


def test_only_what_is_durable_is_delivered() -> None:
    """Nobody is told of an offset that a power cut could give to another message; the sync comes although nobody waits for a confirm."""
    harness = ProtocolHarness()
    publisher, consumer = one_waits(harness)
    publisher.feed(content(1, m.BasicPublish("", "q"), b"\0\0", b"x") * 3)
    for _ in range(3):
        harness.turn()
    assert delivered(consumer) == 0
    assert harness.store.commits.waiting
    harness.settle_down()  # two syncs: the segment is new, and then the inventory
    assert delivered(consumer) == 3
    harness.settle_down()


def test_a_full_disk_is_waited_for_without_a_busy_loop() -> None:
    """D4: nothing is written and nothing is delivered; when there is room it goes on."""
    harness = ProtocolHarness()
    publisher, consumer = one_waits(harness)
    harness.disk.full = True
    publisher.feed(content(1, m.BasicPublish("", "q"), b"\0\0", b"x") * 3)
    harness.settle_down()
    assert harness.broker.full and delivered(consumer) == 0
    for _ in range(3):  # it looks now and then
        harness.clock.advance(1)
        harness.broker.tick()
        harness.settle_down()
    assert delivered(consumer) == 0
    harness.disk.full = False
    harness.broker.retry_writes()
    harness.clock.advance(1)
    harness.broker.tick()
    harness.settle_down()
    assert delivered(consumer) == 3


def test_consumers_that_ask_and_others_share_a_queue(raw: Raw, more: More, queue: str) -> None:
    raw.call(1, m.BasicQos(0, 1, False), m.BasicQosOk)
    raw.consume(queue, arguments=ASK)
    assert offset_of(raw.message()) == 0
    other = more()
    other.call(1, m.BasicQos(0, 1, False), m.BasicQosOk)
    other.consume(queue)
    assert (message := other.message()).body == b"1" and offset_of(message) is None


def test_a_queue_with_priorities_tells_offsets_too(raw: Raw, name: str) -> None:
    raw.declare(name, durable=True, arguments={"x-max-priority": 5})
    raw.put_in(name, b"low", priority=1)
    raw.put_in(name, b"high", priority=5)
    raw.consume(name, arguments=ASK)
    assert [(message.body, offset_of(message)) for message in (raw.message(), raw.message())] == [
        (b"high", 1),
        (b"low", 0),
    ]


def test_get_has_the_offset_on_a_connection_that_can_take_it(raw: Raw, more: More, queue: str) -> None:
    assert offset_of(raw.get(queue)) is None
    able = more(capabilities=ALL_CAPABILITIES | {"kvitto_offset_header": True})
    first = able.get(queue)
    assert offset_of(first) == 1
    assert first is not None
    able.put(1, m.BasicNack(first.method.delivery_tag, False, True))
    again = able.get(queue)
    assert again is not None and again.headers == {"x-stream-offset": 1, "x-delivery-count": 1}
    transient = able.declare(exclusive=True)
    able.put_in(transient, b"x")
    assert offset_of(able.get(transient)) is None


@pytest.mark.parametrize(
    ("durable", "argument", "no_ack", "says"),
    [
        (True, "yes", False, "expected a boolean, got 'yes'"),
        (True, True, True, "manual acks"),
        (False, True, False, "is not durable, or exclusive"),
    ],
)
def test_what_cannot_be_is_refused(raw: Raw, name: str, durable: bool, argument: Any, no_ack: bool, says: str) -> None:
    raw.declare(name, durable=durable, exclusive=not durable)
    raw.put(1, m.BasicConsume(name, no_ack=no_ack, arguments={"x-offset-header": argument}))
    close = raw.channel_error(406)
    assert "invalid arg 'x-offset-header'" in close.reply_text and says in close.reply_text


def test_properties_that_no_longer_fit_end_the_consumer(raw: Raw, more: More, queue: str) -> None:
    """The message stays for one that takes larger frames, as with x-delivery-count."""
    small = more(frame_max=4096)
    raw.call(1, m.QueuePurge(queue), m.QueuePurgeOk)
    raw.put_in(queue, b"x", headers={"h": "x" * (4096 - 8 - 12 - 2 - 4 - 7 - 10)})
    small.consume(queue, arguments=ASK)
    assert small.expect(m.BasicCancel)
    assert raw.count(queue) == 1
    plain = more(frame_max=4096)
    plain.consume(queue)
    assert plain.message().body == b"x"

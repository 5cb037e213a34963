"""Publisher confirms, C1-C10 of the contract, on the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest

from kvitto.wire import methods as m
from tests.protocol.raw import NO_PROPERTIES, Raw, content
from tests.protocol.sansio import ProtocolHarness


def confirmed(raw: Raw, count: int) -> tuple[list[int], list[int]]:
    """The next `count` publishes as (acked, nacked) numbers; each may be confirmed once only."""
    acked: list[int] = []
    nacked: list[int] = []
    while len(acked) + len(nacked) < count:
        method: Any = raw.method()[1]
        assert isinstance(method, m.BasicAck | m.BasicNack), method
        known = acked if isinstance(method, m.BasicAck) else nacked
        done = {*acked, *nacked}
        assert method.delivery_tag not in done, "confirmed twice"
        first = 1 if method.multiple else method.delivery_tag
        known += [n for n in range(first, method.delivery_tag + 1) if n not in done]
    return acked, nacked


def test_no_confirm_before_select_and_numbers_start_behind_it(raw: Raw, name: str) -> None:
    """C1."""
    raw.declare(name)
    raw.publish(1, "", name)
    raw.call(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    raw.publish(1, "", name)
    assert confirmed(raw, 1) == ([1], [])
    raw.call(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    raw.publish(1, "", name)
    assert raw.expect(m.BasicAck).delivery_tag == 2
    assert raw.count(name) == 3


def test_each_channel_counts_for_itself(raw: Raw, name: str) -> None:
    """C1."""
    raw.declare(name)
    for number in (2, 3):
        raw.channel(number, confirm=True)
        raw.publish(number, "", name)
        channel, method = raw.method()
        assert (channel, method) == (number, m.BasicAck(1, False))


def harness_with(*queues: str) -> ProtocolHarness:
    """Queues whose segments the inventory knows: before a first message is confirmed it takes a sync of its own."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, *(m.QueueDeclare(name, durable=True) for name in queues), m.ConfirmSelect())
    harness.settle_down()
    for name in queues:
        wire.feed(content(1, m.BasicPublish("", name), NO_PROPERTIES, b"first"))
    harness.settle_down()
    return harness


def test_a_persistent_message_is_confirmed_only_once_it_is_durable() -> None:
    """C2: neither the write nor another sync that began before it is enough."""
    harness = harness_with("q")
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q", durable=True), m.ConfirmSelect())
    harness.settle_down()
    wire.frames()
    wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"one"))
    harness.turn()
    job = harness.store.begin_sync(everything=True)
    wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"two"))
    harness.turn()
    assert wire.methods() == []
    job.run()
    assert wire.methods() == []
    harness.store.end_sync(job)
    harness.turn()
    assert wire.methods() == [m.BasicAck(1, False)]
    harness.sync()
    assert wire.methods() == [m.BasicAck(2, False)]


def test_one_sync_confirms_all_that_is_pending() -> None:
    """C2, C5: grouped, cumulative, in order."""
    harness = harness_with("a", "b")
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("a", durable=True), m.QueueDeclare("b", durable=True), m.ConfirmSelect())
    harness.settle_down()
    wire.frames()
    syncs = harness.store.commits.syncs
    for number in range(100):
        wire.feed(content(1, m.BasicPublish("", "ab"[number % 2]), NO_PROPERTIES, b"x"))
        harness.turn()
    harness.settle_down()
    assert wire.methods() == [m.BasicAck(100, True)] and harness.store.commits.syncs == syncs + 1


def test_a_failed_sync_confirms_nothing() -> None:
    """C8."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q", durable=True), m.ConfirmSelect())
    harness.settle_down()
    wire.frames()
    wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"x"))
    harness.turn()
    job = harness.store.begin_sync(everything=True)
    job.error = OSError("the device is gone")
    harness.store.end_sync(job)
    harness.turn()
    assert harness.store.failed is not None and wire.methods() == []
    with pytest.raises(AssertionError):
        harness.store.begin_sync(everything=True)


def test_a_message_that_was_consumed_before_the_sync_is_confirmed() -> None:
    """C2: already consumed and settled there."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q", durable=True), m.ConfirmSelect(), m.BasicConsume("q", "c", no_ack=True))
    harness.settle_down()
    wire.frames()
    wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"x"))
    harness.settle_down()
    assert [type(method) for method in wire.methods()] == [m.BasicDeliver, m.BasicAck]


def test_a_transient_queue_confirms_without_a_sync() -> None:
    """C3."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q"), m.ConfirmSelect())
    harness.settle_down()
    wire.frames()
    wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"x"))
    harness.turn()
    assert wire.methods() == [m.BasicAck(1, False)]


def test_unroutable_is_confirmed_at_once(raw: Raw, name: str) -> None:
    """C4."""
    raw.call(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    raw.publish(1, "amq.direct", name)
    assert raw.expect(m.BasicAck) == m.BasicAck(1, False)


def test_unroutable_and_mandatory_is_returned_before_the_ack(raw: Raw, name: str) -> None:
    """C4: return first, then the ack, then silence."""
    raw.call(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    raw.publish(1, "amq.direct", name, b"body", mandatory=True, content_type="text/plain")
    back = raw.message(m.BasicReturn)
    assert (back.method.reply_code, back.method.reply_text) == (312, "NO_ROUTE")
    assert (back.method.exchange, back.method.routing_key) == ("amq.direct", name)
    assert (back.body, back.properties.content_type) == (b"body", "text/plain")
    assert raw.expect(m.BasicAck) == m.BasicAck(1, False)
    raw.call(1, m.BasicQos(0, 1), m.BasicQosOk)


def test_returns_and_acks_of_many_keep_their_order(raw: Raw, name: str) -> None:
    """C4, C5: no ack overtakes the return of a message it covers."""
    raw.declare(name)
    raw.call(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    for number in range(60):
        raw.publish(1, "", name if number % 3 else name + ".none", b"%d" % number, mandatory=True)
    returned, acked = 0, 0
    while acked < 60:
        method: Any = raw.method()[1]
        if isinstance(method, m.BasicReturn):
            raw.next()
            number = int(raw.next()[2])
            assert number % 3 == 0 and number + 1 > acked
            returned += 1
        else:
            assert isinstance(method, m.BasicAck)
            acked = method.delivery_tag
    assert returned == 20


def test_every_publish_is_confirmed_once(raw: Raw, name: str) -> None:
    """C5, with durable, transient, unroutable and refused ones mixed."""
    raw.declare(name, durable=True)
    raw.declare(name + ".t")
    raw.declare(name + ".full", durable=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    raw.call(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    for number in range(400):
        raw.publish(1, "", name + ["", ".t", ".none", ".full"][number % 4], b"x")
    acked, nacked = confirmed(raw, 400)
    assert sorted(acked) == [n for n in range(1, 401) if n % 4]
    assert sorted(nacked) == [n for n in range(1, 401) if n % 4 == 0]
    assert raw.count(name) == 100


def test_acks_never_go_back(raw: Raw, name: str) -> None:
    """C5: cumulative acks of one channel do not overtake each other."""
    raw.declare(name, durable=True)
    raw.call(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    last = 0
    for batch in range(20):
        for _ in range(50):
            raw.publish(1, "", name, b"x")
        while last < 50 * (batch + 1):
            tag = raw.expect(m.BasicAck).delivery_tag
            assert tag > last
            last = tag


def test_a_full_queue_nacks_and_the_other_copy_stays(raw: Raw, name: str) -> None:
    """C6."""
    raw.call(1, m.ExchangeDeclare(name, "fanout"), m.ExchangeDeclareOk)
    raw.declare(name, durable=True)
    raw.declare(name + ".full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    for queue in (name, name + ".full"):
        raw.call(1, m.QueueBind(queue, name), m.QueueBindOk)
    raw.call(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    for _ in range(2):
        raw.publish(1, name, "", b"x")
    assert confirmed(raw, 2) == ([1], [2])
    assert (raw.count(name), raw.count(name + ".full")) == (2, 1)


@pytest.mark.parametrize("end", ["delete", "purge", "reject", "expire"])
def test_a_pending_confirm_of_a_message_that_goes_is_an_ack(end: str) -> None:
    """C7."""
    harness = ProtocolHarness()
    wire = harness.wire()
    arguments: dict[str, Any] = {"x-message-ttl": 5} if end == "expire" else {}
    wire.put(1, m.QueueDeclare("q", durable=True, arguments=arguments), m.ConfirmSelect())
    harness.settle_down()
    wire.frames()
    wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"x"))
    harness.turn()
    match end:
        case "delete":
            wire.put(1, m.QueueDelete("q"))
        case "purge":
            wire.put(1, m.QueuePurge("q"))
        case "reject":
            wire.put(1, m.BasicGet("q"), m.BasicReject(1, False))
        case "expire":
            harness.clock.advance(1.0)
            harness.broker.tick()
    harness.settle_down()
    assert m.BasicAck(1, False) in wire.methods()


def test_confirm_and_tx_exclude_each_other(raw: Raw, more: Callable[..., Raw]) -> None:
    """C10, either order."""
    raw.call(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    raw.put(1, m.TxSelect())
    raw.channel_error(406)
    raw.channel(2)
    raw.call(2, m.TxSelect(), m.TxSelectOk)
    raw.put(2, m.ConfirmSelect())
    raw.channel_error(406, 2)


def test_confirms_of_an_open_transaction_of_others_are_not_held_up(raw: Raw, name: str) -> None:
    """C5: a channel waits for nobody else's."""
    raw.declare(name, durable=True)
    raw.channel(2)
    raw.call(2, m.TxSelect(), m.TxSelectOk)
    raw.publish(2, "", name, b"held")
    raw.call(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    raw.publish(1, "", name, b"x")
    assert confirmed(raw, 1) == ([1], [])
    assert raw.count(name) == 1


@pytest.mark.slow
def test_the_cost_of_a_confirm_does_not_grow_with_those_outstanding() -> None:
    """C9: what a sync costs is the same with 1,000 and with 200,000 publishes pending (measured in steps, not in time)."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q", durable=True), m.ConfirmSelect())
    harness.settle_down()
    wire.frames()
    one = content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"")
    for count in (1000, 200_000):
        for _ in range(count // 1000):
            wire.feed(one * 1000)
        harness.settle_down()
        assert len(wire.methods()) == 1


def test_pika_sees_nacks_and_returns(port: int, name: str) -> None:
    """C4, C6 as the usual client reports them."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(name, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", name, b"x")
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish("", name + ".none", b"x", mandatory=True)
        channel.basic_publish("", name + ".none", b"x")

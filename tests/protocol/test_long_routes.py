"""Messages with a long way to go: others are served while they are routed, and they are confirmed when they are everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvitto.base.errors import ChannelError
from kvitto.broker.routing import index
from kvitto.broker.transfers import copying
from kvitto.protocol import channel as channels
from kvitto.wire import methods as m
from kvitto.wire.methods import frame
from kvitto.wire.properties import Properties
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER
from tests.protocol.raw import NO_PROPERTIES, content
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.support.harness import work_queue
from tests.support.limited import limit

COPIES = Properties(headers={"CC": [str(i) for i in range(200)]}).encode()


@pytest.fixture
def harness() -> ProtocolHarness:
    return ProtocolHarness()


def ready(harness: ProtocolHarness, name: str) -> int:
    return harness.broker.vhosts["/"].queues[name].ready


def publish(wire: Wire, exchange: str, key: str = "", props: bytes = NO_PROPERTIES, body: bytes = b"x") -> None:
    wire.feed(content(1, m.BasicPublish(exchange, key), props, body))


def confirming(harness: ProtocolHarness) -> Wire:
    wire = harness.wire()
    wire.put(1, m.ConfirmSelect(), m.QueueDeclare("a", durable=True), m.QueueDeclare("b", durable=True))
    harness.settle_down()
    wire.methods()
    return wire


def behind_exchanges(harness: ProtocolHarness, count: int = 100, kind: str = "fanout") -> None:
    """A fanout exchange `x` with so many exchanges behind it, and queue `a` behind the last one."""
    vhost = harness.broker.vhosts["/"]
    source = vhost.declare_exchange("x", "fanout", False, False, False, {})
    for i in range(count):
        dest = vhost.declare_exchange(f"x{i}", kind, False, False, False, {})
        vhost.bind(source.name, dest, "", {})
    vhost.bind(f"x{count - 1}", vhost.queues["a"], "", {})


def test_a_message_is_routed_in_pieces_and_confirmed_when_it_is_there(harness: ProtocolHarness) -> None:
    """1,000 keys in CC and 2,000 exchanges held everybody for half a second."""
    one, other = confirming(harness), confirming(harness)
    behind_exchanges(harness, 1000)
    one.feed(
        content(1, m.BasicPublish("x", ""), COPIES, b"far")
        + content(1, m.BasicPublish("", "b"), NO_PROPERTIES, b"behind")
    )
    publish(other, "", "b", body=b"served")
    harness.turn()
    while harness.store.commits.waiting:
        harness.sync()
    assert other.methods() == [m.BasicAck(1, False)] and ready(harness, "b") == 1
    assert one.methods() == [] and not ready(harness, "a")
    harness.settle_down()
    acks = [method.delivery_tag for method in one.methods() if isinstance(method, m.BasicAck)]
    assert acks in ([2], [1, 2]) and ready(harness, "a") == 1 and ready(harness, "b") == 2
    assert one.reading


def test_a_body_in_several_frames_is_routed_in_pieces_too(harness: ProtocolHarness) -> None:
    wire = confirming(harness)
    behind_exchanges(harness)
    whole = content(1, m.BasicPublish("x", ""), COPIES, b"far" * 1000)
    for at in range(0, len(whole), 700):
        wire.feed(whole[at : at + 700])
    assert not wire.reading and not ready(harness, "a")
    harness.settle_down()
    assert ready(harness, "a") == 1 and wire.methods() == [m.BasicAck(1, False)]


def test_a_plain_message_is_routed_in_pieces_and_the_route_is_remembered(harness: ProtocolHarness) -> None:
    wire = confirming(harness)
    behind_exchanges(harness, index.PIECE_STEPS)
    for expected in (False, True):
        publish(wire, "x")
        assert wire.reading == expected
        harness.settle_down()
    assert ready(harness, "a") == 2
    assert [tag.delivery_tag for tag in wire.methods() if isinstance(tag, m.BasicAck)] == [1, 2]


def test_a_route_that_changes_while_it_is_searched_for_is_not_remembered(harness: ProtocolHarness) -> None:
    wire = confirming(harness)
    behind_exchanges(harness, index.PIECE_STEPS)
    vhost = harness.broker.vhosts["/"]
    publish(wire, "x")
    vhost.bind("x", vhost.queues["b"], "", {})
    harness.settle_down()
    publish(wire, "x")
    harness.settle_down()
    assert (ready(harness, "a"), ready(harness, "b")) == (2, 1)


def test_a_queue_that_is_deleted_while_a_route_is_searched_for_gets_nothing(harness: ProtocolHarness) -> None:
    wire = confirming(harness)
    behind_exchanges(harness, index.PIECE_STEPS)
    vhost = harness.broker.vhosts["/"]
    publish(wire, "x")
    gone = vhost.queues["a"]
    vhost.delete_queue(gone)
    harness.settle_down()
    assert gone.published == 0 and wire.methods() == [m.BasicAck(1, False)]


def test_a_connection_that_is_lost_in_the_middle_leaves_the_broker_in_order(harness: ProtocolHarness) -> None:
    wire, other = confirming(harness), confirming(harness)
    behind_exchanges(harness)
    publish(wire, "x", props=COPIES)
    wire.connection.lost()
    harness.settle_down()
    publish(other, "", "b")
    harness.settle_down()
    assert other.methods() == [m.BasicAck(1, False)] and len(harness.broker.jobs.waiting) == 0


@pytest.mark.parametrize("props", [COPIES, NO_PROPERTIES], ids=["special", "plain"])
def test_a_publish_in_a_transaction_is_gone_with_its_connection(harness: ProtocolHarness, props: bytes) -> None:
    """T6: it was still being routed, and came to its queue although nothing was committed."""
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("a"), m.TxSelect())
    behind_exchanges(harness, index.PIECE_STEPS)
    publish(wire, "x", props=props)
    assert not wire.reading
    wire.connection.lost()
    harness.settle_down()
    assert not ready(harness, "a") and harness.hub.buffered.total == 0


def test_nothing_is_returned_or_refused_on_a_channel_that_has_been_closed(harness: ProtocolHarness) -> None:
    wire = confirming(harness)
    behind_exchanges(harness)
    vhost = harness.broker.vhosts["/"]
    vhost.unbind("x99", vhost.queues["a"], "", {})
    wire.feed(content(1, m.BasicPublish("x", "", mandatory=True), COPIES, b"x"))
    wire.connection.fail_channel(wire.connection.channels[1], ChannelError(406, "too late"))
    harness.settle_down()
    assert [type(method) for method in wire.methods()] == [m.ChannelClose]


def test_a_blocked_publisher_waits_behind_the_message_that_is_routed_in_pieces(harness: ProtocolHarness) -> None:
    """D4: the end of the work for it let the next one in."""
    wire = confirming(harness)
    behind_exchanges(harness)
    harness.hub.alarms.block("low on disk: a test")
    wire.feed(3 * content(1, m.BasicPublish("x", ""), COPIES, b"x"))
    harness.settle_down()
    assert ready(harness, "a") == 1 and not wire.reading
    harness.hub.alarms.block(None)
    harness.settle_down()
    assert ready(harness, "a") == 3 and wire.reading


def test_a_publisher_goes_on_that_is_no_longer_blocked_when_its_message_is_there(harness: ProtocolHarness) -> None:
    wire = confirming(harness)
    behind_exchanges(harness)
    harness.hub.alarms.block("low on disk: a test")
    wire.feed(2 * content(1, m.BasicPublish("x", ""), COPIES, b"x"))
    harness.hub.alarms.block(None)
    assert not ready(harness, "a")
    harness.settle_down()
    assert ready(harness, "a") == 2 and wire.reading


def test_a_route_that_is_too_long_closes_the_channel_in_a_later_turn(
    harness: ProtocolHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limit ROUTING_STEPS_MAX: direct and fanout exchanges count, too."""
    limit(harness.broker, routing_steps_max=10_000)
    wire = confirming(harness)
    behind_exchanges(harness)
    publish(wire, "x", props=COPIES)
    assert wire.methods() == []
    harness.settle_down()
    (close,) = wire.methods()
    assert isinstance(close, m.ChannelClose) and close.reply_code == 406 and "could take more than" in close.reply_text
    assert (close.class_id, close.method_id) == (60, 40) and wire.reading
    wire.put(1, m.ChannelCloseOk())
    wire.put(1, m.ChannelOpen())
    harness.settle_down()
    assert [type(method) for method in wire.methods()] == [m.ChannelOpenOk]


def many_queues(harness: ProtocolHarness, count: int, exchange: str = "amq.fanout") -> None:
    vhost = harness.broker.vhosts["/"]
    for i in range(count):
        vhost.bind(exchange, vhost.declare_queue(f"q{i}", True, False, False, {}, None), "", {})


@pytest.mark.parametrize("props", [NO_PROPERTIES, Properties(expiration="60000").encode()], ids=["plain", "special"])
def test_a_message_goes_to_very_many_queues_in_pieces(harness: ProtocolHarness, props: bytes) -> None:
    wire = confirming(harness)
    count = channels.MANY + 50
    many_queues(harness, count)
    harness.settle_down()
    publish(wire, "amq.fanout", props=props)
    reached: list[int] = []
    for _ in turns(harness):
        reached.append(sum(ready(harness, f"q{i}") for i in range(count)))
        assert wire.methods() == [] or reached[-1] == count
    assert reached[0] < count and reached[-1] == count
    publish(wire, "amq.fanout", props=props)
    publish_again_refused = not wire.reading
    harness.settle_down()
    assert publish_again_refused and all(ready(harness, f"q{i}") == 2 for i in range(count))


def test_queues_that_refuse_are_told_when_the_message_is_everywhere(harness: ProtocolHarness) -> None:
    """C6: one nack, behind the last queue."""
    wire = confirming(harness)
    count = channels.MANY + 50
    many_queues(harness, count)
    full = work_queue(harness.broker, "q7")
    full.max_length, full.limited, full.rejects = 0, True, True
    publish(wire, "amq.fanout")
    harness.settle_down()
    assert wire.methods() == [m.BasicNack(1, False, False)]
    assert [ready(harness, f"q{i}") for i in (6, 7, 8)] == [1, 0, 1]


@pytest.mark.parametrize("kind", ["fanout", "headers"])
def test_a_queue_that_fails_while_the_others_get_their_copies_is_no_reason_for_an_ack(
    harness: ProtocolHarness, kind: str
) -> None:
    """C6, D6: the message was confirmed, since all others had their copies."""
    wire = confirming(harness)
    many_queues(harness, channels.MANY + 50, f"amq.{kind}")
    harness.settle_down()
    failing = harness.broker.vhosts["/"].queues["q230"]
    publish(wire, f"amq.{kind}")  # makes the files of all queues, which takes many turns
    harness.settle_down()
    assert wire.methods() == [m.BasicAck(1, False)]
    publish(wire, f"amq.{kind}")
    harness.turn()
    assert failing.ready == 1 and wire.methods() == []
    failing.contain(RuntimeError("a bug"))
    harness.settle_down()
    assert wire.methods() == [m.BasicNack(2, False, False)]


def turns(harness: ProtocolHarness) -> Iterator[None]:
    while harness.hub.unfinished() or harness.store.commits.waiting:
        if harness.hub.unfinished():
            harness.turn()
        else:
            harness.sync()
        yield


def test_copies_of_a_large_message_are_made_one_by_one(harness: ProtocolHarness) -> None:
    """One of 32 MiB for 60 queues held everybody for 7 s, and took 2 GB of memory."""
    wire, size = confirming(harness), 3 * copying.COPIES_BYTES
    many_queues(harness, 5)
    harness.settle_down()
    wire.put(1, m.BasicPublish("amq.fanout", ""))
    wire.feed(frame(FRAME_HEADER, 1, b"\0\x3c\0\0" + size.to_bytes(8, "big") + NO_PROPERTIES))
    for _ in range(size // 65536):
        wire.feed(frame(FRAME_BODY, 1, bytes(65536)))
    queues = [harness.broker.vhosts["/"].queues[f"q{i}"] for i in range(5)]
    most = 0
    for _ in turns(harness):
        most = max(most, sum(queue.tail.batch is not None for queue in queues))
    assert most <= 1 and [queue.ready for queue in queues] == [1] * 5
    assert wire.methods() == [m.BasicAck(1, False)] and wire.reading


def test_a_refused_message_has_its_way_to_dead_letter_queues_in_pieces(harness: ProtocolHarness) -> None:
    """C6, x-overflow=reject-publish-dlx: 100 publishes with 2,000 queues behind the dead-letter exchange held everybody for 375 ms."""
    wire = confirming(harness)
    many_queues(harness, channels.MANY + 50)
    dlx: dict[str, Any] = {
        "x-max-length": 0,
        "x-overflow": "reject-publish-dlx",
        "x-dead-letter-exchange": "amq.fanout",
    }
    wire.put(1, m.QueueDeclare("full", durable=True, arguments=dlx))
    harness.settle_down()
    wire.methods()
    wire.feed(content(1, m.BasicPublish("", "full"), NO_PROPERTIES, b"x") * 2)
    assert wire.connection.stalled, "it was all done in one piece"
    harness.settle_down()
    assert wire.methods() == [m.BasicNack(1, False, False), m.BasicNack(2, False, False)]
    assert {ready(harness, f"q{i}") for i in range(channels.MANY + 50)} == {2}

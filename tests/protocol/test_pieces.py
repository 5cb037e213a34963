"""Many deliveries that are settled at once, by turns of two consumers: it takes several turns, and looks as if it took none."""

from __future__ import annotations

import pytest

from kvitto.broker.queue import Queue
from kvitto.wire import methods as m
from kvitto.wire.spec import FRAME_BODY
from tests.protocol.raw import NO_PROPERTIES, content
from tests.protocol.sansio import House, Wire

QUEUE = "q"
COUNT = 4000
"""Messages of each consumer: more than are settled in one piece."""


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture
def wire(house: House) -> Wire:
    """A peer whose channels 1 and 2 hold every second message each."""
    wire = house.wire()
    wire.put(2, m.ChannelOpen())
    wire.put(1, m.QueueDeclare(QUEUE), m.BasicConsume(QUEUE, "a"))
    wire.put(2, m.BasicConsume(QUEUE, "b"))
    house.settle()
    fill(wire, range(2 * COUNT))
    house.settle()
    wire.put(1, m.BasicCancel("a"))
    wire.put(2, m.BasicCancel("b"))
    house.settle()
    wire.frames()
    assert [channel.unacked for channel in wire.connection.channels.values()] == [COUNT, COUNT]
    return wire


def fill(wire: Wire, numbers: range) -> None:
    for number in numbers:
        wire.feed(content(1, m.BasicPublish("", QUEUE), NO_PROPERTIES, b"%d" % number))


def queue(house: House) -> Queue:
    return house.broker.vhosts["/"].queues[QUEUE]


def bodies(wire: Wire) -> list[int]:
    return [int(payload) for kind, _, payload in wire.frames() if kind == FRAME_BODY]


def test_what_a_channel_held_comes_back_before_anything_that_came_later(house: House, wire: Wire) -> None:
    """A5, A6: another consumer waits; no message overtakes one that is on its way back, and none is lost or doubled on the way."""
    fill(wire, range(2 * COUNT, 2 * COUNT + 10))
    other = house.wire()
    other.put(1, m.BasicConsume(QUEUE, "c", no_ack=True))
    wire.connection.lost()
    assert queue(house).ready + queue(house).unacked == 2 * COUNT + 10
    assert queue(house).unacked, "it was all done in one piece"
    house.settle()
    assert bodies(other) == list(range(2 * COUNT + 10))
    assert not queue(house).messages


def test_a_get_behind_a_close_waits_for_what_comes_back(house: House, wire: Wire) -> None:
    wire.put(1, m.ChannelClose(200, "done"))
    wire.connection.stalled and house.settle()
    house.settle()
    wire.put(2, m.BasicGet(QUEUE, True))
    house.settle()
    assert bodies(wire) == [0]


def test_close_ok_comes_when_everything_is_back(house: House, wire: Wire) -> None:
    wire.put(1, m.ChannelClose(200, "done"))
    assert wire.connection.stalled and queue(house).ready < COUNT
    assert not wire.methods()
    house.settle()
    assert [type(method) for method in wire.methods()] == [m.ChannelCloseOk]
    assert queue(house).ready == COUNT


def test_an_ack_of_many_runs_settles_all_of_them_and_nothing_else(house: House, wire: Wire) -> None:
    wire.put(1, m.BasicNack(0, True, False))
    house.settle()
    assert (queue(house).unacked, wire.connection.channels[1].unacked) == (COUNT, 0)
    wire.put(2, m.BasicAck(COUNT - 1, True))
    house.settle()
    assert (queue(house).unacked, wire.connection.channels[2].unacked) == (1, 1)
    wire.put(2, m.BasicAck(COUNT))
    house.settle()
    assert not queue(house).messages and wire.methods() == []


def test_recover_ok_comes_when_everything_is_back_in_order(house: House, wire: Wire) -> None:
    wire.put(1, m.BasicRecover(True))
    assert queue(house).ready < COUNT
    house.settle()
    assert queue(house).ready == COUNT
    assert [type(method) for method in wire.methods()] == [m.BasicRecoverOk]
    wire.put(1, m.BasicConsume(QUEUE, "c", no_ack=True))
    house.settle()
    assert bodies(wire) == list(range(0, 2 * COUNT, 2))


def test_a_transaction_holds_and_gives_back_what_was_acked_in_it(house: House, wire: Wire) -> None:
    """T6, T2: a rollback leaves all unacked, a commit settles them."""
    wire.put(1, m.TxSelect(), m.BasicAck(0, True))
    house.settle()
    wire.put(1, m.TxRollback())
    house.settle()
    assert wire.connection.channels[1].unacked == COUNT
    wire.put(1, m.BasicAck(1), m.BasicAck(0, True))
    house.settle()
    wire.put(1, m.TxCommit())
    house.settle()
    assert wire.connection.channels[1].unacked == 0
    assert queue(house).unacked == COUNT
    wire.put(1, m.BasicAck(1))
    house.settle()
    assert any(isinstance(method, m.ChannelClose) for method in wire.methods())


def test_a_peer_that_is_lost_in_the_middle_of_an_ack_gets_the_rest_back(house: House, wire: Wire) -> None:
    wire.put(1, m.BasicAck(0, True))
    wire.connection.lost()
    house.settle()
    left = queue(house)
    assert left.unacked == 0
    assert COUNT <= left.ready < 2 * COUNT
    assert left.ready == left.next - left.cursor + len(left.requeued)


def test_a_purge_takes_everything_at_once_and_settles_it_in_pieces(house: House, wire: Wire) -> None:
    """What comes meanwhile stays, and nobody gets what was there before."""
    wire.put(1, *(m.BasicNack(tag, requeue=True) for tag in range(1, COUNT + 1)))
    house.settle()
    other = house.wire()
    other.put(1, m.BasicConsume(QUEUE, "c", no_ack=True), m.BasicCancel("c"))
    assert queue(house).ready == COUNT
    wire.put(1, m.QueuePurge(QUEUE))
    assert wire.connection.stalled, "it was all done in one piece"
    assert queue(house).ready == 0
    fill(other, range(10))
    other.put(1, m.BasicConsume(QUEUE, "c", no_ack=True))
    house.settle()
    assert bodies(other) == list(range(10))
    assert [method for method in wire.methods() if isinstance(method, m.QueuePurgeOk)] == [m.QueuePurgeOk(COUNT)]
    assert queue(house).messages == COUNT, "channel 2 holds them"


def test_delayed_messages_are_purged_and_attached_to_in_pieces(house: House) -> None:
    wire = house.wire()
    delay = {"x-retry-delay-min": 60_000, "x-retry-delay-max": 60_000}
    wire.put(1, m.ConfirmSelect(), m.QueueDeclare(QUEUE, durable=True, arguments=delay))
    house.settle()
    for method in (m.LogAttach(QUEUE, "group"), m.QueuePurge(QUEUE)):
        fill(wire, range(5000))
        wire.put(1, m.BasicConsume(QUEUE, "a"))
        house.settle()
        wire.put(1, m.BasicCancel("a"), m.BasicNack(0, True, True))
        house.settle()
        assert len(queue(house).delays) == 5000
        wire.frames()
        wire.put(1, method)
        assert wire.connection.stalled, "it was all done in one piece"
        house.settle()
        assert len(wire.methods()) == 1 and not len(queue(house).delays)
        if isinstance(method, m.LogAttach):
            wire.put(1, m.LogCount(QUEUE, "", 0, 5000))
            house.settle()
            assert wire.methods() == [m.LogCountOk(0, 5000, 5000)]
            wire.put(1, m.LogSettle(QUEUE, "group", "", 5000), m.LogDetach(QUEUE, "group"))
            house.settle()
        assert not queue(house).messages


def test_a_connection_of_many_channels_ends_in_pieces(house: House) -> None:
    """A5, A6: and nothing overtakes what the last of them gives back."""
    other, wire = house.wire(), house.wire()
    other.put(1, m.QueueDeclare(QUEUE))
    for number in range(2, 102):
        wire.put(number, m.ChannelOpen(), m.BasicQos(0, 1), m.BasicConsume(QUEUE, "a"))
    fill(other, range(110))
    house.settle()
    other.put(1, m.BasicConsume(QUEUE, "c", no_ack=True))
    wire.connection.lost()
    assert queue(house).unacked, "it was all done in one piece"
    house.settle()
    assert sorted(bodies(other)) == list(range(110))

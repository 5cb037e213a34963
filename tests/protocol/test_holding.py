"""W8: memory for messages that are not complete: as much as has come of them, a share for each user, and not for ever."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvitto.base.limits import DEFAULTS
from kvitto.protocol.closing import CONSUMERS_PER_PIECE
from kvitto.protocol.connection import Connection
from kvitto.protocol.holding import BUFFER_BYTES, BUFFERS_MAX, Holding
from kvitto.protocol.states import RUNNING
from kvitto.server.watch import PIECE, ConnectionWatch
from kvitto.wire import methods as m
from kvitto.wire.methods import frame
from kvitto.wire.spec import FRAME_BODY
from tests.protocol import sessions
from tests.protocol.sansio import House, Wire
from tests.protocol.test_limits import MIB, ask, begun, check_others, close_of
from tests.support.limited import limit


def user_of(house: House, name: str) -> Wire:
    """A connection of another user, who may do everything."""
    if name not in house.broker.users:
        house.broker.users.add(name, name)
        house.broker.users.set_permission(name, "/", ".*", ".*", ".*")
    wire = house.wire(login=False)
    wire.login(name)
    return wire


def watch(house: House, seconds: int) -> None:
    """Look after the connections once a second, as the server does."""
    watching = ConnectionWatch(house.hub)
    for _ in range(seconds):
        house.clock.advance(1)
        house.broker.read_clock()
        watching.begin(False)
        house.settle()


def test_a_body_takes_hardly_more_memory_than_has_come_of_it() -> None:
    """Announced or not: memory must not grow by more than what a peer has sent."""
    house = House()
    wire = house.wire()
    for size in (10_000, 300_000, 3_000_000):
        wire.feed(begun("a", 100 * MIB, bytes(size)))
        house.settle()
        assert size <= house.hub.holding.total <= size + size // 8
        wire.connection.lost()
        assert house.hub.holding.total == 0
        wire = house.wire()


def test_one_user_cannot_take_the_memory_that_another_one_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who takes more than his share is closed with words; the message of somebody else is taken."""
    house = House()
    limit(house.broker, held_max=8 * MIB)
    wires = [house.wire() for _ in range(40)]
    for wire in wires:
        wire.feed(begun("a", 100 * MIB, bytes(300_000)))
        house.settle()
    ended = [wire for wire in wires if wire.connection.state != RUNNING]
    assert ended and len(ended) < len(wires)
    kind, code, text = close_of(ended[0].methods())
    assert (kind, code) == (m.ConnectionClose, 506) and "user 'guest'" in text
    other = user_of(house, "other")
    ask(other, m.QueueDeclare("large"), m.ConfirmSelect())
    other.feed(sessions.content(1, m.BasicPublish("", "large"), b"\0\0", bytes(MIB)))
    house.settle()
    assert other.methods()[-1] == m.BasicAck(1)


def test_where_all_hold_too_much_the_connection_that_holds_most_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the one that comes next."""
    house = House()
    limit(house.broker, held_max=7 * MIB // 2)
    small, large = house.wire(), house.wire()
    small.feed(begun("a", 100 * MIB, bytes(300_000)))
    large.feed(begun("a", 100 * MIB, bytes(900_000)))
    others = [user_of(house, name) for name in ("one", "two", "three")]
    for other in others:
        other.feed(begun("a", 100 * MIB, bytes(900_000)))
        house.settle()
    kind, code, text = close_of(large.methods())
    assert (kind, code) == (m.ConnectionClose, 506) and "this one holds most" in text
    assert all(wire.connection.state == RUNNING for wire in (small, *others))
    check_others(house)


def test_free_buffers_for_bodies_are_bounded_and_count_when_they_are_used() -> None:
    """A message that is complete leaves its buffer to the next one, of whichever connection: not to its own for ever."""
    house = House()
    wires = [house.wire() for _ in range(2 * BUFFERS_MAX)]
    ask(wires[0], m.QueueDeclare("a"))
    for wire in wires:
        wire.feed(begun("a", 3 * MIB, bytes(MIB)))
    for wire in wires:
        wire.feed(frame(FRAME_BODY, 1, bytes(100_000)) * 20 + frame(FRAME_BODY, 1, bytes(2 * MIB - 2_000_000)))
        house.settle()
    assert house.hub.holding.total == 0
    before = house.hub.holding.total
    for wire in wires:
        wire.feed(begun("a", 3 * MIB, b"x"))
    assert before + 3 * MIB * BUFFERS_MAX <= house.hub.holding.total
    assert house.hub.holding.total <= 2 * BUFFER_BYTES * BUFFERS_MAX


def test_a_message_that_does_not_go_on_ends_its_connection() -> None:
    """Limit BODY_S; what has come of it is given back, and heartbeats are no progress."""
    house = House()
    wire, other = house.wire(), house.wire()
    ask(wire, m.ChannelOpen(), channel=7)
    wire.feed(begun("a", MIB, bytes(100_000), 7))
    other.feed(begun("a", MIB, bytes(100_000)))
    for _ in range(13):
        watch(house, 10)
        if wire.connection.state == RUNNING:
            wire.feed(b"\x08\0\0\0\0\0\0\xce")
        other.feed(frame(FRAME_BODY, 1, b"x"))
    kind, code, text = close_of(wire.methods())
    assert (kind, code) == (m.ConnectionClose, 506) and "begun on channel 7" in text and "60 s" in text
    assert other.connection.state == RUNNING
    assert house.broker.refused["unfinished"] == 1


def test_a_message_that_waits_for_room_is_not_too_slow() -> None:
    """Nothing is read from a publisher that is blocked: its message cannot go on."""
    house = House()
    wire = house.wire()
    house.hub.alarms.block("no room")
    wire.feed(begun("a", MIB, bytes(100_000)))
    assert not wire.reading
    watch(house, 130)
    assert wire.connection.state == RUNNING
    house.hub.alarms.block(None)
    watch(house, 50)
    assert wire.connection.state == RUNNING


def test_a_look_at_many_connections_is_cut_into_pieces() -> None:
    """No timer holds the loop for longer than a few milliseconds, however many connections there are."""
    house = House()
    wires = [house.wire(login=False) for _ in range(3 * PIECE)]
    house.settle()
    house.clock.advance(DEFAULTS.handshake_s + 1)
    house.broker.read_clock()
    ConnectionWatch(house.hub).begin(False)
    at_once = sum(wire.aborted for wire in wires)
    assert 0 < at_once <= PIECE
    house.settle()
    assert all(wire.aborted for wire in wires) and house.broker.refused["handshake"] == len(wires)


@pytest.mark.parametrize("pieces", [0, 2])
def test_an_error_in_a_look_at_the_connections_does_not_end_all_later_looks(
    pieces: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """W8: who had stopped in the middle of the handshake stayed for ever then."""
    house = House()
    wire = house.wire(login=False)
    house.clock.advance(DEFAULTS.handshake_s + 1)
    house.broker.read_clock()
    watching = ConnectionWatch(house.hub)

    def look(_: ConnectionWatch, give_back: bool) -> Iterator[None]:
        yield from [None] * pieces
        raise RuntimeError("injected")

    with monkeypatch.context() as broken:
        broken.setattr(ConnectionWatch, "_look", look)
        watching.begin(False)
        house.settle()
    assert "internal error in connectionwatch" in caplog.text and not wire.aborted
    watching.begin(False)
    house.settle()
    assert wire.aborted


def test_who_gives_way_needs_several_turns_for_its_end_and_its_memory_is_free_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A channel with many consumers ends in pieces: the search for who holds most must find another one meanwhile."""
    asked: list[str] = []
    largest = Holding._largest

    def counted(holding: Holding) -> Connection:
        asked.append("")
        assert len(asked) < 10, "it is asked again and again who holds most"
        return largest(holding)

    monkeypatch.setattr(Holding, "_largest", counted)
    house = House()
    limit(house.broker, held_max=3 * MIB)
    large = house.wire()
    ask(large, m.QueueDeclare("a"), m.TxSelect())
    ask(large, *(m.BasicConsume("a", f"tag-{number}") for number in range(3 * CONSUMERS_PER_PIECE)))
    large.feed(sessions.content(1, m.BasicPublish("", "a"), b"\0\0", bytes(100_000)) * 14)
    house.settle()
    others = [user_of(house, name) for name in ("one", "two")]
    for other in others:
        other.feed(begun("a", 100 * MIB, bytes(900_000)))
    assert [wire.connection.state == RUNNING for wire in (large, *others)] == [False, True, True]
    assert house.hub.holding.total <= 3 * MIB
    house.settle()
    check_others(house)

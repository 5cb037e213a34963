"""W8: memory for messages that are not complete: as much as has come of them, a share for each user, and not for ever."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvitto.base.limits import DEFAULTS
from kvitto.protocol.buffered import BUFFER_BYTES, BUFFERS_MAX, Buffered
from kvitto.protocol.closing import CONSUMERS_PER_PIECE
from kvitto.protocol.connection import Connection
from kvitto.protocol.states import RUNNING
from kvitto.server.watch import PIECE, ConnectionWatch
from kvitto.wire import methods as m
from kvitto.wire.methods import frame
from kvitto.wire.spec import FRAME_BODY
from tests.protocol import sessions
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.protocol.test_limits import MIB, ask, begun, check_others, close_of
from tests.support.limited import limit


def user_of(harness: ProtocolHarness, name: str) -> Wire:
    """A connection of another user, who may do everything."""
    if name not in harness.broker.users:
        harness.broker.users.add(name, name)
        harness.broker.users.set_permission(name, "/", ".*", ".*", ".*")
    wire = harness.wire(login=False)
    wire.login(name)
    return wire


def watch(harness: ProtocolHarness, seconds: int) -> None:
    """Look after the connections once a second, as the server does."""
    watching = ConnectionWatch(harness.hub)
    for _ in range(seconds):
        harness.clock.advance(1)
        harness.broker.read_clock()
        watching.begin(False)
        harness.settle_down()


def test_a_body_takes_hardly_more_memory_than_has_come_of_it() -> None:
    """Announced or not: memory must not grow by more than what a peer has sent."""
    harness = ProtocolHarness()
    wire = harness.wire()
    for size in (10_000, 300_000, 3_000_000):
        wire.feed(begun("a", 100 * MIB, bytes(size)))
        harness.settle_down()
        assert size <= harness.hub.buffered.total <= size + size // 8
        wire.connection.lost()
        assert harness.hub.buffered.total == 0
        wire = harness.wire()


def test_one_user_cannot_take_the_memory_that_another_one_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who takes more than his share is closed with words; the message of somebody else is taken."""
    harness = ProtocolHarness()
    limit(harness.broker, buffered_max=8 * MIB)
    wires = [harness.wire() for _ in range(40)]
    for wire in wires:
        wire.feed(begun("a", 100 * MIB, bytes(300_000)))
        harness.settle_down()
    ended = [wire for wire in wires if wire.connection.state != RUNNING]
    assert ended and len(ended) < len(wires)
    kind, code, text = close_of(ended[0].methods())
    assert (kind, code) == (m.ConnectionClose, 506) and "user 'guest'" in text
    other = user_of(harness, "other")
    ask(other, m.QueueDeclare("large"), m.ConfirmSelect())
    other.feed(sessions.content(1, m.BasicPublish("", "large"), b"\0\0", bytes(MIB)))
    harness.settle_down()
    assert other.methods()[-1] == m.BasicAck(1)


def test_where_all_hold_too_much_the_connection_that_holds_most_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the one that comes next."""
    harness = ProtocolHarness()
    limit(harness.broker, buffered_max=7 * MIB // 2)
    small, large = harness.wire(), harness.wire()
    small.feed(begun("a", 100 * MIB, bytes(300_000)))
    large.feed(begun("a", 100 * MIB, bytes(900_000)))
    others = [user_of(harness, name) for name in ("one", "two", "three")]
    for other in others:
        other.feed(begun("a", 100 * MIB, bytes(900_000)))
        harness.settle_down()
    kind, code, text = close_of(large.methods())
    assert (kind, code) == (m.ConnectionClose, 506) and "this one holds most" in text
    assert all(wire.connection.state == RUNNING for wire in (small, *others))
    check_others(harness)


def test_free_buffers_for_bodies_are_bounded_and_count_when_they_are_used() -> None:
    """A message that is complete leaves its buffer to the next one, of whichever connection: not to its own for ever."""
    harness = ProtocolHarness()
    wires = [harness.wire() for _ in range(2 * BUFFERS_MAX)]
    ask(wires[0], m.QueueDeclare("a"))
    for wire in wires:
        wire.feed(begun("a", 3 * MIB, bytes(MIB)))
    for wire in wires:
        wire.feed(frame(FRAME_BODY, 1, bytes(100_000)) * 20 + frame(FRAME_BODY, 1, bytes(2 * MIB - 2_000_000)))
        harness.settle_down()
    assert harness.hub.buffered.total == 0
    before = harness.hub.buffered.total
    for wire in wires:
        wire.feed(begun("a", 3 * MIB, b"x"))
    assert before + 3 * MIB * BUFFERS_MAX <= harness.hub.buffered.total
    assert harness.hub.buffered.total <= 2 * BUFFER_BYTES * BUFFERS_MAX


def test_a_message_that_does_not_go_on_ends_its_connection() -> None:
    """Limit BODY_S; what has come of it is given back, and heartbeats are no progress."""
    harness = ProtocolHarness()
    wire, other = harness.wire(), harness.wire()
    ask(wire, m.ChannelOpen(), channel=7)
    wire.feed(begun("a", MIB, bytes(100_000), 7))
    other.feed(begun("a", MIB, bytes(100_000)))
    for _ in range(13):
        watch(harness, 10)
        if wire.connection.state == RUNNING:
            wire.feed(b"\x08\0\0\0\0\0\0\xce")
        other.feed(frame(FRAME_BODY, 1, b"x"))
    kind, code, text = close_of(wire.methods())
    assert (kind, code) == (m.ConnectionClose, 506) and "begun on channel 7" in text and "60 s" in text
    assert other.connection.state == RUNNING
    assert harness.broker.refused["unfinished"] == 1


def test_a_message_that_waits_for_room_is_not_too_slow() -> None:
    """Nothing is read from a publisher that is blocked: its message cannot go on."""
    harness = ProtocolHarness()
    wire = harness.wire()
    harness.hub.alarms.block("no room")
    wire.feed(begun("a", MIB, bytes(100_000)))
    assert not wire.reading
    watch(harness, 130)
    assert wire.connection.state == RUNNING
    harness.hub.alarms.block(None)
    watch(harness, 50)
    assert wire.connection.state == RUNNING


def test_a_look_at_many_connections_is_cut_into_pieces() -> None:
    """No timer holds the loop for longer than a few milliseconds, however many connections there are."""
    harness = ProtocolHarness()
    wires = [harness.wire(login=False) for _ in range(3 * PIECE)]
    harness.settle_down()
    harness.clock.advance(DEFAULTS.handshake_s + 1)
    harness.broker.read_clock()
    ConnectionWatch(harness.hub).begin(False)
    at_once = sum(wire.aborted for wire in wires)
    assert 0 < at_once <= PIECE
    harness.settle_down()
    assert all(wire.aborted for wire in wires) and harness.broker.refused["handshake"] == len(wires)


@pytest.mark.parametrize("pieces", [0, 2])
def test_an_error_in_a_look_at_the_connections_does_not_end_all_later_looks(
    pieces: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """W8: who had stopped in the middle of the handshake stayed for ever then."""
    harness = ProtocolHarness()
    wire = harness.wire(login=False)
    harness.clock.advance(DEFAULTS.handshake_s + 1)
    harness.broker.read_clock()
    watching = ConnectionWatch(harness.hub)

    def look(_: ConnectionWatch, give_back: bool) -> Iterator[None]:
        yield from [None] * pieces
        raise RuntimeError("injected")

    with monkeypatch.context() as broken:
        broken.setattr(ConnectionWatch, "_look", look)
        watching.begin(False)
        harness.settle_down()
    assert "internal error in connectionwatch" in caplog.text and not wire.aborted
    watching.begin(False)
    harness.settle_down()
    assert wire.aborted


def test_who_gives_way_needs_several_turns_for_its_end_and_its_memory_is_free_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A channel with many consumers ends in pieces: the search for who holds most must find another one meanwhile."""
    asked: list[str] = []
    largest = Buffered._largest

    def counted(buffered: Buffered) -> Connection:
        asked.append("")
        assert len(asked) < 10, "it is asked again and again who holds most"
        return largest(buffered)

    monkeypatch.setattr(Buffered, "_largest", counted)
    harness = ProtocolHarness()
    limit(harness.broker, buffered_max=3 * MIB)
    large = harness.wire()
    ask(large, m.QueueDeclare("a"), m.TxSelect())
    ask(large, *(m.BasicConsume("a", f"tag-{number}") for number in range(3 * CONSUMERS_PER_PIECE)))
    large.feed(sessions.content(1, m.BasicPublish("", "a"), b"\0\0", bytes(100_000)) * 14)
    harness.settle_down()
    others = [user_of(harness, name) for name in ("one", "two")]
    for other in others:
        other.feed(begun("a", 100 * MIB, bytes(900_000)))
    assert [wire.connection.state == RUNNING for wire in (large, *others)] == [False, True, True]
    assert harness.hub.buffered.total <= 3 * MIB
    harness.settle_down()
    check_others(harness)

"""Bodies that are too large to be copied for a slow reader: pieces come as the socket takes them, whatever becomes of the message."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kvitto.base.errors import StoreError
from kvitto.broker import walls
from kvitto.protocol.connection import UNCOPIED
from kvitto.protocol.large import LARGE, LargeBody
from kvitto.protocol.states import CLOSING
from kvitto.store.lease import Lease
from kvitto.store.reading import STREAMED_BYTES
from kvitto.wire import methods as m
from kvitto.wire.methods import decode, frame
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, FRAME_OVERHEAD
from tests.protocol import sessions
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.protocol.test_limits import ask, check_others

SIZE = 3 * LARGE + 12_345
BODY = random.Random(1).randbytes(SIZE)


class Slow(Wire):
    """A socket that takes nothing more after each write until `take` is called."""

    slow = False

    def write(self, data: memoryview) -> bool:
        super().write(data)
        if self.slow:
            self.connection.writable(False)
        return True

    def take(self, times: int = 1) -> None:
        for _ in range(times):
            if self.connection.output.paused:
                walls.run(self.connection, self.connection.writable, True)
            self.harness.turn()

    def take_until_lent(self) -> None:
        """Everything in front of a large body, which is sent once all of its message has been looked at."""
        for _ in range(20):
            self.harness.settle_down()
            if lent(self):
                return
            self.take()
        raise AssertionError("no large body comes")

    def take_all(self) -> None:
        self.slow = False
        self.take(100)
        self.harness.settle_down()


def slow_wire(harness: ProtocolHarness, frame_max: int = 131072) -> Slow:
    wire = Slow(harness)
    wire.login(frame_max=frame_max)
    return wire


@pytest.fixture
def harness() -> ProtocolHarness:
    return ProtocolHarness()


def publish(harness: ProtocolHarness, *bodies: bytes, queue: str = "q") -> Wire:
    """Put messages into a durable queue."""
    wire = harness.wire()
    ask(wire, m.QueueDeclare(queue, durable=True), m.ConfirmSelect())
    for body in bodies:
        wire.feed(sessions.content(1, m.BasicPublish("", queue), b"\0\0", body))
        harness.settle_down()
    return wire


def contents(wire: Wire) -> Iterator[tuple[m.Method, bytes]]:
    """Deliveries with whole bodies; AssertionError where frames of one channel are mixed up."""
    method, left, parts = None, 0, list[bytes]()
    for kind, number, payload in wire.frames():
        if number != 1:
            continue
        if kind == FRAME_METHOD:
            assert not left, "a method between the frames of a body"
            method = decode(payload)
        elif kind == FRAME_HEADER:
            left, parts = int.from_bytes(payload[4:12], "big"), []
        elif kind == FRAME_BODY:
            assert len(payload) <= wire.connection.frame_max - FRAME_OVERHEAD
            left -= len(payload)
            parts.append(payload)
        if kind != FRAME_METHOD and not left:
            assert method is not None
            yield method, b"".join(parts)
    assert not left, "a body is not complete"


def lent(wire: Wire) -> list[LargeBody]:
    return [part for part in wire.connection.output.parts if isinstance(part, LargeBody)]


@pytest.mark.parametrize("frame_max", [4096, 131072])
@pytest.mark.parametrize("waiting", [True, False], ids=["stored", "just published"])
@pytest.mark.parametrize("no_ack", [True, False])
def test_a_large_body_comes_whole(harness: ProtocolHarness, frame_max: int, waiting: bool, no_ack: bool) -> None:
    """What comes before it and behind it is in order, too."""
    bodies = [b"first", BODY, b"behind", BODY[:LARGE], BODY[: LARGE + 1], b"last"]
    wire = slow_wire(harness, frame_max)
    if waiting:
        publish(harness, *bodies)
    else:
        publish(harness)
    ask(wire, m.BasicConsume("q", "c", no_ack=no_ack))
    if not waiting:
        publish(harness, *bodies)
    wire.take_all()
    wire.read = 0
    found = [(method.delivery_tag, body) for method, body in contents(wire) if isinstance(method, m.BasicDeliver)]
    assert found == [(number, body) for number, body in enumerate(bodies, 1)]
    queue = harness.broker.vhosts["/"].queues["q"]
    assert queue.unacked == (0 if no_ack else len(bodies))


@pytest.mark.parametrize("waiting", [True, False], ids=["stored", "just published"])
@pytest.mark.parametrize("no_ack", [True, False])
def test_a_reader_that_does_not_read_costs_no_copy_of_a_large_body(
    harness: ProtocolHarness, waiting: bool, no_ack: bool
) -> None:
    """5 readers of 40 MiB took 186 MB."""
    publish(harness, *[BODY] * (3 if waiting else 0))
    wires = [slow_wire(harness) for _ in range(3)]
    for wire in wires:
        ask(wire, m.BasicQos(0, 1))
        wire.slow = waiting
        wire.put(1, m.BasicConsume("q", "c", no_ack=no_ack))
        if waiting:
            wire.take_until_lent()
        harness.settle_down()
        wire.slow = True
    if not waiting:
        publish(harness, *[BODY] * 3)
    for wire in wires:
        assert len(lent(wire)) == 1
        assert lent(wire)[0].memory == 0 and wire.connection.output.buf.cap < LARGE
        assert len(wire.written) < LARGE
    for wire in wires:
        wire.take_all()
        wire.read = 0
        assert [body for method, body in contents(wire) if isinstance(method, m.BasicDeliver)] == [BODY]


@pytest.mark.parametrize("end", [m.QueueDelete("q"), m.QueuePurge("q"), None], ids=["deleted", "purged", "acked"])
def test_a_body_goes_on_when_its_message_is_gone(harness: ProtocolHarness, end: m.Method | None) -> None:
    """Its segment is unlinked, and closed when the body is out."""
    other = publish(harness, BODY, *[bytes(LARGE)] * 8)
    files = harness.disk.open_files()
    wire = slow_wire(harness)
    wire.slow = True
    wire.put(1, m.BasicQos(0, 1), m.BasicConsume("q", "c"))
    wire.take_until_lent()
    wire.feed(frame(FRAME_METHOD, 1, m.BasicAck(1).encode()))
    wire.feed(frame(FRAME_METHOD, 1, m.BasicCancel("c", True).encode()))
    if end is None:
        other.put(1, m.BasicConsume("q", "others", no_ack=True))
    else:
        other.put(1, end)
    harness.settle_down()
    wire.take_all()
    wire.read = 0
    bodies = [body for method, body in contents(wire) if isinstance(method, m.BasicDeliver)]
    assert bodies[0] == BODY
    assert not lent(wire) and harness.disk.open_files() <= files


def test_without_acks_a_message_is_settled_when_all_of_its_body_is_out(harness: ProtocolHarness) -> None:
    """A2; when the connection is lost before, it comes back, flagged."""
    publish(harness, BODY)
    queue = harness.broker.vhosts["/"].queues["q"]
    wire = slow_wire(harness)
    wire.slow = True
    wire.put(1, m.BasicConsume("q", "c", no_ack=True))
    wire.take_until_lent()
    assert (queue.ready, queue.unacked) == (0, 1)
    wire.connection.lost()
    harness.settle_down()
    assert (queue.ready, queue.unacked) == (1, 0)
    wire = slow_wire(harness)
    wire.put(1, m.BasicConsume("q", "c", no_ack=True))
    wire.take_all()
    [(method, body)] = [(method, body) for method, body in contents(wire) if isinstance(method, m.BasicDeliver)]
    assert method.redelivered and body == BODY
    assert (queue.ready, queue.unacked) == (0, 0)


def test_answers_on_other_channels_do_not_disturb_a_body(harness: ProtocolHarness) -> None:
    """Nor do those on its own: `contents` would find them between its frames."""
    publish(harness, BODY)
    wire = slow_wire(harness)
    ask(wire, m.ChannelOpen(), channel=2)
    wire.slow = True
    wire.put(1, m.BasicConsume("q", "c"))
    harness.turn()
    wire.put(2, m.QueueDeclare("q", passive=True))
    wire.put(1, m.BasicQos(0, 7))
    wire.take(3)
    wire.take_all()
    wire.read = 0
    assert [body for method, body in contents(wire) if isinstance(method, m.BasicDeliver)] == [BODY]
    wire.read = 0
    assert any(isinstance(method, m.QueueDeclareOk) for method in wire.methods())


def test_the_end_of_a_connection_does_not_wait_for_a_body(harness: ProtocolHarness) -> None:
    """The peer has said that it reads no more; and what it has not got goes back."""
    publish(harness, BODY)
    queue = harness.broker.vhosts["/"].queues["q"]
    wire = slow_wire(harness)
    wire.slow = True
    wire.put(1, m.BasicConsume("q", "c", no_ack=True))
    harness.turn()
    wire.put(0, m.ConnectionClose(200, "bye"))
    harness.settle_down()
    assert isinstance(wire.methods()[-1], m.ConnectionCloseOk) and wire.closed
    assert (queue.ready, queue.unacked) == (1, 0)
    assert len(wire.written) < SIZE


@pytest.mark.parametrize("no_ack", [True, False])
def test_basic_get_gets_a_large_body_in_pieces(harness: ProtocolHarness, no_ack: bool) -> None:
    publish(harness, BODY, b"behind")
    wire = slow_wire(harness)
    wire.slow = True
    wire.put(1, m.BasicGet("q", no_ack))
    wire.take_until_lent()
    wire.take_all()
    wire.put(1, m.BasicGet("q", no_ack))
    wire.take_all()
    wire.read = 0
    assert [body for method, body in contents(wire) if isinstance(method, m.BasicGetOk)] == [BODY, b"behind"]
    assert harness.broker.vhosts["/"].queues["q"].unacked == (0 if no_ack else 2)


def test_a_message_that_came_back_goes_out_in_pieces_too(harness: ProtocolHarness) -> None:
    publish(harness, BODY)
    wire = slow_wire(harness)
    ask(wire, m.BasicConsume("q", "c"))
    wire.take_all()
    wire.put(1, m.BasicNack(1, False, True))
    wire.slow = True
    wire.take_until_lent()
    wire.take_all()
    wire.read = 0
    found = [(method.redelivered, body) for method, body in contents(wire) if isinstance(method, m.BasicDeliver)]
    assert found == [(False, BODY), (True, BODY)]


def test_streams_and_reads_by_offset_send_large_bodies_in_pieces(harness: ProtocolHarness) -> None:
    other = harness.wire()
    ask(other, m.QueueDeclare("s", durable=True, arguments={"x-queue-type": "stream"}))
    publish(harness, BODY)
    other.feed(sessions.content(1, m.BasicPublish("", "s"), b"\0\0", BODY))
    harness.settle_down()
    for method in (m.BasicConsume("s", "c", arguments={"x-stream-offset": "first"}), m.LogRead("q", "t", 0, 1)):
        wire = slow_wire(harness)
        ask(wire, m.BasicQos(0, 10))
        wire.slow = True
        wire.put(1, method)
        wire.take_until_lent()
        assert lent(wire)[0].memory == 0
        wire.take_all()
        wire.read = 0
        assert [body for method, body in contents(wire) if isinstance(method, m.BasicDeliver)] == [BODY]


def test_on_a_full_disk_a_large_body_comes_from_memory(harness: ProtocolHarness) -> None:
    """It is not written, and cannot be read back."""
    publish(harness)
    wire = slow_wire(harness)
    ask(wire, m.BasicConsume("q", "c"))
    wire.slow = True
    publisher = harness.wire()
    harness.disk.full = True
    publisher.feed(sessions.content(1, m.BasicPublish("", "q"), b"\0\0", BODY))
    harness.turn()
    assert lent(wire) and lent(wire)[0].memory == SIZE
    harness.disk.full = False
    harness.broker.retry_writes()
    harness.settle_down()
    wire.take(2)
    assert lent(wire)[0].memory == 0
    wire.take_all()
    wire.read = 0
    assert [body for method, body in contents(wire) if isinstance(method, m.BasicDeliver)] == [BODY]


@pytest.mark.parametrize("failure", [StoreError("cannot read: Input/output error"), b"short"], ids=["error", "short"])
def test_a_body_that_cannot_be_read_any_more_ends_its_connection_and_its_queue_only(
    harness: ProtocolHarness, monkeypatch: pytest.MonkeyPatch, failure: StoreError | bytes
) -> None:
    """The peer waits for the rest of it, which does not come; messages that are not read are not promised either."""
    publish(harness, BODY)
    wire = slow_wire(harness)
    wire.slow = True
    wire.put(1, m.BasicConsume("q", "c"))
    wire.take_until_lent()

    def read(lease: Lease, at: int, n: int) -> bytes:
        if isinstance(failure, StoreError):
            raise failure
        return failure

    monkeypatch.setattr(Lease, "read", read)
    wire.take()
    harness.turn()
    assert wire.connection.state == CLOSING
    assert harness.broker.vhosts["/"].queues["q"].fault is not None
    check_others(harness)


def test_what_is_not_large_for_a_connection_is_never_only_on_disk() -> None:
    """A consumer copies such a body from the memory of its batch, and does not ask whether it is there."""
    assert LARGE <= STREAMED_BYTES and LARGE <= UNCOPIED

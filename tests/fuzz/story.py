"""What the fuzzer feeds: a story of two connections, step by step, with time and disk moved on between what they send.

A file of the corpus is the steps one after the other: kind u8, argument u8, length of the data u32 (big-endian), data. Any
bytes are a story; what is cut off is taken as far as it goes. `tell` runs one against the real connections, broker and store
on the simulated disk and checks what must hold whatever peers send (W8).
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.protocol.connection import INPUT_PAUSE
from kvitto.protocol.output import LIMIT
from kvitto.protocol.states import CLOSING, RUNNING
from kvitto.store import stream as stream_store
from kvitto.wire.buf import Buf
from tests.protocol.answers import check_answer, check_service
from tests.protocol.sansio import ProtocolHarness, Wire

FEED, PIECES, TURN, SETTLE, TIME, CHOKE, LEAVE, BLOCK, KINDS = range(9)
WAITS_S = (0.0, 0.001, 0.1, 1.0, 10.0, 60.0, 3600.0, 1e6)
STEP_BYTES = 6
SHORT = 64
"""Bytes of a handshake that is not finished, of a heartbeat and of what else may wait to be whole beside a frame."""


class Step(NamedTuple):
    """`data` is what a FEED or PIECES sends. The lowest bit of `argument` says on which connection."""

    kind: int
    argument: int = 0
    data: bytes = b""


def pack(steps: Iterable[Step]) -> bytes:
    return b"".join(bytes((s.kind, s.argument)) + len(s.data).to_bytes(4, "big") + s.data for s in steps)


def unpack(data: bytes) -> list[Step]:
    steps, at = [], 0
    while at + 2 <= len(data):
        end = at + STEP_BYTES + int.from_bytes(data[at + 2 : at + STEP_BYTES], "big")
        steps.append(Step(data[at] % KINDS, data[at + 1], data[at + STEP_BYTES : end]))
        at = end
    return steps


class Peer(Wire):
    """A connection whose bytes wait where the server would not read; it reads once more after it was told to stop, as the server does."""

    def __init__(self, harness: ProtocolHarness) -> None:
        super().__init__(harness)
        self.waiting: list[bytes] = []
        self.once_more = False

    def pause(self) -> None:
        self.reading, self.once_more = False, True

    def take(self) -> None:
        while self.waiting and not self.closed and (self.reading or self.once_more):
            self.once_more = self.once_more and self.reading
            data, c = self.waiting.pop(0), self.connection
            box = Buf(len(c.rest) + len(data))  # not a byte more: what reads behind it is seen
            box.add(c.rest)
            box.add(data)
            c.receive(box, box.n)
            self.check()

    def check(self) -> None:
        """No more is kept for the peer than its frame that is not whole, its messages that are not, and answers it does not read."""
        c = self.connection
        if c.state == RUNNING and not c.stalled and not c.choked:
            assert len(c.rest) < c.frame_max
        begun = [channel.content for channel in c.channels.values() if channel.content is not None]
        assert c.unfinished == sum(content.body.n for content in begun)
        assert len(c.channels) <= c.channel_max
        assert c.in_transactions >= 0
        assert c.output.buf.n < 2 * INPUT_PAUSE + LIMIT + len(self.written)


def tell(data: bytes, watch: Callable[[bool], None] = lambda on: None) -> None:
    """Run a story. Whatever it raises is a mistake in Kvitto. `watch` is told when the steps begin and end."""
    harness = ProtocolHarness()
    peers = [Peer(harness), Peer(harness)]
    everybody = list(peers)
    watch(True)
    try:
        take_steps(harness, peers, everybody, unpack(data))
    finally:
        watch(False)
    end(harness, everybody, zlib.crc32(data))


def take_steps(harness: ProtocolHarness, peers: list[Peer], everybody: list[Peer], steps: list[Step]) -> None:
    for step in steps:
        who = step.argument & 1
        peer = peers[who]
        if step.kind == FEED:
            peer.waiting.append(step.data)
        elif step.kind == PIECES:
            n = 1 + (step.argument >> 1)
            peer.waiting += [step.data[i : i + n] for i in range(0, len(step.data), n)]
        elif step.kind == TURN:
            harness.turn()
        elif step.kind == SETTLE:
            harness.settle_down()
        elif step.kind == TIME:
            harness.clock.advance(WAITS_S[step.argument >> 1 & 7])
            harness.broker.tick()
            harness.turn()
            peer.connection.beat()
            peer.connection.give_back()
        elif step.kind == CHOKE:
            peer.connection.writable(bool(step.argument & 2))
        elif step.kind == LEAVE:
            peer.closed = True
            peer.connection.lost()
            peers[who] = Peer(harness)
            everybody.append(peers[who])
        elif step.kind == BLOCK:
            harness.hub.alarms.block("no room" if step.argument & 2 else None)
        for each in peers:
            each.take()


def end(harness: ProtocolHarness, everybody: list[Peer], dice: int) -> None:
    """Time passes, both go. Of some stories also: the next peer is served; what was stored can be read after a restart."""
    harness.hub.alarms.block(None)
    harness.settle_down()
    for peer in everybody:
        peer.take()
        peer.connection.writable(True)
    harness.settle_down()
    for peer in everybody:
        check_answer(peer)
        if peer.connection.state < CLOSING or peer.connection in harness.hub.connections:
            peer.connection.lost()
        assert not peer.connection.channels and not peer.connection.queues
        assert peer.connection.in_transactions == peer.connection.unfinished == 0
    harness.clock.advance(2.0)
    harness.broker.tick()
    harness.settle_down()
    assert not harness.hub.connections and not harness.hub.buffered.total and not harness.hub.channels
    assert not any(harness.hub.timeouts._channels.values())
    for queue in harness.broker.queues.values():
        assert queue.unacked == 0 == getattr(queue, "moving", 0) and not queue.consumers, queue.name
        if isinstance(queue, WorkQueue):
            assert queue.ready == queue.next - queue.cursor + len(queue.backlog.requeued), queue.name
    if dice % 4 == 0:
        check_service(harness)
    if dice % 8 == 0:
        check_service(ProtocolHarness(harness.disk.kill()))


@contextmanager
def setting() -> Iterator[None]:
    """Quiet, and with streams small enough for retention to be met."""
    before = stream_store.SEGMENT_BYTES_MIN
    logging.disable(logging.CRITICAL)
    stream_store.SEGMENT_BYTES_MIN = 1
    try:
        yield
    finally:
        stream_store.SEGMENT_BYTES_MIN = before
        logging.disable(logging.NOTSET)

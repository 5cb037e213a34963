"""The bytes of what waits are counted again when a limit begins to depend on them, wherever the messages are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvitto.broker.queues import sizes
from kvitto.broker.queues.hold import Hold, restore
from kvitto.store import pieces
from kvitto.wire.buf import Buf
from tests.support.harness import NO_PROPERTIES, BrokerHarness, Taker, address
from tests.support.simdisk import SimFile


def put_large(harness: BrokerHarness, body: bytes) -> None:
    """As a channel does with a large body."""
    buf = Buf(0)
    buf.add(body)
    assert harness.queue("q").append_whole(address("q"), NO_PROPERTIES, buf, -1, 0)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("priorities", [{}, {"x_max_priority": 5}])
def test_what_is_not_written_yet_is_counted_too(
    priorities: dict[str, Any], large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was left out if a large message waited to be written, and always in a queue with priorities."""
    monkeypatch.setattr(pieces, "SLICE_BYTES", 400)
    monkeypatch.setattr(pieces, "WHOLE_BYTES", 800)
    harness = BrokerHarness()
    queue = harness.declare("q", **priorities)
    for size in (10, 20, 30):
        harness.publish("q", b"x" * size)
    harness.settle_down()
    queue.settle_until(1)
    assert queue.estimates
    harness.publish("q", b"x" * 40)
    if large:
        put_large(harness, b"x" * 5000)
        harness.publish("q", b"x" * 50)
    if priorities:
        queue.backlog.admit()
    queue.max_bytes = 100_000
    for _ in sizes.recount(queue):
        pass
    assert (queue.ready_bytes, queue.estimates) == (5140 if large else 90, 0)
    harness.settle_down()
    queue.take_settings(replace(queue.settings, max_bytes=100_000))
    harness.drain("q")
    assert queue.ready_bytes == 0


@pytest.fixture
def sizes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each read of a simulated file has brought."""
    sizes: list[int] = []
    read_at = SimFile.read_at

    def counting(self: SimFile, pos: int, n: int) -> bytes:
        data = read_at(self, pos, n)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(SimFile, "read_at", counting)
    return sizes


def with_large_messages() -> BrokerHarness:
    """Three messages of 3 MiB, of which the second one has been settled, and a small one."""
    harness = BrokerHarness()
    queue = harness.declare("q", x_max_length_bytes=100 << 20)
    for _ in range(3):
        put_large(harness, bytes(3 << 20))
    harness.publish("q", b"small")
    harness.settle_down()
    taker = Taker(queue)
    while len(taker.got) < 2:  # it is checked in pieces before
        queue.get(taker)
        harness.turn()
    queue.ack(1, 1)
    queue.requeue(0, 1, 3 << 20)
    harness.settle_down()
    return harness


def test_large_bodies_are_not_read_to_take_their_bytes_out_of_the_count(sizes_read: list[int]) -> None:
    """#12, 3: a settlement by range read each of them in one go, and checked it, in the loop."""
    harness = with_large_messages()
    queue = harness.queue("q")
    assert queue.ready_bytes == (6 << 20) + 5
    sizes_read.clear()
    queue.settle_until(3)
    assert queue.ready_bytes == 5
    assert sum(sizes_read) < 2 << 20


def test_a_start_does_not_read_large_bodies_to_count_their_bytes(sizes_read: list[int]) -> None:
    harness = with_large_messages()
    sizes_read.clear()
    harness.kill()
    assert harness.queue("q").ready_bytes == (6 << 20) + 5
    assert sum(sizes_read) < 12 << 20, "more than the segment itself, which is not sealed"
    assert [len(body) for body in harness.peek("q")] == [3 << 20, 3 << 20, 5]


def test_large_bodies_are_not_read_when_held_messages_come_back(sizes_read: list[int]) -> None:
    harness = with_large_messages()
    queue = harness.queue("q")
    queue.hold = Hold(queue, queue.next)
    restore(queue)
    assert (queue.held, queue.ready_bytes) == (3, 0)
    sizes_read.clear()
    while queue.hold.count:
        queue.hold.give_back()
    assert queue.ready_bytes == (6 << 20) + 5
    assert sum(sizes_read) < 2 << 20

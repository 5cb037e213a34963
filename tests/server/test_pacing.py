"""A connection that publishes faster than the disk can sync is paused, so that the confirms of others need not wait long (C2)."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from kvitto.base.config import Config
from kvitto.base.limits import MIB
from kvitto.server import pacing
from kvitto.server.pacing import Pacing
from kvitto.server.poller import run as run_loop
from kvitto.server.server import Server
from kvitto.store import paths
from kvitto.store.disk import RealDisk, RealFile
from kvitto.wire import methods as m
from tests.protocol.raw import Raw, content


class Peer:
    def __init__(self) -> None:
        self.throttled = False

    def throttle(self) -> None:
        self.throttled = True

    def unthrottle(self) -> None:
        self.throttled = False


def test_a_fast_publisher_is_paused_until_the_next_sync_begins() -> None:
    pace, peer, other = Pacing(), Peer(), Peer()
    pace.waited(100.0)
    pace.fast.add(peer)
    pace.look(pace.budget, 100.0)
    assert not peer.throttled
    pace.fast.add(peer)
    pace.look(pace.budget + 1, 100.0)
    assert peer.throttled and not other.throttled
    pace.fast.add(other)
    pace.look(pace.budget + 1, 100.1)
    assert peer.throttled and other.throttled
    pace.look(0, 100.2)
    assert not peer.throttled and not other.throttled


def test_nobody_is_throttled_where_nobody_waits() -> None:
    pace, peer = Pacing(), Peer()
    pace.waited(100.0)
    later = 100.0 + pacing.LATELY_S
    assert pace.over_budget(pacing.MOST + 1, later - 0.1) and not pace.over_budget(1 << 40, later)
    pace.fast.add(peer)
    pace.look(1 << 40, later)
    assert not peer.throttled


def test_a_sync_is_given_what_the_disk_takes_in_a_moment() -> None:
    """Within bounds; slower at once, faster only after a while."""
    pace = Pacing()
    for _ in range(100):
        pace.measured(8 * MIB, 0.001)
    assert pace.budget == pacing.MOST
    for _ in range(10):
        pace.measured(4 * MIB, 0.01)
    assert abs(pace.budget - 400 * MIB * pacing.PACE_S) < 0.3 * MIB
    pace.measured(1000, 5.0)
    assert pace.budget > 2 * MIB, "a small one says nothing of the rate"
    for _ in range(10):
        pace.measured(MIB, 10.0)
    assert pace.budget == pacing.LEAST


class StuckDisk(RealDisk):
    """Syncs of message files wait until they may."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.free = threading.Event()
        self.free.set()

    def open(self, path: str, *, create: bool = False) -> RealFile:
        file = super().open(path, create=create)
        if path.endswith(paths.SEGMENT_SUFFIX) and "/" in path:
            sync = file.sync

            def when_free() -> None:
                assert self.free.wait(60)
                sync()

            file.sync = when_free  # type: ignore[method-assign]
            file.fileno = lambda: -1  # type: ignore[method-assign]
        return file


def test_a_flood_over_a_disk_that_is_stuck(tmp_path: Path) -> None:
    """W8: the broker stops reading from it, others are served; nothing is lost, and it goes on with the disk."""
    disk = StuckDisk(str(tmp_path))
    run_loop(_flood(Server(Config(data_dir=tmp_path, port=0, http_port=None), disk), disk))


COUNT = 16_000
"""Messages of 4 kB, 64 MB: far more than syncs and sockets take."""


async def _flood(server: Server, disk: StuckDisk) -> None:
    await server.start()
    burst = content(1, m.BasicPublish("", "q"), b"\0\0", bytes(4000)) * 100
    flood, other = [await asyncio.to_thread(Raw, server.port) for _ in range(2)]
    try:
        for raw in (flood, other):
            await asyncio.to_thread(raw.channel, 1)
        await asyncio.to_thread(other.declare, "q", durable=True)
        await asyncio.to_thread(other.call, 1, m.ConfirmSelect(), m.ConfirmSelectOk)
        disk.free.clear()
        other.publish(1, "", "q", b"waits")
        flooding = threading.Thread(target=lambda: [flood.send(burst) for _ in range(COUNT // 100)])
        flooding.start()
        while not server.pacing.throttled:
            await asyncio.sleep(0.01)
        for _ in range(20):
            other.put(1, m.QueueDeclare("q", passive=True))
            await asyncio.to_thread(other.expect, m.QueueDeclareOk)
        assert server.store.commits.unsynced < pacing.FIRST + 2 * MIB
        assert flooding.is_alive()
        disk.free.set()
        await asyncio.to_thread(other.expect, m.BasicAck)
        await asyncio.to_thread(flooding.join)
        await asyncio.to_thread(flood.call, 1, m.BasicQos(), m.BasicQosOk)
        assert await asyncio.to_thread(other.count, "q") == COUNT + 1
    finally:
        disk.free.set()
        flood.drop()
        other.drop()
        await server.stop()

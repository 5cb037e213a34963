"""A server whose disk fails: it stops, says why, and confirms nothing more."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from kvitto.base.config import Config
from kvitto.base.errors import StoreError
from kvitto.server.server import Server
from kvitto.store.disk import RealDisk
from tests.support.rig import Rig
from tests.support.wait import TIMEOUT_S


class LostDisk(RealDisk):
    """Its file system answers no question."""

    def free_bytes(self) -> int:
        raise StoreError("cannot ask for the free space: Input/output error")


def test_what_fails_beside_a_turn_ends_the_broker(tmp_path: Path) -> None:
    """C8: whatever the loop calls. It was taken for an end in order, and the next start may refuse what a failed write has left."""

    async def main() -> None:
        server = Server(Config(data_dir=tmp_path, port=0, http_port=None), disk=LostDisk(str(tmp_path)))
        await server.start()
        try:
            await asyncio.wait_for(server.run_until_stopped(), TIMEOUT_S)
        finally:
            await server.stop()

    with pytest.raises(StoreError, match="free space"):
        asyncio.run(main())
    assert (tmp_path / "boot").read_bytes(), "it is not left in order"


def test_a_stop_ends_although_its_last_writes_fail(tmp_path: Path) -> None:
    """C8"""

    async def main() -> None:
        server = Server(Config(data_dir=tmp_path / "data", port=0, http_port=None))
        await server.start()
        shutil.rmtree(tmp_path / "data")
        await asyncio.wait_for(server.stop(), TIMEOUT_S)
        await server.run_until_stopped()

    with pytest.raises(StoreError):
        asyncio.run(main())


def test_a_full_disk_that_fails_next_has_confirmed_nothing() -> None:
    """C2, D4: what a full disk has refused is not stored if the next try ends in another error; its queue is out of service then."""
    rig = Rig()
    queue = rig.declare("q")
    rig.settle_down()
    rig.disk.full = True
    rig.publish("q", b"waits")
    rig.turn()
    assert rig.broker.full and queue in rig.broker.unwritten
    rig.disk.full = False
    rig.disk.fail_at[rig.disk.operations + 1] = StoreError("cannot write: Input/output error")
    rig.broker.retry_writes()
    assert queue.fault is not None and "Input/output" in queue.fault
    assert rig.broker.faults.fresh == [queue] and queue not in rig.broker.unwritten

"""Which sync runs where (adr/0009)."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from kvitto.base.errors import StoreError
from kvitto.client import Connection
from kvitto.server.embedded import Broker
from kvitto.server.syncer import SHORT_S, Syncer
from kvitto.store.disk import File, RealDisk
from kvitto.store.store import LANES, MANY_FILES, SyncJob, Together


class Job:
    """As long as it is told."""

    def __init__(self, small: bool = True) -> None:
        self.small = small
        self.ran_in: int | None = None

    def run(self, together: Together | None = None) -> None:
        self.ran_in = threading.get_ident()


def test_only_a_small_job_on_a_quick_disk_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    took = SHORT_S / 10

    def clock() -> float:
        nonlocal now
        now += took
        return now

    monkeypatch.setattr("kvitto.server.syncer.time.perf_counter", clock)
    loop = asyncio.new_event_loop()
    syncer = Syncer(loop, lambda job: None)

    def after(jobs: int) -> bool:
        for _ in range(jobs):
            syncer.run(Job())  # type: ignore[arg-type]
        return syncer.is_short(Job())  # type: ignore[arg-type]

    assert not after(1), "nothing is known of this disk yet"
    assert after(100) and not syncer.is_short(Job(small=False))  # type: ignore[arg-type]
    took = SHORT_S * 3
    assert after(1), "one that is a little slow is nothing"
    took = SHORT_S * 10
    assert not after(1)
    took = SHORT_S / 10
    assert not after(1), "a slow one is remembered"
    assert after(20)
    syncer.stop()
    loop.close()


def test_many_files_are_synced_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C2, C8: all of them before anybody is told, and one that fails fails the sync, once nothing syncs any more (adr/0010)."""
    disk = RealDisk(str(tmp_path))
    files: list[File] = [disk.open(f"f{n}", create=True) for n in range(MANY_FILES + 3)]
    synced: dict[str, str] = {}
    bad = ""

    def sync(file: File) -> None:
        if file.path == bad:
            raise StoreError(f"cannot sync {bad}")
        synced[file.path] = threading.current_thread().name

    monkeypatch.setattr("kvitto.store.disk.RealFile.sync", sync)
    loop = asyncio.new_event_loop()
    syncer = Syncer(loop, lambda job: None)
    job = SyncJob(disk, files, [])
    syncer.run(job)
    assert job.error is None and set(synced) == {f.path for f in files}
    assert threading.current_thread().name not in synced.values()
    synced.clear()
    bad = files[0].path
    job = SyncJob(disk, files, [""])
    syncer.run(job)
    assert str(job.error) == f"cannot sync {bad}"
    assert {f.path for f in files} - set(synced) == {f.path for f in files[::LANES]}, "the other lanes have ended"
    few = SyncJob(disk, files[1:MANY_FILES], [])
    syncer.run(few)
    assert set(synced.values()) >= {threading.current_thread().name}
    syncer.stop()
    loop.close()
    for file in files:
        file.close()


def test_both_ways_confirm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C2: one message at a time, until syncs run in the loop."""
    places: set[str] = set()
    original = SyncJob.run

    def run(job: SyncJob, together: Together | None = None) -> None:
        places.add(threading.current_thread().name)
        original(job, together)

    monkeypatch.setattr(SyncJob, "run", run)
    monkeypatch.setattr("kvitto.server.syncer.SHORT_S", 60.0)
    with Broker(tmp_path) as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_select()
        for n in range(200):
            channel.publish(b"%d" % n, "", "q")
            assert channel.wait_for_confirms(10)
    assert places == {"kvitto-sync", "kvitto-broker"}
    with Broker(tmp_path) as broker, Connection(broker.url) as connection:
        assert connection.channel().queue_declare("q", passive=True).message_count == 200

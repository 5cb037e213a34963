"""Which sync runs where (adr/0009, 0010, 0019)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from kvitto.base.errors import SyncError
from kvitto.client import Connection
from kvitto.server import datasync
from kvitto.server import syncer as syncer_module
from kvitto.server.embedded import Broker
from kvitto.server.syncer import SHORT_S
from kvitto.store.commit import DIRS_AT_ONCE, Commit
from kvitto.store.disk import File, RealDisk


def nothing() -> None:
    """Nobody waits for bytes that are free."""


class Job(Commit):
    """As small as it is told."""

    def is_small(self) -> bool:
        return True


class LargeJob(Commit):
    def is_small(self) -> bool:
        return False


def test_only_a_small_job_on_a_quick_disk_is_short(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path))
    job = Job(disk, [], [])
    took = SHORT_S / 10
    loop = asyncio.new_event_loop()
    syncer = syncer_module.Syncer(loop, lambda job: None, nothing)

    def after(jobs: int) -> bool:
        for _ in range(jobs):
            syncer.measured(job, took)
        return syncer.is_short(job)

    assert not after(1), "nothing is known of this disk yet"
    assert after(100) and not syncer.is_short(LargeJob(disk, [], []))
    took = SHORT_S * 3
    assert after(1), "one that is a little slow is nothing"
    took = SHORT_S * 10
    assert not after(1)
    took = SHORT_S / 10
    assert not after(1), "a slow one is remembered"
    assert after(20)
    syncer.stop()
    loop.close()


class InPython(syncer_module.Syncer):
    """Its threads run what is written in Python."""

    def _free(self) -> None:
        datasync.free(self._gone, self._freed)

    def _serve(self) -> None:
        datasync.serve(self._taken, self._told)


@pytest.fixture(params=["as built", "in Python"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the threads run: the C twin where it has been compiled, and the one in Python."""
    if request.param == "in Python":
        monkeypatch.setattr(syncer_module, "Syncer", InPython)


class Many(Commit):
    """Names its files that many times."""

    times = 1

    def waves(self) -> Generator[list[int], None, None]:
        for wave in super().waves():
            yield wave * self.times


def run(job: Commit) -> None:
    """In the threads."""

    async def main() -> None:
        ended = asyncio.get_running_loop().create_future()
        syncer = syncer_module.Syncer(asyncio.get_running_loop(), ended.set_result, nothing)
        syncer.submit(job)
        assert await asyncio.wait_for(ended, 60) is job
        syncer.stop()

    asyncio.run(main())


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("times", [1, datasync.MOST, datasync.MOST + 1, 20_000])
def test_all_of_a_job_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """C2: so many files that one request holds them, or several do, or the pipe does not hold all requests."""
    disk = RealDisk(str(tmp_path))
    file = disk.open("f", create=True)
    opened, closed, open_dir, close = set(), set(), disk.open_dir, os.close

    def open_it(path: str) -> int:
        fd = open_dir(path)
        opened.add(fd)
        return fd

    def close_it(fd: int) -> None:
        closed.add(fd)
        close(fd)

    monkeypatch.setattr(disk, "open_dir", open_it)
    monkeypatch.setattr(os, "close", close_it)
    job = Many(disk, [file], ["", "gone"])
    job.times = times
    run(job)
    assert job.error is None and job.seconds > 0
    assert opened - closed == {-1}, "of the directory that is gone"
    file.close()


@pytest.mark.parametrize(("dirs", "most"), [(["", ""], 1), ([], 6)])
def test_new_files_are_synced_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dirs: list[str], most: int
) -> None:
    """One after the other each commits the journal of the file system: 7 files in 7 directories took 25 to 55 ms."""
    disk = RealDisk(str(tmp_path))
    files = [disk.open(f"f{number}", create=True) for number in range(6)]
    sizes: list[int] = []
    pack = datasync.REQUEST.pack

    class Recorder:
        size = datasync.REQUEST.size

        def pack(self, count: int, *descriptors: int) -> bytes:
            sizes.append(count)
            return pack(count, *descriptors)

    monkeypatch.setattr(syncer_module, "REQUEST", Recorder())
    run(Commit(disk, list(files), dirs))
    assert max(sizes) == most
    for file in files:
        file.close()


@pytest.mark.usefixtures("threads")
def test_a_sync_that_fails_fails_the_job(tmp_path: Path) -> None:
    """C8: it is told once nothing syncs any more."""
    disk = RealDisk(str(tmp_path))
    files: list[File] = [disk.open(f"f{n}", create=True) for n in range(datasync.MOST + 1)]
    pipe = os.pipe()
    files[3].fileno = lambda: pipe[0]  # type: ignore[method-assign]
    job = Commit(disk, files, [""])
    run(job)
    assert isinstance(job.error, SyncError)
    assert str(job.error) == f"cannot sync {files[3].path}: [Errno 22] Invalid argument"
    for file in files:
        file.close()
    for end in pipe:
        os.close(end)


def test_what_has_no_descriptor_is_synced_by_python(tmp_path: Path) -> None:
    """A file that is none of the system's."""
    disk = RealDisk(str(tmp_path))
    file = disk.open("f", create=True)
    synced_in: list[str] = []
    file.fileno = lambda: -1  # type: ignore[method-assign]
    file.sync = lambda: synced_in.append(threading.current_thread().name)  # type: ignore[method-assign]
    job = Commit(disk, [file], [""])
    run(job)
    assert job.error is None and synced_in == ["kvitto-sync"]
    file.close()


@pytest.mark.usefixtures("threads")
def test_descriptors_are_closed_by_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those are closed at once that are too many to wait. Whoever waits until the bytes are free is told."""
    monkeypatch.setattr(syncer_module, "FREEING_MAX", 3)

    async def main() -> None:
        freed = asyncio.Event()
        syncer = syncer_module.Syncer(asyncio.get_running_loop(), lambda job: None, freed.set)
        ends = [os.pipe() for _ in range(20)]
        for end, _ in ends:
            syncer.free(end)
            assert syncer.freeing <= 3
        while syncer.freeing:
            await freed.wait()
            freed.clear()
        for _, end in ends:
            with pytest.raises(BrokenPipeError):
                os.write(end, b"x")
            os.close(end)
        syncer.stop()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_few_directories_are_open_at_one_time(tmp_path: Path) -> None:
    """A sync of many new queues took all descriptors of the process. One directory at a time has to do where there are no more."""
    disk = RealDisk(str(tmp_path))
    most, opened = 0, 0
    limit = 1 << 30
    open_dir, close = disk.open_dir, os.close
    held: set[int] = set()

    def open_it(path: str) -> int:
        nonlocal most, opened
        if len(held) >= limit:
            raise SyncError("no descriptor is left")
        fd = open_dir(path)
        held.add(fd)
        most, opened = max(most, len(held)), opened + 1
        return fd

    def close_it(fd: int) -> None:
        held.discard(fd)
        close(fd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "open_dir", open_it)
        patch.setattr(os, "close", close_it)
        for allowed, expected in ((1 << 30, DIRS_AT_ONCE), (3, 3), (1, 1)):
            limit, most, opened = allowed, 0, 0
            job = Commit(disk, [], [""] * 100)
            run(job)
            assert job.error is None and (most, opened) == (expected, 100) and not held
        limit = 0
        job = Commit(disk, [], [""])
        run(job)
        assert str(job.error) == "no descriptor is left"


def test_a_stop_in_the_middle_of_a_job_leaves_no_descriptor_open(tmp_path: Path) -> None:
    """C8: the broker stops because something else has failed."""
    disk = RealDisk(str(tmp_path))
    open_dir, pipe, close = disk.open_dir, os.pipe, os.close
    held: set[int] = set()  # other threads of this process open files too, so that a look at all of them shows theirs

    def open_it(path: str) -> int:
        fd = open_dir(path)
        held.add(fd)
        return fd

    def pipe_it() -> tuple[int, int]:
        ends = pipe()
        held.update(ends)
        return ends

    def close_it(fd: int) -> None:
        held.discard(fd)
        close(fd)

    async def main() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(disk, "open_dir", open_it)
            patch.setattr(os, "pipe", pipe_it)
            patch.setattr(os, "close", close_it)
            syncer = syncer_module.Syncer(asyncio.get_running_loop(), lambda job: pytest.fail("it is told"), nothing)
            syncer.submit(Commit(disk, [], [""] * 5))
            assert len(held) == 8 + 5
            syncer.stop()
            assert not held

    asyncio.run(main())


@pytest.mark.usefixtures("threads")
def test_a_stop_does_not_wait_for_a_child_of_the_process() -> None:
    """It has the ends of all pipes."""
    child, order = os.pipe()

    async def main() -> None:
        syncer = syncer_module.Syncer(asyncio.get_running_loop(), lambda job: None, nothing)
        pid = os.fork()
        if pid == 0:
            os.close(order)
            os.read(child, 1)
            os._exit(0)
        syncer.stop()
        os.close(order)
        os.waitpid(pid, 0)
        os.close(child)

    asyncio.run(main())


def test_a_sync_whose_end_is_not_known_has_failed(tmp_path: Path) -> None:
    """C8: it is told, whatever went wrong on the way."""
    disk = RealDisk(str(tmp_path))

    class Broken(Commit):
        def failed(self, descriptor: int, code: int) -> None:
            raise ZeroDivisionError

    pipe = os.pipe()
    file = disk.open("f", create=True)
    file.fileno = lambda: pipe[0]  # type: ignore[method-assign]
    job = Broken(disk, [file], [])
    run(job)
    assert isinstance(job.error, ZeroDivisionError)
    for end in pipe:
        os.close(end)
    file.close()


def test_both_ways_confirm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C2: one message at a time, until syncs run in the loop."""
    places: set[str] = set()

    class Watched(syncer_module.Syncer):
        def run(self, job: Commit) -> None:
            places.add("loop")
            super().run(job)

        def submit(self, job: Commit) -> None:
            places.add("thread")
            super().submit(job)

    monkeypatch.setattr("kvitto.server.server.Syncer", Watched)
    monkeypatch.setattr("kvitto.server.syncer.SHORT_S", 60.0)
    with Broker(tmp_path) as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_select()
        for n in range(200):
            channel.publish(b"%d" % n, "", "q")
            assert channel.wait_for_confirms(10)
    assert places == {"loop", "thread"}
    with Broker(tmp_path) as broker, Connection(broker.url) as connection:
        assert connection.channel().queue_declare("q", passive=True).message_count == 200


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("other", ["a reader", "a name", "nobody"])
def test_a_file_that_somebody_else_has_is_not_cut_when_it_is_freed(other: str, tmp_path: Path) -> None:
    """A large file is freed in steps. A reader of it, or a backup that has another name of it, keeps every byte."""
    path, size = tmp_path / "file", datasync.FREED_BYTES * 2 + 1
    path.write_bytes(b"x")
    os.truncate(path, size)
    if other == "a name":
        os.link(path, tmp_path / "backup")
    keeper = os.open(path, os.O_RDONLY) if other == "a reader" else -1

    async def main() -> None:
        freed = asyncio.Event()
        syncer = syncer_module.Syncer(asyncio.get_running_loop(), lambda job: None, freed.set)
        syncer.free(fd)
        while syncer.freeing:
            await freed.wait()
            freed.clear()
        syncer.stop()

    fd = os.open(path, os.O_RDWR)
    path.unlink()
    asyncio.run(asyncio.wait_for(main(), 60))
    if other == "a name":
        assert (tmp_path / "backup").stat().st_size == size
    if other == "a reader":
        assert os.fstat(keeper).st_size == size
        os.close(keeper)


@pytest.mark.skipif(not hasattr(fcntl, "F_SETLEASE"), reason="only Linux says whether somebody else has a file open")
def test_a_removed_file_is_cut_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasync, "FREED_BYTES", 1000)
    path = tmp_path / "file"
    path.write_bytes(bytes(4500))
    fd = os.open(path, os.O_RDWR)
    datasync.shorten(fd)
    assert os.fstat(fd).st_size == 4500
    path.unlink()
    datasync.shorten(fd)
    assert os.fstat(fd).st_size == 500
    os.close(fd)

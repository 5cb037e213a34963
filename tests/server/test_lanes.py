"""A follower syncs many files at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kvitto.base.errors import SyncError
from kvitto.server.lanes import FEW, LANES, Lanes
from kvitto.store.disk import File, RealDisk
from tests.support.wait import TIMEOUT_S


class Watched(RealDisk):
    """A disk whose syncs do something first."""

    def __init__(self, root: Path, first: Callable[[str], None]) -> None:
        super().__init__(str(root))
        self.first = first

    def files(self, count: int) -> list[File]:
        found: list[File] = [self.open(f"file-{number}", create=True) for number in range(count)]
        for file in found:
            file.sync = self._before(file)  # type: ignore[method-assign]
        return found

    def _before(self, file: File) -> Callable[[], None]:
        sync = file.sync

        def both() -> None:
            self.first(file.path.rpartition("/")[2])
            sync()

        return both

    def sync_dir(self, path: str) -> None:
        self.first(path)
        super().sync_dir(path)


Make = Callable[[Callable[[str], None]], Watched]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Make]:
    """Makes such a disk, which is closed at the end."""
    made: list[Watched] = []

    def make(first: Callable[[str], None]) -> Watched:
        made.append(Watched(tmp_path, first))
        return made[-1]

    yield make
    for disk in made:
        disk.close()


def test_as_many_syncs_run_at_the_same_time_as_there_are_lanes(watched: Make) -> None:
    together = threading.Barrier(LANES, timeout=TIMEOUT_S)
    seen: list[str] = []

    def first(path: str) -> None:
        seen.append(path)
        together.wait()

    disk = watched(first)
    files = disk.files(2 * LANES - 1)
    Lanes().sync(disk, files, [""])
    assert sorted(seen) == sorted(["", *(f"file-{number}" for number in range(2 * LANES - 1))])


def test_few_files_are_synced_in_the_calling_thread(watched: Make) -> None:
    threads: list[threading.Thread] = []
    disk = watched(lambda path: threads.append(threading.current_thread()))
    Lanes().sync(disk, disk.files(FEW), [])
    assert threads == [threading.current_thread()] * FEW


@pytest.mark.parametrize("failing", [0, 1, 2 * LANES])
def test_an_error_is_raised_when_every_sync_has_ended(watched: Make, failing: int) -> None:
    """The caller may close files then, and no other thread may be syncing one."""
    failed = threading.Event()
    ended: list[str] = []

    def first(path: str) -> None:
        if path == f"file-{failing}":
            failed.set()
            raise SyncError("the device failed")
        if failing % LANES != int(path.partition("-")[2]) % LANES:
            assert failed.wait(TIMEOUT_S)
        ended.append(path)

    disk = watched(first)
    with pytest.raises(SyncError, match="the device failed"):
        Lanes().sync(disk, disk.files(3 * LANES), [])
    others = [f"file-{number}" for number in range(3 * LANES) if number % LANES != failing % LANES]
    assert set(ended) >= set(others)


def test_a_system_that_allows_no_more_threads_only_makes_it_slower(
    watched: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    disk = watched(seen.append)
    files = disk.files(3 * LANES)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    Lanes().sync(disk, files, [])
    assert sorted(seen) == sorted(f"file-{number}" for number in range(3 * LANES))


class Refusing(ThreadPoolExecutor):
    """It takes some syncs, begins the first one only, and then the system allows no more threads."""

    def __init__(self) -> None:
        super().__init__(1)
        self.taken = 0

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        self.taken += 1
        if self.taken == 1:
            return super().submit(work, *args, **named)
        if self.taken == 2:
            future: Future[Any] = Future()
            assert future.cancel()
            return future
        raise RuntimeError("can't start new thread")


def test_what_waited_for_a_thread_that_the_system_does_not_allow_is_not_waited_for(watched: Make) -> None:
    seen: list[str] = []
    disk, lanes = watched(seen.append), Lanes()
    lanes._threads = Refusing()
    lanes.sync(disk, disk.files(3 * LANES), [])
    assert set(seen) == {f"file-{number}" for number in range(3 * LANES)}
    seen.clear()
    lanes.sync(disk, disk.files(3 * LANES), [])
    assert sorted(seen) == sorted(f"file-{number}" for number in range(3 * LANES)), "there are threads again"

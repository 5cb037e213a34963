"""The lock of a data directory (D5), also where somebody removes the lock file or a file system locks no directories."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvitto.base.errors import StoreError
from kvitto.store.disk import RealDisk
from kvitto.store.repair.readonly import ReadOnlyDisk

REAL_FLOCK = fcntl.flock
Locker = Callable[[int, int], None]


@pytest.fixture
def disk(tmp_path: Path) -> RealDisk:
    made = RealDisk(str(tmp_path / "data"))
    made.makedirs("")
    return made


def no_directories(fd: int, kind: int) -> None:
    """As NFS, which wants a descriptor for writing."""
    if os.path.isdir(f"/proc/self/fd/{fd}"):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    REAL_FLOCK(fd, kind)


def test_d5_a_removed_lock_file_lets_no_second_owner_in(disk: RealDisk) -> None:
    lock = disk.lock("lock")
    disk.unlink("lock")
    with pytest.raises(StoreError, match="data is in use by another process: stop it or choose another --data-dir"):
        disk.lock("lock")
    assert not disk.exists("lock")
    disk.open("lock", create=True).close()
    with pytest.raises(StoreError, match="in use by another process"):
        disk.lock("lock")
    with pytest.raises(StoreError, match="in use by another process: stop the broker first"):
        ReadOnlyDisk(disk.root).keep_out()
    lock.close()
    disk.lock("lock").close()


def test_d5_a_reader_without_a_lock_file_keeps_owners_out(disk: RealDisk) -> None:
    first, second = (ReadOnlyDisk(disk.root).keep_out() for _ in range(2))
    first.close()
    with pytest.raises(StoreError, match="in use by another process"):
        disk.lock("lock")
    second.close()
    disk.lock("lock").close()


@pytest.mark.parametrize("flock", [REAL_FLOCK, no_directories])
def test_d5_owners_and_readers_exclude_each_other(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch, flock: Locker
) -> None:
    """With the file alone too, where no directory can be locked."""
    monkeypatch.setattr(fcntl, "flock", flock)
    lock = disk.lock("lock")
    text = f"in use by process {os.getpid()}"
    with pytest.raises(StoreError, match=text):
        disk.lock("lock")
    with pytest.raises(StoreError, match=text):
        ReadOnlyDisk(disk.root).keep_out()
    lock.close()
    reader = ReadOnlyDisk(disk.root).keep_out()
    with pytest.raises(StoreError, match=text):
        disk.lock("lock")
    reader.close()
    disk.lock("lock").close()


def test_a_lock_file_that_loses_its_name_while_it_is_locked_is_not_the_lock(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two starts and a removal between them: where no directory can be locked, each would own a file of its own."""
    removed: list[None] = []

    def remove_first(fd: int, kind: int) -> None:
        no_directories(fd, kind)
        if not removed:
            removed.append(os.unlink(f"{disk.root}/lock"))

    monkeypatch.setattr(fcntl, "flock", remove_first)
    lock = disk.lock("lock")
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        disk.lock("lock")
    lock.close()


@pytest.mark.parametrize("what", ["lock", "owner"])
def test_a_lock_that_fails_says_why(disk: RealDisk, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOLCK if what == "lock" else errno.ENOSPC, "it fails")

    monkeypatch.setattr(fcntl if what == "lock" else os, "flock" if what == "lock" else "pwrite", fails)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StoreError, match=r"cannot lock .*/data/lock: it fails"):
        disk.lock("lock")
    assert len(os.listdir("/proc/self/fd")) == before

"""The lock of a data directory: one broker owns it, or tools that only read share it. `RealDisk` and `ReadOnlyDisk` call this.

Two things are locked: the directory itself, which nobody can remove and make again while it has files, and the file `lock` in it, which
says who the owner is. The file alone would not do: if somebody removes it, the next process locks another file of the same name. The
directory alone would not do either: some network file systems lock no directories.
"""

from __future__ import annotations

import fcntl
import os

LOCK_BYTES_MAX = 256
EXCLUSIVE, SHARED = fcntl.LOCK_EX, fcntl.LOCK_SH


class Lock:
    """A held lock. The operating system frees it when the process ends, however that happens."""

    def __init__(self) -> None:
        self._fds: list[int] = []

    def hold(self, fd: int) -> None:
        self._fds.append(fd)

    def close(self) -> None:
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def own(full: str, owner: str) -> Lock:
    """Lock a directory for one owner, by the path of its lock file. Raises BlockingIOError if others have it, or another OSError."""
    lock = Lock()
    try:
        _lock_directory(lock, full, EXCLUSIVE)
        _lock_file(lock, full, owner)
    except OSError:
        lock.close()
        raise
    return lock


def share(full: str) -> Lock:
    """Lock a directory against owners. There may be no lock file, as in a copy of a directory. Raises like `own`."""
    lock = Lock()
    try:
        _lock_directory(lock, full, SHARED)
        fd = os.open(full, os.O_RDONLY)
        lock.hold(fd)
        fcntl.flock(fd, SHARED | fcntl.LOCK_NB)
    except FileNotFoundError:
        return lock
    except OSError:
        lock.close()
        raise
    return lock


def owner_of(full: str) -> str:
    """Return who has the directory, for people: the lock file may be gone, or old."""
    try:
        with open(full, "rb") as file:
            said = file.read(LOCK_BYTES_MAX).split()
    except OSError:
        said = []
    return f"process {said[0].decode('ascii', 'replace')}" if said else "another process"


def _lock_directory(lock: Lock, full: str, kind: int) -> None:
    """Lock the directory itself, if its file system can do that. Raises BlockingIOError if others have it."""
    fd = os.open(os.path.dirname(full), os.O_RDONLY | os.O_DIRECTORY)
    lock.hold(fd)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass  # NFS wants a descriptor for writing, and there is none for a directory


def _lock_file(lock: Lock, full: str, owner: str) -> None:
    """Lock the file, and write into it who the owner is. If the file loses its name meanwhile, lock the one that has the name then."""
    while True:
        fd = os.open(full, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, EXCLUSIVE | fcntl.LOCK_NB)
            named = _is_named(fd, full)
            if named:
                os.ftruncate(fd, 0)
                os.pwrite(fd, owner.encode(), 0)
        except OSError:
            os.close(fd)
            raise
        if named:
            lock.hold(fd)
            return
        os.close(fd)


def _is_named(fd: int, full: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(full))
    except FileNotFoundError:
        return False

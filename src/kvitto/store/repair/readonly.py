"""The `Disk` of `kvitto check` and `kvitto salvage`: a data directory that is only read."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NoReturn

from kvitto.base.errors import StoreError
from kvitto.store import locking, paths
from kvitto.store.disk import Bytes, RealDisk, RealFile, fail
from kvitto.store.locking import Lock
from kvitto.store.repair.examine import Finding

PAGE = 4096
UNREADABLE = b"\xff"
"""Stands for each byte that the device cannot read."""


class ReadOnlyFile(RealFile):
    """A file that is only read. `truncate` does nothing, because code that cuts off a torn tail only wants to pass over it."""

    def __init__(self, path: str, fd: int, unreadable: set[int]) -> None:
        super().__init__(path, fd)
        self._unreadable = unreadable

    def read_at(self, pos: int, n: int) -> bytes:
        """Read n bytes at `pos`. Pages that the device cannot read are replaced by UNREADABLE."""
        try:
            return super().read_at(pos, n)
        except StoreError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EIO:
                raise
        parts, at, end = [], pos, min(pos + n, self.size())
        while at < end:
            length = min(PAGE - at % PAGE, end - at)
            parts.append(self._read_page(at, length))
            at += length
        return b"".join(parts)

    def _read_page(self, at: int, n: int) -> bytes:
        try:
            return super().read_at(at, n)
        except StoreError:
            self._unreadable.add(at // PAGE)
            return UNREADABLE * n

    def write_at(self, pos: int, buffers: Sequence[Bytes]) -> int:
        refuse(self.path)

    def truncate(self, n: int) -> None:
        pass

    def reserve(self, start: int, end: int) -> None:
        refuse(self.path)

    def sync(self) -> None:
        pass


class ReadOnlyDisk(RealDisk):
    """A data directory that is only read. Raises StoreError for every change, and if there is no such directory."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._unreadable: dict[str, set[int]] = {}
        try:
            os.listdir(self.root)
        except OSError as error:
            fail("read the data directory", self.root, error)

    def open(self, path: str, *, create: bool = False) -> ReadOnlyFile:
        full = self._full(path)
        try:
            fd = os.open(full, os.O_RDONLY)
        except OSError as error:
            fail("open", full, error)
        return ReadOnlyFile(full, fd, self._unreadable.setdefault(path, set()))

    def read_file(self, path: str) -> bytes:
        file = self.open(path)
        try:
            return file.read_at(0, file.size())
        finally:
            file.close()

    def failures(self) -> list[Finding]:
        """Return the pages that the device has failed to read so far."""
        text = f"{PAGE} bytes cannot be read from the device: see the system log"
        return [Finding(path, text, PAGE * page) for path, pages in self._unreadable.items() for page in sorted(pages)]

    def keep_out(self) -> Lock:
        """Keep brokers out until the result is closed or collected."""
        full = self._full(paths.LOCK)
        try:
            return locking.share(full)
        except BlockingIOError as error:
            raise StoreError(f"{self.root} is in use by {locking.owner_of(full)}: stop the broker first") from error
        except OSError as error:
            fail("lock", full, error)

    def lock(self, path: str) -> Lock:
        refuse(self._full(path))

    def makedirs(self, path: str) -> None:
        refuse(self._full(path))

    def rename(self, a: str, b: str) -> None:
        refuse(self._full(a))

    def link(self, a: str, b: str) -> bool:
        refuse(self._full(a))

    def unlink(self, path: str) -> None:
        refuse(self._full(path))

    def rmtree(self, path: str) -> None:
        refuse(self._full(path))

    def sync_dir(self, path: str) -> None:
        pass


def refuse(path: str) -> NoReturn:
    raise StoreError(f"{path} is only read here: {os.strerror(errno.EROFS)}")

"""Copies of settled segments for the archive, where the file system gives a file one name only (docs/formats.md, Archive).

A copy is made in the loop, one slice in each turn, because a 64 MiB segment takes a disk much longer than a turn may last. So all that
changes the directory comes from one thread, in one order. Used by the store for archives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING

from kvitto.base.errors import StoreError, StoreFull
from kvitto.base.turn_part import TurnPart
from kvitto.store import paths, pieces
from kvitto.store.commit import GroupCommit
from kvitto.store.disk import Disk
from kvitto.store.room import ROOM_KEPT

if TYPE_CHECKING:
    from kvitto.store.disk import File
    from kvitto.store.log import Log


class Copies(TurnPart):
    def __init__(self, disk: Disk, commits: GroupCommit) -> None:
        self._disk = disk
        self._commits = commits
        self.waiting: deque[tuple[Log, Generator[None, None, None]]] = deque()
        """The copies that are to be made, with the logs whose segments they are. The first of them has been begun."""

    def add(self, log: Log, path: str, name: str, done: Callable[[], None]) -> None:
        """Copy `path` to `name`, then call `done`. The copy is durable then, or it is missing because there was no room for it."""
        self.waiting.append((log, self._steps(path, name, done)))

    def step(self) -> None:
        """Write a slice of the first copy. A copy of a queue that is out of service is given up, and so is one whose step raises."""
        log, steps = self.waiting.popleft()
        if log.out_of_service:
            with suppress(StopIteration, StoreFull):
                steps.throw(StoreFull("its queue is out of service"))
            return
        for _ in steps:
            self.waiting.appendleft((log, steps))
            return

    def _steps(self, path: str, name: str, done: Callable[[], None]) -> Generator[None, None, None]:
        source = self._disk.open(path)
        try:
            copy = yield from self._written(source, paths.copying(name))
        finally:
            source.close()
        if copy is None:
            done()
            return
        # its own name comes behind the sync that makes it durable: a file of this name is whole
        self._commits.wrote_file(copy)
        self._commits.when_synced(lambda: self._named(copy, name, done))

    def _written(self, source: File, name: str) -> Generator[None, None, File | None]:
        """Yield after each slice. Returns the copy, or None if there is no room for it."""
        if not has_room(self._disk, source):
            return None
        try:
            copy = self._disk.open(name, create=True)
        except StoreFull:
            return None
        return copy if (yield from slices(source, copy)) else None

    def _named(self, copy: File, name: str, done: Callable[[], None]) -> None:
        self._commits.close(copy)
        self._disk.rename(paths.copying(name), name)
        self._commits.renamed(name.rpartition("/")[0])
        self._commits.when_synced(done)


def has_room(disk: Disk, source: File) -> bool:
    """Whether there is room for a copy of this file, and for what frees space besides."""
    return disk.free_bytes() - ROOM_KEPT >= source.size()


def slices(source: File, copy: File) -> Generator[None, None, bool]:
    """Write the bytes of `source` into `copy` and yield after each slice. Returns False if there is no room for all of them.

    Then, and after an exception, `copy` is closed and, as far as the disk allows it, empty. A generator that is dropped closes it only.
    """
    size, at = source.size(), 0
    try:
        copy.truncate(0)
        while at < size:
            at += copy.write_at(at, [source.read_at(at, pieces.SLICE_BYTES)])
            yield
    except StoreError as error:
        with suppress(StoreError):
            copy.truncate(0)
        copy.close()
        if isinstance(error, StoreFull):
            return False
        raise
    except GeneratorExit:
        copy.close()
        raise
    return True


def copy_now(disk: Disk, source: File, path: str) -> bool:
    """Make a durable copy before this returns. Returns False if there is no room for it.

    The first name of the copy is durable before anything else: it says to a later start that there is to be one.
    """
    name, directory = paths.copying(path), path.rpartition("/")[0]
    try:
        copy = disk.open(name, create=True)
    except StoreFull:
        return False
    disk.sync_dir(directory)
    if not has_room(disk, source):
        copy.truncate(0)
        copy.close()
        return False
    if not _run(slices(source, copy)):
        return False
    copy.sync()
    copy.close()
    disk.rename(name, path)
    disk.sync_dir(directory)
    return True


def _run(steps: Generator[None, None, bool]) -> bool:
    """Do all steps at once. Returns what the generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)

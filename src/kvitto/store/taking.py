"""Takes a backup of a running broker: makes a data directory of what a cut has noted (store/cut.py, docs/adr/0028).

`kvitto backup` calls this in a process of its own, which only reads the broker's directory. Sealed segments never change, so they get a
second name in the backup where both are on one file system. Of all other files the bytes that were there at the cut are copied. The
backup has a marker file until all of it is durable, and no broker starts while it is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from kvitto.base.errors import StoreError
from kvitto.store import inventory, paths
from kvitto.store.disk import Disk, File, write_small
from kvitto.store.inventory import ARCHIVED, DEFINITIONS, JOURNAL, OFFSETS, ORPHAN, SEGMENT, Entry
from kvitto.store.segment import HEADER, Segment, salts
from kvitto.store.store import FORMAT, refuse_inside

WHOLE = -1
"""Stands for the length of a file that is taken as it is."""
SYNC_BYTES = 1 << 20
"""Copies are synced each time after so many bytes: a broker that syncs to the same disk does not wait long for them."""


class Gone(Exception):
    """There is no file of this name any more."""


class Mover(Protocol):
    """Moves bytes from the broker's directory to the backup, for files that both have opened."""

    linking: bool
    """Whether files may get a second name in the backup."""

    def open(self, path: str) -> File:
        """Open a file of the broker's directory. Raises Gone."""
        ...

    def link(self, path: str, name: str) -> bool:
        """Give a file the name `name` in the backup too. Returns False if that is not possible. Raises Gone."""
        ...

    def copy(self, source: File, target: File, at: int, n: int) -> int:
        """Copy up to `n` bytes at the same position. Returns how many; 0 means that the file ends there."""
        ...


class Taking:
    """Call `plan`, `begin`, `steps` and `complete`, the generators to their end. What they yield is how many bytes have been copied.

    All raise StoreError. The target is empty. Until `complete` it is marked as incomplete.
    """

    def __init__(self, source: Disk, staging: str, target: Disk, mover: Mover) -> None:
        self._source = source
        self._staging = staging
        self._target = target
        self._mover = mover
        self._inventory = self._boot = b""
        self._files: list[tuple[str, int]] = []
        """The path of each file, and how many bytes of it are taken."""
        self._sealed: set[str] = set()
        """The segments of which all is taken."""
        self._dirs: dict[str, None] = {}
        self._described: set[str] = set()
        """The directories whose `queue.json` has been looked for."""
        self.bytes = 0
        """The bytes that have to be copied."""
        self.linked = self.copied = 0
        """How many files have got a second name, and how many have been copied."""

    # -- the plan --------------------------------------------------------------------------------------------

    def plan(self) -> Iterator[int]:
        """Find out what there is to be taken."""
        self._inventory = self._source.read_file(f"{self._staging}/{paths.INVENTORY}")
        self._boot = self._source.read_file(f"{self._staging}/{paths.BOOT}")
        found = inventory.read(self._inventory, True, False)
        if found.damage or found.bad:
            raise StoreError(f"{self._staging}/{paths.INVENTORY} cannot be read: {found.damage}")
        journals = self._journals()
        for entry in found.entries:
            self._plan(entry, journals)
            yield 0
        for directory in (paths.QUEUES, paths.JOURNALS):
            self._dirs[directory] = None

    def _journals(self) -> dict[int, str]:
        """The paths of the journal's files by number, also of those that are only in the staging directory."""
        prefix = paths.staged(self._staging, f"{paths.JOURNALS}/").rpartition("/")[2]
        staged = [name.removeprefix(prefix) for name in self._source.listdir(self._staging) if name.startswith(prefix)]
        found = filter(None, map(paths.journal_of, [*self._source.listdir(paths.JOURNALS), *staged]))
        return {number: paths.journal(number, salt) for number, salt in found}

    def _plan(self, entry: Entry, journals: dict[int, str]) -> None:
        directory = paths.queue_dir(entry.queue_id, True)
        if entry.kind == SEGMENT:
            self._plan_segment(directory, entry)
        elif entry.kind == ARCHIVED:
            directory = paths.archive_dir(entry.queue_id)
            # an archive never has a segment without its settlements, so they come first
            self._add(paths.settlements(directory, entry.number), WHOLE)
            self._add(paths.segment(directory, entry.number), WHOLE)
            self._add_about(directory)
        elif entry.kind == JOURNAL:
            if entry.number not in journals:
                raise StoreError(f"{paths.JOURNALS}/{entry.number:016d} has disappeared: take the backup again")
            self._add(journals[entry.number], entry.size)
        elif entry.kind == DEFINITIONS:
            self._add(paths.DEFINITIONS, entry.size)
        elif entry.kind == OFFSETS:
            self._add(paths.offsets(directory), entry.size)
        elif entry.kind == ORPHAN:
            for name in self._source.listdir(directory):
                self._add(f"{directory}/{name}", WHOLE)

    def _plan_segment(self, directory: str, entry: Entry) -> None:
        path = paths.segment(directory, entry.number)
        if self._is_sealed(path, entry):
            self._sealed.add(path)
            self._add(path, WHOLE)
        else:
            self._add(path, entry.size)
        if entry.acks_size:
            self._add(paths.settlements(directory, entry.number), entry.acks_size)
        self._add_about(directory)

    def _is_sealed(self, path: str, entry: Entry) -> bool:
        """Whether a footer follows what is taken: then nothing is ever written to the segment again."""
        segment = Segment(entry.number)
        with self._opened(path) as (_, file):
            segment.file = file
            segment.salt = salts(file.read_at(0, HEADER))[0]
            return segment.read_footer() and segment.size == entry.size

    def _add_about(self, directory: str) -> None:
        """The file that says which queue it is. Only queues with an archive have it."""
        path = paths.about(directory)
        if directory not in self._described and any(map(self._source.exists, self._names(path))):
            self._add(path, WHOLE)
        self._described.add(directory)

    def _add(self, path: str, size: int) -> None:
        if path.startswith(f"{paths.ARCHIVE}/") and not any(map(self._source.exists, self._names(path))):
            return  # users may take files out of an archive
        self._files.append((path, size))
        self._dirs[path.rpartition("/")[0]] = None
        if not self._may_link(path):
            self.bytes += size if size != WHOLE else self._size(path)

    def _size(self, path: str) -> int:
        with self._opened(path) as (_, file):
            return file.size()

    def _may_link(self, path: str) -> bool:
        """Whether the file never changes, so that the backup may have the same one."""
        archived = path.startswith(f"{paths.ARCHIVE}/") and path.endswith(
            (paths.SEGMENT_SUFFIX, paths.SETTLEMENTS_SUFFIX)
        )
        return self._mover.linking and (archived or path in self._sealed)

    # -- the files -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Mark the target as an incomplete backup, before anything else is in it."""
        refuse_inside(self._target)
        self._target.makedirs("")
        self._target.open(paths.INCOMPLETE, create=True).close()
        self._target.sync_dir("")

    def steps(self) -> Iterator[int]:
        """Take everything, and make it durable."""
        for directory in self._dirs:
            self._target.makedirs(directory)
        for path, size in self._files:
            if self._link(path):
                self.linked += 1
                yield 0
            else:
                yield from self._copy(path, size)
                self.copied += 1
        parents = dict.fromkeys(directory.rpartition("/")[0] for directory in self._dirs if directory)
        for directory in dict.fromkeys([*self._dirs, *parents]):
            self._target.sync_dir(directory)
            yield 0

    def complete(self) -> None:
        """Say that everything is there. The cut has to last until now, since it keeps the files from being removed."""
        for path, content in ((paths.INVENTORY, self._inventory), (paths.BOOT, self._boot), (paths.FORMAT, FORMAT)):
            write_small(self._target, path, content)
        self._target.sync_dir("")
        self._target.unlink(paths.INCOMPLETE)
        self._target.sync_dir("")

    def _link(self, path: str) -> bool:
        """Give the file a second name in the backup, and sync it: its footer may have been written without a sync."""
        if not self._may_link(path):
            return False
        for name in self._names(path):
            try:
                if not self._mover.link(name, path):
                    return False
            except Gone:
                continue
            with self._opened(path) as (_, file):
                file.sync()
            return True
        raise StoreError(f"{path} has disappeared: take the backup again")

    def _copy(self, path: str, size: int) -> Iterator[int]:
        with self._opened(path) as (name, source):
            target = self._target.open(path, create=True)
            try:
                end = source.size() if size == WHOLE else size
                at = synced = 0
                while at < end:
                    n = self._mover.copy(source, target, at, min(end - at, SYNC_BYTES))
                    if not n:
                        raise StoreError(f"{name} ends at byte {at} of {end}: it is damaged, see `kvitto check`")
                    at += n
                    if at - synced >= SYNC_BYTES:
                        target.sync()
                        synced = at
                    yield n
                target.sync()
            finally:
                target.close()

    # -- where they are --------------------------------------------------------------------------------------

    def _names(self, path: str) -> list[str]:
        """Where the file may be: in its own place; or, if it has been removed there, in the staging directory."""
        staged = paths.staged(self._staging, path)
        in_place = path == paths.DEFINITIONS or path.endswith(paths.offsets(""))
        # another file may have these names now, or they may be written in place
        return [staged] if in_place else [path, staged]

    @contextmanager
    def _opened(self, path: str) -> Iterator[tuple[str, File]]:
        """Open a file of the broker's directory, wherever it is. Raises StoreError if it is nowhere."""
        for name in self._names(path):
            try:
                file = self._mover.open(name)
            except Gone:
                continue
            try:
                yield name, file
            finally:
                file.close()
            return
        raise StoreError(f"{path} has disappeared: take the backup again")

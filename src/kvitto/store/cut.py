"""A cut: what all files of the data directory have at one moment, for a backup that is taken while the broker goes on.

`begin` is called between two turns. From then on each log notes its lengths before it changes anything (`keep`), and `some` notes the
other logs a few at a time, so that all notes tell of that one moment. They become the inventory of the backup. A file that is removed
meanwhile keeps a second name in the staging directory (`going`). Whoever takes the backup reads the files, up to the lengths noted, and
then `end` is called (store/taking.py, docs/adr/0028). A cut that fails is given up; it never hinders the broker.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from kvitto.base.errors import StoreError
from kvitto.base.limits import SEGMENT_BYTES
from kvitto.store import inventory, paths
from kvitto.store.inventory import ARCHIVED, DEFINITIONS, JOURNAL, NOBODY, OFFSETS, ORPHAN, SEGMENT, SLOT, UNKNOWN
from kvitto.store.removals import SMALL_FILE

if TYPE_CHECKING:
    from kvitto.store.archive import Archive
    from kvitto.store.disk import File
    from kvitto.store.inventory import Key, Sizes
    from kvitto.store.log import Log
    from kvitto.store.offsets import Offsets
    from kvitto.store.store import Store

PIECE = 400
"""The cost of one call of `some`, in units of about a microsecond."""
LOG_COST = 3
SEGMENT_COST = 1
OFFSETS_COST = 200
ENTRY_COST = 8

Note = tuple[int, str, int, tuple[int, int, int]]
"""Kind, queue id, number, and sizes, as an entry of the inventory has them."""


class Cut:
    def __init__(self, store: Store, name: str) -> None:
        self.name = name
        self.directory = paths.staging(name)
        self.failure = ""
        """Why the cut was given up, as a sentence for people; "" if it was not."""
        self.ready = False
        """Whether everything has been noted, and the inventory of the backup is in the staging directory."""
        self._store = store
        self._disk = store.disk
        self._logs: dict[Log, None] = {}
        """The logs that were there at the cut and have not been noted."""
        self._archives: dict[Archive, None] = {}
        self._notes: deque[list[Note]] = deque()
        self._last: dict[str, int] = {}
        """The last base offset that has been noted in each directory: later segments do not belong to the backup."""
        self._journals: set[str] = set()
        self._live: dict[str, set[int]] = {}
        """The segments of each queue with an archive. One that is also in the archive is on its way there, and is taken from the queue."""
        self._entries = 0
        self._inventory: File | None = None

    def begin(self) -> None:
        """Make the cut now. Raises StoreError, and then nothing has been begun."""
        store = self._store
        if store.failed is not None:
            raise StoreError("no backup can be taken, because the disk has failed")
        if store.definitions.unwritten:
            raise StoreError("no backup can be taken while the disk is full: definitions wait to be written")
        self._disk.makedirs(self.directory)
        try:
            # a compaction gives the name to another file, which does not begin as this one
            if not self._disk.link(paths.DEFINITIONS, paths.staged(self.directory, paths.DEFINITIONS)):
                raise StoreError("no backup can be taken while the broker runs: this file system knows no hard links")
            boot = self._disk.open(f"{self.directory}/{paths.BOOT}", create=True)
            boot.write_at(0, [store.boot_of_backup()])
            boot.close()
            self._inventory = self._disk.open(f"{self.directory}/{paths.INVENTORY}", create=True)
        except StoreError:
            self._disk.rmtree(self.directory)
            raise
        self._logs, self._archives = store.logs.copy(), store.archives.copy()
        notes: list[Note] = [(DEFINITIONS, NOBODY, 0, (store.definitions.file.end, 0, 0))]
        for number, path, size in store.journal.files():
            self._journals.add(path)
            notes.append((JOURNAL, NOBODY, number, (size, 0, 0)))
        notes += [(ORPHAN, queue_id, 0, UNKNOWN) for queue_id in store.orphans]
        self._notes.append(notes)
        store.cut = self._disk.keeper = self

    # -- noting ----------------------------------------------------------------------------------------------

    def keep(self, log: Log) -> None:
        """Note the lengths of a log's files, if that has not been done. Called before anything in the log changes."""
        if log in self._logs:
            del self._logs[log]
            self._note(log)

    def keep_archive(self, archive: Archive) -> None:
        """Do the same for an archive."""
        if archive in self._archives:
            del self._archives[archive]
            self._notes.append([(ARCHIVED, archive.queue_id, kept.base, UNKNOWN) for kept in archive.kept])
            if archive.kept:
                self._last[archive.directory] = archive.kept[-1].base

    def _note(self, log: Log) -> int:
        """Note a log. Returns the cost."""
        segments = log.segments
        notes: list[Note] = [(SEGMENT, log.queue_id, s.base, (s.size, s.acks_size, s.end)) for s in segments]
        if segments:
            self._last[log.directory] = segments[-1].base
            if log.archive is not None:
                self._live[log.queue_id] = {segment.base for segment in segments}
        cost = LOG_COST + SEGMENT_COST * len(segments)
        offsets = getattr(log, "offsets", None)
        if offsets is not None and offsets.on_disk:
            notes.append((OFFSETS, log.queue_id, 0, (self._stage_offsets(offsets), 0, 0)))
            cost += OFFSETS_COST
        if notes:
            self._notes.append(notes)
        return cost

    def _stage_offsets(self, offsets: Offsets) -> int:
        """Copy the offsets of a stream's consumers, because that file is written in place. Returns their size."""
        content = b""
        try:
            content = offsets.content()
            file = self._disk.open(paths.staged(self.directory, offsets.path), create=True)
            file.write_at(0, [content])
            file.close()
        except StoreError as error:
            self.give_up(str(error))
        return len(content)

    def some(self) -> bool:
        """Note some of the rest, or write some of the inventory. Returns whether nothing is left to do."""
        left = PIECE
        while left > 0 and self._logs and not self.failure:
            log, _ = self._logs.popitem()
            left -= self._note(log)
        while left > 0 and self._archives:
            archive = next(iter(self._archives))
            left -= LOG_COST + SEGMENT_COST * len(archive.kept)
            self.keep_archive(archive)
        while left > 0 and self._notes and not self.failure:
            left -= LOG_COST + ENTRY_COST * self._write(self._notes[0], left // ENTRY_COST + 1)
            if self._notes and not self._notes[0]:
                self._notes.popleft()
        if left > 0 and not self.failure and not self.ready:
            self._end_inventory()
        return self.ready or bool(self.failure)

    def _write(self, notes: list[Note], most: int) -> int:
        """Write up to `most` entries from the end of `notes`, and remove them there. Returns how many."""
        taken = [notes.pop() for _ in range(min(most, len(notes)))]
        entries = [self._entry(note) for note in taken if not self._on_its_way(note)]
        try:
            assert self._inventory is not None
            if entries:
                self._inventory.write_at(SLOT * (1 + self._entries), [b"".join(entries)])
        except StoreError as error:
            self.give_up(str(error))
        self._entries += len(entries)
        return len(taken)

    def _on_its_way(self, note: Note) -> bool:
        return note[0] == ARCHIVED and note[2] in self._live.get(note[1], ())

    @staticmethod
    def _entry(note: Note) -> bytes:
        key: Key = note[:3]
        sizes: Sizes = note[3]
        return inventory.slot(key, sizes)

    def _end_inventory(self) -> None:
        assert self._inventory is not None
        try:
            self._inventory.write_at(0, [inventory.header(self._entries)])
            self._inventory.close()
            self.ready = True
        except StoreError as error:
            self.give_up(str(error))

    # -- files that are removed meanwhile --------------------------------------------------------------------

    def going(self, path: str) -> None:
        """Give a file of the backup a second name, because its own is about to be removed. The disk calls this first."""
        if not self._has(path):
            return
        name = paths.staged(self.directory, path)
        try:
            if not self._disk.exists(name):
                self._disk.link(path, name)
        except StoreError as error:
            self.give_up(str(error))

    def _has(self, path: str) -> bool:
        """Whether a file belongs to the backup. More than those may be kept, but hardly any."""
        directory, _, name = path.rpartition("/")
        if directory == paths.JOURNALS:
            return path in self._journals
        last = self._last.get(directory)
        if last is None:
            return False
        if name.endswith((paths.SEGMENT_SUFFIX, paths.SETTLEMENTS_SUFFIX)):
            return paths.base_of(name) <= last
        return path == paths.about(directory)

    # -- the end ---------------------------------------------------------------------------------------------

    def give_up(self, why: str) -> None:
        """Let go of everything, because of an error or because nobody takes the backup. `end` still has to be called."""
        self.failure = self.failure or why
        self._release()

    def end(self) -> None:
        """Remove the staging directory, some files in each turn."""
        self._release()
        removals, disk = self._store.removals, self._disk
        if self._inventory is not None:
            self._inventory.close()
        for name in disk.listdir(self.directory):
            size = SEGMENT_BYTES if name.endswith(paths.SEGMENT_SUFFIX) else SMALL_FILE
            removals.add(size, partial(disk.unlink, f"{self.directory}/{name}"))
        removals.add(0, partial(disk.rmtree, self.directory))

    def _release(self) -> None:
        if self._store.cut is self:
            self._store.cut = self._disk.keeper = None
        self._logs, self._archives = {}, {}
        self._notes.clear()

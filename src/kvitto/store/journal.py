"""The journal makes work over several queues atomic: a record is written, synced and then applied (docs/formats.md, Journal).

A commit of a transaction and the move of a dead letter are a `Record` each. `write` puts it on disk; once a sync covers it, the broker
applies it to the queues in the order of sequences and calls `applied_to`. A start calls `replay` for what may not have been applied. A
file is unlinked when all that its records say is durable in the queues.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from kvitto.base.errors import StoreError, StoreFull
from kvitto.base.limits import SEGMENT_BYTES
from kvitto.store import judge, paths
from kvitto.store.inventory import JOURNAL, NOBODY, Entry
from kvitto.store.judge import JournalFile, Records
from kvitto.store.record import Record, RecordSlices

if TYPE_CHECKING:
    from kvitto.store.disk import File
    from kvitto.store.store import Store

ROTATE_BYTES = 4 << 20
RESERVE_BYTES = 256 << 10


class Journal:
    """`oldest`: a start may replay records from this sequence on. `_last`: the last sequence of each file on disk, by its number."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sequence = 0
        self.applied = 0
        self.written_out = 0
        self.oldest = 1
        self._keeps_all = False
        self._file: File | None = None
        self._number = 0
        self._salt = 0
        self._names: dict[int, str] = {}
        self._size = 0
        self._reserved = 0
        self._durable = 0
        self._slices: RecordSlices | None = None
        self._files: dict[int, File] = {}
        self._last: dict[int, int] = {}
        self._slots: dict[int, int] = {}
        """The slots of the files in the inventory."""
        self._ends: dict[int, int] = {}
        """The sizes of files that are complete and that no sync has covered to their end."""
        self._complete: dict[int, int] = {}
        """The bytes of records in each file that is not written any more."""

    def replay(self, floor: int) -> Iterator[Record]:
        """Yield the records on disk in order. `floor` is the highest sequence that any queue has applied. Raises StoreError for damage."""
        self.sequence = self.applied = self.written_out = floor
        self.oldest = floor + 1
        last, before = 0, ""
        if self.store.syncing:
            # A file that a killed process has removed must not come back: perhaps no segment knows any more that it has been applied.
            self.store.disk.sync_dir(paths.JOURNALS)
        known = self.store.inventory.claim(JOURNAL)
        files = dict(filter(None, map(paths.journal_of, self.store.disk.listdir(paths.JOURNALS))))
        for number in sorted(known.keys() - files.keys()):
            self._missing(known[number])
        for number, salt in sorted(files.items()):
            entry = known.get(number)
            found = judge.journal_file(self._found(number, salt), salt, self.store.ending, entry)
            name = self._names[number]
            if found.records:
                if before and judge.records_are_missing(last, found.records[0][2].sequence, floor, self.store.ending):
                    raise damaged(before, "its end, before the records of a later file")
                before = name
            if found.what is Records.DAMAGED:
                raise self._damaged(name, found, entry)
            for _, _, record in found.records:
                last = record.sequence
                self.oldest = min(self.oldest, last)
                self.sequence = self._last[number] = max(self.sequence, last)
                yield record
            if found.what is Records.APPLIED:
                self.store.alarm(f"{name} is damaged at byte {found.end}; what it held had been applied")
            elif found.tail:
                self._cut_off(name, found.end)
            self._enter(number, found.end, entry)

    def _cut_off(self, name: str, end: int) -> None:
        """Cut off a torn tail, because a start after an end in order would take it for damage."""
        file = self.store.disk.open(name)
        file.truncate(end)
        if self.store.syncing:
            file.sync()
        file.close()

    @staticmethod
    def _damaged(name: str, found: JournalFile, entry: Entry | None) -> StoreError:
        if found.holes:
            return damaged(name, f"byte {found.holes[0][0]}, before later valid records")
        assert entry is not None
        return damaged(name, f"byte {found.end}, although it had been synced up to byte {entry.size}")

    def _missing(self, entry: Entry) -> None:
        """Raise an alarm for a file that is missing, and go on: somebody may have removed it because it was damaged."""
        what = (
            "it had been applied" if self.store.ending.in_order else "transactions and dead letters may be lost with it"
        )
        self.store.alarm(f"{paths.JOURNALS}/{entry.number:016d} is missing: {what}")
        self.store.inventory.drop(entry.slot)

    def _enter(self, number: int, size: int, entry: Entry | None) -> None:
        """Have the inventory know a file that a start has found, with `size` bytes of records."""
        self._complete[number] = size
        if entry is None:
            self._slots[number] = self.store.inventory.take()
            self.store.inventory.put(self._slots[number], (JOURNAL, NOBODY, number), (size, 0, 0))
            return
        self._slots[number] = entry.slot

    def _found(self, number: int, salt: int) -> bytes:
        """Read a file and sync it. A killed process may not have: a power cut could take a record of which half has been applied."""
        self._number = max(self._number, number)
        self._last[number] = self.sequence
        self._names[number] = paths.journal(number, salt)
        file = self.store.disk.open(self._names[number])
        data = file.read_at(0, file.size())
        if self.store.syncing:
            file.sync()
        file.close()
        return data

    def files(self) -> list[tuple[int, str, int]]:
        """Return (number, path, bytes of records) of each file that a start would replay."""
        return [(n, self._names[n], self._complete.get(n, self._size)) for n in sorted(self._last)]

    @property
    def written(self) -> tuple[int, int]:
        """What a sync that begins now covers: (number of the file, bytes in it)."""
        return self._number, self._size

    def durable_to(self, written: tuple[int, int]) -> bool:
        """Note that a sync has covered this much, and all files before. Returns whether a file is new to the inventory."""
        number, size = written
        if number == self._number and size <= self._durable and not self._ends:
            return False
        covered = {n: self._ends.pop(n) for n in list(self._ends) if n < number}
        if number != self._number or size > self._durable:
            covered[number] = size
        if number == self._number:
            self._durable = size
        entered = False
        for n, end in covered.items():
            if n in self._slots:
                entered |= self.store.inventory.put(self._slots[n], (JOURNAL, NOBODY, n), (end, 0, 0))
        return entered

    def write(self, record: Record) -> None:
        """Append a record. Raises StoreFull or StoreError; then nothing of it is in the file."""
        assert self._slices is None
        file = self._prepare(record)
        data = record.encode(self._salt)
        size = sum(map(len, data))
        self._take_room(file, size)
        try:
            file.write_at(self._size, data)
        except StoreFull:
            self._cut(file)
            raise
        self._wrote(record, file, size)

    def write_some(self, record: Record, most: int) -> bool:
        """Append about `most` bytes of a large record in each call. Returns whether the record is complete.

        No other record may be written before. Raises StoreFull or StoreError; then nothing of it is in the file.
        """
        if self._slices is None:
            file = self._prepare(record)
            slices = RecordSlices(record, self._salt)
            self._take_room(file, slices.size)
            self._slices = slices
        assert self._file is not None
        file, slices = self._file, self._slices
        try:
            slices.write(file, self._size, most)
        except StoreFull:
            self._slices = None
            self._cut(file)
            raise
        if slices.done:
            self._slices = None
            self._wrote(record, file, slices.size)
        else:
            self.store.commits.wrote_file(file)
        return slices.done

    def stop_writing(self) -> None:
        """Cut off a record that is not complete, because the broker stops. It was not promised to anybody."""
        if self._slices is not None:
            assert self._file is not None
            self._slices = None
            self._cut(self._file)
            self.store.commits.wrote_file(self._file)

    def _prepare(self, record: Record) -> File:
        """Give the record its sequence. Returns the file that it will be in."""
        record.sequence = self.sequence + 1
        if self._file is None or self._size >= ROTATE_BYTES:
            self._file = self._next_file()
        record.durable = min(self._durable, 0xFFFFFFFF)
        return self._file

    def _take_room(self, file: File, size: int) -> None:
        self.store.room.take(size, paths.JOURNALS)
        if self.store.syncing and self._size + size > self._reserved:
            self._reserved = self._size + size + RESERVE_BYTES
            file.reserve(self._size, self._reserved)

    def _cut(self, file: File) -> None:
        """Cut off a record, because there is no room for all of it."""
        file.truncate(self._size)
        self._reserved = 0

    def _wrote(self, record: Record, file: File, size: int) -> None:
        """Note that all of a record is in the file."""
        self._size += size
        self.sequence = self._last[self._number] = record.sequence
        self.store.commits.wrote_file(file)

    def _next_file(self) -> File:
        salt = secrets.randbits(64)
        name = paths.journal(self._number + 1, salt)
        slot = self.store.inventory.take()
        try:
            file = self.store.disk.open(name, create=True)
        except StoreFull:
            self.store.inventory.drop(slot)
            raise
        if self._number in self._files:
            self._ends[self._number] = self._complete[self._number] = self._size
        self._number, self._salt = self._number + 1, salt
        self._names[self._number], self._files[self._number], self._last[self._number] = name, file, self.sequence
        self._slots[self._number] = slot
        self._size = self._durable = self._reserved = 0
        self.store.commits.renamed(paths.JOURNALS)
        return file

    def applied_to(self, sequence: int) -> None:
        """Note that every record up to `sequence` has been applied. No sync has covered that yet."""
        self.applied = max(self.applied, sequence)

    def turn_written(self, applied: int) -> None:
        """Note that the queues have written what the records up to `applied` have brought them, so that the next full sync covers it."""
        self.written_out = applied

    def keep_all(self) -> None:
        """Unlink no file any more: a queue cannot apply its records, and the next start has to."""
        self._keeps_all = True

    def retire(self, applied: int) -> None:
        """Unlink the files whose records are all durable in the queues: those up to `applied` are.

        The current file stays while it is small and nobody waits for it. Segments that tell what has been applied are needed until the
        files' names are durably gone; then `Store.journal_retired` is called.
        """
        if self._keeps_all:
            return
        small = self._slices is not None or (self._size < ROTATE_BYTES and not self.store.blocked_drops)
        gone = [
            n for n, last in self._last.items() if last <= applied and not (n == self._number and self._file and small)
        ]
        if not gone:
            return
        try:
            for number in gone:
                if number in self._slots:
                    self.store.drop_slot(self._slots.pop(number))
        except StoreFull:
            return
        oldest = max(self._last.pop(number) for number in gone) + 1
        for number in gone:
            self.store.commits.close(self._files.pop(number, None))
            self._ends.pop(number, None)
            self._complete.pop(number, None)
        if self._number not in self._last:
            self._file = None
        names = [self._names.pop(number) for number in gone]
        self.store.commits.when_synced(lambda: self._unlink(names, oldest))

    def _unlink(self, names: list[str], oldest: int) -> None:
        for name in names:
            self.store.removals.add(SEGMENT_BYTES, partial(self.store.disk.unlink, name))
        self.store.removals.add(1, partial(self._unlinked, oldest))

    def _unlinked(self, oldest: int) -> None:
        self.store.commits.renamed(paths.JOURNALS)
        self.store.commits.when_synced(lambda: self._retired(oldest))

    def _retired(self, oldest: int) -> None:
        self.oldest = max(self.oldest, oldest)
        self.store.journal_retired()


def damaged(path: str, where: str) -> StoreError:
    return StoreError(
        f"{path} is damaged at {where}: restore the file from a copy, or remove it to lose the unapplied transactions in it"
    )

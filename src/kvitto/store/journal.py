"""Atomic work over several queues: one checksummed record, synced, then applied (docs/formats.md, Journal).

A tx commit and a dead-letter move become a `Record`. `write` puts it on disk; once a sync covers it the caller applies it to the
queues in the order of sequences and says so with `applied_to`. `replay` gives back, at start, what may not have been applied.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from struct import error as StructError
from typing import TYPE_CHECKING

import xxhash

from kvitto.base.errors import StoreError, StoreFull
from kvitto.base.limits import SEGMENT_BYTES
from kvitto.format import entry
from kvitto.format.layouts import (
    APPEND,
    APPEND_KIND,
    ENTRY,
    PREFIX,
    RECORD,
    RECORD_MAGIC,
    RUN,
    RUN_KIND,
    SETTLE,
    SETTLE_KIND,
    u32,
)
from kvitto.store import paths, pieces
from kvitto.store.batch import Batch
from kvitto.store.inventory import JOURNAL, NOBODY, Entry
from kvitto.store.pieces import Pieces
from kvitto.store.segment import RESYNC_BYTES
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.store.disk import File
    from kvitto.store.store import Store

ROTATE_BYTES = 4 << 20
RESERVE_BYTES = 256 << 10
COPIED_MAX = 4096
"""A body up to this many bytes is copied behind the fields before it: a further buffer costs more than a short copy."""
PART_BYTES = 64 << 10
"""The same limit for the operations of a very large record."""

Part = bytes | bytearray | memoryview


@dataclass
class Append:
    queue_id: str
    key: bytes
    props: bytes
    body: bytes | Buf
    ttl_ms: int = -1
    flags: int = 0


@dataclass
class Settle:
    queue_id: str
    offset: int
    count: int
    outcome: int


@dataclass
class Run:
    """Many appends to one queue; the batch has no offset yet."""

    queue_id: str
    batch: Batch


class Packed:
    """Encodes the operations of a very large record one after the other into few buffers, so that it can be made in pieces."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.operations = self.messages = 0
        self.ends: dict[str, int] = {}
        """By queue, the end of its settled offsets."""
        self.size = 0
        """Bytes of all operations."""
        self._open = bytearray()
        self._settle: Settle | None = None

    def append(self, queue_id: str, message: tuple[bytes, bytes, memoryview], ttl_ms: int, flags: int) -> None:
        """Add a message (key, props, body) for a queue. A large body must not change until the record is written."""
        key, props, body = message
        self.messages += 1
        self._add(_append_head(queue_id, key, props, len(body), ttl_ms, flags), body)

    def run(self, queue_id: str, batch: Batch) -> None:
        """Add all messages of a batch, which have no flags and no time to live. The batch must not change until it is written."""
        head = _run_head(queue_id, batch)
        self.messages += batch.count
        self._add(head, batch.index.view(), batch.meta.view(), batch.body.view())

    def settle(self, queue_id: str, offset: int, count: int, outcome: int) -> None:
        """Add a settlement. One that follows directly on the settlement before it is joined to it."""
        s = self._settle
        if s is not None and s.offset + s.count == offset and s.outcome == outcome and s.queue_id == queue_id:
            s.count += count
        else:
            self._end_settle()
            self._settle = Settle(queue_id, offset, count, outcome)

    def close(self) -> None:
        """Complete the record: nothing more is added."""
        self._end_settle()
        self._end_part()

    def _end_settle(self) -> None:
        s, self._settle = self._settle, None
        if s is not None:
            _end(s, self.ends)
            self._add(_settled(s))

    def _add(self, *buffers: Part) -> None:
        """Add one encoded operation. Small ones are copied into one buffer."""
        self.operations += 1
        size = sum(map(len, buffers))
        self.size += size
        if size <= PART_BYTES:
            for buffer in buffers:
                self._open += buffer
            if len(self._open) > PART_BYTES:
                self._end_part()
        else:
            self._end_part()
            self.parts += buffers

    def _end_part(self) -> None:
        if self._open:
            self.parts.append(self._open)
            self._open = bytearray()


def _append_head(queue_id: str, key: bytes, props: bytes, body_len: int, ttl_ms: int, flags: int) -> bytes:
    """Encode the fields before the body of a message."""
    ttl = entry.split_ttl(ttl_ms, flags)
    return APPEND.pack(APPEND_KIND, bytes.fromhex(queue_id), len(key), *ttl, len(props), body_len) + key + props


def _run_head(queue_id: str, batch: Batch) -> bytes:
    return RUN.pack(RUN_KIND, bytes.fromhex(queue_id), batch.count, batch.meta.n, batch.body.n)


def _settled(s: Settle) -> bytes:
    return SETTLE.pack(SETTLE_KIND, bytes.fromhex(s.queue_id), s.offset, s.count, s.outcome)


def _end(s: Settle, ends: dict[str, int]) -> None:
    if s.offset + s.count > ends.get(s.queue_id, 0):
        ends[s.queue_id] = s.offset + s.count


@dataclass
class Record:
    sequence: int = 0
    appends: list[Append] = field(default_factory=list)
    settles: list[Settle] = field(default_factory=list)
    durable: int = 0
    runs: list[Run] = field(default_factory=list)
    packed: Packed | None = field(default=None, repr=False, compare=False)
    """Operations that are encoded already. They come before `appends`, `settles` and `runs`."""

    @property
    def ends(self) -> dict[str, int]:
        """By queue, the end of its settled offsets."""
        ends: dict[str, int] = {} if self.packed is None else self.packed.ends
        for s in self.settles:
            _end(s, ends)
        return ends

    @property
    def large(self) -> bool:
        """Whether the record is too large to be written in one piece."""
        size = 0 if self.packed is None else self.packed.size
        size += sum(len(a.body) for a in self.appends) + sum(r.batch.size() for r in self.runs)
        return size > pieces.WHOLE_BYTES

    def parts(self) -> list[Part]:
        """The operations, encoded."""
        parts = [] if self.packed is None else list(self.packed.parts)
        for a in self.appends:
            head = _append_head(a.queue_id, a.key, a.props, len(a.body), a.ttl_ms, a.flags)
            if isinstance(a.body, Buf):
                parts += (head, a.body.view())
            elif len(a.body) > COPIED_MAX:
                parts += (head, a.body)
            else:
                parts.append(head + a.body)
        for r in self.runs:
            b = r.batch
            parts.append(_run_head(r.queue_id, b))
            parts += (b.index.view(), b.meta.view(), b.body.view())
        parts += map(_settled, self.settles)
        return parts

    def counts(self) -> bytes:
        """The end of the header: sequence, number of operations, durable."""
        operations = 0 if self.packed is None else self.packed.operations
        operations += len(self.appends) + len(self.runs) + len(self.settles)
        return RECORD.pack(b"", 0, 0, self.sequence, operations, self.durable)[PREFIX.size :]

    def encode(self, salt: int) -> list[Part]:
        parts, counts = self.parts(), self.counts()
        digest = xxhash.xxh3_64(counts, salt)
        for part in parts:
            digest.update(part)
        return [_head(sum(map(len, parts)), digest.intdigest()) + counts, *parts]

    @classmethod
    def decode(cls, data: bytes, at: int, salt: int) -> tuple[Record, int] | None:
        """The record at `at` and where it ends, None if none that is whole begins there."""
        if at + RECORD.size > len(data):
            return None
        head = RECORD.read(data, at)
        end = at + head.length
        if head.magic != RECORD_MAGIC or head.length < RECORD.size or end > len(data):
            return None
        if xxhash.xxh3_64_intdigest(memoryview(data)[at + PREFIX.size : end], salt) != head.checksum:
            return None
        record = cls(head.sequence, durable=head.durable)
        try:
            whole = record._take(data[at:end], head.operations)
        except (StructError, IndexError):
            return None
        return (record, end) if whole else None

    def _take(self, data: bytes, operations: int) -> bool:
        """Read the operations of a record; whether they are what it holds."""
        at = RECORD.size
        for _ in range(operations):
            kind = data[at]
            if kind == APPEND_KIND:
                a = APPEND.read(data, at)
                at += APPEND.size
                key, props = data[at : at + a.key_len], data[at + a.key_len : at + a.key_len + a.props_len]
                at += a.key_len + a.props_len
                body = data[at : at + a.body_len]
                ttl_ms = entry.join_ttl(a.flags, a.ttl_high, a.ttl_low)
                self.appends.append(Append(a.queue_id.hex(), key, props, body, ttl_ms, a.flags & ~entry.EXPIRES))
                at += a.body_len
            elif kind == SETTLE_KIND:
                s = SETTLE.read(data, at)
                self.settles.append(Settle(s.queue_id.hex(), s.offset, s.messages, s.outcome))
                at += SETTLE.size
            elif kind == RUN_KIND:
                r = RUN.read(data, at)
                areas = []
                at += RUN.size
                for size in (ENTRY.size * r.messages, r.meta_len, r.body_len):
                    areas.append(data[at : at + size])
                    at += size
                batch = Batch()
                batch.take(r.messages, *areas)
                self.runs.append(Run(r.queue_id.hex(), batch))
            else:
                return False
        return at == len(data)


def _head(size: int, checksum: int) -> bytes:
    """The begin of the header of a record whose operations have `size` bytes."""
    return PREFIX.pack(RECORD_MAGIC, RECORD.size + size, checksum)


class RecordSlices:
    """A large record on its way into a file. Its header comes last: until then there is no record for a start."""

    def __init__(self, record: Record, salt: int) -> None:
        parts = record.parts()
        self._counts = record.counts()
        self._operations = sum(map(len, parts))
        self._pieces = Pieces(parts, xxhash.xxh3_64(self._counts, salt))
        self._at = RECORD.size

    @property
    def size(self) -> int:
        """Bytes of the whole record."""
        return RECORD.size + self._operations

    @property
    def done(self) -> bool:
        return self._pieces.done

    def write(self, file: File, position: int, most: int) -> None:
        """Write about `most` bytes more of the record at `position`, and the header behind the last of them."""
        now, size = self._pieces.take(most)
        file.write_at(position + self._at, now)
        self._at += size
        if self.done:
            file.write_at(position, [_head(self._operations, self._pieces.checksum) + self._counts])


class Journal:
    """`oldest`: records from this sequence on may be replayed after a crash. `_last` has the last sequence of each file on disk."""

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
        """Where the inventory has them."""
        self._ends: dict[int, int] = {}
        """Sizes of files that nothing more is written to, and that no sync has covered to their end."""

    def replay(self, floor: int) -> Iterator[Record]:
        """Every whole record on disk, in order; `floor` is the highest sequence that any queue has applied."""
        self.sequence = self.applied = self.written_out = floor
        self.oldest = floor + 1
        last, before = 0, ""
        if (
            self.store.syncing
        ):  # what a killed process had removed must not come back: no segment may know of it any more
            self.store.disk.sync_dir(paths.JOURNALS)
        known = self.store.inventory.claim(JOURNAL)
        found = dict(filter(None, map(paths.journal_of, self.store.disk.listdir(paths.JOURNALS))))
        for number in sorted(known.keys() - found.keys()):
            self._missing(known[number])
        for number, salt in sorted(found.items()):
            data, at = self._found(number, salt), 0
            while decoded := Record.decode(data, at, salt):
                begins, (record, at) = not at, decoded
                if begins and before and record.sequence > max(last, floor) + 1 and not self.store.ending.doubt:
                    raise damaged(before, "its end, before the records of a later file")
                last, before = record.sequence, self._names[number]
                self.oldest = min(self.oldest, record.sequence)
                self.sequence = self._last[number] = max(self.sequence, record.sequence)
                yield record
            if self._was_durable(data, at, salt):
                raise damaged(self._names[number], f"byte {at}, before later valid records")
            self._enter(number, at, known.get(number))

    def _missing(self, entry: Entry) -> None:
        """Somebody has removed it: to go on without it is a decision, which is carried out, and not in silence."""
        what = (
            "it had been applied" if self.store.ending.in_order else "transactions and dead letters may be lost with it"
        )
        self.store.alarm(f"{paths.JOURNALS}/{entry.number:016d} is missing: {what}")
        self.store.inventory.drop(entry.slot)

    def _enter(self, number: int, size: int, entry: Entry | None) -> None:
        """A file that a start has found, with `size` bytes of whole records."""
        if entry is None:
            self._slots[number] = self.store.inventory.take()
            self.store.inventory.put(self._slots[number], (JOURNAL, NOBODY, number), (size, 0, 0))
            return
        self._slots[number] = entry.slot
        if size < entry.size and not self.store.ending.in_order:
            raise damaged(self._names[number], f"byte {size}, although it had been synced up to byte {entry.size}")
        if size < entry.size:
            self.store.alarm(f"{self._names[number]} is damaged at byte {size}; what it held had been applied")

    def _found(self, number: int, salt: int) -> bytes:
        """What a killed process wrote must be durable before any of it is applied: else half of it could be, and the rest lost."""
        self._number = max(self._number, number)
        self._last[number] = self.sequence
        self._names[number] = paths.journal(number, salt)
        file = self.store.disk.open(self._names[number])
        data = file.read_at(0, file.size())
        if self.store.syncing:
            file.sync()
        file.close()
        return data

    def _was_durable(self, data: bytes, position: int, salt: int) -> bool:
        """Whether a later valid record shows that `position` had been synced, or no power cut: then it is damage, not a torn tail."""
        at, left = position, RESYNC_BYTES
        while (at := data.find(RECORD_MAGIC, at + 1)) >= 0 and left > 0:
            left -= min(u32(data, at + PREFIX.at["length"]), len(data) - at)
            found = Record.decode(data, at, salt)
            if found and (found[0].durable > position or not self.store.ending.doubt):
                return True
        return False

    @property
    def written(self) -> tuple[int, int]:
        """(number of the file, bytes in it): what a sync that begins now covers."""
        return self._number, self._size

    def durable_to(self, written: tuple[int, int]) -> bool:
        """A sync has covered this much, and all files before; True if a file is new to the inventory."""
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
        """Append a record; raises StoreFull or StoreError, then it never happened."""
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
        """Append a large record with about `most` bytes in each call. Returns whether it is complete: then it is as if `write` had done it.

        No other record may be written before. Raises StoreFull or StoreError; then it never happened.
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
        """The end in order: a record that is not complete was never promised to anybody."""
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
        self.store.take_room(size, paths.JOURNALS)
        if self.store.syncing and self._size + size > self._reserved:
            self._reserved = self._size + size + RESERVE_BYTES
            file.reserve(self._size, self._reserved)

    def _cut(self, file: File) -> None:
        """There was no room for all of a record: nothing of it stays."""
        file.truncate(self._size)
        self._reserved = 0

    def _wrote(self, record: Record, file: File, size: int) -> None:
        """All of a record is in the file."""
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
            self._ends[self._number] = self._size
        self._number, self._salt = self._number + 1, salt
        self._names[self._number], self._files[self._number], self._last[self._number] = name, file, self.sequence
        self._slots[self._number] = slot
        self._size = self._durable = self._reserved = 0
        self.store.commits.renamed(paths.JOURNALS)
        return file

    def applied_to(self, sequence: int) -> None:
        """Every record up to `sequence` has been applied (not yet synced)."""
        self.applied = max(self.applied, sequence)

    def turn_written(self, applied: int) -> None:
        """What the records up to `applied` have brought to the queues is in files, and the next full sync covers it."""
        self.written_out = applied

    def keep_all(self) -> None:
        """A queue cannot apply records any more: no file goes before a restart has applied them."""
        self._keeps_all = True

    def retire(self, applied: int) -> None:
        """Records up to `applied` are durable in the queues: unlink the files that say no more than that.

        The current one stays while it is small and nobody waits for it. What the segments know of applied records is needed
        until the files' names are durably gone.
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

"""The form of a journal record: work over several queues under one checksum (docs/formats.md, Journal).

It encodes and decodes records; of files it knows only how a large record is written in slices. The journal writes and replays records,
the judge looks for them in damaged files, and the broker makes and applies them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import error as StructError
from typing import TYPE_CHECKING

import xxhash

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
)
from kvitto.store import pieces
from kvitto.store.batch import Batch
from kvitto.store.pieces import Pieces
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.store.disk import File

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
    """Many appends to one queue. The batch has no offsets yet."""

    queue_id: str
    batch: Batch


class Packed:
    """Encodes the operations of a very large record one after the other into few buffers, so that it can be made in pieces."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.operations = self.messages = 0
        self.ends: dict[str, int] = {}
        """For each queue the end of the offsets that the record settles."""
        self.size = 0
        """The bytes of all operations."""
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
        """Complete the record. Nothing may be added after that."""
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
        """For each queue the end of the offsets that the record settles."""
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
        """Return the encoded operations as buffers."""
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
        """Return the end of the header: sequence, number of operations, durable."""
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
        """Return the record that begins at `at`, and where it ends; None if none begins there that verifies."""
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
        """Decode the operations of a record. Returns whether they fill it."""
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
    """Return the beginning of the header of a record whose operations have `size` bytes."""
    return PREFIX.pack(RECORD_MAGIC, RECORD.size + size, checksum)


class RecordSlices:
    """A large record that is being written into a file. Its header is written last: until then a start finds no record."""

    def __init__(self, record: Record, salt: int) -> None:
        parts = record.parts()
        self._counts = record.counts()
        self._operations = sum(map(len, parts))
        self._pieces = Pieces(parts, xxhash.xxh3_64(self._counts, salt))
        self._at = RECORD.size

    @property
    def size(self) -> int:
        """The bytes of the whole record."""
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

"""One segment file: a header, batches, and a footer, which is written only when everything before it is durable (docs/formats.md, Segment).

It reads and writes the file, and knows how many messages are in it. The log decides which segment a message goes to, and when a segment is
sealed or unlinked. A start and the tools for damaged directories scan a segment that has no footer.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

import xxhash

from kvitto.base.errors import StoreError, StoreFull
from kvitto.format.layouts import (
    BATCH_MAGIC,
    FILE_HEAD,
    FOOTER,
    FOOTER_END,
    FOOTER_MAGIC,
    GAP_MAX,
    RESYNC_BYTES,
    SEGMENT_VERSION,
    FileHead,
    bytes_of,
    u32,
    u64,
)
from kvitto.store.batch import Batch, BatchHeader, verify
from kvitto.store.disk import File

HEADER = FILE_HEAD.size
SPARSE_BYTES = 64 * 1024
RESERVE_LEAST = 16 * 1024
RESERVE_MOST = 1024 * 1024
"""The room reserved behind the last batch is as large as the segment, within these limits."""
FOOTER_LEAST = FOOTER.size + FOOTER_END.size
"""Bytes of a footer without pairs."""
_POSITION_BYTES = FOOTER_END.size - FOOTER_END.at["position"]


def header(magic: bytes, queue_id: str, base: int, time_ms: int, salt: int = 0) -> bytes:
    """The header of a segment or a settlement log, by its magic."""
    fields = FileHead(magic, SEGMENT_VERSION, 0, bytes.fromhex(queue_id), base, time_ms, salt, 0, salt)
    return FILE_HEAD.pack(*fields._replace(checksum=_checksum(FILE_HEAD.pack(*fields))))


def _checksum(head: bytes) -> int:
    """The checksum of a header, from the bytes before it."""
    return xxhash.xxh3_64_intdigest(head[: FILE_HEAD.at["checksum"]])


def _fields(head: bytes) -> FileHead:
    """The fields of a header, valid or not. What a short one lacks counts as zeros."""
    return FILE_HEAD.read(head.ljust(HEADER, b"\0"))


def salts(head: bytes) -> tuple[int, int]:
    """The salt in a header, and its copy. If the header is damaged, one of them may still be right."""
    fields = _fields(head)
    return fields.salt, fields.salt_again


def created_ms(head: bytes) -> int:
    return _fields(head).created_ms


def header_is_valid(data: bytes, magic: bytes) -> bool:
    fields = _fields(data)
    return len(data) >= HEADER and fields.magic == magic and fields.checksum == _checksum(data)


def foreign(head: bytes, magic: bytes, queue_id: str, base: int) -> str:
    """The place that a header names if it is valid and names another one than this, in words; else ""."""
    fields = _fields(head)
    owner, own = fields.queue_id.hex(), fields.base
    if not header_is_valid(head, magic) or (owner, own) == (queue_id, base):
        return ""
    return f"{own:020d} of queue {owner}"


class Segment:
    """Offsets base..end-1 of one queue. `settled` counts those that are settled or were never written (gaps).

    `salt` is random and the seed of every checksum in the file: a message's body, which a peer chooses, cannot pose as a batch or a footer.
    `slot`: its slot in the inventory, -1 without one. `evidence`: it is damaged, and there was no room for a copy. `linked`: its files are
    in the archive or being moved there, and must not change any more. `archived`: the archive has them durably.
    """

    def __init__(self, base: int) -> None:
        self.base = base
        self.end = base
        self.settled = 0
        self.size = HEADER
        self.reserved = 0
        self.durable = 0
        self.synced_end = base
        self.count = 0
        self.gaps: list[tuple[int, int]] | None = None
        self.body_bytes = 0
        self.journal = 0
        self.journal_end = 0
        self.salt = 0
        self.slot = -1
        self.sealed = False
        self.full = False
        self.evidence = False
        self.linked = False
        self.archived = False
        self.created_ms = 0
        self.file: File | None = None
        self.acks: File | None = None
        self.acks_size = 0
        self.acks_durable = 0
        self.sparse = array("Q", ())
        self._sparse_known = True
        self._written_end = base
        self.keys = 0
        """How many of its messages have a deduplication key that a start has to find again. It stays until there is none (`Log.let_go`)."""
        self.leases = 0
        """How many readers still read bodies from it. It may have been unlinked meanwhile."""
        self.gone = False
        self.checked: dict[int, list[int]] = {}
        """The checksums of the slices of each large batch that has been checked, and its end, by position. The list is empty for damage."""
        self.ahead = 0
        """How many bytes behind `size` belong to a batch that is being written in slices."""

    @property
    def done(self) -> bool:
        """Whether every offset is settled."""
        return self.settled == self.end - self.base

    def write(self, batch: Batch, reserve: bool = False) -> None:
        """Append a batch that begins at or after `end`; offsets between are never written. `reserve`: reserve room behind it as well."""
        assert self.file is not None and batch.first >= self.end
        if reserve and self.size + batch.size() > self.reserved:
            self.reserved = self.size + batch.size() + min(max(self.size, RESERVE_LEAST), RESERVE_MOST)
            self.file.reserve(self.size, self.reserved)
        try:
            written = self.file.write_at(self.size, batch.seal(self.durable, self.salt))
        except StoreFull:
            self.file.truncate(self.size)  # the room that a part of it has taken is needed for settlements
            self.reserved = 0
            raise
        self.written(batch, written)

    def written(self, batch: Batch, size: int) -> None:
        """Note a batch whose bytes are in the file, behind the others."""
        self.note(batch.first, batch.count, batch.body.n, batch.journal, self.size)
        self.size += size
        if batch.journal:
            self.journal_end = self.size

    def note(self, first: int, count: int, body_bytes: int, journal: int, position: int) -> None:
        """Count a batch that is in the file."""
        self.settled += first - self.end
        self.end = first + count
        self.count += count
        self.body_bytes += body_bytes
        self.journal = max(self.journal, journal)
        if not self.sparse or position - self.sparse[-1] >= SPARSE_BYTES:
            self.sparse.extend((first, position))

    def position_before(self, offset: int) -> int:
        """Return a position at which a batch begins that is not behind `offset`."""
        if not self._sparse_known:
            self._read_footer_index()
        firsts = self.sparse[::2]
        i = bisect_right(firsts, offset)
        return self.sparse[2 * i - 1] if i else HEADER

    def positions(self) -> array[int]:
        """Return positions at which batches begin, about one for every 64 KiB."""
        if not self._sparse_known:
            self._read_footer_index()
        return self.sparse[1::2]

    def write_footer(self) -> None:
        """Seal the segment. The caller has synced all batches."""
        assert self.file is not None
        self.trim()
        pairs = b"".join(map(bytes_of, self.sparse))
        length, books = FOOTER_LEAST + len(pairs), (self.base, self.end, self.count, self.journal, self.body_bytes)
        footer = FOOTER.pack(FOOTER_MAGIC, length, len(self.sparse) // 2, *books) + pairs
        footer += FOOTER_END.pack(xxhash.xxh3_64_intdigest(footer, self.salt), self.size)
        try:
            self.file.write_at(self.size, [footer])
        except StoreFull:
            self.file.truncate(self.size)
            raise
        self.forget_index()

    def trim(self) -> bool:
        """Cut off the room that was reserved behind the last batch. Returns whether there was any; then the file has to be synced."""
        if not self.reserved or self.ahead:
            return False
        assert self.file is not None
        self.file.truncate(self.size)
        self.reserved = 0
        return True

    def forget_index(self) -> None:
        self.sealed = True
        self.sparse = array("Q", ())
        self._sparse_known = False

    def read_footer(self) -> bool:
        """Take the counts from the footer. Returns whether there is a valid one."""
        data = self._footer()
        if data is None:
            return False
        footer = FOOTER.read(data)
        if footer.base != self.base:
            return False
        self.end, self.count, self.journal, self.body_bytes = footer[-4:]
        self.settled = self.end - self.base - self.count
        self.durable, self.synced_end = self.size, self.end
        self.full = True
        self.forget_index()
        return True

    def _footer(self) -> bytes | None:
        assert self.file is not None
        total = self.file.size()
        if total < HEADER + FOOTER_LEAST:
            return None
        position = footer_position(self.file.read_at(total - FOOTER_END.size, FOOTER_END.size))
        if not HEADER <= position <= total - FOOTER_LEAST:
            return None
        data = self.file.read_at(position, total - position)
        if not data.startswith(FOOTER_MAGIC) or footer_length(data) != len(data):
            return None
        end = FOOTER_END.read(data, len(data) - FOOTER_END.size)
        if xxhash.xxh3_64_intdigest(data[: -FOOTER_END.size], self.salt) != end.checksum:
            return None
        self.size = position
        return data

    def _read_footer_index(self) -> None:
        footer = self._footer()
        if footer is not None:
            self.sparse = array("Q", footer[FOOTER.size : -FOOTER_END.size])
        self._sparse_known = True

    def scan(self, data: bytes, in_order: bool, power_cut: bool, known: int) -> None:
        """Count the batches of a segment without a valid footer. `data`: the whole file.

        `in_order`, `power_cut`: how the last owner ended; a killed process leaves at most a torn end. `known`: how many bytes had been
        synced, as the inventory says. What follows `size` behind this call is a torn tail; raises DamagedSegment if it cannot be one
        (docs/formats.md, Recovery). Offsets that are lost in a hole still count as unsettled, until a reader fails to read them.
        """
        at, first_bad = HEADER, -1
        damage = False
        self.gaps = []
        while True:
            head = BatchHeader(data, at)
            if (
                valid_at(data, at, head, self.salt)
                and head.first >= self.end
                and (first_bad < 0 or head.first <= self.end + GAP_MAX)
            ):
                if first_bad >= 0 and power_cut and max(head.durable, known) <= first_bad:
                    break
                if first_bad >= 0:
                    self.settled -= head.first - self.end
                    self.note(head.first, head.count, head.body_len, head.journal, at)
                    self.size = at + head.length
                    damage = True
                else:
                    self.count_batch(head, at)
                first_bad = -1
                at = self.size
                continue
            if first_bad < 0:
                first_bad = at
            at, searched = find_batch(data, at + 1, self.salt)
            if at < 0:
                damage = damage or not searched
                break
        self._written_end = self.end
        if damage or self.size < known or (in_order and len(data) > self.size):
            raise DamagedSegment("damage before later valid data" if damage else "its end is damaged")

    def count_batch(self, head: BatchHeader, at: int) -> None:
        """Count a batch that has been verified, at `at`. All batches of a file are counted, in order, and `gaps` begins empty."""
        assert self.gaps is not None
        if head.first > self.end:
            self.gaps.append((self.end, head.first - self.end))
        self.note(head.first, head.count, head.body_len, head.journal, at)
        self.size = at + head.length
        self._written_end = self.end

    def batch_gaps(self) -> list[tuple[int, int]]:
        """Return (start, count) of the offsets that were never written. Offsets that are lost to damage are not among them."""
        if self.gaps is None:
            assert self.file is not None
            data, at, hole = self.file.read_at(0, self.size), HEADER, False
            self.gaps, self._written_end = [], self.base
            while 0 <= at < self.size:
                head = BatchHeader(data, at)
                if valid_at(data, at, head, self.salt) and head.first >= self._written_end:
                    if head.first > self._written_end and not hole:
                        self.gaps.append((self._written_end, head.first - self._written_end))
                    self._written_end, hole = head.end, False
                    at += head.length
                else:
                    hole, at = True, find_batch(data, at + 1, self.salt)[0]
            if hole:
                self._written_end = self.end
        if self._written_end < self.end:
            return [*self.gaps, (self._written_end, self.end - self._written_end)]
        return self.gaps


def footer_position(data: bytes) -> int:
    """Where the footer begins that ends where `data` ends, if there is one: the last field of it says so."""
    return u64(data[-_POSITION_BYTES:])


def footer_length(data: bytes) -> int:
    """The length of the footer that begins where `data` begins, if there is one."""
    return u32(data, FOOTER.at["length"])


def valid_at(data: bytes, at: int, head: BatchHeader, salt: int) -> bool:
    """Whether the batch that `head` describes is in `data` at `at`, complete and unharmed."""
    return bool(head.length and at + head.length <= len(data) and verify(data, at, head, salt))


def find_batch(data: bytes, at: int, salt: int) -> tuple[int, bool]:
    """Return where the first batch begins that verifies, from `at` on, -1 if there is none; and whether all was searched."""
    left = RESYNC_BYTES
    while (at := data.find(BATCH_MAGIC, at)) >= 0:
        head = BatchHeader(data, at)
        if valid_at(data, at, head, salt):
            break
        if at + head.length <= len(data):
            left -= head.length
            if left < 0:
                return -1, False
        at += 1
    return at, True


class DamagedSegment(StoreError):
    """`scan` has found something that is no torn tail. The segment's counts are those of the valid batches."""

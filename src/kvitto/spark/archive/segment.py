"""Reads one segment file without the broker: verified messages, some megabytes at a time, as numpy arrays over the
bytes read.

For each batch it reads a header and verifies a checksum; Python does nothing for each message. The layouts are those of
`kvitto.format`, by which the broker writes. A sealed segment has to be complete. A segment that is still being written
ends after its last complete batch, before reserved zeros or a batch that is just being written.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from kvitto.format.layouts import (
    BATCH,
    BATCH_MAGIC,
    ENTRY,
    FILE_HEAD,
    FOOTER,
    FOOTER_END,
    FOOTER_MAGIC,
    GAP_MAX,
    PREFIX,
    RESYNC_BYTES,
    SEGMENT_MAGIC,
    SEGMENT_VERSION,
)
from kvitto.spark.archive.files import ArchiveError

log = logging.getLogger("kvitto.spark")

HEADER: Final = FILE_HEAD.size
INDEX: Final = np.dtype([(name, f"<{code}") for name, code in ENTRY.codes.items()])
"""An entry of a batch's index."""
CHUNK_BYTES: Final = 8 << 20
"""The bytes that are read at once: many enough to be fast, few enough to stay in the cache while they are verified and decoded."""
BATCH_BYTES_MAX: Final = 1 << 31
"""No turn of a broker has that many bytes, and Arrow's offsets do not reach further."""
ALONE_BYTES: Final = 1 << 20
"""A batch with bodies of this size is passed on without a copy; smaller ones are joined."""

Ints = NDArray[np.int64]


class Damage(ArchiveError):
    """A file is not as the broker wrote it."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}. Restore the file, or set ignoreDamage = true to read what is whole")


class Head(NamedTuple):
    """The fixed part of a batch, and its position in the bytes read."""

    at: int
    length: int
    first: int
    time_ms: int
    messages: int
    meta_len: int
    body_len: int
    durable: int

    @property
    def end(self) -> int:
        return self.first + self.messages


class Wanted(NamedTuple):
    """The messages to read: [start, end) by the time of their batch, and whether their meta data and bodies are needed."""

    start_ms: int
    end_ms: int
    meta: bool = True
    bodies: bool = True


@dataclass(slots=True)
class Messages:
    """Messages in order of offset. `body_ends`: n + 1 borders in `bodies`; keys and properties begin at `meta_at` in `meta`."""

    offsets: Ints
    times_ms: Ints
    index: NDArray[Any]
    meta: NDArray[np.uint8]
    meta_at: Ints
    bodies: memoryview
    body_ends: Ints


class SegmentFile:
    """One open segment. `sealed`: it has to be complete; `end`: where its batches end at the latest."""

    def __init__(self, file: BinaryIO, path: str, base: int, archived: bool, ignore_damage: bool) -> None:
        self.file = file
        self.path = path
        self.base = base
        self.ignore_damage = ignore_damage
        self.sealed = archived
        self.end = os.fstat(file.fileno()).st_size
        self._count = -1
        self.salt = self._read_header(self._at(0, HEADER))
        if self.salt is not None:
            self._read_footer(self.salt)

    def messages(self, wanted: Wanted) -> Iterator[Messages]:
        """Yield all valid messages in order. Raise Damage as the module says; with ignore_damage log a warning and go on."""
        if self.salt is None:
            return
        position, least, again = HEADER, self.base, -1
        need = seen = 0
        while position < self.end:
            asked = min(max(need, CHUNK_BYTES), self.end - position)
            data = self._at(position, asked)
            if len(data) < asked:  # sealed since it was opened, so the reserved space is cut off
                self.end = position + len(data)
            found, used, need = self._scan(data, least, self.salt)
            if found:
                least, seen = found[-1].end, seen + sum(head.messages for head in found)
                yield from self._messages(data, found, wanted)
            position += used
            if 0 < need <= self.end - position:
                continue
            if position < self.end and again != position and not self.sealed:
                again = position  # it may have been half written when it was read
            elif position < self.end:
                position = self._next(position, least, self.salt)
        if self._count >= 0 and seen != self._count:
            self._damaged(f"{seen:,} messages are readable, its footer says {self._count:,}")

    # --- header and footer

    def _read_header(self, data: memoryview) -> int | None:
        """Return the salt; None if nothing of the file can be read."""
        if not self.sealed and not any(data):  # made a moment ago
            return None
        if len(data) == HEADER:
            head = FILE_HEAD.read(data)
            valid = head.magic == SEGMENT_MAGIC and head.checksum == _digest(data[: FILE_HEAD.at["checksum"]])
            if valid and head.version != SEGMENT_VERSION:
                known = f"this reads version {SEGMENT_VERSION}: use a newer Kvitto"
                raise ArchiveError(f"{self.path}: format version {head.version}, {known}")
            if valid and head.base == self.base:
                return head.salt
        self._damaged("the segment's header is damaged")
        return self._find_salt(data)

    def _find_salt(self, data: memoryview) -> int | None:
        """Return the salt of a damaged header that fits the first batch; the header has it twice."""
        if len(data) < HEADER:
            return None
        head = FILE_HEAD.read(data)
        first = self._at(HEADER, _length(self._at(HEADER, BATCH.size), 0))
        return next((salt for salt in (head.salt, head.salt_again) if self._scan(first, 0, salt)[0]), None)

    def _read_footer(self, salt: int) -> None:
        """Read the footer. If it is valid, the segment is sealed and its batches end there."""
        least = FOOTER.size + FOOTER_END.size
        if self.end < HEADER + least:
            return
        tail = self._at(self.end - FOOTER_END.size, FOOTER_END.size)
        if len(tail) < FOOTER_END.size:  # sealed since it was opened, so the reserved space is cut off
            return
        last = FOOTER_END.read(tail)
        if not HEADER <= last.position <= self.end - least:
            return
        data = self._at(last.position, self.end - last.position)
        if len(data) < least:
            return
        footer = FOOTER.read(data)
        if footer.magic != FOOTER_MAGIC or footer.length != len(data) or footer.base != self.base:
            return
        if _digest(data[: -FOOTER_END.size], salt) == last.checksum:
            self.end, self._count, self.sealed = last.position, footer.messages, True

    # --- batches

    def _scan(self, data: memoryview, least: int, salt: int) -> tuple[list[Head], int, int]:
        """Return (the complete batches at the beginning of data, where they end, the bytes that the next one needs or 0
        if none begins there)."""
        found: list[Head] = []
        at, size = 0, len(data)
        digest, unpack = xxhash.xxh3_64_intdigest, BATCH.struct.unpack_from
        while size - at >= BATCH.size:
            magic, length, checksum, first, time_ms, count, meta_len, body_len, _, _, durable = unpack(data, at)
            if magic != BATCH_MAGIC or length != BATCH.size + INDEX.itemsize * count + meta_len + body_len:
                return found, at, 0
            if count == 0 or length >= BATCH_BYTES_MAX or not least <= first <= least + GAP_MAX:
                return found, at, 0
            if length > size - at:
                return found, at, length
            if digest(data[at + PREFIX.size : at + length], salt) != checksum:
                return found, at, 0
            found.append(Head(at, length, first, time_ms, count, meta_len, body_len, durable))
            least = first + count
            at += length
        return found, at, BATCH.size

    def _next(self, position: int, least: int, salt: int) -> int:
        """Decide what to do if no batch begins at `position`: it is the end, or damage; return where the next valid batch begins."""
        data = self._at(position, self.end - position)
        if not self.sealed and bytes(data[: len(FOOTER_MAGIC)]) == FOOTER_MAGIC:
            return self.end  # sealed since it was opened
        at, durable = self._search(data, least, salt)
        if self.sealed or durable > position:
            self._damaged(f"no batch begins at byte {position:,}, where one should")
        elif at >= 0:
            log.warning("%s ends at byte %d: what follows was never durable (a power cut)", self.path, position)
        return position + at if at >= 0 and (self.sealed or durable > position) else self.end

    def _search(self, data: memoryview, least: int, salt: int) -> tuple[int, int]:
        """Return (where the next valid batch begins, -1 for nowhere; its durable field). Each `KVB1` may be one, also
        inside a body."""
        raw, at, left = bytes(data), 0, RESYNC_BYTES
        while (at := raw.find(BATCH_MAGIC, at + 1)) >= 0 and left > 0:
            length = _length(data, at)
            if length and at + length <= len(data):
                left -= length
                found = self._scan(data[at : at + length], least, salt)[0]
                if found:
                    return at, found[0].durable
        return -1, 0

    def _messages(self, data: memoryview, found: list[Head], wanted: Wanted) -> Iterator[Messages]:
        """Yield the batches of the wanted time: large ones unchanged, the others joined."""
        run: list[Head] = []
        for head in found:
            if not wanted.start_ms <= head.time_ms < wanted.end_ms:
                continue
            if run and head.body_len >= ALONE_BYTES:
                yield from self._together(data, run, wanted)
                run = []
            run.append(head)
            if head.body_len >= ALONE_BYTES:
                yield from self._together(data, run, wanted)
                run = []
        if run:
            yield from self._together(data, run, wanted)

    def _together(self, data: memoryview, run: list[Head], wanted: Wanted) -> Iterator[Messages]:
        _, _, first, times, counts, meta_lens, body_lens, _ = np.array(run, dtype=np.int64).T
        index_at = [(head.at + BATCH.size, INDEX.itemsize * head.messages) for head in run]
        meta_at = [(at + n, head.meta_len) for (at, n), head in zip(index_at, run, strict=True)]
        body_at = [(at + n, head.body_len) for (at, n), head in zip(meta_at, run, strict=True)]
        index = np.frombuffer(_join(data, index_at), INDEX)
        rows = np.arange(len(index), dtype=np.int64)
        before = np.cumsum(counts) - counts
        metas = index["meta"] + np.repeat(np.cumsum(meta_lens) - meta_lens, counts)
        bodies = index["body"] + np.repeat(np.cumsum(body_lens) - body_lens, counts)
        meta_ends = _ends(index["key_len"].astype(np.int64) + index["props_len"])
        body_ends = _ends(index["body_len"])
        if not (
            np.array_equal(metas, meta_ends[:-1])
            and np.array_equal(bodies, body_ends[:-1])
            and (meta_ends[-1], body_ends[-1]) == (meta_lens.sum(), body_lens.sum())
        ):
            self._damaged(f"the index of a batch does not fit its messages, offsets {run[0].first} to {run[-1].end}")
            return
        yield Messages(
            offsets=rows + np.repeat(first - before, counts),
            times_ms=np.repeat(times, counts),
            index=index,
            meta=np.frombuffer(_join(data, meta_at) if wanted.meta else b"", np.uint8),
            meta_at=metas,
            bodies=_join(data, body_at) if wanted.bodies else memoryview(b""),
            body_ends=body_ends,
        )

    # --- the file

    def _at(self, position: int, size: int) -> memoryview:
        """Return bytes of the file in separate memory, which Arrow may go on using; fewer at the end of the file."""
        buffer = memoryview(np.empty(max(size, 0), np.uint8))  # type: ignore[arg-type]
        done = 0
        while done < size and (n := os.preadv(self.file.fileno(), [buffer[done:]], position + done)):
            done += n
        return buffer[:done]

    def _damaged(self, what: str) -> None:
        if not self.ignore_damage:
            raise Damage(self.path, what)
        log.warning("%s: %s; reading only complete batches (ignoreDamage)", self.path, what)


def _join(data: memoryview, parts: list[tuple[int, int]]) -> memoryview:
    """Return these parts (start, length) as one; a single one is not copied."""
    if len(parts) == 1:
        start, length = parts[0]
        return data[start : start + length]
    return memoryview(b"".join([data[start : start + length] for start, length in parts]))


def _ends(lengths: NDArray[Any]) -> Ints:
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends


def _length(data: memoryview, at: int) -> int:
    """Return the length of the batch whose fixed part is there, 0 if there is none."""
    if len(data) - at < BATCH.size:
        return 0
    prefix = PREFIX.read(data, at)
    return prefix.length if prefix.magic == BATCH_MAGIC and prefix.length < BATCH_BYTES_MAX else 0


def _digest(data: memoryview, seed: int = 0) -> int:
    return int(xxhash.xxh3_64_intdigest(data, seed))

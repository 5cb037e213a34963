"""Reads a log back by offset: a window shows one batch, and damage is passed over.

Called once for each batch, by the log's queue, by stages and by readers by range. Offsets that cannot be read are noted in
`LogReader.lost`, a copy of their segment is kept, and the rest is served. A large batch is checked in slices and read in parts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Protocol

import xxhash

from kvitto.format.layouts import BATCH, ENTRY, PREFIX
from kvitto.store import pieces
from kvitto.store.batch import Batch, BatchHeader, Stored, verify, whole_before
from kvitto.store.segment import Segment, find_batch, valid_at
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.store.disk import File

CHUNK_BYTES = 256 * 1024
STREAMED_BYTES = 2 << 20
"""A batch with more bytes than this is read in parts of about this size. A body with more bytes is not read into memory."""
PART_MESSAGES = 1000
"""At most this many messages of such a batch are read at a time."""


class Window:
    """A batch read back, and the chunk of the file it lies in: the batches behind it need no further read."""

    def __init__(self, outline: bool = False) -> None:
        self.batch = Batch()
        self.chunk = Buf(0)
        self.segment: Segment | None = None
        self.position = 0
        self.length = 0
        self.at = 0
        self.patient = False
        """Whether the user of this window can wait until a large batch has been read and checked in pieces."""
        self.outline = outline
        """Whether the user of this window needs sizes, priorities and times only. A large batch is not checked for that."""
        self.waits: tuple[Segment, int, BatchHeader] | None = None
        """The large batch that has to be checked before `load` can find the message that it was asked for (`LogReader.check_steps`)."""

    def holds(self, offset: int) -> bool:
        return self.batch.first <= offset < self.batch.first + self.batch.count

    def release(self) -> None:
        """Forget what has been read."""
        patient = self.patient
        self.__init__(self.outline)  # type: ignore[misc]
        self.patient = patient


class Source(Protocol):
    """The log that is read."""

    segments: list[Segment]

    def file_of(self, segment: Segment) -> File:
        """Return the open file of a segment."""
        ...

    def quarantine(self, segment: Segment, why: str) -> None:
        """Keep a copy of a damaged segment, and raise the alarm."""
        ...

    def lease_ended(self, segment: Segment) -> None:
        """Note that one reader less needs the segment's file."""
        ...


class LogReader:
    """Reads one log. Each window keeps a position; the reader keeps none."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.lost: list[tuple[int, int]] = []
        """(start, count) of offsets that could not be read. The queue that takes note of them clears the list."""

    def load(self, window: Window, offset: int) -> bool:
        """Point `window` at the first batch that ends behind `offset`. False if there is none.

        Offsets that cannot be read are noted in `lost` and passed over; the messages among them that are not settled are lost.
        """
        if window.segment is not None and window.segment.gone:
            window.release()  # its file has been closed
        at = window.at
        if window.segment is not None and window.batch.first + window.batch.count <= offset:
            head = BatchHeader(window.chunk.view(0, window.length), at)
            if head.length and at + head.length <= window.length and head.first <= offset < head.end:
                if self._open(window, head, at, offset):
                    return True
                offset = window.segment.end
        bases = [s.base for s in self._source.segments]
        for segment in self._source.segments[max(bisect_right(bases, offset) - 1, 0) :]:
            if offset < segment.end and self._load_from(window, segment, max(offset, segment.base)):
                return True
            if window.waits is not None:
                return False
        return False

    def _load_from(self, window: Window, segment: Segment, offset: int) -> bool:
        self._source.file_of(segment)
        position = start = segment.position_before(offset)
        want = CHUNK_BYTES
        while position < segment.size:
            n = min(want, segment.size - position)
            got = self._read(window, segment, position, n)
            if got < n:  # the file has been cut from outside
                return self._damaged(window, segment, position, offset)
            at = whole_before(window.chunk, got, offset)
            while at + BATCH.size <= got:
                head = BatchHeader(window.chunk.view(0, got), at)
                if not head.length or position + at + head.length > segment.size:
                    return self._damaged(window, segment, position + at, offset)
                if head.end > offset:
                    if at + head.length > got:
                        if head.length > STREAMED_BYTES:
                            return self._load_large(window, segment, start, position + at, head, offset)
                        break
                    if head.first > offset and not self._is_whole(segment, start, position + at):
                        return self._damaged(window, segment, start, offset)
                    return self._open(window, head, at, offset)
                at += head.length
            else:
                want = CHUNK_BYTES
                if at == 0:
                    return self._damaged(window, segment, position, offset)
                position += at
                continue
            position += at
            want = max(CHUNK_BYTES, head.length)
        return not self._is_whole(segment, start, segment.size) and self._damaged(window, segment, start, offset)

    def _load_large(
        self, window: Window, segment: Segment, start: int, position: int, head: BatchHeader, offset: int
    ) -> bool:
        """Point `window` at some messages of a large batch, or at one large message, whose body is not read into memory."""
        if head.first > offset and not self._is_whole(segment, start, position):
            return self._damaged(window, segment, start, offset)
        # the header has not been checked: if it says that the offset is in no batch, a checked look has to confirm that
        if window.outline and head.first <= offset and self._open_part(window, segment, position, head, offset):
            return True
        if position not in segment.checked and window.patient:
            window.waits = (segment, position, head)
            return False
        if position not in segment.checked:
            for _ in self.check_steps(segment, position, head):
                pass
        sums = segment.checked[position]
        good = bool(sums) and self._open_part(window, segment, position, head, offset, sums)
        if not good or head.count == 1 or window.batch.stored is not None:
            # the next look needs another check, because a body that is read from the disk later is not compared with `sums`
            segment.checked.pop(position, None)
        return good or self._damaged(window, segment, position, offset)

    def _open_part(
        self,
        window: Window,
        segment: Segment,
        position: int,
        head: BatchHeader,
        offset: int,
        sums: list[int] | None = None,
    ) -> bool:
        """Read messages of a large batch from `offset` on, about STREAMED_BYTES of them. Returns False if they cannot be read.

        With `sums`, it also returns False if a slice has changed since it was checked.
        """
        if sums is not None and not self._bytes_of(segment, position, sums, position + PREFIX.size, 1):
            return False  # the first slice, which has the header, has changed
        i = max(offset - head.first, 0)
        n = min(head.count - i, PART_MESSAGES)
        index = position + BATCH.size
        meta = index + ENTRY.size * head.count
        body = meta + head.meta_len
        data = self._bytes_of(segment, position, sums, index + ENTRY.size * i, ENTRY.size * n)
        if len(data) < ENTRY.size * n:
            return False
        meta_at, body_at = ENTRY.read(data)[:2]
        k = meta_len = body_len = 0
        for meta_from, body_from, size, props_len, key_len, _, _, _ in ENTRY.struct.iter_unpack(data):
            if (meta_from - meta_at, body_from - body_at) != (meta_len, body_len):
                return False  # each message begins where the one before it ends, or the index is damaged
            ends = meta_len + key_len + props_len, body_len + size
            if k and sum(ends) > STREAMED_BYTES:
                break
            meta_len, body_len = ends
            k += 1
        if not (0 <= meta_len <= head.meta_len - meta_at and 0 <= body_len <= head.body_len - body_at):
            return False
        stored = None
        ranges = [(index + ENTRY.size * i, ENTRY.size * k), (meta + meta_at, meta_len)]
        if body_len > STREAMED_BYTES:
            stored = Stored(self._source.file_of(segment), body + body_at, body_len)
        else:
            ranges.append((body + body_at, body_len))
        found = [self._bytes_of(segment, position, sums, at, size) for at, size in ranges]
        if any(len(some) < size for some, (_, size) in zip(found, ranges, strict=True)):
            return False
        self._fill_window(window, segment, ranges[0][0], found)
        window.batch.open_part(window.chunk, head, i, k, stored)
        return True

    def _bytes_of(self, segment: Segment, position: int, sums: list[int] | None, start: int, n: int) -> bytes:
        """Read n bytes of the large batch at `position`. Returns fewer at the end of the file, none if a slice does not match `sums`."""
        file = self._source.file_of(segment)
        if sums is None or not n:
            return file.read_at(start, n)
        first = position + PREFIX.size
        number = (start - first) // pieces.SLICE_BYTES
        begin = at = first + number * pieces.SLICE_BYTES
        found = bytearray()
        while at < start + n:
            # the last slice ends with the batch
            data = file.read_at(at, min(pieces.SLICE_BYTES, sums[-1] - at))
            if number >= len(sums) - 1 or xxhash.xxh3_64_intdigest(data) != sums[number]:
                return b""
            found += data
            at, number = at + pieces.SLICE_BYTES, number + 1
        return bytes(found[start - begin : start - begin + n])

    @staticmethod
    def _fill_window(window: Window, segment: Segment, position: int, found: list[bytes]) -> None:
        """Put what was read from `position` on into a window's chunk."""
        size = sum(map(len, found))
        window.batch.count, window.at = 0, size  # the chunk holds nothing behind what is read here
        window.chunk.n = 0
        for some in found:
            window.chunk.add(some)
        window.segment, window.position, window.length = segment, position, size

    def load_steps(self, window: Window, offset: int) -> Generator[None, None, bool]:
        """Like `load`, but a large batch is checked slice by slice."""
        while True:
            window.patient = True
            found = self.load(window, offset)
            window.patient = False
            if window.waits is None:
                return found
            waits, window.waits = window.waits, None
            yield from self.check_steps(*waits)

    def check_steps(self, segment: Segment, position: int, head: BatchHeader) -> Iterator[None]:
        """Read a large batch, a slice in each step, and note in `segment.checked` whether it is unharmed.

        The note has the checksum of each slice, with which later reads are compared, and the end of the batch. It is empty for damage.
        """
        segment.leases += 1
        sums: list[int] = []
        try:
            digest, at, end = xxhash.xxh3_64(seed=segment.salt), position + PREFIX.size, position + head.length
            while at < end:
                data = self._source.file_of(segment).read_at(at, min(pieces.SLICE_BYTES, end - at))
                if not data:
                    break
                digest.update(data)
                sums.append(xxhash.xxh3_64_intdigest(data))
                at += len(data)
                yield
            segment.checked[position] = [*sums, end] if at == end and digest.intdigest() == head.checksum else []
        finally:
            segment.leases -= 1
            self._source.lease_ended(segment)

    def _is_whole(self, segment: Segment, start: int, end: int) -> bool:
        """Whether the batches between two positions are unharmed. If they are, an offset that none of them holds was never written."""
        data, at = self._source.file_of(segment).read_at(start, end - start), 0
        while at < len(data):
            head = BatchHeader(data, at)
            if not valid_at(data, at, head, segment.salt):
                return False
            at += head.length
        return True

    def _read(self, window: Window, segment: Segment, position: int, n: int) -> int:
        window.batch.count = window.at = 0  # what the window held is overwritten
        window.chunk.n = 0
        window.chunk.reserve(n)
        got = self._source.file_of(segment).read_into(position, window.chunk.view(0, n))
        window.chunk.n = got
        window.segment, window.position, window.length = segment, position, got
        return got

    def _open(self, window: Window, head: BatchHeader, at: int, offset: int) -> bool:
        assert window.segment is not None
        if not verify(window.chunk.data, at, head, window.segment.salt):
            return self._damaged(window, window.segment, window.position + at, offset)
        window.batch.open(window.chunk, at, head)
        window.at = at + head.length
        return True

    def _damaged(self, window: Window, segment: Segment, position: int, offset: int) -> bool:
        """Pass over a batch that does not verify to the next one that does. Keep a copy of the segment, and raise the alarm."""
        data = self._source.file_of(segment).read_at(0, segment.size)  # a stream may have closed the file
        at = position - 1
        while True:
            at, _ = find_batch(data, at + 1, segment.salt)
            head = BatchHeader(data, at) if at >= 0 else None
            if head is None or offset < head.end <= segment.end:
                break
        until = segment.end if head is None else max(head.first, offset)
        if until > offset:
            self.lost.append((offset, until - offset))
            self._source.quarantine(segment, f"offsets {offset} to {until - 1} cannot be read")
        if head is None:
            return False
        got = self._read(window, segment, at, head.length)
        return got == head.length and self._open(window, head, 0, until)

    def body_bytes(self, start: int, count: int, window: Window | None = None) -> int:
        """Return the bytes of the bodies of offsets start..start+count-1 that are stored. `window`: the one that the last call used.

        Large batches are not checked for that, and large bodies are not read.
        """
        window, total, at = window or Window(outline=True), 0, start
        while at < start + count and (window.holds(at) or self.load(window, at)):
            batch = window.batch
            i = max(at - batch.first, 0)
            n = min(batch.count - i, start + count - batch.first - i)
            if n <= 0:
                break
            total += batch.body_bytes(i, n)
            at = batch.first + i + n
        return total

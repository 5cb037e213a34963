"""The messages of one queue on disk: segments, their settlement logs, and reading back by offset.

Called once per batch, never per message. A log belongs to a `Store`, which knows what has to be synced and when.
Invariants: segments are ordered and do not overlap; only the last one is written; `next` is above every offset
that was ever used, and after a start above every one that was written or that `announced_end` has told anybody of: the last segment
is dropped only once a later one is durable; a settled offset is settled for good; the delivered mark is in a settlement log that stays.
"""

from __future__ import annotations

import logging
import secrets
import struct
from bisect import bisect_right
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import xxhash

from kvitto.base.errors import StoreFull
from kvitto.base.limits import SEGMENT_BYTES
from kvitto.store import paths, pieces, segment, settlements
from kvitto.store.archive import Archive
from kvitto.store.batch import ENTRY, PREFIX, Batch, BatchHeader, Stored, verify
from kvitto.store.batch import HEADER as BATCH_HEADER
from kvitto.store.inventory import SEGMENT, Entry
from kvitto.store.segment import DamagedSegment, Segment, find_batch, valid_at
from kvitto.store.settlements import Settlements
from kvitto.store.slices import Slices
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.store.disk import File
    from kvitto.store.store import Store

LARGE_BYTES = 4 << 20
"""A larger segment of a deleted queue is unlinked by itself."""
ROLL_WHEN_SETTLED_BYTES = 8 << 20
ROLL_WHEN_SETTLED_MS = 3_600_000
"""Where there is an archive, small segments go there too, but not more often than this."""
CHUNK_BYTES = 256 * 1024
STREAMED_BYTES = 2 << 20
"""A batch with more bytes than this is read in parts of about this size. A body with more bytes is not read into memory."""
PART_MESSAGES = 1000
"""At most this many messages of such a batch are read at a time."""
_FIELDS = struct.Struct("<IIIIHHI")
"""An entry of the index: offsets of meta data and body, sizes of body, properties and key, flags, time to live."""

_AGAIN = "what it had settled comes again, flagged"

log = logging.getLogger("kvitto.store")


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
        """The user of this window can wait until a large batch has been read and checked in pieces."""
        self.outline = outline
        """The user of this window needs sizes, priorities and times only. A large batch is not checked for that."""
        self.waits: tuple[Segment, int, BatchHeader] | None = None
        """The large batch that has to be checked before `load` can find the message that it was asked for (`Log.check_steps`)."""

    def holds(self, offset: int) -> bool:
        return self.batch.first <= offset < self.batch.first + self.batch.count

    def release(self) -> None:
        self.__init__(self.outline)  # type: ignore[misc]


class Recovered:
    """What a queue needs to know of its log after a start."""

    def __init__(self) -> None:
        self.cursor = 0
        self.requeued: list[tuple[int, int]] = []
        self.ready = 0
        self.ready_bytes = 0
        self.redeliveries: dict[int, int] = {}
        self.doubt = 0


class Log:
    def __init__(self, store: Store, queue_id: str, durable: bool) -> None:
        self.store = store
        self.queue_id = queue_id
        self.durable = durable
        self.directory = paths.queue_dir(queue_id, durable)
        self.segment_bytes = SEGMENT_BYTES
        self.segments: list[Segment] = []
        self.next = 0
        self.mark = 0
        self.journal = 0
        self.lost: list[tuple[int, int]] = []
        self.damaged = False
        """A copy of one of its segments has been put aside since the start."""
        self.archive: Archive | None = None
        self.leaving = False
        self.out_of_service = False
        """Its queue's work has failed: nothing more is done with its files."""
        self._announced = 0
        self._scratch = Buf(0)
        self._marked: Segment | None = None
        self._slices: Slices | None = None

    # -- writing ---------------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """Append a batch; it is durable after the next sync. Raises StoreFull or StoreError: then nothing was appended."""
        self.store.take_room(batch.size(), self.directory)
        current = self._writable(batch)
        current.write(batch, reserve=self.durable and self.store.syncing and not self.store.short)
        self.next = batch.first + batch.count
        self.journal = max(self.journal, batch.journal)
        if self.durable:
            self.store.commits.wrote(self, current, batch.size())

    def write_some(self, batch: Batch, most: int) -> int:
        """Append a large batch with about `most` bytes in each call, until `is_writing` says no more; then it is as if `write` had done it.

        Returns how many bytes were written. Raises StoreFull or StoreError: then nothing was appended, and the next call begins again.
        """
        if self._slices is None:
            self.store.take_room(batch.size(), self.directory)
            self._slices = Slices(self._writable(batch), batch)
        slices = self._slices
        try:
            size = slices.write(most)
        except StoreFull:
            self._slices = None
            raise
        if self.durable:
            self.store.commits.wrote(self, slices.part, size)
        if slices.done:
            self._slices = None
            self.next = batch.first + batch.count
            self.journal = max(self.journal, batch.journal)
        return size

    @property
    def is_writing(self) -> bool:
        """Whether `write_some` has begun a batch that is not complete."""
        return self._slices is not None

    def _stop_writing(self) -> None:
        """Cut off the batch that is being written, since the queue is deleted."""
        if self._slices is not None:
            self._slices.undo()
            self._slices = None

    def _writable(self, batch: Batch) -> Segment:
        current = self.segments[-1] if self.segments else None
        if current is not None and not current.full:
            # What the journal has to apply again is told by the last batch that survived a power cut: a later segment must not
            # know of a record while the batch of an earlier one is not durable here.
            if (
                current.size + batch.size() <= min(self.segment_bytes, SEGMENT_BYTES)
                or current.size == segment.HEADER
                or current.durable < current.journal_end
            ):
                return current
            self._fill(current)
        return self._create(batch.first)

    def _create(self, base: int) -> Segment:
        if not self.segments:
            self.store.make_dir(self.directory, self.durable)
        fresh = Segment(base)
        fresh.salt = secrets.randbits(64)
        if self.durable:
            fresh.slot = self.store.inventory.take()
        try:
            fresh.file = self.store.disk.open(paths.segment(self.directory, base), create=True)
            self._write_header(fresh)
        except StoreFull:
            if fresh.file is not None:
                fresh.file.close()
            self.store.forget_entry(fresh)
            raise
        if self.segments:
            last = self.segments[-1]
            last.settled += base - last.end
            last.end = base
        self.segments.append(fresh)
        if self.durable:
            self.store.commits.renamed(self.directory)
        return fresh

    def _write_header(self, part: Segment) -> None:
        assert part.file is not None
        part.created_ms = self.store.clock.now_ms()
        part.file.write_at(0, [segment.header(segment.MAGIC, self.queue_id, part.base, part.created_ms, part.salt)])

    def _fill(self, current: Segment) -> None:
        """No further batch goes into this segment; its footer follows once it is durable."""
        current.full = True
        if self.durable:
            self.store.commits.seal_when_synced(self, current)

    def skip(self, first: int, count: int) -> None:
        """Offsets first..first+count-1 were settled before they were written, and never will be. No file knows of them yet."""
        self.next = first + count

    def settle(self, pending: Settlements, mark: int) -> None:
        """Write the settlements of a turn, and the delivered mark, behind the messages."""
        if pending.entries.n:
            parts = self._touched(pending.lowest, pending.highest)
            for part in reversed(parts):
                self._scratch.n = 0
                settled = pending.take(part.base, part.end, self._scratch)
                if self._scratch.n:
                    self._append_block(part, self._scratch.view(), max(mark, self.mark))
                    part.settled += settled
                if part is not parts[0]:
                    pending.cut(part.base)  # a full disk may end this half-way, and it is called again
            self.drop_settled()
        elif mark > self.mark and self.segments:
            parts = self._touched(mark - 1, mark - 1)
            if parts:
                self._append_block(parts[-1], memoryview(b""), mark)

    def _touched(self, lowest: int, highest: int) -> list[Segment]:
        if len(self.segments) == 1:
            return self.segments[:]
        bases = [s.base for s in self.segments]
        return self.segments[max(bisect_right(bases, lowest) - 1, 0) : bisect_right(bases, highest)]

    def _append_block(self, part: Segment, entries: memoryview, mark: int) -> None:
        if part.acks is None:
            path = paths.settlements(self.directory, part.base)
            part.acks = self.store.disk.open(path, create=True)
            if self.durable:
                self.store.commits.renamed(self.directory)
        now_ms = self.store.clock.now_ms()
        try:
            if not part.acks_size:
                head = segment.header(segment.ACK_MAGIC, self.queue_id, part.base, now_ms)
                part.acks_size = part.acks.write_at(0, [head])
            block = settlements.block(entries, now_ms, mark, part.acks_durable)
            part.acks_size += part.acks.write_at(part.acks_size, block)
        except StoreFull:
            part.acks.truncate(part.acks_size)  # half a block would be damage to a start after an end in order
            raise
        if mark > self.mark or self._marked is None or part.base > self._marked.base:
            self._marked = part
        self.mark = mark
        if self.durable:
            self.store.commits.settled(self, part)

    def drop_settled(self) -> None:
        """Unlink what holds no unsettled message, once the archive has it, unless the journal needs it to know what it has applied."""
        current = self.segments[-1] if self.segments else None
        if current and current.done and not current.full and not current.ahead and self._is_due(current):
            self._fill(current)
        for part in [s for s in self.segments if s.full and s.done]:
            if self.durable and part.journal >= self.store.journal_needed and not self.leaving:
                self.store.blocked_drops[self] = None
                continue
            try:
                if not self.leaving and not self._may_go(part):
                    continue
            except StoreFull:
                return
            if self.archive is not None and part.count and not self.archive.has(self, part):
                continue
            try:
                self.store.forget_entry(part)
            except StoreFull:
                return
            self.segments.remove(part)
            self._unlink(part)
        if self.leaving and not self.segments:
            self._remove()

    def _is_due(self, current: Segment) -> bool:
        """Whether no more is written to a segment that is settled completely."""
        if current.size > (segment.HEADER if self.store.short else ROLL_WHEN_SETTLED_BYTES):
            return True
        if self.archive is None or not current.count:
            return False
        age = self.store.clock.now_ms() - current.created_ms
        return not 0 <= age < ROLL_WHEN_SETTLED_MS  # less than 0: the clock was set back

    def _may_go(self, part: Segment) -> bool:
        """What only this segment's files say must be said elsewhere first: which offset is next, and the delivered mark."""
        if part is self.segments[-1]:
            self.store.commits.wrote(self, self._create(self.next))
        if self.durable and not self.segments[-1].durable:
            return False  # the sync that makes it durable asks again
        if part is self._marked:
            rest = [s for s in self.segments if s is not part and not s.linked]
            if rest and self.mark > rest[0].base:
                self._keep_mark(rest)
        return True

    def _keep_mark(self, rest: list[Segment]) -> None:
        """Write the delivered mark again, into the settlement log of a segment that stays."""
        self._append_block([s for s in rest if s.base < self.mark][-1], memoryview(b""), self.mark)

    def _unlink(self, part: Segment) -> None:
        acks = part.acks
        self.store.going(part)
        if not self.durable:
            self.store.removals.add(part.size, partial(self._remove_transient, part.base, acks is not None))
        elif part.evidence:
            self.store.set_aside(self.directory, part.base)
            self._remove_files(part.base)
        else:  # not before the inventory has forgotten it
            remove = partial(self.store.removals.add, part.size, partial(self._remove_files, part.base))
            self.store.commits.after_a_sync(remove)

    def _remove_transient(self, base: int, settled: bool) -> None:
        """Unlink a segment that no restart will ask for. `settled`: the segment has a settlement log, which goes too."""
        disk = self.store.disk
        if disk.exists(paths.segment(self.directory, base)):  # the queue may have been deleted meanwhile
            disk.unlink(paths.segment(self.directory, base))
            if settled:
                disk.unlink(paths.settlements(self.directory, base))

    def _remove_files(self, base: int) -> None:
        self.store.unlink(self.directory, paths.segment(self.directory, base))
        acks = paths.settlements(self.directory, base)
        if self.store.disk.exists(acks):
            # A settlement log that outlives its messages is harmless, the other order would bring them back.
            self.store.commits.unlink_later(self.directory, acks)

    def delete(self) -> None:
        """Unlink everything; the queue's definition is gone already. Without room it is not, and the queue may come back."""
        self._stop_writing()
        if self.archive is not None:
            self.trim()
            self.store.leaving[self] = None
            self.store.when_defined(self.leave)
            return
        for part in self.segments:
            part.trim()
            self.store.dropped(part)
        if self.segments and self.durable:
            # Not before the definition is durably gone: the queue must not come back empty after a power cut.
            self.store.when_defined(partial(self._remove_directory, self.segments))
        elif self.segments:
            self._remove_directory(self.segments)
        self.segments = []
        self.store.forget(self)

    def leave(self) -> None:
        """The queue is gone for sure: what is settled completely goes to its archive, all else is unlinked."""
        self.leaving = True
        self.store.leaving[self] = None
        for part in self.segments[:]:
            if not part.done or not part.count:
                self.segments.remove(part)
                self.store.dropped(part)
            elif not part.full:
                self._fill(part)
        self.drop_settled()

    def _remove(self) -> None:
        self.store.forget(self)
        self.store.removals.add(0, partial(self.store.remove_queue, self.directory))

    def _remove_messages(self, base: int) -> None:
        """Unlink a segment, unless somebody has done so by hand."""
        path = paths.segment(self.directory, base)
        if self.store.disk.exists(path):
            self.store.disk.unlink(path)

    def _remove_directory(self, parts: list[Segment]) -> None:
        """Unlink all files of a queue that is gone, the large ones one by one."""
        for part in parts:
            if part.size > LARGE_BYTES:
                self.store.removals.add(part.size, partial(self._remove_messages, part.base))
        if self.durable:
            self.store.removals.add(0, partial(self.store.remove_queue, self.directory))
        else:
            self.store.removals.add(0, partial(self.store.disk.rmtree, self.directory))

    def trim(self) -> None:
        """Give back the room ahead: the log is about to be left in order, and what follows its last batch would be damage."""
        for part in self.segments:
            if part.trim():
                self.store.commits.wrote(self, part)

    # -- reading ---------------------------------------------------------------------------------------------

    @property
    def synced_end(self) -> int:
        """Offsets below this one are durable on this machine (or were never written, or are settled), and the files know of them.

        Offsets that were skipped since the last write are not among them, because a start may use those again.
        """
        if not self.durable:
            return self.next
        if not self.store.syncing:
            return self.segments[-1].end if self.segments else 0
        end = 0
        # a sync covers all segments that have anything to sync, so all before a durable one are durable
        for part in reversed(self.segments):
            if part.durable:
                if part.durable >= part.size:
                    return end or part.synced_end
                end = part.synced_end
        return end

    @property
    def announced_end(self) -> int:
        """Peers may be told of offsets below this one: no crash, and no loss of this machine, gives them to other messages.

        It is a number of the log, not of its segments: it stays when those go, and a segment that has just been made has announced nothing.
        """
        return self._announced if self.durable and self.store.syncing else self.synced_end

    def announced(self, end: int) -> None:
        """A commit has been announced that covers the offsets below `end`."""
        self._announced = max(self._announced, end)

    def load(self, window: Window, offset: int) -> bool:
        """Point `window` at the first batch that ends behind `offset`. False if there is none.

        What cannot be read (damage) is noted in `lost` and stepped over: of those offsets the unsettled ones are gone.
        """
        at = window.at
        if window.segment is not None and window.batch.first + window.batch.count <= offset:
            head = BatchHeader(window.chunk.view(0, window.length), at)
            if head.length and at + head.length <= window.length and head.first <= offset < head.end:
                if self._open(window, head, at, offset):
                    return True
                offset = window.segment.end
        bases = [s.base for s in self.segments]
        for part in self.segments[max(bisect_right(bases, offset) - 1, 0) :]:
            if offset < part.end and self._load_from(window, part, max(offset, part.base)):
                return True
            if window.waits is not None:
                return False
        return False

    def _load_from(self, window: Window, part: Segment, offset: int) -> bool:
        self.file_of(part)
        position = start = part.position_before(offset)
        want = CHUNK_BYTES
        while position < part.size:
            n = min(want, part.size - position)
            got = self._read(window, part, position, n)
            if got < n:  # somebody has cut the file
                return self._damaged(window, part, position, offset)
            at = 0
            while at + BATCH_HEADER <= got:
                head = BatchHeader(window.chunk.view(0, got), at)
                if not head.length or position + at + head.length > part.size:
                    return self._damaged(window, part, position + at, offset)
                if head.end > offset:
                    if at + head.length > got:
                        if head.length > STREAMED_BYTES:
                            return self._load_large(window, part, start, position + at, head, offset)
                        break
                    if head.first > offset and not self._is_whole(part, start, position + at):
                        return self._damaged(window, part, start, offset)
                    return self._open(window, head, at, offset)
                at += head.length
            else:
                want = CHUNK_BYTES
                if at == 0:
                    return self._damaged(window, part, position, offset)
                position += at
                continue
            position += at
            want = max(CHUNK_BYTES, head.length)
        return not self._is_whole(part, start, part.size) and self._damaged(window, part, start, offset)

    def file_of(self, part: Segment) -> File:
        """The segment's file; it may not have been opened since the start."""
        if part.file is None:
            part.file = self.store.disk.open(paths.segment(self.directory, part.base))
        return part.file

    def _load_large(
        self, window: Window, part: Segment, start: int, position: int, head: BatchHeader, offset: int
    ) -> bool:
        """Point `window` at some messages of a large batch, or at one large message, whose body is not read into memory."""
        if head.first > offset and not self._is_whole(part, start, position):
            return self._damaged(window, part, start, offset)
        # the header has not been checked: if it says that the offset is in no batch, a checked look has to confirm that
        if window.outline and head.first <= offset and self._open_part(window, part, position, head, offset):
            return True
        if position not in part.checked and window.patient:
            window.waits = (part, position, head)
            return False
        if position not in part.checked:
            for _ in self.check_steps(part, position, head):
                pass
        sums = part.checked[position]
        good = bool(sums) and self._open_part(window, part, position, head, offset, sums)
        if not good or head.count == 1 or window.batch.stored is not None:
            # the next look needs another check, because a body that is read from the disk later is not compared with `sums`
            part.checked.pop(position, None)
        return good or self._damaged(window, part, position, offset)

    def _open_part(
        self,
        window: Window,
        part: Segment,
        position: int,
        head: BatchHeader,
        offset: int,
        sums: list[int] | None = None,
    ) -> bool:
        """Read messages of a large batch from `offset` on, about STREAMED_BYTES of them. Returns False if they cannot be read.

        With `sums`, it also returns False if a slice has changed since it was checked.
        """
        if sums is not None and not self._bytes_of(part, position, sums, position + PREFIX, 1):
            return False  # the first slice, which has the header, has changed
        i = max(offset - head.first, 0)
        n = min(head.count - i, PART_MESSAGES)
        index = position + BATCH_HEADER
        meta = index + ENTRY * head.count
        body = meta + head.meta_len
        data = self._bytes_of(part, position, sums, index + ENTRY * i, ENTRY * n)
        if len(data) < ENTRY * n:
            return False
        meta_at, body_at = int.from_bytes(data[0:4], "little"), int.from_bytes(data[4:8], "little")
        k = meta_len = body_len = 0
        while k < n:
            meta_from, body_from, size, props_len, key_len, _, _ = _FIELDS.unpack_from(data, ENTRY * k)
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
        ranges = [(index + ENTRY * i, ENTRY * k), (meta + meta_at, meta_len)]
        if body_len > STREAMED_BYTES:
            stored = Stored(self.file_of(part), body + body_at, body_len)
        else:
            ranges.append((body + body_at, body_len))
        found = [self._bytes_of(part, position, sums, at, size) for at, size in ranges]
        if any(len(some) < size for some, (_, size) in zip(found, ranges, strict=True)):
            return False
        self._fill_window(window, part, ranges[0][0], found)
        window.batch.open_part(window.chunk, head, i, k, stored)
        return True

    def _bytes_of(self, part: Segment, position: int, sums: list[int] | None, start: int, n: int) -> bytes:
        """Read n bytes of the large batch at `position`. It gets fewer at the end of the file, and none if a slice does not fit `sums`."""
        file = self.file_of(part)
        if sums is None or not n:
            return file.read_at(start, n)
        first = position + PREFIX
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
    def _fill_window(window: Window, part: Segment, position: int, found: list[bytes]) -> None:
        """Put what was read from `position` on into a window's chunk."""
        size = sum(map(len, found))
        window.batch.count, window.at = 0, size  # nothing behind what is read here is in the chunk
        window.chunk.n = 0
        for some in found:
            window.chunk.add(some)
        window.segment, window.position, window.length = part, position, size

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

    def check_steps(self, part: Segment, position: int, head: BatchHeader) -> Iterator[None]:
        """Read a large batch, a slice in each step, and note in `part.checked` whether it is unharmed.

        The note has the checksum of each slice, with which later reads are compared, and the end of the batch. It is empty for damage.
        """
        part.leases += 1
        sums: list[int] = []
        try:
            digest, at, end = xxhash.xxh3_64(seed=part.salt), position + PREFIX, position + head.length
            while at < end:
                data = self.file_of(part).read_at(at, min(pieces.SLICE_BYTES, end - at))
                if not data:
                    break
                digest.update(data)
                sums.append(xxhash.xxh3_64_intdigest(data))
                at += len(data)
                yield
            part.checked[position] = [*sums, end] if at == end and digest.intdigest() == head.checksum else []
        finally:
            part.leases -= 1
            self.store.lease_ended(part)

    @staticmethod
    def _is_whole(part: Segment, start: int, end: int) -> bool:
        """Whether the batches between two positions are unharmed: if so, an offset that none of them holds was never written."""
        assert part.file is not None
        data, at = part.file.read_at(start, end - start), 0
        while at < len(data):
            head = BatchHeader(data, at)
            if not valid_at(data, at, head, part.salt):
                return False
            at += head.length
        return True

    def _read(self, window: Window, part: Segment, position: int, n: int) -> int:
        assert part.file is not None
        window.batch.count = window.at = 0  # what the window held is overwritten
        window.chunk.n = 0
        window.chunk.reserve(n)
        got = part.file.read_into(position, window.chunk.view(0, n))
        window.chunk.n = got
        window.segment, window.position, window.length = part, position, got
        return got

    def _open(self, window: Window, head: BatchHeader, at: int, offset: int) -> bool:
        assert window.segment is not None
        if not verify(window.chunk.data, at, head, window.segment.salt):
            return self._damaged(window, window.segment, window.position + at, offset)
        window.batch.open(window.chunk, at, head)
        window.at = at + head.length
        return True

    def _damaged(self, window: Window, part: Segment, position: int, offset: int) -> bool:
        """Not every batch from `position` on verifies: step over to the next that does, keep a copy, raise the alarm."""
        assert part.file is not None
        data = part.file.read_at(0, part.size)
        at = position - 1
        while True:
            at, _ = find_batch(data, at + 1, part.salt)
            head = BatchHeader(data, at) if at >= 0 else None
            if head is None or offset < head.end <= part.end:
                break
        until = part.end if head is None else max(head.first, offset)
        if until > offset:
            self.lost.append((offset, until - offset))
            self.store.quarantine(self, part, f"offsets {offset} to {until - 1} cannot be read")
        if head is None:
            return False
        got = self._read(window, part, at, head.length)
        return got == head.length and self._open(window, head, 0, until)

    # -- start -----------------------------------------------------------------------------------------------

    def recover(self) -> Recovered:
        """Open what is on disk. Time grows with the number of segments, not of messages."""
        disk = self.store.disk
        known = self.store.inventory.claim(SEGMENT, self.queue_id) if self.durable else {}
        names = disk.listdir(self.directory)
        self._miss_settlements(known, names)
        names = disk.listdir(self.directory)
        acks = {paths.base_of(n) for n in names if n.endswith(paths.SETTLEMENTS_SUFFIX)}
        bases = sorted(paths.base_of(n) for n in names if n.endswith(paths.SEGMENT_SUFFIX))
        for base in bases:
            self._recover_segment(base, known.get(base))
        self._miss_segments(known, bases)
        found = Recovered()
        logs = {s.base: self._replay(s, known.get(s.base)) for s in self.segments if s.base in acks}
        for base, replay in logs.items():
            found.doubt = max(found.doubt, replay.doubt)
            if replay.mark > self.mark:
                self.mark = replay.mark
                self._marked = next(s for s in self.segments if s.base == base)
        told = max([0, self.mark] + [s.end for s in self.segments] + [r.highest + 1 for r in logs.values()])
        self.next = max(self.next, told)
        orphans = acks - {s.base for s in self.segments}
        for orphan in orphans:
            self._recover_orphan(orphan)
        if self.next > told:  # what was never written, or is lost, lies below the cursor
            self.mark, self._marked = self.next, None
        for part in self.segments:
            if part.settled and part.end > self.mark:
                # Only what was delivered and settled at once is never written, and first deliveries are in order.
                raised = max([self.mark] + [start + count for start, count in part.batch_gaps()])
                if raised > self.mark:
                    self.mark, self._marked = raised, None
        self._books(found, logs)
        if self.segments and not self.segments[-1].full:
            last = self.segments[-1]
            last.settled += told - last.end
            last.end = last.synced_end = told
        self._sync_found()
        if self._marked is None and self.segments and self.mark > self.segments[0].base:
            rest = [s for s in self.segments if not s.linked]
            with suppress(StoreFull):
                if rest and self.mark > rest[0].base:
                    self._keep_mark(rest)  # it was in a settlement log whose segment is gone, or follows from gaps
        if self.store.doubt:
            found.doubt = self.next
            self._note_doubt(self.segments)
        elif damaged := [part for part in self.segments if self._lacks_settlements(part, logs, known)]:
            found.doubt = max(found.doubt, damaged[-1].end)
            self._note_doubt(damaged)
        self._sync_noted()
        with suppress(StoreFull):
            self._tell_next()
            for orphan in orphans:
                disk.unlink(paths.settlements(self.directory, orphan))
        self.lost.clear()
        if self.durable:
            self._enter_found()
        self._announced = self.synced_end
        self.drop_settled()
        return found

    def _miss_segments(self, known: dict[int, Entry], bases: list[int]) -> None:
        """What the inventory knows and the directory has not is damage; an empty `.bad` remembers it."""
        self.next = max([self.next, *(entry.end for entry in known.values())])
        for base in sorted(known.keys() - set(bases)):
            entry, path = known[base], paths.segment(self.directory, base)
            if not self.store.disk.exists(paths.quarantine(self.directory, base)):
                if entry.end > base:
                    lost = f"what waited of offsets {base} to {entry.end - 1} is lost"
                else:
                    lost = "no message was in it"
                self.store.remember(self.directory, paths.quarantine(self.directory, base))
                self.store.alarm(f"{path} is missing: {lost}; the rest of the queue is served")
            self.store.drop_slot(entry.slot)

    def _miss_settlements(self, known: dict[int, Entry], names: list[str]) -> None:
        """A settlement log that is not there, or says that it is another's: what it had settled comes again, flagged."""
        for base, entry in known.items():
            path = paths.settlements(self.directory, base)
            if not entry.acks_size or not self.store.disk.exists(paths.segment(self.directory, base)):
                continue
            if path.rpartition("/")[2] not in names:
                self.store.remember(self.directory, paths.quarantined_settlements(self.directory, base))
                self.store.alarm(f"{path} is missing: {_AGAIN}")
        for name in names:
            base = paths.base_of(name)
            if name.endswith(paths.SETTLEMENTS_SUFFIX) and base >= 0:
                self._refuse_settlements(base)

    def _refuse_settlements(self, base: int) -> None:
        path = paths.settlements(self.directory, base)
        head = self.store.disk.open(path)
        whose = segment.foreign(head.read_at(0, segment.HEADER), segment.ACK_MAGIC, self.queue_id, base)
        head.close()
        if whose:
            kept = self.store.put_aside(self.directory, path, paths.quarantined_settlements(self.directory, base))
            self.store.alarm(f"{path}: its header says that it is {whose}. The file is now {kept}; {_AGAIN}")

    @staticmethod
    def _lacks_settlements(part: Segment, logs: dict[int, settlements.Replay], known: dict[int, Entry]) -> bool:
        """Whether what had been settled may be ready again."""
        if part.base in logs:
            return logs[part.base].damaged
        return part.base in known and known[part.base].acks_size > 0

    def _enter_found(self) -> None:
        """What the inventory does not know is taken in: it was new when the broker ended, or about to go."""
        for part in self.segments:
            if part.slot < 0 and part.durable:
                self.store.enter(self, part)

    def _note_doubt(self, parts: list[Segment]) -> None:
        """After a power cut, or damage, any message may have been delivered, what told so was lost: the next starts must know it too.

        Below the mark too: in a queue with priorities it lies behind messages that were never delivered.
        """
        for part in parts:
            if not part.done and part.size > segment.HEADER and not part.linked:
                doubt = Settlements()
                doubt.add(part.end - 1, 1, settlements.IN_DOUBT, 0)
                with suppress(StoreFull):
                    self._append_block(part, doubt.entries.view(), self.mark)

    def _tell_next(self) -> None:
        """Where what says that offsets were used is not to stay (damage, an orphan), a segment that begins at `next` says so."""
        if self.next > (self.segments[-1].end if self.segments else 0):
            fresh = self._create(self.next)
            assert fresh.file is not None
            if self.store.syncing:
                fresh.file.sync()
                self.store.disk.sync_dir(self.directory)
            fresh.durable = fresh.size

    def _sync_found(self) -> None:
        """What a killed process left may not be on disk yet, but from here on it is taken for granted: each block that follows says so."""
        if self.store.in_order or not self.store.syncing or not self.durable:
            return
        for part in self.segments:
            if part.file is not None:  # of a sealed segment the footer may not have been synced
                part.file.sync()
            if part.acks is not None:
                part.acks.sync()
        self.store.disk.sync_dir(self.directory)

    def _sync_noted(self) -> None:
        """What this start has added to the settlement logs itself."""
        if self.store.in_order or not self.store.syncing or not self.durable:
            return
        made = False
        for part in self.segments:
            if part.acks is not None and part.acks_size > part.acks_durable:
                part.acks.sync()
                made = made or not part.acks_durable
        if made:
            self.store.disk.sync_dir(self.directory)

    def _recover_segment(self, base: int, entry: Entry | None) -> None:
        part = Segment(base)
        path = paths.segment(self.directory, base)
        part.file = self.store.disk.open(path)
        head = part.file.read_at(0, segment.HEADER)
        if whose := segment.foreign(head, segment.MAGIC, self.queue_id, base):
            part.file.close()
            self._set_aside(part, entry, base, f"its header says that it is {whose}")
            return
        part.slot = -1 if entry is None else entry.slot
        part.salt, copy = segment.salts(head)
        part.created_ms = segment.created_ms(head)
        part.linked = self.archive is not None and base in self.archive.found
        if not segment.header_is_valid(head, segment.MAGIC):
            if not self._mend_header(part, head, entry):
                return
        elif copy != part.salt and not part.linked:
            # torn by a power cut, or rotten: the next damage could cost the segment
            log.warning("%s: the copy of the salt in the header was damaged, and is written again", path)
            part.file.write_at(segment.SALT_AGAIN, [part.salt.to_bytes(8, "little")])
        bad = paths.quarantine(self.directory, base)
        owed = self.store.disk.exists(paths.copying(bad)) and not self.store.disk.exists(bad)
        if owed:
            self.store.quarantine(self, part, "damage had been found in it")
        if not part.read_footer():
            self._scan(part, owed, entry.size if entry else 0)
        if self.segments:
            last = self.segments[-1]
            last.settled += base - last.end
            last.end = base
            if not last.full:
                self._fill(last)
        self.segments.append(part)
        self.journal = max(self.journal, part.journal)

    def _set_aside(self, part: Segment, entry: Entry | None, end: int, why: str) -> None:
        """Nothing of it is served; the inventory need not know it any more."""
        end = max(end, entry.end if entry else 0)
        self.next = max(self.next, end)
        path, kept = paths.segment(self.directory, part.base), self.store.set_aside(self.directory, part.base)
        if entry is not None:
            self.store.drop_slot(entry.slot)
        lost = f"offsets {part.base} to {end - 1} cannot be read" if end > part.base else "no message was in it"
        self.store.alarm(f"{path}: {why}, {lost}; the file is now {kept}, the rest of the queue is served")

    def _mend_header(self, part: Segment, head: bytes, entry: Entry | None) -> bool:
        """False if there is nothing to be served: without the salt no batch can be told from what a message's body holds."""
        assert part.file is not None
        path = paths.segment(self.directory, part.base)
        end, synced = part.claims()
        # A power cut before the first sync may have taken the header, and then nothing of the rest was promised to anybody.
        damaged = (part.file.size() > segment.HEADER and (synced or not self.store.doubt)) or entry is not None
        if part.find_salt(head):
            if damaged:
                self.store.quarantine(self, part, "the segment's header is damaged")
            if not part.evidence:
                self._write_header(part)
            return True
        empty = not part.file.size()
        part.file.close()
        self.next = max(self.next, end if damaged else part.base)
        if damaged:
            part.slot = -1
            self._set_aside(part, entry, end, "it is empty" if empty else "the segment's header is damaged")
        else:
            self.store.disk.unlink(path)
        return False

    def _scan(self, part: Segment, damaged: bool, known: int) -> None:
        assert part.file is not None
        try:
            part.scan(self.store.intact or damaged, self.store.doubt, known)
        except DamagedSegment as damage:
            self.store.quarantine(self, part, str(damage))
            if not part.evidence:
                part.file.truncate(part.size)
        part.durable, part.synced_end = part.size, part.end
        part.full = part.evidence  # then nothing may be written over its end
        self.store.commits.wrote(self, part)

    def _recover_orphan(self, base: int) -> None:
        """A settlement log whose segment is gone: only its numbers matter, and it goes too once they are told elsewhere."""
        replay = settlements.Replay(base, 0)
        path = paths.settlements(self.directory, base)
        replay.run(self.store.disk.read_file(path), segment.HEADER)
        if replay.mark > self.mark:
            self.mark, self._marked = replay.mark, None
        self.next = max(self.next, replay.mark, replay.highest + 1)

    def _replay(self, part: Segment, entry: Entry | None) -> settlements.Replay:
        path = paths.settlements(self.directory, part.base)
        data = self.store.disk.read_file(path)
        replay = self._blank(part)
        replay.run(data, segment.HEADER, self.store.doubt, entry.acks_size if entry else 0)
        replay.damaged |= self.store.in_order and len(data) > max(replay.end, segment.HEADER)
        if replay.damaged:
            self.store.alarm(f"{path}: settlements are damaged; messages that were settled come again, flagged")
        part.acks = self.store.disk.open(path)
        part.acks_size = part.acks_durable = max(replay.end, segment.HEADER)
        if part.acks.size() < segment.HEADER or not segment.header_is_valid(data, segment.ACK_MAGIC):
            head = segment.header(segment.ACK_MAGIC, self.queue_id, part.base, self.store.clock.now_ms())
            part.acks.write_at(0, [head])
        if len(data) > part.acks_size:
            part.acks.truncate(part.acks_size)
        self.store.commits.settled(self, part)
        return replay

    @staticmethod
    def _blank(part: Segment) -> settlements.Replay:
        """Nothing in it is settled. What was never written has no bit: a queue may have passed on any number of messages in between."""
        gaps = part.batch_gaps() if part.settled else ()
        return settlements.Replay(part.base, part.end - part.base, gaps)

    def _books(self, found: Recovered, logs: dict[int, settlements.Replay]) -> None:
        """Count what is unsettled; below the mark it comes again, flagged, above it was never delivered."""
        first = self.segments[0].base if self.segments else self.next
        found.cursor = self.mark = max(self.mark, first)
        for part in self.segments:
            replay = logs.get(part.base)
            if replay is None and part.base >= self.mark:
                found.ready += part.end - part.base - part.settled
                found.ready_bytes += part.body_bytes
                continue
            replay = replay or self._blank(part)
            part.settled = replay.settled + part.end - part.base - replay.span
            found.ready += replay.span - replay.settled
            for start, count in replay.unsettled():
                found.ready_bytes += part.body_bytes if count == part.count else self.body_bytes(start, count)
                below = min(start + count, self.mark) - start
                if below > 0:
                    found.requeued.append((start, below))
            for offset, deliveries in replay.redeliveries.items():
                if not replay.is_settled(offset):  # nor is its message lost
                    found.redeliveries[offset] = deliveries

    def body_bytes(self, start: int, count: int, window: Window | None = None) -> int:
        """Bytes of the bodies of offsets start..start+count-1, those of them that are stored. `window`: that of the last call."""
        window, total, at = window or Window(), 0, start
        while at < start + count and (window.holds(at) or self.load(window, at)):
            batch = window.batch
            i = max(at - batch.first, 0)
            n = min(batch.count - i, start + count - batch.first - i)
            if n <= 0:
                break
            total += batch.body_bytes(i, n)
            at = batch.first + i + n
        return total

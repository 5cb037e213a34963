"""The messages of one queue on disk: segments, their settlement logs, and reading back by offset.

Called once per batch, never per message. A log belongs to a `Store`, which knows what has to be synced and when.
Invariants: segments are ordered and do not overlap; only the last one is written; `next` is above every offset
that was ever used, and after a start above every one that was written or that `announced_end` has told anybody of: the last segment
is dropped only once a later one is durable; a settled offset is settled for good; the delivered mark is in a settlement log that stays.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING

from kvitto.base.errors import StoreFull
from kvitto.base.limits import SEGMENT_BYTES
from kvitto.format.layouts import SEGMENT_MAGIC, SETTLEMENTS_MAGIC
from kvitto.store import paths, segment, settlements
from kvitto.store.archive import Archive
from kvitto.store.batch import Batch
from kvitto.store.reading import Reader
from kvitto.store.recovery import Recovered, Recovery
from kvitto.store.segment import Segment
from kvitto.store.settlements import Settlements
from kvitto.store.slices import Slices
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.store.disk import File
    from kvitto.store.store import Store

LARGE_BYTES = 4 << 20
"""A segment of a deleted queue that is larger than this is unlinked by itself, in a turn of its own."""
ROLL_WHEN_SETTLED_BYTES = 8 << 20
ROLL_WHEN_SETTLED_MS = 3_600_000
"""With an archive, a small segment that is settled is sealed after this time, so that it moves there too."""


class Log:
    flags = True
    """Whether a message that may have been delivered before a crash is flagged."""

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
        self.reader = Reader(self)
        self.damaged = False
        """Damage has been found in one of the segments since the start."""
        self.archive: Archive | None = None
        self.leaving = False
        self.out_of_service = False
        """The queue is out of service: nothing more is done with its files."""
        self._announced = 0
        self._scratch = Buf(0)
        self.marked: Segment | None = None
        self._slices: Slices | None = None

    # -- writing ---------------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """Append a batch, which the next sync makes durable. Raises StoreFull or StoreError; then nothing was appended."""
        self.store.take_room(batch.size(), self.directory)
        current = self._writable(batch)
        current.write(batch, reserve=self.durable and self.store.syncing and not self.store.short)
        self.next = batch.first + batch.count
        self.journal = max(self.journal, batch.journal)
        if self.durable:
            self.store.commits.wrote(self, current, batch.size())

    def write_some(self, batch: Batch, most: int) -> int:
        """Append about `most` bytes of a large batch in each call, until `is_writing` is false; then the batch is appended.

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
            self.fill(current)
        return self.create(batch.first)

    def create(self, base: int) -> Segment:
        if not self.segments:
            self.store.make_dir(self.directory, self.durable)
        fresh = Segment(base)
        fresh.salt = secrets.randbits(64)
        if self.durable:
            fresh.slot = self.store.inventory.take()
        try:
            fresh.file = self.store.disk.open(paths.segment(self.directory, base), create=True)
            self.write_header(fresh)
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

    def write_header(self, part: Segment) -> None:
        assert part.file is not None
        part.created_ms = self.store.clock.now_ms()
        part.file.write_at(0, [segment.header(SEGMENT_MAGIC, self.queue_id, part.base, part.created_ms, part.salt)])

    def fill(self, current: Segment) -> None:
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
                    self.append_block(part, self._scratch.view(), max(mark, self.mark))
                    part.settled += settled
                if part is not parts[0]:
                    pending.cut(
                        part.base
                    )  # a full disk may interrupt this loop, and the next call must not write these again
            self.drop_settled()
        elif mark > self.mark and self.segments:
            parts = self._touched(mark - 1, mark - 1)
            if parts:
                self.append_block(parts[-1], memoryview(b""), mark)

    def _touched(self, lowest: int, highest: int) -> list[Segment]:
        if len(self.segments) == 1:
            return self.segments[:]
        bases = [s.base for s in self.segments]
        return self.segments[max(bisect_right(bases, lowest) - 1, 0) : bisect_right(bases, highest)]

    def append_block(self, part: Segment, entries: memoryview, mark: int) -> None:
        if part.acks is None:
            path = paths.settlements(self.directory, part.base)
            part.acks = self.store.disk.open(path, create=True)
            if self.durable:
                self.store.commits.renamed(self.directory)
        now_ms = self.store.clock.now_ms()
        try:
            if not part.acks_size:
                head = segment.header(SETTLEMENTS_MAGIC, self.queue_id, part.base, now_ms)
                part.acks_size = part.acks.write_at(0, [head])
            block = settlements.block(entries, now_ms, mark, part.acks_durable)
            part.acks_size += part.acks.write_at(part.acks_size, block)
        except StoreFull:
            part.acks.truncate(part.acks_size)  # a start after an end in order would take half a block for damage
            raise
        if mark > self.mark or self.marked is None or part.base > self.marked.base:
            self.marked = part
        self.mark = mark
        if self.durable:
            self.store.commits.settled(self, part)

    def drop_settled(self) -> None:
        """Unlink the segments whose messages are all settled, once the archive has them and the journal does not need them any more.

        A start goes by the segments to know which records of the journal have been applied.
        """
        current = self.segments[-1] if self.segments else None
        if current and current.done and not current.full and not current.ahead and self._is_due(current):
            self.fill(current)
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
        """Whether a segment whose messages are all settled is to be sealed, although it is not full."""
        if current.size > (segment.HEADER if self.store.short else ROLL_WHEN_SETTLED_BYTES):
            return True
        if self.archive is None or not current.count:
            return False
        age = self.store.clock.now_ms() - current.created_ms
        return not 0 <= age < ROLL_WHEN_SETTLED_MS  # less than 0: the clock was set back

    def _may_go(self, part: Segment) -> bool:
        """Whether a segment may be unlinked: other files have to say durably which offset is next, and have the delivered mark."""
        if part is self.segments[-1]:
            self.store.commits.wrote(self, self.create(self.next))
        if self.durable and not self.segments[-1].durable:
            return False  # this is called again when a sync has made that one durable
        if part is self.marked:
            rest = [s for s in self.segments if s is not part and not s.linked]
            if rest and self.mark > rest[0].base:
                self.keep_mark(rest)
        return True

    def keep_mark(self, rest: list[Segment]) -> None:
        """Write the delivered mark again, into the settlement log of a segment that stays."""
        self.append_block([s for s in rest if s.base < self.mark][-1], memoryview(b""), self.mark)

    def _unlink(self, part: Segment) -> None:
        acks = part.acks
        self.store.going(part)
        if not self.durable:
            self.store.removals.add(part.size, partial(self._remove_transient, part.base, acks is not None))
        elif part.evidence:
            self.store.set_aside(self.directory, part.base)
            self._remove_files(part.base)
        else:  # the inventory has to forget it first, durably
            remove = partial(self.store.removals.add, part.size, partial(self._remove_files, part.base))
            self.store.commits.after_a_sync(remove)

    def _remove_transient(self, base: int, settled: bool) -> None:
        """Unlink a segment of a queue that is not durable. `settled`: it has a settlement log, which is unlinked too."""
        disk = self.store.disk
        if disk.exists(paths.segment(self.directory, base)):  # the queue may have been deleted meanwhile
            disk.unlink(paths.segment(self.directory, base))
            if settled:
                disk.unlink(paths.settlements(self.directory, base))

    def _remove_files(self, base: int) -> None:
        self.store.unlink(self.directory, paths.segment(self.directory, base))
        acks = paths.settlements(self.directory, base)
        if self.store.disk.exists(acks):
            # The settlement log goes last: it is harmless without its messages, while they would come back without it.
            self.store.commits.unlink_later(self.directory, acks)

    def delete(self) -> None:
        """Unlink all files of a queue whose definition has been deleted. If there is no room to write that, the queue may come back."""
        self._stop_writing()
        if self.archive is not None:
            self.trim()
            self.store.leaving[self] = None
            self.store.when_defined(self.leave, announced=False)
            return
        for part in self.segments:
            part.trim()
            self.store.dropped(part)
        if self.segments and self.durable:
            # The definition has to be durably gone first: a power cut must not bring the queue back empty.
            self.store.when_defined(partial(self._remove_directory, self.segments), announced=False)
        elif self.segments:
            self._remove_directory(self.segments)
        self.segments = []
        self.store.forget(self)

    def leave(self) -> None:
        """Move the segments whose messages are all settled to the archive, and unlink all others: the queue is durably deleted."""
        self.leaving = True
        self.store.leaving[self] = None
        for part in self.segments[:]:
            if not part.done or not part.count:
                self.segments.remove(part)
                self.store.dropped(part)
            elif not part.full:
                self.fill(part)
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
        """Cut off the room that was reserved ahead, before the broker stops in order: a start would take it for damage then."""
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
        # a sync covers all segments with unsynced bytes, so all before a durable one are durable
        for part in reversed(self.segments):
            if part.durable:
                if part.durable >= part.size:
                    return end or part.synced_end
                end = part.synced_end
        return end

    @property
    def announced_end(self) -> int:
        """Peers may be told of offsets below this one: no crash, and no loss of this machine, gives them to other messages.

        The log keeps this number itself, because its segments are unlinked, and nothing in a segment that has just been made is announced.
        """
        return self._announced if self.durable and self.store.syncing else self.synced_end

    def announced(self, end: int) -> None:
        """Note that a commit that covers the offsets below `end` has been announced."""
        if end > self._announced:
            self._announced = end

    def file_of(self, part: Segment) -> File:
        """Return the file of a segment, and open it if that has not happened since the start."""
        if part.file is None:
            part.file = self.store.disk.open(paths.segment(self.directory, part.base))
        return part.file

    def quarantine(self, part: Segment, why: str) -> None:
        """Keep a copy of a damaged segment, and raise the alarm."""
        self.store.quarantine(self, part, why)

    def lease_ended(self, part: Segment) -> None:
        """Close the file of a segment that has been dropped meanwhile, if nobody else reads from it."""
        self.store.lease_ended(part)

    # -- start -----------------------------------------------------------------------------------------------

    def recover(self) -> Recovered:
        """Read what is on disk, at a start. The time grows with the number of segments, not of messages."""
        return Recovery(self).run()

    def found(self, part: Segment) -> None:
        """Called for each segment that a start has found, when it has become the last one of `segments`."""

"""The messages of one queue on disk: segments, their settlement logs, and reading back by offset.

Called once per batch, never per message. A log belongs to a `Store`, which knows what has to be synced and when.
Invariants: segments are ordered and do not overlap; only the last one is written; `next` is above every offset
that was ever used, and after a start above every one that was written or that `announced_end` has told anybody of: the last segment
is dropped only once a later one is durable; a settled offset is settled for good; the delivered mark is in a settlement log that stays.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from kvitto.base.errors import StoreFull
from kvitto.base.limits import SEGMENT_BYTES
from kvitto.format.layouts import SEGMENT_MAGIC, SETTLEMENTS_MAGIC
from kvitto.format.settlement import IN_DOUBT
from kvitto.store import paths, settlements
from kvitto.store import segment as segfile
from kvitto.store.archive import Archive
from kvitto.store.batch import Batch
from kvitto.store.reading import LogReader
from kvitto.store.recovery import Recovered, Recovery
from kvitto.store.segment import Segment
from kvitto.store.settlements import Settlements
from kvitto.store.slices import Slices
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.store.disk import File
    from kvitto.store.store import Store

NO_ENTRIES = Buf(0)
"""The entries of a block that only says which messages have been delivered. Nobody writes to it."""
LARGE_BYTES = 4 << 20
"""A segment of a deleted queue that is larger than this is unlinked by itself, in a turn of its own."""
ROLL_WHEN_SETTLED_BYTES = 8 << 20
ROLL_WHEN_SETTLED_MS = 3_600_000
"""With an archive, a small segment that is settled is sealed after this time, so that it moves there too."""


_SEGMENT_BYTES = SEGMENT_BYTES  # a C variable when compiled


class Log:
    flags = True
    """Whether a message that may have been delivered before a crash is flagged."""

    def __init__(self, store: Store, queue_id: str, durable: bool) -> None:
        self.store = store
        self._room = store.room
        self._commits = store.commits
        self._clock = store.clock
        self.queue_id = queue_id
        self.durable = durable
        self.directory = paths.queue_dir(queue_id, durable)
        self.segment_bytes = SEGMENT_BYTES
        self.segments: list[Segment] = []
        self.next = 0
        self.delivered_mark = 0
        self.journal = 0
        self.reader = LogReader(self)
        self.damaged = False
        """Damage has been found in one of the segments since the start."""
        self.archive: Archive | None = None
        self.leaving = False
        self.keyed = False
        """Whether messages have deduplication keys. A start then drops no segment before it knows which keys are needed (`keep_keys`)."""
        self.out_of_service = False
        """The queue is out of service: nothing more is done with its files."""
        self._announced = 0
        self._scratch = Buf(0)
        self.mark_segment: Segment | None = None
        self._keyed_segment: Segment | None = None
        """The segment of the last offset that `let_go` was called with."""
        self._slices: Slices | None = None
        if durable:
            store.logs[self] = None

    # -- writing ---------------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """Append a batch, which the next sync makes durable. Raises StoreFull or StoreError; then nothing was appended."""
        size = batch.size()
        self._room.take(size, self.directory)
        self._keep()
        current = self._writable(batch)
        current.write(batch, self.durable and self._commits.syncing and not self._room.short)
        self.next = batch.first + batch.count
        if batch.journal > self.journal:
            self.journal = batch.journal
        if self.durable:
            self._commits.wrote(self, current, size)

    def write_some(self, batch: Batch, most: int) -> int:
        """Append about `most` bytes of a large batch in each call, until `is_writing` is false; then the batch is appended.

        Returns how many bytes were written. Raises StoreFull or StoreError: then nothing was appended, and the next call begins again.
        """
        self._keep()
        if self._slices is None:
            self._room.take(batch.size(), self.directory)
            self._slices = Slices(self._writable(batch), batch)
        slices = self._slices
        try:
            size = slices.write(most)
        except StoreFull:
            self._slices = None
            raise
        if self.durable:
            self._commits.wrote(self, slices.segment, size)
        if slices.done:
            self._slices = None
            self.next = batch.first + batch.count
            self.journal = max(self.journal, batch.journal)
        return size

    def _keep(self) -> None:
        """Have a backup note what the files have, because that is about to change (store/cut.py)."""
        if self.store.cut is not None:
            self.store.cut.keep(self)

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
            if (
                current.size + batch.size() <= min(self.segment_bytes, _SEGMENT_BYTES)
                or current.size == segfile.HEADER
                or _has_unsynced_records(current)
            ):
                return current
            self.fill(current)
        return self.create(batch.first)

    def create(self, base: int) -> Segment:
        self._keep()
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
            self._commits.renamed(self.directory)
            self._commits.new_files += 1
        return fresh

    def write_header(self, segment: Segment) -> None:
        assert segment.file is not None
        segment.created_ms = self._clock.now_ms()
        segment.file.write_at(
            0, [segfile.header(SEGMENT_MAGIC, self.queue_id, segment.base, segment.created_ms, segment.salt)]
        )

    def fill(self, current: Segment) -> None:
        """No further batch goes into this segment; its footer follows once it is durable."""
        current.full = True
        if self.durable:
            self._commits.seal_when_synced(self, current)

    def skip(self, first: int, count: int) -> None:
        """Offsets first..first+count-1 were settled before they were written, and never will be. No file knows of them yet."""
        self.next = first + count

    def settle(self, pending: Settlements, mark: int) -> None:
        """Write the settlements of a turn, and the delivered mark, behind the messages."""
        if pending.entries.n:
            segments = self._touched(pending.lowest, pending.highest)
            for i in range(len(segments) - 1, -1, -1):
                segment = segments[i]
                self._scratch.n = 0
                settled = pending.take(segment.base, segment.end, self._scratch)
                if self._scratch.n:
                    self.append_block(segment, self._scratch, max(mark, self.delivered_mark))
                    segment.settled += settled
                if i:
                    pending.cut(
                        segment.base
                    )  # a full disk may interrupt this loop, and the next call must not write these again
            self.drop_settled()
        elif mark > self.delivered_mark and self.segments:
            segments = self._touched(mark - 1, mark - 1)
            if segments:
                self.append_block(segments[-1], NO_ENTRIES, mark)

    def _touched(self, lowest: int, highest: int) -> list[Segment]:
        if len(self.segments) == 1:
            return self.segments
        bases = [s.base for s in self.segments]
        return self.segments[max(bisect_right(bases, lowest) - 1, 0) : bisect_right(bases, highest)]

    def append_block(self, segment: Segment, entries: Buf, mark: int) -> None:
        self._keep()
        if segment.acks is None:
            path = paths.settlements(self.directory, segment.base)
            segment.acks = self.store.disk.open(path, create=True)
            if self.durable:
                self._commits.made_settlements(self, segment)
        now_ms = self._clock.now_ms()
        try:
            if not segment.acks_size:
                head = segfile.header(SETTLEMENTS_MAGIC, self.queue_id, segment.base, now_ms)
                segment.acks_size = segment.acks.write_at(0, [head])
            block = settlements.block(entries, now_ms, mark, segment.acks_durable)
            segment.acks_size += segment.acks.write_at(segment.acks_size, block)
        except StoreFull:
            segment.acks.truncate(segment.acks_size)  # a start after an end in order would take half a block for damage
            raise
        if mark > self.delivered_mark or self.mark_segment is None or segment.base > self.mark_segment.base:
            self.mark_segment = segment
        self.delivered_mark = mark
        if self.durable:
            self._commits.settled(self, segment)

    def note_doubt(self, below: int) -> None:
        """Write into the settlement logs that any message below this offset may have been delivered, so that later starts flag them too.

        After a power cut or damage what told of the deliveries may be lost. Raises StoreFull.
        """
        for segment in self.segments if self.flags else ():
            if segment.base < below and not segment.done and segment.size > segfile.HEADER and not segment.linked:
                flags = Settlements()
                flags.add(min(segment.end, below) - 1, 1, IN_DOUBT, 0)
                self.append_block(segment, flags.entries, self.delivered_mark)

    def drop_settled(self) -> None:
        """Unlink the segments whose messages are all settled, once the archive has them and the journal does not need them any more.

        A start goes by the segments to know which records of the journal have been applied.
        """
        current = self.segments[-1] if self.segments else None
        if current is not None and current.done and not current.full and not current.ahead and self._is_due(current):
            if _has_unsynced_records(current):
                self.store.blocked_drops[self] = None
            else:
                self.fill(current)
        for segment in self.segments[:]:
            if not segment.full or not segment.done:
                continue
            if segment.keys and not self.leaving:
                continue
            if self.durable and segment.journal >= self.store.journal_needed and not self.leaving:
                self.store.blocked_drops[self] = None
                continue
            try:
                if not self.leaving and not self._may_go(segment):
                    continue
            except StoreFull:
                return
            if self.archive is not None and segment.count and not self.archive.has(self, segment):
                continue
            try:
                self.store.forget_entry(segment)
            except StoreFull:
                return
            self._keep()
            self.segments.remove(segment)
            self._unlink(segment)
        if self.leaving and not self.segments:
            self._remove()

    def keep_keys(self, counts: Sequence[int]) -> None:
        """Say how many messages of each segment have keys that the next start has to find again. The other segments may go."""
        for segment, count in zip(self.segments, counts, strict=True):
            segment.keys = count
        self.drop_settled()

    def wrote_keys(self, count):  # type: ignore[no-untyped-def]
        """Note that so many messages of the batch that was just written have keys. Their segment stays although it may be settled."""
        segment = self.segments[-1]
        segment.keys += count

    def let_go(self, offset):  # type: ignore[no-untyped-def]
        """Note that the key of one stored message is not needed any more. Returns whether a segment may be dropped because of that."""
        segment = self._keyed_segment
        if segment is None or segment.gone or not segment.base <= offset < segment.end:
            bases = [s.base for s in self.segments]
            segment = self._keyed_segment = self.segments[bisect_right(bases, offset) - 1]
        segment.keys -= 1
        return segment.keys == 0 and segment.full

    def _is_due(self, current: Segment) -> bool:
        """Whether a segment whose messages are all settled is to be sealed, although it is not full."""
        if current.size > (segfile.HEADER if self._room.short else ROLL_WHEN_SETTLED_BYTES):
            return True
        if self.archive is None or not current.count:
            return False
        age = self._clock.now_ms() - current.created_ms
        return not 0 <= age < ROLL_WHEN_SETTLED_MS  # less than 0: the clock was set back

    def _may_go(self, segment: Segment) -> bool:
        """Whether a segment may be unlinked: other files have to say durably which offset is next, and have the delivered mark."""
        if segment is self.segments[-1]:
            self._commits.wrote(self, self.create(self.next))
        if self.durable and not self.segments[-1].durable:
            return False  # this is called again when a sync has made that one durable
        if segment is self.mark_segment:
            rest = [s for s in self.segments if s is not segment and not s.linked]
            if rest and self.delivered_mark > rest[0].base:
                self.keep_mark(rest)
        return True

    def keep_mark(self, rest: list[Segment]) -> None:
        """Write the delivered mark again, into the settlement log of a segment that stays."""
        self.append_block([s for s in rest if s.base < self.delivered_mark][-1], NO_ENTRIES, self.delivered_mark)

    def _unlink(self, segment: Segment) -> None:
        acks = segment.acks
        self.store.going(segment)
        if not self.durable:
            self.store.removals.add(segment.size, partial(self._remove_transient, segment.base, acks is not None))
        elif segment.evidence:
            self.store.set_aside(self.directory, segment.base)
            self._remove_files(segment.base)
        else:  # the inventory has to forget it first, durably
            remove = partial(self.store.removals.add, segment.size, partial(self._remove_files, segment.base))
            self._commits.after_a_sync(remove)

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
            self._commits.unlink_later(self.directory, acks)

    def delete(self) -> None:
        """Unlink all files of a queue whose definition has been deleted. If there is no room to write that, the queue may come back."""
        self._keep()
        self._stop_writing()
        if self.archive is not None:
            self.trim()
            self.store.leaving[self] = None
            self.store.when_defined(self.leave, announced=False)
            return
        for segment in self.segments:
            segment.trim()
            self.store.dropped(segment)
        if self.segments and self.durable:
            # The definition has to be durably gone first: a power cut must not bring the queue back empty.
            self.store.when_defined(partial(self._remove_directory, self.segments), announced=False)
        elif self.segments:
            self._remove_directory(self.segments)
        self.segments = []
        self.store.forget(self)

    def leave(self) -> None:
        """Move the segments whose messages are all settled to the archive, and unlink all others: the queue is durably deleted."""
        self._keep()
        self.leaving = True
        self.store.leaving[self] = None
        for segment in self.segments[:]:
            if not segment.done or not segment.count:
                self.segments.remove(segment)
                self.store.dropped(segment)
            elif not segment.full:
                self.fill(segment)
        self.drop_settled()

    def _remove(self) -> None:
        self.store.forget(self)
        self.store.removals.add(0, partial(self.store.remove_queue, self.directory))

    def _remove_messages(self, base: int) -> None:
        """Unlink a segment, unless somebody has done so by hand."""
        path = paths.segment(self.directory, base)
        if self.store.disk.exists(path):
            self.store.disk.unlink(path)

    def _remove_directory(self, segments: list[Segment]) -> None:
        """Unlink all files of a queue that is gone, the large ones one by one."""
        for segment in segments:
            if segment.size > LARGE_BYTES:
                self.store.removals.add(segment.size, partial(self._remove_messages, segment.base))
        if self.durable:
            self.store.removals.add(0, partial(self.store.remove_queue, self.directory))
        else:
            self.store.removals.add(0, partial(self.store.disk.rmtree, self.directory))

    def trim(self) -> None:
        """Cut off the room that was reserved ahead, before the broker stops in order: a start would take it for damage then."""
        for segment in self.segments:
            if segment.trim():
                self._commits.wrote(self, segment)

    # -- reading ---------------------------------------------------------------------------------------------

    @property
    def synced_end(self) -> int:
        """Offsets below this one are durable on this machine (or were never written, or are settled), and the files know of them.

        Offsets that were skipped since the last write are not among them, because a start may use those again.
        """
        if not self.durable:
            return self.next
        if not self._commits.syncing:
            return self.segments[-1].end if self.segments else 0
        end = 0
        # a sync covers all segments with unsynced bytes, so all before a durable one are durable
        for segment in reversed(self.segments):
            if segment.durable:
                if segment.durable >= segment.size:
                    return end or segment.synced_end
                end = segment.synced_end
        return end

    @property
    def announced_end(self) -> int:
        """Peers may be told of offsets below this one: no crash, and no loss of this machine, gives them to other messages.

        The log keeps this number itself, because its segments are unlinked, and nothing in a segment that has just been made is announced.
        """
        return self._announced if self.durable and self._commits.syncing else self.synced_end

    def announced(self, end: int) -> None:
        """Note that a commit that covers the offsets below `end` has been announced."""
        if end > self._announced:
            self._announced = end

    def file_of(self, segment: Segment) -> File:
        """Return the file of a segment, and open it if that has not happened since the start."""
        if segment.file is None:
            segment.file = self.store.disk.open(paths.segment(self.directory, segment.base))
        return segment.file

    def quarantine(self, segment: Segment, why: str) -> None:
        """Keep a copy of a damaged segment, and raise the alarm."""
        self.store.quarantine(self, segment, why)

    def lease_ended(self, segment: Segment) -> None:
        """Close the file of a segment that has been dropped meanwhile, if nobody else reads from it."""
        self.store.lease_ended(segment)

    # -- start -----------------------------------------------------------------------------------------------

    def recover(self) -> Recovered:
        """Read what is on disk, at a start. The time grows with the number of segments, not of messages."""
        return Recovery(self).run()

    def found(self, segment: Segment) -> None:
        """Called for each segment that a start has found, when it has become the last one of `segments`."""
        segment.keys = int(self.keyed)


def _has_unsynced_records(segment: Segment) -> bool:
    """Whether what the journal has brought to the last segment is not durable here. Then no later one may be made.

    A power cut could take this segment and leave the later one. What the journal applies again would then come behind messages that were
    published after it, or not at all if a batch of the later segment knows of a later record.
    """
    return segment.durable < segment.journal_end

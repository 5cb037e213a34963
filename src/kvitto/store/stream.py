"""The messages of a stream on disk. None is settled: retention unlinks whole segments, the oldest first.

A segment is unlinked only when a later one is durable and the one before it is durably gone. So a power cut brings back at most the segment
that was unlinked last, and leaves no hole. Used by the broker's streams in place of `Log`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvitto.base.errors import StoreFull
from kvitto.base.limits import SEGMENT_BYTES
from kvitto.format.layouts import BATCH
from kvitto.store import segment as segfile
from kvitto.store.batch import BatchHeader
from kvitto.store.log import Log
from kvitto.store.offsets import Offsets
from kvitto.store.recovery import Recovered

if TYPE_CHECKING:
    from kvitto.store.disk import File
    from kvitto.store.segment import Segment
    from kvitto.store.store import Store

SEGMENT_BYTES_MIN = 64 << 10
"""No segment is smaller, whatever the stream's arguments say: retention removes one for each sync, and has to keep up."""
OPEN_MAX = 32
"""The files of at most this many sealed segments of one stream stay open."""


@dataclass(frozen=True)
class Retention:
    """When the oldest segment is removed. A limit of -1 does not apply. The segment that is being written always stays."""

    max_length: int = -1
    """Remove it if at least so many messages follow it."""
    max_bytes: int = -1
    """Remove it if the segments have more bytes than this."""
    max_age_ms: int = -1
    """Remove it if its last batch is older than this."""


class StreamLog(Log):
    flags = False

    def __init__(self, store: Store, queue_id: str, retention: Retention, segment_bytes: int = SEGMENT_BYTES) -> None:
        super().__init__(store, queue_id, True)
        self.segment_bytes = max(segment_bytes, SEGMENT_BYTES_MIN)
        self.retention = retention
        self.offsets = Offsets(store, self.directory, self._keep)
        self.on_drop: Callable[[], None] = lambda: None
        self._dropping = False
        self._open_files: deque[Segment] = deque()

    @property
    def first(self) -> int:
        """The lowest offset that the stream has."""
        return self.segments[0].base if self.segments else self.next

    # -- retention -------------------------------------------------------------------------------------------

    def drop_settled(self) -> None:
        """Remove the oldest segment if retention says so, and look at the next one once that is durable."""
        if self._dropping or len(self.segments) < 2 or not self._outlived() or not self.segments[-1].durable:
            return
        head = self.segments[0]
        if head.journal >= self.store.journal_needed:
            self.store.blocked_drops[self] = None
            return
        try:
            self.store.forget_entry(head)
        except StoreFull:
            return
        self._keep()
        del self.segments[0]
        self._unlink(head)
        if not head.leases:
            head.file = None
        self._dropping = True
        self.store.commits.when_synced(self._dropped)
        self.on_drop()

    def _dropped(self) -> None:
        self._dropping = False
        self.drop_settled()

    def _outlived(self) -> bool:
        """Whether retention removes the oldest segment."""
        keep, segments = self.retention, self.segments
        if 0 <= keep.max_length <= sum(segment.count for segment in segments[1:]):
            return True
        if 0 <= keep.max_bytes < sum(segment.size for segment in segments):
            return True
        due = self.age_due
        return due is not None and due <= self.store.clock.now_ms()

    @property
    def age_due(self) -> int | None:
        """Return the time in ms at which the oldest segment is too old, None if there is no such limit or it is the only segment."""
        if self.retention.max_age_ms < 0 or len(self.segments) < 2:
            return None
        last = self._last_time(self.segments[0])
        if last is None:  # it is damaged or has no batch; nothing was written to it after the next one was made
            last = self.segments[1].created_ms
        return last + self.retention.max_age_ms

    def _last_time(self, segment: Segment) -> int | None:
        """Return when the last batch of a segment was written, None if that cannot be read."""
        self.file_of(segment)
        found = None
        for head in self._headers(segment, segment.position_before(segment.end - 1)):
            found = head.time_ms
        return found

    def _headers(self, segment: Segment, position: int) -> Iterator[BatchHeader]:
        """Yield the headers of the batches from `position` on, where one begins. Damage ends them; a reader of the batch will find it."""
        file = self.file_of(segment)
        while position < segment.size:
            head = BatchHeader(file.read_at(position, BATCH.size), 0)
            if not head.length:
                return
            yield head
            position += head.length

    # -- reading ---------------------------------------------------------------------------------------------

    def offset_at(self, time_ms: int) -> int:
        """Return the first offset that was written at that time or later, `next` if there is none."""
        i = bisect_left(self.segments, time_ms, key=lambda segment: self._time_at(segment, segfile.HEADER))
        if i:
            segment = self.segments[i - 1]
            self.file_of(segment)
            positions = segment.positions()
            k = bisect_left(positions, time_ms, key=lambda position: self._time_at(segment, position))
            for head in self._headers(segment, positions[k - 1] if k else segfile.HEADER):
                if head.time_ms >= time_ms:
                    return head.first
        return self.segments[i].base if i < len(self.segments) else self.next

    def _time_at(self, segment: Segment, position: int) -> int:
        head = next(self._headers(segment, position), None)
        return 0 if head is None else head.time_ms

    # -- open files ------------------------------------------------------------------------------------------

    def file_of(self, segment: Segment) -> File:
        """Return the file of a segment, and open it if it has been closed since the segment was sealed."""
        was_closed = segment.file is None
        file = super().file_of(segment)
        if was_closed:
            self._idle(segment)
        return file

    def _idle(self, segment: Segment) -> None:
        """Note that a segment is only read from now on. Its file is closed when many others have been opened and nobody has a lease."""
        while len(self._open_files) >= OPEN_MAX:
            oldest = next((open_ for open_ in self._open_files if not open_.leases), None)
            if oldest is None:
                break
            self._open_files.remove(oldest)
            file, oldest.file = oldest.file, None
            self.store.commits.close(file)
        self._open_files.append(segment)

    def fill(self, current: Segment) -> None:
        super().fill(current)
        self.store.commits.when_clean(current, lambda: self._idle(current))

    # -- start and end ---------------------------------------------------------------------------------------

    def recover(self) -> Recovered:
        found = super().recover()
        self.offsets.load()
        return found

    def found(self, segment: Segment) -> None:
        """Let the file of the segment before it be closed, since not all files of a long stream may be open at once."""
        before = self.segments[-2] if len(self.segments) > 1 else None
        if before is not None and before.sealed and not before.settled and before not in self._open_files:
            self._idle(before)

    def trim(self) -> None:
        self.offsets.write()
        super().trim()

    def delete(self) -> None:
        remembered = self.offsets.on_disk
        self.offsets.close()
        if not self.segments and remembered:
            self.store.when_defined(lambda: self.store.remove_queue(self.directory), announced=False)
        super().delete()

"""A lease on the body of a stored message, which can be read in pieces until the lease ends.

The segment's file stays open meanwhile, even if the segment is unlinked or the queue is deleted. Used for bodies that are too large to be
read into memory at once.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from kvitto.format.layouts import BATCH, ENTRY, u32
from kvitto.store.batch import BatchHeader
from kvitto.store.segment import Segment

if TYPE_CHECKING:
    from kvitto.store.log import Log
    from kvitto.store.store import Store


class Lease:
    """Keeps a segment's file open, also when the segment has been unlinked."""

    def __init__(self, store: Store, segment: Segment, position: int, size: int) -> None:
        self._store = store
        self._part = segment
        self._position = position
        self.size = size
        """The bytes of the body."""
        segment.leases += 1

    def read(self, at: int, n: int) -> bytes:
        """Return n bytes of the body from `at` on."""
        assert self._part.file is not None
        return self._part.file.read_at(self._position + at, n)

    def end(self) -> None:
        """Give the lease back. Call it once."""
        self._part.leases -= 1
        self._store.lease_ended(self._part)


def lease_body(log: Log, offset: int) -> Lease | None:
    """Return a lease on the body of a message, None if the message has not been written yet."""
    i = bisect_right([s.base for s in log.segments], offset) - 1
    if i < 0 or offset >= log.segments[i].end:
        return None
    segment = log.segments[i]
    file = log.file_of(segment)
    at = segment.position_before(offset)
    while at < segment.size:
        head = BatchHeader(file.read_at(at, BATCH.size), 0)
        if not head.length or head.first > offset:
            return None
        if offset < head.end:
            index = at + BATCH.size
            bodies = index + ENTRY.size * head.count + head.meta_len
            entry = file.read_at(index + ENTRY.size * (offset - head.first), ENTRY.size)
            at, size = u32(entry, ENTRY.at["body"]), u32(entry, ENTRY.at["body_len"])
            return Lease(log.store, segment, bodies + at, size)
        at += head.length
    return None

"""Walks over the properties of all messages in a segment, without their bodies, for a start that needs to look into each message.

A batch is verified, unless its bodies are so large that they are not read. Where the file is damaged the walk goes on at the next place
that the segment's index names, and messages in between are passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from kvitto.format import batch_head, entry
from kvitto.format.layouts import BATCH, PREFIX
from kvitto.store.segment import HEADER
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.store.disk import File
    from kvitto.store.segment import Segment

BLOCK_BYTES = 4 << 20
CHUNK_BYTES = 1 << 20
LARGE_BYTES = 256 << 10
"""Of a batch that has more bytes than this, only index and meta data are read, and it is not verified."""

_HEAD = BATCH.size  # C variables when compiled
_PREFIX = PREFIX.size


def blocks(segment: Segment) -> list[tuple[int, int]]:
    """Return (start, end) of the parts of a segment, of about BLOCK_BYTES each. A batch begins at each start."""
    found, start = [], HEADER
    for at in segment.positions():
        if at - start >= BLOCK_BYTES:
            found.append((start, at))
            start = at
    return [*found, (start, segment.size)]


class PropertiesScan:
    """After `next` has returned True, the properties of a message lie in `chunk` at `props`, and `offset`, `time_ms` belong to it."""

    def __init__(self, segment: Segment, file: File, start: int, end: int) -> None:
        """Walk over the batches between two positions of the file, at which batches begin."""
        self.chunk = Buf(0)
        self.offset = 0
        self.time_ms = 0
        """The time of the message's batch."""
        self.props = self.props_len = 0
        self.damaged_at = -1
        """The position of the first batch that cannot be read, -1 if there is none."""
        self._segment = segment
        self._file = file
        self._end = end
        self._start = 0
        """The position in the file at which the chunk begins."""
        self._at = 0
        """Where the batch begins in the chunk."""
        self._following = start
        """The position of the next batch in the file."""
        self._first = 0
        self._count = self._meta_len = self._k = 0

    def next(self):  # type: ignore[no-untyped-def]
        """Go to the next message. Returns False behind the last one."""
        while True:
            while self._k < self._count:
                e = self._at + _HEAD + entry.SIZE * self._k
                message = entry.read(self.chunk.p, e)
                key_len = message.key_len
                self.props_len = message.props_len
                self.offset = self._first + self._k
                self._k += 1
                if message.meta + key_len + self.props_len <= self._meta_len:
                    self.props = self._at + _HEAD + entry.SIZE * self._count + message.meta + key_len
                    return True
            if self._following + _HEAD > self._end:
                return False
            if not self.take_batch():
                self._pass_over()

    def take_batch(self):  # type: ignore[no-untyped-def]
        """Begin with the next batch. Returns False if there is damage in its place."""
        self._count = self._k = 0
        at = self._following - self._start
        if at + _HEAD > self.chunk.n or at < 0:
            self.fill(self._following, CHUNK_BYTES)
            at = 0
        if at + _HEAD > self.chunk.n:
            return False
        head = batch_head.read(self.chunk.p, at)
        if not head.length or self._following + head.length > self._end:
            return False
        whole = head.length <= LARGE_BYTES
        need = head.length if whole else _HEAD + entry.SIZE * head.messages + head.meta_len
        if at + need > self.chunk.n:
            self.fill(self._following, CHUNK_BYTES if whole else need)
            at = 0
            if need > self.chunk.n:
                return False
        if whole:
            told = xxhash.xxh3_64_intdigest(self.chunk.view(at + _PREFIX, at + head.length), self._segment.salt)
            if told != head.checksum:
                return False
        self._first = head.first
        self.time_ms = head.time_ms
        self._at, self._meta_len, self._count = at, head.meta_len, head.messages
        self._following += head.length
        return True

    def fill(self, position: int, n: int) -> None:
        """Read up to n bytes from `position` on."""
        n = min(n, self._end - position)
        self.chunk.n = 0
        self.chunk.reserve(n)
        self.chunk.n = self._file.read_into(position, self.chunk.view(0, n))
        self._start = position

    def _pass_over(self) -> None:
        """Go on at the next place at which a batch is known to begin."""
        if self.damaged_at < 0:
            self.damaged_at = self._following
        self._following = min((at for at in self._segment.positions() if at > self._following), default=self._end)

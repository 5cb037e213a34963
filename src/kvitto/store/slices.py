"""Writes a large batch into its segment in slices, over several turns. The log calls it.

The header is written last, so that whatever ends the broker before leaves a torn tail, which the next start cuts. Until then the segment
does not count the batch, and nothing else may be written to the segment.
"""

from __future__ import annotations

import xxhash

from kvitto.base.errors import StoreFull
from kvitto.format.layouts import BATCH, CHECKSUM, PREFIX, bytes_of
from kvitto.store.batch import Batch
from kvitto.store.pieces import Pieces
from kvitto.store.segment import Segment


class Slices:
    def __init__(self, segment: Segment, batch: Batch) -> None:
        self.segment = segment
        self.batch = batch
        self._head = batch.head(segment.durable)
        self._pieces = Pieces(batch.areas(), xxhash.xxh3_64(memoryview(self._head)[PREFIX.size :], segment.salt))
        self._at = segment.size + BATCH.size

    @property
    def done(self) -> bool:
        return self._pieces.done

    def write(self, most: int) -> int:
        """Write about `most` more bytes, and the header behind the last of them. Returns how many bytes were written.

        Raises StoreFull; then nothing of the batch is in the file.
        """
        segment = self.segment
        assert segment.file is not None
        now, size = self._pieces.take(most)
        try:
            segment.ahead += segment.file.write_at(self._at, now)
            self._at += size
            segment.reserved = max(segment.reserved, self._at)
            if self.done:
                self._head[CHECKSUM] = bytes_of(self._pieces.checksum)
                size += segment.file.write_at(segment.size, [bytes(self._head)])
        except StoreFull:
            self.undo()
            raise
        if self.done:
            segment.ahead = 0
            segment.written(self.batch, self.batch.size())
        return size

    def undo(self) -> None:
        """Cut off what has been written. The batch will be written again from its beginning, or never."""
        assert self.segment.file is not None
        self.segment.ahead = self.segment.reserved = 0
        self.segment.file.truncate(self.segment.size)

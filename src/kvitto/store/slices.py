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
    def __init__(self, part: Segment, batch: Batch) -> None:
        self.part = part
        self.batch = batch
        self._head = batch.head(part.durable)
        self._pieces = Pieces(batch.areas(), xxhash.xxh3_64(memoryview(self._head)[PREFIX.size :], part.salt))
        self._at = part.size + BATCH.size

    @property
    def done(self) -> bool:
        return self._pieces.done

    def write(self, most: int) -> int:
        """Write about `most` more bytes, and the header behind the last of them. Returns how many bytes were written.

        Raises StoreFull; then nothing of the batch is in the file.
        """
        part = self.part
        assert part.file is not None
        now, size = self._pieces.take(most)
        try:
            part.ahead += part.file.write_at(self._at, now)
            self._at += size
            part.reserved = max(part.reserved, self._at)
            if self.done:
                self._head[CHECKSUM] = bytes_of(self._pieces.checksum)
                size += part.file.write_at(part.size, [bytes(self._head)])
        except StoreFull:
            self.undo()
            raise
        if self.done:
            part.ahead = 0
            part.written(self.batch, self.batch.size())
        return size

    def undo(self) -> None:
        """Cut off what has been written. The batch will be written again from its beginning, or never."""
        assert self.part.file is not None
        self.part.ahead = self.part.reserved = 0
        self.part.file.truncate(self.part.size)

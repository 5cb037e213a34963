"""Buffers with one checksum, of which each step takes some bytes.

Used for batches and journal records that are too large to be hashed and written in one turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import xxhash

SLICE_BYTES = 256 << 10
"""The bytes of a slice. Writing one takes about 0.25 ms, and several ms if the system has to find free memory for it."""
WHOLE_BYTES = 2 << 20
"""Up to this many bytes are written in one piece."""


class Pieces:
    def __init__(self, buffers: Iterable[bytes | bytearray | memoryview], digest: xxhash.xxh3_64) -> None:
        self._buffers = deque(memoryview(buffer).cast("B") for buffer in buffers)
        self._digest = digest

    @property
    def done(self) -> bool:
        """Whether all bytes have been taken."""
        return not self._buffers

    @property
    def checksum(self) -> int:
        """The checksum of what the digest began with and of all that has been taken."""
        return self._digest.intdigest()

    def take(self, most: int) -> tuple[list[memoryview], int]:
        """Take the next buffers, of about `most` bytes together. Returns them and the number of their bytes."""
        taken, size = [], 0
        while self._buffers and size < most:
            buffer = self._buffers.popleft()
            piece, rest = buffer[: most - size], buffer[most - size :]
            if len(rest):
                self._buffers.appendleft(rest)
            self._digest.update(piece)
            taken.append(piece)
            size += len(piece)
        return taken, size

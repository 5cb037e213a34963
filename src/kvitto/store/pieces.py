"""Buffers with one checksum, taken some bytes at a time: what is too large to be hashed and written in one turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import xxhash

SLICE_BYTES = 256 << 10
"""A slice has this many bytes. Writing one takes about 0.25 ms, and several ms if the system has to find free memory for it."""
WHOLE_BYTES = 2 << 20
"""Up to this many bytes are written in one piece."""


class Pieces:
    def __init__(self, buffers: Iterable[bytes | bytearray | memoryview], digest: xxhash.xxh3_64) -> None:
        self._buffers = deque(memoryview(buffer).cast("B") for buffer in buffers)
        self._digest = digest

    @property
    def done(self) -> bool:
        """Whether all has been taken."""
        return not self._buffers

    @property
    def checksum(self) -> int:
        """Of what the digest began with and what has been taken."""
        return self._digest.intdigest()

    def take(self, most: int) -> tuple[list[memoryview], int]:
        """The next buffers, of about `most` bytes together, and how many bytes they have."""
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

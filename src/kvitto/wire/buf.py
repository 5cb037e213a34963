"""A growable byte buffer, whose bytes compiled code reads and writes through a pointer.

`data[:n]` is its contents. `p` is a pointer to `data` when compiled and `data` itself when interpreted. It changes with
every change of capacity, so a caller must not keep `p` across a call of `reserve` or `shrink`.
"""

from __future__ import annotations

from collections.abc import Callable

FRESH = 4096
DETACHED_MAX = 1 << 20
WIDER_MAX = 2 << 20
"""The maximum number of bytes that `widen` adds ahead at one time."""
LARGE = 1 << 20
"""A buffer with more bytes than this is large: to copy it when it grows takes milliseconds."""
DISCARDED = 4 << 20
"""Memory of a buffer with more bytes than this is handed to the function that `discard_with` was given, if there is one."""
# in C when compiled (see buf.pxd), since buffers may outlive the names of the module when the process ends
_DISCARDED = DISCARDED
_take: Callable[[bytearray], None] | None = None


def discard_with(take: Callable[[bytearray], None] | None) -> None:
    """Have `take` called with large memory that a buffer does not need any more, since to free it at once takes milliseconds."""
    global _take
    _take = take


class Buf:
    def __init__(self, capacity: int = FRESH) -> None:
        self.cap = 0  # `__del__` asks for it, also if there is no memory for the rest
        self.data = bytearray(capacity)
        self.p = self.data
        self.cap = capacity
        self.n = 0

    def __del__(self) -> None:
        if self.cap > _DISCARDED and _take is not None:
            _take(self.data)

    def __len__(self) -> int:
        return self.n

    def __bool__(self) -> bool:
        """Return True, for an empty buffer too: only None means that there is no buffer."""
        return True

    def reserve(self, more: int) -> None:
        """Make space for `more` bytes behind the first `n`."""
        need = self.n + more
        if need > self.cap:
            self.grow(need)

    def grow(self, need: int) -> None:
        cap = self.cap or need
        while cap < need:
            cap += cap >> 1 if cap > 1 << 20 else cap + 64
        fresh = bytearray(cap)
        memoryview(fresh)[: self.n] = memoryview(self.data)[: self.n]
        self.data = fresh
        self.p = self.data
        self.cap = cap

    def reserve_in_place(self, more: int) -> None:
        """Do what `reserve` does, but widen a large buffer, which is then neither copied nor cleared again."""
        need = self.n + more
        if need > self.cap:
            if self.n > LARGE:
                self.widen(need)
            else:
                self.grow(need)

    def widen(self, need: int) -> None:
        """Grow in place, to at most an eighth more than `need`: a large buffer is neither copied nor cleared again."""
        try:
            self.data.extend(bytes(max(need - self.cap, min(self.cap >> 3, WIDER_MAX))))
        except BufferError:  # another object has a view of it
            self.grow(need)
            return
        self.p = self.data
        self.cap = len(self.data)

    def add(self, source: bytes | bytearray | memoryview) -> None:
        k = len(source)
        self.reserve(k)
        # a slice of the bytearray itself would be copied once more
        memoryview(self.data)[self.n : self.n + k] = source
        self.n += k

    def drop(self, k: int) -> None:
        """Remove the first `k` bytes and move the rest to the front."""
        rest = self.n - k
        if rest:
            self.data[:rest] = self.data[k : self.n]
        self.n = rest

    def clear(self, keep: int = 1 << 20) -> None:
        """Remove all bytes. A buffer with a capacity of more than `keep` bytes releases its memory."""
        self.n = 0
        if self.cap > keep:
            self._renew(FRESH)

    def detach(self) -> None:
        """Make a new empty buffer, and leave the old bytes to the objects that have a view of them."""
        self.n = 0
        self._renew(min(self.cap, DETACHED_MAX))

    def _renew(self, capacity: int) -> None:
        if self.cap > _DISCARDED and _take is not None:
            _take(self.data)
        self.data = bytearray(capacity)
        self.p = self.data
        self.cap = capacity

    def view(self, start: int = 0, end: int = -1) -> memoryview:
        return memoryview(self.data)[start : self.n if end < 0 else end]

    def tobytes(self, start: int = 0, end: int = -1) -> bytes:
        return bytes(self.view(start, end))

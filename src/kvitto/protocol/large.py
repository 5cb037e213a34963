"""Large bodies: they are not copied into the output, since the peer may not read it, but encoded in pieces as the socket takes them.

The bytes come from the segment, which a lease keeps open whatever happens to the message meanwhile. Until the message is written,
which is done in the turn that delivers it unless the disk is full, they come from the batch in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvitto.base.errors import INTERNAL_ERROR, ConnectionError_, StoreError
from kvitto.store.batch import Body, Stored
from kvitto.store.lease import Lease, lease_body
from kvitto.wire.buf import Buf
from kvitto.wire.spec import FRAME_BODY, FRAME_END, FRAME_OVERHEAD

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue

LARGE = 1 << 20
"""Bytes above which a body is not copied."""
PIECE = 256 * 1024
"""Bytes that are read and encoded at once."""

_END = bytes([FRAME_END])


class Streamed:
    """A large body in memory that is sent in pieces. Nobody may change its bytes."""

    def __init__(self, channel: int, body: memoryview) -> None:
        self.channel = channel
        self.size = len(body)
        self._body = body
        self._at = 0

    @property
    def is_out(self) -> bool:
        return self._at == self.size

    @property
    def memory(self) -> int:
        """The bytes of memory that it occupies."""
        return len(self._body)

    def encode(self, frame_max: int) -> memoryview:
        """Return the next frames."""
        most = frame_max - FRAME_OVERHEAD
        n = min(self.size - self._at, max(PIECE // most, 1) * most)
        data = self._next(n)
        self._at += n
        head = bytes([FRAME_BODY]) + self.channel.to_bytes(2, "big")
        parts: list[bytes | memoryview] = []
        for at in range(0, n, most):
            part = memoryview(data)[at : at + most]
            parts += (head, len(part).to_bytes(4, "big"), part, _END)
        return memoryview(b"".join(parts))

    def _next(self, n: int) -> bytes | memoryview:
        return self._body[self._at : self._at + n]

    def end(self) -> None:
        """Release the body: all of it has been sent, or the rest never will be."""
        self._body = memoryview(b"")


class LargeBody(Streamed):
    """The body of a delivery. `settles`: nobody will acknowledge it, so it is settled when the socket has taken all of it."""

    def __init__(self, channel: int, queue: Queue, offset: int, body: memoryview | Body, settles: bool) -> None:
        if isinstance(body, Stored):
            in_memory = memoryview(b"")
        else:
            in_memory = body.view() if isinstance(body, Buf) else memoryview(body)
        super().__init__(channel, in_memory)
        self.size = len(body)
        self._queue = queue
        self._offset = offset
        self._settles = settles
        self._lease: Lease | None = None
        self.find()
        if self._lease is None and len(self._body) < self.size:
            raise StoreError(f"the segment of message {offset} cannot be read any more")

    def find(self) -> None:
        """Read from the segment from now on, if the message has been written; then its memory is free."""
        if self._lease is None:
            self._lease = lease_body(self._queue.log, self._offset)
            if self._lease is not None:
                self._body = memoryview(b"")

    def keep(self) -> None:
        """Copy the bytes, because the memory that they come from is about to be reused."""
        if self._lease is None:
            self._body = memoryview(bytes(self._body))

    def _next(self, n: int) -> bytes | memoryview:
        return super()._next(n) if self._lease is None else self._read(self._lease, n)

    def _read(self, lease: Lease, n: int) -> bytes:
        """Return the next n bytes. Raises ConnectionError_ 541 if they cannot be read, because the peer waits for the rest of the body."""
        try:
            data = lease.read(self._at, n)
            if len(data) == n:
                return data
            error = StoreError(f"the segment of message {self._offset} is shorter than its index says")
        except StoreError as failed:
            error = failed
        self._queue.contain(error)
        raise ConnectionError_(INTERNAL_ERROR, "a message cannot be read any more, see the broker's log")

    def end(self) -> None:
        """The body has been sent, and the message is settled; or it never will be, and a message without ack returns to its queue."""
        if self._settles:
            self._queue.unacked_bytes -= self.size
        if self._settles and self.is_out:
            self._queue.ack(self._offset, 1)
        elif self._settles:
            self._queue.requeue(self._offset, 1, self.size)
            self._queue.mark_dirty()
        if self._lease is not None:
            self._lease.end()
            self._lease = None
        super().end()

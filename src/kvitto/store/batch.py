"""A batch: messages with consecutive offsets, as a tail that a queue builds in memory or as a window on what was read from a segment.

The index, the meta data and the bodies are in memory as docs/formats.md has them on disk, so a batch is written and read without a change.
A tail owns three buffers; a window points with all three into one chunk of the file. Queues call `add` and the methods that are declared
in `batch.pxd` for each message: they make no Python object. The log writes tails (`seal`) and opens windows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from xxhash import xxh3_64, xxh3_64_intdigest

from kvitto.base.errors import StoreError
from kvitto.format import batch_head, entry, prefix
from kvitto.format.layouts import BATCH, BATCH_MAGIC
from kvitto.store import pieces
from kvitto.wire import bits, check
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.store.disk import File

HEADER = BATCH.size
SMALL = 4096
"""A batch of at most this many bytes is copied into one buffer to be written."""

_HEADER = HEADER  # C variables when compiled
# bits in the first byte of the property flags
_HAS_TYPE, _HAS_ENCODING, _HAS_HEADERS, _HAS_MODE, _HAS_PRIORITY = 0x80, 0x40, 0x20, 0x10, 0x08


class Batch:
    def __init__(self) -> None:
        self.index = Buf(0)
        self.meta = Buf(0)
        self.body = Buf(0)
        self.index_at = 0
        self.meta_at = 0
        self.body_at = 0
        self.first = 0
        self.count = 0
        self.time_ms = 0
        self.opened_us = 0
        """The monotonic clock when a tail was opened, in microseconds. It is 0 for what was read from a file."""
        self.journal = 0
        self.shared = False
        """The bodies are in a buffer that other batches may use too."""
        self.stored: Stored | None = None
        """The body of the only message, if it is on disk and was not read into memory."""

    def start(self, first: int, time_ms: int, opened_us: int = 0) -> None:
        """Begin an empty tail at offset `first`."""
        self.first = first
        self.time_ms = time_ms
        self.opened_us = opened_us
        self.count = 0
        self.journal = 0
        self.index.clear()
        self.meta.clear()
        if self.shared:
            self.body, self.shared = Buf(0), False
        self.body.clear()

    def release(self) -> None:
        """Free large buffers, before the batch waits for its next use."""
        self.index.clear(1 << 16)
        self.meta.clear(1 << 16)
        if self.shared:
            self.body, self.shared = Buf(0), False
        self.body.clear(1 << 16)

    def add(self, key_p, key, key_len, props_p, props, props_len, body_p, body, body_len, ttl_ms, flags):  # type: ignore[no-untyped-def]
        """Copy a message into this tail.

        `key`: exchange and routing key as short strings. `props`: the property flags and list. Each comes as (buffer, position, length).
        `ttl_ms`: counts from the time of the batch on; less than 0 if the message has no time to live.
        """
        index = self.index
        meta = self.meta
        if index.n + entry.SIZE > index.cap:
            index.grow(index.n + entry.SIZE)
        if meta.n + key_len + props_len > meta.cap:
            meta.grow(meta.n + key_len + props_len)
        e = index.n
        m = meta.n
        b = self.body.n
        entry.put(index.p, e, m, b, body_len, props_len, key_len)
        entry.put_flags(index.p, e, ttl_ms, flags)
        bits.copy(meta.p, m, key_p, key, key_len)
        bits.copy(meta.p, m + key_len, props_p, props, props_len)
        index.n = e + entry.SIZE
        meta.n = m + key_len + props_len
        if body_len:
            if b + body_len > self.body.cap:
                self.body.grow(b + body_len)
            bits.copy(self.body.p, b, body_p, body, body_len)
            self.body.n = b + body_len
        self.count += 1

    def add_whole(self, key: bytes, props: bytes, body: Buf, ttl_ms: int, flags: int) -> None:
        """Add the only message of this batch without a copy of its body, which others may have too: nobody may change it any more."""
        self.add(key, 0, len(key), props, 0, len(props), key, 0, 0, ttl_ms, flags)
        entry.put_body(self.index.p, 0, 0, body.n)
        self.body, self.shared = body, True

    def fetch(self) -> None:
        """Read the body into memory if it is only on disk."""
        if self.stored is not None:
            offset = entry.body(self.index.p, self.index_at)
            self.body, self.body_at = Buf(0), -offset
            self.body.add(self.stored.read())
            self.stored = None

    def same_key(self, i: int, n: int) -> int:
        """How many of the messages i .. i+n-1 have the key of the first of them, and no flags."""
        p = self.index.p
        e = self.index_at + entry.SIZE * i
        first = self.meta_at + entry.meta(p, e)
        key_len = entry.key_len(p, e)
        k = 0
        while k < n:
            e = self.index_at + entry.SIZE * (i + k)
            if entry.flags(p, e) or entry.key_len(p, e) != key_len:
                break
            if not bits.same(self.meta.p, first, self.meta.p, self.meta_at + entry.meta(p, e), key_len):
                break
            k += 1
        return k

    def alike(self, i: int, n: int) -> int:
        """How many of the messages i .. i+n-1 have the key of the first of them, no flags, and no property that the broker acts on."""
        n = self.same_key(i, n)
        k = 0
        while k < n:
            message = entry.read(self.index.p, self.index_at + entry.SIZE * (i + k))
            m = self.meta_at + message.meta + message.key_len
            if check.check_properties(self.meta.p, m, message.props_len):
                break
            k += 1
        return k

    def run_bytes(self, i: int, n: int) -> int:
        """Bytes that the messages i .. i+n-1 take: index, meta data and bodies."""
        total = 0
        for k in range(i, i + n):
            message = entry.read(self.index.p, self.index_at + entry.SIZE * k)
            total += entry.SIZE + message.key_len + message.props_len + message.body_len
        return total

    def put(self, key: bytes, props: bytes, body: bytes, ttl_ms: int, flags: int) -> None:
        """`add` for callers that have bytes objects. Large buffers grow in place."""
        self.index.reserve_in_place(entry.SIZE)
        self.meta.reserve_in_place(len(key) + len(props))
        self.body.reserve_in_place(len(body))
        self.add(key, 0, len(key), props, 0, len(props), body, 0, len(body), ttl_ms, flags)

    def put_slices(self, key: bytes, props: bytes, body: Buf, ttl_ms: int, flags: int) -> Iterator[int]:
        """`put` for a large body, copied slice by slice. Yields the size of each slice. Nothing else may be put until the last slice."""
        self.index.reserve_in_place(entry.SIZE)
        self.meta.reserve_in_place(len(key) + len(props))
        start = self.body.n
        for at in range(0, body.n, pieces.SLICE_BYTES):
            piece = body.view(at, min(at + pieces.SLICE_BYTES, body.n))
            self.body.reserve_in_place(len(piece))
            self.body.add(piece)
            yield len(piece)
        e = self.index.n
        self.add(key, 0, len(key), props, 0, len(props), key, 0, 0, ttl_ms, flags)
        entry.put_body(self.index.p, e, start, body.n)

    def copy_to(self, other: Batch, i: int, n: int) -> None:
        """Add the messages i .. i+n-1, which have no flags, to another tail."""
        self.fetch()
        meta, body = self.meta, self.body
        for k in range(i, i + n):
            message = entry.read(self.index.p, self.index_at + entry.SIZE * k)
            m = self.meta_at + message.meta
            key_len = message.key_len
            props_len = message.props_len
            b = self.body_at + message.body
            other.add(meta.p, m, key_len, meta.p, m + key_len, props_len, body.p, b, message.body_len, -1, 0)

    def take(self, count: int, index: bytes, meta: bytes, body: bytes) -> None:
        """Become a tail with these areas, as a record of the journal has them."""
        self.index.add(index)
        self.meta.add(meta)
        self.body.add(body)
        self.count = count

    def size(self) -> int:
        """Bytes that this tail takes on disk."""
        return _HEADER + self.index.n + self.meta.n + self.body.n

    def own_bytes(self) -> int:
        """Bytes that it takes in memory, without the body of a message of the journal, which it shares with other queues."""
        return self.index.n + self.meta.n + (0 if self.shared and self.journal else self.body.n)

    def body_len(self, i: int) -> int:
        return entry.body_len(self.index.p, self.index_at + entry.SIZE * i)

    def ttl_of(self, i: int) -> int:
        """Time to live of message `i` in ms, from the time of the batch on; -1 if it has none."""
        return entry.ttl_ms(self.index.p, self.index_at + entry.SIZE * i)

    def expires_at(self, i: int) -> int:
        """Wall time in ms at which message `i` expires; -1 if it never does."""
        ttl_ms = self.ttl_of(i)
        return -1 if ttl_ms < 0 else self.time_ms + ttl_ms

    def live_run(self, i: int, n: int, now_ms: int) -> int:
        """How many of the messages i .. i+n-1 come before the first one that has expired."""
        k = 0
        while k < n:
            ttl_ms = entry.ttl_ms(self.index.p, self.index_at + entry.SIZE * (i + k))
            if ttl_ms >= 0 and self.time_ms + ttl_ms <= now_ms:
                break
            k += 1
        return k

    def body_bytes(self, i: int, n: int) -> int:
        """Sum of the body lengths of n messages from i on."""
        total = 0
        for k in range(i, i + n):
            total += entry.body_len(self.index.p, self.index_at + entry.SIZE * k)
        return total

    def priority_of(self, i: int) -> int:
        """The priority in the properties of message `i`; 0 without one, or where the properties end too early."""
        message = entry.read(self.index.p, self.index_at + entry.SIZE * i)
        m = self.meta_at + message.meta + message.key_len
        end = m + message.props_len
        if end - m < 3:
            return 0
        flags = self.meta.p[m]
        if not flags & _HAS_PRIORITY:
            return 0
        m += 2
        if flags & _HAS_TYPE and m < end:
            m += 1 + self.meta.p[m]
        if flags & _HAS_ENCODING and m < end:
            m += 1 + self.meta.p[m]
        if flags & _HAS_HEADERS:
            if m + 4 > end:
                return 0
            m += 4 + bits.be32(self.meta.p, m)
        if flags & _HAS_MODE:
            m += 1
        return self.meta.p[m] if m < end else 0

    def parts(self, i: int) -> tuple[bytes, bytes, Body, int]:
        """Like `message`, but a large body is not copied. It is a Buf that nobody may change, or a `Stored`, which can read it."""
        if self.stored is None and not self.shared:
            return self.message(i)
        key, props = self.key_and_props(0)
        body = self.body if self.stored is None else self.stored
        return key, props, body, self.flags_of(0)

    def viewed(self, i: int) -> tuple[bytes, bytes, memoryview, int]:
        """Like `message`, but the body is a view. The batch must not change while the view is used."""
        e = self.index_at + entry.SIZE * i
        message = entry.read(self.index.p, e)
        m = self.meta_at + message.meta
        b = self.body_at + message.body
        key_len = message.key_len
        meta = self.meta.tobytes(m, m + key_len + message.props_len)
        body = self.body.view(b, b + message.body_len)
        return meta[:key_len], meta[key_len:], body, entry.flags(self.index.p, e)

    def message(self, i: int) -> tuple[bytes, bytes, bytes, int]:
        """(key, props, body, flags) of message `i`, as copies. For rare events."""
        self.fetch()
        key, props = self.key_and_props(i)
        message = entry.read(self.index.p, self.index_at + entry.SIZE * i)
        b = self.body_at + message.body
        return key, props, self.body.tobytes(b, b + message.body_len), self.flags_of(i)

    def key_and_props(self, i: int) -> tuple[bytes, bytes]:
        """Key and properties of message `i`."""
        message = entry.read(self.index.p, self.index_at + entry.SIZE * i)
        m = self.meta_at + message.meta
        meta = self.meta.tobytes(m, m + message.key_len + message.props_len)
        return meta[: message.key_len], meta[message.key_len :]

    def flags_of(self, i: int) -> int:
        return entry.flags(self.index.p, self.index_at + entry.SIZE * i)

    def areas(self) -> list[memoryview]:
        """The buffers that are written behind the header."""
        return [self.index.view(), self.meta.view(), self.body.view()]

    def head(self, durable: int) -> bytearray:
        """The header, in which the checksum is still missing. `durable` as in docs/formats.md."""
        head = bits.zeros(_HEADER)
        meta_len, body_len = self.meta.n, self.body.n
        batch_head.put(
            head, self.size(), self.first, self.time_ms, self.count, meta_len, body_len, self.journal, durable
        )
        return head

    def seal(self, durable: int, salt: int) -> list[bytes | bytearray | memoryview]:
        """The tail as buffers that are to be written one behind the other. `durable` and `salt` as in docs/formats.md."""
        if self.size() <= SMALL:
            return [self._seal_whole(durable, salt)]
        head, parts = self.head(durable), self.areas()
        digest = xxh3_64(memoryview(head)[prefix.SIZE :], salt)
        for part in parts:
            digest.update(part)
        prefix.put_checksum(head, digest.intdigest())
        return [bytes(head), *parts]

    def _seal_whole(self, durable: int, salt: int) -> bytearray:
        """The same in one buffer: for few messages several buffers cost more than to copy them."""
        whole = bits.zeros(self.size())
        batch_head.put(
            whole, len(whole), self.first, self.time_ms, self.count, self.meta.n, self.body.n, self.journal, durable
        )
        at = _HEADER
        bits.copy(whole, at, self.index.p, 0, self.index.n)
        at += self.index.n
        bits.copy(whole, at, self.meta.p, 0, self.meta.n)
        at += self.meta.n
        bits.copy(whole, at, self.body.p, 0, self.body.n)
        prefix.put_checksum(whole, xxh3_64_intdigest(bits.piece(whole, prefix.SIZE, len(whole) - prefix.SIZE), salt))
        return whole

    def open(self, chunk: Buf, at: int, header: BatchHeader, stored: Stored | None = None) -> None:
        """Make this batch a window on the batch that `header` describes, at `at` in `chunk`. `stored` is the body if it is not there."""
        self.stored = stored
        self.index = self.meta = self.body = chunk
        self.index_at = at + HEADER
        self.meta_at = self.index_at + entry.SIZE * header.count
        self.body_at = self.meta_at + header.meta_len
        self.first = header.first
        self.count = header.count
        self.time_ms = header.time_ms
        self.opened_us = 0
        self.journal = header.journal

    def open_part(self, chunk: Buf, header: BatchHeader, i: int, n: int, stored: Stored | None = None) -> None:
        """Make this batch a window on the messages i .. i+n-1 of a batch on disk.

        Their index entries, their meta data and their bodies lie one behind the other in `chunk`. `stored` is the body if it is not there.
        """
        self.open(chunk, -HEADER, header, stored)
        first = entry.read(self.index.p, 0)
        last = entry.read(self.index.p, entry.SIZE * (n - 1))
        meta_end = last.meta + last.key_len + last.props_len
        self.meta_at = entry.SIZE * n - first.meta
        self.body_at = self.meta_at + meta_end - first.body
        self.first = header.first + i
        self.count = n


class Stored:
    """The body of a message that is on disk, and too large to be read at once."""

    def __init__(self, file: File, position: int, size: int) -> None:
        self._file = file
        self._position = position
        self._size = size

    def __len__(self) -> int:
        return self._size

    def read(self) -> bytes:
        """Read all of it at once. Raises StoreError if the file has become shorter."""
        return self._read(0, self._size)

    def take(self) -> Generator[None, None, Buf]:
        """Read the body slice by slice into a buffer that nobody may change. Raises StoreError if the file has become shorter.

        The caller has to keep the file open.
        """
        body = Buf(0)
        while body.n < self._size:
            data = self._read(body.n, min(pieces.SLICE_BYTES, self._size - body.n))
            body.reserve_in_place(len(data))
            body.add(data)
            yield
        return body

    def _read(self, at: int, n: int) -> bytes:
        data = self._file.read_at(self._position + at, n)
        if len(data) != n:
            raise StoreError(f"{self._file.path} is shorter than its index says")
        return data


Body = bytes | Buf | Stored
"""The body of a message: bytes, or a buffer that nobody may change if it is large, or a `Stored` if it is only on disk."""


class BatchHeader:
    """The fixed part of a batch on disk. `length` is 0 where no batch can begin."""

    __slots__ = ("checksum", "count", "durable", "first", "journal", "length", "meta_len", "time_ms", "body_len")

    def __init__(self, data: bytearray | memoryview | bytes, at: int) -> None:
        self.length = 0
        if len(data) - at < HEADER:
            return
        head = BATCH.read(data, at)
        length = HEADER + entry.SIZE * head.messages + head.meta_len + head.body_len
        if head.magic != BATCH_MAGIC or head.length != length or not head.messages or head.time_ms >> 63:
            return
        self.length = length
        self.checksum = head.checksum
        self.first = head.first
        self.time_ms = head.time_ms
        self.count = head.messages
        self.meta_len = head.meta_len
        self.body_len = head.body_len
        self.journal = head.journal
        self.durable = head.durable

    @property
    def end(self) -> int:
        return self.first + self.count


def whole_before(chunk, n, offset):  # type: ignore[no-untyped-def]
    """Return where the batches end that lie at the begin of a chunk of n bytes, complete, and hold only messages before `offset`."""
    at = 0
    while at + batch_head.SIZE <= n:
        head = batch_head.read(chunk.p, at)
        if not head.length or at + head.length > n or head.first + head.messages > offset:
            break
        at += head.length
    return at


def verify(data: bytearray | memoryview | bytes, at: int, header: BatchHeader, salt: int) -> bool:
    """Whether the batch of `header`, wholly in `data` at `at`, carries the checksum that it has in the segment with this salt."""
    view = memoryview(data)[at + prefix.SIZE : at + header.length]
    return bool(xxh3_64_intdigest(view, salt) == header.checksum)

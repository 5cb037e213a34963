"""Received messages as columns, and the two counters that a fast client needs: unconfirmed publishes, latencies.

A column of byte strings is one buffer and an array of end offsets, the form that Arrow takes without a copy. No Python
object is made per message until somebody asks for one. Filled by `codec.Scanner`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from kvitto.wire import bits
from kvitto.wire.buf import Buf
from kvitto.wire.properties import Properties

COLUMN_BYTES_MAX = (1 << 31) - 1
"""32-bit offsets are what Arrow's `binary` has; a batch ends before that."""

_FINE = 32
"""Steps per power of two in a histogram: a value is known to about 3 %."""


class Delivery(NamedTuple):
    """One message as Python objects."""

    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    properties: Properties
    body: bytes


class Column:
    """Byte strings, one after the other in `data`; `ends` holds their n + 1 borders as little-endian u32."""

    def __init__(self) -> None:
        self.data = Buf(4096)
        self.ends = Buf(1024)
        self.ends.add(b"\0\0\0\0")

    def put(self, p: bytearray, i: int, n: int) -> int:
        """Append p[i:i+n] as the next string."""
        data = self.data
        ends = self.ends
        if data.n + n > data.cap:
            data.reserve(n)
        bits.copy(data.p, data.n, p, i, n)
        data.n += n
        if ends.n + 4 > ends.cap:
            ends.reserve(4)
        bits.put_le32(ends.p, ends.n, data.n)
        ends.n += 4
        return 0

    def __len__(self) -> int:
        return self.ends.n // 4 - 1

    def __getitem__(self, k: int) -> bytes:
        if not 0 <= k < len(self):
            raise IndexError(k)
        start, end = self.ends.view(4 * k, 4 * k + 8).cast("I")
        return self.data.tobytes(start, end)

    def tolist(self) -> list[bytes]:
        """All strings as bytes objects."""
        data = self.data.tobytes()
        ends = self.ends.view().cast("I").tolist()
        return [data[start:end] for start, end in pairwise(ends)]

    def buffers(self) -> tuple[memoryview, memoryview]:
        """(borders as u32, data): views of this column, valid as long as it lives and is not filled further."""
        return self.ends.view(), self.data.view()


class Batch:
    """Messages received, in order. `tags`: delivery tags, little-endian u64; `flags`: a byte each, 1 = redelivered."""

    def __init__(self) -> None:
        self.count = 0
        self.tags = Buf(1024)
        self.flags = Buf(256)
        self.consumer_tags = Column()
        self.exchanges = Column()
        self.routing_keys = Column()
        self.properties = Column()
        self.bodies = Column()

    def add(self, head: Buf, props: Buf, p: bytearray, i: int, n: int) -> int:
        """Append a basic.deliver payload, its properties and the body p[i:i+n]; not 0 if the payload is malformed."""
        h = head.p
        c = h[4]
        t = 5 + c
        if t + 10 > head.n:
            return 502
        e = h[t + 9]
        r = t + 10 + e
        if r >= head.n or r + 1 + h[r] != head.n:
            return 502
        tags = self.tags
        tags.reserve(8)
        bits.put_le64(tags.p, tags.n, bits.be64(h, t))
        tags.n += 8
        flags = self.flags
        flags.reserve(1)
        flags.p[flags.n] = h[t + 8] & 1
        flags.n += 1
        self.consumer_tags.put(h, 5, c)
        self.exchanges.put(h, t + 10, e)
        self.routing_keys.put(h, r + 1, h[r])
        self.properties.put(props.p, 0, props.n)
        self.bodies.put(p, i, n)
        self.count += 1
        return 0

    def __len__(self) -> int:
        return self.count

    def delivery_tags(self) -> list[int]:
        """The delivery tags; of a `log.read` each is the message's offset + 1."""
        return self.tags.view().cast("Q").tolist()

    def delivery(self, k: int) -> Delivery:
        """Message `k` as Python objects."""
        return Delivery(
            self.consumer_tags[k].decode(),
            self.tags.view(8 * k, 8 * k + 8).cast("Q")[0],
            bool(self.flags.data[k]),
            self.exchanges[k].decode("utf-8", "surrogateescape"),
            self.routing_keys[k].decode("utf-8", "surrogateescape"),
            Properties.decode(self.properties[k]),
            self.bodies[k],
        )

    def __iter__(self) -> Iterator[Delivery]:
        return (self.delivery(k) for k in range(self.count))


class Window:
    """Which publishes of a channel wait for their confirm. Cost per message is flat in the number outstanding (C9)."""

    def __init__(self) -> None:
        self.ring = Buf(4096)
        self.mask = 4095
        self.low = 1
        """Lowest tag that is not confirmed."""
        self.next = 1
        """Tag of the next publish."""
        self.outstanding = 0
        self.acked = 0
        self.nacked = 0
        self.unexpected = 0
        """Confirms for a tag that was not waiting: a broker's mistake."""

    def sent(self, count: int) -> int:
        """Note `count` more publishes; the tag of the first of them."""
        first = self.next
        if first + count - self.low > self.mask:
            self.grow(first + count - self.low)
        self.next = first + count
        self.outstanding += count
        return first

    def grow(self, need: int) -> None:
        """A larger ring; the marks of confirmed tags above `low` move over."""
        size = self.mask + 1
        while size <= need:
            size *= 2
        old = self.ring
        self.ring = Buf(size)
        for tag in range(self.low, self.next):
            self.ring.data[tag & (size - 1)] = old.data[tag & self.mask]
        self.mask = size - 1

    def settle(self, tag: int, multiple: int, ok: int) -> int:
        """Take one confirm; the number of publishes that it settled."""
        ring = self.ring.p
        mask = self.mask
        settled = 0
        if tag >= self.next or (tag < self.low and not (multiple and tag == 0)):
            self.unexpected += 1
            return 0
        if multiple:
            last = tag if tag else self.next - 1
            k = self.low
            while k <= last:
                if ring[k & mask]:
                    ring[k & mask] = 0
                else:
                    settled += 1
                k += 1
            self.low = last + 1
        elif ring[tag & mask]:
            self.unexpected += 1
            return 0
        else:
            ring[tag & mask] = 1
            settled = 1
        k = self.low
        while k < self.next and ring[k & mask]:
            ring[k & mask] = 0
            k += 1
        self.low = k
        self.outstanding -= settled
        if ok:
            self.acked += settled
        else:
            self.nacked += settled
        return settled

    def unconfirmed(self) -> list[int]:
        """The tags that wait, ascending: what has to be published again after a lost connection."""
        data, mask = self.ring.data, self.mask
        return [tag for tag in range(self.low, self.next) if not data[tag & mask]]


class Latencies:
    """A histogram of nanoseconds: fixed memory, percentiles to about 3 %."""

    def __init__(self) -> None:
        self.counts = Buf(8 * _FINE * 64)
        self.total = 0
        self.largest = 0

    def add(self, value: int) -> int:
        """Count one value; a negative one counts as 0."""
        v = value if value > 0 else 0
        if v > self.largest:
            self.largest = v
        e = 0
        while v >= 2 * _FINE:
            v >>= 1
            e += 1
        i = 8 * (e * _FINE + v)
        bits.put_le64(self.counts.p, i, bits.le64(self.counts.p, i) + 1)
        self.total += 1
        return 0

    def percentile(self, share: float) -> int:
        """The value in ns that `share` (0..1) of all values do not exceed; 0 without values."""
        need = share * self.total
        seen = 0
        for i, count in enumerate(memoryview(self.counts.data).cast("Q")):
            seen += count
            if count and seen >= need:
                e = max(i // _FINE - 1, 0)
                return min((i - e * _FINE + 1 << e) - 1, self.largest)
        return 0

    def merge(self, other: Latencies) -> None:
        """Add the counts of another histogram."""
        mine = memoryview(self.counts.data).cast("Q")
        for i, count in enumerate(memoryview(other.counts.data).cast("Q")):
            mine[i] += count
        self.total += other.total
        self.largest = max(self.largest, other.largest)

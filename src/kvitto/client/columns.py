"""Messages as columns, and the two counters of a fast client: unconfirmed publishes and latencies.

A column of byte strings is one buffer and an array of end offsets, which Arrow can use without a copy. No Python object
is made per message unless a caller asks for one. `codec.Scanner` fills the columns of received messages. Columns to
send are made of Arrow's buffers, and property lists of a column for each field.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from kvitto.wire import bits
from kvitto.wire.buf import Buf
from kvitto.wire.properties import Properties

COLUMN_BYTES_MAX = (1 << 31) - 1
"""Arrow's `binary` has 32-bit offsets; a batch ends before this size."""

_FINE = 32
"""The steps per power of two in a histogram: a value is exact to about 3 %."""


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

    @classmethod
    def of(cls, ends: bytes | bytearray | memoryview, data: bytes | bytearray | memoryview) -> Column:
        """Return a column with a copy of these borders (little-endian u32) and data. Raise ValueError if they do not
        fit together."""
        column = cls()
        column.data.add(data)
        column.ends.clear()
        column.ends.add(ends)
        column.check()
        return column

    @classmethod
    def one(cls, text: bytes) -> Column:
        """Return a column of one string, which stands for all rows when columns are sent."""
        return cls.of(bytes(4) + len(text).to_bytes(4, "little"), text)

    def check(self) -> None:
        """Raise ValueError unless the borders rise from 0 to the end of the data: nothing outside of it must be sent."""
        p = self.ends.p
        n = self.ends.n
        last = 0
        k = 4
        wrong = n < 4 or n % 4 != 0 or bits.le32(p, 0) != 0
        while not wrong and k < n:
            end = bits.le32(p, k)
            wrong = end < last
            last = end
            k += 4
        if wrong or last != self.data.n:
            raise ValueError(f"{n} bytes of borders do not divide {self.data.n} bytes of data")

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
        """Return all strings as bytes objects."""
        data = self.data.tobytes()
        ends = self.ends.view().cast("I").tolist()
        return [data[start:end] for start, end in pairwise(ends)]

    def buffers(self) -> tuple[memoryview, memoryview]:
        """Return (borders as u32, data): views of this column, valid while it lives and is not filled further."""
        return self.ends.view(), self.data.view()


class Batch:
    """Received messages in order. `tags` are delivery tags, little-endian u64; `flags` is a byte for each, 1 is redelivered."""

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
        """Append a basic.deliver payload, its properties and the body p[i:i+n]. Return 0, or another number if the
        payload is malformed."""
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
        """Return the delivery tags. After `log.read` each is the message's offset + 1."""
        return self.tags.view().cast("Q").tolist()

    def delivery(self, k: int) -> Delivery:
        """Return message `k` as Python objects."""
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


class Field:
    """One property of many messages: a string for each, or one for all. `present` has a byte for each; empty means that
    all have it."""

    def __init__(self, bit: int, column: Column, present: bytes = b"", prefixed: bool = True) -> None:
        self.bit = bit
        self.column = column
        self.present = present
        self.prefixed = prefixed
        """Whether the list has a length byte before the value: short strings have one, numbers and tables do not."""


def pack_fields(count: int, fields: list[Field]) -> Column:
    """Return the property lists of `count` messages, with `fields` in the order of the list. Raise ValueError if a
    string is too long."""
    out = Column()
    size = 2 * count
    for field in fields:
        column = field.column
        if len(column) != 1 and len(column) < count:
            raise ValueError(f"{count} messages, but a property with {len(column)} values")
        if field.present and len(field.present) < count:
            raise ValueError(f"{count} messages, but {len(field.present)} marks")
        size += count + (column.data.n * count if len(column) == 1 else column.data.n)
    if size > COLUMN_BYTES_MAX:
        raise ValueError(f"{count} messages have {size} bytes of properties; give fewer at a time")
    out.data.reserve(size)
    out.ends.reserve(4 * count)
    p = out.data.p
    borders = out.ends.p
    at = 0
    row = 0
    while row < count:
        flags = 0
        i = at + 2
        for field in fields:
            present = field.present
            if present:
                marks = present
                if marks[row] == 0:
                    continue
            column = field.column
            k = 0 if column.ends.n == 8 else 4 * row
            start = bits.le32(column.ends.p, k)
            n = bits.le32(column.ends.p, k + 4) - start
            flags |= field.bit
            if field.prefixed:
                if n > 255:
                    raise ValueError(f"row {row}: a property has {n} bytes, at most 255 fit")
                p[i] = n
                i += 1
            bits.copy(p, i, column.data.p, start, n)
            i += n
        bits.put16(p, at, flags)
        at = i
        row += 1
        bits.put_le32(borders, 4 * row, at)
    out.data.n = at
    out.ends.n = 4 * count + 4
    return out


def pack_tables(borders: bytes, keys: Column, values: Column, present: bytes = b"") -> Column:
    """Return encoded tables of strings: table k has the pairs borders[k] to borders[k + 1] (little-endian u32).

    `present` has a byte for each value, where 0 is void; empty means that all are present.
    """
    out = Column()
    b = borders
    marks = present
    pairs = len(keys)
    count = len(borders) // 4 - 1
    if len(values) != pairs or (present and len(present) < pairs):
        raise ValueError(f"{pairs} keys, {len(values)} values")
    size = 4 * count + 6 * pairs + keys.data.n + values.data.n
    if size > COLUMN_BYTES_MAX:
        raise ValueError(f"{count} messages have {size} bytes of headers; give fewer at a time")
    out.data.reserve(size)
    out.ends.reserve(4 * count)
    p = out.data.p
    i = 0
    k = 0
    row = 0
    while row < count:
        at = i
        i += 4
        last = bits.le32(b, 4 * row + 4)
        if bits.le32(b, 4 * row) != k or last < k or last > pairs:
            raise ValueError(f"row {row}: the borders of its headers are not in order")
        while k < last:
            start = bits.le32(keys.ends.p, 4 * k)
            n = bits.le32(keys.ends.p, 4 * k + 4) - start
            if n > 255:
                raise ValueError(f"row {row}: the name of a header has {n} bytes, at most 255 fit")
            p[i] = n
            bits.copy(p, i + 1, keys.data.p, start, n)
            i += 1 + n
            if present and marks[k] == 0:
                p[i] = 86  # V
                i += 1
            else:
                start = bits.le32(values.ends.p, 4 * k)
                n = bits.le32(values.ends.p, 4 * k + 4) - start
                p[i] = 83  # S
                bits.put32(p, i + 1, n)
                bits.copy(p, i + 5, values.data.p, start, n)
                i += 5 + n
            k += 1
        bits.put32(p, at, i - at - 4)
        row += 1
        bits.put_le32(out.ends.p, 4 * row, i)
    out.data.n = i
    out.ends.n = 4 * count + 4
    return out


class Window:
    """The publishes of a channel that wait for their confirm. The cost per message does not depend on their number (C9)."""

    def __init__(self) -> None:
        self.ring = Buf(4096)
        self.mask = 4095
        self.low = 1
        """The lowest tag that is not confirmed."""
        self.next = 1
        """The tag of the next publish."""
        self.outstanding = 0
        self.acked = 0
        self.nacked = 0
        self.unexpected = 0
        """The number of confirms for a tag that was not waiting, which is a broker's mistake."""
        self.refused: list[int] | None = None
        """The list for the tags of nacked publishes, if a caller has asked for them."""

    def sent(self, count: int) -> int:
        """Note `count` more publishes. Return the tag of the first of them."""
        first = self.next
        if first + count - self.low > self.mask:
            self.grow(first + count - self.low)
        self.next = first + count
        self.outstanding += count
        return first

    def grow(self, need: int) -> None:
        """Make a larger ring, and move the marks of confirmed tags above `low` into it."""
        size = self.mask + 1
        while size <= need:
            size *= 2
        old = self.ring
        self.ring = Buf(size)
        for tag in range(self.low, self.next):
            self.ring.data[tag & (size - 1)] = old.data[tag & self.mask]
        self.mask = size - 1

    def settle(self, tag: int, multiple: int, ok: int) -> int:
        """Handle one confirm. Return the number of publishes that it settled."""
        ring = self.ring.p
        mask = self.mask
        settled = 0
        if tag >= self.next or (tag < self.low and not (multiple and tag == 0)):
            self.unexpected += 1
            return 0
        if not ok and self.refused is not None:
            self.refuse(tag, multiple)
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

    def refuse(self, tag: int, multiple: int) -> None:
        """Note the tags of a nack before it is settled."""
        first = self.low if multiple else tag
        last = tag if tag else self.next - 1
        data, mask = self.ring.data, self.mask
        assert self.refused is not None
        self.refused += [k for k in range(first, last + 1) if not data[k & mask]]

    def unconfirmed(self) -> list[int]:
        """Return the unconfirmed tags, ascending: these messages have to be published again after a lost connection."""
        data, mask = self.ring.data, self.mask
        return [tag for tag in range(self.low, self.next) if not data[tag & mask]]


class Latencies:
    """A histogram of nanoseconds with fixed memory and percentiles to about 3 %."""

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
        """Return the value in ns that `share` (0..1) of all values do not exceed; 0 without values."""
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

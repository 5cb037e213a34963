"""Properties as a dict, compiled: what a client does for each message that it publishes or gets as Python objects.

The bytes and the values are those of `wire.properties` and `wire.tables`. Frequent types are read and written here,
and `wire.tables` does the others. Clients choose the names of the properties, in the order of the flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvitto.base.errors import ConnectionError_
from kvitto.wire import bits
from kvitto.wire.buf import Buf
from kvitto.wire.tables import MALFORMED, PARSE_ERRORS, Malformed, explain, put_value, read_value

# C integers when compiled (see fields.pxd)
_DEPTH_MAX, _INT_MIN, _INT_MAX = 32, -(1 << 31), (1 << 31) - 1
_HEADERS, _DELIVERY_MODE, _PRIORITY, _TIMESTAMP, _FIELDS = 2, 3, 4, 9, 14


def read_fields(data: bytes, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the properties in `data` by these 14 names; those that are absent are not in the dict. Raise
    ConnectionError_ 502 if it does not parse."""
    try:
        return Reader(data).fields(names)
    except PARSE_ERRORS as error:
        raise ConnectionError_(MALFORMED, f"malformed properties: {explain(error)}", 60, 0) from None


class Reader:
    """A place in encoded bytes. Each method reads what is there and moves behind it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.p = data
        self.at = 0
        self.end = len(data)

    def take(self, n: int) -> int:
        """Move behind `n` bytes. Return the position before them."""
        at = self.at
        if n > self.end - at:
            raise Malformed("the bytes end too early")
        self.at = at + n
        return at

    def short(self) -> str:
        at = self.take(1)
        n = self.p[at]
        self.take(n)
        return self.data[at + 1 : at + 1 + n].decode("utf-8", "surrogateescape")

    def fields(self, names: tuple[str, ...]) -> dict[str, Any]:
        flags = bits.be16(self.p, self.take(2))
        if flags & 3:
            raise Malformed(f"unknown property flags {flags:#06x}")
        found: dict[str, Any] = {}
        k = 0
        while k < _FIELDS:
            if flags & (0x8000 >> k):
                if k == _HEADERS:
                    found[names[k]] = self.table(0)
                elif k == _DELIVERY_MODE or k == _PRIORITY:  # noqa: SIM109 - `in` makes a tuple
                    found[names[k]] = self.p[self.take(1)]
                elif k == _TIMESTAMP:
                    found[names[k]] = bits.be64(self.p, self.take(8))
                else:
                    found[names[k]] = self.short()
            k += 1
        if self.at != self.end:
            raise Malformed(f"{self.end - self.at} bytes after the properties")
        return found

    def table(self, depth: int) -> dict[str, Any]:
        stop = self.enter(depth)
        table: dict[str, Any] = {}
        while self.at < stop:
            key = self.short()
            table[key] = self.value(depth)
        if self.at != stop:
            raise Malformed("table field reaches beyond the table")
        return table

    def array(self, depth: int) -> list[Any]:
        stop = self.enter(depth)
        items: list[Any] = []
        while self.at < stop:
            items.append(self.value(depth))
        if self.at != stop:
            raise Malformed("array item reaches beyond the array")
        return items

    def enter(self, depth: int) -> int:
        """Move to the first item of a table or array. Return the position of its end."""
        if depth > _DEPTH_MAX:
            raise Malformed(f"nested deeper than {_DEPTH_MAX}")
        n = bits.be32(self.p, self.take(4))
        if n > self.end - self.at:
            raise Malformed("table longer than what holds it")
        return self.at + n

    def value(self, depth: int) -> Any:
        at = self.take(1)
        kind = self.p[at]
        if kind == 83:  # S
            n = bits.be32(self.p, self.take(4))
            start = self.take(n)
            try:
                return self.data[start : start + n].decode("utf-8")
            except UnicodeDecodeError:
                return self.data[start : start + n]
        if kind == 86:  # V
            return None
        if kind == 73:  # I
            n = bits.be32(self.p, self.take(4))
            return n if n <= _INT_MAX else n - (1 << 32)
        if kind == 116:  # t
            return self.p[self.take(1)] != 0
        if kind == 70:  # F
            return self.table(depth + 1)
        if kind == 65:  # A
            return self.array(depth + 1)
        item, stop = read_value(self.data, at, depth)
        self.take(stop - at - 1)
        return item


def write_fields(properties: Mapping[str, Any], names: tuple[str, ...]) -> bytes:
    """Return these properties encoded, as `Properties.encode` does; None is absent, and so are other names. Raise
    ValueError if a value does not fit."""
    out = Buf(512)
    out.n = 2
    flags = 0
    k = 0
    for name in names:
        value = properties.get(name)
        if value is not None:
            flags |= 0x8000 >> k
            if k == _HEADERS:
                put_table(out, value, 0)
            elif k == _DELIVERY_MODE or k == _PRIORITY:  # noqa: SIM109 - `in` makes a tuple
                if not 0 <= value <= 255:
                    raise ValueError(f"property {name} = {value!r} is not a number from 0 to 255")
                out.reserve(1)
                out.p[out.n] = value
                out.n += 1
            elif k == _TIMESTAMP:
                if not 0 <= value < 1 << 64:
                    raise ValueError(f"property {name} = {value!r} is not an unsigned 64-bit number")
                out.reserve(8)
                bits.put64(out.p, out.n, value)
                out.n += 8
            else:
                put_short(out, value, name)
        k += 1  # noqa: SIM113 - a C integer
    bits.put16(out.p, 0, flags)
    return out.tobytes()


def put_short(out: Buf, text: str, what: str) -> None:
    """Append a short string: a key or a property."""
    raw = text.encode("utf-8", "surrogateescape")
    n = len(raw)
    if n > 255:
        raise ValueError(f"{what} has {n} bytes, at most 255 fit")
    out.reserve(n + 1)
    out.p[out.n] = n
    bits.copy(out.p, out.n + 1, raw, 0, n)
    out.n += n + 1


def put_table(out: Buf, table: Mapping[str, Any], depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise ValueError(f"a table is nested deeper than {_DEPTH_MAX}")
    at = out.n
    out.reserve(4)
    out.n += 4
    for key, value in table.items():
        put_short(out, key, "a header's name")
        put_item(out, value, depth)
    bits.put32(out.p, at, out.n - at - 4)


def put_item(out: Buf, value: Any, depth: int) -> None:
    """Append type letter and value."""
    kind = type(value)
    if value is None:
        put_kind(out, 86)
    elif kind is str:
        raw = value.encode("utf-8")
        n = len(raw)
        put_kind(out, 83)
        out.reserve(n + 4)
        bits.put32(out.p, out.n, n)
        bits.copy(out.p, out.n + 4, raw, 0, n)
        out.n += n + 4
    elif kind is bool:
        put_kind(out, 116)
        put_kind(out, 1 if value else 0)
    elif kind is int and _INT_MIN <= value <= _INT_MAX:
        number = value
        put_kind(out, 73)
        out.reserve(4)
        bits.put32(out.p, out.n, number & 0xFFFFFFFF)
        out.n += 4
    elif kind is dict:
        put_kind(out, 70)
        put_table(out, value, depth + 1)
    elif kind is list or kind is tuple:
        if depth >= _DEPTH_MAX:
            raise ValueError(f"an array is nested deeper than {_DEPTH_MAX}")
        put_kind(out, 65)
        at = out.n
        out.reserve(4)
        out.n += 4
        for item in value:
            put_item(out, item, depth + 1)
        bits.put32(out.p, at, out.n - at - 4)
    else:
        other = bytearray()
        put_value(other, value)
        out.add(other)


def put_kind(out: Buf, kind: int) -> None:
    """Append one byte."""
    out.reserve(1)
    out.p[out.n] = kind
    out.n += 1

"""Reads field tables, compiled: peers send tables of 128 KiB, with a value for each byte, and each is read in one step.

`tables` and the codec of methods and properties call this; the client reads the properties of each message with it. Keys keep any bytes
of a peer (surrogateescape), as in RabbitMQ. Nothing beyond the bytes is read, whatever they say.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Context
from typing import Any

from kvitto.wire import bits
from kvitto.wire.values import BYTES_MAX, Malformed, Timestamp, TooDeep, Value

# C integers when compiled (see fields.pxd)
_DEPTH_MAX, _BYTES_MAX, _DAY, _LAST_SECOND = 32, BYTES_MAX, 86400, 253402300799
_FLOAT, _DOUBLE, _LONG = (
    struct.Struct(">f").unpack_from,
    struct.Struct(">d").unpack_from,
    struct.Struct(">q").unpack_from,
)
_scaleb = Context(prec=300).scaleb


def read_table(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    """Return the table at `at`, and the position behind it. Raise one of PARSE_ERRORS."""
    reader = Reader(data, at)
    return reader.table(0), reader.at


def read_value(data: bytes, at: int, depth: int) -> tuple[Value, int]:
    """Return the value whose type letter is at `at`, and the position behind it. Raise one of PARSE_ERRORS."""
    reader = Reader(data, at)
    return reader.value(depth), reader.at


class Reader:
    """A place in encoded bytes. Each method reads what is there and moves behind it."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.p = data
        self.at = at
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
            raise TooDeep(f"nested deeper than {_DEPTH_MAX}")
        n = bits.be32(self.p, self.take(4))
        if n > _BYTES_MAX:
            raise Malformed(f"table of {n} bytes, at most {_BYTES_MAX} are accepted")
        if n > self.end - self.at:
            raise Malformed("table longer than what holds it")
        return self.at + n

    def value(self, depth: int) -> Any:
        """Read a type letter and the value behind it."""
        at = self.take(1)
        kind = self.p[at]
        if kind == 83 or kind == 120:  # S x
            n = bits.be32(self.p, self.take(4))
            start = self.take(n)
            raw = self.data[start : start + n]
            # S is text for every Python client, but may have any bytes
            return raw.decode("utf-8") if kind == 83 and is_text(self.p, start, start + n) else raw
        if kind == 86:  # V
            return None
        if kind == 116:  # t
            return self.p[self.take(1)] != 0
        if kind == 70:  # F
            return self.table(depth + 1)
        if kind == 65:  # A
            return self.array(depth + 1)
        if kind == 73 or kind == 105:  # I i
            n = bits.be32(self.p, self.take(4))
            return n - (1 << 32) if kind == 73 and n >= 1 << 31 else n
        if kind == 115 or kind == 85 or kind == 117:  # s U u
            n = bits.be16(self.p, self.take(2))
            return n - (1 << 16) if kind != 117 and n >= 1 << 15 else n
        if kind == 98 or kind == 66:  # b B
            n = self.p[self.take(1)]
            return n - (1 << 8) if kind == 98 and n >= 1 << 7 else n
        if kind == 108 or kind == 76:  # l L
            return _LONG(self.data, self.take(8))[0]
        if kind == 100:  # d
            return _DOUBLE(self.data, self.take(8))[0]
        if kind == 102:  # f
            return _FLOAT(self.data, self.take(4))[0]
        if kind == 84:  # T
            return self.time()
        if kind == 68:  # D
            start = self.take(5)
            n = bits.be32(self.p, start + 1)
            return _scaleb(n - (1 << 32) if n >= 1 << 31 else n, -self.p[start])
        raise Malformed(f"unknown field type {kind:#04x}")

    def time(self) -> Any:
        """Read seconds since 1970. `datetime` takes four times as long for them as for the day that is calculated here.

        Years are counted from March on, since a leap day is then the last one of its year.
        """
        at = self.take(8)
        if bits.be32(self.p, at) >= 1 << 8 or bits.be64(self.p, at) > _LAST_SECOND:
            return Timestamp(int.from_bytes(self.data[at : at + 8], "big"))
        seconds = bits.be64(self.p, at)
        days = seconds // _DAY + 719468  # since 0000-03-01
        seconds = seconds % _DAY
        era = days // 146097
        days = days % 146097
        years = (days - days // 1460 + days // 36524 - days // 146096) // 365
        days = days - (365 * years + years // 4 - years // 100)
        month = (5 * days + 2) // 153
        day = days - (153 * month + 2) // 5 + 1
        years = years + 400 * era
        if month < 10:
            month = month + 3
        else:
            month = month - 9
            years = years + 1
        return datetime(years, month, day, seconds // 3600, seconds // 60 % 60, seconds % 60, 0, UTC)


def is_text(p: bytes, i: int, end: int) -> bool:
    """Return whether p[i:end] is UTF-8. To decode what is not takes long, because of the exception."""
    while i < end:
        c = p[i]
        i += 1
        if c < 0x80:
            continue
        low, high = 0x80, 0xBF
        if c < 0xC2 or c > 0xF4:
            return False
        if c < 0xE0:
            more = 1
        elif c < 0xF0:
            more = 2
            if c == 0xE0:
                low = 0xA0
            elif c == 0xED:
                high = 0x9F
        else:
            more = 3
            if c == 0xF0:
                low = 0x90
            elif c == 0xF4:
                high = 0x8F
        if more > end - i or p[i] < low or p[i] > high:
            return False
        i += 1
        while more > 1:
            if p[i] & 0xC0 != 0x80:
                return False
            i += 1
            more -= 1
    return True

"""Reads the deduplication key of a message from its stored properties: a header's value, or the property message_id.

`DeduplicatingQueue` calls this for each message, and for each stored one at a start. The properties of a publish have been checked
(wire/check.py), but those on a disk may be damaged: then there is no key, and nothing beyond the properties is read.
"""

from __future__ import annotations

import struct

from kvitto.wire import bits, check
from kvitto.wire.buf import Buf
from kvitto.wire.tables import PARSE_ERRORS, Value, read_value

TTL_HEADER = "x-cache-ttl"
"""The header that says for how many ms the key of this message is remembered."""

TTL_MAX_MS = 315_360_000_000
"""Ten years: a longer time counts as this one."""

NUMBER_BYTES = 9
"""The bytes of the longest number, with its type letter."""

_STRING = 83  # the type letter S


class MessageKey:
    """`ttl_ms`: what the header `x-cache-ttl` of the last message that was read says, -1 if it has none."""

    def __init__(self, header: str | None) -> None:
        """`header`: the name of the header whose value is the key, None for the property message_id."""
        self.by_header = header is not None
        self._name = Buf(0)
        self._name.add((header or "").encode("utf-8", "surrogateescape"))
        self._ttl_name = Buf(0)
        self._ttl_name.add(TTL_HEADER.encode())
        self.ttl_ms = -1
        self._ttl_at = 0
        self._ttl_end = 0

    def read(self, p, at, n):  # type: ignore[no-untyped-def]
        """Return the key of the properties in p[at:at+n] as bytes, which are the same for values that count as the same. None without one.

        An empty string, and a header of type void, are no keys.
        """
        self.ttl_ms = -1
        self._ttl_at = 0
        if n < 2:
            return None
        flags = bits.be16(p, at)
        if self.by_header and not flags & 0x2000:
            return None
        end = at + n
        i = at + 2
        value = value_end = size = 0
        bit = 0x8000
        while bit >= 0x0080:
            if flags & bit:
                if bit == 0x2000:
                    if end - i < 4:
                        return None
                    size = bits.be32(p, i)
                    i += 4
                    if size > end - i:
                        return None
                    value = self.look(p, i, i + size)
                    if value < 0:
                        return None
                    i += size
                    if self.by_header:
                        break
                elif bit == 0x1000 or bit == 0x0800:
                    i += 1
                else:
                    if i >= end or p[i] > end - i - 1:
                        return None
                    size = p[i]
                    if bit == 0x0080:
                        value, value_end = i, i + 1 + size
                        break
                    i += 1 + size
            bit >>= 1
        if self._ttl_at:
            self.ttl_ms = milliseconds(bytes(p[self._ttl_at : self._ttl_end]))
        if not self.by_header:
            return bytes(p[value:value_end]) if value_end - value > 1 else None
        if not value:
            return None
        value_end = check.check_value(p, value, end, 0)
        if p[value] == _STRING:
            return bytes(p[value:value_end]) if value_end - value > 5 else None
        return canonical(bytes(p[value:value_end]))

    def look(self, p, i, end):  # type: ignore[no-untyped-def]
        """Note where the values of the two headers lie. Returns the position of the key's type letter, 0 without one, -1 for damage."""
        found = 0
        while i < end:
            size = p[i]
            i += 1
            if size >= end - i:
                return -1
            value = i + size
            after = check.check_value(p, value, end, 0)
            if after < 0:
                return -1
            if self.by_header and size == self._name.n and bits.same(p, i, self._name.p, 0, size):
                found = value
            elif size == self._ttl_name.n and bits.same(p, i, self._ttl_name.p, 0, size):
                self._ttl_at = value
                self._ttl_end = after
            i = after
        return found


def canonical(data: bytes) -> bytes | None:
    """Return a header's value, with its type letter, in the form that all values have which count as the same. None if it is no key.

    Integers count by value, whatever their width, and so do floating-point numbers; bytes count as the string of the same bytes.
    """
    kind = data[:1]
    if kind == b"x":
        return b"S" + data[1:] if len(data) > 5 else None
    if len(data) > NUMBER_BYTES:  # a table, for example: to decode it would take long
        return data
    value = _decoded(data)
    if value is None:
        return None
    if isinstance(value, float):
        return b"d" + struct.pack(">d", value)
    if type(value) is int:
        return b"l%d" % value
    return data


def milliseconds(data: bytes) -> int:
    """Return a time to live from a header's value with its type letter. -1 if it is no integer, or negative."""
    value = _decoded(data) if len(data) <= NUMBER_BYTES else None
    return min(value, TTL_MAX_MS) if type(value) is int and value >= 0 else -1


def _decoded(data: bytes) -> Value:
    try:
        return read_value(data, 0, 0)[0]
    except PARSE_ERRORS:  # only what is on a damaged disk has not been checked
        return None

"""Writes field tables, compiled: arguments of 128 KiB, with a value for each byte, are written in one step.

`tables.encode` calls this, and the client writes the headers of each message with it. `tables` says which value gets which letter.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from kvitto.wire import bits
from kvitto.wire.buf import Buf
from kvitto.wire.values import Long, Timestamp

# C integers when compiled (see field_writer.pxd)
_DEPTH_MAX, _INT_MIN, _INT_MAX, _DAY, _DIGITS_MAX = 32, -(1 << 31), (1 << 31) - 1, 86400, 18
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DOUBLE = struct.Struct(">d").pack
_LONG = struct.Struct(">q").pack


def encode_table(table: Mapping[str, Any]) -> bytes:
    """Return the table with its length prefix. Raise ValueError for a value that AMQP cannot express."""
    out = Buf(512)
    put_table(out, table, 0)
    return out.tobytes()


def put_short(out: Buf, text: str, what: str) -> None:
    """Append a short string: a key or a property."""
    exact = text if type(text) is str else str_of(text, what)
    raw = exact.encode("utf-8", "surrogateescape")
    n = len(raw)
    if n > 255:
        raise ValueError(f"{what} has {n} bytes, at most 255 are possible: {text[:40]!r}...")
    out.reserve(n + 1)
    out.p[out.n] = n
    bits.copy(out.p, out.n + 1, raw, 0, n)
    out.n += n + 1


def str_of(text: Any, what: str) -> str:
    """Return the text of a member of an enumeration, or of another type that is based on str, as a plain str."""
    if not isinstance(text, str):
        raise ValueError(f"{what} is text, not {type(text).__name__}: {text!r}")
    return str.__str__(text)


def put_table(out: Buf, table: Mapping[str, Any], depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise ValueError(f"a table is nested deeper than {_DEPTH_MAX}")
    at = out.n
    out.reserve(4)
    out.n += 4
    for key, value in table.items():
        put_short(out, key, "a key")
        put_value(out, value, depth)
    bits.put32(out.p, at, out.n - at - 4)


def put_array(out: Buf, items: list[Any] | tuple[Any, ...], depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise ValueError(f"an array is nested deeper than {_DEPTH_MAX}")
    at = out.n
    out.reserve(4)
    out.n += 4
    for item in items:
        put_value(out, item, depth)
    bits.put32(out.p, at, out.n - at - 4)


def put_value(out: Buf, value: Any, depth: int) -> None:
    """Append type letter and value. bool, Timestamp and Long come before int, because isinstance counts them as ints."""
    if value is None:
        put_kind(out, 86)
    elif isinstance(value, str):
        put_kind(out, 83)
        put_long_string(out, value.encode())
    elif isinstance(value, bool):
        put_kind(out, 116)
        put_kind(out, 1 if value else 0)
    elif isinstance(value, int):
        put_int(out, value)
    elif isinstance(value, dict):
        put_kind(out, 70)
        put_table(out, value, depth + 1)
    elif isinstance(value, list | tuple):
        put_kind(out, 65)
        put_array(out, value, depth + 1)
    elif isinstance(value, bytes | bytearray):
        put_kind(out, 120)
        put_long_string(out, bytes(value))
    elif isinstance(value, float):
        put_kind(out, 100)
        out.add(_DOUBLE(value))
    elif isinstance(value, datetime):
        put_time(out, value)
    elif isinstance(value, Decimal):
        put_decimal(out, value)
    else:
        raise ValueError(f"a field table cannot hold {type(value).__name__}")


def put_int(out: Buf, value: int) -> None:
    if isinstance(value, Timestamp):
        if not 0 <= value < 1 << 64:
            raise ValueError(f"{int(value)} does not fit into a 64-bit field")
        put_kind(out, 84)
        out.reserve(8)
        bits.put64(out.p, out.n, value)
        out.n += 8
    elif _INT_MIN <= value <= _INT_MAX and not isinstance(value, Long):
        number = value
        put_kind(out, 73)
        out.reserve(4)
        bits.put32(out.p, out.n, number & 0xFFFFFFFF)
        out.n += 4
    elif -(1 << 63) <= value < 1 << 63:
        put_kind(out, 108)
        out.add(_LONG(value))
    else:
        raise ValueError(f"{value} does not fit into a 64-bit field")


def put_time(out: Buf, value: datetime) -> None:
    """Append the seconds since 1970. A time without a zone is one of UTC."""
    past = (value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH
    seconds = past.days * _DAY + past.seconds
    if seconds < 0:
        raise ValueError(f"{value} is before 1970")
    put_kind(out, 84)
    out.reserve(8)
    bits.put64(out.p, out.n, seconds)
    out.n += 8


def put_decimal(out: Buf, value: Decimal) -> None:
    """Append scale and unscaled value. An exponent above 0 is written out, because AMQP has no negative scale."""
    raw = str(value).encode()
    n = len(raw)
    scale = unscaled = i = 0
    point = -1
    if n > _DIGITS_MAX:
        n = 0
    if n and raw[0] == 45:
        i = 1
    while i < n:
        c = raw[i]
        if c == 46 and point < 0:
            point = i
        elif 48 <= c <= 57:
            unscaled = unscaled * 10 + (c - 48)
        else:
            break
        i += 1
    if n and i == n:
        if point >= 0:
            scale = n - point - 1
        if raw[0] == 45:
            unscaled = -unscaled
    else:  # with an exponent, or long, or no number
        scale, unscaled = parts_of(value)
    if not _INT_MIN <= unscaled <= _INT_MAX:
        raise ValueError(f"{value} does not fit into a decimal field (32 bits, 255 decimals)")
    put_kind(out, 68)
    put_kind(out, scale)
    out.reserve(4)
    bits.put32(out.p, out.n, unscaled & 0xFFFFFFFF)
    out.n += 4


def parts_of(value: Decimal) -> tuple[int, int]:
    """Return the scale and the unscaled value of any number."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"a decimal field cannot hold {value}")
    fits = len(digits) + max(exponent, 0) < _DIGITS_MAX and exponent >= -255
    unscaled = int("".join(map(str, digits)) or "0") * 10 ** max(exponent, 0) * (-1 if sign else 1) if fits else 1 << 40
    return max(-exponent, 0) if fits else 0, unscaled


def put_long_string(out: Buf, raw: bytes) -> None:
    """Append four length bytes and the bytes."""
    n = len(raw)
    out.reserve(n + 4)
    bits.put32(out.p, out.n, n)
    bits.copy(out.p, out.n + 4, raw, 0, n)
    out.n += n + 4


def put_kind(out: Buf, kind: int) -> None:
    """Append one byte."""
    out.reserve(1)
    out.p[out.n] = kind
    out.n += 1

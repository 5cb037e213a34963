"""Values of headers and arguments as bytes that are equal exactly where RabbitMQ treats the values as equal. Compiled.

Numbers are equal by value (1 and 1.0), a text equals its bytes, a time equals its seconds, the order of a table's fields does not count,
and True is not 1. NaN equals NaN, because a binding that has it among its arguments must be found again. The bytes are about as many as
those of the value, and are kept nowhere. Headers exchanges compare them, and bindings are known by a digest of them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from kvitto.wire import bits
from kvitto.wire.buf import Buf

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DOUBLE = struct.Struct(">d").pack
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def canonical(value: Any) -> bytes:
    """Return the bytes of a value that AMQP can express."""
    if type(value) is str:
        return b"s" + value.encode("utf-8", "surrogateescape")
    if type(value) is bytes:
        return b"s" + value
    out = Buf(64)
    put(out, value)
    return out.tobytes()


def put(out: Buf, value: Any) -> None:
    """Append a letter for the type and what is equal for equal values. Nothing is the beginning of anything else."""
    if value is None:
        put_kind(out, 110)
    elif isinstance(value, str):
        put_bytes(out, value.encode("utf-8", "surrogateescape"))
    elif isinstance(value, bool):
        put_kind(out, 116 if value else 102)
    elif isinstance(value, int):
        put_int(out, value)
    elif isinstance(value, float):
        if value == value and -9223372036854775808.0 <= value < 9223372036854775808.0 and value.is_integer():
            put_int(out, int(value))
        else:
            put_kind(out, 100)
            out.add(_DOUBLE(value) if value == value else b"not a no")
    elif isinstance(value, bytes):
        put_bytes(out, value)
    elif isinstance(value, list):
        put_kind(out, 65)
        put_size(out, len(value))
        for item in value:
            put(out, item)
    elif type(value) is dict:
        put_table(out, value)
    elif isinstance(value, Decimal):
        put_kind(out, 68)
        put_bytes(out, str(value).encode())
    elif isinstance(value, datetime):
        past = value - _EPOCH  # `timestamp` returns a float, and takes longer
        put_int(out, past.days * 86400 + past.seconds)
    else:
        assert isinstance(value, Mapping), type(
            value
        )  # asked last: for an abstract class this takes longer than all before it
        put_table(out, value)


def put_table(out: Buf, table: Mapping[str, Any]) -> None:
    put_kind(out, 70)
    put_size(out, len(table))
    for name in sorted(table):
        put_bytes(out, name.encode("utf-8", "surrogateescape"))
        put(out, table[name])


def put_int(out: Buf, value: Any) -> None:
    if _LEAST <= value <= _MOST:
        number = value - _LEAST
        put_kind(out, 105)
        out.reserve(8)
        bits.put64(out.p, out.n, number)
        out.n += 8
    else:  # HTTP and definitions know longer ones than AMQP
        put_kind(out, 106)
        put_bytes(out, b"%d" % value)


def put_bytes(out: Buf, raw: bytes) -> None:
    n = len(raw)
    put_kind(out, 115)
    put_size(out, n)
    out.reserve(n)
    bits.copy(out.p, out.n, raw, 0, n)
    out.n += n


def put_kind(out: Buf, kind: int) -> None:
    """Append one byte."""
    out.reserve(1)
    out.p[out.n] = kind
    out.n += 1


def put_size(out: Buf, n: int) -> None:
    out.reserve(4)
    bits.put32(out.p, out.n, n)
    out.n += 4

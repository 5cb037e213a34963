"""Field tables and arrays: the typed dictionaries of AMQP 0-9-1, with RabbitMQ's type letters.

Encoding does what Python clients expect: int is `I` if it fits, else `l`; bool `t`, str `S`, bytes `x`, datetime `T`,
Decimal `D`, None `V`, list `A`, dict `F`, float `d`. Decoding accepts every letter that RabbitMQ accepts. Keys keep any
bytes of a peer (surrogateescape), as in RabbitMQ. The depth and size of a table are checked before anything is built
from it.
"""

import struct
from collections.abc import Collection, Mapping

from kvitto.base import limits
from kvitto.base.errors import ConnectionError_
from kvitto.wire.buf import Buf
from kvitto.wire.field_writer import encode_table, put_short, put_value
from kvitto.wire.fields import Reader, read_table, read_value
from kvitto.wire.values import (
    BYTES_MAX,
    MALFORMED,
    PARSE_ERRORS,
    Long,
    Malformed,
    Table,
    Timestamp,
    TooDeep,
    Value,
    explain,
)

__all__ = [
    "BYTES_MAX",
    "MALFORMED",
    "PARSE_ERRORS",
    "Long",
    "Malformed",
    "Table",
    "Timestamp",
    "TooDeep",
    "Value",
    "decode",
    "edit",
    "encode",
    "encode_longstr",
    "encode_shortstr",
    "explain",
    "read_longstr",
    "read_shortstr",
    "read_table",
    "read_value",
]

_U32 = struct.Struct(">I")


def decode(data: bytes | bytearray | memoryview) -> Table:
    """Return the table in `data`, which has a length prefix and nothing after the table. Raise ConnectionError_ 502 if
    it does not parse."""
    data = bytes(data)
    try:
        table, end = read_table(data, 0)
        if end != len(data):
            raise Malformed(f"{len(data) - end} bytes after the table")
    except PARSE_ERRORS as error:
        raise ConnectionError_(MALFORMED, f"malformed table: {explain(error)}") from None
    return table


def encode(table: Mapping[str, Value]) -> bytes:
    """Return the table with its length prefix. Raise ValueError for a value that AMQP cannot express, which is the
    caller's mistake."""
    return encode_table(table)


def edit(data: bytes, put: Mapping[str, Value], drop: Collection[str] = ()) -> bytes:
    """Return an encoded table with the fields of `put` in place of those of the same names, and without those in
    `drop`. All others keep their bytes."""
    reader = Reader(data, 0)
    end = reader.enter(0)
    out = Buf(512)
    out.add(b"\0\0\0\0")
    while reader.at < end:
        start = reader.at
        key = reader.short()
        reader.value(0)
        if key not in put and key not in drop:
            out.add(data[start : reader.at])
    if reader.at != end:
        raise Malformed("table field reaches beyond the table")
    for key, value in put.items():
        put_short(out, key, "a key")
        put_value(out, value, 0)
    _U32.pack_into(out.data, 0, out.n - 4)
    return out.tobytes()


def encode_shortstr(text: str) -> bytes:
    """Return one length byte and the text as UTF-8."""
    return _short(text, text.encode())


def _short(text: str, data: bytes) -> bytes:
    if len(data) > limits.SHORTSTR_MAX:
        raise ValueError(
            f"{len(data)} bytes are too long for a short string (at most {limits.SHORTSTR_MAX}): {text[:40]!r}..."
        )
    return bytes((len(data),)) + data


def encode_longstr(data: bytes) -> bytes:
    """Return four length bytes and the data."""
    return _U32.pack(len(data)) + data


def read_shortstr(data: bytes, at: int) -> tuple[str, int]:
    """Return the string at `at` and the position after it. A string that is not UTF-8 is malformed, because names in
    AMQP are text."""
    start = at + 1
    end = start + data[at]
    if end > len(data):
        raise Malformed("short string longer than what holds it")
    return data[start:end].decode(), end


def read_longstr(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes of the long string at `at`, and the position after it."""
    start = at + 4
    end = start + int(_U32.unpack_from(data, at)[0])
    if end > len(data):
        raise Malformed("long string longer than what holds it")
    return data[start:end], end

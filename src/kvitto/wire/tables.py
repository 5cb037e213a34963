"""Field tables and arrays: the typed dictionaries of AMQP 0-9-1, with RabbitMQ's type letters.

Encoding does what Python clients expect: int is `I` if it fits, else `l`; bool `t`, str `S`, bytes `x`, datetime `T`,
Decimal `D`, None `V`, list `A`, dict `F`, float `d`. Decoding accepts every letter that RabbitMQ accepts. Keys keep any
bytes of a peer (surrogateescape), as in RabbitMQ. The depth and size of a table are checked before anything is built
from it.
"""

import struct
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import TypeAlias

from kvitto.base import limits
from kvitto.base.errors import SYNTAX_ERROR, ConnectionError_

BYTES_MAX = limits.MIB
"""The maximum encoded size of one table; a frame is smaller by default."""

MALFORMED = SYNTAX_ERROR
"""The reply code for arguments, tables and properties that do not parse."""


class Timestamp(int):
    """The seconds since 1970 of a `T` field that `datetime` cannot hold (after the year 9999). It encodes as `T` again."""


class Long(int):
    """An integer that encodes as `l` whatever its value: Java clients expect that type for the counts that RabbitMQ sends."""


Value: TypeAlias = (
    None | bool | int | float | str | bytes | datetime | Timestamp | Decimal | list["Value"] | dict[str, "Value"]
)
Table: TypeAlias = dict[str, Value]


class Malformed(ValueError):
    """Bytes that do not parse. This stays inside the codec: the public decoders raise ConnectionError_ 502 instead."""

    limit = ""


class TooDeep(Malformed):
    limit = "table_depth"


_LONG = struct.Struct(">I")
_NUMBERS = {
    ord("b"): struct.Struct(">b"),
    ord("B"): struct.Struct(">B"),
    ord("s"): struct.Struct(">h"),
    ord("U"): struct.Struct(">h"),
    ord("u"): struct.Struct(">H"),
    ord("I"): struct.Struct(">i"),
    ord("i"): struct.Struct(">I"),
    ord("l"): struct.Struct(">q"),
    ord("L"): struct.Struct(">q"),
    ord("f"): struct.Struct(">f"),
    ord("d"): struct.Struct(">d"),
}
_TIMESTAMP = struct.Struct(">Q")
_DECIMAL = struct.Struct(">Bi")
_LAST_DATETIME = 253402300799
PARSE_ERRORS = (ValueError, IndexError, struct.error)
"""The exceptions that the readers below raise on bad bytes (Malformed and UnicodeDecodeError are ValueErrors)."""


def explain(error: Exception) -> str:
    """Return one of PARSE_ERRORS as a text for a peer."""
    if isinstance(error, Malformed):
        return str(error)
    return "a string is not UTF-8" if isinstance(error, UnicodeDecodeError) else "the bytes end too early"


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
    out = bytearray()
    _put_table(out, table)
    return bytes(out)


def edit(data: bytes, put: Mapping[str, Value], drop: Collection[str] = ()) -> bytes:
    """Return an encoded table with the fields of `put` in place of those of the same names, and without those in
    `drop`. All others keep their bytes."""
    at, end = _enter(data, 0, 0)
    out = bytearray(4)
    while at < end:
        start = at
        key, at = _read_key(data, at)
        _, at = read_value(data, at, 0)
        if key not in put and key not in drop:
            out += data[start:at]
    if at != end:
        raise Malformed("table field reaches beyond the table")
    for key, value in put.items():
        _put_field(out, key, value)
    _LONG.pack_into(out, 0, len(out) - 4)
    return bytes(out)


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
    return _LONG.pack(len(data)) + data


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
    end = start + int(_LONG.unpack_from(data, at)[0])
    if end > len(data):
        raise Malformed("long string longer than what holds it")
    return data[start:end], end


def _read_key(data: bytes, at: int) -> tuple[str, int]:
    """Like `read_shortstr`, but accepts any bytes: a broker must be able to read the tables that it has accepted."""
    start = at + 1
    end = start + data[at]
    if end > len(data):
        raise Malformed("key longer than what holds it")
    return data[start:end].decode("utf-8", "surrogateescape"), end


def read_table(data: bytes, at: int, depth: int = 0) -> tuple[Table, int]:
    """Return the table at `at`, and the position after it."""
    at, end = _enter(data, at, depth)
    table: Table = {}
    while at < end:
        key, at = _read_key(data, at)
        table[key], at = read_value(data, at, depth)
    if at != end:
        raise Malformed("table field reaches beyond the table")
    return table, end


def _read_array(data: bytes, at: int, depth: int) -> tuple[list[Value], int]:
    at, end = _enter(data, at, depth)
    items: list[Value] = []
    while at < end:
        item, at = read_value(data, at, depth)
        items.append(item)
    if at != end:
        raise Malformed("array item reaches beyond the array")
    return items, end


def _enter(data: bytes, at: int, depth: int) -> tuple[int, int]:
    """Return the start and the end of the contents of a table or array whose length prefix is at `at`."""
    if depth > limits.TABLE_DEPTH_MAX:
        raise TooDeep(f"nested deeper than {limits.TABLE_DEPTH_MAX}")
    size = int(_LONG.unpack_from(data, at)[0])
    if size > BYTES_MAX:
        raise Malformed(f"table of {size} bytes, at most {BYTES_MAX} are accepted")
    if at + 4 + size > len(data):
        raise Malformed("table longer than what holds it")
    return at + 4, at + 4 + size


def read_value(data: bytes, at: int, depth: int) -> tuple[Value, int]:
    """Return the value whose type letter is at `at`, and the position after it."""
    kind = data[at]
    at += 1
    number = _NUMBERS.get(kind)
    if number is not None:
        return number.unpack_from(data, at)[0], at + number.size
    match chr(kind):
        case "S":
            return _read_text(data, at)
        case "t":
            return data[at] != 0, at + 1
        case "F":
            return read_table(data, at, depth + 1)
        case "A":
            return _read_array(data, at, depth + 1)
        case "x":
            return read_longstr(data, at)
        case "V":
            return None, at
        case "T":
            seconds = int(_TIMESTAMP.unpack_from(data, at)[0])
            late = seconds > _LAST_DATETIME
            return Timestamp(seconds) if late else datetime.fromtimestamp(seconds, UTC), at + 8
        case "D":
            scale, unscaled = _DECIMAL.unpack_from(data, at)
            return Decimal(unscaled).scaleb(-scale), at + 5
    raise Malformed(f"unknown field type {kind:#04x}")


def _read_text(data: bytes, at: int) -> tuple[Value, int]:
    """Return text, or bytes if it is not UTF-8: `S` is text for every Python client but may have any bytes."""
    raw, end = read_longstr(data, at)
    try:
        return raw.decode(), end
    except UnicodeDecodeError:
        return raw, end


def _put_table(out: bytearray, table: Mapping[str, Value]) -> None:
    at = len(out)
    out += b"\0\0\0\0"
    for key, value in table.items():
        _put_field(out, key, value)
    _LONG.pack_into(out, at, len(out) - at - 4)


def _put_field(out: bytearray, key: str, value: Value) -> None:
    out += _short(key, key.encode("utf-8", "surrogateescape"))
    put_value(out, value)


def _put_array(out: bytearray, items: list[Value]) -> None:
    at = len(out)
    out += b"\0\0\0\0"
    for item in items:
        put_value(out, item)
    _LONG.pack_into(out, at, len(out) - at - 4)


def put_value(out: bytearray, value: Value) -> None:
    """Append type letter and value. bool and Timestamp come before int, because isinstance counts them as ints."""
    if isinstance(value, str):
        out += b"S" + encode_longstr(value.encode())
    elif isinstance(value, bool):
        out += b"t\x01" if value else b"t\x00"
    elif isinstance(value, Timestamp):
        out += b"T" + _pack(_TIMESTAMP, value)
    elif isinstance(value, int):
        fits = -(1 << 31) <= value < 1 << 31 and not isinstance(value, Long)
        out += b"I" + _NUMBERS[ord("I")].pack(value) if fits else b"l" + _pack(_NUMBERS[ord("l")], value)
    elif value is None:
        out += b"V"
    elif isinstance(value, dict):
        out += b"F"
        _put_table(out, value)
    elif isinstance(value, list | tuple):
        out += b"A"
        _put_array(out, list(value))
    elif isinstance(value, bytes | bytearray):
        out += b"x" + encode_longstr(bytes(value))
    elif isinstance(value, float):
        out += b"d" + _NUMBERS[ord("d")].pack(value)
    elif isinstance(value, datetime):
        seconds = value if value.tzinfo else value.replace(tzinfo=UTC)
        out += b"T" + _pack(_TIMESTAMP, int(seconds.timestamp()))
    elif isinstance(value, Decimal):
        out += b"D" + _encode_decimal(value)
    else:
        raise ValueError(f"a field table cannot hold {type(value).__name__}")


def _pack(form: struct.Struct, value: int) -> bytes:
    try:
        return form.pack(value)
    except struct.error:
        raise ValueError(f"{value} does not fit into a 64-bit field") from None


def _encode_decimal(value: Decimal) -> bytes:
    """Return scale and unscaled value. An exponent above 0 is written out, because AMQP has no negative scale."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"a decimal field cannot hold {value}")
    unscaled = int("".join(map(str, digits)) or "0") * 10 ** max(exponent, 0) * (-1 if sign else 1)
    if not -(1 << 31) <= unscaled < 1 << 31 or exponent < -255:
        raise ValueError(f"{value} does not fit into a decimal field (32 bits, 255 decimals)")
    return _DECIMAL.pack(max(-exponent, 0), unscaled)

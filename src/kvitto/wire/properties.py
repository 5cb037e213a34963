"""Basic properties: the 14 optional fields of a content header, as flags and a list.

The broker stores and delivers these bytes as they were received. `Properties` is for clients, and for the few places
that read fields (dead-lettering, user_id, management). Strings keep any bytes of a peer (surrogateescape). Code that
changes a stored list uses `split` and `join`: to encode a decoded table again may make it several times as long, and
would change the types that a consumer sees.
"""

import struct
from collections.abc import Collection, Mapping
from typing import Final

from kvitto.base import limits
from kvitto.base.errors import ConnectionError_
from kvitto.wire.tables import MALFORMED, PARSE_ERRORS, Malformed, Table, edit, encode, explain, read_table

FIELDS: Final = (
    ("content_type", "str"),
    ("content_encoding", "str"),
    ("headers", "table"),
    ("delivery_mode", "octet"),
    ("priority", "octet"),
    ("correlation_id", "str"),
    ("reply_to", "str"),
    ("expiration", "str"),
    ("message_id", "str"),
    ("timestamp", "longlong"),
    ("type", "str"),
    ("user_id", "str"),
    ("app_id", "str"),
    ("cluster_id", "str"),
)
"""The fields in the order of their flags: the first field is the highest bit."""

_BY_BIT = tuple((1 << (15 - i), name, kind) for i, (name, kind) in enumerate(FIELDS))
_UNKNOWN_BITS = 0b11  # bit 0 would announce a second word of flags, bit 1 a 15th field: 0-9-1 has neither
_FLAGS = struct.Struct(">H")
_LONGLONG = struct.Struct(">Q")
_HEADERS, _DELIVERY_MODE, _PRIORITY = 0x2000, 0x1000, 0x0800


class Properties:
    """None means absent. `timestamp` is in seconds since 1970."""

    __slots__ = tuple(name for name, _ in FIELDS)

    def __init__(
        self,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: Table | None = None,
        delivery_mode: int | None = None,
        priority: int | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        expiration: str | None = None,
        message_id: str | None = None,
        timestamp: int | None = None,
        type: str | None = None,
        user_id: str | None = None,
        app_id: str | None = None,
        cluster_id: str | None = None,
    ) -> None:
        self.content_type = content_type
        self.content_encoding = content_encoding
        self.headers = headers
        self.delivery_mode = delivery_mode
        self.priority = priority
        self.correlation_id = correlation_id
        self.reply_to = reply_to
        self.expiration = expiration
        self.message_id = message_id
        self.timestamp = timestamp
        self.type = type
        self.user_id = user_id
        self.app_id = app_id
        self.cluster_id = cluster_id

    def encode(self) -> bytes:
        """Return flags and list, as they follow the body size in a content header. Raise ValueError if a value does not fit."""
        flags = 0
        out = bytearray(b"\0\0")
        for bit, name, kind in _BY_BIT:
            value = getattr(self, name)
            if value is None:
                continue
            flags |= bit
            if kind == "str":
                out += _encode_text(name, value)
            elif kind == "table":
                out += encode(value)
            elif kind == "octet":
                out.append(value)
            else:
                out += _encode_longlong(name, value)
        _FLAGS.pack_into(out, 0, flags)
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> "Properties":
        """Return the properties in `data`, which must hold nothing else. Raise ConnectionError_ 502 if it does not parse."""
        data = bytes(data)
        properties = cls()
        try:
            end = properties._read(data)
            if end != len(data):
                raise Malformed(f"{len(data) - end} bytes after the properties")
        except PARSE_ERRORS as error:
            raise ConnectionError_(MALFORMED, f"malformed properties: {explain(error)}", 60, 0) from None
        return properties

    def _read(self, data: bytes) -> int:
        """Set the fields that are present. Return the position after the last one."""
        flags = int(_FLAGS.unpack_from(data, 0)[0])
        if flags & _UNKNOWN_BITS:
            raise Malformed(f"unknown property flags {flags:#06x}")
        at = 2
        for bit, name, kind in _BY_BIT:
            if not flags & bit:
                continue
            if kind == "str":
                end = at + 1 + data[at]
                if end > len(data):
                    raise Malformed(f"{name} is longer than the header")
                setattr(self, name, data[at + 1 : end].decode("utf-8", "surrogateescape"))
                at = end
            elif kind == "table":
                self.headers, at = read_table(data, at)
            elif kind == "octet":
                setattr(self, name, data[at])
                at += 1
            else:
                setattr(self, name, _LONGLONG.unpack_from(data, at)[0])
                at += 8
        return at

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Properties):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name, _ in FIELDS)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        given = ((name, getattr(self, name)) for name, _ in FIELDS)
        return f"Properties({', '.join(f'{name}={value!r}' for name, value in given if value is not None)})"


def split(data: bytes) -> dict[str, bytes]:
    """Return the fields of an encoded list by name, each with its bytes. Raise ConnectionError_ 502 if it does not parse."""
    try:
        flags = int(_FLAGS.unpack_from(data, 0)[0])
        fields, at = {}, 2
        for bit, name, kind in _BY_BIT:
            if flags & bit:
                end = at + _size(data, at, kind)
                fields[name] = data[at:end]
                at = end
        if at != len(data) or flags & _UNKNOWN_BITS:
            raise Malformed("the fields do not fill the list")
    except PARSE_ERRORS as error:
        raise ConnectionError_(MALFORMED, f"malformed properties: {explain(error)}", 60, 0) from None
    return fields


def join(fields: Mapping[str, bytes]) -> bytes:
    """Return the list of the fields that `split` gives."""
    flags = sum(bit for bit, name, _ in _BY_BIT if name in fields)
    return _FLAGS.pack(flags) + b"".join(fields[name] for _, name, _ in _BY_BIT if name in fields)


def edit_headers(fields: dict[str, bytes], put: Table, drop: Collection[str] = ()) -> None:
    """Put headers into the fields that `split` gives, in place of headers of the same name, and remove the headers
    named in `drop`."""
    try:
        fields["headers"] = edit(fields.get("headers", b"\0\0\0\0"), put, drop)
    except PARSE_ERRORS as error:
        raise ConnectionError_(MALFORMED, f"malformed headers: {explain(error)}", 60, 0) from None


def _size(data: bytes, at: int, kind: str) -> int:
    if kind == "str":
        return 1 + data[at]
    if kind == "table":
        return 4 + int.from_bytes(data[at : at + 4], "big")
    return 1 if kind == "octet" else 8


def priority_of(data: bytes) -> int:
    """Return the priority in an encoded list, or 0 if it has none or ends too early. This raises nothing."""
    flags = int.from_bytes(data[:2], "big")
    if not flags & _PRIORITY:
        return 0
    at = 2
    for bit in (0x8000, 0x4000):
        if flags & bit:
            at += 1 + int.from_bytes(data[at : at + 1], "big")
    if flags & _HEADERS:
        at += 4 + int.from_bytes(data[at : at + 4], "big")
    if flags & _DELIVERY_MODE:
        at += 1
    return int.from_bytes(data[at : at + 1], "big")


def _encode_text(name: str, text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    if len(data) > limits.SHORTSTR_MAX:
        raise ValueError(f"property {name} has {len(data)} bytes, at most {limits.SHORTSTR_MAX} fit")
    return bytes((len(data),)) + data


def _encode_longlong(name: str, value: int) -> bytes:
    try:
        return _LONGLONG.pack(value)
    except struct.error:
        raise ValueError(f"property {name} = {value!r} is not an unsigned 64-bit number") from None

"""Properties as a dict, compiled: what a client does for each message that it publishes or gets as Python objects.

The bytes and the values are those of `wire.properties` and `wire.tables`. Clients choose the names of the properties,
in the order of the flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvitto.base.errors import ConnectionError_
from kvitto.wire import bits
from kvitto.wire.buf import Buf
from kvitto.wire.field_writer import put_short, put_table
from kvitto.wire.fields import Reader
from kvitto.wire.tables import MALFORMED, PARSE_ERRORS, Malformed, explain

# C integers when compiled (see fields.pxd)
_HEADERS, _DELIVERY_MODE, _PRIORITY, _TIMESTAMP, _FIELDS = 2, 3, 4, 9, 14


def read_fields(data: bytes, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the properties in `data` by these 14 names; those that are absent are not in the dict. Raise
    ConnectionError_ 502 if it does not parse."""
    try:
        return read_all(Reader(data, 0), names)
    except PARSE_ERRORS as error:
        raise ConnectionError_(MALFORMED, f"malformed properties: {explain(error)}", 60, 0) from None


def read_all(reader: Reader, names: tuple[str, ...]) -> dict[str, Any]:
    flags = bits.be16(reader.p, reader.take(2))
    if flags & 3:
        raise Malformed(f"unknown property flags {flags:#06x}")
    found: dict[str, Any] = {}
    k = 0
    while k < _FIELDS:
        if flags & (0x8000 >> k):
            if k == _HEADERS:
                found[names[k]] = reader.table(0)
            elif k == _DELIVERY_MODE or k == _PRIORITY:  # noqa: SIM109 - `in` makes a tuple
                found[names[k]] = reader.p[reader.take(1)]
            elif k == _TIMESTAMP:
                found[names[k]] = bits.be64(reader.p, reader.take(8))
            else:
                found[names[k]] = reader.short()
        k += 1
    if reader.at != reader.end:
        raise Malformed(f"{reader.end - reader.at} bytes after the properties")
    return found


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

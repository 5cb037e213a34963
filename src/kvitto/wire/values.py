"""The types of values in field tables that Python lacks, and the errors of bytes that do not parse. `tables` has them all for callers."""

import struct
from datetime import datetime
from decimal import Decimal
from typing import TypeAlias

from kvitto.base import limits
from kvitto.base.errors import SYNTAX_ERROR

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


PARSE_ERRORS = (ValueError, IndexError, struct.error)
"""The exceptions that readers raise on bad bytes (Malformed and UnicodeDecodeError are ValueErrors)."""


def explain(error: Exception) -> str:
    """Say to a peer what was wrong with its bytes. `error` is one of PARSE_ERRORS."""
    if isinstance(error, Malformed):
        return str(error)
    return "a string is not UTF-8" if isinstance(error, UnicodeDecodeError) else "the bytes end too early"

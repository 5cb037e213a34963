"""The options of `format("kvitto-archive")`: read once, checked, and then a frozen object."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from kvitto.spark.errors import OptionError
from kvitto.spark.values import flag, refuse_unknown

MESSAGES: Final = "messages"
SETTLEMENTS: Final = "settlements"
KNOWN: Final = (
    "path",
    "table",
    "queue",
    "startingTimestamp",
    "endingTimestamp",
    "ignoreDamage",
    "includeHeaders",
    "pushFilters",
)
ALWAYS: Final = (-(1 << 62), 1 << 62)


@dataclass(frozen=True, slots=True)
class Options:
    """All options with their defaults applied. `queues` empty means all; times are in ms since 1970, [start, end)."""

    path: Path
    table: str
    queues: frozenset[str]
    start_ms: int
    end_ms: int
    ignore_damage: bool
    include_headers: bool
    push_filters: bool


def read_options(given: Mapping[str, str]) -> Options:
    """Check the options. OptionError says which is wrong and which values it may have."""
    values = {name.lower(): value for name, value in given.items()}
    refuse_unknown(values, KNOWN, "format 'kvitto-archive'")
    if "path" not in values:
        raise OptionError(
            "say what to read: .load(DIR), a broker's data directory or an archive directory, one at a time"
        )
    table = values.get("table", MESSAGES).strip().lower()
    if table not in (MESSAGES, SETTLEMENTS):
        raise OptionError(f"option table is {MESSAGES} or {SETTLEMENTS}, not {values['table']!r}")
    start = _time_ms("startingTimestamp", values.get("startingtimestamp"), ALWAYS[0])
    end = _time_ms("endingTimestamp", values.get("endingtimestamp"), ALWAYS[1])
    if start > end:
        raise OptionError("option startingTimestamp is after endingTimestamp")
    return Options(
        path=_local("path", values["path"]),
        table=table,
        queues=frozenset([values["queue"]] if "queue" in values else ()),
        start_ms=start,
        end_ms=end,
        ignore_damage=flag("ignoreDamage", values.get("ignoredamage", "false")),
        include_headers=flag("includeHeaders", values.get("includeheaders", "false")),
        push_filters=flag("pushFilters", values.get("pushfilters", "false")),
    )


def _local(option: str, text: str) -> Path:
    """Return a path of this machine; it may begin with `file:`."""
    scheme = re.match(r"([a-z][a-z0-9+.-]+):", text)
    if scheme is None:
        return Path(text)
    if scheme[1] != "file":
        raise OptionError(f"option {option} is {text!r}: the files are read directly, so give a local or mounted path")
    return Path(unquote(urlsplit(text).path))


def _time_ms(option: str, text: str | None, default: int) -> int:
    """Return milliseconds since 1970 of a number, or of a date and time of ISO 8601 (UTC without a zone)."""
    if text is None:
        return default
    if re.fullmatch(r"\d+", text.strip()):
        return int(text)
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise OptionError(
            f"option {option} is ms since 1970 or a time such as 2026-03-01T12:00:00Z, not {text!r}"
        ) from None
    return to_ms(time)


def to_ms(time: datetime) -> int:
    """Return milliseconds since 1970, rounded down; UTC without a zone."""
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000 // 1)

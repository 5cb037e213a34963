"""The form of the definitions log: one line of JSON under a checksum for each change (docs/formats.md, Definitions).

It encodes and decodes lines, for `definitions.py`, which writes the log, and for the judge of damage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import xxhash

from kvitto.base.errors import StoreError

Key = tuple[str, ...]
Defined = list[tuple[str, Key, Any]]
Line = tuple[int, int, dict[str, Any] | None]
"""Where a line begins, where it ends, and the change that it describes; None instead of the change if the line does not verify."""

IDS = {"queue": ("id",), "stage": ("id",), "exchange": ("waiting", "passage")}
"""By kind of definition, the fields of its value with the ids of its directories in `queues/`. An exchange has one for the messages
that it delays, and one if it deduplicates."""
DIGITS = 16
DURABLE_WIDTH = 12
"""The number is padded to this width, so that a line's length does not depend on it; JSON allows spaces before a value."""


def owned(kind: str, value: Any) -> list[str]:
    """Return the ids of the directories in `queues/` that belong to a definition."""
    return [value[field] for field in IDS.get(kind, ()) if isinstance(value.get(field), str)]


def encode(op: str, kind: str, key: Key, value: Any, durable: int) -> bytes:
    """Return the line of a change. A "put" has a `value`. `durable`: how many bytes of the log are known to be synced."""
    change: dict[str, Any] = {"op": op, "kind": kind, "key": key}
    if op == "put":
        change["value"] = value
    text = f'{{"durable":{durable:>{DURABLE_WIDTH}}, {json.dumps(change)[1:]}'.encode()
    return xxhash.xxh3_64_hexdigest(text).encode() + b" " + text + b"\n"


def lines(data: bytes, path: str) -> Iterator[Line]:
    """Yield the lines of a log. Raises StoreError, which names `path`, for a line that verifies and is not understood."""
    at = 0
    while at < len(data):
        newline = data.find(b"\n", at)
        after = newline + 1 if newline >= 0 else len(data)
        yield at, after, _parse(data[at:after], path)
        at = after


def is_whole(line: bytes) -> bool:
    """Return whether a line is complete and fits its checksum."""
    text = line[DIGITS + 1 : -1]
    if line[DIGITS : DIGITS + 1] != b" " or line[-1:] != b"\n":
        return False
    return xxhash.xxh3_64_hexdigest(text).encode() == line[:DIGITS]


def _parse(line: bytes, path: str) -> dict[str, Any] | None:
    """Return the change that a line describes, None if the line does not verify."""
    if not is_whole(line):
        return None
    text = line[DIGITS + 1 : -1]
    try:
        change = json.loads(text)
        known = change["op"] in ("put", "delete") and isinstance(change["durable"], int)
        known = known and isinstance(change["kind"], str) and all(isinstance(part, str) for part in change["key"])
        known = known and (change["op"] == "delete" or "value" in change)
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise StoreError(
            f"{path} has a line that this version of Kvitto does not understand: start the version that wrote it. "
            f"The line: {text[:200].decode(errors='replace')}"
        )
    assert isinstance(change, dict)
    return change

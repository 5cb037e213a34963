"""Tables for people: aligned columns, with numbers to the right, and without characters that a terminal would obey."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

UNKNOWN = "-"
"""Stands in a table for a number that nobody knows."""


def cell(value: Any) -> str:
    """Return a value on one line. Names come from any client, so control characters are shown and not sent to the terminal."""
    if value is None or value in ({}, []):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        value = json.dumps(value)
    elif isinstance(value, list):
        value = ", ".join(str(item) for item in value)
    return printable(str(value))


def printable(text: str) -> str:
    """Return the text with unprintable characters (control characters, halves of UTF-16) as escapes."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun in singular or plural: "1 queue", "2,000 queues"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return lines with aligned columns; a column of numbers is aligned to the right."""
    cells = [[cell(value) for value in row] for row in rows]
    columns = range(len(headers))
    widths = [max([len(headers[i]), *(len(row[i]) for row in cells)]) for i in columns]
    right = [all(isinstance(row[i], int | float) or row[i] == UNKNOWN for row in rows) and bool(rows) for i in columns]
    lines = []
    for line in [list(headers), *cells]:
        texts = [text.rjust(widths[i]) if right[i] else text.ljust(widths[i]) for i, text in enumerate(line)]
        lines.append("  ".join(texts).rstrip())
    return "\n".join(lines)

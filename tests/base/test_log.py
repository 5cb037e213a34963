"""What peers can do to the log: have their names and texts in it, and nothing else."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from kvitto.base.log import LINE_MAX, Formatter, JsonFormatter

FORMATTERS = pytest.mark.parametrize("formatter", [Formatter(), JsonFormatter()], ids=["text", "json"])


def line(formatter: logging.Formatter, message: str, *args: object, exc_info: Any = None) -> str:
    return formatter.format(logging.LogRecord("kvitto.amqp", logging.INFO, __file__, 1, message, args, exc_info))


@FORMATTERS
@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("a\nb", r"a\nb"),
        ("a\rb", r"a\rb"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b2J\x7f", r"\x9b2J\x7f"),
        ("\u2028\u202e", r"\u2028\u202e"),
        ("\udcff", r"\udcff"),
    ],
)
def test_what_a_peer_sends_stays_on_its_line_and_commands_no_terminal(
    formatter: logging.Formatter, name: str, escaped: str
) -> None:
    got = line(formatter, "%s: closed", name)
    assert got.isprintable()
    assert f"{escaped}: closed" in (json.loads(got)["message"] if isinstance(formatter, JsonFormatter) else got)


@FORMATTERS
def test_what_people_can_read_stays_as_it_is(formatter: logging.Formatter) -> None:
    assert "gästbok 'ö' \\ 日本" in line(formatter, "gästbok 'ö' \\ 日本").replace("\\\\", "\\")


@FORMATTERS
@pytest.mark.parametrize("name", ["x" * 1_000_000, "\0" * 1_000_000])
def test_a_line_has_an_end(formatter: logging.Formatter, name: str) -> None:
    got = line(formatter, "%s", name)
    assert len(got) < LINE_MAX * 2 + 200
    assert "(cut)" in got


@FORMATTERS
def test_no_line_of_a_traceback_can_pass_for_an_event(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("2026-01-01 00:00:00,000 INFO kvitto: \x1b[31m\n2026-01-01 00:00:00,000 INFO kvitto: forged")
    except ValueError:
        got = line(formatter, "internal error", exc_info=sys.exc_info())
    assert "\x1b" not in got
    lines = json.loads(got)["exception"].split("\n") if isinstance(formatter, JsonFormatter) else got.split("\n")[1:]
    assert "Traceback" in lines[0] and "forged" in lines[-1]
    assert all(text.startswith("    ") for text in lines)

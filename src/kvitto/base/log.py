"""The log of `kvitto serve`: the form of its lines, its level, and both of them changed while it runs.

Peers choose names and texts that are logged, so each event is one line of bounded length. `cli.serve` sets it up, and the
management API changes it. In a program that embeds a broker the log is the program's.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from kvitto.base.table import printable

LEVELS = ("debug", "info", "warning", "error")
OURS = logging.getLogger("kvitto")
LINE_MAX = 2000
"""The maximum number of characters of a message, and of each line of a traceback."""
TRACE_LINES_MAX = 200


def shown(text: str) -> str:
    """Return the text on one line, without characters that a terminal would obey, cut at LINE_MAX."""
    whole = printable(text[: LINE_MAX + 1])
    return whole if len(whole) <= LINE_MAX else f"{whole[:LINE_MAX]}... (cut)"


class Formatter(logging.Formatter):
    """Formats an event as one line. The lines of a traceback are indented, so that none of them looks like an event."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = shown(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"    {shown(line)}" for line in lines[-TRACE_LINES_MAX:])


class JsonFormatter(Formatter):
    """Formats an event as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": shown(record.getMessage()),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


_handler: logging.Handler | None = None
"""Set up by `set_up`: what writes the lines of this process."""


def set_up(as_json: bool, level: str = "info") -> None:
    global _handler
    _handler = logging.StreamHandler(sys.stderr)
    logging.basicConfig(level=logging.INFO, handlers=[_handler], force=True)
    set_json(as_json)
    set_level(level)


def set_level(name: str) -> None:
    """Log what has this level or a higher one. Details of the libraries below are never logged."""
    number = getattr(logging, name.upper())
    OURS.setLevel(number)
    if _handler is not None:
        logging.getLogger().setLevel(max(number, logging.INFO))


def level() -> str:
    return logging.getLevelName(OURS.getEffectiveLevel()).lower()


def set_json(as_json: bool) -> bool:
    """Write JSON or text from now on. Return whether this process has such a log."""
    if _handler is None:
        return False
    _handler.setFormatter(JsonFormatter() if as_json else Formatter())
    return True


def is_json() -> bool:
    return _handler is not None and isinstance(_handler.formatter, JsonFormatter)

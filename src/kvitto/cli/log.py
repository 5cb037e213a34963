"""Log lines. Peers choose names and texts that are logged: whatever they send, an event stays one line of bounded length."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from kvitto.base.table import printable

LINE_MAX = 2000
"""Characters of a message, and of each line of a traceback."""
TRACE_LINES_MAX = 200


def shown(text: str) -> str:
    """On one line, nothing in it that a terminal would obey, cut at LINE_MAX."""
    whole = printable(text[: LINE_MAX + 1])
    return whole if len(whole) <= LINE_MAX else f"{whole[:LINE_MAX]}... (cut)"


class Formatter(logging.Formatter):
    """A line per event; the lines of a traceback behind it are indented, so that none of them can pass for an event."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = shown(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"    {shown(line)}" for line in lines[-TRACE_LINES_MAX:])


class JsonFormatter(Formatter):
    """The same as an object per line."""

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


def set_up(as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else Formatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)

"""The format of log lines. Peers choose names and texts that are logged, so each event is one line of bounded length."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from kvitto.base.table import printable

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


def set_up(as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else Formatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)

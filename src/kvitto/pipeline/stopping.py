"""SIGINT and SIGTERM as a wish to stop in order, and a line of progress that writes over itself on a terminal."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType
from typing import Final

PROGRESS_S: Final = 5.0
"""Between lines of progress where stderr is no terminal."""


class Stop:
    """True once SIGINT or SIGTERM has come. Made after the Spark session, which has a handler of its own."""

    def __init__(self) -> None:
        self._asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def __call__(self) -> bool:
        return self._asked


class Progress:
    """Says how far a job is, on stderr: at most one line in PROGRESS_S, on a terminal one line that changes."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._said = ""
        self._at = 0.0

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if text == self._said or (not self._terminal and now - self._at < PROGRESS_S):
            return
        self._said, self._at = text, now
        print(f"\r{text}\033[K" if self._terminal else text, end="" if self._terminal else "\n", file=sys.stderr)
        sys.stderr.flush()

    def end(self) -> None:
        """Leave the last line as it is."""
        if self._terminal and self._said:
            print(file=sys.stderr)

"""SIGINT and SIGTERM as a request to stop in order, and a progress line that overwrites itself on a terminal."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType
from typing import Final

PROGRESS_S: Final = 5.0
"""The time between progress lines if stderr is not a terminal."""


class Stop:
    """`with Stop() as stop`: `stop()` is true after SIGINT or SIGTERM. Enter it after Spark has started, which sets its
    own handlers."""

    def __enter__(self) -> Stop:
        self._asked = False
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def __call__(self) -> bool:
        return self._asked


class Progress:
    """`with Progress() as progress` prints the progress of a job on stderr; one line in PROGRESS_S, on a terminal one
    that changes."""

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

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._terminal and self._said:
            print(file=sys.stderr)

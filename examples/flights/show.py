"""What the run says while it runs: events as lines, and below them one line of counts that is kept up to date."""

from __future__ import annotations

import shutil
import sys
import time

QUIET_S = 5.0
"""Without a terminal a line of counts is printed this often."""


class Display:
    """Times are seconds since it was made."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.terminal = sys.stdout.isatty()
        self._last = 0.0
        self._shown = ""

    def now(self) -> float:
        return time.monotonic() - self.started

    def event(self, text: str) -> None:
        """Something that happened."""
        self._clear()
        print(f"{self.now():6.1f} s  {text}", flush=True)
        if self._shown:
            self._line(self._shown)

    def counts(self, total: int, counts: dict[str, int]) -> None:
        """The state: a bar for the share that has landed, and the numbers."""
        done = counts.get("landed", 0) / max(total, 1)
        bar = "█" * int(20 * done) + "·" * (20 - int(20 * done))
        text = "  ".join(f"{name} {count:,}" for name, count in counts.items())
        self._shown = f"{self.now():6.1f} s  {bar} {text}"
        if self.terminal:
            self._clear()
            self._line(self._shown)
        elif self.now() - self._last >= QUIET_S:
            self._last = self.now()
            print(self._shown, flush=True)

    def end(self) -> None:
        """No more counts."""
        self._clear()
        self._shown = ""

    def _clear(self) -> None:
        if self.terminal:
            print("\r\x1b[K", end="")

    def _line(self, text: str) -> None:
        if self.terminal:
            # a full line would wrap and could not be cleared
            print(text[: shutil.get_terminal_size().columns - 1], end="", flush=True)

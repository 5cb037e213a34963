"""Runs an example as a user would: as a process of its own, its lines read while it runs."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

from tests.support.wait import wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class Script:
    """One running example; leaving the block kills what still runs."""

    def __init__(self, path: str, *args: object, url: str, cwd: Path) -> None:
        environment = {**os.environ, "AMQP_URL": url, "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / path), *map(str, args)],
            env=environment,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )
        self.name = path
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            self.lines.extend(line.rstrip("\n") for line in output)

    def count(self, words: str) -> int:
        """How many lines so far contain the words."""
        return sum(words in line for line in self.lines)

    def wait_for(self, words: str, count: int = 1) -> None:
        """Until so many lines contain the words."""
        wait_until(lambda: self.count(words) >= count, 30, f"{self.name} says {words!r} x {count}; said {self.lines}")

    def wait_end(self) -> int:
        """Exit code, once the example has ended by itself and all its output is read."""
        code = self.process.wait(60)
        self._reader.join(10)
        return code

    def kill(self) -> None:
        """SIGKILL: no goodbye, no flush."""
        self.process.kill()
        self.process.wait()
        self._reader.join(10)

    def __enter__(self) -> "Script":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

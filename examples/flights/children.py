"""The processes of the run: started in sessions of their own, so that one can be killed with all it has started.

Spark's driver is a Python that starts a Java that starts Pythons in process groups of their own; what they all share is
the session. Only processes of a session that this run made are ever signalled.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from kvitto.base.process import session_members

LINES_KEPT = 1000
STOP_S = 20.0


class Child:
    """One process, a Python module unless `program` says otherwise; its stdout comes as `lines`, its stderr goes to a log file."""

    def __init__(
        self, name: str, arguments: list[str], log: Path, program: Sequence[str] = (sys.executable, "-m")
    ) -> None:
        self.name = name
        self.log = log
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [*program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                text=True,
                errors="replace",
            )
        self._reader = threading.Thread(target=self._read, name=f"{name} output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def take(self) -> list[str]:
        """The lines since the last call."""
        taken: list[str] = []
        while self.lines:
            taken.append(self.lines.popleft())
        return taken

    def expect(self, pattern: str, timeout_s: float) -> re.Match[str]:
        """The first line that matches; RuntimeError if the process ends or is silent instead."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            ended = not self.running
            for line in self.take():
                if match := re.search(pattern, line):
                    return match
            if ended:
                raise RuntimeError(self.why("ended too early"))
            time.sleep(0.02)
        raise RuntimeError(self.why(f"did not say {pattern!r} within {timeout_s:g} s"))

    def why(self, what: str) -> str:
        """A message about this process with the end of its log."""
        tail = self.log.read_text(errors="replace").splitlines()[-15:]
        return "\n".join([f"{self.name} (pid {self.pid}) {what}; the end of {self.log}:", *tail])

    def kill(self) -> int:
        """SIGKILL for the process and all of its session; how many there were."""
        killed: set[int] = set()
        # again until none is left: one may have been about to start another
        while members := session_members(self.pid) or ([self.pid] if self.running else []):
            for pid in members:
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
                except ProcessLookupError:
                    continue
            self.process.poll()
            time.sleep(0.01)
        self._end()
        return len(killed)

    def stop(self) -> int:
        """SIGTERM, and SIGKILL for what is left; the exit code."""
        if self.running:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        self.kill()
        return self.process.returncode

    def _end(self) -> None:
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

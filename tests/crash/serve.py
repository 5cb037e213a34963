"""A broker in a process of its own, to be killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

READY = re.compile(r"kvitto ready amqp=127\.0\.0\.1:(\d+) ")
STOP_S = 20.0


class Served:
    """`kvitto serve` on a data directory; what it logs is kept for the report of a failed test. `wrapper`: a command that runs it."""

    def __init__(
        self,
        data: Path,
        *options: str,
        before: Callable[[], None] | None = None,
        env: dict[str, str] | None = None,
        wrapper: Sequence[str] = (),
        program: Sequence[str] = ("-m", "kvitto.cli.main"),
    ) -> None:
        self.data = data
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the broker
        command = [sys.executable, *program, "serve", "--data-dir", str(data), "--port", "0"]
        self.process = subprocess.Popen(
            [*wrapper, *command, "--http-port", "0", *options],
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            preexec_fn=before,  # noqa: PLW1509 - sets a limit, nothing else
        )
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()
        ready = READY.match(self.ready)
        if ready is None:
            self.process.wait(STOP_S)
            raise AssertionError(f"the broker did not start:\n{self.log()}")
        self.port = int(ready[1])

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if error is not None:
            print(self.log())
        self.errors.close()

    def log(self) -> str:
        self.errors.seek(0)
        return self.errors.read()

    def kill(self) -> None:
        """SIGKILL, nothing is written any more."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> int:
        """SIGTERM; gives the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)

    def rss(self) -> int:
        """Resident bytes now."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def rss_max(self) -> int:
        """Resident bytes at their highest."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

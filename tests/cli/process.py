"""`kvitto` as a process of its own, as a shell would start it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvitto.base.readable import readable

KVITTO = [sys.executable, "-m", "kvitto.cli.main"]
READY = re.compile(
    r"^kvitto ready amqp=127\.0\.0\.1:(?P<amqp>\d+)(?: http=(?P<http_host>[\d.]+):(?P<http>\d+))?"
    r" data=(?P<data>/\S+) pid=(?P<pid>\d+)(?: tls=127\.0\.0\.1:(?P<tls>\d+))?"
    r"(?: also=(?P<also>\S+))?\n$"
)
TIMEOUT_S = 20.0


def kvitto(*arguments: str, stdin: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run(
        [*KVITTO, *arguments], input=stdin, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


class Serving:
    """`ready`: the parts of the line that `kvitto serve` has printed."""

    def __init__(self, process: subprocess.Popen[str], ready: dict[str, str]) -> None:
        self.process = process
        self.ready = ready
        self.amqp_url = f"amqp://guest:guest@127.0.0.1:{ready['amqp']}/%2f"
        self.http_url = f"http://guest:guest@{ready['http_host']}:{ready['http']}"

    def stop(self) -> tuple[int, str, str]:
        """SIGTERM; exit code, what stdout had after the line, stderr."""
        self.process.terminate()
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, out, err


@contextmanager
def serving(data_dir: Path, *arguments: str) -> Iterator[Serving]:
    """`kvitto serve` on free ports, from its line until the end of the block, at the latest."""
    command = [*KVITTO, "serve", "--data-dir", str(data_dir), "--port", "0", "--http-port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stderr is not None
        assert readable(process.stdout, TIMEOUT_S), "no line on stdout"
        line = process.stdout.readline()
        match = READY.match(line)
        assert match, (line, process.stderr.read() if not line else "")
        yield Serving(process, match.groupdict())
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()

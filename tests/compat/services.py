"""Processes that a run needs beside the suites: the broker under test, and Redis for celery's results."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.compat.fetch import CACHE, Unavailable
from tests.compat.suites import Broker

LOG = CACHE / "kvitto.log"  # of all brokers that a run starts
READY = re.compile(r"^kvitto ready amqp=(?P<host>\S+):(?P<port>\d+) http=\S+:(?P<http>\d+) ")


@contextlib.contextmanager
def kvitto() -> Iterator[Broker]:
    """A `kvitto serve` on a free port with a directory of its own, for as long as the block lasts."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kvitto-compat-") as data, LOG.open("a") as log:
        process = subprocess.Popen(
            [*kvitto_command(), "--port", "0", "--http-port", "0", "--data-dir", data],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            with process.stdout as output:  # one line, and nothing after it
                line = output.readline()
            ready = READY.match(line)
            if not ready:
                raise Unavailable(f"kvitto serve did not get ready; see {LOG}")
            yield Broker(ready["host"], int(ready["port"]), http_port=int(ready["http"]))
            if process.poll() is not None:
                raise Unavailable(f"kvitto serve ended with {process.returncode}; see {LOG}")
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def redis() -> Iterator[dict[str, str]]:
    """A Redis server on a free port; yields the variables by which celery's tests find it."""
    server = shutil.which("redis-server")
    if not server:
        raise Unavailable("celery's tests keep results in Redis: install it (apt-get install redis-server)")
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="kvitto-redis-") as place:
        command = [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", place]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            _wait_open(port)
            yield {
                "TEST_BACKEND": f"redis://127.0.0.1:{port}",
                "REDIS_HOST": "127.0.0.1",
                "REDIS_PORT": str(port),
            }
        finally:
            process.terminate()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_open(port: int, limit: float = 10.0) -> None:
    end = time.monotonic() + limit
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def kvitto_command() -> list[str]:
    """How to start the broker of this checkout: the `kvitto` beside this interpreter."""
    beside = Path(sys.executable).with_name("kvitto")
    return [str(beside), "serve"] if os.access(beside, os.X_OK) else [sys.executable, "-m", "kvitto", "serve"]

"""A Prometheus on a free port with a directory of its own, and promtool (Debian: apt-get install prometheus)."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.support.wait import wait_until

LISTENING = re.compile(r'msg="?Listening on"? address="?(127\.0\.0\.1:\d+)')
READY = "Server is ready to receive web requests"
MISSING = "Prometheus is not installed (Debian: apt-get install prometheus)"


def program(name: str) -> str:
    """Return the path of a program of Prometheus, or skip the test."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(MISSING)
    return found


def promtool() -> str:
    return program("promtool")


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **values: str) -> Any:
        """Return `data` of an answer of the HTTP API."""
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(values)}", timeout=30) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def query(self, expression: str) -> list[Any]:
        """Evaluate an expression. Return the series."""
        data = self.ask("query", query=expression)
        assert data["resultType"] == "vector", data
        return list(data["result"])

    def value(self, expression: str) -> float | None:
        """Return the value of the only series; None if there is none."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None


@contextlib.contextmanager
def prometheus(place: Path, config: dict[str, Any]) -> Iterator[Prometheus]:
    """Run Prometheus with this configuration for as long as the block lasts."""
    settings = place / "prometheus.yml"
    settings.write_text(json.dumps(config))  # JSON is YAML
    output = place / "log"
    command = [program("prometheus"), f"--config.file={settings}", f"--storage.tsdb.path={place / 'data'}"]
    with output.open("w") as log:
        process = subprocess.Popen([*command, "--web.listen-address=127.0.0.1:0"], stdout=log, stderr=log)
    try:
        wait_until(lambda: READY in output.read_text() or process.poll() is not None, timeout=60)
        found = LISTENING.search(output.read_text())
        assert found is not None and process.poll() is None, output.read_text()
        yield Prometheus(f"http://{found[1]}")
    finally:
        process.terminate()
        process.wait()

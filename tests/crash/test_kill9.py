"""P2, C2, C5, A5, A6, A9, A11, T4, X4: a real broker, real clients, and SIGKILL under load, again and again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvitto.torture import plan
from kvitto.torture.nodes import Kvitto
from kvitto.torture.report import as_text
from kvitto.torture.run import Run, Wanted
from tests.crash.serve import Served

CYCLES = int(os.environ.get("KVITTO_KILLS", "20"))


def torture(place: Path, wanted: Wanted) -> Run:
    run = Run(Kvitto(place), wanted, "", print)
    run.go()
    report = as_text(run.outcome, run.oracle)
    assert run.outcome.passed(run.oracle), report
    print(report)
    return run


@pytest.mark.timeout(max(300, 5 * CYCLES))
def test_kill_under_load(tmp_path: Path) -> None:
    """Nothing confirmed is lost, nothing settled comes back, order is kept, `redelivered` is right, 20 times.

    After two of them the start is killed as well, once and twice, while it recovers.
    """
    run = torture(tmp_path, Wanted(plan.DEFAULT, seed=1772, cycles=CYCLES))
    assert run.outcome.cycles.total() == CYCLES
    assert run.oracle.confirmed > 1000 * CYCLES and run.oracle.groups > CYCLES
    assert CYCLES < 20 or run.outcome.killed_starts["recovering"] > 0, run.outcome.killed_starts


def test_stop_under_load(tmp_path: Path) -> None:
    """SIGTERM loses nothing, and ends with 0."""
    run = torture(tmp_path, Wanted(("restart",), seed=3, cycles=3))
    assert run.outcome.cycles == {"restart": 3}


def test_a_second_start_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    """D5: with the reason, and a code that is not zero."""
    with Served(tmp_path / "data") as broker:
        command = [sys.executable, "-m", "kvitto.cli.main", "serve", "--data-dir", str(broker.data), "--port", "0"]
        second = subprocess.run([*command, "--http-port", "0"], capture_output=True, text=True, timeout=30, check=False)
        assert second.returncode != 0 and second.stdout == ""
        assert f"is in use by process {broker.process.pid}" in second.stderr
        assert "Traceback" not in second.stderr
        assert broker.stop() == 0


pytestmark = pytest.mark.slow

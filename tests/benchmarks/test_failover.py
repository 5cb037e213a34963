"""`python -m benchmarks.failover`: it ends a leader in each way, and another one confirms."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvitto.torture import network

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("etcd") is None, reason="needs Debian's etcd-server")
@pytest.mark.skipif(network.refusal() != "", reason=f"no network of its own: {network.refusal()}")
@pytest.mark.timeout(600)
def test_another_node_confirms_in_each_way_in_which_a_leader_may_be_lost(tmp_path: Path) -> None:
    words = ["--network", "--gb", "0.001", "--queues", "1", "--times", "1", "--place", str(tmp_path / "place")]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.failover", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout.partition("the leader's end")[2].splitlines()[1:]
    ways = [row.partition("  ")[0] for row in table]
    assert ways == ["kill -9", "SIGSTOP", "SIGTERM", "cut from its followers", "cut from everything"]
    assert not (tmp_path / "place").exists()

"""Exactly once, from queue to table and from queue to queue, whatever is killed meanwhile (the short form of chaos/run.py)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.spark.chaos.cluster import Cluster
from tests.spark.chaos.run import Chaos

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_nothing_is_lost_or_doubled_whoever_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    kills = {"driver": 2, "executor": 2, "broker": 1}
    report = Chaos(tmp_path, 100_000, kills, Random().randrange(1 << 32), cluster).run()
    print(report)
    assert report.right, str(report)

"""The overload measurement in small: an alarm that comes and goes, others that are served all the time, memory that stays."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from benchmarks import overload

MEMORY = Path("/dev/shm")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MEMORY.is_dir(), reason="needs a file system that nobody else writes to: /dev/shm"),
]


def test_a_flood_does_not_drown_the_others() -> None:
    """W8, D4. The times of a shared machine prove only that all were answered; `python -m benchmarks.overload` has the figures."""
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="kvitto-test-") as place:
        phases = {phase.name: phase for phase in overload.measure(overload.Kvitto(Path(place)), 200, 100, 0.1)}
    flood = phases["a publisher at full speed"]
    assert flood.mib >= 60 and flood.connections == 200
    assert len(flood.declares) >= 3 and phases["publishers are blocked"].declares
    assert overload.quantile(flood.confirms, 0.5) < 1000
    assert not [text for text in overload.verdict([*phases.values()]) if text.startswith("RSS")]


def test_what_missed_is_said() -> None:
    calm = [overload.Phase("calm", 0, [1.0], [1.0], rss_mib=50.0)] * 3
    assert overload.verdict(calm) == []
    bad = overload.Phase("flood", 0, [1.0] * 98 + [60.0] * 2, [49.0] * 100, rss_mib=150.0)
    assert overload.verdict([*calm, bad]) == [
        "confirm p99 60.0 ms while: flood",
        "RSS grew from 50 to 150 MiB under the flood",
    ]

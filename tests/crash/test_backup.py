"""Backups of a real broker under load, each of which a broker starts on, and SIGKILL while they are taken (benchmarks/backup.py)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.backup import BackupRun
from kvitto.torture.run import Wanted

BACKUPS = int(os.environ.get("KVITTO_BACKUPS", "3"))


@pytest.mark.slow
@pytest.mark.timeout(300 + 60 * BACKUPS)
def test_backups_and_kills_under_load(tmp_path: Path) -> None:
    """All that was confirmed before the command is there, what was settled is not, nothing is half; incomplete ones are refused."""
    run = BackupRun(tmp_path, Wanted((), 7, cycles=BACKUPS), pause_s=0.5, kills=4, rate=2000)
    run.go()
    run.tell()
    assert not run.counts.findings, run.counts.findings
    assert run.outcome.passed(run.oracle)
    assert run.counts.backups == BACKUPS and run.counts.owed > 1000 and run.counts.kills == 4

"""Exceptions at generated call sites of the data plane (docs/adr/0015): in a process of its own, in which all calls are marked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXCEPTIONS = int(os.environ.get("KVITTO_EXCEPTIONS", "250"))
SEED = int(os.environ.get("KVITTO_SEED", "0")) or int.from_bytes(os.urandom(3), "big")


@pytest.mark.skipif(os.environ.get("KVITTO_PURE") != "1", reason="the calls of the interpreted form are marked")
@pytest.mark.timeout(600)
def test_an_exception_anywhere_ends_its_owner_only_and_loses_nothing_that_was_confirmed() -> None:
    """C2, A6, T4, X4: `KVITTO_EXCEPTIONS=100000` raises at all sites of these days."""
    command = [sys.executable, "-m", "tests.inject", "--seed", str(SEED), "--days", "2", "--most", str(EXCEPTIONS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    assert done.stdout.endswith("\n0 findings\n")

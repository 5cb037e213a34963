"""Delayed messages over a few kills; `python -m tests.crash.delayed` does a hundred."""

from pathlib import Path

from tests.crash import delayed


def test_delayed_messages_are_neither_lost_nor_early_nor_doubled_by_kills(tmp_path: Path) -> None:
    """P2, X4"""
    ledger = delayed.run(3, 1, tmp_path)
    assert (ledger.missing, ledger.early, ledger.twice) == (set(), [], [])
    assert ledger.confirmed

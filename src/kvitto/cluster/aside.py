"""The directories `replaced/EPOCH-TIME/`, which have the files that a leader lacked, or had with other bytes (docs/cluster.md)."""

from __future__ import annotations

from datetime import UTC, datetime

from kvitto.store import paths
from kvitto.store.disk import Disk

KEPT_MS = 24 * 3600 * 1000
"""Replaced files are kept for this time."""


def name_of(epoch: int, now_ms: int) -> str:
    """Return the directory for files that are replaced now because the leader of this epoch says so."""
    return f"{paths.REPLACED}/{epoch}-{_stamp(now_ms)}"


def too_old(disk: Disk, now_ms: int) -> list[str]:
    """Return the directories that have been kept long enough."""
    before = _stamp(now_ms - KEPT_MS)
    return [f"{paths.REPLACED}/{name}" for name in disk.listdir(paths.REPLACED) if name.partition("-")[2] < before]


def of_earlier_leaders(disk: Disk, epoch: int) -> list[str]:
    """Return the directories that may be removed early if the disk is full: those from before the election of this epoch.

    Files that the leader of this epoch has replaced are kept, because it may be the wrong leader if etcd was set back.
    """
    return [f"{paths.REPLACED}/{name}" for name in disk.listdir(paths.REPLACED) if not name.startswith(f"{epoch}-")]


def _stamp(ms: int) -> str:
    """Return a time in a form for names, in which later times are greater."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y%m%d-%H%M%S")

"""The room that messages may take on the disk, so that what frees some never lacks it (D4). The store and its logs ask for it."""

from __future__ import annotations

from kvitto.base.errors import StoreFull
from kvitto.store.disk import Disk

ROOM_KEPT = 16 << 20
"""Bytes that messages leave free on the disk: where they have no room, settlements and definitions still do, and make some (D4)."""
ROOM_STEP = 16 << 20
"""The disk is asked for its free bytes once for so many bytes of messages."""


class Room:
    """`syncing`: whether the store syncs its files at all."""

    def __init__(self, disk: Disk, syncing: bool) -> None:
        self._disk = disk
        self.syncing = syncing
        self.short = False
        """Whether there is little room on the disk: segments that are settled are removed at once then, however small."""
        self._left = 0
        """What may be taken before the disk is asked again."""

    def take(self, size: int, path: str) -> None:
        """Ask for room before `size` bytes of messages are written to `path`. Raises StoreFull if too little would be left."""
        if size > self._left:
            self._left = min(self._disk.free_bytes() - ROOM_KEPT, max(ROOM_STEP, size))
            if size > self._left:
                left = f"{ROOM_KEPT >> 20} MiB must stay free for what frees space"
                raise StoreFull(f"cannot write messages to {path}: {left} (free some on this file system)")
        self._left -= size

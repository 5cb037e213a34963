"""How much room messages may take on the disk (D4). The logs and the journal ask before they write."""

from __future__ import annotations

from kvitto.base.errors import StoreFull
from kvitto.store.disk import Disk

ROOM_KEPT = 16 << 20
"""Bytes that messages leave free on the disk: where they have no room, settlements and definitions still do, and make some (D4)."""
ROOM_STEP = 16 << 20
"""The disk is asked for its free bytes once for so many bytes of messages."""


class Room:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
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

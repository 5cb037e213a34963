"""Unlinks files a few at a time, because a file system needs milliseconds to free a large file, and the loop waits for that.

Used by the store for segments, journal files and directories that are no longer needed. A start removes what is left after a kill.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kvitto.base.turn_part import TurnPart
from kvitto.store.disk import Disk

REMOVED_PER_TURN = 64 << 20
"""How many bytes of files are unlinked in one turn: a file system needs some milliseconds to free so many."""
FREEING = 4
"""No file is unlinked while the bytes of more than this many removed files have not been freed."""
FILE_COST = 256 << 10
"""Unlinking even an empty file takes about as long as freeing this many bytes, so they are added to the size of each file."""
DIRECTORY_COST = 2 << 20
"""The same cost for a directory, which is removed together with the small files in it."""
SMALL_FILE = 1
"""The size to give for a file that is not large, because 0 stands for a directory."""


class Removals(TurnPart):
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.waiting: deque[tuple[int, Callable[[], None]]] = deque()
        """The files that wait, in order: their bytes, and the function that unlinks them. A directory counts as 0 bytes."""
        self._removed = 0
        """The bytes of files that have been unlinked since the last turn with removals."""

    def add(self, size: int, unlink: Callable[[], None]) -> None:
        """Call `unlink`, which frees `size` bytes: at once if little has been freed since the last turn, else in a later turn."""
        self.waiting.append((size, unlink))
        if len(self.waiting) == 1:
            self._while_cheap()

    @property
    def may_go_on(self) -> bool:
        """Whether there is a next one, and it need not wait until the bytes of others are free.

        A directory waits for all of them: the kernel spins to remove one while files that were in it are being freed.
        """
        return bool(self.waiting) and self._disk.freeing <= (FREEING if self.waiting[0][0] else 0)

    def some(self) -> None:
        """Unlink as many files as one turn may, beside those that have been unlinked since the last turn."""
        much, self._removed = self._removed >= REMOVED_PER_TURN, 0
        if not much:
            self._while_cheap()

    def all(self) -> None:
        """Unlink all files now, because no further turn follows."""
        while self.waiting:
            self.some()

    def _while_cheap(self) -> None:
        while self._removed < REMOVED_PER_TURN and self.may_go_on:
            size, unlink = self.waiting.popleft()
            self._removed += size + FILE_COST if size else DIRECTORY_COST
            unlink()

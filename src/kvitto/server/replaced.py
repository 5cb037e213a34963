"""Removes the files in `replaced/` (`cluster/aside.py`) when they have been kept for a day. `Server` calls it.

An elected leader that is low on disk does not wait for a day, and removes what was replaced before its election. Otherwise its publishers
would be blocked, although these files belong to no queue any more. A follower whose disk is full does the same (`Follower.make_room`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from kvitto.base.errors import StoreError
from kvitto.cluster.aside import of_earlier_leaders, too_old
from kvitto.store.disk import Disk

LOOK_S = 600
"""The time between two looks for old files, and the time for which a removal that has failed is not tried again."""

log = logging.getLogger("kvitto")


class Replaced:
    def __init__(self, disk: Disk) -> None:
        """`disk`: the disk below the tap, because followers have a `replaced/` of their own and must not be told of this."""
        self._disk = disk
        self._beats = self._again_at = 0
        self._thread: threading.Thread | None = None

    def look(self, now_ms: int, low: bool, epoch: int) -> None:
        """Begin to remove what may be removed. It is called once a second.

        `low`: there is little room on the disk. `epoch`: the one in which this node leads, 0 if it was not elected.
        """
        self._beats += 1
        if self._beats < self._again_at or (self._thread is not None and self._thread.is_alive()):
            return
        if low and epoch:
            self._remove(of_earlier_leaders(self._disk, epoch), "the disk is nearly full")
        elif self._beats % LOOK_S == 1:
            self._remove(too_old(self._disk, now_ms), "it was kept for a day")

    def _remove(self, found: Sequence[str], why: str) -> None:
        if not found:
            return
        # A thread removes them, because a file system needs about 10 ms to free 64 MiB.
        self._thread = threading.Thread(target=self._run, args=(found, why), name="kvitto-replaced", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the system allows no more threads: it is tried again
            self._thread = None

    def _run(self, found: Sequence[str], why: str) -> None:
        try:
            for path in found:
                self._disk.rmtree(path)
        except StoreError as error:
            self._again_at = self._beats + LOOK_S
            log.warning("what was replaced cannot be removed: %s", error)
        else:
            log.info("removed from replaced/, as %s: %s", why, ", ".join(path.partition("/")[2] for path in found))

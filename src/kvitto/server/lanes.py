"""Syncs many files at once, in threads, for a follower. A leader has `Syncer` for that, which belongs to its loop.

A file that has grown makes its file system commit a journal, and syncs that wait at the same time share such a commit. One after the other,
the syncs of a commit with 100 files took a follower four times as long as its leader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

from kvitto.store.disk import Disk, File

LANES = 8
"""The number of files that are synced at the same time."""
FEW = 3
"""Up to this many files are synced in the calling thread, because waking other threads would take as long."""


class Lanes:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LANES - 1, "kvitto-sync")  # they begin when they are needed

    def sync(self, disk: Disk, files: Sequence[File], directories: Sequence[str]) -> None:
        """Sync all of these files and directories, in any order. Raises the first SyncError when every sync has ended."""
        syncs = [file.sync for file in files] + [partial(disk.sync_dir, directory) for directory in directories]
        if len(syncs) <= FEW:
            run(syncs)
            return
        others: list[Future[None]] = []
        try:
            for lane in range(1, min(LANES, len(syncs))):
                others.append(self._threads.submit(run, syncs[lane::LANES]))
        except RuntimeError:  # the system allows no more threads
            self._begin_anew()
            others = [other for other in others if not other.cancelled()]
            mine = syncs  # a second sync of what they have synced changes nothing
        else:
            mine = syncs[::LANES]
        try:
            run(mine)
        finally:
            wait(others)  # until then no file may be closed
        for other in others:
            other.result()

    def _begin_anew(self) -> None:
        """Wait for the syncs that run, and drop those that wait for a thread: the last one was queued although none could be started."""
        self._threads.shutdown(cancel_futures=True)
        self._threads = ThreadPoolExecutor(LANES - 1, "kvitto-sync")


def run(syncs: Sequence[Callable[[], None]]) -> None:
    for sync in syncs:
        sync()

"""Runs sync jobs, one at a time: in a thread of its own, or at once when that is sooner done (docs/adr/0009, 0010)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from queue import SimpleQueue

from kvitto.store.store import LANES, SyncJob

SHORT_S = 0.0005
"""A sync that takes longer goes to the thread: waking it and being woken costs about 0.1 ms."""
WEIGHT = 1 / 8
"""Of the latest sync in the usual time of one."""


class Syncer:
    def __init__(self, loop: asyncio.AbstractEventLoop, done: Callable[[SyncJob], None]) -> None:
        self._loop = loop
        self._done = done
        self._jobs: SimpleQueue[SyncJob | None] = SimpleQueue()
        self._usual = 1.0
        self._pool = ThreadPoolExecutor(LANES, "kvitto-sync")
        self._thread = threading.Thread(target=self._work, name="kvitto-sync", daemon=True)
        self._thread.start()

    def is_short(self, job: SyncJob) -> bool:
        """Whether the job is small and this disk has been quick lately."""
        return job.small and self._usual < SHORT_S

    def submit(self, job: SyncJob) -> None:
        """Have the thread run the job, and `done` called in the loop."""
        self._jobs.put(job)

    def run(self, job: SyncJob) -> None:
        begin = time.perf_counter()
        job.run(self._together)
        job.seconds = time.perf_counter() - begin
        self._usual += (job.seconds - self._usual) * WEIGHT

    def stop(self) -> None:
        self._jobs.put(None)
        self._thread.join()
        self._pool.shutdown()

    def _together(self, calls: list[Callable[[], None]]) -> None:
        running = [self._pool.submit(call) for call in calls]
        wait(running)
        for call in running:
            call.result()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self.run(job)
            self._loop.call_soon_threadsafe(self._done, job)

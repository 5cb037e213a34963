"""The one thread beside the loop: it runs sync jobs, one at a time, and reports back to the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

from kvitto.store.store import SyncJob


class Syncer:
    def __init__(self, loop: asyncio.AbstractEventLoop, done: Callable[[SyncJob], None]) -> None:
        self._loop = loop
        self._done = done
        self._jobs: SimpleQueue[SyncJob | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="kvitto-sync", daemon=True)
        self._thread.start()

    def submit(self, job: SyncJob) -> None:
        self._jobs.put(job)

    def stop(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            self._loop.call_soon_threadsafe(self._done, job)

"""Runs sync jobs, one at a time, in threads (docs/adr/0010, 0019), or in the loop where that takes less time
(docs/adr/0009). `Server` calls it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Generator
from select import PIPE_BUF

from kvitto.base import ticks
from kvitto.server import datasync
from kvitto.server.datasync import DESCRIPTOR, MOST, OUTCOME, REQUEST
from kvitto.store.commit import Commit

SHORT_S = 0.0005
"""A sync that usually takes longer than this is done by a thread. Waking the thread and being woken by it costs about 0.1 ms."""
WEIGHT = 1 / 8
"""The weight of the latest sync in the mean time of a sync."""
LANES = 8
"""So many threads share a job whose files do not fit into one request, or are new. One after the other, each new file would make the file
system commit its journal; at once, most of them share such a commit."""
FREEING_MAX = 16
"""At most this many removed files wait to be freed. Each of them keeps a descriptor open."""
WRITTEN = PIPE_BUF - PIPE_BUF % REQUEST.size
"""At most this many bytes of requests are written at a time, because a pipe takes so many as a whole or not at all."""


class Syncer:
    """Sends descriptors to the threads through one pipe, and reads the outcomes from another pipe, which the loop watches."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, done: Callable[[Commit], None], freed: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._done = done
        self._on_freed = freed
        self.usual = 1.0
        """How long a sync has taken lately, in seconds: a moving mean."""
        self._taken, self._requests = os.pipe()
        self._outcomes, self._told = os.pipe()
        self._gone, self._removed = os.pipe()
        self._counted, self._freed = os.pipe()
        for end in (self._requests, self._outcomes, self._counted):
            os.set_blocking(end, False)
        self._threads: list[threading.Thread] = []
        self._apart: threading.Thread | None = None
        self._job: Commit | None = None
        self._waves: Generator[list[int], None, None]
        self._waiting = memoryview(b"")
        """Requests that have not been written yet, because the pipe was full."""
        self._left = 0
        """The number of requests whose outcomes have not been read yet."""
        self._begin = self._end = 0.0
        """The begin of the first and the end of the last request of the present wave."""
        self._seconds = 0.0
        """The time that the earlier waves of the job have taken, without the time of the loop between them."""
        self.freeing = 0
        """The number of files that have been given to `free` and have not been freed yet."""
        loop.add_reader(self._outcomes, self._read)
        loop.add_reader(self._counted, self._read_freed)
        self._start(1)
        self._remover = threading.Thread(target=self._free, name="kvitto-free", daemon=True)
        self._remover.start()

    def is_short(self, job: Commit) -> bool:
        """Whether the job is small and this disk has been quick lately."""
        return job.is_small() and self.usual < SHORT_S

    def submit(self, job: Commit) -> None:
        """Have the job run by threads. The loop calls `done` when it has ended."""
        if job.apart:
            thread = threading.Thread(target=self._run_apart, args=(job,), name="kvitto-sync", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system allows no more threads
                self.run(job)
                self._loop.call_soon(self._done, job)
            else:
                self._apart = thread
            return
        self._job, self._waves, self._seconds = job, job.waves(), 0.0
        if not self._next():
            self._loop.call_soon(self._end_job)

    def run(self, job: Commit) -> None:
        """Run the job in the calling thread, and return when it has ended."""
        begin = ticks.seconds()
        job.run()
        self.measured(job, ticks.seconds() - begin)

    def free(self, fd: int) -> None:
        """Have a thread close the descriptor of a removed file, because a file system needs about 10 ms to free 64 MiB."""
        if self.freeing < FREEING_MAX:
            os.write(self._removed, DESCRIPTOR.pack(fd))
            self.freeing += 1
        else:
            os.close(fd)

    def stop(self) -> None:
        """Wait until the threads have finished the requests they were given. `done` is not called any more."""
        os.set_blocking(self._requests, True)
        for _ in self._threads:  # closing the pipe is not enough: a child of this process may hold its other end
            os.write(self._requests, REQUEST.pack(-1, *[0] * MOST))
        os.write(self._removed, DESCRIPTOR.pack(-1))
        for thread in (*self._threads, self._remover, self._apart):
            if thread is not None:
                thread.join()
        if self._job is not None:
            self._job = None
            self._waves.close()
        self._loop.remove_reader(self._outcomes)
        self._loop.remove_reader(self._counted)
        both = (self._taken, self._requests, self._outcomes, self._told)
        for end in (*both, self._gone, self._removed, self._counted, self._freed):
            os.close(end)
        self._requests = self._removed = -1

    def _start(self, threads: int) -> None:
        """Start threads that sync until there are this many, or until the system allows no more. One is needed."""
        while len(self._threads) < threads:
            thread = threading.Thread(target=self._serve, name="kvitto-sync", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                if not self._threads:
                    raise
                return
            self._threads.append(thread)

    def _free(self) -> None:
        datasync.free(self._gone, self._freed)

    def _serve(self) -> None:
        datasync.serve(self._taken, self._told)

    def _next(self) -> bool:
        """Send the next wave of the job to the threads. Returns False if there is none, or if a sync of the job has failed."""
        job, descriptors = self._job, None
        assert job is not None
        try:
            if job.error is None:
                descriptors = next(self._waves, None)
        except Exception as error:  # noqa: BLE001 - a sync that cannot be begun has failed (C8)
            job.error = error
        if descriptors is None:
            self._waves.close()
            return False
        each = MOST
        if len(descriptors) > MOST or job.dirs:
            self._start(min(LANES, len(descriptors)))
            each = min(-(-len(descriptors) // LANES), MOST)
        parts = [descriptors[at : at + each] for at in range(0, len(descriptors), each)]
        self._left, self._begin, self._end = len(parts), float("inf"), 0.0
        self._waiting = memoryview(b"".join(REQUEST.pack(len(p), *p, *[-1] * (MOST - len(p))) for p in parts))
        self._write()
        return True

    def _write(self) -> None:
        """Write requests until the pipe is full. `_read` calls this again when outcomes come, since then the pipe has room again."""
        while self._waiting:
            try:
                written = os.write(self._requests, self._waiting[:WRITTEN])
            except BlockingIOError:
                return
            self._waiting = self._waiting[written:]

    def _read(self) -> None:
        job = self._job
        try:
            data = os.read(self._outcomes, OUTCOME.size * MOST)
        except BlockingIOError:
            return
        assert job is not None
        for fd, code, begin, end in OUTCOME.iter_unpack(data):
            self._left -= 1
            self._begin, self._end = min(self._begin, begin), max(self._end, end)
            if code:
                try:
                    job.failed(fd, code)
                except Exception as error:  # noqa: BLE001 - it has failed, whatever else goes wrong (C8)
                    job.error = job.error or error
        if self._left:
            self._write()
            return
        self._seconds += self._end - self._begin
        if not self._next():
            self._end_job()

    def _end_job(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            if self._seconds:
                self.measured(job, self._seconds)
            self._done(job)

    def _read_freed(self) -> None:
        self.freeing -= len(os.read(self._counted, 2 * FREEING_MAX))
        self._on_freed()

    def measured(self, job: Commit, seconds: float) -> None:
        """Note how long a job has taken."""
        job.seconds = seconds
        self.usual += (seconds - self.usual) * WEIGHT

    def _run_apart(self, job: Commit) -> None:
        self.run(job)
        self._loop.call_soon_threadsafe(self._done, job)

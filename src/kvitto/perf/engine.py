"""One thread with one epoll (Linux only): all publishers and consumers of a run share a core without passing a lock to
each other. What an event costs does not depend on the number of connections.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kvitto.perf.options import Options
from kvitto.perf.workers import Worker, serve

IDLE_S = 30.0
"""A run that waits for a number of messages ends when none has come for this time."""
TIMER_S_MIN = 0.0001
"""The shortest time between two ticks of the timer. At higher rates several messages are due at one tick."""
COUNT_S = 0.001
"""The time between two looks whether a run with a number of messages is done, because a look walks over all workers."""


class Rounds:
    """Workers that are each due once in a period, one after the other: their times are spread evenly over the period, and finding those
    that are due needs no walk over the others."""

    def __init__(self, workers: Sequence[Worker], period_s: float, start: float) -> None:
        self.workers = workers
        self.start = start
        self.step_s = period_s / len(workers)
        self.turns = 0

    def due(self, now: float) -> list[tuple[Worker, int]]:
        """Return the workers that have become due since the last call, and how many times each."""
        total = int((now - self.start) / self.step_s)
        count, size, first = total - self.turns, len(self.workers), self.turns
        self.turns = total
        return [(self.workers[(first + k) % size], 1 + (count - 1 - k) // size) for k in range(min(count, size))]


class Engine:
    """Runs workers until the time is over or the counts are reached."""

    def __init__(self, options: Options, publishers: Sequence[Worker], consumers: Sequence[Worker]) -> None:
        self.options = options
        self.publishers = publishers
        self.consumers = consumers
        self.elapsed_s = 0.0
        self.cpu_s = 0.0
        self.broker_cpu_s: float | None = None
        """The CPU time of the broker's process in this time, without what connecting and closing cost, if its pid was given."""
        self.gave_up = False
        self._epoll = select.epoll()
        self._workers: dict[int, Worker] = {}

    @property
    def published(self) -> int:
        return sum(p.sent for p in self.publishers)

    @property
    def consumed(self) -> int:
        return sum(c.consumed for c in self.consumers)

    def run(self, tick: Callable[[float, int, int], None]) -> None:
        """Run until everything is done. `tick(seconds, published, consumed)` is called about once a second with the
        totals so far."""
        for worker in (*self.consumers, *self.publishers):
            worker.start()
            worker.epoll = self._epoll
            self._workers[worker.fd] = worker
            self._epoll.register(worker.fd, select.EPOLLIN)
        timer = self._timer()
        pid = self.options.broker_pid
        start, cpu, broker_cpu = time.monotonic(), time.process_time(), process_cpu_s(pid) if pid else 0.0
        try:
            self._loop(start, tick)
        finally:
            self.elapsed_s = time.monotonic() - start
            self.cpu_s = time.process_time() - cpu
            if pid:
                self.broker_cpu_s = process_cpu_s(pid) - broker_cpu
            self._epoll.close()
            if timer is not None:
                os.close(timer)

    def _timer(self) -> int | None:
        """Start the timer of a limited rate."""
        if not self.options.rate or not self.publishers:
            return None
        fd = periodic_timer(max(1 / self.options.rate / len(self.publishers), TIMER_S_MIN))
        self._epoll.register(fd, select.EPOLLIN)
        return fd

    def _loop(self, start: float, tick: Callable[[float, int, int], None]) -> None:
        now, next_tick, next_count = start, start + 1.0, start
        end = start + self.options.seconds if self.options.seconds else float("inf")
        progress, progress_at = -1, start
        rate = Rounds(self.publishers, 1 / self.options.rate, start) if self.options.rate and self.publishers else None
        beating = [worker for worker in self._workers.values() if worker.connection.heartbeat_s]
        beats = Rounds(beating, beating[0].connection.heartbeat_s / 2, start) if beating else None
        wait = COUNT_S if self._counting else 1.0
        for worker in self._workers.values():
            worker.watch(worker.write())
        while now < end:
            serve(self._workers, self._epoll.poll(max(0.0, min(wait, next_tick - now, end - now))))
            now = time.monotonic()
            if rate is not None:
                for worker, times in rate.due(now):
                    worker.due += times
                    worker.watch(worker.write())
            if self._counting and now >= next_count:
                next_count = now + COUNT_S
                if self._done():
                    return
            if now >= next_tick:
                next_tick += 1.0
                total = self.published + self.consumed
                tick(now - start, self.published, self.consumed)
                for worker, _ in beats.due(now) if beats is not None else ():
                    worker.beat()
                if total != progress:
                    progress, progress_at = total, now
                elif self._counting and now - progress_at > IDLE_S:
                    self.gave_up = True
                    return

    @property
    def _counting(self) -> bool:
        return bool(self.options.publish_count or self.options.consume_count)

    def _done(self) -> bool:
        """Return whether all messages that were to be published are published (and confirmed) and all are received."""
        options = self.options
        wanted = options.consume_count or (options.publish_count if self.publishers else 0)
        if self.publishers and options.publish_count and not all(p.settled for p in self.publishers):
            return False
        if self.publishers and not options.publish_count and not self.consumers:
            return False
        return not self.consumers or (wanted > 0 and self.consumed >= wanted)


def process_cpu_s(pid: int) -> float:
    """Return the CPU time of a process of this machine. Raise ValueError if there is none with that pid."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        raise ValueError(f"there is no process {pid} on this machine") from None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def periodic_timer(period_s: float) -> int:
    """Return a descriptor (timerfd) that is readable after each `period_s`. A time-out of epoll has whole milliseconds only."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    seconds, ns = divmod(round(period_s * 1e9), 1_000_000_000)
    each = (ctypes.c_long * 4)(seconds, ns, seconds, ns)
    if fd < 0 or libc.timerfd_settime(fd, 0, ctypes.byref(each), None) < 0:
        raise OSError(ctypes.get_errno(), "the system gave no timer for -r")
    return fd

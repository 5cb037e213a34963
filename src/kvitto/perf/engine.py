"""One thread with one epoll (Linux only): all publishers and consumers of a run share a core without passing a lock to
each other."""

import select
import time
from collections.abc import Callable, Sequence

from kvitto.perf.workers import Consumer, Options, Publisher, Worker

IDLE_S = 30.0
"""A run that waits for a number of messages ends when none has come for this time."""
RATE_TICK_S = 0.002
"""The time between two checks of publishers with a limited rate."""


class Engine:
    """Runs workers until the time is over or the counts are reached."""

    def __init__(self, options: Options, publishers: Sequence[Publisher], consumers: Sequence[Consumer]) -> None:
        self.options = options
        self.publishers = publishers
        self.consumers = consumers
        self.elapsed_s = 0.0
        self.cpu_s = 0.0
        self.gave_up = False
        self._epoll = select.epoll()
        self._workers: dict[int, Worker] = {}
        self._masks: dict[int, int] = {}

    @property
    def published(self) -> int:
        return sum(p.sent for p in self.publishers)

    @property
    def consumed(self) -> int:
        return sum(c.consumed for c in self.consumers)

    def run(self, tick: Callable[[float, int, int], None]) -> None:
        """Run until everything is done. `tick(seconds, published, consumed)` is called about once a second with the
        totals so far."""
        workers: list[Worker] = [*self.consumers, *self.publishers]
        for worker in workers:
            worker.start(time.monotonic())
            self._workers[worker.connection.fileno()] = worker
        for fd in self._workers:
            self._epoll.register(fd, 0)
            self._masks[fd] = 0
        start, cpu = time.monotonic(), time.process_time()
        for publisher in self.publishers:
            publisher.start(start)
        try:
            self._loop(start, tick)
        finally:
            self.elapsed_s = time.monotonic() - start
            self.cpu_s = time.process_time() - cpu
            self._epoll.close()

    def _loop(self, start: float, tick: Callable[[float, int, int], None]) -> None:
        now, next_tick = start, start + 1.0
        end = start + self.options.seconds if self.options.seconds else float("inf")
        progress, progress_at = -1, start
        wait = RATE_TICK_S if self.options.rate else 1.0
        self._set_masks(now)
        while now < end and not self._done():
            for fd, events in self._epoll.poll(max(0.0, min(wait, next_tick - now, end - now))):
                worker = self._workers[fd]
                if events & ~select.EPOLLOUT:
                    worker.readable()
                    if worker.connection.closed is not None:
                        raise worker.connection.closed
                    if worker.channel.closed is not None:
                        raise worker.channel.closed
                if events & select.EPOLLOUT or not self._masks[fd] & select.EPOLLOUT:
                    worker.writable(now)
            now = time.monotonic()
            self._set_masks(now)
            if now >= next_tick:
                next_tick += 1.0
                total = self.published + self.consumed
                tick(now - start, self.published, self.consumed)
                if total != progress:
                    progress, progress_at = total, now
                elif self._counting and now - progress_at > IDLE_S:
                    self.gave_up = True
                    return

    @property
    def _counting(self) -> bool:
        return bool(self.options.publish_count or self.options.consume_count)

    def _set_masks(self, now: float) -> None:
        """Ask for writability only if there is something to write, because epoll would not wait otherwise."""
        for fd, worker in self._workers.items():
            mask = select.EPOLLIN | (select.EPOLLOUT if worker.wants_write(now) else 0)
            if mask != self._masks[fd]:
                self._epoll.modify(fd, mask)
                self._masks[fd] = mask

    def _done(self) -> bool:
        """Return whether all messages that were to be published are published (and confirmed) and all are received.
        Without counts this is never so."""
        options = self.options
        wanted = options.consume_count or (options.publish_count if self.publishers else 0)
        if not self._counting:
            return False
        if self.publishers and options.publish_count and not all(p.settled for p in self.publishers):
            return False
        if self.publishers and not options.publish_count and not self.consumers:
            return False
        return not self.consumers or (wanted > 0 and self.consumed >= wanted)

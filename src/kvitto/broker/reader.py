"""Reading a queue by offset without consuming it: what one log.read still has to deliver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvitto.broker.consumer import Consumer
from kvitto.store.log import Window

if TYPE_CHECKING:
    from kvitto.broker.queue import Queue
    from kvitto.store.batch import Batch


class Reader:
    """Delivers the unsettled messages in [start, end) in order, as far as they are durable, then calls `done`."""

    def __init__(self, queue: Queue, consumer: Consumer, start: int, end: int, done: Callable[[Reader], None]) -> None:
        self.queue = queue
        self.consumer = consumer
        self.position = start
        self.end = min(end, queue.log.durable_end)
        self.count = 0
        self.done = done
        self._window = Window()

    def pump(self) -> None:
        """Deliver until the peer's buffer is full or the range is done."""
        queue, window = self.queue, self._window
        while self.position < self.end and not queue.deleted:
            if self.consumer.credit() <= 0:
                return
            batch = window.batch
            if not (batch.first <= self.position < batch.first + batch.count) and not queue.log.load(
                window, self.position
            ):
                break
            batch = window.batch
            self.position = max(self.position, batch.first)
            end = min(self.end, batch.first + batch.count)
            if self.position < end:
                self._deliver(batch, end)
        if not queue.deleted:
            self.position = max(self.position, self.end)
        del queue.broker.readers[self]
        self.done(self)

    def _deliver(self, batch: Batch, end: int) -> None:
        queue, i = self.queue, self.position - batch.first
        if self.position >= queue.cursor:
            k = self.consumer.deliver(batch, i, end - self.position, 0)
        elif self.position in queue.requeued or self.position in queue.delays:
            k = self.consumer.deliver(batch, i, 1, 1)
        else:
            self.position += 1
            return
        self.position += k
        self.count += k

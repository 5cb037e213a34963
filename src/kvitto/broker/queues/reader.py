"""Reads queues by offset without consuming them: one reader for each log.read, and the rotation of all readers.

A reader skips settled messages by the run. All readers share the steps of a turn, so a queue with many gaps delays nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from kvitto.base.turn_part import TurnPart
from kvitto.broker import walls
from kvitto.broker.queues import waiting
from kvitto.broker.queues.consumer import Consumer
from kvitto.store.reading import Window

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue
    from kvitto.store.batch import Batch

STEPS = 400
"""The steps of all readers in one turn. A step is a run of messages, or BYTES_PER_STEP of one, and takes about 5 us."""
BYTES_PER_STEP = 8 << 10
LOAD_STEPS = 200
"""The steps for reading a batch from the log."""
SLICE_STEPS = 50
"""The steps for checking one slice of a large batch."""
WALK = 1000
"""Offsets that one step checks one by one, where messages wait for a delayed retry."""


class RangeReader:
    """Delivers the waiting messages in [start, end) in order, as far as they are durable, then calls `done`."""

    def __init__(
        self,
        queue: Queue,
        consumer: Consumer,
        start: int,
        end: int,
        done: Callable[[RangeReader], None],
        connection: object,
    ) -> None:
        self.connection = connection
        self.queue = queue
        self.consumer = consumer
        self.position = start
        self.end = min(end, queue.log.announced_end)
        self.count = 0
        self.done = done
        self.blocked = False
        """Whether the peer's buffer is full."""
        self.finished = False
        self._window = Window()
        self._loading: Generator[None, None, bool] | None = None

    def pump(self, steps: int) -> int:
        """Deliver until the peer's buffer is full, the range is done or the steps are used up; return how many are left."""
        queue = self.queue
        self.blocked = False
        while self.position < self.end and not queue.deleted and not self.finished:
            self.blocked = self.consumer.credit() <= 0
            if self.blocked or steps <= 0:
                return steps
            steps -= self._step()
        if not self.finished:
            self.finished = True
            self.done(self)
        return steps

    def _step(self) -> int:
        """Deliver one run, or a part of it, and return the steps that it took."""
        found = waiting.run_from(self.queue, self.position)
        start, end, delivered = found if found is not None else (self.end, self.end, False)
        if self.queue.delayed.count:
            start, end, delivered = self._or_delayed(start, end, delivered)
        self.position = min(start, self.end)
        end = min(end, self.end)
        if self.position >= end:
            return 1
        steps, batch = 1, self._window.batch
        if not batch.first <= self.position < batch.first + batch.count:
            if self._loading is None:
                steps += LOAD_STEPS
                self._loading = self.queue.log.reader.load_steps(self._window, self.position)
            loaded = walls.within(self.queue, self._load)
            if loaded is None:
                return steps + SLICE_STEPS
            if not loaded:
                self.position = self.end
                return steps
            batch = self._window.batch
            if batch.first > self.position:  # the messages before it are lost
                self.position = batch.first
                return steps
            if batch.first + batch.count <= self.position:  # the message for which it was checked has left meanwhile
                return steps
        return steps + self._deliver(batch, min(end, batch.first + batch.count), delivered)

    def _load(self) -> bool | None:
        """Continue to load. Returns None while a large batch is being checked, else whether there is a message."""
        assert self._loading is not None
        try:
            next(self._loading)
        except StopIteration as end:
            self._loading = None
            return bool(end.value)
        return None

    def _deliver(self, batch: Batch, end: int, delivered: bool) -> int:
        i = self.position - batch.first
        k = self.consumer.deliver(batch, i, end - self.position, int(delivered))
        self.position += k
        self.count += k
        if not k:
            self.finished = True
            self.consumer.message_does_not_fit()
        return batch.body_bytes(i, k) // BYTES_PER_STEP + k // 100

    def _or_delayed(self, start: int, end: int, delivered: bool) -> tuple[int, int, bool]:
        """Return the run that was found, or a message before it that waits for a delayed retry."""
        delayed = self.queue.delayed
        stop = min(start, self.end, self.position + WALK)
        for offset in range(self.position, stop):
            if offset in delayed:
                return offset, offset + 1, True
        return (start, end, delivered) if stop == min(start, self.end) else (stop, stop, False)


class RangeReaders(walls.Routine, TurnPart):
    """All readers, one for each channel that reads. A reader whose peer's buffer is full waits until `wake`."""

    def __init__(self) -> None:
        self.waiting: dict[Any, RangeReader] = {}
        """The readers that have work to do, by channel."""
        self._blocked: dict[Any, dict[Any, RangeReader]] = {}
        """The readers that wait for their peers, by connection and channel."""

    def add(self, channel: object, reader: RangeReader) -> None:
        self.waiting[channel] = reader

    def remove(self, connection: object, channel: object) -> None:
        """Remove the reader of a channel that is closed, if there is one."""
        self.waiting.pop(channel, None)
        blocked = self._blocked.get(connection, {})
        if blocked.pop(channel, None) is not None and not blocked:
            del self._blocked[connection]

    def wake(self, connection: object) -> None:
        """Continue the readers of a connection whose peer takes more again."""
        self.waiting.update(self._blocked.pop(connection, {}))

    def pump(self) -> None:
        """Serve the readers for one turn. Those that were not served in the last one come first."""
        steps = STEPS
        for channel, reader in list(self.waiting.items()):
            if steps <= 0:
                return
            left = walls.run(reader.consumer, reader.pump, steps - 1)
            unfinished = self.waiting.pop(channel, None) is not None and left is not None and not reader.finished
            if unfinished and reader.blocked:
                self._blocked.setdefault(reader.connection, {})[channel] = reader
            elif unfinished:
                self.waiting[channel] = reader
            steps = left or 0

"""Takes queues out of service: after an unexpected exception in the work of a queue, its state in memory may be wrong.

Such a queue delivers, writes and settles nothing. Its files stay as they are, and the next start reads them. The definition "fault"
tells that start that any of its messages may have been delivered (A9).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import PromiseError, StoreError
from kvitto.base.turn_part import TurnPart
from kvitto.broker import walls

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.queues.consumer import Consumer
    from kvitto.broker.queues.queue import Queue
    from kvitto.store.log import Log

log = logging.getLogger("kvitto.broker")

FAULT = "fault"
"""The kind of the definition."""


class Faults(TurnPart):
    """Takes queues out of service, and ends the connections of consumers that have failed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.fresh: list[Queue] = []
        """Queues that went out of service since `Confirms` last checked. Messages published to them in this turn are not stored."""
        self.waiting: list[tuple[Consumer, Exception]] = []
        """Consumers that could not take a delivery. Their connections end in `end_failed`."""
        self._restored: dict[str, tuple[Any, ...]] = {}
        broker.store.on_fault = self._log_failed

    def take_out(self, queue: Queue, error: Exception) -> None:
        """Take a queue out of service after an error. Raises the error again if it concerns more than one queue."""
        if isinstance(error, PromiseError):
            raise error
        if queue.fault is not None:
            return
        queue.fault = f"{type(error).__name__}: {error}"
        # other objects may still refer to the queue: to them it is deleted, so they write, settle and deliver nothing
        queue.deleted = True
        trace = None if isinstance(error, StoreError) else error
        thing = f"queue '{queue.name}' in vhost '{queue.vhost.name}'"
        log.error("%s is out of service: %s", thing, error, exc_info=trace)
        self._broker.store.alarm(
            f"{thing} is out of service because of an error ({queue.fault}). Its messages on disk are untouched. "
            "Restart the broker to bring it back",
            damage=False,
        )
        self._forget(queue)
        self.fresh.append(queue)
        if queue.log.durable:
            self._broker.store.faulty = True
            self._broker.store.journal.keep_all()
            self._broker.define(FAULT, (queue.vhost.name, queue.log.queue_id), {})

    def _forget(self, queue: Queue) -> None:
        broker = self._broker
        queue.log.out_of_service = True
        queue.vhost.changed()
        broker.unwritten.pop(queue, None)
        broker.parking.forget(queue)
        for consumer in queue.take_consumers():
            walls.run(consumer, consumer.queue_gone)
            consumer.active = False

    def _log_failed(self, log_: Log, error: Exception) -> None:
        """Handle an error in the store's work for a queue after a sync."""
        queue = self._broker.queues.get(log_.queue_id)
        if queue is not None:
            self.take_out(queue, error)
        elif isinstance(error, PromiseError):
            raise error
        else:  # the queue is deleted: the next start finishes that
            log.error("%s: internal error", log_.directory, exc_info=error)

    def consumer_failed(self, consumer: Consumer, error: Exception) -> None:
        """Handle an error of a consumer in a delivery. The queue goes on without it, and its connection is ended later (`end_failed`)."""
        self.waiting.append((consumer, error))

    def end_failed(self) -> None:
        """End the connections of the consumers that have failed."""
        while self.waiting:
            consumer, error = self.waiting.pop()
            consumer.contain(error)

    # -- start -----------------------------------------------------------------------------------------------

    def restore(self, key: tuple[Any, ...]) -> None:
        """Take a stored definition: the broker ended with this queue out of service."""
        self._restored[key[1]] = key

    def was_out(self, queue: Queue) -> bool:
        """Whether the broker ended with this queue out of service."""
        return queue.log.queue_id in self._restored

    def recovered(self, queue: Queue) -> None:
        """Flag all messages of a queue that a start has read from disk, since any of them may have been delivered."""
        if self.was_out(queue):
            queue.flag_all()
            queue.mark_dirty()

    def started(self) -> None:
        """Delete the definitions "fault", now that the flags of the messages are durable: the queues are in service again."""
        for key in self._restored.values():
            self._broker.undefine(FAULT, key)
        self._restored.clear()

    @property
    def restored(self) -> bool:
        """Whether there are queues to put into service again."""
        return bool(self._restored)

"""Messages and bytes per second: counters are sampled every few seconds, a rate is the difference of the last two samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvitto.broker.broker import Broker
from kvitto.broker.queue import Queue

SAMPLE_S = 5.0
PIECE = 500
TOTAL = "total"
"""Key of the counters of the whole broker."""

Counts = tuple[int, ...]
QUEUE_COUNTS = ("publish", "deliver_get", "ack", "redeliver")


def of_queue(queue: Queue) -> Counts:
    """In the order of QUEUE_COUNTS, since the start."""
    return queue.published, queue.delivered, queue.acked, queue.redelivered


def of_broker(broker: Broker) -> Counts:
    """In the order of QUEUE_COUNTS, deleted queues included."""
    gone = broker.gone
    sums = [gone.published, gone.delivered, gone.acked, gone.redelivered]
    for queue in broker.listed:
        sums[0] += queue.published
        sums[1] += queue.delivered
        sums[2] += queue.acked
        sums[3] += queue.redelivered
    return tuple(sums)


def of_connection(connection: Any) -> Counts:
    """Bytes received and sent."""
    return connection.received_bytes, connection.sent_bytes


class Rates:
    """A queue, connection or TOTAL that the last sample did not know counts from 0; before the second sample all is 0."""

    def __init__(self) -> None:
        self._last: dict[object, Counts] = {}
        self._rates: dict[object, tuple[float, ...]] = {}
        self._at: float | None = None

    def sample(self, now_s: float, broker: Broker, connections: list[Any]) -> Iterator[None]:
        """Yields after each PIECE things, so that the broker can go on working; complete at the end."""
        last, counts, rates = self._last, {}, {}
        elapsed = None if self._at is None else now_s - self._at
        nothing = (0,) * len(QUEUE_COUNTS)
        for i, (thing, new) in enumerate(self._counts(broker, connections)):
            counts[thing] = new
            if elapsed:
                rates[thing] = tuple([(n - o) / elapsed for n, o in zip(new, last.get(thing, nothing), strict=False)])
            if i % PIECE == PIECE - 1:
                yield
        self._rates, self._last, self._at = rates, counts, now_s

    @staticmethod
    def _counts(broker: Broker, connections: list[Any]) -> Iterator[tuple[object, Counts]]:
        yield TOTAL, of_broker(broker)
        for queue in broker.listed:
            yield queue, of_queue(queue)
        for connection in connections:
            yield connection, of_connection(connection)

    def of(self, thing: object, count: int) -> tuple[float, ...]:
        """The `count` rates of a thing, per second."""
        return self._rates.get(thing) or (0.0,) * count

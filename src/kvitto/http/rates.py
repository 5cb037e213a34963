"""Rates of messages and bytes per second: counters are sampled every few seconds, a rate is the difference of the last
two samples."""

from __future__ import annotations

from collections.abc import Iterator
from operator import add
from typing import Any

from kvitto.broker.broker import Broker
from kvitto.broker.queues.queue import Queue

SAMPLE_S = 5.0
PIECE = 50
TOTAL = "total"
"""The key of the counters of the whole broker."""

Counts = tuple[int, ...]
QUEUE_COUNTS = ("publish", "deliver_get", "ack", "redeliver")
DEPTHS = ("messages", "messages_ready", "messages_unacknowledged")


def of_queue(queue: Queue) -> Counts:
    """Return the counters since the start, in the order of QUEUE_COUNTS."""
    return queue.published, queue.delivered, queue.acked, queue.redelivered


def depth_of(queue: Queue) -> Counts:
    """Return the numbers in the order of DEPTHS. Held messages, and those on their way to a dead-letter queue or
    waiting for that, count as unacknowledged."""
    away = queue.unacked + queue.held + queue.dead_lettering
    return queue.ready + away, queue.ready, away


def of_deleted(broker: Broker) -> Counts:
    """Return the counters of deleted queues, in the order of QUEUE_COUNTS."""
    gone = broker.gone
    return gone.published, gone.delivered, gone.acked, gone.redelivered


def of_connection(connection: Any) -> Counts:
    """Return the bytes received and sent."""
    return connection.received_bytes, connection.sent_bytes


class Rates:
    """A queue, connection or TOTAL that the last sample did not have counts from 0. Before the second sample all rates are 0."""

    def __init__(self) -> None:
        self._last: dict[object, Counts] = {}
        self._rates: dict[object, tuple[float, ...]] = {}
        self._at: float | None = None

    def sample(self, now_s: float, broker: Broker, connections: list[Any]) -> Iterator[None]:
        """Take a sample. This yields after each PIECE objects, so that the broker can go on working; the sample is
        complete at the end."""
        last, counts, rates = self._last, {}, {}
        elapsed = None if self._at is None else now_s - self._at
        nothing = (0,) * len(QUEUE_COUNTS + DEPTHS)
        for i, (thing, new) in enumerate(self._counts(broker, connections)):
            counts[thing] = new
            old = last.get(thing, nothing)
            if elapsed and new != old:
                rates[thing] = tuple([(n - o) / elapsed for n, o in zip(new, old, strict=False)])
            if i % PIECE == PIECE - 1:
                yield
        self._rates, self._last, self._at = rates, counts, now_s

    @staticmethod
    def _counts(broker: Broker, connections: list[Any]) -> Iterator[tuple[object, Counts]]:
        """Yield (queue or TOTAL, QUEUE_COUNTS and then DEPTHS), and (connection, its bytes)."""
        sums = [*of_deleted(broker), *([0] * len(DEPTHS))]
        for queue in broker.listed:
            counts = of_queue(queue) + depth_of(queue)
            sums = list(map(add, sums, counts))
            yield queue, counts
        yield TOTAL, tuple(sums)
        for connection in connections:
            yield connection, of_connection(connection)

    def of(self, thing: object, count: int) -> tuple[float, ...]:
        """Return the first `count` rates of an object, per second."""
        return (self._rates.get(thing) or (0.0,) * count)[:count]

    def of_depth(self, thing: object) -> dict[str, dict[str, float]]:
        """Return how fast a queue or TOTAL grows, as in RabbitMQ's `messages_details`."""
        first = len(QUEUE_COUNTS)
        rates = self.of(thing, first + len(DEPTHS))[first:]
        return {f"{name}_details": {"rate": round(rate, 3)} for name, rate in zip(DEPTHS, rates, strict=True)}

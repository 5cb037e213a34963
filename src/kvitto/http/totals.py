"""Sums over many queues, made in slices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvitto.broker.broker import Broker
from kvitto.broker.queues.queue import Queue
from kvitto.http.rates import DEPTHS, QUEUE_COUNTS, Counts, depth_of, of_deleted, of_queue
from kvitto.http.slices import Slices

NOTHING = (0,) * len(QUEUE_COUNTS)


@dataclass(frozen=True, slots=True)
class Totals:
    """`counts` are in the order of QUEUE_COUNTS."""

    queues: int
    consumers: int
    counts: Counts
    depth: dict[str, int]


async def of_queues(slices: Slices, queues: Iterable[Queue], before: Counts = NOTHING) -> Totals:
    """Return the sums over these queues, added to `before`."""
    count = consumers = 0
    counts, depth = list(before), [0] * len(DEPTHS)
    for queue in queues:
        count += 1
        consumers += len(queue.consumers)
        for i, n in enumerate(of_queue(queue)):
            counts[i] += n
        for i, n in enumerate(depth_of(queue)):
            depth[i] += n
        await slices.rest()
    return Totals(count, consumers, tuple(counts), dict(zip(DEPTHS, depth, strict=True)))


async def of_broker(slices: Slices, broker: Broker) -> Totals:
    """Return the sums with the counts of deleted queues. A queue that is deleted meanwhile counts once, because all
    queues are listed before."""
    gone, queues = of_deleted(broker), broker.listed
    return await of_queues(slices, queues, gone)

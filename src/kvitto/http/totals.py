"""Sums over many queues, made in slices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any

from kvitto.broker.broker import Broker
from kvitto.broker.queues.queue import Queue
from kvitto.broker.vhost import VHost
from kvitto.http.counts import DEPTHS, QUEUE_WIDTH, Row, depths, of_deleted, of_queue_and_depth
from kvitto.http.slices import Slices

NOTHING = (0,) * QUEUE_WIDTH


@dataclass(frozen=True, slots=True)
class Totals:
    """`row` has the sums of what `counts.of_queue_and_depth` returns."""

    queues: int
    consumers: int
    row: Row

    @property
    def depth(self) -> dict[str, int]:
        return dict(zip(DEPTHS, depths(self.row), strict=True))


async def of_queues(slices: Slices, queues: Iterable[Queue], before: Sequence[int] = NOTHING) -> Totals:
    """Return the sums over these queues, added to `before`."""
    count = consumers = 0
    row = list(before)
    for queue in queues:
        count += 1
        consumers += len(queue.consumers)
        row = list(map(add, row, of_queue_and_depth(queue)))
        await slices.rest()
    return Totals(count, consumers, tuple(row))


async def of_vhost(slices: Slices, vhost: VHost) -> Totals:
    """Return the sums with the counts of deleted queues. A queue that is deleted meanwhile counts once, because all
    queues are listed before."""
    gone, queues = (*of_deleted(vhost), 0, 0), list(vhost.queues.values())
    return await of_queues(slices, queues, gone)


async def of_broker(slices: Slices, broker: Broker) -> Totals:
    """Return the sums over all virtual hosts, deleted ones included."""
    gone, queues = (*of_deleted(broker), 0, 0), broker.listed
    return await of_queues(slices, queues, gone)


async def count_published(slices: Slices, connections: Iterable[Any]) -> None:
    """Have the channels count what they have published since the last sample, so that answers about exchanges and virtual hosts have it."""
    for connection in list(connections):
        for channel in list(connection.channels.values()):
            channel.count_published()
        await slices.rest()

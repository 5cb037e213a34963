"""Which messages of a queue wait, by offset, whatever the order in which they would be delivered.

A message waits if it is ready, held for the group that reads the queue by range, or due to be tried again later. What is unacked,
on its way to a dead-letter queue or parked does not. Nothing here walks offsets: the cost is by the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue

RUNS_PER_PIECE = 200
OFFSETS_PER_PIECE = 30_000
"""The offsets that take about half a millisecond (broker/jobs.py)."""
CHUNK_COST = 8
"""The cost of counting one chunk of a RangeSet, in units of about a microsecond."""


def lowest(queue: Queue) -> int:
    """The lowest offset that waits, or the end of what is durable if that is lower."""
    found = [queue.cursor]
    found += [runs.lowest() for runs in (*(runs for runs, _ in queue.out_of_order), queue.delayed) if runs.count]
    return min(*found, queue.log.announced_end)


def run_from(queue: Queue, offset: int) -> tuple[int, int, bool] | None:
    """(start, end, delivered before) of the first run of waiting messages at or above `offset`; delayed ones are left out."""
    first = max(queue.cursor, offset)
    best = (first, queue.next, False) if queue.next > first else None
    for runs, delivered in queue.out_of_order:
        for start, count in runs.after(offset):
            if best is None or start < best[0]:
                best = (max(start, offset), start + count, delivered)
            break
    return best


def next_from(queue: Queue, offset: int) -> int:
    """The lowest offset from `offset` on that waits; the end of what is durable if none does."""
    if queue.delayed.count:
        return offset  # delayed messages are not sorted by offset, and no reader plans a batch over them
    found = run_from(queue, offset)
    return queue.log.announced_end if found is None else min(found[0], queue.log.announced_end)


def count(queue: Queue, start: int, end: int) -> int:
    """How many messages wait in [start, end)."""
    total = max(0, min(end, queue.next) - max(start, queue.cursor))
    total += sum(runs.count_in(start, end) for runs, _ in queue.out_of_order)
    return total + queue.delayed.count_in(start, end)


def cost(queue: Queue) -> int:
    """The cost of `count`, in units of about a microsecond."""
    return sum(runs.chunks for runs in (queue.delayed, *(runs for runs, _ in queue.out_of_order))) * CHUNK_COST


def in_pieces(queue: Queue, end: int, work: Callable[[int], object]) -> Iterator[None]:
    """Call `work` with offsets that go up to `end`, each with few runs of messages, or bytes to be counted, behind the one before."""
    at = lowest(queue)
    while True:
        stop = end
        for runs, _ in queue.out_of_order:
            for start, _n in islice(runs.after(at), RUNS_PER_PIECE, RUNS_PER_PIECE + 1):
                stop = min(stop, start)
        if queue.settings.max_bytes >= 0:  # their sizes are read from the log
            stop = min(stop, at + OFFSETS_PER_PIECE)
        work(stop)
        at = stop
        if at >= end or queue.deleted:
            return
        yield

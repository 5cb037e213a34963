"""Purges a queue: from the first piece on no consumer can get its messages, and they are settled in pieces (broker/jobs.py).

After a crash in between, messages that were not settled come back, flagged. The answer to the purge was not sent then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kvitto.broker import walls
from kvitto.format.settlement import PURGED

if TYPE_CHECKING:
    from kvitto.broker.queues.work_queue import WorkQueue

PIECE = 1000
"""One piece settles this many runs, or this many messages while the queue has delivery counts."""


def settled(queue: WorkQueue, taken: list[tuple[Iterable[tuple[int, int]], int]]) -> Iterator[None]:
    """Settle runs of messages that were taken out of the backlog, and drop their delivery counts."""
    left = PIECE
    for runs, deliveries in taken:
        for start, count in runs:
            at, end = start, start + count
            while at < end:
                n = min(end - at, PIECE) if queue.backlog.redeliveries.pages else end - at
                walls.within(queue, queue.settle, at, n, PURGED, deliveries)
                at += n
                left -= n if queue.backlog.redeliveries.pages else 1
                if left <= 0:
                    left = PIECE
                    yield

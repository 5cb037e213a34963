"""Copies a message to very many queues, or a large one to several, in pieces (broker/jobs.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvitto.broker import walls
from kvitto.broker.turning import QUEUE_COST
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue

COPIES_BYTES = 1 << 20
"""If the copies of a message have more bytes than this in total, each copy is a piece of its own."""
PIECE_COST = 500
"""The cost of the appends in one piece, in units of about a microsecond."""


def copies(
    queues: list[Queue],
    key: bytes,
    props: bytes,
    body: bytes | Buf,
    ttl_ms: int,
    refused: list[Queue],
    flags: int = 0,
) -> Iterator[bool]:
    """Append the message to each queue that still exists. Queues that refuse it are added to `refused`. A body in a Buf is shared.

    Yields False if it cannot go on before the disk has caught up, else True.
    """
    cost = 0
    large, size = (True, 0) if isinstance(body, Buf) else (len(body) > COPIES_BYTES, len(body))
    for queue in queues:
        if not queue.deleted and not walls.within(queue, queue.append_bytes, key, props, body, ttl_ms, flags):
            refused.append(queue)
        cost += QUEUE_COST + (size >> 11)
        if cost >= PIECE_COST:
            cost = 0
            yield True
        while large and is_unwritten(queue):
            yield queue not in queue.broker.pressed


def is_unwritten(queue: Queue) -> bool:
    """Whether a large copy waits to be written. The next copy is made only after that."""
    return bool(queue.dirty or queue.tail.closed) and not queue.deleted and queue not in queue.broker.unwritten

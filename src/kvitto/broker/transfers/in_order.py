"""What those share that move the messages of a hidden queue in order (stages.py, queues/passage.py): what is next, and who can take it.

If one of its queues cannot take a message now, those behind it have to wait, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue
    from kvitto.broker.queues.work_queue import WorkQueue
    from kvitto.store.batch import Batch

log = logging.getLogger("kvitto.broker")


def unmoved(queue: WorkQueue, at: int) -> tuple[int, int]:
    """Return the begin and the end of the first messages from offset `at` on that have not been moved and are durable."""
    for start, n in queue.backlog.requeued:
        if start + n > at:
            return max(start, at), start + n
    return max(queue.cursor, at), queue.log.synced_end


def fitting(batch: Batch, i: int, n: int, room: int) -> tuple[int, int]:
    """Return how many of the n messages from i on fit into `room` bytes, at least one, and their size."""
    size = batch.run_bytes(i, n)
    while n > 1 and size > room:
        n = max(1, min(n - 1, n * room // size))
        size = batch.run_bytes(i, n)
    return n, size


def in_the_way(queues: Iterable[Queue], size: int) -> Queue | None:
    """Return a queue that is full for now, or out of service: a message with so many bytes has to wait for it. None if there is none."""
    for queue in queues:
        if queue.fault is not None:
            return queue
        if queue.limited and queue.rejects and not never_takes(queue, size) and queue.refuses(1, size):
            return queue
    return None


def takers(queues: list[Queue], size: int, what: str) -> list[Queue]:
    """Return the queues without those that can never take a message with so many bytes. The log names each of those, and says
    `what` is dropped."""
    never = [queue for queue in queues if never_takes(queue, size)]
    for queue in never:
        log.warning(
            "queue '%s' in vhost '%s' can never take %s of %d bytes, it is dropped",
            queue.name,
            queue.vhost.name,
            what,
            size,
        )
    return [queue for queue in queues if queue not in never] if never else queues


def never_takes(queue: Queue, size: int) -> bool:
    """Whether a queue that refuses what it has no room for can never take a message with so many bytes."""
    if not (queue.limited and queue.rejects):
        return False
    return queue.settings.max_length == 0 or 0 <= queue.settings.max_bytes < size

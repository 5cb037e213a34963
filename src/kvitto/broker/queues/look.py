"""Reads the ready messages of a queue without delivering them. Nothing is counted, flagged or moved."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvitto.broker.queues.work_queue import WorkQueue
    from kvitto.store.batch import Body


@dataclass(frozen=True, slots=True)
class Look:
    """A message as a consumer would get it now."""

    offset: int
    key: bytes
    props: bytes
    body: Body
    redelivered: bool


def looks(queue: WorkQueue, most: int) -> Iterator[Look | None]:
    """Yield up to `most` messages in the order of delivery, without expired ones.

    None is yielded between two pieces of work, and in place of a message that is left out. The queue may change meanwhile; messages
    that have left it are left out.
    """
    try:
        yield from _looks(queue, most)
    finally:
        queue.mark_dirty()  # the turn frees the memory of what was read


def _looks(queue: WorkQueue, most: int) -> Iterator[Look | None]:
    backlog = queue.backlog
    if backlog.ranked:
        backlog.admit()
    came_back = [offset for start, n in islice(backlog.requeued, most) for offset in range(start, start + min(n, most))]
    for offset in came_back[:most]:
        yield (yield from _came_back(queue, offset))
    position = backlog.cursor
    while not queue.deleted and max(position, backlog.cursor) < queue.next:
        position = max(position, backlog.cursor)
        if backlog.find_outline(position) is None:
            position = _behind_gap(queue, position)
        else:
            yield (yield from _waiting(queue, position))
            position += 1


def _came_back(queue: WorkQueue, offset: int) -> Generator[None, None, Look | None]:
    backlog = queue.backlog
    if queue.deleted or offset not in backlog.requeued or queue.leaving.has_expired(offset):
        return None
    if 0 <= queue.delivery_limit < backlog.redeliveries.of(offset, 0):
        return None
    message = yield from queue.read_steps(offset)
    if message is None or offset not in backlog.requeued:
        return None
    key, props, body, _ = message
    count = backlog.earlier(offset)
    if count:
        props = queue.broker.with_delivery_count(props, count)
    return Look(offset, key, props, body, count > 0)


def _waiting(queue: WorkQueue, offset: int) -> Generator[None, None, Look | None]:
    if queue.leaving.has_expired(offset):
        return None
    message = yield from queue.read_steps(offset)
    if message is None or offset < queue.backlog.cursor:
        return None
    key, props, body, _ = message
    return Look(offset, key, props, body, offset < queue.backlog.flagged_below)


def _behind_gap(queue: WorkQueue, position: int) -> int:
    """Return the next offset behind one that was never written or was lost to damage."""
    found = int(queue.backlog.outline.batch.first)
    return found if found > position else max(queue.tail.first, position + 1)

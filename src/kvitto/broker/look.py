"""Looking at the messages that are ready in a queue, without delivering them: nothing is counted, flagged or moved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvitto.broker.queue import Queue
    from kvitto.store.batch import Batch


@dataclass(frozen=True, slots=True)
class Look:
    """A message as a consumer would get it now."""

    key: bytes
    props: bytes
    body: bytes
    redelivered: bool


def looks(queue: Queue, most: int) -> Iterator[Look | None]:
    """Up to `most` messages in the order in which they would be delivered; None for one that would not be, since it has expired.

    The queue may change between two steps: what has left it is passed over.
    """
    if queue.ranked:
        queue.admit()
    came_back = [offset for start, n in islice(queue.requeued, most) for offset in range(start, start + min(n, most))]
    for offset in came_back[:most]:
        yield _came_back(queue, offset)
    position = queue.cursor
    while not queue.deleted and max(position, queue.cursor) < queue.next:
        position = max(position, queue.cursor)
        found = queue._find(position)
        if found is None:
            position = _behind_gap(queue, position)
        else:
            yield _waiting(queue, position, *found)
            position += 1


def _came_back(queue: Queue, offset: int) -> Look | None:
    if queue.deleted or offset not in queue.requeued or queue._expired(offset):
        return None
    if 0 <= queue.delivery_limit < queue.redeliveries.of(offset, 0):
        return None
    message = queue.read(offset)
    if message is None:
        return None
    key, props, body, _ = message
    count = queue._earlier(offset)
    if count:
        props = queue.broker.with_delivery_count(props, count)
    return Look(key, props, body, count > 0)


def _waiting(queue: Queue, offset: int, batch: Batch, i: int) -> Look | None:
    if queue._expired(offset):
        return None
    key, props, body, _ = batch.message(i)
    return Look(key, props, body, offset < queue.doubt)


def _behind_gap(queue: Queue, position: int) -> int:
    """The next offset behind one that was never written, or was lost to damage."""
    found = int(queue._behind.batch.first)
    return found if found > position else max(queue.tail_first, position + 1)

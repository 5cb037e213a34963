"""Counts the bytes of a queue's ready messages again. They are estimated while no limit depends on them.

Reading a queue by range settles messages that nobody looks at, and to add up their sizes all of them would have to be read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from kvitto.store.reading import Window

if TYPE_CHECKING:
    from kvitto.broker.queue import Queue


def recount(queue: Queue) -> Iterator[None]:
    """Count the bytes in pieces. Until that is done, no limit in bytes applies.

    What comes and goes meanwhile is counted as ever, so it is known in the end by how much the estimate was wrong.
    """
    while queue.estimates and queue.max_bytes >= 0 and not queue.deleted:
        estimates, estimate, exact = queue.estimates, queue.ready_bytes, 0
        for size in _sizes(queue):
            exact += size
            yield
            if queue.estimates != estimates or queue.deleted:
                break
        else:
            queue.ready_bytes = max(queue.ready_bytes - estimate + exact, 0)
            queue.estimates = 0
            queue.mark_dirty()


def _sizes(queue: Queue) -> Iterator[int]:
    """Yield the bytes of the messages that are ready now: one number before each batch that has to be read."""
    window, written, size = Window(outline=True), max(queue.tail_first, queue.cursor), 0
    if queue.tail is not None and queue.next > written:
        size = queue.tail.body_bytes(written - queue.tail_first, queue.next - written)
    for start, count in chain(queue.requeued.copy(), [(queue.cursor, written - queue.cursor)]):
        at, end = start, start + count
        while at < end:
            if not window.holds(at):
                yield size
                size = 0
                if not queue.log.reader.load(window, at):
                    break
            batch = window.batch
            i = max(at - batch.first, 0)
            n = min(batch.count - i, end - batch.first - i)
            if n <= 0:
                break
            size += batch.body_bytes(i, n)
            at = batch.first + i + n
    yield size

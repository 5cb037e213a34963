"""Counts the bytes of a queue's ready messages again. They are estimated while no limit depends on them.

Reading a queue by range settles messages without looking at them. Their sizes would be known only if all of them were read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, takewhile
from typing import TYPE_CHECKING

from kvitto.store.reading import Window

if TYPE_CHECKING:
    from kvitto.broker.queues.work_queue import WorkQueue


def recount(queue: WorkQueue) -> Iterator[None]:
    """Count the bytes in pieces. Until that is done, no limit in bytes applies.

    Messages that come and leave meanwhile are counted as usual, so the difference to the estimate is known at the end.
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


def _sizes(queue: WorkQueue) -> Iterator[int]:
    """Yield the bytes of the messages that are ready now: one number before each batch that has to be read."""
    backlog, written = queue.backlog, queue.tail.unwritten_from
    rest = (backlog.cursor, queue.next - backlog.cursor)
    # what is in memory comes first, since it may leave before it is ever written
    size = sum(_in_memory(queue, start, start + count) for start, count in (*backlog.requeued.after(written), rest))
    window = Window(outline=True)
    for start, count in chain(backlog.requeued.copy(), [rest]):
        at, end = start, min(start + count, written)
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


def _in_memory(queue: WorkQueue, start: int, end: int) -> int:
    """Add up the bytes of the messages start..end-1 that are not in the files yet."""
    size = 0
    for b in queue.tail.batches:
        first = max(start, b.first)
        size += b.body_bytes(first - b.first, min(end, b.first + b.count) - first)
    return size


def take_below(queue: WorkQueue, end: int, window: Window | None = None) -> None:
    """Take the bodies of the ready messages below `end` out of `ready_bytes`. `window`: the one that the last call used."""
    backlog, tail = queue.backlog, queue.tail
    if end >= tail.next:
        return
    if queue.max_bytes < 0:  # no limit depends on it, so an estimate is enough
        queue.estimates += 1
        gone = backlog.requeued.count_in(0, end) + max(end - backlog.cursor, 0)
        queue.ready_bytes -= queue.ready_bytes * gone // max(queue.ready, 1)
        return
    below = takewhile(lambda run: run[0] < end, backlog.requeued.after(0))
    ranges = [(s, min(n, end - s)) for s, n in below]
    ranges += [(backlog.cursor, end - backlog.cursor)] if end > backlog.cursor else []
    window = window or Window(outline=True)  # the same batch may hold many of them
    for start, n in ranges:
        written = min(n, max(tail.unwritten_from - start, 0))
        queue.ready_bytes -= queue.log.reader.body_bytes(start, written, window)
        queue.ready_bytes -= _in_memory(queue, start + written, start + n)
    backlog.write_off_lost()

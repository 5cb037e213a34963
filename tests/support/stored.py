"""What a queue of either kind has, by offset: for oracles that look and take nothing."""

from __future__ import annotations

from collections.abc import Iterator

from kvitto.broker.queues.queue import Queue
from kvitto.broker.queues.stream import Stream
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.store import paths
from kvitto.store.reading import Window
from tests.support.simdisk import SimDisk

Message = tuple[bytes, bytes, bytes, int]


def read(queue: Queue, offset: int) -> Message | None:
    """(key, props, body, flags) of a message; None if it is lost to damage."""
    if isinstance(queue, WorkQueue):
        return queue.read(offset)
    assert isinstance(queue, Stream)
    for batch in queue.tail.batches:
        if batch.first <= offset < batch.first + batch.count:
            return batch.message(offset - batch.first)
    window = Window()
    found = queue.log.reader.load(window, offset)
    queue.log.reader.lost.clear()
    return window.batch.message(offset - window.batch.first) if found and window.holds(offset) else None


def in_segments(disk: SimDisk, queue: Queue, what: bytes) -> bool:
    """Return whether the segments of a queue have these bytes, such as those of a message that is settled."""
    directory = queue.log.directory
    names = [name for name in disk.listdir(directory) if name.endswith(paths.SEGMENT_SUFFIX)]
    return any(what in disk.read_file(f"{directory}/{name}") for name in names)


def waiting(queue: Queue, held: bool = False) -> list[int]:
    """The offsets of the messages that are ready, or wait for a dead-letter queue, in order; those that are `held` too."""
    runs: list[tuple[int, int]] = []
    if isinstance(queue, WorkQueue):
        runs += [*queue.backlog.requeued, *queue.parked]
        if held and queue.hold is not None:
            runs += [*queue.hold.fresh, *queue.hold.again]
    return sorted([*(o for start, n in runs for o in range(start, start + n)), *range(queue.cursor, queue.next)])


def flagged(queue: Queue, offset: int) -> bool:
    """Whether a message that waits would be flagged as redelivered."""
    if not isinstance(queue, WorkQueue):
        return False
    backlog = queue.backlog
    first = offset >= backlog.cursor and not backlog.ranked
    return offset < backlog.flagged_below if first else backlog.earlier(offset) > 0


def bodies(queue: Queue, held: bool = False) -> Iterator[tuple[int, bytes]]:
    """(offset, body) of each message of `waiting` that can be read."""
    for offset in waiting(queue, held):
        message = read(queue, offset)
        if message is not None:
            yield offset, message[2]


def parked(queue: Queue) -> list[int]:
    """The offsets of the messages that wait for a dead-letter queue."""
    if not isinstance(queue, WorkQueue):
        return []
    return [o for start, n in queue.parked for o in range(start, start + n)]

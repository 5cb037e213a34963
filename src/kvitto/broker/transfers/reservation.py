"""Reserves room for a journal record in queues that refuse messages when they are full.

A record is checked against the limits when it is written, and applied when it is durable. In between its messages count as if they were
in the queue, because otherwise other messages could take the same room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvitto.broker.queues.work_queue import WorkQueue

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue


class Reservation:
    def __init__(self) -> None:
        self._kept: dict[WorkQueue, tuple[int, int]] = {}

    def keep(self, queue: Queue, count: int, size: int) -> None:
        """Reserve room in a queue for `count` messages with bodies of `size` bytes."""
        if isinstance(queue, WorkQueue) and queue.limited and queue.rejects:
            n, total = self._kept.get(queue, (0, 0))
            self._kept[queue] = (n + count, total + size)
            queue.coming += count
            queue.coming_bytes += size

    def release(self, queue: Queue, count: int, size: int) -> None:
        """Release the room of `count` messages that will not come."""
        if isinstance(queue, WorkQueue) and queue in self._kept:
            n, total = self._kept[queue]
            self._kept[queue] = (n - count, total - size)
            queue.coming -= count
            queue.coming_bytes -= size

    def give_back_to(self, queue: Queue) -> None:
        """Release the room in this queue, because its messages come now."""
        if isinstance(queue, WorkQueue):
            count, size = self._kept.pop(queue, (0, 0))
            queue.coming -= count
            queue.coming_bytes -= size

    def give_back(self) -> None:
        """Release all room, because the messages come now, or never will."""
        for queue in list(self._kept):
            self.give_back_to(queue)

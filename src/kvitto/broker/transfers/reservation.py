"""Reservation that a journal record has in queues that refuse when they are full.

A record is checked against the limits when it is written and applied when it is durable. What it brings counts as if it were there
already, or whatever else comes in between would find the same room.
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
        """`count` messages with bodies of `size` bytes will come to the queue."""
        if isinstance(queue, WorkQueue) and queue.limited and queue.rejects:
            n, total = self._kept.get(queue, (0, 0))
            self._kept[queue] = (n + count, total + size)
            queue.coming += count
            queue.coming_bytes += size

    def release(self, queue: Queue, count: int, size: int) -> None:
        """Give back the room of `count` messages that will not come."""
        if isinstance(queue, WorkQueue) and queue in self._kept:
            n, total = self._kept[queue]
            self._kept[queue] = (n - count, total - size)
            queue.coming -= count
            queue.coming_bytes -= size

    def give_back_to(self, queue: Queue) -> None:
        """Give back the room that was kept in this queue: its messages come now."""
        if isinstance(queue, WorkQueue):
            count, size = self._kept.pop(queue, (0, 0))
            queue.coming -= count
            queue.coming_bytes -= size

    def give_back(self) -> None:
        """Give back all room: the messages come now, or never."""
        for queue in list(self._kept):
            self.give_back_to(queue)

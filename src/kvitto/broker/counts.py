"""The counts of deleted queues, which are kept because sums over all queues must never decrease."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue


class Churn:
    """How many queues were declared, created and deleted since the start."""

    def __init__(self) -> None:
        self.declared = 0
        self.created = 0
        self.deleted = 0


class Counts:
    """Counts of messages since the start."""

    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0
        self.redelivered = 0
        self.acked = 0

    def add(self, queue: Queue) -> None:
        self.published += queue.published
        self.delivered += queue.delivered
        self.redelivered += queue.redelivered
        self.acked += queue.acked

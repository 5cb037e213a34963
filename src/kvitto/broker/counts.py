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


class Attempts:
    """How many logins of one protocol succeeded and failed since the start."""

    def __init__(self) -> None:
        self.succeeded = 0
        self.failed = 0

    def count(self, succeeded: bool) -> None:
        if succeeded:
            self.succeeded += 1
        else:
            self.failed += 1


class Counts:
    """Counts of messages since the start, named as those of a queue."""

    def __init__(self) -> None:
        self.published = self.delivered = self.redelivered = self.acked = 0
        self.delivered_auto = self.gets = self.gets_auto = self.gets_empty = 0

    def add(self, queue: Queue) -> None:
        self.published += queue.published
        self.delivered += queue.delivered
        self.redelivered += queue.redelivered
        self.acked += queue.acked
        self.delivered_auto += queue.delivered_auto
        self.gets += queue.gets
        self.gets_auto += queue.gets_auto
        self.gets_empty += queue.gets_empty

"""What deleted queues had counted: sums over all queues must never go down."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue


class Churn:
    """Of queues, since the start: how often one was declared, made and deleted."""

    def __init__(self) -> None:
        self.declared = 0
        self.created = 0
        self.deleted = 0


class Counts:
    """Messages, since the start."""

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

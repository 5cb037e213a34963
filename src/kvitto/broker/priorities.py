"""Priorities without an argument: a quorum queue has them, as with RabbitMQ 4.3, from the first message on that has one.

Until then it is a queue like any other, whose messages cost no memory; afterwards it is one with x-max-priority, for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvitto.broker.ranks import Ranks
from kvitto.store.settlements import IN_DOUBT

if TYPE_CHECKING:
    from kvitto.broker.queue import Queue

PRIORITISED = "prioritised"
"""What the definition of such a queue says, so that a start knows it."""


RETURN_COST = 50
"""The cost of sorting in a message that comes back, in units of 0.1 us."""


def begin(queue: Queue) -> None:
    """A message with a priority comes: those that wait have none, and go on in the order of arrival.

    What was delivered before counts as delivered once where nothing else is known: a queue with priorities notes every delivery,
    one without them does not. That is kept as damage and power cuts keep it.
    """
    ranks = Ranks(queue._rank)
    for start, count in queue.requeued:
        ranks.put(0, start, count)
    if queue.cursor > queue.doubt:
        queue.doubt = queue.cursor
        queue.settlements.add(queue.doubt - 1, 1, IN_DOUBT, 0)
    if queue.next > queue.cursor:
        ranks.put(0, queue.cursor, queue.next - queue.cursor)
        queue.cursor = queue.next
    resume(queue, ranks)
    queue.vhost.define_queue(queue)


def resume(queue: Queue, ranks: Ranks | None = None) -> None:
    """From now on the queue orders what it has by priority; at the start, before it has anything."""
    queue.requeued = Ranks(queue._rank) if ranks is None else ranks
    queue.requeued_ready = queue.requeued.count > 0
    queue.ranked = True
    queue.return_cost = RETURN_COST
    queue.prioritises = False

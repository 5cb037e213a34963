"""Priorities without an argument: a quorum queue has them, as with RabbitMQ 4.3, from the first message on that has one.

Until then it is a queue like any other, whose messages cost no memory; afterwards it is one with x-max-priority, for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvitto.broker.queues.ranks import Ranks
from kvitto.format.settlement import IN_DOUBT

if TYPE_CHECKING:
    from kvitto.broker.queues.work_queue import WorkQueue

PRIORITISED = "prioritised"
"""What the definition of such a queue says, so that a start knows it."""


RETURN_COST = 50
"""The cost of sorting in a message that comes back, in units of 0.1 us."""


def begin(queue: WorkQueue) -> None:
    """A message with a priority comes: those that wait have none, and go on in the order of arrival.

    What was delivered before counts as delivered once where nothing else is known: a queue with priorities notes every delivery,
    one without them does not. That is kept as damage and power cuts keep it.
    """
    backlog = queue.backlog
    ranks = Ranks(backlog.rank_of)
    for start, count in backlog.requeued:
        ranks.put(0, start, count)
    if backlog.cursor > backlog.flagged_below:
        backlog.flagged_below = backlog.cursor
        queue.settlements.add(backlog.flagged_below - 1, 1, IN_DOUBT, 0)
    if queue.next > backlog.cursor:
        ranks.put(0, backlog.cursor, queue.next - backlog.cursor)
        backlog.cursor = queue.next
    resume(queue, ranks)
    queue.vhost.define_queue(queue)


def resume(queue: WorkQueue, ranks: Ranks | None = None) -> None:
    """From now on the queue orders what it has by priority; at the start, before it has anything."""
    queue.backlog.order_by_priority(Ranks(queue.backlog.rank_of) if ranks is None else ranks)
    queue.return_cost = RETURN_COST
    queue.prioritises = False

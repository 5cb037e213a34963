"""Priorities without an argument: a quorum queue has them from its first message with a priority on, as with RabbitMQ 4.3.

Until then it is a queue without priorities, whose messages cost no memory. From then on it is like one with x-max-priority, for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvitto.broker.queues.ranks import Ranks
from kvitto.format.settlement import IN_DOUBT

if TYPE_CHECKING:
    from kvitto.broker.queues.work_queue import WorkQueue

PRIORITISED = "prioritised"
"""The key in the definition of such a queue that tells a start of it."""


RETURN_COST = 50
"""The cost of inserting a message that comes back by its priority, in units of 0.1 us."""


def begin(queue: WorkQueue) -> None:
    """Begin with priorities, at the first message that has one. The messages that wait have none, and stay in the order of arrival.

    A queue with priorities notes every delivery, and one without does not. So messages that were delivered before count as delivered
    once, unless more is known. That is stored in the way in which it is stored after damage and power cuts.
    """
    backlog = queue.backlog
    ranks = Ranks(backlog.rank_runs)
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
    """Order the queue's messages by priority from now on. At a start this is called before the queue has any messages."""
    queue.backlog.order_by_priority(Ranks(queue.backlog.rank_runs) if ranks is None else ranks)
    queue.return_cost = RETURN_COST
    queue.prioritises = False

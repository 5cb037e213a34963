"""Removes messages from a work queue without a consumer: they have expired, exceed a limit, or were delivered too often.

These events are rare, so the code is plain Python. It looks only at the first ready message, as RabbitMQ and LavinMQ do. The number of
messages that leave in one turn is limited, and the next turn continues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvitto.format.settlement import DROPPED, EXPIRED

if TYPE_CHECKING:
    from kvitto.broker.queues.work_queue import WorkQueue
    from kvitto.store.batch import Batch

AFTER_DELIVERY = ("rejected", "delivery_limit")
"""Reasons for dead-lettering that require a delivery before."""
LEAVING_PER_TURN = 10_000
"""Messages, and KiB of their bodies, that may leave a queue in one turn because they have expired or failed too often."""
AGAIN_LEAVES = 15
"""The cost of a message that had come back, compared with a message that leaves in a run."""


class Leaving:
    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue
        self._left = 0
        """The rest of what may leave in the turn `_turn`."""
        self._turn = -1
        self._timer_ms = -1
        """The time when the timer of this queue is due, -1 if it is not set."""

    def contain(self, error: Exception) -> None:
        """Called if a timer of this queue has failed."""
        self._queue.contain(error)

    # -- expiry ----------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Remove expired messages, and set the timer for the next one that expires."""
        queue = self._queue
        while queue.backlog.any_ready():
            found = queue.backlog.head()
            if queue.checking:
                return
            if found is None:
                continue
            at = found[0].expires_at(found[1])
            left = at - queue.clock_of(found[0])
            if at < 0 or left > 0:
                if at >= 0:
                    self._wake_in(left)
                return
            if not self.leave_expired():
                return

    def has_expired(self, offset: int) -> bool:
        """Whether this message has expired."""
        found = self._queue.backlog.find_outline(offset)
        return found is not None and 0 <= found[0].expires_at(found[1]) <= self._queue.clock_of(found[0])

    def leave_expired(self) -> bool:
        """Remove the first ready message, which has expired, and expired ones right behind it. Returns False if that must wait for the
        next turn.
        """
        if not self._may_leave():
            return False
        queue, n = self._queue, 1
        w, i, most = self._run()
        if w is not None:
            now_ms = queue.clock_of(w)
            while n < most and 0 <= w.expires_at(i + n) <= now_ms:
                n += 1
        self._leave("expired", EXPIRED, n)
        return True

    def _head_has_expired(self) -> bool:
        if not self._queue.may_expire:
            return False
        found = self._queue.backlog.head()
        return found is not None and 0 <= found[0].expires_at(found[1]) <= self._queue.clock_of(found[0])

    def _wake_in(self, ms: int) -> None:
        """Set the timer so that a turn handles the queue in `ms` milliseconds."""
        timers = self._queue.broker.timers
        at = timers.now_ms + ms
        if self._timer_ms < 0 or at < self._timer_ms:
            self._timer_ms = at
            timers.after(ms, self._due)

    def _due(self) -> None:
        self._timer_ms = -1
        self._queue.mark_dirty()

    def cancel(self) -> None:
        """Cancel the timer, because the queue is deleted."""
        self._queue.broker.timers.cancel(self._due)

    # -- limits ----------------------------------------------------------------------------------------------

    def enforce_limits(self) -> None:
        """drop-head: drop the oldest ready messages until the limits hold, or until the next turn has to go on."""
        queue = self._queue
        many = queue.over(-LEAVING_PER_TURN, -(LEAVING_PER_TURN << 10))  # a policy has made the limit smaller
        while queue.backlog.any_ready() and queue.over(0, 0) and not queue.checking:
            # in the next turn a consumer may take messages behind an expired head, so the excess is known only then
            if (many or self._head_has_expired()) and not self._may_leave():
                return
            most = 1
            if many and queue.max_length >= 0:
                most = max(min(queue.counted() - queue.max_length, self._run()[2]), 1)
            self._leave("maxlen", DROPPED, most)

    def leave_undelivered(self) -> bool:
        """Remove the first ready message, which was delivered too often. Returns False if that must wait for the next turn."""
        if not self._may_leave():
            return False
        self._leave("delivery_limit", DROPPED)
        return True

    # -- leave -----------------------------------------------------------------------------------------------

    def _may_leave(self) -> bool:
        """Whether messages may still leave in this turn. If not, the next turn continues."""
        broker = self._queue.broker
        if first := self._turn != broker.turns:
            self._turn, self._left = broker.turns, LEAVING_PER_TURN
        may = self._left > 0 and (first or not broker.out_of_time())
        if not may:
            self._wake_in(0)
        return may

    def _run(self) -> tuple[Batch | None, int, int]:
        """Find the messages that may leave as one run, and return (batch, index of the first, number).

        They lie right behind each other in one batch, and this turn has time for them. A message that had come back leaves alone:
        the batch is None then, and also if there is none to look at.
        """
        backlog = self._queue.backlog
        w = None if backlog.requeued.count else backlog.window()
        if w is None:
            return None, 0, 1
        i = backlog.cursor - w.first
        return w, i, min(w.count - i, self._left)

    def _leave(self, reason: str, outcome: int, most: int = 1) -> None:
        """Dead-letter or drop up to `most` messages: the first ready one and those right behind it."""
        queue, backlog = self._queue, self._queue.backlog
        found = backlog.head()
        if found is None:
            return
        w, i = found
        offset = w.first + i
        deliveries = 0
        if backlog.requeued.count:
            n = 1
            deliveries = backlog.earlier(offset)
            backlog.requeued.pop_first()
            self._left -= AGAIN_LEAVES
        else:
            n = most
            backlog.cursor += n
        size = w.body_bytes(i, n)
        queue.ready_bytes -= size
        self._left -= n + (size >> 10)
        queue.dead_letter(offset, n, reason, outcome, deliveries)

"""How messages leave a work queue without a consumer: they expire, give way to a limit, or have failed too often.

These are rare events, and plain Python. Only the first ready message is ever looked at, as with RabbitMQ and LavinMQ. So many messages
may leave in one turn, and no more: whoever asks finds that the next turn goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvitto.format.settlement import DROPPED, EXPIRED

if TYPE_CHECKING:
    from kvitto.broker.queues.work_queue import WorkQueue

AFTER_DELIVERY = ("rejected", "delivery_limit")
"""Reasons to dead-letter that only a message can have that has been delivered."""
LEAVING_PER_TURN = 10_000
"""Messages, and KiB of their bodies, that may leave a queue in one turn because they have expired or failed too often."""
AGAIN_LEAVES = 15
"""The cost of a message that had come back: as much as this many messages that leave side by side."""


class Leaving:
    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue
        self._left = 0
        """What may still leave in the turn `_turn`."""
        self._turn = -1
        self._timer_ms = -1
        """When the timer is due that has the queue looked at; -1 if there is none."""

    def contain(self, error: Exception) -> None:
        """A timer of this queue has failed."""
        self._queue.contain(error)

    # -- expiry ----------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Have messages leave that have expired; wake up when the first of the others does."""
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
        """The first ready message has expired: it leaves with those right behind it that have, too. False if that has to wait for the
        next turn.
        """
        if not self._may_leave():
            return False
        queue, n = self._queue, 1
        if not queue.backlog.requeued.count:
            w = queue.backlog.window()
            if w is not None:
                i = queue.backlog.cursor - w.first
                most, now_ms = min(w.count - i, self._left), queue.clock_of(w)
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
        """Have the turn so many milliseconds from now look at the queue."""
        timers = self._queue.broker.timers
        at = timers.now_ms + ms
        if self._timer_ms < 0 or at < self._timer_ms:
            self._timer_ms = at
            timers.after(ms, self._due)

    def _due(self) -> None:
        self._timer_ms = -1
        self._queue.mark_dirty()

    def cancel(self) -> None:
        """The queue is deleted."""
        self._queue.broker.timers.cancel(self._due)

    # -- limits ----------------------------------------------------------------------------------------------

    def enforce_limits(self) -> None:
        """drop-head: drop the oldest ready messages until the limits hold, or until the next turn has to go on."""
        queue = self._queue
        many = queue.over(-LEAVING_PER_TURN, -(LEAVING_PER_TURN << 10))  # a policy has made the limit smaller
        while queue.backlog.any_ready() and queue.over(0, 0) and not queue.checking:
            # a consumer may take what is behind an expired head, in the next turn: only then is it known how many are too many
            if (many or self._head_has_expired()) and not self._may_leave():
                return
            self._leave("maxlen", DROPPED)

    def leave_undelivered(self) -> bool:
        """The first ready message has been delivered too often. False if it has to wait for the next turn."""
        if not self._may_leave():
            return False
        self._leave("delivery_limit", DROPPED)
        return True

    # -- leave -----------------------------------------------------------------------------------------------

    def _may_leave(self) -> bool:
        """Whether messages may still leave in this turn; if not, the next one goes on."""
        turns = self._queue.broker.turns
        if self._turn != turns:
            self._turn, self._left = turns, LEAVING_PER_TURN
        if self._left <= 0:
            self._wake_in(0)
        return self._left > 0

    def _leave(self, reason: str, outcome: int, most: int = 1) -> None:
        """The first ready message, and up to `most` with those right behind it, are dead-lettered or dropped."""
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

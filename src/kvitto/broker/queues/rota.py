"""The rotation of a queue's consumers (A12): those of the highest priority that may have credit are served one after the other.

A consumer that has no credit when its turn comes leaves the rota, and `Queue.resume` adds it again when it may have some. So a
delivery takes the same time however many consumers wait for acks, and however many priorities there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvitto.broker.queues.consumer import Consumer


class Line:
    """Consumers of one priority as a ring: the one behind `last` is next."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.last: Any = None


class Rota:
    def __init__(self) -> None:
        self.lines: list[Line] = []
        """One line for each priority, the highest first. No line is empty."""
        self.burst = 0
        self.asking: Consumer | None = None
        """The consumer whose credit is being asked for, and which is to blame if that raises an exception."""

    def put(self, c: Consumer) -> None:
        """Add a consumer behind all others of its priority."""
        c.idle = False
        line = self._line(c.priority)
        c.line = line
        last = line.last
        if last is None:
            c.after = c.before = c
        else:
            c.before, c.after = last, last.after
            c.after.before = last.after = c
        line.last = c

    def _line(self, priority: int) -> Line:
        at = bisect_left(self.lines, -priority, key=_rank)
        if at == len(self.lines) or self.lines[at].priority != priority:
            self.lines.insert(at, Line(priority))
        return self.lines[at]

    def drop(self, c: Consumer) -> None:
        """Remove a consumer, if it is in the rota."""
        line = c.line
        if line is None:
            return
        if c.after is c:
            del self.lines[bisect_left(self.lines, -line.priority, key=_rank)]
        else:
            c.before.after, c.after.before = c.after, c.before  # type: ignore[union-attr]
            if line.last is c:
                line.last = c.before
        c.line = c.after = c.before = None

    def next(self):  # type: ignore[no-untyped-def]
        """The consumer whose turn it is, None if none has credit; `burst` says how many messages it may get at once."""
        while self.lines:
            line = self.lines[0]
            c = line.last.after
            self.asking = c
            left = c.credit()
            self.asking = None
            if left > 0:
                self.burst = left if c.after is c else 1
                line.last = c
                return c
            if c.line is line:
                self.drop(c)
                c.idle = True
        return None


def _rank(of: Line | Consumer) -> int:
    return -of.priority


def _place(c: Consumer) -> tuple[int, int]:
    return -c.priority, c.serial


def insert_consumer(consumers: list[Consumer], c: Consumer, first: int) -> None:
    """Put a consumer behind all of its priority, but not before index `first`."""
    consumers.insert(bisect_right(consumers, -c.priority, first, key=_rank), c)


def consumer_index(consumers: list[Consumer], c: Consumer) -> int:
    """Where a consumer is in a list that `insert_consumer` has made."""
    if consumers[0] is c:
        return 0
    at = bisect_left(consumers, _place(c), 1, key=_place)
    assert consumers[at] is c
    return at

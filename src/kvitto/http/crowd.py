"""Chooses which HTTP connection to close if there are too many of them, or too many bytes of bodies: one of the user
who has most. `server.py` calls it."""

from __future__ import annotations

from collections import Counter
from typing import Generic, Protocol, TypeVar


class Member(Protocol):
    """A connection. `holder` is its user, or its address before the login; `body_bytes` is the size of its incomplete body."""

    holder: str
    body_bytes: int


M = TypeVar("M", bound=Member)


class Crowd(Generic[M]):
    """The connections that wait for their peers to send or to receive something."""

    def __init__(self) -> None:
        self.idle: dict[M, None] = {}
        """Connections that have sent no request yet, or no further one, or whose password is being checked; the longest first."""
        self.slow: dict[M, None] = {}
        """Connections whose body is arriving or whose answer is being sent; the longest first."""

    def remove(self, member: M) -> None:
        self.idle.pop(member, None)
        self.slow.pop(member, None)

    def first_to_go(self) -> M | None:
        """Return an idle connection; else the one that has been slow longest, of the user who has most of the slow ones."""
        for member in self.idle:
            return member
        return self._first_of(Counter(member.holder for member in self.slow))

    def largest(self) -> M | None:
        """Return the first connection of the user whose incomplete bodies have most bytes."""
        sums: Counter[str] = Counter()
        for member in self.slow:
            sums[member.holder] += member.body_bytes
        return self._first_of(+sums)

    def _first_of(self, holders: Counter[str]) -> M | None:
        if not holders:
            return None
        [(holder, _)] = holders.most_common(1)
        return next(member for member in self.slow if member.holder == holder)

"""Who has to give way where there are too many HTTP connections, or too many bytes of bodies: who has most of them."""

from __future__ import annotations

from collections import Counter
from typing import Generic, Protocol, TypeVar


class Member(Protocol):
    """A connection. `holder`: its user, or its address while that is not known; `body_bytes`: what it holds of a body."""

    holder: str
    body_bytes: int


M = TypeVar("M", bound=Member)


class Crowd(Generic[M]):
    """The connections for which nothing is being done: it is their peers' turn to send or to take something."""

    def __init__(self) -> None:
        self.idle: dict[M, None] = {}
        """Those that have not asked for anything yet, or not again, or whose password is being checked, longest first."""
        self.slow: dict[M, None] = {}
        """Those whose body is coming or whose answer is going, longest first."""

    def remove(self, member: M) -> None:
        self.idle.pop(member, None)
        self.slow.pop(member, None)

    def first_to_go(self) -> M | None:
        """An idle one; else, of the user who has most of the slow ones, the one that has been slow longest."""
        for member in self.idle:
            return member
        return self._first_of(Counter(member.holder for member in self.slow))

    def largest(self) -> M | None:
        """Of the user whose bodies that are coming hold most bytes, the first."""
        sums: Counter[str] = Counter()
        for member in self.slow:
            sums[member.holder] += member.body_bytes
        return self._first_of(+sums)

    def _first_of(self, holders: Counter[str]) -> M | None:
        if not holders:
            return None
        [(holder, _)] = holders.most_common(1)
        return next(member for member in self.slow if member.holder == holder)

"""Decides which commits of a leader may be announced: those that enough followers have synced (R1, R8 of docs/cluster-model.md)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from kvitto.cluster.link import Link
from kvitto.cluster.records import Kind
from kvitto.cluster.ring import Ring

BEGUN_MAX = 1000
"""The gate remembers the place of at most this many commits. Further ones share the place of the last of them."""


class Gate:
    """Calls `allow` with the number of the last commit that enough followers have synced.

    It does not know of commits that began before it was made. They count as announced, so the caller makes a gate only when enough
    followers have everything.
    """

    def __init__(self, ring: Ring, followers: int, allow: Callable[[int], None]) -> None:
        """`followers`: how many of them are enough."""
        self._ring = ring
        self.followers = followers
        self._allow = allow
        self._begun: deque[tuple[int, int]] = deque()
        """The number of each commit that has begun and is not allowed yet, with the place of the stream behind what it syncs."""

    def begun(self, number: int, before: int) -> None:
        """Take the number of a commit that has begun. `before`: the next place of the stream before its sync point was put there."""
        if self._ring.next == before:
            # The commit has no sync point, because it syncs nothing that followers have. They acknowledge this record at once instead.
            self._ring.put(Kind.TIME, 0, 0, ())
        if len(self._begun) < BEGUN_MAX:
            self._begun.append((number, self._ring.next))
        else:  # perhaps no follower comes for days; a commit may wait for a later place than its own
            self._begun[-1] = number, self._ring.next

    def look(self, links: Iterable[Link]) -> None:
        """Allow the commits that enough followers have acknowledged."""
        reached, number = self.reached(link.acknowledged for link in in_sync(links)), 0
        while reached is not None and self._begun and self._begun[0][1] <= reached:
            number = self._begun.popleft()[0]
        if number:
            self._allow(number)

    def reached(self, values: Iterable[int]) -> int | None:
        """Return the value that enough followers have reached, where each of them has reached one of these. None: there are too few."""
        highest = sorted(values, reverse=True)
        return highest[self.followers - 1] if len(highest) >= self.followers else None


def in_sync(links: Iterable[Link]) -> list[Link]:
    """Return the connections of followers that have been sent everything once, and get every change since. Each follower has one."""
    return [link for link in links if link.state == "following" and not link.replaced]

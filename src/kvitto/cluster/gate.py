"""Decides which commits of a leader may be announced: those that enough followers have synced (R1, R8 of docs/cluster-model.md)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from kvitto.cluster.link import Link

BEGUN_MAX = 1000
"""So many commits are told apart. Further ones are allowed together."""


class Gate:
    """Calls `allow` with the number of the last commit that so many followers have synced.

    What was written before it was made is announced already. So the caller makes it when that many followers are in sync.
    """

    def __init__(self, followers: int, allow: Callable[[int], None]) -> None:
        self.followers = followers
        self._allow = allow
        self._begun: deque[tuple[int, int]] = deque()
        """The number of each commit that has begun and is not allowed yet, with the place of the stream behind what it syncs."""

    def begun(self, number: int, place: int) -> None:
        """A commit has begun. Whoever has acknowledged `place` has synced all that it covers."""
        if len(self._begun) < BEGUN_MAX:
            self._begun.append((number, place))
        else:  # no follower may come for days, and a commit may wait for a later place
            self._begun[-1] = number, place

    def look(self, links: Iterable[Link]) -> None:
        """Allow the commits that enough followers have acknowledged."""
        places = sorted((link.acknowledged for link in in_sync(links)), reverse=True)
        if len(places) < self.followers:
            return
        reached, number = places[self.followers - 1], 0
        while self._begun and self._begun[0][1] <= reached:
            number = self._begun.popleft()[0]
        if number:
            self._allow(number)


def in_sync(links: Iterable[Link]) -> list[Link]:
    """Return the connections of followers that have once had all, and get everything since. Each follower has one."""
    return [link for link in links if link.state == "following" and not link.replaced]

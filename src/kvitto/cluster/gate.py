"""Decides which commits of a leader may be announced: those that enough followers have synced (R1, R8 of docs/cluster-model.md)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from kvitto.cluster.link import Link
from kvitto.cluster.records import Kind
from kvitto.cluster.ring import Ring

BEGUN_MAX = 1000
"""The gate remembers the place of at most this many commits. Further ones share the place of the last of them."""


class Waits(Protocol):
    """Says who has to have synced what is announced."""

    def reached(self, values: Mapping[str, int], most: int) -> int | None:
        """Return the value, at most `most`, that all required followers have reached. Return None if one of them is missing.

        `values`: what each follower that is in sync has reached, by its name.
        """
        ...


class Enough(Waits, Protocol):
    """The same for a server, which tells publishers why they wait."""

    def why_blocked(self, awake: Mapping[str, int]) -> str:
        """Return why nothing can be confirmed with these followers; "" if it can."""
        ...


class Count:
    """A fixed number of followers is enough, whichever they are. An operator sees to it that there are exactly that many."""

    def __init__(self, followers: int) -> None:
        self.followers = followers

    def reached(self, values: Mapping[str, int], most: int) -> int | None:
        highest = sorted(values.values(), reverse=True)
        return min(highest[self.followers - 1], most) if len(highest) >= self.followers else None

    def why_blocked(self, awake: Mapping[str, int]) -> str:
        if len(awake) >= self.followers:
            return ""
        return f"low on followers: {len(awake)} in sync, and nothing is confirmed before {few(self.followers)}"


class Gate:
    """Calls `allow` with the number of the last commit that enough followers have synced.

    It does not know of commits that began before it was made. They count as announced, so the caller makes a gate only when enough
    followers have everything.
    """

    def __init__(self, ring: Ring, enough: Waits, allow: Callable[[int], None]) -> None:
        self._ring = ring
        self._enough = enough
        self._allow = allow
        self.announced = ring.next
        """The place of the stream behind what has been announced. Who has synced up to here has everything that was confirmed."""
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
        reached, number = self._enough.reached(acknowledged(links), self._ring.next), 0
        while reached is not None and self._begun and self._begun[0][1] <= reached:
            number, self.announced = self._begun.popleft()
        if number:
            self._allow(number)

    def reached(self, values: Mapping[str, int]) -> int | None:
        """Return up to which byte of the stream enough followers have everything, where each has it up to one of these."""
        return self._enough.reached(values, self._ring.total)


def acknowledged(links: Iterable[Link]) -> dict[str, int]:
    """Return which place each follower that is in sync has acknowledged, by its name."""
    return {link.member: link.acknowledged for link in in_sync(links)}


def in_sync(links: Iterable[Link]) -> list[Link]:
    """Return the connections of followers that have been sent everything once, and get every change since. Each follower has one."""
    return [link for link in links if link.state == "following" and not link.replaced]


def few(count: int) -> str:
    """Say in words that so many followers are in sync."""
    return f"{count} {'is' if count == 1 else 'are'} in sync"

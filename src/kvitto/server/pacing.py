"""Keeps syncs short by pausing fast publishers (adr/0012). `Server` calls it in each turn and after each sync.

A confirm waits for everything that was written before it, by any connection. While more bytes wait for the next sync
than the disk can write in PACE_S, the server does not read from connections that have just sent much. It resumes them
when that sync begins. So the disk is always busy, and no confirm waits for more than two such syncs. If no confirm has
waited lately, no connection is paused: the system's cache may take a burst.
"""

from __future__ import annotations

from typing import Protocol

from kvitto.base.limits import MIB

PACE_S = 0.006
"""The time that a sync should take."""
LATELY_S = 2.0
"""The time after the last wait for a sync in which pacing goes on."""
LEAST, FIRST, MOST = 1 * MIB, 4 * MIB, 8 * MIB
"""Bytes for one sync: on the slowest disk, before its speed is known, and on the fastest."""
TELLING = 256 * 1024
"""A smaller sync does not show how fast the disk writes."""
SLOWER, FASTER = 1 / 2, 1 / 8
"""The weight of the latest sync in the rate of the disk. It is small for a fast sync, because a cache in the device
makes some syncs look far faster than the disk is."""
MUCH = 4096
"""A connection that has sent this many bytes in one read counts as a fast publisher."""


class Publisher(Protocol):
    """A connection that publishes."""

    def throttle(self) -> None: ...
    def unthrottle(self) -> None: ...


class Pacing:
    def __init__(self) -> None:
        self.budget = FIRST
        self._rate = FIRST / PACE_S
        self._waited_at = -LATELY_S
        self.fast: set[Publisher] = set()
        """The connections that have sent much since the last call of `look`."""
        self.throttled: list[Publisher] = []
        """The connections that are paused now."""

    def measured(self, size: int, seconds: float) -> None:
        """Note that a sync of this many bytes took this long."""
        if size >= TELLING:
            rate = size / max(seconds, 1e-6)
            self._rate += (rate - self._rate) * (SLOWER if rate < self._rate else FASTER)
            self.budget = int(min(max(self._rate * PACE_S, LEAST), MOST))

    def waited(self, now: float) -> None:
        """Note that a confirm waits for a sync."""
        self._waited_at = now

    def over_budget(self, unsynced: int, now: float) -> bool:
        """Return whether a sync has to begin although no confirm waits for one, and fast publishers have to be paused."""
        return unsynced > self.budget and now - self._waited_at < LATELY_S

    def look(self, unsynced: int, now: float, lagging: bool = False) -> bool:
        """Pause or resume fast publishers after a turn, when so many bytes wait for the next sync. `lagging`: followers
        are far behind. Return whether these are too many."""
        too_much = lagging or self.over_budget(unsynced, now)
        if too_much:
            for peer in self.fast:
                peer.throttle()
            self.throttled += self.fast
        elif self.throttled:
            throttled, self.throttled = self.throttled, []
            for peer in throttled:
                peer.unthrottle()
        self.fast.clear()
        return too_much

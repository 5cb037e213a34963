"""Keeps syncs short. A confirm waits for everything that was written before it, by any connection:
so a connection that publishes faster than the disk can sync is paused.

While more bytes wait for the next sync than the disk takes in a moment, peers that have just sent much are not read from. They go on
when that sync begins: the disk is busy all the time, and nobody waits for more than two such moments. Where nobody has waited for a
while, nobody is held: without confirms the system's cache may take what the disk cannot yet.
"""

from __future__ import annotations

from typing import Protocol

from kvitto.base.limits import MIB

PACE_S = 0.006
"""How long a sync should take."""
LATELY_S = 2.0
"""Somebody has waited for a sync since then: somebody may again."""
LEAST, FIRST, MOST = 1 * MIB, 4 * MIB, 8 * MIB
"""Bytes for one sync: on the slowest disk, before anything is known of it, and on the fastest."""
TELLING = 256 * 1024
"""A smaller sync says nothing of how fast the disk writes."""
SLOWER, FASTER = 1 / 2, 1 / 8
"""Weight of the latest sync in the rate of the disk: a cache in the device makes some syncs look far better than the disk is."""
MUCH = 4096
"""Bytes in one read from which on a connection counts as a fast publisher."""


class Publisher(Protocol):
    """A connection that publishes."""

    def hold(self) -> None: ...
    def go_on(self) -> None: ...


class Pacing:
    def __init__(self) -> None:
        self.budget = FIRST
        self._rate = FIRST / PACE_S
        self._waited_at = -LATELY_S
        self.fast: set[Publisher] = set()
        """The connections that have sent much since the last look."""
        self.held: list[Publisher] = []
        """The connections that are not read from at present."""

    def measured(self, size: int, seconds: float) -> None:
        """A sync of so many bytes has taken so long."""
        if size >= TELLING:
            rate = size / max(seconds, 1e-6)
            self._rate += (rate - self._rate) * (SLOWER if rate < self._rate else FASTER)
            self.budget = int(min(max(self._rate * PACE_S, LEAST), MOST))

    def waited(self, now: float) -> None:
        """Somebody waits for a sync."""
        self._waited_at = now

    def is_too_much(self, unsynced: int, now: float) -> bool:
        """Whether a sync is to begin although nobody waits for one, and fast publishers are to wait."""
        return unsynced > self.budget and now - self._waited_at < LATELY_S

    def look(self, unsynced: int, now: float) -> bool:
        """Hold or release fast publishers after a turn, when so many bytes wait for the next sync. Returns whether these are too many."""
        too_much = self.is_too_much(unsynced, now)
        if too_much:
            for peer in self.fast:
                peer.hold()
            self.held += self.fast
        elif self.held:
            held, self.held = self.held, []
            for peer in held:
                peer.go_on()
        self.fast.clear()
        return too_much

"""When a sync waits a moment for more messages to confirm (docs/adr/0040). A turn asks before each small sync (`driving.py`).

A sync costs nearly as much for one message as for a hundred. If the latest syncs each covered several messages, more of them are on their
way when the first one has come: from publishers that wait for nothing, or from those that the sync before has just answered. So the next
sync waits until as many have come as usual, but not for long (`until`). A publisher that is alone, and one that has been quiet for a
moment, waits for nobody.
"""

from __future__ import annotations

WAIT_S = 0.0005
"""The longest time from the begin of a sync to that of the next one for which messages wait."""
SYNCS = 5
"""That time is at most so many times as long as a sync takes. Where syncs cost nothing, as in memory, nobody waits."""
FADES = 1 / 8
"""By so much of itself the usual number shrinks with each sync that covers fewer messages. It grows at once."""


class Gathering:
    def __init__(self) -> None:
        self._usual = 0.0
        """How many messages with confirms the latest syncs have covered: the largest number, which fades."""
        self._began = 0.0

    def begun(self, now: float, count: int) -> None:
        """Note that a sync begins that covers `count` messages with confirms."""
        self._began = now
        self._usual = max(float(count), self._usual * (1 - FADES))

    def until(self, now: float, count: int, sync_s: float) -> float:
        """Return the time at which a sync of `count` messages is to begin although no more have come; 0.0 if it may begin now.

        `sync_s`: how long a sync usually takes, in seconds.
        """
        end = self._began + min(WAIT_S, SYNCS * sync_s)
        return end if count < self._usual and now < end else 0.0

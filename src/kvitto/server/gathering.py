"""When a sync waits a moment for more publishers (docs/adr/0040). A turn asks before each small sync (`driving.py`).

A sync costs nearly as much for one message as for a hundred. If the latest syncs each covered what several publishers had sent, or one at
several moments, more is on its way when the first message has come: from publishers that wait for nothing, or from those that the sync
before has just answered. So the next sync waits until as much has come as usual, but not for long (`until`), and if nothing has come in a
wait, there is no further one until a sync has covered several again. A publisher that is alone, and one that has been quiet for a moment,
waits for nobody.
"""

from __future__ import annotations

WAIT_S = 0.0005
"""The longest time from the begin of a sync to that of the next one for which messages wait."""
SYNCS = 3
"""That time is at most so many times as long as a sync takes: time for a sync, and for those that it answers to publish again. Where
syncs cost nothing, as in memory, nobody waits."""
FADES = 1 / 8
"""By so much of itself the usual number shrinks with each sync that covers less. It grows at once."""


class Gathering:
    def __init__(self) -> None:
        self._usual = 0.0
        """How many batches with confirms the latest syncs have covered: the largest number, which fades."""
        self._began = 0.0
        self._waited = 0
        """How many there were when the next sync began to wait for more, 0 if it does not wait."""

    def begun(self, now: float, count: int) -> None:
        """Note that a sync begins. It covers `count` batches: what a channel has published at one moment, with confirms."""
        waited, self._waited, self._began = self._waited, 0, now
        if count:  # else it is for something else
            in_vain = count <= waited
            self._usual = float(count) if in_vain else max(float(count), self._usual * (1 - FADES))

    def until(self, now: float, count: int, sync_s: float) -> float:
        """Return the time at which a sync of `count` batches is to begin although no more have come; 0.0 if it may begin now.

        `sync_s`: how long a sync usually takes, in seconds.
        """
        end = self._began + min(WAIT_S, SYNCS * sync_s)
        if count >= self._usual or now >= end:
            return 0.0
        self._waited = self._waited or count
        return end

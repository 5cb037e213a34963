"""Whether a small sync waits a moment for other publishers (docs/adr/0040). A turn asks before it begins one (`driving.py`).

A sync costs nearly as much for one message as for a hundred. A batch here is what a channel has published with confirms at one moment. If
recent syncs covered several batches each, others will probably follow the first one soon: their publishers do not wait for confirms, or
have just got theirs from the previous sync. So the sync waits until as many batches have come as usual, but not for long (`until`). After
a wait in which none has come, no sync waits until one has covered several batches again. So a publisher that is alone does not wait.
"""

from __future__ import annotations

WAIT_S = 0.0005
"""A sync that waits begins at most this many seconds after the previous one began."""
SYNCS = 3
"""It also begins at most this many times the usual time of a sync after the previous one began. That is enough for the previous sync, and
for the publishers that it answers to publish again. Where syncs take no time, as in memory, none waits."""
FADES = 1 / 8
"""With each sync that covers fewer batches than usual, the usual number shrinks by this part of itself. It grows at once."""


class Gathering:
    def __init__(self) -> None:
        self._usual = 0.0
        """The usual number of batches in a sync: the largest one of recent syncs, which shrinks with time."""
        self._began = 0.0
        self._waited = 0
        """How many batches there were when the next sync began to wait. It is 0 if that does not wait."""

    def begun(self, now: float, count: int) -> None:
        """Note that a sync begins that covers `count` batches."""
        waited, self._waited, self._began = self._waited, 0, now
        if count:  # a sync without confirms says nothing about publishers
            in_vain = count <= waited
            self._usual = float(count) if in_vain else max(float(count), self._usual * (1 - FADES))

    def until(self, now: float, count: int, sync_s: float) -> float:
        """Return the time at which a sync of `count` batches begins even if no more come. 0.0: it begins now.

        `sync_s`: how long a sync usually takes, in seconds.
        """
        end = self._began + min(WAIT_S, SYNCS * sync_s)
        if count >= self._usual or now >= end:
            return 0.0
        self._waited = self._waited or count
        return end

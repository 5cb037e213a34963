"""Whether a small sync waits a moment for other publishers (docs/adr/0040). A turn asks before it begins one (`driving.py`).

A sync costs nearly as much for one message as for a hundred. A batch here is what a channel has published with confirms at one moment. If
recent syncs covered several batches each, others will probably follow the first one soon: their publishers do not wait for confirms, or
have just got theirs from the previous sync. So the sync waits until as many batches have come as usual, but not for long (`until`). After
a wait in which none has come, no sync waits until one has covered several batches again. So a publisher that is alone does not wait.

If all publishers go on publishing although their confirms have not come, the sync waits longer, until nothing has come for a while.
"""

from __future__ import annotations

WAIT_S = 0.0005
"""A sync that waits begins at most this many seconds after the previous one began."""
SYNCS = 3
"""It also begins at most this many times the usual time of a sync after the previous one began. That is enough for the previous sync, and
for the publishers that it answers to publish again. Where syncs take no time, as in memory, none waits."""
FADES = 1 / 8
"""The part of the usual number by which it shrinks with each sync that covers fewer batches. It grows at once."""
LONG_S = 0.004
"""While no publisher waits for its confirms, a sync begins at most this many seconds after the previous one began."""
PAUSE_S = 0.0005
"""It also begins when no batch has come for this many seconds: then they may wait after all, because they may have only so many messages
unconfirmed."""
SHORT_WAITS = 100
"""After such a pause so many syncs do not wait longer than others, so that such publishers lose little."""


class Gathering:
    def __init__(self) -> None:
        self._usual = 0.0
        """The usual number of batches in a sync: the largest one of recent syncs, which shrinks with time."""
        self._began = 0.0
        self._waited = 0
        """How many batches there were when the next sync began to wait. It is 0 if that does not wait."""
        self._long = False
        """Whether the next sync waits longer."""
        self._seen = 0
        """How many batches there were when a turn last asked, and when the last of them had come."""
        self._came = 0.0
        self._short_waits = 0

    def begun(self, now: float, count: int) -> None:
        """Note that a sync begins that covers `count` batches."""
        waited, self._waited, self._began, self._seen = self._waited, 0, now, 0
        if self._long:
            self._long = False
            if now >= self._came + PAUSE_S:
                self._short_waits = SHORT_WAITS
            return
        if self._short_waits:
            self._short_waits -= 1
        if count:  # a sync without confirms says nothing about publishers
            in_vain = count <= waited
            self._usual = float(count) if in_vain else max(float(count), self._usual * (1 - FADES))

    def until(self, now: float, count: int, sync_s: float, eager: bool) -> float:
        """Return the time at which a sync of `count` batches begins even if no more come. 0.0: it begins now.

        `sync_s`: how long a sync usually takes, in seconds. `eager`: whether one of the publishers may wait for its confirm.
        """
        if count > self._seen:
            self._seen, self._came = count, now
        end = self._began + min(WAIT_S, SYNCS * sync_s)
        self._long = not eager and not self._short_waits and sync_s > 0
        if self._long:
            end = min(self._began + LONG_S, self._came + PAUSE_S)
        elif count >= self._usual:
            return 0.0
        if now >= end:
            return 0.0
        self._waited = self._waited or count
        return end

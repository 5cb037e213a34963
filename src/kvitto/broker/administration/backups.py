"""The backup that is being taken of this broker: begun and ended by whoever takes it, and given up if nobody does any more.

While it lasts the files that it needs are kept, which takes room on the disk. So it ends when its taker has not been heard of for a
while, and when there is little room. The HTTP API calls this for `kvitto backup`; the broker writes nothing outside of its directory.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvitto.base.limits import BACKUP_SILENCE_MS
from kvitto.broker.walls import Service
from kvitto.store.cut import Cut

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker

LOOK_MS = 1000

log = logging.getLogger("kvitto.broker")


class Backups(Service):
    stopped = "no backup can be taken"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.store)
        self.broker = broker
        self.running: Cut | None = None
        self.ended: dict[str, str] = {}
        """Why the last backup was given up, by its name."""
        self._heard_ms = 0

    def begin(self) -> Cut:
        """Begin a backup of all that the broker's files have now. Raises StoreError. No other one may be running."""
        assert self.running is None
        cut = Cut(self._store, secrets.token_hex(8))
        cut.begin()
        self.running = cut
        self.heard()
        self.broker.jobs.start(self._note(cut), owner=self)
        self.broker.timers.after(LOOK_MS, self.look)
        log.info("a backup is being taken (%s)", cut.name)
        return cut

    @staticmethod
    def _note(cut: Cut) -> Iterator[None]:
        while not cut.some():
            yield

    def heard(self) -> None:
        """Note that whoever takes the backup is still there."""
        self._heard_ms = self.broker.timers.now_ms

    def look(self) -> None:
        """Give up the backup if it has failed, if nobody takes it any more, or if the disk is nearly full."""
        cut = self.running
        if cut is None:
            return
        if not cut.failure:
            if self.broker.timers.now_ms - self._heard_ms > BACKUP_SILENCE_MS:
                cut.give_up(f"whoever takes it has not been heard of for {BACKUP_SILENCE_MS // 1000} s")
            elif self._store.short:
                cut.give_up("there is little room left on the disk of the data directory")
        if cut.failure:
            log.warning("the backup %s was given up: %s", cut.name, cut.failure)
            self.ended = {cut.name: cut.failure}
            self.end()
        else:
            self.broker.timers.after(LOOK_MS, self.look)

    def end(self) -> None:
        """Let go of the files that have been kept for the backup."""
        cut, self.running = self.running, None
        if cut is not None:
            cut.end()

"""Verifies the data directory in the background: a thread that takes small steps and waits between them (store/scrub.py, docs/adr/0038).

A leader, a broker that stands alone and a follower have one each.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable

from kvitto.base.errors import StoreError
from kvitto.store.disk import Disk
from kvitto.store.scrub import Damage, Pass

RATE = 2 << 20
"""Bytes per second: 170 GB a day."""
FIRST_S = 5.0
REST_S = 10.0
"""The time between two passes. A small directory needs no more than a moment for one."""
STOP_S = 5.0

log = logging.getLogger("kvitto")


class Scrubbing:
    def __init__(self, disk: Disk, tell: Callable[[Damage, str], None], may_go_on: Callable[[], bool]) -> None:
        """The thread calls `tell` with damage and whose file it is, and asks `may_go_on` before each step. If not, the pass ends."""
        self._disk = disk
        self._tell = tell
        self._may_go_on = may_go_on
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvitto-scrub", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Have the thread end with its present step."""
        self._ended.set()

    def stop(self) -> None:
        """End the thread. It uses no file from then on."""
        self.end()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def _run(self) -> None:
        pause = FIRST_S
        while not self._ended.wait(pause):
            pause = REST_S
            try:
                self._pass()
            except StoreError as error:
                log.warning("files are not verified for now: %s", error)
            except Exception:  # whatever is wrong with this, the broker goes on
                log.exception("files are not verified for now")

    def _pass(self) -> None:
        steps = Pass(self._disk, self._tell).run()
        try:
            for cost in steps:
                if self._ended.wait(cost / RATE) or not self._may_go_on():
                    return
        finally:
            steps.close()


def in_words(damage: Damage, whose: str) -> str:
    """Say what is damaged, for people."""
    return f"{damage} ({whose})" if whose else str(damage)


def place_of(text: str) -> str:
    """Return the beginning of an alarm about damage: the file, the place, and what is lost."""
    return re.split(r"; | \(|\. ", text, maxsplit=1)[0]

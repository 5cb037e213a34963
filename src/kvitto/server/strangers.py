"""Logs why connections to the followers' port have ended before they proved that they have the key, and limits the number of lines.

The same reason from the same host makes at most one line in EVERY_S. The next line says how many connections there were meanwhile.
`FollowerLinks` calls it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

log = logging.getLogger("kvitto")

EVERY_S = 60.0
HOSTS_MAX, REASONS_MAX = 32, 8
"""At most this many hosts, and this many reasons of each of them, are counted separately. Further ones are counted together."""
OTHER_HOSTS, OTHER_REASONS = "other hosts", "other reasons"


@dataclass
class Said:
    """A line of the log."""

    level: int
    at: float
    more: int = 0
    """How many connections have ended for the same reason since that line."""


class Strangers:
    def __init__(self) -> None:
        self._hosts: dict[str, dict[str, Said]] = {}

    def tell(self, level: int, where: str, why: str) -> None:
        """Log why a connection from HOST:PORT has ended, unless that has just been said of the same host: then it is counted."""
        host = where.rpartition(":")[0]
        if host not in self._hosts and len(self._hosts) >= HOSTS_MAX:
            host = where = OTHER_HOSTS
        reasons = self._hosts.setdefault(host, {})
        if why not in reasons and len(reasons) >= REASONS_MAX:
            why = OTHER_REASONS
        said = reasons.get(why)
        if said is None:
            reasons[why] = Said(level, time.monotonic())
            log.log(level, "follower %s: %s", where, why)
        else:
            said.more += 1

    def look(self) -> None:
        """Log the counts of those reasons whose last line is older than EVERY_S. Call this several times a minute."""
        now = time.monotonic()
        for host, reasons in list(self._hosts.items()):
            for why, said in list(reasons.items()):
                if now - said.at < EVERY_S:
                    continue
                if said.more:
                    log.log(
                        said.level, "follower %s: %s (%d times more since the last line of this)", host, why, said.more
                    )
                    said.at, said.more = now, 0
                else:
                    del reasons[why]
            if not reasons:
                del self._hosts[host]

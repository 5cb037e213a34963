"""What the log says of connections to the followers' port that have not proved that they have the key: little, however many there are.

The same reason from the same host is said at most once in EVERY_S, with how often it was since. `Followers` calls it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

log = logging.getLogger("kvitto")

EVERY_S = 60.0
HOSTS_MAX, REASONS_MAX = 32, 8
"""So many hosts, and so many reasons of each, are told apart at one time. What is beyond is counted together."""
OTHER_HOSTS, OTHER_REASONS = "other hosts", "other reasons"


@dataclass
class Said:
    level: int
    at: float
    more: int = 0
    """How often it was since."""


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
        """Say how often it was since, where the last line is old enough. Call this several times a minute."""
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

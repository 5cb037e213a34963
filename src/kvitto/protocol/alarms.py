"""Alarms that block publishers: the disk is nearly full, a write was refused, memory is low, or too few followers are in sync (D4)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvitto.base.limits import MIB, SHORTSTR_MAX
from kvitto.store.room import ROOM_KEPT

if TYPE_CHECKING:
    from kvitto.protocol.connection import Connection

log = logging.getLogger("kvitto.amqp")


def no_room(free: int) -> str:
    """Return the reason for blocking publishers after a write was refused with `free` bytes free."""
    return (
        f"low on disk: no room for messages with {free / MIB:.1f} MiB free, {ROOM_KEPT // MIB} MiB are kept free for acks"
        " and definitions; make room, or consume, purge or delete queues"
    )


class Alarms:
    def __init__(self, connections: Iterable[Connection]) -> None:
        self._connections = connections
        self.reasons: dict[str, str] = {}
        """Why publishers are blocked: "disk", "room" (a write was refused), "memory" or "followers" -> a sentence."""

    @property
    def blocked(self) -> str | None:
        """The reason that connection.blocked gives, or None if publishers are not blocked."""
        return "; ".join(self.reasons.values())[:SHORTSTR_MAX] or None

    def block(self, reason: str | None, alarm: str = "disk") -> None:
        """Set or clear the reason of an alarm (ASCII). Publishers are blocked (D4) while any alarm has one, and told if they support it."""
        if (reason is None) == (alarm not in self.reasons):
            return
        before = self.blocked
        if reason is None:
            was = self.reasons.pop(alarm).partition(":")[0]
            if not any(text.startswith(was) for text in self.reasons.values()):
                log.info("no longer %s", was)
        else:
            self.reasons[alarm] = reason
            log.warning("publishers are blocked: %s", reason)
        now = self.blocked
        if (before is None) == (now is None):
            return
        if now is None:
            log.info("publishers may go on")
        for connection in list(self._connections):
            connection.set_blocked(now is not None)

"""The interface through which the hub and its connections ask the server for turns, logins and heartbeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvitto.broker.administration.auth import Attempt, User
    from kvitto.protocol.connection import Connection


class Driver:
    """Whoever drives the hub: the server with its loop. This one, for tests, has no loop; its owner calls `Hub.turn`."""

    def schedule(self) -> None:
        """Call `Hub.turn` soon."""

    def log_in(self, attempt: Attempt, checked: Callable[[User | None], None]) -> bool:
        """Check a password that has not been seen yet, which takes long, in a thread, and then call `checked` with the user or None.

        False if there is no thread for that: then the caller checks it.
        """
        return False

    def watch_heartbeats(self, connection: Connection) -> None:
        """Call `Connection.beat` from time to time: the peer has agreed to heartbeats."""

"""The base of the sockets that the poller serves, so that it can call them through their type."""

from __future__ import annotations


class Served:
    """A socket that the poller serves."""

    served_in: int
    """The number of the latest round in which it was served. The poller sets it."""

    def ready(self, events: int) -> None:
        """Read or write, as far as `events` (EVENT_READ, EVENT_WRITE) says that it is possible now. Raises nothing."""
        raise NotImplementedError

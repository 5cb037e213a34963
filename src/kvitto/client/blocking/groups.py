"""Groups for programs without asyncio: `with queue.group("billing") as group:`. `kvitto.client.aio.groups` does the work."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from kvitto.client.aio.groups import Group, Held
from kvitto.client.aio.ranges import Offsets
from kvitto.client.blocking.loop import Loop
from kvitto.client.blocking.messages import SyncRangeReader


class SyncGroup:
    """A queue that is reserved for a group, see `Group`. Any number of threads may use it."""

    def __init__(self, loop: Loop, group: Group) -> None:
        self._loop = loop
        self._group = group
        self.name = group.name

    @property
    def offsets(self) -> Offsets:
        """The offsets of the queue when it was reserved, last after a reconnect."""
        return self._group.offsets

    def read(self, start: int, end: int | None = None, *, batch: int = 1000) -> SyncRangeReader:
        """Return an iterator over a range, see `Group.read`."""
        return SyncRangeReader(self._loop, self._group.read(start, end, batch=batch))

    def hold(self, start: int, end: int, *, timeout_s: float | None = None) -> Held:
        """Keep every message below `end` for the group, see `Group.hold`. After TimeoutError call it again."""
        return self._loop.run(self._group.hold(start, end), timeout_s)

    def count(self, start: int, end: int, *, timeout_s: float | None = None) -> Held:
        """Return what waits from start to end - 1, and hold nothing."""
        return self._loop.run(self._group.count(start, end), timeout_s)

    def settle(self, end: int, *, timeout_s: float | None = None) -> int:
        """Settle every message below `end`, see `Group.settle`. After TimeoutError call it again."""
        return self._loop.run(self._group.settle(end), timeout_s)

    def __enter__(self) -> Self:
        self._loop.run(self._group.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if not self._loop.ended:
            self._loop.run(self._group.__aexit__(kind, error, tb))

"""Counts the memory of unfinished work of peers: incomplete bodies, and transactions.

There is a limit for each user and a higher one for all together, so that no user can take the memory of the others. If the limit for
all is reached nevertheless, the connection that has most is closed, and not the one that asks for more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvitto.base.errors import RESOURCE_ERROR, ConnectionError_
from kvitto.base.limits import BUFFERED_SHARE
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.protocol.connection import Connection

BUFFERS_MAX, BUFFER_BYTES = 16, 4 << 20
"""Free buffers for bodies that all connections share: so many, with so much memory each."""
WHAT = "messages that are not complete and transactions"


class Buffered:
    def __init__(self, broker: Broker, connections: Iterable[Connection]) -> None:
        self._broker = broker
        self._connections = connections
        self.total = 0
        self._by_user: dict[str, int] = {}
        self._buffers: list[Buf] = []

    def add(self, connection: Connection, size: int) -> bool:
        """Count so many bytes more, or fewer, for the connection. Returns whether to ask `excess`: its user or all have too much."""
        name = connection.user.name
        self.total += size
        connection.buffered += size
        buffered = self._by_user.get(name, 0) + size
        if buffered:
            self._by_user[name] = buffered
        else:
            self._by_user.pop(name, None)
        in_all = self._broker.limits.buffered_max
        return self.total > in_all or buffered > in_all // BUFFERED_SHARE

    def excess(self, connection: Connection) -> str:
        """Why the connection may not buffer what it does, "" if it may; others that buffer more may have been closed for it."""
        in_all = self._broker.limits.buffered_max
        name, most = connection.user.name, in_all // BUFFERED_SHARE
        if self._by_user.get(name, 0) > most:
            return f"{WHAT} of user '{name}' take more than {most} bytes, the limit of one user"
        text = f"{WHAT} of all connections take {in_all} bytes, the limit, and this one holds most of them"
        while self.total > in_all:
            largest = self._largest()
            if largest is connection:
                return text
            largest.fail(ConnectionError_(RESOURCE_ERROR, text, 60, 40, limit="held"))
        return ""

    def buffer(self) -> Buf:
        """An empty buffer for a body; one that has been used already needs not grow again."""
        return self._buffers.pop() if self._buffers else Buf(0)

    def keep(self, body: Buf) -> None:
        """The body is complete and has been copied: its buffer is free for another one."""
        if len(self._buffers) < BUFFERS_MAX:
            body.clear(BUFFER_BYTES)
            self._buffers.append(body)

    def _largest(self) -> Connection:
        """The largest connection of the user who has most."""
        name = max(self._by_user, key=self._by_user.__getitem__)
        return max((c for c in self._connections if c.buffered and c.user.name == name), key=lambda c: c.buffered)

"""Checks all connections once a second, and ends those that are too slow with the handshake, a message or the close.
`Server` calls it.

With ten thousand connections one check of all of them would delay everybody, so it is a job in many pieces.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from kvitto.base.process import give_back_memory
from kvitto.broker import walls
from kvitto.protocol.connection import Connection
from kvitto.protocol.hub import Hub
from kvitto.protocol.states import CLOSED, CLOSING, RUNNING

log = logging.getLogger("kvitto.amqp")

CLOSE_S = 5
"""A peer that does not answer our Close in this time is disconnected."""
PIECE = 2000
"""The number of connections in one piece of work, if there is nothing to do for them."""
CHECK_COST = 10
"""A connection that has to be looked at takes as long as this many others."""
MANY_ENDED = 1000
"""If this many connections have ended, it is worth the time to return their memory to the system."""
ABORT_COST = 100
"""Ending a connection takes as long as this many others."""


class ConnectionWatch(walls.Routine):
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._looking = False
        self._ended = 0

    def begin(self, give_back: bool) -> None:
        """Begin a check, once a second. `give_back`: quiet connections return memory. If the last check is not over
        yet, it goes on instead."""
        if not self._looking:
            self._looking = True
            walls.run(self, self._hub.broker.jobs.start, self._look(give_back), self._end, self)

    def _end(self) -> None:
        self._looking = False

    def contain(self, error: Exception) -> None:
        """Drop a check that has failed. The next one starts from the beginning."""
        self._looking = False
        super().contain(error)

    def _look(self, give_back: bool) -> Iterator[None]:
        cost = 0
        ended = self._hub.connections_closed
        if give_back and ended - self._ended >= MANY_ENDED:
            self._ended = ended
            give_back_memory()
        for connection in list(self._hub.connections):
            if give_back:
                walls.run(connection, connection.give_back)
            if not connection.begun and connection.state == RUNNING:  # nearly always
                cost += 1
            elif walls.run(connection, self._look_at, connection):
                cost += ABORT_COST
            else:
                cost += CHECK_COST
            if cost >= PIECE:
                cost = 0
                yield

    def _look_at(self, connection: Connection) -> bool:
        """Return whether the connection had to be ended."""
        if connection.begun:
            connection.look_for_progress()
        if connection.state < RUNNING:
            age_ms = self._hub.broker.timers.now_ms - connection.since_ms
            if age_ms <= self._hub.broker.limits.handshake_s * 1000:
                return False
            log.warning("%s: no handshake within %g s", connection.peer, self._hub.broker.limits.handshake_s)
            self._hub.broker.refused["handshake"] += 1
        elif connection.state in (CLOSING, CLOSED):
            connection.quiet_out += 1
            if connection.quiet_out <= CLOSE_S:
                return False
        else:
            return False
        connection.transport.abort()
        return True

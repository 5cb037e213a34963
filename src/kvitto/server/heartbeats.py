"""Heartbeats: calls each connection's `beat` every half of its interval, as RabbitMQ does, and ends silent connections."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable
from weakref import ref

from kvitto.broker import walls
from kvitto.protocol.connection import Connection
from kvitto.protocol.states import CLOSING

log = logging.getLogger("kvitto.amqp")

BEATS_PER_TURN = 200
"""Many connections may be due at one time; after this many the sockets have their turn."""
DEAD_MAX = 200
"""So many ended connections may wait to be forgotten, or as many as there are others, before they are looked for."""
TOGETHER_S = 0.1
"""A heartbeat may be so late: with thousands of idle connections one timer then serves hundreds of them."""


class Heartbeats:
    def __init__(self, loop: asyncio.AbstractEventLoop, guard: Callable[[Callable[[], None]], None]) -> None:
        self._loop = loop
        self._guard = guard
        self._due: list[tuple[float, int, ref[Connection]]] = []
        """Weak references, because ended connections stay in it for a while. They may agree to an interval of 18 hours, so they are also
        forgotten when they are most of it."""
        self._most = DEAD_MAX
        """When there are more of them, the ended ones are looked for."""
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._rang = 0.0
        """When the timer was last called."""

    def watch(self, connection: Connection) -> None:
        """Begin the heartbeats of a connection that has agreed to them. They go on until it closes."""
        if len(self._due) >= self._most:
            self._forget_ended()
        self._push(self._loop.time(), connection)
        self._arm()

    def stop(self) -> None:
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _push(self, now: float, connection: Connection) -> None:
        heapq.heappush(self._due, (now + connection.heartbeat / 2, next(self._numbers), ref(connection)))

    def _forget_ended(self) -> None:
        self._due = [entry for entry in self._due if not _has_ended(entry[2]())]
        heapq.heapify(self._due)
        self._most = 2 * len(self._due) + DEAD_MAX

    def _arm(self) -> None:
        if not self._due or (self._timer is not None and self._timer_at <= self._due[0][0]):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._due[0][0]
        self._timer = self._loop.call_at(max(self._timer_at, self._rang + TOGETHER_S), self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._rang = self._loop.time()
        self._guard(self._beat)
        if self._due and self._due[0][0] <= self._rang:
            self._rang = 0.0  # those that are left do not wait
        self._arm()

    def _beat(self) -> None:
        now = self._loop.time()
        for _ in range(BEATS_PER_TURN):
            if not self._due or self._due[0][0] > now:
                return
            at, _, reference = heapq.heappop(self._due)
            connection = reference()
            if connection is None or connection.state >= CLOSING:
                continue
            alive = walls.run(connection, connection.beat)
            if alive:
                # after the whole machine was suspended, each connection still gets all the time that it has agreed to
                self._push(at if at + connection.heartbeat / 2 > now else now, connection)
            elif alive is False:
                log.warning("%s: missed heartbeats from client, timeout: %ds", connection.peer, connection.heartbeat)
                connection.transport.abort()


def _has_ended(connection: Connection | None) -> bool:
    return connection is None or connection.state >= CLOSING

"""What kombu asks of a transport: py-amqp's answers, with connections of our own, and a reader for event loops."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any

from amqp.exceptions import RecoverableConnectionError
from kombu.transport import pyamqp

from kvitto.base.version import __version__
from kvitto.kombu.bell import Bell
from kvitto.kombu.connection import Connection as Opened

TURN_S = 0.001
"""The time in seconds in which more deliveries are handled in one round of an event loop, which would cost more than
they do. Where a worker runs a task in its callback, one that takes longer has a round of its own."""


class Transport(pyamqp.Transport):
    """The transport of `kvitto://` addresses. It takes the transport options of `amqp://`."""

    Connection = Opened  # it has what kombu uses of py-amqp's

    driver_name = "kvitto"

    def driver_version(self) -> str:
        return __version__

    def qos_semantics_matches_spec(self, connection: Opened) -> bool:
        """Say whether a limit that is not global changes running consumers: with Kvitto it does not, as with RabbitMQ 3."""
        if connection.server_properties.get("product") == "Kvitto":
            return False
        return bool(super().qos_semantics_matches_spec(connection))

    def register_with_event_loop(self, connection: Opened, loop: Any) -> None:
        """Let the loop (a kombu Hub) read."""
        connection.bell = Bell(loop, connection.push_settlements, self.on_readable, connection, loop)
        loop.add_reader(connection.sock, self.on_readable, connection, loop)
        if connection.waiting:
            connection.bell.ring()

    def on_readable(self, connection: Opened, loop: Any) -> None:
        """Handle what has been received, for a short time: the rest waits for the next round of the loop, which first
        settles these and does what else is due."""
        if not connection.connected:
            raise RecoverableConnectionError("Socket was disconnected")
        end = time.monotonic() + TURN_S
        with contextlib.suppress(socket.timeout):
            connection.drain_events(timeout=0)
            while connection.waiting and time.monotonic() < end:
                connection.drain_events(timeout=0)
        bell = connection.bell
        if bell is not None:
            if connection.waiting:
                bell.ring()
            else:
                bell.hush()


class SSLTransport(Transport, pyamqp.SSLTransport):
    """The transport of `kvittos://` addresses."""

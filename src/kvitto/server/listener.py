"""The asyncio side of a connection: its socket. All connections share one receive buffer, since each read is handled at once."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import sys
from typing import TYPE_CHECKING, Any

from kvitto.broker import walls
from kvitto.protocol.connection import Connection
from kvitto.server.pacing import MUCH
from kvitto.server.tls import user_of
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.server.server import Server

log = logging.getLogger("kvitto.amqp")

INBOX = 512 * 1024
LEAST_READ = 64 * 1024
WRITE_HIGH = 1 << 20
COPIES = sys.version_info < (3, 12)
"""Up to Python 3.11 asyncio's plain transport copies data that it cannot send yet. Later ones, TLS and other loops keep
the object itself."""


class Peer(asyncio.BufferedProtocol):
    """The socket of one AMQP connection; it is also the connection's `Transport`."""

    def __init__(self, server: Server, address: Any, tls: bool) -> None:
        self.server = server
        self._address = address
        self.tls = tls
        self.connection: Connection | None = None
        self.socket: asyncio.Transport | None = None
        self._box = server.inbox
        self._at = 0
        self._done = False
        self._paused = False
        self._throttled = False
        self._copies = False

    # -- asyncio's calls -------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.socket = transport
        self._copies = COPIES and type(transport).__module__ == "asyncio.selector_events"
        transport.set_write_buffer_limits(high=WRITE_HIGH)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name, loopback = peer_name(self._address)
        refusal = self.server.refusal()
        self.connection = Connection(self.server.hub, self, name, loopback, self.tls)
        if refusal is None:
            self.server.broker.refused["connections"] += 1
            transport.abort()
            return
        self.connection.refusal = refusal
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self.connection.external = user_of(certificate, self.server.config.tls_login_from)

    def get_buffer(self, sizehint: int) -> memoryview:
        assert self.connection is not None
        rest = self.connection.rest
        self._box, self._at = self.server.inbox, len(rest)
        if len(rest) + LEAST_READ > INBOX:
            self._box = Buf(len(rest) + LEAST_READ)
        view = memoryview(self._box.data)
        if rest:
            view[: self._at] = rest
        return view[self._at :]

    def buffer_updated(self, nbytes: int) -> None:
        assert self.connection is not None
        if self._done:
            return
        self.connection.received_bytes += nbytes
        self.server.received += nbytes
        if nbytes >= MUCH:
            self.server.pacing.fast.add(self)
        paused = self._paused
        try:
            self.connection.receive(self._box, self._at + nbytes)
        except Exception as error:  # noqa: BLE001 - top of the loop: the connection contains its own errors, so this is one of the disk
            self.server.fail(error)
        if paused and self._paused:
            self._stop_reading()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self.connection is not None:
            self.connection.writable(False)

    def resume_writing(self) -> None:
        connection = self.connection
        if connection is not None:
            self.server.guard(lambda: walls.run(connection, connection.writable, True))

    def connection_lost(self, exc: Exception | None) -> None:
        connection, self.connection = self.connection, None
        self.socket = None
        if connection is not None:
            self.server.guard(lambda: walls.run(connection, connection.lost))
        self.server.hub.driver.schedule()

    # -- the connection's calls ------------------------------------------------------------------------------

    def write(self, data: memoryview) -> bool:
        if self.socket is None or self._done or self.socket.is_closing():
            return True
        if self._copies:
            self.socket.write(data)
            return True
        if (
            self.socket.get_write_buffer_size()
        ):  # the transport would keep the whole buffer for perhaps a few bytes of it
            self.socket.write(bytes(data))
            return True
        self.socket.write(data)
        return not self.socket.get_write_buffer_size()

    def close(self) -> None:
        """Send what is left and close our side. Further input is read and dropped until the peer closes too.

        A socket that is closed with unread input sends a reset, and the peer would lose our last frames. The server
        ends the connection after a while if the peer does not.
        """
        self._done = True
        if self.socket is None or self.socket.is_closing():
            return
        if not self.socket.can_write_eof():  # TLS cannot close one direction only
            self.socket.close()
            return
        try:
            self.socket.write_eof()
            self.resume()
        except OSError:  # the peer has reset the connection meanwhile
            self.socket.abort()

    def abort(self) -> None:
        if self.socket is not None:
            self.socket.abort()

    def pause(self) -> None:
        """Take no more input. The socket itself is paused when the next input arrives, because a peer that waits for an
        answer sends none."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._read_on()

    # -- pacing ----------------------------------------------------------------------------------------------

    def throttle(self) -> None:
        """Read nothing for a moment; the connection does not see the difference."""
        self._throttled = True
        self._stop_reading()

    def unthrottle(self) -> None:
        self._throttled = False
        if not self._paused:
            self._read_on()

    def _stop_reading(self) -> None:
        if self.socket is not None and self.socket.is_reading():
            self.socket.pause_reading()

    def _read_on(self) -> None:
        if (
            self.socket is not None
            and not self._throttled
            and not self.socket.is_reading()
            and not self.socket.is_closing()
        ):
            self.socket.resume_reading()


def peer_name(address: Any) -> tuple[str, bool]:
    """Return (host:port, whether it is this machine)."""
    host, port = address[0], address[1]
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return f"{host}:{port}", False
    ip = getattr(ip, "ipv4_mapped", None) or ip  # an IPv4 peer on a socket for both
    return f"{ip}:{port}", ip.is_loopback

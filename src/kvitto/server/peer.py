"""The socket of one AMQP connection, plain or TLS. The poller calls `ready`, and the connection the methods of `Transport`.

All connections share one receive buffer, since each read is handled at once.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import socket
import ssl
from collections import deque
from selectors import EVENT_READ, EVENT_WRITE
from typing import TYPE_CHECKING, Any

from kvitto.base import rawio
from kvitto.broker import walls
from kvitto.protocol.connection import Connection
from kvitto.server.pacing import MUCH
from kvitto.server.served import Served
from kvitto.server.tls import user_of
from kvitto.wire import bits
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.server.server import Server

log = logging.getLogger("kvitto.amqp")

INBOX = 512 * 1024
LEAST_READ = 64 * 1024

_READ = EVENT_READ  # C variables when compiled
_WRITE = EVENT_WRITE
_INBOX = INBOX
_LEAST_READ = LEAST_READ
_MUCH = MUCH
_AGAIN = -errno.EAGAIN


class Peer(Served):
    def __init__(self, server: Server, sock: socket.socket, address: Any) -> None:
        self.server = server
        self._poller = server.poller
        self._socket: Any = sock
        self._fd = sock.fileno()
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._watched = 0
        """The events that the poller watches for."""
        self._reading = False
        self._done = False
        """Further input is dropped, and our side is closed behind the output."""
        self._ending = False
        """The connection is broken or aborted: `_lose` follows."""
        self._paused = False
        self._throttled = False
        self._unsent: deque[memoryview] = deque()
        """What the socket has not taken."""
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name, loopback = peer_name(address)
        refusal = server.refusal()
        self.connection: Connection | None = Connection(server.hub, self, name, loopback, self._tls)
        if refusal is None:
            server.broker.refused["connections"] += 1
            self.abort()
            return
        self.connection.refusal = refusal
        certificate = sock.getpeercert() if isinstance(sock, ssl.SSLSocket) else None
        if certificate:
            self.connection.external = user_of(certificate, server.config.tls_login_from)
        self._read_on()

    # -- the poller's calls ----------------------------------------------------------------------------------

    def ready(self, events: int) -> None:
        """Send what waits, and read what has come."""
        if self._fd >= 0 and events & _WRITE and self._unsent:
            self._send_rest()
        if self._fd >= 0 and events & _READ and self._reading:
            self._read()

    def _watch(self) -> None:
        """Have the poller watch for what this socket waits for."""
        wanted = (_READ if self._reading else 0) | (_WRITE if self._unsent else 0)
        if wanted != self._watched:
            self._poller.watch(self._fd, self, self._watched, wanted)
            self._watched = wanted

    def _read_first(self) -> None:
        """Read what OpenSSL has taken from the socket already, at the end of the handshake or with the input before it."""
        if self._fd >= 0 and self._reading:
            self._read()

    def _read(self) -> None:
        """Read what has arrived and hand it to the connection."""
        connection = self.connection
        if connection is None:
            return
        rest = connection.rest
        at = len(rest)
        box = self.server.inbox
        if at + _LEAST_READ > _INBOX:
            box = Buf(at + _LEAST_READ)
        if at:
            bits.copy(box.p, 0, rest, 0, at)
        n = self._decrypt(box, at) if self._tls and not self._done else rawio.receive(self._fd, box.p, at, box.cap - at)
        if n <= 0:
            if n == 0 and self._done and self._unsent:
                self._stop_reading()  # the peer has closed its side, and may still read what is left
            elif n != _AGAIN:  # the peer has closed the connection, or it is broken
                self._lose()
            return
        if self._done:
            return
        server = self.server
        connection.received_bytes += n
        server.received += n
        if n >= _MUCH:
            server.pacing.fast.add(self)
        paused = self._paused
        try:
            connection.receive(box, at + n)
        except Exception as error:  # noqa: BLE001 - top of the loop: the connection contains its own errors, so this is one of the disk
            server.fail(error)
        if paused and self._paused:
            self._stop_reading()

    def _decrypt(self, box: Buf, at: int) -> int:
        """Do what `rawio.receive` does, through TLS: one call of OpenSSL gives at most a record of 16 KiB, so there may be several."""
        start = at
        view = memoryview(box.data)
        try:
            while at < box.cap:
                n = self._socket.recv_into(view[at:])
                if not n:
                    break
                at += n
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return at - start or _AGAIN
        except OSError:
            pass
        if at > start:
            # the poller knows only what OpenSSL has not read yet: it may not tell of the rest, or of the end again
            self.server.call_soon(self._read_first)
        return at - start

    # -- the connection's calls ------------------------------------------------------------------------------

    def send(self, buf: Buf) -> bool:
        n = 0
        if not (self._tls or self._unsent or self._fd < 0 or self._done or self._ending):
            n = rawio.send(self._fd, buf.p, 0, buf.n)
            if n == buf.n:
                return True
        return self.write(buf.view(n if n > 0 else 0))  # it knows what a full or broken socket means

    def write(self, data: memoryview) -> bool:
        if self._fd < 0 or self._done or self._ending:
            return True
        if self._unsent:
            self._unsent.append(memoryview(bytes(data)))
            return True
        n = self._send(data)
        if n < 0 or n == len(data):
            return True
        self._unsent.append(data[n:])
        self._watch()
        if self.connection is not None:
            self.connection.writable(False)
        return False

    def _send(self, data: memoryview) -> int:
        """Send what the socket takes, and return its number of bytes; -1 if the connection is broken, which then ends soon."""
        n = self._encrypt(data) if self._tls else rawio.send_view(self._fd, data)
        if n == _AGAIN:
            return 0
        if n < 0:
            self.abort()
            return -1
        return n

    def _encrypt(self, data: memoryview) -> int:
        try:
            return int(self._socket.send(data))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return _AGAIN
        except OSError as error:
            return -(error.errno or errno.EIO)

    def _send_rest(self) -> None:
        """Go on with what the socket did not take. When all of it is sent, the connection may write again."""
        unsent = self._unsent
        while unsent:
            data = unsent[0]
            n = self._send(data)
            if n < 0:
                return
            if n < len(data):
                unsent[0] = data[n:]
                return
            unsent.popleft()
        self._watch()
        if self._done:
            self._shut()
            self._read_on()
        connection = self.connection
        if connection is not None:
            self.server.guard(walls.run, connection, connection.writable, True)

    def close(self) -> None:
        """Send what is left and close our side. Further input is read and dropped until the peer closes too.

        A socket that is closed with unread input sends a reset, and the peer would lose our last frames. The server
        ends the connection after a while if the peer does not.
        """
        if self._done or self._fd < 0:
            return
        self._done = True
        if not self._unsent:
            self._shut()
        self.resume()

    def _shut(self) -> None:
        try:
            if self._tls:
                with contextlib.suppress(
                    ssl.SSLError
                ):  # it has said that it ends, and does not wait for the peer's answer
                    self._socket.unwrap()
            self._socket.shutdown(socket.SHUT_WR)
        except (OSError, ValueError):  # the peer has reset the connection meanwhile
            self.abort()

    def abort(self) -> None:
        """End the connection without sending what is left. The connection hears of it soon, but not inside of this call."""
        if self._fd < 0 or self._ending:
            return
        self._ending = True
        self._reading = False
        self._unsent.clear()
        self._watch()
        self.server.call_soon(self._lose)

    def _lose(self) -> None:
        """The socket is of no use any more: close it, and tell the connection."""
        if self._fd < 0:
            return
        self._reading = False
        self._unsent.clear()
        self._watch()
        self._fd = -1
        with contextlib.suppress(OSError):
            self._socket.close()
        connection, self.connection = self.connection, None
        if connection is not None:
            self.server.guard(walls.run, connection, connection.lost)
        self.server.schedule()

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
        if self._reading and self._fd >= 0:
            self._reading = False
            self._watch()

    def _read_on(self) -> None:
        if not self._throttled and not self._reading and not self._ending and self._fd >= 0:
            self._reading = True
            self._watch()
            if self._tls:  # OpenSSL may have input that the poller does not know of
                self.server.call_soon(self._read_first)


def peer_name(address: Any) -> tuple[str, bool]:
    """Return (host:port, whether it is this machine)."""
    host, port = address[0], address[1]
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return f"{host}:{port}", False
    ip = getattr(ip, "ipv4_mapped", None) or ip  # an IPv4 peer on a socket for both
    return f"{ip}:{port}", ip.is_loopback

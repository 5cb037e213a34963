"""Takes connections of AMQP, with or without TLS, for as long as there are descriptors for them.

asyncio's own server accepts as many as wait before anybody is asked, and a TLS handshake counts nowhere until it is done. Who has
not logged in could take the last descriptor that way, and the store without one is a failed disk.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kvitto.server.garbage import forget_frames
from kvitto.server.listening import bind

log = logging.getLogger("kvitto")

BACKLOG = 1024
"""Connections that the system may hold ready for a listener."""
AT_ONCE = 8
"""Of those, in one turn of the loop: each costs about a third of a millisecond in this turn and the next two."""
HANDSHAKES_MAX = 512
"""TLS handshakes of a listener at one time. One more ends the one that has taken longest."""
RETRY_S = 1.0
"""After a connection that could not be accepted."""

MakePeer = Callable[[Any], asyncio.BufferedProtocol]
"""From the peer's address as the system gave it: later it may not be known any more."""


class Acceptor:
    """One listener. `room`: whether there may be one more connection; asked before a handshake, too.

    `tls`: what to shake hands with, asked for each connection; `too_slow` is called for each peer whose handshake
    takes more than `handshake_s`.
    """

    def __init__(
        self,
        peer: MakePeer,
        room: Callable[[], bool],
        too_slow: Callable[[], None],
        handshake_s: float,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._peer = peer
        self._room = room
        self._too_slow = too_slow
        self._handshake_s = handshake_s
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._loop: asyncio.AbstractEventLoop
        self._retries: dict[socket.socket, asyncio.TimerHandle] = {}
        self._beginning: set[asyncio.Task[None]] = set()
        self._handshakes: dict[asyncio.Task[None], None] = {}
        """Those of them whose peers have begun to speak, the oldest first."""

    @property
    def beginning(self) -> int:
        """Connections that are accepted and have no peer yet: with TLS, those that shake hands."""
        return len(self._beginning)

    async def listen(self, hosts: Sequence[str], port: int) -> int:
        """The port, which is the same on all hosts. OSError if it cannot."""
        self._loop = asyncio.get_running_loop()
        self._sockets = await bind(hosts, port)
        try:
            for sock in self._sockets:
                sock.listen(BACKLOG)
        except OSError:
            self.close()
            raise
        for sock in self._sockets:
            self._watch(sock)
        return int(self._sockets[0].getsockname()[1])

    def close(self) -> None:
        for task in self._beginning:
            task.cancel()
        for retry in self._retries.values():
            retry.cancel()
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self._sockets = []

    def _watch(self, listening: socket.socket) -> None:
        self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        """Accept up to AT_ONCE waiting connections. If more are waiting, the loop calls this again in its next round."""
        for _ in range(AT_ONCE):
            try:
                sock, address = listening.accept()
                self._accepted(sock, address)
            except BlockingIOError:
                return
            except ConnectionError:  # gone again
                continue
            except Exception as error:  # whatever it is, the next one may be accepted
                log.error("cannot accept a connection: %s", error, exc_info=not isinstance(error, OSError))
                self._loop.remove_reader(listening)
                self._retries[listening] = self._loop.call_later(RETRY_S, self._watch, listening)
                return

    def _accepted(self, sock: socket.socket, address: Any) -> None:
        begun = False
        try:
            sock.setblocking(False)
            if self._room():
                task = self._loop.create_task(self._begin(sock, address))
                self._beginning.add(task)
                task.add_done_callback(partial(self._begun, sock))
                begun = True
        finally:
            if not begun:
                sock.close()

    def _begun(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._beginning.discard(task)
        self._handshakes.pop(task, None)
        if task.cancelled():  # perhaps before it ran: then nobody else closes the socket
            sock.close()

    async def _begin(self, sock: socket.socket, address: Any) -> None:
        loop = asyncio.get_running_loop()
        tls: dict[str, Any] = {}
        try:
            if self._tls is not None:
                began = loop.time()
                await self._spoken(sock)
                left = max(began + self._handshake_s - loop.time(), 0.1)
                tls = {"ssl": self._tls(), "ssl_handshake_timeout": left}
            await loop.connect_accepted_socket(lambda: self._peer(address), sock, **tls)
        except ssl.SSLError as error:
            log.warning("%s:%d: TLS handshake failed: %s", *address[:2], why(error))
            forget_frames(error)
        except (ConnectionAbortedError, TimeoutError) as error:
            sock.close()
            log.warning("%s:%d: no TLS handshake within %g s", *address[:2], self._handshake_s)
            self._too_slow()
            forget_frames(error)
        except (OSError, ValueError, asyncio.CancelledError) as error:  # gone again
            forget_frames(error)
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _spoken(self, sock: socket.socket) -> None:
        """Until the peer has sent something: a handshake takes memory, and somebody who says nothing gets none. TimeoutError."""
        loop = asyncio.get_running_loop()
        came: asyncio.Future[None] = loop.create_future()

        def readable() -> None:
            if not came.done():
                came.set_result(None)

        loop.add_reader(sock, readable)
        try:
            await asyncio.wait_for(came, self._handshake_s)
        finally:
            loop.remove_reader(sock)
        if len(self._handshakes) >= HANDSHAKES_MAX:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]  # others may come before it has ended
            oldest.cancel()
            self._too_slow()
        task = asyncio.current_task()
        assert task is not None
        self._handshakes[task] = None


def why(error: ssl.SSLError) -> str:
    """OpenSSL's reason in words, of a certificate what is wrong with it."""
    reason = (error.reason or "it ended").lower().replace("_", " ")
    flaw = getattr(error, "verify_message", "")
    return f"{reason}: {flaw}" if flaw else reason

"""Accepts AMQP connections, with or without TLS, as long as there are descriptors for them.

asyncio's own server accepts all waiting connections without asking, and does not count a TLS handshake before it is
done. So peers that have not logged in could take the last descriptor, and without one the store treats its disk as
failed.
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
"""The maximum number of connections that the system holds ready for a listener."""
AT_ONCE = 8
"""The number of them that one turn accepts: each costs about a third of a millisecond in this turn and the next two."""
HANDSHAKES_MAX = 512
"""The maximum number of TLS handshakes of a listener at one time. One more ends the one that has taken longest."""
RETRY_S = 1.0
"""The pause after a connection that could not be accepted."""

MakePeer = Callable[[socket.socket, Any], object]
"""Makes a peer from its socket, and from its address as the system gave it, because the address may not be known later."""


class Acceptor:
    """One listener. `room` says whether there may be one more connection; it is asked before a handshake too.

    `tls` returns the context for the handshake of each connection. `too_slow` is called for each peer
    whose handshake takes more than `handshake_s`.
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
        """The handshakes whose peers have sent something, the oldest first."""

    @property
    def beginning(self) -> int:
        """The number of accepted connections without a peer: with TLS, those in a handshake."""
        return len(self._beginning)

    async def listen(self, hosts: Sequence[str], port: int) -> int:
        """Listen, and return the port, which is the same on all hosts. Raise OSError if that is not possible."""
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
                self.take(sock, address)
            except BlockingIOError:
                return
            except ConnectionError:  # the peer has closed the connection again
                continue
            except Exception as error:  # whatever the error is, the next connection may be accepted
                log.error("cannot accept a connection: %s", error, exc_info=not isinstance(error, OSError))
                self._loop.remove_reader(listening)
                self._retries[listening] = self._loop.call_later(RETRY_S, self._watch, listening)
                return

    def take(self, sock: socket.socket, address: Any) -> None:
        """Take a connection that was accepted, here or by another node that passes it on, from a peer with this address."""
        begun = False
        try:
            sock.setblocking(False)
            if self._room():
                if self._tls is None:
                    self._peer(sock, address)
                else:
                    task = self._loop.create_task(self._begin(sock, address, self._tls))
                    self._beginning.add(task)
                    task.add_done_callback(partial(self._begun, sock))
                begun = True
        finally:
            if not begun:
                sock.close()

    def _begun(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._beginning.discard(task)
        self._handshakes.pop(task, None)
        if task.cancelled():  # the task may be cancelled before it runs: then nothing else closes the socket
            sock.close()

    async def _begin(self, sock: socket.socket, address: Any, context: Callable[[], ssl.SSLContext]) -> None:
        """Make a peer once its TLS handshake is done."""
        began = self._loop.time()
        try:
            await self._spoken(sock)
            left = max(began + self._handshake_s - self._loop.time(), 0.1)
            async with asyncio.timeout(left):
                sock = context().wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                await self._shake_hands(sock)
            self._peer(sock, address)
            return
        except TimeoutError as error:
            log.warning("%s:%d: no TLS handshake within %g s", *address[:2], self._handshake_s)
            self._too_slow()
            forget_frames(error)
        except (
            ssl.SSLEOFError,
            ssl.SSLZeroReturnError,
            ConnectionError,
        ) as error:  # the peer has closed the connection again
            forget_frames(error)
        except ssl.SSLError as error:
            log.warning("%s:%d: TLS handshake failed: %s", *address[:2], why(error))
            forget_frames(error)
        except (OSError, ValueError, asyncio.CancelledError) as error:
            forget_frames(error)
            if isinstance(error, asyncio.CancelledError):
                sock.close()
                raise
        sock.close()

    async def _shake_hands(self, sock: ssl.SSLSocket) -> None:
        while True:
            try:
                sock.do_handshake()
                return
            except ssl.SSLWantReadError:
                await self._until(sock, self._loop.add_reader, self._loop.remove_reader)
            except ssl.SSLWantWriteError:
                await self._until(sock, self._loop.add_writer, self._loop.remove_writer)

    async def _until(self, sock: socket.socket, add: Callable[..., object], remove: Callable[..., object]) -> None:
        """Wait until the socket can be read, or written."""
        came: asyncio.Future[None] = self._loop.create_future()

        def ready() -> None:
            if not came.done():
                came.set_result(None)

        add(sock, ready)
        try:
            await came
        finally:
            remove(sock)

    async def _spoken(self, sock: socket.socket) -> None:
        """Wait until the peer has sent something, because a handshake takes memory and a silent peer gets none. Raise
        TimeoutError."""
        async with asyncio.timeout(self._handshake_s):
            await self._until(sock, self._loop.add_reader, self._loop.remove_reader)
        if len(self._handshakes) >= HANDSHAKES_MAX:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]  # other peers may arrive before it has ended
            oldest.cancel()
            self._too_slow()
        task = asyncio.current_task()
        assert task is not None
        self._handshakes[task] = None


def why(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason as a sentence; for a certificate it says what is wrong with the certificate."""
    reason = (error.reason or "it ended").lower().replace("_", " ")
    flaw = getattr(error, "verify_message", "")
    return f"{reason}: {flaw}" if flaw else reason

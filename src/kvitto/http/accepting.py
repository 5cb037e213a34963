"""Accepts HTTP connections, a few in each round of the loop. `Listener` decides what becomes of them.

asyncio's own server accepts as many at once as may wait, before it tells anybody of the first, and one that is closed again has its
descriptor for some rounds more. So peers without a login could take descriptors that queues and connections need.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

log = logging.getLogger("kvitto.http")

BACKLOG = 100
"""The maximum number of connections that the system holds ready for a socket."""
RETRY_S = 1.0
"""The pause after a connection that could not be accepted."""

Connected = Callable[[Any, asyncio.StreamReader, asyncio.StreamWriter], None]
"""Called with the peer's address as the system gives it, or as the node says that has passed the connection on."""


class Accepting:
    """The connections of one bound socket.

    connected: called for each of them. at_once: how many a round accepts at most. read_bytes: the limit of each stream reader.
    """

    def __init__(self, sock: socket.socket, connected: Connected, at_once: int, read_bytes: int) -> None:
        self._sock = sock
        self._connected = connected
        self._at_once = at_once
        self._read_bytes = read_bytes
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._beginning: set[asyncio.Task[None]] = set()
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._watch()

    def close(self) -> None:
        """Accept no more. Connections that were accepted stay."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def _watch(self) -> None:
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        for _ in range(self._at_once):
            try:
                sock, address = self._sock.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # the peer has closed the connection again
                continue
            except OSError as error:
                log.error("cannot accept a connection: %s", error)
                self._loop.remove_reader(self._sock)
                self._retry = self._loop.call_later(RETRY_S, self._watch)
                return
            self.take(sock, address)

    def take(self, sock: socket.socket, address: Any) -> None:
        """Begin a connection that was accepted, here or by another node that passes it on, from a peer with this address."""
        task = self._loop.create_task(self._begin(sock, address))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, sock: socket.socket, address: Any) -> None:
        reader = asyncio.StreamReader(self._read_bytes, self._loop)
        connected = partial(self._connected, address)
        protocol = asyncio.StreamReaderProtocol(reader, connected, self._loop)
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, sock)
        except OSError as error:
            log.debug("an HTTP connection ended before it began: %s", error)
            sock.close()

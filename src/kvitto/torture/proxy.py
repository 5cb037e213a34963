"""A TCP proxy on loopback that cuts connections on request, or drops the data of one direction."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable

CHUNK = 1 << 16
BUFFERED_MAX = 1 << 18
CONNECT_S = 1.0
LISTEN_BACKLOG = 128
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER, so that close sends a reset instead of an orderly end."""


class Side:
    """One socket of a link: the data to be sent to it, and whether the data from it are dropped."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.out = bytearray()
        self.ended = False
        self.mute = False
        self.other: Side = self
        self.link: Link


class Link:
    """A client's connection and the one to the broker."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = Side(client), Side(server)
        self.client.other, self.server.other = self.server, self.client
        self.client.link = self.server.link = self


class Proxy(threading.Thread):
    """Listens on `port`. `target` is the broker's port, or None: then connections end at once."""

    def __init__(self) -> None:
        super().__init__(name="proxy", daemon=True)
        self.target: tuple[str, int] | None = None
        self.links: list[Link] = []
        self.bytes_dropped = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=LISTEN_BACKLOG)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._orders: deque[Callable[[], None]] = deque()
        self._waker, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._listener, selectors.EVENT_READ)
        self._ready.register(self._woken, selectors.EVENT_READ)
        self._ended = False

    def cut(self, chosen: Callable[[], bool], *, reset: bool) -> int:
        """End each connection for which `chosen()` is true, with a reset or a plain close. Return their number."""
        return self._do(lambda: self._cut(chosen, reset))

    def half_open(self, chosen: Callable[[], bool], *, from_client: bool) -> int:
        """From now on silently drop the data of one side of these connections. Return their number."""
        return self._do(lambda: self._mute(chosen, from_client))

    def cut_half_open(self) -> int:
        """End all connections that were made half-open."""
        return self._do(self._end_muted)

    def close(self) -> None:
        """End all connections and the thread."""
        self._do(self._close)
        self.join()

    def run(self) -> None:
        while not self._ended:
            for key, events in self._ready.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._obey()
                else:
                    self._serve(key.data, events)
        self._ready.close()
        for sock in (self._listener, self._waker, self._woken):
            sock.close()

    def _do(self, order: Callable[[], int]) -> int:
        """Run in the proxy's thread, and wait for it."""
        done = threading.Event()
        result: list[int] = []

        def run() -> None:
            result.append(order())
            done.set()

        self._orders.append(run)
        self._waker.send(b"x")
        done.wait()
        return result[0]

    def _obey(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(CHUNK)
        while self._orders:
            self._orders.popleft()()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        try:
            if self.target is None:
                raise ConnectionRefusedError
            server = socket.create_connection(self.target, CONNECT_S)
        except OSError:
            client.close()
            return
        for sock in (client, server):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(client, server)
        self.links.append(link)
        for side in (link.client, link.server):
            self._ready.register(side.sock, selectors.EVENT_READ, side)

    def _serve(self, side: Side, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                self._receive(side)
            if events & selectors.EVENT_WRITE:
                self._send(side)
        except OSError:
            self._end(side.link)
            return
        for each in (side, side.other):
            if each.ended and not each.other.out:
                self._end(side.link)
                return
        self._watch(side)
        self._watch(side.other)

    def _receive(self, side: Side) -> None:
        with contextlib.suppress(BlockingIOError):
            data = side.sock.recv(CHUNK)
            if not data:
                side.ended = True
            elif side.mute:
                self.bytes_dropped += len(data)
            else:
                side.other.out += data
                self._send(side.other)

    def _send(self, side: Side) -> None:
        with contextlib.suppress(BlockingIOError):
            del side.out[: side.sock.send(side.out)]

    def _watch(self, side: Side) -> None:
        """Read from it unless too much data waits for the other side; ask for writability only if there is data for it."""
        reading = not side.ended and len(side.other.out) < BUFFERED_MAX
        mask = (selectors.EVENT_READ if reading else 0) | (selectors.EVENT_WRITE if side.out else 0)
        key = self._ready.get_map().get(side.sock)
        if mask == 0:
            if key is not None:
                self._ready.unregister(side.sock)
        elif key is None:
            self._ready.register(side.sock, mask, side)
        elif key.events != mask:
            self._ready.modify(side.sock, mask, side)

    def _end(self, link: Link, reset: bool = False) -> None:
        if link not in self.links:
            return
        self.links.remove(link)
        for side in (link.client, link.server):
            if self._ready.get_map().get(side.sock) is not None:
                self._ready.unregister(side.sock)
            with contextlib.suppress(OSError):
                if reset:
                    side.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                side.sock.close()

    def _cut(self, chosen: Callable[[], bool], reset: bool) -> int:
        picked = [link for link in self.links if chosen()]
        for link in picked:
            self._end(link, reset)
        return len(picked)

    def _mute(self, chosen: Callable[[], bool], from_client: bool) -> int:
        picked = [link for link in self.links if chosen()]
        for link in picked:
            (link.client if from_client else link.server).mute = True
        return len(picked)

    def _end_muted(self) -> int:
        picked = [link for link in self.links if link.client.mute or link.server.mute]
        for link in picked:
            self._end(link)
        return len(picked)

    def _close(self) -> int:
        count = self._cut(lambda: True, False)
        self._ended = True
        return count

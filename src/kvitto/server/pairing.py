"""Two connections of which each sends what the other one gets: how a node passes a client's connection on, byte for byte.

With TLS between nodes there is a pair on either side of that TLS: at the node a client and the encrypted connection to the leader
(`front.py`), at the leader this connection and a socket of its own, which stands for the client (`passed.py`).
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from dataclasses import dataclass
from typing import Any

from kvitto.server.listening import without_delay

BUFFER_BYTES = 64 << 10
"""A connection whose peer does not read has at most this many bytes in memory. The other connection of the pair is not read meanwhile."""
LINGER_S = 30.0
"""When the leader has closed its side, a client gets this much time to read what is left."""
LOOK_S = 5.0
"""While a connection takes nothing, its other side is looked at this often."""
HANDSHAKE_S = 5


class Encryption(SSLProtocol):
    """asyncio's TLS with a smaller buffer: its own takes 256 KiB for each connection, more than all else that a client needs."""

    max_size = 16 << 10


@dataclass(frozen=True)
class Side:
    """A connection that is to be one of a pair."""

    sock: socket.socket
    tls: ssl.SSLContext | None = None
    """The context for the TLS handshake, None if this node does not encrypt the connection."""
    host: str = ""
    """The host that the other side's certificate has to name, "" if this side is the server."""


class Pair:
    """A client's connection, and the connection to the leader over which its bytes are passed on.

    At a leader with TLS between nodes these are the connection from the other node, and a socket that belongs to what serves the client.
    """

    def __init__(self, pairs: dict[Pair, None], box: memoryview, about: object = None, answered: bool = False) -> None:
        """`pairs`: all that exist; this one is among them until both ends are gone. `about`: a value of their owner. `box`: memory for
        BUFFER_BYTES, which all connections share. `answered`: the leader may still answer when the client sends nothing more."""
        self.about = about
        self._pairs = pairs
        self._answered = answered
        self._loop = asyncio.get_running_loop()
        self._last: asyncio.TimerHandle | None = None
        self._looking: dict[End, asyncio.TimerHandle] = {}
        self.over = False
        """Whether one of the connections is gone, or was ended."""
        self.latest: End | None = None
        """The end that has sent bytes last. If that is the client, the leader may owe it an answer."""
        self.client, self.leader = End(self, box), End(self, box)
        self.client.other, self.leader.other = self.leader, self.client

    async def reach(self, leader: Side) -> None:
        """Begin with the connection to the leader, which belongs to this pair from now on. Raises OSError if its handshake fails."""
        self._pairs[self] = None
        await self._connect(self.leader, leader)

    async def begin(self, client: Side, first: bytes = b"") -> None:
        """Begin to pass bytes on, of which the leader gets `first` before any other. `client` belongs to this pair from now on, too.

        Raises OSError if a handshake fails.
        """
        await self._connect(self.client, client)
        if self.over:
            self.end()
        elif first:
            self.latest = self.client
            self.leader.transport.write(first)
        self.client.go()
        self.leader.go()

    async def _connect(self, end: End, side: Side) -> None:
        transport: asyncio.Transport | None = None
        try:
            if side.sock.family != socket.AF_UNIX:
                without_delay(side.sock)
            if side.tls is None:
                await self._loop.connect_accepted_socket(lambda: end, side.sock)
                return
            end.encrypted = True
            done: asyncio.Future[None] = self._loop.create_future()
            host = side.host or None
            tls = Encryption(self._loop, end, side.tls, done, not host, host, ssl_handshake_timeout=HANDSHAKE_S)
            transport, _ = await self._loop.connect_accepted_socket(lambda: tls, side.sock)
            await done
        except BaseException:
            self.lost()
            if transport is None:
                side.sock.close()
            else:
                # With only the socket closed, asyncio's timer would later stop the reading of whichever connection has its number by then.
                transport.abort()
            raise

    def ended(self, end: End) -> None:
        """One side sends nothing more: tell the other side so, behind the bytes that are left."""
        if end.other.eof:
            self.client.close()
            self.leader.close()
            return
        if not end.other.encrypted:
            end.other.transport.write_eof()
        elif not (self._answered and self.latest is self.client):  # with asyncio's TLS no side can end alone
            end.other.close()
        if end is self.leader or end.other.encrypted:
            self._last = self._loop.call_later(LINGER_S, self.end)

    def paused(self, end: End) -> None:
        """One side takes nothing, so the other one is not read, and its end would not be seen: look for that from time to time.

        A side that closes in order with bytes that are not taken is not seen, because they are before its end.
        """
        self._look(end, 0.0)

    def resumed(self, end: End) -> None:
        if (looking := self._looking.pop(end, None)) is not None:
            looking.cancel()

    def _look(self, end: End, gone_s: float) -> None:
        """`gone_s`: for how long the other side has been gone, while this one has taken nothing."""
        if gone_s >= LINGER_S:
            self.end()
            return
        gone_s = gone_s + LOOK_S if is_gone(end.other.transport.get_extra_info("socket")) else 0.0
        self._looking[end] = self._loop.call_later(LOOK_S, self._look, end, gone_s)

    def end(self) -> None:
        self.over = True
        for end in (self.client, self.leader):
            if end.made:
                end.transport.abort()

    def lost(self) -> None:
        """One of the connections is gone, so the other one is of no use. It may still have to send what is left, for LINGER_S at most.

        Until then the pair exists: whoever ends all pairs ends this one, too.
        """
        self.over = True
        for looking in self._looking.values():
            looking.cancel()
        left = [end for end in (self.client, self.leader) if end.made and not end.lost]
        for end in left:
            end.close() if end.other.eof else end.transport.abort()
        if left:
            self._last = self._last or self._loop.call_later(LINGER_S, self.end)
            return
        self._pairs.pop(self, None)
        if self._last is not None:
            self._last.cancel()


class End(asyncio.BufferedProtocol):
    """One of the two connections of a pair. The other one sends what this one reads."""

    other: End
    transport: Any

    def __init__(self, pair: Pair, box: memoryview) -> None:
        self._pair = pair
        self._box = box
        self.eof = self.made = self.lost = self.encrypted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.made = transport, True
        self.transport.pause_reading()  # until there is the other one
        # asyncio's TLS takes a limit of nothing for one that is reached already
        self.transport.set_write_buffer_limits(BUFFER_BYTES if self.encrypted else 0, 0)

    def close(self) -> None:
        """End the connection behind what is left. asyncio's TLS, closed twice, forgets its socket, which nobody could end any more then."""
        if not self.transport.is_closing():
            self.transport.close()

    def go(self) -> None:
        if not self.lost and not self.other.lost:
            self.transport.resume_reading()

    def get_buffer(self, _hint: int) -> memoryview:
        return self._box

    def buffer_updated(self, count: int) -> None:
        self._pair.latest = self
        self.other.transport.write(bytes(self._box[:count]))

    def pause_writing(self) -> None:
        if not self.other.eof:
            self.other.transport.pause_reading()
            self._pair.paused(self)

    def resume_writing(self) -> None:
        self._pair.resumed(self)
        if not self.other.eof:
            self.other.go()

    def eof_received(self) -> bool:
        self.eof = True
        self._pair.ended(self)
        return not self.encrypted

    def connection_lost(self, _error: Exception | None) -> None:
        self.lost = True
        self._pair.lost()


def is_gone(sock: socket.socket) -> bool:
    """Return whether the peer has closed or reset a connection, although what it has sent before has not been read."""
    look = select.poll()
    look.register(sock.fileno(), getattr(select, "POLLRDHUP", 0))
    return bool(look.poll(0))

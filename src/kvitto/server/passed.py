"""The leader's side of connections that other nodes pass on: who the client is, and to which listener it belongs. `FollowerLinks` calls it.

Nothing of what a connection says counts before its node has proved that it has the key of the cluster (`cluster/passing.py`). Then its
socket belongs to the listener, as if the client had connected there from the address that it has at that node.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from kvitto.cluster.handshake import LENGTH_BYTES, Refused, length_of
from kvitto.cluster.passing import HTTP, READABLE, Client, Passed, accepted, decoded, refusal
from kvitto.server.node_tls import NodeTls, why_not_follower
from kvitto.server.pairing import BUFFER_BYTES, Pair, Side

log = logging.getLogger("kvitto")

Read = Callable[[int], Awaitable[bytes]]
"""Reads at most so many bytes, and returns b"" at the end."""
Take = Callable[[socket.socket, Any], object]
"""Takes a client's socket, and its address, as a listener does that has accepted it."""


class NotServed(Refused):
    """A client's connection comes while this broker does not listen for clients."""


class PassedOn:
    def __init__(self, key: bytes, cluster: str, tls: NodeTls | None = None) -> None:
        """`tls`: that between nodes, if they have it."""
        self._key = key
        self._cluster = cluster
        self._tls = tls
        self._box = memoryview(bytearray(BUFFER_BYTES))
        self._pairs: dict[Pair, None] = {}
        self._beginning: set[asyncio.Task[None]] = set()
        self.services: dict[str, Take] = {}
        """The listeners of this broker by service. There are none while it starts or ends."""
        self.taken = 0
        """The number of connections that have come by way of other nodes."""

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection over whose magic has been read. Raises Refused, StreamError, EOFError or OSError if it cannot be used."""
        passed = Passed(self._key, self._cluster)
        try:
            writer.write(passed.greet(await message(reader.read)))
            client = passed.client(await message(reader.read))
        except Refused as error:
            writer.write(refusal(str(error)))
            raise
        take = self.services.get(client.service)
        if take is None:  # there may be many of these while a broker starts, and their nodes tell the clients
            what = f"listen for {client.service}" if self.services else "serve clients now"
            writer.write(refusal(why := f"the leader does not {what}"))
            raise NotServed(why)
        sock, encrypted = self._detached(writer), self._tls is not None and client.service in READABLE
        try:
            sock.sendall(accepted(encrypted))  # the node waits for it, so the socket has room
            if encrypted:
                task = asyncio.get_running_loop().create_task(self._decrypt(sock, client, take))
                self._beginning.add(task)
                task.add_done_callback(self._beginning.discard)
            else:
                take(sock, client.address)
        except BaseException:
            sock.close()
            raise
        self.taken += 1

    @property
    def more_files(self) -> int:
        """The number of descriptors that encrypted clients need here in addition to one for each client."""
        return 2 * len(self._pairs)

    async def _decrypt(self, sock: socket.socket, client: Client, take: Take) -> None:
        """Begin TLS with the node that encrypts a client's bytes. Then a socket of this process that gets them decrypted stands for it.

        What serves clients knows nothing of this TLS, and so does not take the node's certificate for the client's.
        """
        assert self._tls is not None
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        pair = Pair(self._pairs, self._box, answered=client.service == HTTP)
        try:
            await pair.reach(Side(ours))
            await pair.begin(Side(sock, self._tls.leading))
        except BaseException as error:
            theirs.close()
            sock.close()
            if not isinstance(error, OSError):
                raise
            # A connection that the node closes is no error: its client may have closed its own one meanwhile.
            level = logging.DEBUG if isinstance(error, ConnectionError) else logging.WARNING
            log.log(level, "%s:%d: its node is not accepted: %s", *client.address, why_not_follower(error))
        else:
            take(theirs, client.address)

    @staticmethod
    def _detached(writer: asyncio.StreamWriter) -> socket.socket:
        """Take the socket of a connection away from asyncio. No byte is lost, as the node sends nothing before it has got an answer."""
        transport: Any = writer.transport
        transport.pause_reading()
        found: socket.socket = writer.get_extra_info("socket").dup()
        transport.abort()
        return found


async def message(read: Read) -> dict[str, Any]:
    """Read one message. Raises EOFError, StreamError or Refused."""
    head = await exactly(read, LENGTH_BYTES)
    return decoded(head, await exactly(read, length_of(head)))


async def exactly(read: Read, count: int) -> bytes:
    """Read so many bytes, and none behind them. Raises EOFError."""
    data = b""
    while len(data) < count:
        more = await read(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data

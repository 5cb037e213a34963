"""The listener for followers, and their connections, each of which gets the stream of operations of the data directory (docs/adr/0032).

`cluster/link.py` says what is sent; this moves the bytes. A follower that does not read holds up nothing but its own connection, which
keeps at most about WAITING_MAX bytes for it. `Followers` calls it, and is told what has happened (`Owner`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from kvitto.base.clock import SystemClock
from kvitto.base.errors import StoreError
from kvitto.cluster.handshake import Refused
from kvitto.cluster.link import LINKS_MAX, Behind, Leader, Link
from kvitto.cluster.passing import MAGIC as PASSING_MAGIC
from kvitto.cluster.records import StreamError
from kvitto.server.direct import READ_BYTES, WAITING_MAX, Direct
from kvitto.server.encrypted import Encrypted
from kvitto.server.listening import CUT_S, bind, end_if_cut, in_url, without_delay
from kvitto.server.node_tls import NodeTls
from kvitto.server.passed import NotServed, PassedOn, exactly
from kvitto.server.strangers import Strangers

log = logging.getLogger("kvitto")

BEGINNERS_MAX = 64
"""At most this many connections may be open that have not proved yet that they have the key. If one more comes, the oldest of them is
closed. Each node opens at most four at a time for its clients."""
ACCEPTED_AT_ONCE = 4
"""At most this many connections are accepted in one round of the loop. Those that they replace are closed some rounds later."""
FILES = 2 * LINKS_MAX + BEGINNERS_MAX + 8 * ACCEPTED_AT_ONCE
"""The number of file descriptors that the server reserves for this listener."""
HANDSHAKE_S = 10.0
GONE_S = 1.0
"""A follower that connects again replaces its old connection if nothing has come over that one for this time. The machine of the follower
may have lost its power, and then the system still takes the old connection for a good one."""


Incoming = asyncio.StreamReader | Encrypted
Outgoing = asyncio.StreamWriter | Encrypted


class Owner(Protocol):
    """Who is told what happens on connections of followers. `Followers` implements this."""

    def heard(self, link: Link) -> None:
        """Take note that a follower has sent something. It may be an acknowledgement."""
        ...

    def changed(self, link: Link) -> None:
        """Note that the state of a link has changed."""
        ...

    def gone(self, link: Link) -> None:
        """Note that the link of a follower that was accepted has ended."""
        ...


class Connection:
    """What the server knows of one link."""

    def __init__(self, task: asyncio.Task[None] | None) -> None:
        self.task = task
        """The task that serves it."""
        self.awake = asyncio.Event()
        """Set if there may be something to send."""
        self.direct: Direct | None = None
        """What sends and receives if the poller serves it."""
        self.received_at = 0.0
        """The time by the monotonic clock at which the follower last sent something, 0 if it has sent nothing."""
        self.since_ms = 0
        """The time at which the link has got into its state, 0 if that has not been noted yet."""


class FollowerLinks:
    """All links of a leader, and the listener that accepts them."""

    def __init__(self, leader: Leader, tls: NodeTls | None, passed: PassedOn | None, owner: Owner) -> None:
        """`tls`: what encrypts the connections. `passed`: who takes connections of clients that other nodes pass on."""
        self._leader = leader
        self._tls = tls
        self._passed = passed
        self._owner = owner
        self._clock, self._strangers = SystemClock(), Strangers()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._connections: dict[Link, Connection] = {}
        self._server: asyncio.Server | None = None
        self._reader = ThreadPoolExecutor(1, "kvitto-followers")
        self._is_cut = False
        """Whether followers are sent nothing more."""
        leader.is_silent = lambda link: self.silent_s(link) > GONE_S

    @property
    def accepted(self) -> list[Link]:
        """The links of all followers that have proved that they have the key."""
        return [link for link in self._leader.links if link.member]

    def silent_s(self, link: Link) -> float:
        """Return for how many seconds nothing has come from a follower."""
        connection = self._connections.get(link)
        return time.monotonic() - (connection.received_at if connection is not None else 0.0)

    def since_ms(self, link: Link) -> int:
        """Return the time at which a link has got into its state, 0 if that is not known."""
        connection = self._connections.get(link)
        return connection.since_ms if connection is not None else 0

    async def listen(self, host: str, port: int) -> int:
        """Listen for followers, and return the port. Raise OSError if that is not possible."""
        sockets = await bind([host], port)
        # asyncio accepts up to `backlog` connections in one round of the loop, before it calls `_accepted` for the first of them.
        self._server = await asyncio.start_server(self._accepted, sock=sockets[0], backlog=ACCEPTED_AT_ONCE)
        sockets[0].listen(BEGINNERS_MAX)
        for more in sockets[1:]:
            more.close()
        port = sockets[0].getsockname()[1]
        assert isinstance(port, int)
        return port

    def wake(self) -> None:
        """Send what there is to send, unless `cut` has been called."""
        if self._is_cut:
            return
        for connection in self._connections.values():
            direct = connection.direct
            if direct is None or not direct.push():
                connection.awake.set()

    def beat(self) -> None:
        """Send a sign of life to followers that wait, and log connections that were refused. It is called four times a second."""
        self._strangers.look()
        for link, connection in self._connections.items():
            link.beat()
            connection.awake.set()

    # -- the end -----------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Send followers nothing more, not even what is in the ring."""
        self._is_cut = True
        self._accept_no_more()
        for task in self._tasks:
            task.cancel()

    def end_copies(self) -> None:
        """End the connections over which files are compared, or will be, because the files are about to be closed. Accept no more."""
        self._accept_no_more()
        for link, connection in self._connections.items():
            if link.state != "following" and connection.task is not None:
                connection.task.cancel()

    def have_more(self, links: Iterable[Link]) -> bool:
        """Return whether something is still to be sent to one of these followers."""
        found = [(link, self._connections[link].direct) for link in links if link in self._connections]
        return any(link.wants or (direct is not None and direct.waits) for link, direct in found)

    async def end(self) -> None:
        """End all connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._reader.shutdown(wait=False)

    def _accept_no_more(self) -> None:
        if self._server is not None:
            self._server.close()

    # -- one connection ----------------------------------------------------------------------------------------------

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername") or ("?", 0)
        link = Link(self._leader, f"{in_url(str(peer[0]))}:{peer[1]}")
        if self._is_cut:
            writer.close()
            return
        self._end_a_beginner()
        self._leader.links.append(link)
        connection = self._connections[link] = Connection(asyncio.current_task())
        incoming: Incoming = reader
        out: Outgoing = writer
        receiving: asyncio.Task[None] | None = None
        try:
            set_up(writer)
            first = await asyncio.wait_for(exactly(reader.read, len(PASSING_MAGIC)), HANDSHAKE_S)
            if first == PASSING_MAGIC and self._passed is not None:
                await asyncio.wait_for(self._passed.take(reader, writer), HANDSHAKE_S)
                return
            if self._tls is not None:
                incoming = out = Encrypted(reader, writer, self._tls.leading)
                async with asyncio.timeout(HANDSHAKE_S):
                    await out.shake_hands(first)
            else:
                link.take(first)
            receiving = asyncio.get_running_loop().create_task(self._receive(incoming, writer, link, connection))
            await self._send(link, out, connection, receiving)
        except Behind:
            log.warning("follower %s is too far behind, and has to compare its files again", link.where)
        except NotServed as error:
            log.debug("%s: %s", link.where, error)
        except (Refused, StreamError) as error:
            self._tell(link, logging.WARNING, str(error))
            if link.last_words:
                out.write(link.last_words)
        except (OSError, EOFError) as error:
            if link.member:
                log.warning("follower %s is gone: %s", link.where, str(error) or "it has closed the connection")
            else:
                self._tell(link, logging.INFO, "it is gone before it was a follower; does it have the same key?")
        except StoreError as error:
            log.error("follower %s cannot be served: %s", link.where, error)
        except Exception:  # whatever is wrong with one connection, the broker goes on
            log.exception("follower %s cannot be served", link.where)
        finally:
            if receiving is not None:
                receiving.cancel()
            if link in self._leader.links:
                self._leader.links.remove(link)
            del self._connections[link]
            if link.state != "beginning":  # who was refused is no follower
                self._owner.gone(link)
            writer.close()

    def _tell(self, link: Link, level: int, why: str) -> None:
        """Log why a connection has ended. If its peer has not proved that it has the key, the number of lines is limited."""
        if link.member:
            log.log(level, "follower %s: %s", link.where, why)
        else:
            self._strangers.tell(level, link.where, why)

    def _end_a_beginner(self) -> None:
        """End the oldest connection that has proved nothing, if there are many: who has the key must not be kept out."""
        beginners = [link for link in self._leader.links if not link.member]
        if len(beginners) < BEGINNERS_MAX:
            return
        self._leader.links.remove(beginners[0])  # at once: the next one that comes in this round ends another one
        if (task := self._connections[beginners[0]].task) is not None:
            task.cancel()

    async def _receive(
        self, reader: Incoming, writer: asyncio.StreamWriter, link: Link, connection: Connection
    ) -> None:
        try:
            while data := await reader.read(READ_BYTES):
                self._took(link, connection, data)
                # The poller cannot read TLS. After a read of the whole size asyncio may hold more, which the poller would not see.
                whole = len(data) < READ_BYTES and not writer.transport.get_write_buffer_size()
                if isinstance(reader, asyncio.StreamReader) and link.state != "beginning" and whole:
                    await self._receive_directly(writer, link, connection)
            raise EOFError
        finally:
            connection.awake.set()

    async def _receive_directly(self, writer: asyncio.StreamWriter, link: Link, connection: Connection) -> None:
        direct = connection.direct = Direct(writer, link, lambda data: self._took(link, connection, data))
        try:
            await direct.over
        finally:
            connection.direct = None
            direct.close()

    def _took(self, link: Link, connection: Connection, data: bytes) -> None:
        connection.received_at = time.monotonic()
        state = link.state
        link.take(data)
        self._owner.heard(link)
        if link.wants or link.state != state:
            connection.awake.set()

    async def _send(self, link: Link, writer: Outgoing, connection: Connection, receiving: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        began, state = loop.time(), link.state
        while not link.replaced:
            if receiving.done():
                receiving.result()
            if (read := link.read_ahead()) is not None:
                await loop.run_in_executor(self._reader, read.run)
                if receiving.done():
                    continue  # bytes that the poller had not sent are lost, so no others may go out behind them
            direct, pieces = connection.direct, link.pieces()
            if direct is not None:
                direct.send(pieces)
                await direct.drain()
            elif pieces:
                writer.write(b"".join(pieces))
                await writer.drain()
            if link.state != state:
                state = link.state
                log.info("follower %s is %s", link.where, state)
                connection.since_ms = self._clock.now_ms()
                self._owner.changed(link)
            if link.wants or receiving.done():
                await asyncio.sleep(0)  # `drain` does not let others run while there is room
                continue
            connection.awake.clear()
            left = None if link.member else max(began + HANDSHAKE_S - loop.time(), 0)
            await asyncio.wait_for(connection.awake.wait(), left)


def set_up(writer: asyncio.StreamWriter) -> None:
    """Limit what a connection buffers, have it send without delay, and have the system end it if the other side does not answer."""
    writer.transport.set_write_buffer_limits(WAITING_MAX)
    sock = writer.get_extra_info("socket")
    if sock is not None:
        without_delay(sock)
        end_if_cut(sock, CUT_S)

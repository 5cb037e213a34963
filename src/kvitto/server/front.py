"""The listeners of a node that does not lead: each connection is passed on to the leader, byte for byte. `cli.candidate` calls it.

It has a thread and an event loop of its own, so that the thread that applies the leader's stream never waits for a client. A connection
costs two descriptors and, while its peer does not read, at most BUFFER_BYTES in each direction; the other side is not read meanwhile.
The node answers a few HTTP paths itself (`front_http.py`). `lead_by` says who the leader is: when it names another one, or none, the
connections to the leader before end at once.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import threading
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from kvitto.base import limits
from kvitto.base.config import Config, address
from kvitto.base.process import files_reserve, open_files_max
from kvitto.cluster.handshake import Refused
from kvitto.cluster.passing import AMQP, AMQPS, HTTP, HTTPS, Client, Elsewhere, Passing
from kvitto.cluster.records import StreamError
from kvitto.cluster.register import Seat
from kvitto.server.acceptor import Acceptor
from kvitto.server.listening import in_url, resolve, without_delay
from kvitto.server.passed import message

log = logging.getLogger("kvitto")

BUFFER_BYTES = 64 << 10
REACH_S = 3.0
"""A leader that has not taken a connection over after this time is taken for one that does not serve."""
REACH_AT_ONCE = 4
"""The number of connections that a node begins at one time."""
LINGER_S = 30.0
"""When the leader has closed its side, a client gets this much time to read what is left."""
LOOK_S = 5.0
"""While a connection takes nothing, its other side is looked at this often."""
CLOSE_S = 5.0
HEADS_MAX = 256
"""The heads of at most this many HTTP requests are read at one time, because they are kept in memory."""
OWN_ANSWERS = 32
"""Clients of AMQP leave room for this many HTTP connections, so that the node itself can still be asked how it is."""


class Own(Protocol):
    """What a node that does not lead answers itself."""

    async def begin(self, front: Front, sock: socket.socket, where: Elsewhere) -> bytes | None:
        """Read the beginning of an HTTP connection. Return it if the connection is the leader's, None if it has been answered here."""
        ...

    async def refuse(self, sock: socket.socket, why: str, begun: bytes) -> None:
        """Answer an HTTP connection that cannot be passed on, and begins like this."""
        ...


class Front:
    def __init__(self, config: Config, key: bytes, own: Own) -> None:
        self._config = config
        self._key = key
        self.cluster = ""
        """The id of the cluster. It is known before there is a leader."""
        self._own = own
        self.limits = limits.of(config.limits)
        self.ports: dict[str, int] = {}
        """The ports by service."""
        self.passed = self.refused = 0
        """The number of connections that were passed on, and of those that could not be."""
        self._seat: Seat | None = None
        self._loop: asyncio.AbstractEventLoop
        self._ended: asyncio.Event
        self._acceptors: list[Acceptor] = []
        self._clients: dict[asyncio.Task[None], None] = {}
        """The connections that begin, or are answered here."""
        self._heads: dict[asyncio.Task[Any], None] = {}
        """The HTTP connections of which the head of the request is being read, or that are answered here."""
        self._pairs: dict[Pair, None] = {}
        self._box = memoryview(bytearray(BUFFER_BYTES))
        self._beginning: asyncio.Semaphore
        self._begun = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="kvitto-front", daemon=True)

    # -- called by the node's own thread ---------------------------------------------------------------------------

    def start(self) -> None:
        """Listen. Raise OSError if that is not possible; its `filename` says where."""
        self._thread.start()
        self._begun.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    def lead_by(self, seat: Seat | None) -> None:
        """Pass connections on to this leader from now on; None refuses them. Those that go to another one end."""
        if seat != self._seat:
            self._seat = seat
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._leave_others, seat)

    def close(self) -> None:
        """Close the listeners and all connections, so that this process can listen there itself."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(CLOSE_S)

    @property
    def seat(self) -> Seat | None:
        return self._seat

    @property
    def connections(self) -> int:
        """The number of connections that are being passed on."""
        return len(self._pairs)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        loop: asyncio.AbstractEventLoop | None = None
        try:
            loop = asyncio.new_event_loop()
            loop.run_until_complete(self._serve())
        except OSError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - top of the thread: a name of a host may be none, for example
            self._error = OSError(str(error))
        finally:
            if loop is not None:
                loop.close()  # it does not wait for a name that is still being resolved, as asyncio.run does
            self._begun.set()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._beginning = asyncio.Semaphore(REACH_AT_ONCE)
        config = self._config
        try:
            for service, hosts, port in (
                (AMQP, config.hosts, config.port),
                (AMQPS, config.hosts, config.tls_port),
                (HTTP, config.http_hosts, config.http_port),
                (HTTPS, config.http_hosts, config.https_port),
            ):
                if port is not None:
                    await self._listen(service, hosts, port)
            self._begun.set()
            await self._ended.wait()
        finally:
            for acceptor in self._acceptors:
                acceptor.close()
            tasks = list(self._clients)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._leave_others(None)
            await asyncio.sleep(0)  # the transports close their sockets in the next round

    async def _listen(self, service: str, hosts: tuple[str, ...], port: int) -> None:
        def accepted(sock: socket.socket, where: Any) -> None:
            task = self._loop.create_task(self._client(service, sock, where))
            self._clients[task] = None
            task.add_done_callback(lambda done: self._over(done, sock))

        reserve = 0 if service == HTTP else OWN_ANSWERS
        acceptor = Acceptor(accepted, lambda: self._has_room(reserve), nothing, self.limits.handshake_s)
        self._acceptors.append(acceptor)
        self.ports[service] = await acceptor.listen(hosts, port)

    def _has_room(self, reserve: int) -> bool:
        """Return whether there are descriptors for one more client: its own, and that of the connection to the leader. So many are left for
        others."""
        room = (open_files_max() - files_reserve()) // 2 - reserve
        found = len(self._pairs) + len(self._clients) < room
        self.refused += not found
        return found

    def _over(self, task: asyncio.Task[None], sock: socket.socket) -> None:
        del self._clients[task]
        if task.cancelled():  # it may not have begun
            sock.close()
        elif (error := task.exception()) is not None:
            log.error("a connection cannot be passed on", exc_info=error)

    def _leave_others(self, seat: Seat | None) -> None:
        for pair in list(self._pairs):
            if pair.seat != seat:
                pair.end()

    # -- one connection --------------------------------------------------------------------------------------------

    async def _client(self, service: str, sock: socket.socket, address: Any) -> None:
        where = Elsewhere(str(address[0]), int(address[1]))
        paired = False
        try:
            begun: bytes | None = b""
            if service == HTTP and not (begun := await self._head(sock, where)):
                return
            seat, leader = await self.reach(Client(service, where))
            try:
                if begun:
                    await self._loop.sock_sendall(leader, begun)
                paired = True
                await Pair(self._pairs, seat, self._box, self._loop).begin(sock, leader)
            finally:
                if not paired:
                    leader.close()
            self.passed += 1
            self._leave_others(self._seat)  # another node may have begun to lead meanwhile
        except Unreached as error:
            self.refused += 1
            log.debug("%s: not passed on: %s", where.host, error)
            if service == HTTP:
                await self._own.refuse(sock, str(error), begun or b"")
        except OSError:  # the client is gone, or the leader
            pass
        finally:
            if not paired:
                sock.close()

    async def _head(self, sock: socket.socket, where: Elsewhere) -> bytes | None:
        """Read the head of a request by `Own.begin`. If HEADS_MAX clients have not sent theirs yet, end the one that came first."""
        task = asyncio.current_task()
        assert task is not None
        if len(self._heads) >= HEADS_MAX:
            oldest = next(iter(self._heads))
            del self._heads[oldest]
            oldest.cancel()
        self._heads[task] = None
        try:
            return await self._own.begin(self, sock, where)
        finally:
            self._heads.pop(task, None)

    async def reach(self, client: Client) -> tuple[Seat, socket.socket]:
        """Return the leader and a connection to it that belongs to this client. Raises Unreached."""
        seat = self._seat
        if seat is None:
            raise Unreached("nobody leads")
        sock: socket.socket | None = None
        try:
            async with asyncio.timeout(REACH_S), self._beginning:
                host, port = address(seat.address)
                sock = await connected(self._loop, host, port)
                await self._begin(sock, client)
            found, sock = sock, None
            return seat, found
        except TimeoutError:
            raise Unreached(f"the leader at {seat.address} does not answer") from None
        except (OSError, StreamError, ValueError) as error:
            raise Unreached(f"the leader at {seat.address} cannot be reached: {error}") from None
        except Refused as error:
            raise Unreached(str(error)) from None
        finally:
            if sock is not None:
                sock.close()

    async def _begin(self, sock: socket.socket, client: Client) -> None:
        passing = Passing(self._key, self.cluster, client)
        read = partial(self._loop.sock_recv, sock)
        try:
            await self._loop.sock_sendall(sock, passing.hello())
            await self._loop.sock_sendall(sock, passing.names(await message(read)))
            if (await message(read)).get("passed") is not True:
                raise StreamError("an answer that cannot be read")
        except EOFError:
            raise StreamError("it has closed the connection") from None


class Unreached(Exception):
    """A connection cannot be passed on. The text says why."""


class Pair:
    """A client's connection, and the connection to the leader over which its bytes are passed on."""

    def __init__(self, pairs: dict[Pair, None], seat: Seat, box: memoryview, loop: asyncio.AbstractEventLoop) -> None:
        """`pairs`: all that exist; this one is among them until it has ended. `box`: memory for one read, which all connections share."""
        self.seat = seat
        self._pairs = pairs
        self._loop = loop
        self._last: asyncio.TimerHandle | None = None
        self._looking: dict[End, asyncio.TimerHandle] = {}
        self._over = False
        self.client, self.leader = End(self, box), End(self, box)
        self.client.other, self.leader.other = self.leader, self.client

    async def begin(self, client: socket.socket, leader: socket.socket) -> None:
        """Begin to pass bytes on. The sockets belong to this pair from now on."""
        self._pairs[self] = None
        try:
            for end, sock in ((self.client, client), (self.leader, leader)):
                without_delay(sock)
                await self._loop.connect_accepted_socket(lambda end=end: end, sock)  # type: ignore[misc]
        except BaseException:
            self.lost()
            client.close()
            leader.close()
            raise
        if self._over:
            self.end()
        self.client.go()
        self.leader.go()

    def ended(self, end: End) -> None:
        """One side sends nothing more: tell the other side so, behind the bytes that are left."""
        if end.other.eof:
            self.client.transport.close()
            self.leader.transport.close()
            return
        end.other.transport.write_eof()
        if end is self.leader:
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
        self._over = True
        for end in (self.client, self.leader):
            if end.made:
                end.transport.abort()

    def lost(self) -> None:
        """One of the connections is gone, so the other one is of no use."""
        self._over = True
        self._pairs.pop(self, None)
        if self._last is not None:
            self._last.cancel()
        for looking in self._looking.values():
            looking.cancel()
        for end in (self.client, self.leader):
            if end.made and not end.lost:
                end.transport.close() if end.other.eof else end.transport.abort()


class End(asyncio.BufferedProtocol):
    """One of the two connections of a pair. The other one sends what this one reads."""

    other: End
    transport: Any

    def __init__(self, pair: Pair, box: memoryview) -> None:
        self._pair = pair
        self._box = box
        self.eof = self.made = self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.made = transport, True
        self.transport.pause_reading()  # until there is the other one
        self.transport.set_write_buffer_limits(0)

    def go(self) -> None:
        if not self.lost and not self.other.lost:
            self.transport.resume_reading()

    def get_buffer(self, _hint: int) -> memoryview:
        return self._box

    def buffer_updated(self, count: int) -> None:
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
        return True

    def connection_lost(self, _error: Exception | None) -> None:
        self.lost = True
        self._pair.lost()


def is_gone(sock: socket.socket) -> bool:
    """Return whether the peer has closed or reset a connection, although what it has sent before has not been read."""
    look = select.poll()
    look.register(sock.fileno(), getattr(select, "POLLRDHUP", 0))
    return bool(look.poll(0))


async def connected(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """Connect to the first address of a host that takes the connection. Raises OSError."""
    why: OSError = OSError(f"{in_url(host)} has no address")
    for family, kind, proto, _, where in await resolve(host, port):
        sock = socket.socket(family, kind, proto)
        try:
            sock.setblocking(False)
            without_delay(sock)
            await loop.sock_connect(sock, where)
        except OSError as error:
            why = error
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise why


def nothing() -> None:
    """There is no handshake that could be too slow."""

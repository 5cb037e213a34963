"""The listeners of a node that does not lead: each connection is passed on to the leader, byte for byte. `cli.candidate` calls it.

It has a thread and an event loop of its own, so that the thread that applies the leader's stream never waits for a client. A connection
costs two descriptors and, while its peer does not read, a bounded part of the memory (`pairing.py`).
The node answers a few HTTP paths itself (`front_http.py`). `lead_by` says who the leader is: when it names another one, or none, the
connections to the leader before end at once.
"""

from __future__ import annotations

import asyncio
import logging
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
from kvitto.server.node_tls import NodeTls, why_not_leader
from kvitto.server.pairing import BUFFER_BYTES, Pair, Side
from kvitto.server.passed import message

log = logging.getLogger("kvitto")

NOBODY = "nobody leads"
REACH_S = 3.0
"""A leader that has not taken a connection over after this time is taken for one that does not serve."""
REACH_AT_ONCE = 4
"""The number of connections that a node begins at one time."""
CLOSE_S = 5.0
HEADS_MAX = 256
"""At most this many heads of HTTP requests are read at the same time, because each of them is kept in memory."""
OWN_ANSWERS = 32
"""Clients of AMQP leave room for this many HTTP connections, so that the node itself can still be asked how it is."""


class Own(Protocol):
    """What a node that does not lead answers itself."""

    async def begin(self, front: Front, sock: socket.socket, where: Elsewhere) -> bytes | None:
        """Read the beginning of an HTTP connection. Return it if the connection is the leader's, None if it has been answered here."""
        ...

    async def refuse(self, sock: socket.socket, why: str, begun: bytes) -> None:
        """Answer a client of HTTP whose connection cannot be passed on. `begun`: what the client has sent so far."""
        ...


class Front:
    def __init__(self, config: Config, key: bytes, own: Own, tls: NodeTls | None = None) -> None:
        """`tls`: that between nodes, if they have it."""
        self._config = config
        self._tls = tls
        self._key = key
        self.cluster = ""
        """The id of the cluster. It is known before there is a leader."""
        self._own = own
        self.limits = limits.of(config.limits)
        self.ports: dict[str, int] = {}
        """The ports by service."""
        self.passed = self.refused = 0
        """The number of connections that were passed on, and of those that could not be."""
        self._said = ""
        """Why clients were not passed on the last time, "" if one was passed on since."""
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
            for pair in list(self._pairs):
                pair.end()
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
        """Return whether there are descriptors for one more client: its own, and that of the connection to the leader.

        `reserve`: the number of clients for which there has to be room besides.
        """
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
        """End the connections to other leaders. Those that are ending already are left alone: a slow client may have bytes to read."""
        for pair in list(self._pairs):
            if pair.about != seat and not pair.over:
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
            pair = Pair(self._pairs, self._box, seat, service == HTTP)
            try:
                await pair.reach(leader)
            except OSError as error:
                raise Unreached(f"the leader at {seat.address}: {why_not_leader(error)}") from None
            paired = True
            await pair.begin(Side(sock), begun or b"")
            self.passed += 1
            self._said = ""
            self._leave_others(self._seat)  # another node may have begun to lead meanwhile
        except Unreached as error:
            self.refused += 1
            if str(error) != self._said:
                self._said = str(error)
                log.warning("clients are not passed on: %s", error)
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

    async def reach(self, client: Client) -> tuple[Seat, Side]:
        """Return the leader, and a connection to it that belongs to this client. If `Side.tls` is set a TLS handshake has to come first.

        Raises Unreached.
        """
        seat = self._seat
        if seat is None:
            raise Unreached(NOBODY)
        sock: socket.socket | None = None
        try:
            async with asyncio.timeout(REACH_S), self._beginning:
                host, port = address(seat.address)
                sock = await connected(self._loop, host, port)
                encrypted = await self._begin(sock, client)
            found, sock = Side(sock, self._tls.following, host) if self._tls and encrypted else Side(sock), None
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

    async def _begin(self, sock: socket.socket, client: Client) -> bool:
        """Ask the leader to take a connection over. Return whether a TLS handshake comes next. Raises StreamError, Refused or OSError."""
        passing = Passing(self._key, self.cluster, client)
        read = partial(self._loop.sock_recv, sock)
        try:
            await self._loop.sock_sendall(sock, passing.hello())
            await self._loop.sock_sendall(sock, passing.names(await message(read)))
            return passing.taken(await message(read), self._tls is not None)
        except EOFError:
            raise StreamError("it has closed the connection") from None


class Unreached(Exception):
    """A connection cannot be passed on. The text says why."""


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

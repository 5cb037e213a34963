"""HTTP/1.1 on the broker's event loop: connections, limits and timeouts. h11 handles the protocol, the router the
paths.

One task per connection reads a head, checks the login, reads the body, calls the handler, and writes the answer.
`Peer._answer` is the one place that turns an error into JSON; no peer ever gets a traceback.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import ipaddress
import logging
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

import h11

from kvitto.base.errors import ACCESS_REFUSED, NOT_FOUND, ProtocolError, StoreError, StoreFull
from kvitto.base.limits import HTTP_LINES_MAX
from kvitto.base.process import files_reserve
from kvitto.cluster.passing import Elsewhere
from kvitto.http import document
from kvitto.http.accepting import Accepting
from kvitto.http.access import Door, refuse_forgery
from kvitto.http.api import Api, Call, Host
from kvitto.http.crowd import Crowd
from kvitto.http.history import SAMPLE_S
from kvitto.http.request import Problem, Request, Response, bad_request, failure, not_authorised, not_found
from kvitto.http.router import Route, Router

log = logging.getLogger("kvitto.http")

Context = Callable[[], ssl.SSLContext]

CONNECTIONS_MAX = 256
"""The maximum number, or a quarter of the reserve of file descriptors if that is less."""
ROUNDS = 8
"""A connection that is closed at once has its descriptor for fewer rounds of the loop than this, so there are never twice as many as the
maximum."""
READ_BYTES = 16 * 1024
CHUNKS_BYTES = 2 * 1024
"""A body in chunks is read in smaller parts: h11 parses what has come of its trailers at once, before anybody can count them."""
BLANK = re.compile(rb"\n\r?\n")
BEGUN_BYTES = 64 * 1024
"""An answer that is made in pieces is sent with its length if it is not longer than this."""
PARTS_AT_ONCE = 16
"""The parts of a body that are taken without a pause."""
IDLE_S = 60.0
"""The time for the next request's head on a connection that is kept alive."""
BODY_S = 30.0
WRITE_S = 30.0
LINGER_S = 2.0
LINGER_BYTES = 1 << 20
SECRET = "/api/auth/hash_password/"
"""What follows this in a path is a password."""
HEADERS = (("Cache-Control", "no-cache"), ("X-Content-Type-Options", "nosniff"))


class Listener:
    def __init__(self, host: Host) -> None:
        self.api = Api(host)
        self.door = Door(self.api)
        self.router = Router()
        self.body_bytes = 0
        """The bytes of all requests whose answer is not ready, at most `http_bodies_max`."""
        self.crowd: Crowd[Peer] = Crowd()
        self._most = CONNECTIONS_MAX
        self._tasks: dict[Peer, asyncio.Task[None]] = {}
        self._servers: list[Accepting] = []
        self._sampler: asyncio.Task[None] | None = None

    async def listen(self, sockets: Sequence[socket.socket], tls: Context | None = None) -> int:
        """Listen on these bound sockets, and return the port. `tls` returns the context for each new connection. Raise OSError if that is
        not possible."""
        self._most = min(CONNECTIONS_MAX, max(files_reserve() // 4, 1))
        at_once = max(self._most // ROUNDS, 1)
        for sock in sockets:
            self._servers.append(Accepting(sock, partial(self._accept, tls), at_once, READ_BYTES))
        if self._sampler is None:
            self._sampler = asyncio.get_running_loop().create_task(self._sample())
        return int(sockets[0].getsockname()[1])

    def taker(self) -> Callable[[socket.socket, Any], None]:
        """Return what takes connections that other nodes pass on, for the socket that was the last one to be listened on."""
        return self._servers[-1].take

    def close(self) -> None:
        for server in self._servers:
            server.close()
        if self._sampler is not None:
            self._sampler.cancel()
        for task in self._tasks.values():
            task.cancel()

    async def _sample(self) -> None:
        while True:
            now_s, now_ms = asyncio.get_running_loop().time(), self.api.host.clock.now_ms()
            for _ in self.api.rates.sample(now_s, now_ms, self.api.host, self.api.connections):
                await self.api.slices.rest()
            # the samples of all objects have times that are multiples of the distance, as with RabbitMQ
            await asyncio.sleep(SAMPLE_S - self.api.host.clock.now_ms() / 1000 % SAMPLE_S + 0.001)

    def _accept(
        self, tls: Context | None, address: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if tls is not None:
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # what comes first belongs to the handshake
        if len(self._tasks) >= self._most:
            log.warning("more than %d HTTP connections, one of them is closed", self._most)
            self.api.broker.refused["http_connections"] += 1
            gone = self.crowd.first_to_go()
            if gone is None:
                writer.transport.abort()
                return
            self.end(gone)
        peer = Peer(self, reader, writer, address, tls)
        task = self._tasks[peer] = asyncio.get_running_loop().create_task(peer.run())
        self.crowd.idle[peer] = None
        task.add_done_callback(lambda _: self._tasks.pop(peer, None))

    def end(self, peer: Peer) -> None:
        """End the connection at once: it no longer counts, and waits for nothing."""
        self.crowd.remove(peer)
        self.release(peer)
        peer.writer.transport.abort()
        self._tasks.pop(peer).cancel()

    def admit(self, peer: Peer, more: int) -> None:
        """Count this many more bytes of a body. Raise Problem 503 if the bodies of its user leave no space; bodies of
        other users are ended."""
        while self.body_bytes + more > self.api.broker.limits.http_bodies_max:
            largest = self.crowd.largest()
            if largest is None or largest.holder == peer.holder:
                text = f"the bodies of requests fill {self.api.broker.limits.http_bodies_max} bytes, and yours most of them: try again"
                raise Problem(503, "busy", text, limit="http_body")
            log.warning("the bodies of HTTP requests of %s fill the room for all, one is ended", largest.holder)
            self.api.broker.refused["http_body"] += 1
            self.end(largest)
        self.body_bytes += more
        peer.body_bytes += more

    def release(self, peer: Peer) -> None:
        self.body_bytes -= peer.body_bytes
        peer.body_bytes = 0


class Peer:
    """One connection."""

    def __init__(
        self,
        listener: Listener,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        address: Any,
        tls: Context | None = None,
    ) -> None:
        self.listener = listener
        self._tls = tls
        self.reader = reader
        self.writer = writer
        self._limits = listener.api.broker.limits
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.http_head_max)
        self.served = False
        self.loopback = is_loopback(address)
        self.address = str(address[0]) if isinstance(address, tuple) else "local"
        self._passed = isinstance(address, Elsewhere)
        self.holder = self.address
        self.body_bytes = 0

    async def run(self) -> None:
        try:
            if self._tls is not None:
                await self._shake_hands(self._tls())
            while await self._exchange():
                self.http.start_next_cycle()
                await self.listener.api.slices.rest()  # hundreds of requests may have come in one read
            await self._linger()
            self.writer.close()
        except ssl.SSLError as error:
            log.warning(
                "%s: TLS handshake failed: %s", self.address, (error.reason or str(error)).lower().replace("_", " ")
            )
            self.writer.transport.abort()
        except (OSError, TimeoutError, h11.LocalProtocolError, asyncio.CancelledError):
            self.writer.transport.abort()
        except Exception:
            log.exception("%s: an answer failed in its middle, its connection is closed", self.address)
            self.writer.transport.abort()

    async def _shake_hands(self, context: ssl.SSLContext) -> None:
        """Begin TLS. A peer that is slow or silent in its handshake holds up nobody, and is among the first to go if there are too many."""
        allowed_s = self._limits.handshake_s
        with self._among(self.listener.crowd.idle):
            await self.writer.start_tls(context, ssl_handshake_timeout=allowed_s)

    async def _exchange(self) -> bool:
        """Handle one request. Return whether another one may follow on this connection."""
        head: Request | None = None
        try:
            event = await self._next_request()
            if not isinstance(event, h11.Request):
                return False
            head = self._head(event)
            if not {"content-length", "transfer-encoding"} & head.headers.keys():
                await self._event()  # the end of the message, so there is no body
            response = await self._answer(head)
            log.debug("%s: %s %s: %d", self.address, head.method, logged(head.path), response.status)
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
                self.listener.api.broker.refused["http_head"] += 1
            reason = str(error).partition(":")[0]  # after this h11 repeats what was sent
            response = failure(Problem(error.error_status_hint, "bad_request", reason))
        except Problem as problem:
            response = self._refusal(problem)
        await self._send(response, head is not None and head.method == "HEAD")
        return self.http.our_state is h11.DONE and self.http.their_state is h11.DONE

    async def _next_request(self) -> Any:
        """Read the head of a request within the time that the peer has for it: there is more time after its first request."""
        try:
            with self._among(self.listener.crowd.idle):
                async with asyncio.timeout(IDLE_S if self.served else self._limits.handshake_s):
                    return await self._event()
        finally:
            self.served = True

    @contextlib.contextmanager
    def _among(self, members: dict[Peer, None]) -> Iterator[None]:
        """Register with `members`: meanwhile the connection may be closed for another one."""
        members[self] = None
        try:
            yield
        finally:
            members.pop(self, None)

    async def _linger(self) -> None:
        """Read the rest of the peer's input: closing with unread input would reset the connection, and the answer would be lost."""
        if not self.writer.can_write_eof():  # TLS tells the peer by itself
            return
        self.writer.write_eof()
        left = LINGER_BYTES
        async with asyncio.timeout(LINGER_S):
            while left > 0 and (data := await self.reader.read(READ_BYTES)):
                left -= len(data)

    # -- in --------------------------------------------------------------------------------------------------

    async def _event(self, most: int | None = None, read_bytes: int = READ_BYTES) -> Any:
        """Read the next event. Raise Problem 413 if a chunk is announced that has more than `most` bytes, 431 for too many lines."""
        while True:
            self._count_lines()
            event = self.http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if most is not None and self._announced() > most:
                raise too_large(most)
            if self.http.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[])
                self.writer.write(self.http.send(go_on) or b"")
            self.http.receive_data(await self.reader.read(read_bytes))

    def _count_lines(self) -> None:
        """Raise Problem 431 if a head, or trailers, with too many lines are to be parsed. h11 parses all of them in one step."""
        if self.http.their_state is h11.SEND_BODY and not getattr(self._body_reader, "_reading_trailer", False):
            return
        data = self.http.trailing_data[0]
        if len(data) > HTTP_LINES_MAX:
            blank = BLANK.search(data)
            if data.count(b"\n", 0, blank.end() if blank else len(data)) > HTTP_LINES_MAX:
                text = f"there are more than {HTTP_LINES_MAX} lines of headers"
                raise Problem(431, "too_many_headers", text, limit="http_head")

    @property
    def _body_reader(self) -> Any:
        """The part of h11 that reads bodies. It has no public name."""
        return getattr(self.http, "_reader", None)

    def _announced(self) -> int:
        """Return how many bytes are missing of the chunk that is being read."""
        return int(getattr(self._body_reader, "_bytes_in_chunk", 0))

    def _head(self, event: h11.Request) -> Request:
        """Check the head. Raise Problem 400 for a target that is not a path, or a body with two lengths."""
        target = event.target.decode("ascii", "replace")
        path, _, query = target.partition("?")
        if not path.startswith("/"):
            raise bad_request("the request's target must be a path")
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
        if {"content-length", "transfer-encoding"} <= headers.keys():
            # RFC 9112, 6.3: a proxy in front may see another end of this request than we do
            raise bad_request("give Content-Length or Transfer-Encoding, not both")
        try:
            pairs = tuple(parse_qsl(query, keep_blank_values=True, max_num_fields=100))
        except ValueError:
            raise bad_request("too many query parameters") from None
        method = event.method.decode("ascii")
        return Request(
            method, path, dict(pairs), headers, self.loopback, self.address, repeated=pairs, passed=self._passed
        )

    async def _body(self, head: Request, body: bytearray, most: int) -> None:
        """Read up to `most` bytes into `body`, and count them among those of all requests. The caller releases them again."""
        if self.http.their_state is not h11.SEND_BODY:
            return
        if int(head.headers.get("content-length", 0)) > most:
            raise too_large(most)
        parts = 0
        read_bytes = CHUNKS_BYTES if "transfer-encoding" in head.headers else READ_BYTES
        async with asyncio.timeout(BODY_S):
            while isinstance(event := await self._event(most, read_bytes), h11.Data):
                self.listener.admit(self, len(event.data))
                body += event.data
                if len(body) > most:
                    raise too_large(most)
                parts += 1
                if parts % PARTS_AT_ONCE == 0:  # thousands of chunks may have come in one read
                    await self.listener.api.slices.rest()

    # -- answer ----------------------------------------------------------------------------------------------

    async def _answer(self, head: Request) -> Response:
        """Call the handler. This is the one place where an error becomes an answer."""
        try:
            return await self._handle(head)
        except Problem as problem:
            return self._refusal(problem)
        except ProtocolError as error:
            self.listener.api.broker.count_refusal(error)
            return failure(amqp_problem(error))
        except StoreFull as error:
            return failure(Problem(503, "disk_full", f"{error}; nothing was changed"))
        except StoreError as error:
            self.listener.api.host.fail(error)
            return failure(Problem(503, "store_failed", "the disk failed, the broker stops: see its log"))
        except (h11.RemoteProtocolError, OSError, TimeoutError):
            raise
        except Exception:
            log.exception("%s %s failed", head.method, logged(head.path))
            return failure(Problem(500, "internal_server_error", "this is a mistake in Kvitto: see the broker's log"))

    def _refusal(self, problem: Problem) -> Response:
        if problem.limit:
            self.listener.api.broker.refused[problem.limit] += 1
        return failure(problem)

    async def _handle(self, head: Request) -> Response:
        listener = self.listener
        refuse_body(head)
        route, args = listener.router.find(head.method, head.path)
        with self._among(listener.crowd.idle):
            user = await listener.door.admit(head, route.access)
        self.holder = self.address if user is None else f"user '{user.name}'"
        refuse_forgery(head, route.raw)
        try:
            request = await self._with_body(head, route)
            listener.door.check(user, route.access)
            response = route.handler(Call(listener.api, request, args, user))
            return await begun(await response if inspect.isawaitable(response) else response)
        finally:
            listener.release(self)

    async def _with_body(self, head: Request, route: Route) -> Request:
        body = bytearray()
        with self._among(self.listener.crowd.slow):
            await self._body(head, body, route.body_max(self._limits))
        return replace(head, body=body) if route.raw else replace(head, document=await self._document(body))

    async def _document(self, body: bytearray) -> dict[str, Any] | Problem:
        """Return the body as JSON, or the Problem that a handler raises if it needs the body."""
        try:
            return await document.parse(self.listener.api.slices, body)
        except Problem as problem:
            return problem

    # -- out -------------------------------------------------------------------------------------------------

    async def _send(self, response: Response, head_only: bool) -> None:
        if self.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
        headers = [("Date", date), *HEADERS, *response.headers]
        if response.pieces is None:
            headers.append(("Content-Length", str(len(response.body))))
        if response.body:
            headers.append(("Content-Type", response.content_type))
        if self.http.their_state not in (h11.DONE, h11.MUST_CLOSE):
            headers.append(("Connection", "close"))  # its body has not been read
        phrase = HTTPStatus(response.status).phrase
        head = h11.Response(status_code=response.status, headers=headers, reason=phrase)
        if head_only or response.pieces is None:
            body = [] if head_only else [h11.Data(data=response.body)]
            await self._write(head, *body, h11.EndOfMessage())
            return
        await self._write(head, h11.Data(data=response.body))
        async for piece in response.pieces:
            await self._write(h11.Data(data=piece))
        await self._write(h11.EndOfMessage())

    async def _write(self, *events: Any) -> None:
        self.writer.write(b"".join(self.http.send(event) or b"" for event in events))
        with self._among(self.listener.crowd.slow):
            async with asyncio.timeout(WRITE_S):
                await self.writer.drain()


async def begun(response: Response) -> Response:
    """Make the first pieces of a body that is made in pieces. A short body is complete then, and an error in these
    pieces is answered."""
    if response.pieces is None:
        return response
    parts, size = [], 0
    async for piece in response.pieces:
        parts.append(piece)
        size += len(piece)
        if size > BEGUN_BYTES:
            return replace(response, body=b"".join(parts))
    return replace(response, body=b"".join(parts), pieces=None)


def amqp_problem(error: ProtocolError) -> Problem:
    """Return the answer to an error with which AMQP would have closed a channel."""
    if error.code == NOT_FOUND:
        return not_found(error.text)
    if error.code == ACCESS_REFUSED:
        return not_authorised(f"{error.code} {error.reply_text}")
    return bad_request(f"{error.code} {error.reply_text}")


def refuse_body(head: Request) -> None:
    """Raise Problem 400 for a body of a request that takes none: some of these paths are open to anybody."""
    if head.method in ("GET", "HEAD") and (
        "transfer-encoding" in head.headers or int(head.headers.get("content-length", 0)) > 0
    ):
        raise bad_request(f"{head.method} takes no body")


def logged(path: str) -> str:
    """Return a path as the log may have it: without a password in it."""
    return f"{SECRET}..." if path.startswith(SECRET) else path


def too_large(most: int) -> Problem:
    text = f"the body has more than {most} bytes"
    return Problem(413, "payload_too_large", text, limit="http_body")


def is_loopback(address: Any) -> bool:
    try:
        ip = ipaddress.ip_address(address[0].partition("%")[0])
    except (TypeError, IndexError, ValueError):
        return False
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback

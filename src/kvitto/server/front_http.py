"""What a node that does not lead answers itself over HTTP: whether it lives, follows and knows a leader, its cluster, and its metrics.

Everything else is the leader's. Only the first request of a connection is looked at: on a connection that has been passed on the leader
answers, and says of `/healthz/leader` that the node in between does not lead. The node has no users of its own. Who has to log in, because
the request comes from another machine, is looked up at the leader.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import h11

from kvitto.base.limits import Limits
from kvitto.cluster.passing import HTTP, Client, Elsewhere
from kvitto.cluster.standing import FOLLOWING, WAITING, Standing, follows, node_name
from kvitto.http.access import Access
from kvitto.http.cluster import standing_metrics
from kvitto.http.exposition import CONTENT_TYPE
from kvitto.http.health import failed, ok
from kvitto.http.request import Problem, Response, answer, failure, not_authorised
from kvitto.http.server import HEADERS, is_loopback
from kvitto.server.front import NOBODY, Front, Unreached
from kvitto.server.pairing import Side

READ_BYTES = 16 * 1024
LINGER_S = 2.0
ASK_S = 5.0
WHO_BYTES_MAX = 64 << 10
RETRY_AFTER_S = 1
SILENT_S = 1.5
"""A node is not ready if its leader has sent nothing for this time. A leader that works sends something four times a second."""
KNOWN_MAX = 16
KNOWN_S = 3600.0
"""While nobody leads, a login is accepted that the leader has accepted within this time: that is when the metrics are needed most."""


class OwnAnswers:
    """Implements `Own`."""

    def __init__(self, allowed: Limits, standing: Callable[[], Standing]) -> None:
        self._limits = allowed
        self._standing = standing
        self._salt = secrets.token_bytes(16)
        self._known: dict[bytes, float] = {}
        """Digests of logins that the leader has accepted, each with the time at which it did."""
        self._started_s = time.time()

    async def begin(self, front: Front, sock: socket.socket, where: Elsewhere) -> bytes | None:
        loop = asyncio.get_running_loop()
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.http_head_max)
        begun, request = b"", None
        async with asyncio.timeout(self._limits.handshake_s):
            while request is None:
                data = await loop.sock_recv(sock, READ_BYTES)
                if not data:
                    return None
                begun += data
                http.receive_data(data)
                try:
                    event = http.next_event()
                except h11.RemoteProtocolError:
                    return begun  # the leader says what is wrong with it
                request = event if isinstance(event, h11.Request) else None
        path = request.target.decode("ascii", "replace").partition("?")[0].rstrip("/")
        if path not in PATHS and not path.startswith("/metrics/"):
            return begun
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
        try:
            if request.method not in (b"GET", b"HEAD"):
                text = f"{request.method.decode()} is not possible here, only GET, HEAD"
                raise Problem(405, "method_not_allowed", text, (("Allow", "GET, HEAD"),))
            if not path.startswith("/healthz") and not is_loopback(where):
                await self._admit(front, where, headers.get("authorization", ""))
            response = self._answer(front, path, request.target)
        except Problem as problem:
            response = failure(problem)
        await self._send(sock, http, response, request.method == b"HEAD")
        return None

    async def refuse(self, sock: socket.socket, why: str, begun: bytes) -> None:
        retry = (("Retry-After", str(RETRY_AFTER_S)),)
        why = self._standing().why if why == NOBODY and self._standing().why else why
        response = failure(Problem(503, "no_leader", f"{why}: this node does not lead, try again", retry))
        await self._send(sock, None, response, begun.startswith(b"HEAD "))

    # -- answers ---------------------------------------------------------------------------------------------------

    def _answer(self, front: Front, path: str, target: bytes) -> Response:
        standing = self._standing()
        if path == "/api/cluster":
            return answer(follows(standing))
        if path.startswith("/metrics"):
            if path != "/metrics" or b"prefix=rabbitmq" in target:
                return Response(
                    content_type=CONTENT_TYPE, body=b"# this node does not lead, and has no figures with these names\n"
                )
            return Response(content_type=CONTENT_TYPE, body="".join(self._metrics(front, standing)).encode())
        if path == "/healthz/live":
            return ok()
        led_by = front.seat
        nobody = "nobody leads, as far as this node knows" if led_by is None else "the leader does not answer"
        nobody += f": {standing.why}" if standing.why else ""
        if path == "/healthz/ready":
            if led_by is None or standing.state == WAITING:
                return failed(nobody)
            if standing.silent_s >= SILENT_S:
                return failed(
                    f"nothing has come from {node_name(led_by.member)}, which leads, for {standing.silent_s:.1f} s"
                )
            return ok()
        if path == "/healthz/leader":
            return failed(nobody if led_by is None else f"this node follows, {node_name(led_by.member)} leads")
        if standing.state == FOLLOWING:
            return ok()
        return failed(standing.why or f"this node is {standing.state}, and has not everything")

    def _metrics(self, front: Front, standing: Standing) -> list[str]:
        groups = standing_metrics(standing, front.connections, front.passed, front.refused, self._started_s)
        return [f"{line}\n" for group in groups for line in group]

    # -- logins ----------------------------------------------------------------------------------------------------

    async def _admit(self, front: Front, where: Elsewhere, given: str) -> None:
        """Raise Problem 401 unless the leader knows the user, with a tag for monitoring, or 503 if it cannot be asked."""
        if not given:
            raise not_authorised("this needs a login: send an Authorization header of type Basic")
        digest = hashlib.blake2b(f"{where.host} {given}".encode(), key=self._salt).digest()
        try:
            _, side = await front.reach(Client(HTTP, where))
        except Unreached as error:
            if time.monotonic() - self._known.get(digest, -KNOWN_S) < KNOWN_S:
                return
            why = f"{error}, and only the leader knows who may log in"
            raise Problem(503, "no_leader", why, (("Retry-After", str(RETRY_AFTER_S)),)) from None
        self._known.pop(digest, None)
        try:
            async with asyncio.timeout(ASK_S):
                status, tags = await who(side, given)
        except (TimeoutError, OSError, ValueError, h11.RemoteProtocolError, h11.LocalProtocolError):
            raise Problem(503, "no_leader", "the leader has not said who may log in: try again") from None
        finally:
            side.sock.close()
        if status != HTTPStatus.OK or not set(tags) & set(Access.MONITORING.value):
            raise not_authorised("the leader does not know this login, or the user has not the tag monitoring")
        self._known[digest] = time.monotonic()
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]

    # -- out ---------------------------------------------------------------------------------------------------------

    async def _send(
        self, sock: socket.socket, http: h11.Connection | None, response: Response, head_only: bool
    ) -> None:
        """Send an answer, which is the last one of its connection."""
        loop = asyncio.get_running_loop()
        headers = [*HEADERS, *response.headers, ("Content-Length", str(len(response.body))), ("Connection", "close")]
        headers.append(("Content-Type", response.content_type))
        headers.append(("Date", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())))
        http = http or h11.Connection(h11.SERVER)
        reason = HTTPStatus(response.status).phrase
        data = http.send(h11.Response(status_code=response.status, headers=headers, reason=reason)) or b""
        if not head_only:
            data += bytes(response.body)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._limits.handshake_s):
                await loop.sock_sendall(sock, data)
            sock.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(LINGER_S):  # a reset because of unread input would take the answer with it
                while await loop.sock_recv(sock, READ_BYTES):
                    pass


async def who(side: Side, given: str) -> tuple[int, list[str]]:
    """Ask the leader who this is. Return the status of its answer, and the user's tags. Raises OSError, ValueError or h11's errors."""
    reader, writer = await asyncio.open_connection(sock=side.sock, ssl=side.tls, server_hostname=side.host or None)
    try:
        return await _who(reader, writer, given)
    finally:
        writer.transport.abort()


async def _who(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, given: str) -> tuple[int, list[str]]:
    http = h11.Connection(h11.CLIENT)
    headers = [("Host", "leader"), ("Authorization", given), ("Connection", "close")]
    asked = http.send(h11.Request(method="GET", target="/api/whoami", headers=headers)) or b""
    writer.write(asked + (http.send(h11.EndOfMessage()) or b""))
    status, body = 0, b""
    while len(body) <= WHO_BYTES_MAX:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            break
        else:
            raise ValueError("the leader has closed the connection")
    found: Any = json.loads(body) if status == HTTPStatus.OK else {}
    tags = found.get("tags", []) if isinstance(found, dict) else []
    return status, [str(tag) for tag in tags]


PATHS = ("/healthz", "/healthz/live", "/healthz/ready", "/healthz/leader", "/api/cluster", "/metrics")

"""An HTTP server to which webhooks are posted: connections that are kept, time-outs over the whole request, and no redirects.

Whatever the server does, `post` ends within the time-out, with a status or with EndpointFailed. What is read of an answer
is limited. Certificates are verified; addresses of the own link, where clouds have their metadata, are refused.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from time import time
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import h11

from kvitto.base.version import __version__

READ_BYTES = 1 << 16
ANSWER_MAX = 1 << 20
"""The most bytes of an answer that are read."""
IDLE_S = 10.0
"""A connection that was idle for so long is not used again."""
RETRY_AFTER_MAX_S = 3600.0
WHY_MAX = 200
"""The most characters of an error that may repeat what the server has sent."""

Headers = Sequence[tuple[str, str]]


class EndpointFailed(Exception):
    """There was no answer. The text says why."""


class Answer(NamedTuple):
    """`retry_after_s` is 0 if the server did not say. `location` is where a redirect leads, which is not followed."""

    status: int
    retry_after_s: float
    location: str


class Endpoint:
    """`url` is where to post. One `Endpoint` is used by any number of tasks."""

    def __init__(self, url: str, timeout_s: float, cacertfile: str | None = None) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context(cafile=cacertfile) if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        host = f"[{self._host}]" if ":" in self._host else self._host
        default = parts.port is None or parts.port == (443 if self._tls else 80)
        self._headers = [("host", host if default else f"{host}:{self._port}"), ("user-agent", f"kvitto/{__version__}")]
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers.append(("authorization", "Basic " + base64.b64encode(login.encode()).decode()))
        self._timeout_s = timeout_s
        self._idle: list[tuple[float, _Connection]] = []

    async def post(self, headers: Headers, body: bytes) -> Answer:
        """Post once. A kept connection that the server has closed meanwhile is replaced."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                while self._idle:
                    since, kept = self._idle.pop()
                    if loop.time() - since > IDLE_S:
                        kept.abort()
                        continue
                    with contextlib.suppress(_Stale):
                        return await self._exchange(kept, headers, body)
                return await self._exchange(await self._connect(), headers, body)
        except TimeoutError:
            raise EndpointFailed(f"no answer within {self._timeout_s:g} s") from None
        except (OSError, h11.ProtocolError, asyncio.IncompleteReadError) as error:
            raise EndpointFailed(_why(error)) from None

    async def _exchange(self, connection: _Connection, headers: Headers, body: bytes) -> Answer:
        try:
            answer = await connection.post(self._target, [*self._headers, *headers], body)
        except BaseException:
            connection.abort()
            raise
        if connection.reusable:
            self._idle.append((asyncio.get_running_loop().time(), connection))
        else:
            connection.abort()
        return answer

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        failed: OSError | None = None
        for _, _, _, _, address in found:
            refuse_link(str(address[0]))
            try:
                name = self._host if self._tls else None
                streams = await asyncio.open_connection(
                    str(address[0]), self._port, ssl=self._tls, server_hostname=name, limit=READ_BYTES
                )
                return _Connection(*streams)
            except OSError as error:
                failed = error
        raise failed or OSError(f"{self._host} has no address")

    def close(self) -> None:
        """Close the connections that are kept."""
        for _, connection in self._idle:
            connection.abort()
        self._idle.clear()


class _Stale(Exception):
    """The server had closed a kept connection before it has seen the request."""


class _Connection:
    """One connection, which is used by one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)
        self._used = False

    @property
    def reusable(self) -> bool:
        return self._http.our_state is h11.IDLE

    async def post(self, target: str, headers: Headers, body: bytes) -> Answer:
        length = ("content-length", str(len(body)))
        request = h11.Request(method="POST", target=target, headers=[*headers, length])
        self._writer.write(
            (self._http.send(request) or b"")
            + (self._http.send(h11.Data(data=body)) or b"")
            + (self._http.send(h11.EndOfMessage()) or b"")
        )
        answer, size = None, 0
        try:
            await self._writer.drain()
            while True:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    data = await self._reader.read(READ_BYTES)
                    size += len(data)
                    if not data and size == 0 and self._used:
                        raise _Stale
                    self._http.receive_data(data)
                elif isinstance(event, h11.Response):
                    answer = answer_of(event)
                elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    break
                if size > ANSWER_MAX:
                    break
        except ConnectionError:
            if self._used and size == 0:
                raise _Stale from None
            if answer is None:
                raise
        if answer is None:
            raise EndpointFailed("the server closed the connection without an answer")
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        self._used = True
        return answer

    def abort(self) -> None:
        """Close at once. asyncio's `close` would first send the rest of the request, and would let the server end TLS on its side, too:
        a server that reads nothing does neither, and a loop that ends meanwhile leaves the socket open."""
        self._writer.transport.abort()


def answer_of(response: h11.Response) -> Answer:
    found = {bytes(name): bytes(value).decode("latin-1") for name, value in response.headers}
    return Answer(response.status_code, retry_after(found.get(b"retry-after", "")), found.get(b"location", ""))


def retry_after(text: str) -> float:
    """Return the seconds that a Retry-After asks for, 0 if it cannot be read."""
    if text.strip().isdecimal():
        return min(float(text), RETRY_AFTER_MAX_S)
    try:
        return min(max(0.0, parsedate_to_datetime(text).timestamp() - time()), RETRY_AFTER_MAX_S)
    except (ValueError, TypeError, OverflowError):
        return 0.0


def refuse_link(address: str) -> None:
    """Raise OSError for an address to which no webhook is posted."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        raise OSError(f"{address} is a link-local, multicast or unspecified address, to which no webhook is posted")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    if isinstance(error, h11.ProtocolError):
        return f"the answer is not HTTP: {str(error)[:WHY_MAX]}"
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__

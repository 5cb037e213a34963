"""A client of the management API for the command line: an answer is a value, or a failure with an exit code."""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any
from urllib.parse import quote, unquote, urlsplit

REFUSED = 1
"""Exit code: the broker refused the request; the message says why."""
USAGE = 2
UNREACHABLE = 3
NOT_ALLOWED = 4
"""Exit code: wrong user or password, or a user who may not do this."""
TIMEOUT_S = 60.0


class Failure(Exception):
    """A failure: a message for people, and an exit code for scripts."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Management:
    """`url` is http(s)://user:password@host:port. Missing parts default to guest, 127.0.0.1 and 15672."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url if "//" in url else f"//{url}", scheme="http")
            port = parts.port
        except ValueError:
            where = url.rpartition("@")[2]  # neither the password nor the text that urllib took for the port
            text = f"--url: malformed host or port in {where!r}; percent-encode / ? # [ ] @ in the password"
            raise Failure(USAGE, text) from None
        if parts.scheme not in ("http", "https"):
            raise Failure(USAGE, f"--url must begin with http:// or https://, not {parts.scheme}://")
        self._tls = parts.scheme == "https"
        self._host = parts.hostname or "127.0.0.1"
        self._port = port or (15671 if self._tls else 15672)
        self._prefix = parts.path.rstrip("/")
        self.user = unquote(parts.username) if parts.username is not None else "guest"
        password = unquote(parts.password) if parts.password is not None else "guest"
        encoded = base64.b64encode(f"{self.user}:{password}".encode(errors="surrogateescape")).decode()
        self._headers = {"Authorization": f"Basic {encoded}", "Content-Type": "application/json"}

    def get(self, *path: str, accept: tuple[int, ...] = ()) -> Any:
        """Return the JSON at the path /api/... made of `parts`. Raise Failure unless the status is below 300 or in `accept`."""
        return self._request("GET", path, None, accept, {})

    def put(self, *path: str, body: dict[str, Any] | None = None) -> None:
        self._request("PUT", path, body or {}, (), {})

    def delete(self, *path: str, query: str = "", headers: dict[str, str] | None = None) -> None:
        self._request("DELETE", path, None, (), headers or {}, query)

    def _request(
        self,
        method: str,
        path: tuple[str, ...],
        body: dict[str, Any] | None,
        accept: tuple[int, ...],
        headers: dict[str, str],
        query: str = "",
    ) -> Any:
        if "" in path:
            raise Failure(USAGE, "a name is empty")
        target = "/".join((f"{self._prefix}/api", *(quote(part, safe="", errors="surrogateescape") for part in path)))
        make = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        try:
            connection = make(self._host, self._port, timeout=TIMEOUT_S)
        except http.client.InvalidURL:
            raise Failure(USAGE, f"--url: {self._host!r} is not a host") from None
        content = None if body is None else json.dumps(body)
        try:
            connection.request(
                method,
                target + query,
                content,
                {**self._headers, **{name: text.encode().decode("latin-1") for name, text in headers.items()}},
            )
            response = connection.getresponse()
            status, data = response.status, response.read()
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise Failure(UNREACHABLE, self._unreachable(error)) from None
        finally:
            connection.close()
        return self._value(status, data, accept)

    def _value(self, status: int, data: bytes, accept: tuple[int, ...]) -> Any:
        try:
            value = json.loads(data) if data else None
        except ValueError:
            raise Failure(
                UNREACHABLE, f"{self._host}:{self._port} does not answer like a broker: is it another server?"
            ) from None
        if status < 300 or status in accept:
            return value
        reason = value.get("reason", "") if isinstance(value, dict) else ""
        if status == 401:
            raise Failure(NOT_ALLOWED, f"not allowed: {reason}")
        raise Failure(REFUSED, str(reason) or f"the broker answered with status {status}")

    def _unreachable(self, error: Exception) -> str:
        where = f"http{'s' if self._tls else ''}://{self._host}:{self._port}"
        if isinstance(error, http.client.BadStatusLine) and str(error).startswith("AMQP"):
            return f"{where} is a port for AMQP: give --url the port of the management API, 15672 unless --http-port sets another"
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        return f"no broker answers at {where} ({why}). Is `kvitto serve` running with this --http-port? Else give --url"

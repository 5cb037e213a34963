"""A client of the management API for the command line: an answer is a value, or a failure with an exit code."""

from __future__ import annotations

import base64
import http.client
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

REFUSED = 1
"""Exit code: the broker refused the request; the message says why."""
USAGE = 2
UNREACHABLE = 3
NOT_ALLOWED = 4
"""Exit code: wrong user or password, or a user who may not do this."""
TIMEOUT_S = 60.0
IMPORT_S = 600.0
"""The time limit of an import of definitions. 100,000 bindings take some seconds, and longer on a slow disk or a busy machine."""
SHOWN_MAX = 10
"""The most refused items that an error names."""
PING_S = 5.0
"""A broker whose loop runs answers a ping within this time, however much it has to do."""
URI = "http://guest:guest@127.0.0.1:15672"
HINT = "Is `kvitto serve` running with this --http-port?"
TAGS = {"administrator": "administrator", "management": "management", "monitor": "monitoring"}
"""RabbitMQ's word in "Not administrator user" -> the tag that the user lacks."""
ALL_ADDRESSES = ("", "0.0.0.0", "::")


class Failure(Exception):
    """A failure: a message for people, and an exit code for scripts."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def default_uri(environ: Mapping[str, str]) -> str:
    """Return KVITTO_URI, or where `kvitto serve` listens with these environment variables, for the user that it adds to
    a new data directory: in a container `kvitto ctl` then needs no option."""
    given = environ.get("KVITTO_URI") or environ.get("KVITTO_URL")
    if given:
        return given
    host = environ.get("KVITTO_HTTP_HOST") or environ.get("KVITTO_HOST", "").partition(",")[0].strip()
    host = "127.0.0.1" if host in ALL_ADDRESSES else f"[{host}]" if ":" in host else host
    port = environ.get("KVITTO_HTTP_PORT", "")
    if not re.fullmatch("[1-9][0-9]{0,4}", port):
        port = "15672"
    user, password = environ.get("KVITTO_DEFAULT_USER"), environ.get("KVITTO_DEFAULT_PASS", "")
    file = environ.get("KVITTO_DEFAULT_PASS_FILE")
    if user and file and not password:
        try:
            text = Path(file).read_text(encoding="utf-8", errors="surrogateescape")
            password = text.partition("\n")[0].rstrip("\r")  # as `Config.first_password` reads it
        except OSError:
            user = None
    login = f"{_quoted(user)}:{_quoted(password)}" if user else "guest:guest"
    return f"http://{login}@{host}:{port}"


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="surrogateescape")


class Management:
    """`uri` is http(s)://user:password@host:port. Missing parts default to guest, 127.0.0.1 and 15672. `option` gave it.

    `hint` says what to look at if nothing answers there.
    """

    def __init__(self, uri: str, option: str = "--uri", hint: str = HINT) -> None:
        self.option = option
        self._hint = hint
        try:
            parts = urlsplit(uri if "//" in uri else f"//{uri}", scheme="http")
            port = parts.port
        except ValueError:
            where = uri.rpartition("@")[2]  # neither the password nor the text that urllib took for the port
            text = f"{option}: malformed host or port in {where!r}; percent-encode / ? # [ ] @ in the password"
            raise Failure(USAGE, text) from None
        if parts.scheme not in ("http", "https"):
            text = f"{option} must begin with http:// or https://, not {parts.scheme}://: it names the management API"
            raise Failure(USAGE, text)
        self._tls = parts.scheme == "https"
        self._host = parts.hostname or "127.0.0.1"
        self._port = port or (15671 if self._tls else 15672)
        self._prefix = parts.path.rstrip("/")
        self.user = unquote(parts.username) if parts.username is not None else "guest"
        self.password = unquote(parts.password) if parts.password is not None else "guest"

    @property
    def where(self) -> str:
        """The address without user and password."""
        return f"http{'s' if self._tls else ''}://{self._host}:{self._port}"

    def get(self, *path: str, accept: tuple[int, ...] = (), query: str = "") -> Any:
        """Return the JSON at the path /api/... made of `parts`. Raise Failure unless the status is below 300 or in `accept`."""
        return self._request("GET", path, None, accept, {}, query)

    def put(self, *path: str, body: dict[str, Any] | None = None) -> None:
        self._request("PUT", path, body or {}, (), {})

    def post(self, *path: str, body: dict[str, Any] | None = None) -> Any:
        return self._request("POST", path, body or {}, (), {})

    def upload(
        self, *path: str, content: bytes, query: str = "", accept: tuple[int, ...] = (), timeout_s: float = TIMEOUT_S
    ) -> Any:
        """POST a JSON document as it is."""
        return self._request("POST", path, content, accept, {}, query, timeout_s)

    def delete(self, *path: str, query: str = "", headers: dict[str, str] | None = None) -> Any:
        return self._request("DELETE", path, None, (), headers or {}, query)

    def ping(self) -> bool:
        """Return whether the broker reports no alarm. Raise Failure if it does not answer. This needs no login."""
        value = self._send("GET", f"{self._prefix}/healthz", None, (503,), {}, PING_S)
        if not isinstance(value, dict) or "status" not in value:
            raise self._other_server()
        return bool(value["status"] == "ok")

    def _request(
        self,
        method: str,
        path: tuple[str, ...],
        body: dict[str, Any] | bytes | None,
        accept: tuple[int, ...],
        headers: dict[str, str],
        query: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> Any:
        if "" in path:
            raise Failure(USAGE, "a name is empty")
        encoded = base64.b64encode(f"{self.user}:{self.password}".encode(errors="surrogateescape")).decode()
        login = {"Authorization": f"Basic {encoded}", "Content-Type": "application/json"}
        target = "/".join((f"{self._prefix}/api", *map(_quoted, path)))
        given = {name: text.encode(errors="surrogateescape").decode("latin-1") for name, text in headers.items()}
        return self._send(method, target + query, body, accept, {**login, **given}, timeout_s)

    def _send(
        self,
        method: str,
        target: str,
        body: dict[str, Any] | bytes | None,
        accept: tuple[int, ...],
        headers: dict[str, str],
        timeout_s: float,
    ) -> Any:
        make = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        try:
            connection = make(self._host, self._port, timeout=timeout_s)
        except http.client.InvalidURL:
            raise Failure(USAGE, f"{self.option}: {self._host!r} is not a host") from None
        try:
            content = json.dumps(body) if isinstance(body, dict) else body
            connection.request(method, target, content, headers)
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
            raise self._other_server() from None
        if status < 300 or status in accept:
            return value
        reason = value.get("reason", "") if isinstance(value, dict) else ""
        if status == 401:
            raise Failure(NOT_ALLOWED, f"not allowed: {reason} ({self._asks(reason)})")
        refused = value.get("refused", []) if isinstance(value, dict) else []
        items = "".join(f"; {json.dumps(item)}" for item in refused[:SHOWN_MAX])
        raise Failure(REFUSED, f"{reason or f'the broker answered with status {status}'}{items}")

    def _asks(self, reason: str) -> str:
        """Return the user who asks, where, and the tag that a reason of RabbitMQ misses."""
        match = re.fullmatch(r"Not (\w+) user", reason)
        lacks = f", without the tag {TAGS[match[1]]}" if match and match[1] in TAGS else ""
        return f"user '{self.user}' at {self.where}{lacks}"

    @property
    def host_and_port(self) -> tuple[str, int]:
        return self._host, self._port

    def _other_server(self) -> Failure:
        text = f"{self._host}:{self._port} does not answer like a broker: is it another server?"
        return Failure(UNREACHABLE, text)

    def _unreachable(self, error: Exception) -> str:
        if isinstance(error, http.client.BadStatusLine) and str(error).startswith("AMQP"):
            other = "the port of the management API, 15672 unless --http-port sets another"
            return f"{self.where} is a port for AMQP: give {self.option} {other}"
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        return f"no broker answers at {self.where} ({why}). {self._hint} Else give {self.option}"

"""One HTTP request and its answer as values, without sockets and without h11."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any


class Problem(Exception):
    """An answer other than success: `error` is a word for programs, `reason` a sentence for people.

    `limit` is the name in limits.REFUSALS under which it is counted, "" for none.
    """

    def __init__(
        self, status: int, error: str, reason: str, headers: tuple[tuple[str, str], ...] = (), limit: str = ""
    ) -> None:
        super().__init__(f"{status} {error}: {reason}")
        self.status = status
        self.error = error
        self.reason = reason
        self.headers = headers
        self.limit = limit


def bad_request(reason: str) -> Problem:
    return Problem(400, "bad_request", reason)


def not_found(reason: str = "Not Found") -> Problem:
    return Problem(404, "Object Not Found", reason)


def not_authorised(reason: str) -> Problem:
    """Return RabbitMQ's answer both to a wrong login and to a user who may not do this; its tools know no other."""
    return Problem(401, "not_authorized", reason, (("WWW-Authenticate", 'Basic realm="Kvitto", charset="UTF-8"'),))


@dataclass(frozen=True, slots=True)
class Text:
    """A string in a body that is too long for anything but a payload, in parts."""

    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """`path` is still percent-encoded; header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    loopback: bool
    address: str
    document: dict[str, Any] | Problem = field(default_factory=dict)
    """The body, or the reason why it cannot be read."""
    repeated: tuple[tuple[str, str], ...] = ()
    """All parameters in order. `query` has only the last of those with the same name."""

    def values(self, name: str) -> list[str]:
        """Return the values of a parameter that may be given several times."""
        return [value for key, value in self.repeated if key == name]

    passed: bool = False
    """Whether the connection has come by way of another node of the cluster, which does not lead."""
    body: bytes | bytearray = b""
    """The body as it came, for a route that reads it itself."""

    def credentials(self) -> tuple[str, str] | None:
        """Return name and password of basic auth, None without. Raise Problem 401 if they cannot be read."""
        value = self.headers.get("authorization")
        if value is None:
            return None
        scheme, _, encoded = value.partition(" ")
        try:
            name, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError, ValueError):
            colon = ""
        if scheme.lower() != "basic" or not colon:
            raise not_authorised("this needs an Authorization header of type Basic")
        return name, password

    def asks(self, name: str) -> bool:
        """Return a parameter that is true or false; false if it is not given. Raise Problem 400."""
        value = self.query.get(name, "false")
        if value not in ("true", "false"):
            raise bad_request(f"{name} must be true or false")
        return value == "true"

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object; an empty body is an empty object. Raise Problem 400."""
        if isinstance(self.document, Problem):
            raise self.document
        return self.document


@dataclass(frozen=True, slots=True)
class Response:
    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = field(default=())
    pieces: AsyncIterator[bytes] | None = None
    """A body that is made while it is sent, in place of `body`."""


def answer(value: Any, status: int = 200) -> Response:
    return Response(status, encode(value))


def failure(problem: Problem) -> Response:
    return Response(problem.status, encode({"error": problem.error, "reason": problem.reason}), headers=problem.headers)


CREATED = Response(201)
NO_CONTENT = Response(204)


def encode(value: Any) -> bytes:
    """Return JSON in ASCII. Strings with bytes that are not UTF-8 (surrogates) are kept too."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def plain(value: Any) -> Any:
    """Return a value of an AMQP table in a form that JSON can express."""
    match value:
        case dict():
            return {key: plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "surrogateescape")
        case datetime():
            return int(value.timestamp())
        case Decimal():
            return float(value)
        case float():
            return value if math.isfinite(value) else None
    return value

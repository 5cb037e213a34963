"""A small client of the management API for tests: one connection per request, JSON in and out."""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 10.0


class Answer:
    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        assert set(self.json) >= {"error", "reason"}, self.body
        return str(self.json["reason"])


class Http:
    def __init__(self, url: str, user: str = "guest", password: str = "guest") -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self.host, self.port = parts.hostname, parts.port
        self.url = url
        encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.headers = {"Authorization": f"Basic {encoded}"} if user else {}

    def as_user(self, user: str, password: str = "secret") -> Http:
        return Http(self.url, user, password)

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """`body`: bytes are sent as they are, anything else as JSON."""
        given = {**self.headers, **(headers or {})}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            given.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, given)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        answer = self.call("GET", path)
        assert answer.status == 200, (answer.status, answer.body)
        return answer.json

    def put(self, path: str, body: Any = None) -> int:
        return self.call("PUT", path, body or {}).status

    def post(self, path: str, body: Any) -> Answer:
        return self.call("POST", path, body)

    def delete(self, path: str) -> int:
        return self.call("DELETE", path).status

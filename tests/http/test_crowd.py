"""Slow bodies and slow readers keep nobody else from HTTP: who has most of the places, or of the bytes, gives way."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import kvitto
from kvitto.http import server
from kvitto.http.server import Listener
from tests.http.api import TIMEOUT_S, Http
from tests.http.test_users import make_user
from tests.support.wait import wait_until

PLACES = 12


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[kvitto.Broker]:
    """With few places and little room for bodies."""
    monkeypatch.setattr(server, "CONNECTIONS_MAX", PLACES)
    with kvitto.Broker(http_port=0, limits={"http_bodies_max": 100_000}) as broker:
        yield broker


def listener_of(broker: kvitto.Broker) -> Listener:
    running: Any = broker._server
    (listener,) = (found for found in running._servers if isinstance(found, Listener))
    return listener


def slow_body(api: Http, sent: int) -> socket.socket:
    """A request whose body does not end."""
    auth = b"Authorization: " + api.headers["Authorization"].encode()
    head = b"PUT /api/queues/%2F/slow HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n" + auth + b"\r\n\r\n"
    sock = socket.create_connection((api.host, api.port), timeout=TIMEOUT_S)
    sock.sendall(head + b" " * sent)
    return sock


def test_slow_bodies_of_one_user_shut_nobody_out(small: kvitto.Broker) -> None:
    """256 of them kept everybody from /healthz, metrics and the API for 30 s."""
    api, listener = Http(small.http_url), listener_of(small)
    attacker, other = make_user(api, "attacker", "management"), make_user(api, "other", "administrator", "%2F")
    with contextlib.ExitStack() as stack:
        mine = stack.enter_context(slow_body(other, 10))
        wait_until(lambda: len(listener.crowd.slow) == 1)
        for count in range(PLACES - 1):
            stack.enter_context(slow_body(attacker, 10))
            wait_until(lambda expected=count + 2: len(listener.crowd.slow) == expected)  # type: ignore[misc]
        for _ in range(3):
            assert api.as_user("").call("GET", "/healthz").status == 200
            assert api.as_user("").call("GET", "/metrics").status == 200
            assert other.call("GET", "/api/queues").status == 200
        assert small.http_url and listener.api.broker.refused["http_connections"] > 0
        mine.sendall(b" " * 89_988 + b"{}")
        assert mine.recv(100).startswith(b"HTTP/1.1 201"), "another user's slow body is not what gives way"


def test_readers_that_do_not_read_shut_nobody_out(small: kvitto.Broker) -> None:
    api, listener = Http(small.http_url), listener_of(small)
    attacker = make_user(api, "reader", "management", "%2F")
    for n in range(130):
        assert api.put(f"/api/queues/%2F/{n}", {"arguments": {"x-filler": "x" * 80_000}}) == 201
    auth = b"Authorization: " + attacker.headers["Authorization"].encode()
    with contextlib.ExitStack() as stack:
        for _ in range(PLACES):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect((api.host, api.port))
            sock.sendall(b"GET /api/queues HTTP/1.1\r\nHost: x\r\n" + auth + b"\r\n\r\n")
        wait_until(lambda: len(listener.crowd.slow) > PLACES - 3 and not listener.crowd.idle)
        assert api.as_user("").call("GET", "/healthz").status == 200
        assert api.call("GET", "/api/overview").status == 200


def test_bodies_of_one_user_leave_room_for_those_of_others(small: kvitto.Broker) -> None:
    """The one who came next was refused, whoever held the room."""
    api, listener = Http(small.http_url), listener_of(small)
    attacker = make_user(api, "hoarder", "management")
    with slow_body(attacker, 50_000) as first, slow_body(attacker, 45_000) as second:
        wait_until(lambda: listener.body_bytes == 95_000)
        assert api.call("PUT", "/api/queues/%2F/mine", b" " * 40_000).status == 201
        assert first.recv(100) == b"", "the first of the greatest is ended"
        assert attacker.call("PUT", "/api/queues/%2F/x", b" " * 60_000).status == 503
        second.sendall(b" " * 45_000)
        assert second.recv(100).startswith(b"HTTP/1.1 401"), "the attacker has no permissions"
    wait_until(lambda: listener.body_bytes == 0)

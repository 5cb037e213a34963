"""W8, with sockets: too many connections, those that never get anywhere, and that others are served meanwhile.

KVITTO_CONNECTIONS sets how many idle connections are opened (10,000 need twice as many open files, half of them here).
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvitto
from kvitto.base import limits
from kvitto.base.limits import DEFAULTS
from kvitto.http import server as http_server
from kvitto.server import logins
from kvitto.wire import methods as m
from kvitto.wire.spec import PROTOCOL_HEADER
from tests.cli.process import KVITTO, READY
from tests.http.api import Http
from tests.protocol.raw import Raw
from tests.support.certificates import Authority
from tests.support.wait import wait_until

IDLE = int(os.environ.get("KVITTO_CONNECTIONS", "200"))
PROBES = 200

needs_prlimit = pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit (Debian: util-linux)")


@contextmanager
def broker(**settings: Any) -> Iterator[kvitto.Broker]:
    """With an HTTP listener; settings are those of `Config`."""
    made = kvitto.Broker(http_port=0)
    made._config = replace(made._config, **settings)
    with made:
        yield made


def refused(url: str, limit: str) -> int:
    text = Http(url).call("GET", "/metrics").body.decode()
    found = re.search(rf'^kvitto_refused_total{{limit="{limit}"}} (\d+)$', text, re.MULTILINE)
    assert found is not None, limit
    return int(found[1])


def test_connections_past_the_limit_are_told_so() -> None:
    """Limit max_connections: those that are there are served, and one that ends makes room."""
    with broker(max_connections=5) as running:
        inside = [Raw(running.port) for _ in range(5)]
        with Raw(running.port, login=False) as message_does_not_fit:
            message_does_not_fit.send(PROTOCOL_HEADER)
            message_does_not_fit.expect(m.ConnectionStart)
            close = message_does_not_fit.connection_error(506)
            assert close.reply_text == "RESOURCE_ERROR - the limit of 5 connections is reached"
        inside[0].channel(1)
        inside[0].declare()
        assert refused(running.http_url, "connections") == 1
        inside.pop().drop()
        http = Http(running.http_url)
        wait_until(lambda: len(http.get("/api/connections")) < 5)
        inside.append(Raw(running.port))
        for each in inside:
            each.drop()


def test_a_flood_of_refused_connections_is_dropped_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit REFUSED_MAX: being polite must not take the descriptors either."""
    monkeypatch.setattr(limits, "REFUSED_MAX", 10)
    with broker(max_connections=1) as running:
        flood = [Raw(running.port, login=False) for _ in range(30)]
        wait_until(lambda: refused(running.http_url, "connections") == 19)
        for each in flood:
            each.drop()


@needs_prlimit
@pytest.mark.slow
def test_connections_end_before_descriptors_do(tmp_path: Path) -> None:
    """Limit of open files: connections are refused while queues can still be written."""
    with process(tmp_path, "prlimit", "--nofile=200:200") as (port, http), Raw(port) as working:
        working.channel(1)
        queues = [working.declare(durable=True) for _ in range(20)]
        clients = [Raw(port, login=False) for _ in range(200)]
        wait_until(lambda: refused(http.url, "connections") > 0)
        for queue in queues:
            working.put_in(queue, b"x")
            assert working.get(queue, no_ack=True) is not None
        working.put(1, *[m.QueueDeclare(f"q{i}", durable=True, no_wait=True) for i in range(200)])
        assert "ulimit" in working.channel_error(406).reply_text
        for client in clients:
            client.drop()
        working.channel(1)
        working.put_in(queues[0], b"x")


@needs_prlimit
@pytest.mark.slow
def test_queues_leave_room_for_connections(tmp_path: Path) -> None:
    """Limit of open files: who declares queues until he is refused shuts nobody out."""
    with process(tmp_path, "prlimit", "--nofile=200:200") as (port, _), Raw(port) as greedy:
        greedy.channel(1)
        greedy.put(1, *[m.QueueDeclare(f"q{i}", durable=True, no_wait=True) for i in range(200)])
        assert "ulimit" in greedy.channel_error(406).reply_text
        with ExitStack() as doors:
            others = [doors.enter_context(Raw(port)) for _ in range(8)]
            for other in others:
                other.channel(1)
                other.put_in("q0", b"x")
                assert other.get("q0", no_ack=True) is not None


@needs_prlimit
@pytest.mark.slow
def test_who_has_not_logged_in_cannot_take_the_last_descriptor(tmp_path: Path) -> None:
    """Limit of open files, by TLS handshakes that are not made, AMQP and HTTP: queues are written all the same."""
    pair = Authority(tmp_path / "tls").sign("server", "/CN=localhost")
    options = ("--tls-port", "0", "--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    with started(tmp_path / "data", "prlimit", "--nofile=200:200", options=options) as ready, ExitStack() as doors:
        http = Http(f"http://127.0.0.1:{ready['http']}")
        working = doors.enter_context(Raw(int(ready["amqp"])))
        working.channel(1)
        queues = [working.declare(durable=True) for _ in range(20)]
        for door in ("tls", "amqp", "http"):
            for _ in range(200):
                doors.enter_context(socket.create_connection(("127.0.0.1", int(ready[door]))))
        for queue in queues:
            working.put_in(queue, b"x")
            assert working.get(queue, no_ack=True) is not None
        assert refused(http.url, "connections") > 0


@contextmanager
def process(data_dir: Path, *prefix: str) -> Iterator[tuple[int, Http]]:
    with started(data_dir, *prefix) as ready:
        yield int(ready["amqp"]), Http(f"http://127.0.0.1:{ready['http']}")


@contextmanager
def started(data_dir: Path, *prefix: str, options: tuple[str, ...] = ()) -> Iterator[dict[str, str]]:
    """A broker in a process of its own, with as many files as it likes; nobody reads its log."""
    command = [*prefix, *KVITTO, "serve", "--data-dir", str(data_dir), "--port", "0", "--http-port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        ready = READY.match(process.stdout.readline())
        assert ready is not None
        yield ready.groupdict()
    finally:
        process.kill()
        process.communicate()


def test_a_handshake_that_never_ends_is_ended() -> None:
    """Limit HANDSHAKE_S: nothing, half a header, and a frame that comes byte by byte."""
    with broker(limits={"handshake_s": 0.2}) as running:
        slow = [Raw(running.port, login=False) for _ in range(3)]
        slow[1].send(PROTOCOL_HEADER[:4])
        slow[2].send(PROTOCOL_HEADER)
        slow[2].expect(m.ConnectionStart)
        slow[2].send(b"\1\0\0\0\0\1\0" + b"x" * 20)
        for each in slow:
            assert each.ended()
            each.drop()
        assert refused(running.http_url, "handshake") == 3
        with Raw(running.port):
            pass


def test_idle_http_connections_make_room_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit CONNECTIONS_MAX of the HTTP listener: the longest idle goes."""
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 10)
    with broker() as running:
        http = Http(running.http_url)
        idle = [socket.create_connection((http.host, http.port)) for _ in range(15)]
        assert refused(running.http_url, "http_connections") >= 5
        for each in idle:
            each.close()


def test_refused_logins_make_room_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit CONNECTIONS_MAX: who guesses passwords waits for the answer, but not in the way of others."""
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 10)
    monkeypatch.setattr(logins, "FREE", 0)
    monkeypatch.setattr(logins, "DELAY_S", 60)
    monkeypatch.setattr(logins, "DELAY_MAX_S", 60)
    guess = b"GET /api/whoami HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Z3Vlc3Q6eA==\r\n\r\n"
    with broker() as running:
        http = Http(running.http_url)
        guesses = [socket.create_connection((http.host, http.port)) for _ in range(15)]
        for each in guesses:
            with suppress(ConnectionError):
                each.sendall(guess)
        assert running._server is not None
        wait_until(lambda: running._server.logins.delayed >= 2)
        for _ in range(20):
            assert http.call("GET", "/healthz").status == 200
            assert http.call("GET", "/api/whoami").status == 200
        for each in guesses:
            each.close()


def test_refused_http_requests_are_counted() -> None:
    """Limits HTTP_HEAD_MAX, HTTP_DOCUMENT_MAX, HTTP_BODY_MAX."""
    with broker(limits={"http_document_max": 1024, "http_body_max": 3000}) as running:
        http = Http(running.http_url)
        assert http.call("PUT", "/api/vhosts/x", b"x" * 2000).status == 413
        publish = {"routing_key": "x", "payload": "x" * 2000}
        assert http.post("/api/exchanges/%2F/amq.default/publish", publish).status == 200
        publish["payload"] = "x" * 4000
        assert http.post("/api/exchanges/%2F/amq.default/publish", publish).status == 413
        assert http.call("GET", "/api/overview", headers={"X-Long": "x" * 2 * DEFAULTS.http_head_max}).status == 431
        assert (refused(http.url, "http_body"), refused(http.url, "http_head")) == (2, 1)


@pytest.mark.slow
def test_idle_connections_cost_others_nothing(tmp_path: Path) -> None:
    """Thousands of connections that say nothing more: publishes are confirmed as before, and memory is small."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < IDLE + 1000:
        pytest.skip(f"{IDLE} connections need {IDLE + 1000} open files here, the limit is {hard} (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with process(tmp_path) as (port, http):
            before = resident(http)
            idle = [Raw(port, heartbeat=0) for _ in range(IDLE)]
            with closing_all(idle), Raw(port) as working:
                working.channel(1, confirm=True)
                queue = working.declare(durable=True)
                times = []
                for _ in range(PROBES):
                    started = time.perf_counter()
                    working.publish(1, "", queue, b"x")
                    working.expect(m.BasicAck)
                    times.append(time.perf_counter() - started)
                each = (resident(http) - before) / IDLE
                p50, p99 = (sorted(times)[round(PROBES * share)] * 1000 for share in (0.5, 0.98))
                print(f"{IDLE} idle connections: {each:.0f} bytes each, confirms p50 {p50:.1f} ms, p99 {p99:.1f} ms")
                assert each < 64_000
                assert refused(http.url, "connections") == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def closing_all(clients: list[Raw]) -> Iterator[None]:
    try:
        yield
    finally:
        for each in clients:
            each.drop()


def resident(http: Http) -> float:
    text = http.call("GET", "/metrics").body.decode()
    found = re.search(r"^process_resident_memory_bytes (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])

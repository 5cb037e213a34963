"""The management API over TLS: the same answers, peers that are slow in a handshake hold up nobody, a renewed certificate is used."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import select
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import kvitto
from kvitto.base.config import Config, ConfigError
from tests.support.certificates import Authority, Pair
from tests.support.wait import wait_until

LOGIN = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode(), "Content-Type": "application/json"}
HANDSHAKE_S = 5.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> Pair:
    made = authority.sign("one", "/CN=one", "DNS:localhost,IP:127.0.0.1")
    copies = Pair(tmp_path / "cert.pem", tmp_path / "key.pem")
    shutil.copy(made.cert, copies.cert)
    shutil.copy(made.key, copies.key)
    return copies


@pytest.fixture
def broker(files: Pair, tmp_path: Path) -> Iterator[kvitto.Broker]:
    """With HTTPS alone."""
    made = kvitto.Broker(tmp_path / "data")
    settings: dict[str, Any] = {"port": 0, "http_port": None, "https_port": 0, "limits": {"handshake_s": HANDSHAKE_S}}
    made._config = Config(tls_cert=files.cert, tls_key=files.key, **settings)
    with made as running:
        yield running
        while Https.opened:
            Https.opened.pop().connection.close()


def port(broker: kvitto.Broker) -> int:
    assert broker._server is not None
    return broker._server.https_port


class Https:
    """One connection, which is kept."""

    opened: ClassVar[list[Https]] = []

    def __init__(self, broker: kvitto.Broker, authority: Authority) -> None:
        self.opened.append(self)
        trusted = ssl.create_default_context(cafile=str(authority.cert))
        self.connection = http.client.HTTPSConnection("127.0.0.1", port(broker), timeout=10, context=trusted)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        given = None if body is None else json.dumps(body).encode()
        self.connection.request(method, path, given, LOGIN)
        answer = self.connection.getresponse()
        data = answer.read()
        return answer.status, json.loads(data) if data else None

    def certificate(self) -> Any:
        if self.connection.sock is None:
            self.connection.connect()
        assert isinstance(self.connection.sock, ssl.SSLSocket)
        return self.connection.sock.getpeercert()


def test_the_answers_are_the_same(broker: kvitto.Broker, authority: Authority) -> None:
    api = Https(broker, authority)
    assert api.call("GET", "/api/whoami")[1]["name"] == "guest"
    assert api.call("PUT", "/api/queues/%2F/q", {"durable": True})[0] == 201
    payload = "x" * 3_000_000
    message = {"routing_key": "q", "payload": payload}
    assert api.call("POST", "/api/exchanges/%2F/amq.default/publish", message) == (200, {"routed": True})
    look = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert api.call("POST", "/api/queues/%2F/q/get", look)[1][0]["payload"] == payload
    assert api.call("GET", "/api/nowhere")[0] == 404
    listeners = {found["protocol"] for found in api.call("GET", "/api/overview")[1]["listeners"]}
    assert listeners == {"amqp", "https"}
    assert api.call("GET", "/api/health/checks/protocol-listener/https")[0] == 200
    assert api.call("GET", "/api/health/checks/certificate-expiration/1/weeks")[0] == 503


def test_peers_that_are_silent_in_a_handshake_hold_up_nobody(broker: kvitto.Broker, authority: Authority) -> None:
    silent = [socket.create_connection(("127.0.0.1", port(broker))) for _ in range(60)]
    for sock in silent[::2]:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a hello
    try:
        assert Https(broker, authority).call("GET", "/api/whoami")[0] == 200
        assert not select.select(silent, [], [], 0)[0], "the answer came while all of them had time left"
        for sock in silent:
            sock.settimeout(10 * HANDSHAKE_S)
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
    finally:
        for sock in silent:
            sock.close()


@pytest.mark.parametrize("noise", [b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00" * 100, b"AMQP\x00\x00\x09\x01"])
def test_who_speaks_no_tls_gets_no_answer(broker: kvitto.Broker, authority: Authority, noise: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port(broker)), timeout=10) as sock:
        sock.sendall(noise)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while data := sock.recv(1000):
                got += data
        assert b"HTTP" not in got
    assert Https(broker, authority).call("GET", "/api/whoami")[0] == 200


def test_old_versions_of_tls_are_refused(broker: kvitto.Broker) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="deprecated"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", port(broker)), timeout=10) as sock, pytest.raises(OSError):
        old.wrap_socket(sock)


def test_a_renewed_certificate_is_used_for_new_connections(
    broker: kvitto.Broker, authority: Authority, files: Pair
) -> None:
    before = Https(broker, authority)
    assert before.certificate()["subject"] == ((("commonName", "one"),),)
    renewed = authority.sign("two", "/CN=two", "DNS:localhost,IP:127.0.0.1")
    shutil.copy(renewed.cert, files.cert)
    shutil.copy(renewed.key, files.key)
    assert broker._server is not None and broker._loop is not None
    broker._loop.call_soon_threadsafe(broker._server.reload)
    wait_until(lambda: Https(broker, authority).certificate()["subject"] == ((("commonName", "two"),),))
    assert before.call("GET", "/api/whoami")[0] == 200


@pytest.mark.parametrize("more", [{}, {"tls_cert": Path("cert.pem")}])
def test_it_needs_a_certificate_and_a_key(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--https-port needs --tls-cert and --tls-key"):
        Config(https_port=0, **more)

"""Certificates of clients: SASL EXTERNAL, which of them are taken, and reading the files again without a restart."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvitto
from kvitto.server.tls import context, user_of
from kvitto.wire import methods as m
from kvitto.wire.spec import PROTOCOL_HEADER
from tests.cli.process import serving
from tests.protocol.raw import Raw
from tests.support.certificates import Authority, Pair
from tests.support.wait import wait_until


class Files:
    """What a broker with TLS is given, and clients of it."""

    def __init__(self, place: Path) -> None:
        self.authority = Authority(place / "ours")
        self.server = self.authority.sign("server", "/CN=localhost", "DNS:localhost,IP:127.0.0.1")
        self.app = self.authority.sign("app", "/O=Acme/OU=Shop, west/CN=app", "DNS:app.example,email:a@example.org")
        self.old = self.authority.sign("old", "/O=Acme/CN=app", days=0)
        self.nobody = self.authority.sign("nobody", "/CN=nobody")
        self.foreign = Authority(place / "theirs", "theirs").sign("foreign", "/O=Acme/OU=Shop, west/CN=app")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


class Tls(kvitto.Broker):
    """A broker in this process with a TLS listener."""

    def __init__(self, data: Path, cert: Path, key: Path, **settings: Any) -> None:
        super().__init__(data)
        self._config = replace(self._config, data_dir=data, tls_port=0, tls_cert=cert, tls_key=key, **settings)

    @property
    def tls_port(self) -> int:
        assert self._server is not None
        return self._server.tls_port

    def call(self, function: object, *arguments: object) -> None:
        """In the broker's loop."""

        async def run() -> None:
            function(*arguments)  # type: ignore[operator]

        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)


@pytest.fixture(scope="module")
def broker(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tls]:
    server = files.server
    with Tls(tmp_path_factory.mktemp("data"), server.cert, server.key, tls_ca=files.authority.cert) as broker:
        assert broker._server is not None
        users = broker._server.broker.users
        for name in ("app", r"CN=app,OU=Shop\, west,O=Acme", "app.example"):
            broker.call(users.add, name, None)
            broker.call(users.set_permission, name, "/", ".*", ".*", ".*")
        yield broker


class Client(Raw):
    """Over TLS, with or without a certificate; nothing is sent yet."""

    def __init__(self, port: int, authority: Path, shown: Pair | None, newest: ssl.TLSVersion | None = None) -> None:
        super().__init__(port, login=False)
        context = ssl.create_default_context(cafile=authority)
        if newest is not None:
            context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
            context.maximum_version = newest
            context.set_ciphers("ALL:@SECLEVEL=0")
        if shown is not None:
            context.load_cert_chain(shown.cert, shown.key)
        self._input.close()
        try:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        except BaseException:
            self.socket.close()
            raise
        self._input = self.socket.makefile("rb")

    def mechanisms(self) -> list[bytes]:
        self.send(PROTOCOL_HEADER)
        return self.expect(m.ConnectionStart).mechanisms.split()

    def external(self, response: bytes = b"") -> m.Method:
        """The answer to a login by certificate."""
        able: dict[str, Any] = {"capabilities": {"authentication_failure_close": True}}
        self.put(0, m.ConnectionStartOk(able, "EXTERNAL", response, "en_US"))
        return self.method()[1]

    def serial(self) -> str:
        assert isinstance(self.socket, ssl.SSLSocket)
        return str((self.socket.getpeercert() or {})["serialNumber"])


def message_does_not_fit(port: int, authority: Path, pair: Pair) -> bool:
    """Whether the broker ends the handshake; with TLS 1.3 a client knows only when it reads."""
    try:
        with Client(port, authority, pair) as client:
            client.mechanisms()
            return False
    except (ssl.SSLError, ConnectionError, AssertionError):
        return True


def test_a_certificate_is_a_login(files: Files, broker: Tls) -> None:
    """W1, W7: no password, and the user's rights from then on."""
    with Client(broker.tls_port, files.authority.cert, files.app) as client:
        assert client.mechanisms() == [b"PLAIN", b"AMQPLAIN", b"EXTERNAL"]
        assert isinstance(client.external(), m.ConnectionTune)
        client.put(0, m.ConnectionTuneOk(0, 0, 0))
        client.call(0, m.ConnectionOpen("/"), m.ConnectionOpenOk)
        client.channel(1)
        client.declare("mine")


def test_external_is_offered_and_taken_only_with_a_certificate(files: Files, broker: Tls) -> None:
    with Client(broker.tls_port, files.authority.cert, None) as client:
        assert client.mechanisms() == [b"PLAIN", b"AMQPLAIN"]
        refused = client.external(b"app")
        assert isinstance(refused, m.ConnectionClose) and "not offered to this connection" in refused.reply_text
    with Raw(broker.port, login=False) as plain:
        plain.send(PROTOCOL_HEADER)
        assert b"EXTERNAL" not in plain.expect(m.ConnectionStart).mechanisms
    with Client(broker.tls_port, files.authority.cert, None) as client:
        client.login()  # a password is still a login


@pytest.mark.parametrize("shown", ["foreign", "old"])
def test_a_certificate_that_is_not_of_our_authority_or_too_old_ends_the_handshake(
    files: Files, broker: Tls, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where a password would have been right. The log says why."""
    pair = getattr(files, shown)
    assert message_does_not_fit(broker.tls_port, files.authority.cert, pair)
    flaw = "certificate has expired" if shown == "old" else "unable to get local issuer certificate"
    assert wait_until(lambda: f"TLS handshake failed: certificate verify failed: {flaw}" in caplog.text)


def test_a_tls_handshake_that_never_ends_is_ended(
    files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Limit HANDSHAKE_S."""
    server = files.server
    with Tls(tmp_path, server.cert, server.key, limits={"handshake_s": 0.2}) as broker:
        with socket.create_connection(("127.0.0.1", broker.tls_port), 10) as silent:
            assert silent.recv(1) == b""
        assert broker._server is not None
        refused = broker._server.broker.refused
        wait_until(lambda: refused["handshake"] == 1)
    assert "no TLS handshake within 0.2 s" in caplog.text


def test_a_certificate_of_nobody_is_refused(files: Files, broker: Tls) -> None:
    """There is no user of that name; and the response may not name another one."""
    for pair, response in ((files.nobody, b""), (files.nobody, b"guest"), (files.app, b"guest")):
        with Client(broker.tls_port, files.authority.cert, pair) as client:
            client.mechanisms()
            refused = client.external(response)
            assert isinstance(refused, m.ConnectionClose) and refused.reply_code == 403


def test_a_user_without_password_has_no_password(broker: Tls) -> None:
    """W7: neither an empty one nor any other."""
    for password in ("", "app"):
        with Raw(broker.port, login=False) as raw:
            raw.send(PROTOCOL_HEADER)
            raw.expect(m.ConnectionStart)
            able: dict[str, Any] = {"capabilities": {"authentication_failure_close": True}}
            raw.put(0, m.ConnectionStartOk(able, "PLAIN", f"\0app\0{password}".encode(), "en_US"))
            assert raw.expect(m.ConnectionClose).reply_code == 403


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nothing_below_tls_1_2(files: Files, broker: Tls, newest: ssl.TLSVersion) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        Client(broker.tls_port, files.authority.cert, None, newest)


@pytest.mark.parametrize(
    ("login_from", "name"),
    [
        ("distinguished_name", r"CN=app,OU=Shop\, west,O=Acme"),
        ("common_name", "app"),
        ("subject_alternative_name", "app.example"),
    ],
)
def test_what_of_a_certificate_is_the_name(
    files: Files, tmp_path: Path, broker: Tls, login_from: str, name: str
) -> None:
    """As RabbitMQ's ssl_cert_login_from."""
    server = files.server
    with Tls(tmp_path, server.cert, server.key, tls_ca=files.authority.cert, tls_login_from=login_from) as broker:
        assert broker._server is not None
        users = broker._server.broker.users
        broker.call(users.add, name, None)
        broker.call(users.set_permission, name, "/", "", "", "")
        with Client(broker.tls_port, files.authority.cert, files.app) as client:
            client.mechanisms()
            assert isinstance(client.external(), m.ConnectionTune)


def test_a_name_is_unambiguous() -> None:
    """Nothing in a value can pass for another part, and of two names none is taken."""
    subject = ((("organizationName", "A,CN=root"),), (("commonName", " x+y#\\ "), ("userId", "#1 é")))
    assert user_of({"subject": subject}, "distinguished_name") == (r"CN=\ x\+y#\\\ +UID=\#1 \C3\A9,O=A\,CN=root")
    two = {"subject": ((("commonName", "a"),), (("commonName", "b"),)), "subjectAltName": (("DNS", "a"), ("DNS", "b"))}
    assert user_of(two, "common_name") is None
    assert user_of(two, "subject_alternative_name") is None
    assert user_of({}, "distinguished_name") is None
    assert user_of({"subjectAltName": (("IP Address", "127.0.0.1"),)}, "subject_alternative_name") is None


def test_files_are_read_again_on_sighup(files: Files, tmp_path: Path) -> None:
    """New connections get the new certificate and authorities, open ones stay; what cannot be used changes nothing and is said."""
    cert, key, ca = (tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem"))

    def put(pair: Pair, authority: Path) -> None:
        for source, target in ((pair.cert, cert), (pair.key, key), (authority, ca)):
            shutil.copy(source, target)

    later = Authority(tmp_path / "later", "later")
    second = later.sign("server", "/CN=localhost", "DNS:localhost")
    app = later.sign("app", "/CN=app")
    put(files.server, files.authority.cert)
    options = ("--tls-port", "0", "--tls-cert", str(cert), "--tls-key", str(key), "--tls-ca", str(ca))
    with serving(tmp_path / "data", *options) as server:
        port = int(server.ready["tls"])

        def serial(authority: Path) -> str | None:
            try:
                with Client(port, authority, None) as client:
                    return client.serial()
            except ssl.SSLCertVerificationError:
                return None

        with Client(port, files.authority.cert, None) as early:
            first = early.serial()
            early.login()
            cert.write_text("no PEM")
            os.kill(server.process.pid, signal.SIGHUP)
            assert serial(files.authority.cert) == first
            put(second, later.cert)
            os.kill(server.process.pid, signal.SIGHUP)
            assert wait_until(lambda: serial(later.cert) is not None)
            assert serial(files.authority.cert) is None
            early.channel(1)
        with Client(port, later.cert, app) as client:
            assert b"EXTERNAL" in client.mechanisms()
        assert message_does_not_fit(port, later.cert, files.app)
        code, _, err = server.stop()
    assert code == 0 and "Traceback" not in err
    assert f"--tls-cert {cert}: this is no certificate in PEM form; the old files stay in use" in err
    assert "read again" in err


def test_two_sighups_at_once_are_as_good_as_one(files: Files, tmp_path: Path) -> None:
    """One for the certificate, one for the key: the listener is there afterwards, and so it is for the next ones."""
    pairs = [files.server, *(files.authority.sign(name, "/CN=localhost", "DNS:localhost") for name in ("two", "three"))]
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(pair: Pair) -> None:
        shutil.copy(pair.cert, cert)
        shutil.copy(pair.key, key)

    put(pairs[0])
    serials = set()
    with Tls(tmp_path / "data", cert, key) as broker:
        assert broker._server is not None
        reload = broker._server.reload
        for pair in pairs:
            put(pair)
            broker.call(lambda: (reload(), reload()))
            with Client(broker.tls_port, files.authority.cert, None) as client:
                serials.add(client.serial())
    assert len(serials) == len(pairs)


def test_sighup_without_tls_is_no_end(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        os.kill(server.process.pid, signal.SIGHUP)
        with socket.create_connection(("127.0.0.1", int(server.ready["amqp"]))):
            code, _, err = server.stop()
    assert code == 0 and "there is no TLS listener" in err


def test_a_key_that_others_can_read_is_said(files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = tmp_path / "key.pem"
    shutil.copy(files.server.key, key)
    for mode, said in ((0o600, False), (0o640, True), (0o604, True)):
        caplog.clear()
        key.chmod(mode)
        context(files.server.cert, key)
        assert ("can be read by other users" in caplog.text) is said

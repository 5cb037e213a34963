"""How a node gets into etcd: TLS, certificates, users and rights, and what is said when it does not."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from kvitto.base.config import ConfigError
from kvitto.cluster.register import Document, NotAllowed, Seat, Unanswered
from kvitto.server import etcd as module
from kvitto.server.etcd import Access, Etcd
from tests.cli.process import kvitto
from tests.support.certificates import Authority
from tests.support.etcd import LOOPBACK, FakeEtcd, RealEtcd, real_etcd

FIRST = Document("c", 0, "", ("A",), 2)
SEAT = Seat("A", "p", "10.0.0.1:5690", "10.0.0.1:5672")


def secret(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


class Guarded:
    """An etcd that lets in those who have a certificate and a password, and what a node needs for that."""

    def __init__(self, place: Path) -> None:
        if real_etcd() is None:
            pytest.skip("needs Debian's etcd-server")
        self.place = place
        self.authority = Authority(place / "authority")
        self.etcd = RealEtcd(place, self.authority)
        self.etcd.add_users("test")
        node = self.authority.sign("node", "/O=kvitto")
        self.access = Access(self.authority.cert, node.cert, node.key, secret(place / "user", "node:node's\n"))

    def register(self, **other: Path | None) -> Etcd:
        return Etcd([self.etcd.url], "test", replace(self.access, **other))

    def user(self, text: str) -> Path:
        return secret(self.place / "another user", text)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    found = Guarded(tmp_path_factory.mktemp("guarded"))
    try:
        yield found
    finally:
        found.etcd.stop()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """etcd shares this machine with whatever else runs there."""
    monkeypatch.setattr(module, "CALL_S", 60.0)
    monkeypatch.setattr(module, "ENDPOINT_S", 30.0)


@pytest.fixture
def empty(guarded: Guarded) -> Guarded:
    guarded.etcd.control("del", "--prefix", "kvitto/", user="root:secret")
    return guarded


def test_all_calls_are_made_with_a_certificate_and_a_user(empty: Guarded) -> None:
    register = empty.register()
    assert register.create(FIRST)
    lease = register.grant(5)
    version = register.elect(FIRST.elected("A"), register.read().version, SEAT, lease, None)
    assert version is not None and register.renew(lease)
    assert register.change(FIRST.elected("A"), version) is not None
    register.revoke(lease)
    assert register.read().seat is None and not register.renew(lease)


def test_a_login_that_has_ended_is_made_again(empty: Guarded) -> None:
    register = empty.register()
    assert register.create(FIRST)
    empty.etcd.kill()
    empty.etcd.start()  # which forgets all logins
    seen = register.read()
    assert seen.document == FIRST
    register._token = "nobody's.1"
    assert register.change(FIRST.elected("A"), seen.version) is not None


@pytest.mark.parametrize(
    ("user", "says"),
    [
        (
            "node:wrong",
            r"etcd at 127\.0\.0\.1:\d+ does not take user and password of --etcd-user-file \S+another user: .*password",
        ),
        ("nobody:node's", "does not take user and password of --etcd-user-file"),
        ("other:other's", r"needs the right to read and write the keys kvitto/test/, `etcdctl role grant-permission"),
    ],
)
def test_a_user_who_is_not_let_in_is_told_why(empty: Guarded, user: str, says: str) -> None:
    register = empty.register(user_file=empty.user(user))
    for _ in range(2):
        with pytest.raises(NotAllowed, match=says):
            register.read()
    with pytest.raises(NotAllowed, match=says):
        register.create(FIRST)
    assert empty.register().read().document is None


def test_without_a_user_or_a_certificate_what_is_missing_is_said(empty: Guarded, tmp_path: Path) -> None:
    with pytest.raises(NotAllowed, match=r"wants a user .*: --etcd-user-file names one"):
        empty.register(user_file=None).read()
    named = empty.authority.sign("named", "/CN=node")
    with pytest.raises(NotAllowed, match="whose subject has no CN"):
        empty.register(cert=named.cert, key=named.key).read()
    stranger = Authority(tmp_path / "stranger")
    pair = stranger.sign("node", "/O=kvitto")
    for cert, key in ((None, None), (pair.cert, pair.key)):
        with pytest.raises(Unanswered, match="--etcd-cert"):
            empty.register(cert=cert, key=key).read()
    with pytest.raises(NotAllowed, match=r"is not accepted \(.*\): --etcd-ca has to have the authority that signed it"):
        empty.register(ca=stranger.cert).read()
    with pytest.raises(NotAllowed, match="is not accepted"):
        empty.register(ca=None).read()


def test_an_address_with_the_wrong_scheme_is_said_so(empty: Guarded) -> None:
    plain = empty.etcd.url.replace("https", "http")
    for known in (Access(), Access(user_file=empty.access.user_file)):
        with pytest.raises(Unanswered, match=r"is it https:// there\?"):
            Etcd([plain], "test", known).read()
    fake = FakeEtcd()
    try:
        with pytest.raises(NotAllowed, match=r"no TLS handshake \(.*\); is it http:// there\?"):
            Etcd([fake.url.replace("http", "https")], "test").read()
    finally:
        fake.stop()


def test_an_etcd_without_users_takes_those_who_have_a_password(tmp_path: Path) -> None:
    if real_etcd() is None:
        pytest.skip("needs Debian's etcd-server")
    etcd = RealEtcd(tmp_path)
    try:
        register = Etcd([etcd.url], "test", Access(user_file=secret(tmp_path / "user", "node:node's")))
        assert register.create(FIRST)
        etcd.add_users("test")
        assert register.read().document == FIRST
    finally:
        etcd.stop()


def test_commands_take_from_the_environment_how_they_get_in(empty: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    known = empty.access
    for name, path in (("CA", known.ca), ("CERT", known.cert), ("KEY", known.key), ("USER_FILE", known.user_file)):
        monkeypatch.setenv(f"KVITTO_ETCD_{name}", str(path))
    asked = ("cluster", "status", "--etcd", empty.etcd.url, "--cluster")
    shown = kvitto(*asked, "test")
    assert shown.returncode == 1 and "there is no cluster test in etcd" in shown.stderr
    other = kvitto(*asked, "other")
    assert other.returncode == 1 and "the right to read and write the keys kvitto/other/" in other.stderr
    wrong = kvitto(*asked, "test", "--etcd-ca", str(known.cert))
    assert wrong.returncode == 1 and "--etcd-ca has to have the authority that signed it" in wrong.stderr
    assert "Traceback" not in shown.stderr + other.stderr + wrong.stderr


def test_one_endpoint_that_is_not_trusted_does_not_keep_a_node_from_the_others(empty: Guarded, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger")
    pair = stranger.sign("etcd", "/CN=etcd", LOOPBACK)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    with Endpoint(lambda sock: shake_hands(context, sock)) as other:
        register = Etcd([f"https://{other.address}", empty.etcd.url], "test", empty.access)
        assert register.create(FIRST)
        assert other.count == 1
        assert register.read().document == FIRST
        assert other.count == 1, "it is asked last from now on"
        with pytest.raises(NotAllowed, match=f"certificate of etcd at {other.address} is not accepted"):
            Etcd([f"https://{other.address}"], "test", empty.access).read()


class Endpoint:
    """A listener that does something with each connection, in a thread."""

    def __init__(self, do: Callable[[socket.socket], None]) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.count = 0
        self._ended = False
        self._do = do
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Endpoint:
        self._thread.start()
        return self

    def _run(self) -> None:
        while True:
            sock, _ = self._listening.accept()
            with sock, suppress(OSError):
                if self._ended:
                    return
                self.count += 1
                self._do(sock)

    def __exit__(self, *_: object) -> None:
        self._ended = True
        host, port = self.address.split(":")
        socket.create_connection((host, int(port))).close()
        self._thread.join()
        self._listening.close()


def shake_hands(context: ssl.SSLContext, sock: socket.socket) -> None:
    with context.wrap_socket(sock, server_side=True):
        pass


def drip(sock: socket.socket) -> None:
    """Send one byte after the other, as often as the other side takes it: none of them comes too late."""
    sock.settimeout(0.02)
    while True:
        try:
            if not sock.recv(1 << 16):
                return
        except TimeoutError:
            sock.sendall(b"H")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_call_ends_in_time_however_slowly_bytes_come(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENDPOINT_S", 0.2)
    began = time.monotonic()
    with Endpoint(silent if scheme == "https" else drip) as endpoint, pytest.raises(Unanswered):
        Etcd([f"{scheme}://{endpoint.address}"], "test").read()
    assert endpoint.count == 1
    assert time.monotonic() - began >= 0.2


def silent(sock: socket.socket) -> None:
    """Take the first part of a handshake, and answer with half a record."""
    sock.recv(1 << 16)
    sock.sendall(b"\x16\x03\x03\x40\x00")
    while sock.recv(1 << 16):
        pass


def test_a_certificate_that_was_renewed_is_used_without_a_restart(empty: Guarded, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger").sign("node", "/CN=node")
    cert, key = tmp_path / "cert.pem", secret(tmp_path / "key.pem", "")
    cert.write_bytes(stranger.cert.read_bytes())
    key.write_bytes(stranger.key.read_bytes())
    register = empty.register(cert=cert, key=key)
    with pytest.raises(Unanswered):
        register.read()
    assert empty.access.cert is not None and empty.access.key is not None
    cert.write_bytes(empty.access.cert.read_bytes())
    with pytest.raises(Unanswered):
        register.read()  # certificate and key do not belong together: the old ones stay in use
    key.write_bytes(empty.access.key.read_bytes())
    assert register.read().document is None


def test_files_that_cannot_be_used_are_refused(guarded: Guarded, tmp_path: Path) -> None:
    access, https = guarded.access, ["https://127.0.0.1:1"]
    assert access.key is not None
    with pytest.raises(ConfigError, match="--etcd-cert and --etcd-key belong together"):
        Etcd(https, "test", Access(cert=access.cert))
    with pytest.raises(ConfigError, match="--etcd-ca needs an address of etcd with https://"):
        Etcd(["http://127.0.0.1:1"], "test", Access(ca=access.ca))
    with pytest.raises(ConfigError, match=r"--etcd-ca \S+none: No such file"):
        Etcd(https, "test", Access(ca=tmp_path / "none"))
    readable = tmp_path / "readable.pem"
    readable.write_bytes(access.key.read_bytes())
    readable.chmod(0o644)
    with pytest.raises(ConfigError, match=r"--etcd-key \S+ can be read by other users of this machine: chmod 600"):
        Etcd(https, "test", Access(cert=access.cert, key=readable))
    user = secret(tmp_path / "user", "no password\n")
    with pytest.raises(ConfigError, match="the first line must be USER:PASSWORD"):
        Etcd(https, "test", Access(user_file=user))
    user.chmod(0o640)
    with pytest.raises(ConfigError, match=r"--etcd-user-file \S+ can be read by other users"):
        Etcd(https, "test", Access(user_file=user))

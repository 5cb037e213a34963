"""TLS between a leader and its followers: what is encrypted, who is refused, and what each side says of it."""

from __future__ import annotations

import logging
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvitto
from kvitto.base.clock import SystemClock
from kvitto.base.config import Config, ConfigError
from kvitto.cli.following import connected, talk, why_ended
from kvitto.cluster.follower import Follower
from kvitto.cluster.handshake import MAGIC, Refused, read_key
from kvitto.cluster.link import LINKS_MAX
from kvitto.server import encrypted, follower_links
from kvitto.server.embedded import Broker
from kvitto.server.etcd import Access
from kvitto.server.node_tls import NodeTls, client_context, node_tls
from kvitto.store.disk import RealDisk
from tests.cluster.nodes import Cluster
from tests.cluster.test_elections import check
from tests.cluster.test_processes import files
from tests.crash.serve import STOP_S
from tests.http.api import Http
from tests.support.certificates import Authority, Pair
from tests.support.etcd import LOOPBACK, RealEtcd, real_etcd
from tests.support.wait import wait_until


class Place:
    """An authority, a key, and certificates of nodes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ours, self.other = Authority(path, "ours"), Authority(path, "other")
        self.leader = self.ours.sign("leader", "/O=leader", LOOPBACK)
        self.follower = self.ours.sign("follower", "/O=follower", LOOPBACK)
        self.key = path / "key"
        self.key.write_text("a key that both of them share\n")
        self.key.chmod(0o600)

    def tls(self, pair: Pair | None = None, ca: Path | None = None) -> NodeTls:
        pair = pair or self.follower
        return NodeTls(pair.cert, pair.key, ca or self.ours.cert)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("tls"))


class Leading:
    """A broker that accepts followers."""

    def __init__(self, place: Place, data: Path, pair: Pair | None) -> None:
        self.place = place
        tls = (pair.cert, pair.key, place.ours.cert) if pair is not None else (None, None, None)
        self.broker = Broker(data)
        self.broker._config = Config(
            data_dir=data,
            port=0,
            http_port=None,
            followers="127.0.0.1:0",
            cluster_key=place.key,
            cluster_tls_cert=tls[0],
            cluster_tls_key=tls[1],
            cluster_tls_ca=tls[2],
        )
        self.broker.start()
        assert self.broker._server is not None and self.broker._server.followers is not None
        self.followers = self.broker._server.followers

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.followers.port

    def follow(self, data: Path, tls: NodeTls | None, port: int = 0) -> str:
        """Follow until the connection ends, by another port if one is given. Return why it did. Raises Refused."""
        disk = RealDisk(str(data))
        disk.makedirs("")
        follower = Follower(disk, SystemClock(), read_key(self.place.key), "the leader", lambda _: None)
        try:
            with connected(("127.0.0.1", port or self.followers.port), 30, tls, 30) as sock:
                talk(follower, sock)
        except OSError as error:
            return why_ended(error)
        return "closed"


@pytest.fixture
def leader(place: Place, tmp_path: Path) -> Iterator[Leading]:
    found = Leading(place, tmp_path / "leader", place.leader)
    try:
        yield found
    finally:
        found.broker.stop()


@pytest.fixture
def plain(place: Place, tmp_path: Path) -> Iterator[Leading]:
    found = Leading(place, tmp_path / "leader", None)
    try:
        yield found
    finally:
        found.broker.stop()


class Tap:
    """Passes bytes between a follower and its leader, at most so many at a time, and keeps them."""

    def __init__(self, to: tuple[str, int], most: int = 1 << 16) -> None:
        self.seen = b""
        self._most = most
        self._to = to
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        theirs, _ = self._listening.accept()
        ours = socket.create_connection(self._to)
        with theirs, ours:
            other = threading.Thread(target=self._pass, args=(theirs, ours))
            other.start()
            self._pass(ours, theirs)
            other.join()

    def _pass(self, a: socket.socket, b: socket.socket) -> None:
        try:
            while data := a.recv(self._most):
                self.seen += data
                b.sendall(data)
            b.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def end(self) -> None:
        self._thread.join()
        self._listening.close()


def test_a_follower_has_all_and_nothing_of_it_can_be_read_on_the_way(
    leader: Leading, place: Place, tmp_path: Path
) -> None:
    """A message of several records of TLS, too."""
    tap = Tap(leader.address)
    with kvitto.connect_sync(leader.broker.url) as connection, connection.channel() as channel:
        channel.queue("secret-queue", durable=True)
        channel.publish(b"a secret" * 100_000, "secret-queue")
        following = threading.Thread(target=lambda: leader.follow(tmp_path / "follower", place.tls(), tap.port))
        following.start()
        channel.publish(b"another secret", "secret-queue")
        wait_until(
            lambda: [link for link in leader.followers.links if link.state == "following" and not link.lag_bytes],
            what="the follower has all",
        )
    leader.broker.stop()
    following.join()
    tap.end()
    assert files(tmp_path / "leader") == files(tmp_path / "follower")
    assert len(tap.seen) > 800_000
    assert b"secret" not in tap.seen and b"nonce" not in tap.seen


def test_a_handshake_may_come_byte_by_byte(leader: Leading, place: Place, tmp_path: Path) -> None:
    tap = Tap(leader.address, most=1)
    following = threading.Thread(target=lambda: leader.follow(tmp_path / "follower", place.tls(), tap.port))
    following.start()
    wait_until(lambda: [link for link in leader.followers.links if link.state == "following"])
    leader.broker.stop()
    following.join()
    tap.end()


def test_a_leader_and_a_follower_that_do_not_trust_each_other_say_why(
    leader: Leading, place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expired = place.ours.sign("expired", "/O=expired", LOOPBACK, days=-1)
    stranger = place.other.sign("stranger", "/O=stranger", LOOPBACK)
    data = tmp_path / "follower"
    own = "the leader does not accept this node's certificate ({}): --cluster-tls-cert has to be valid"
    theirs = "follower 127.0.0.1:"
    for tls, said, logged in (
        (place.tls(stranger), own.format("tlsv1 alert unknown ca"), "its certificate is not accepted (unable to get"),
        (
            place.tls(expired),
            own.format("sslv3 alert certificate expired"),
            "its certificate is not accepted (certificate has expired)",
        ),
        (
            place.tls(ca=place.other.cert),
            "the leader's certificate is not accepted (self-signed certificate in certificate chain)",
            "it does not accept this node's certificate (tlsv1 alert unknown ca)",
        ),
    ):
        caplog.clear()
        assert said in leader.follow(data, tls)
        wait_until(lambda: caplog.records, what="the leader says it too")
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage().startswith(theirs) and logged in record.getMessage()
    caplog.clear()
    context = client_context("--cluster-tls", place.ours.cert, None, None)
    with (
        socket.create_connection(leader.address) as sock,
        pytest.raises(ssl.SSLError),
        context.wrap_socket(sock, server_hostname="127.0.0.1") as encrypted_sock,
    ):
        encrypted_sock.recv(1)
    wait_until(lambda: "it has shown no certificate: a node needs --cluster-tls-cert" in caplog.text)


def test_the_name_of_the_leader_is_checked(place: Place, tmp_path: Path) -> None:
    elsewhere = place.ours.sign("elsewhere", "/O=elsewhere", "IP:10.0.0.1,DNS:elsewhere")
    leading = Leading(place, tmp_path / "leader", elsewhere)
    try:
        said = leading.follow(tmp_path / "follower", place.tls())
        assert "IP address mismatch" in said and "to have the leader's host among its names" in said
    finally:
        leading.broker.stop()


def test_a_follower_without_tls_is_told_by_a_leader_that_has_it(
    leader: Leading, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Refused, match="this leader speaks TLS only: start the follower with --cluster-tls-cert"):
        leader.follow(tmp_path / "follower", None)
    wait_until(lambda: "it does not speak TLS, and this leader does" in caplog.text)


def test_a_follower_with_tls_and_a_leader_without_it_both_say_so(
    plain: Leading, place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = plain.follow(tmp_path / "follower", place.tls())
    assert "no TLS handshake" in said and "--cluster-tls-cert has to be given on both sides, or on neither" in said
    wait_until(lambda: "the follower speaks TLS, and this leader does not" in caplog.text)


def test_who_begins_a_handshake_and_does_not_end_it_keeps_no_follower_out(
    leader: Leading, place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = [socket.create_connection(leader.address) for _ in range(LINKS_MAX + 4)]
    for number, sock in enumerate(half):
        sock.sendall((b"\x16\x03\x01\x02\x00", b"K", MAGIC[:4], b"")[number % 4])
    following = threading.Thread(target=lambda: leader.follow(tmp_path / "follower", place.tls()))
    following.start()
    try:
        wait_until(lambda: [link for link in leader.followers.links if link.state == "following"])
    finally:
        for sock in half:
            sock.close()
        leader.broker.stop()
        following.join()


def test_a_handshake_has_to_end_in_time(leader: Leading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_links, "HANDSHAKE_S", 0.1)
    for begin in (b"", b"\x16", b"\x16\x03\x01\x02\x00"):
        with socket.create_connection(leader.address) as sock:
            sock.sendall(begin)
            assert sock.recv(100) == b""


def test_a_leader_that_stands_still_in_a_handshake_is_given_up_in_time(place: Place) -> None:
    """A machine accepts connections for a process that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(OSError, match="no TLS handshake in time"):
        connected(silent.getsockname()[:2], 30, place.tls(), 0.1)


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x00\x09\x01", b"\x16" * 100, bytes(8), b"\x16\x03\x01\x00\x05hello"]
)
def test_what_is_neither_tls_nor_a_follower_is_not_answered_for_long(
    leader: Leading, sent: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(encrypted, "LINGER_S", 0.1)
    with socket.create_connection(leader.address) as sock:
        sock.sendall(sent)
        while sock.recv(1 << 16):
            pass
    wait_until(lambda: "neither TLS nor this protocol" in caplog.text or "no TLS handshake (" in caplog.text)
    assert "Traceback" not in caplog.text


def test_a_renewed_certificate_is_used_for_new_connections(place: Place, tmp_path: Path) -> None:
    old = place.ours.sign("old", "/O=old", LOOPBACK, days=-1)
    leading = Leading(place, tmp_path / "leader", old)
    try:
        assert "certificate has expired" in leading.follow(tmp_path / "follower", place.tls())
        old.key.write_bytes(place.leader.key.read_bytes())
        assert "certificate has expired" in leading.follow(tmp_path / "follower", place.tls()), "the old ones stay"
        old.cert.write_bytes(place.leader.cert.read_bytes())
        following = threading.Thread(target=lambda: leading.follow(tmp_path / "follower", place.tls()))
        following.start()
        wait_until(lambda: [link for link in leading.followers.links if link.state == "following"])
    finally:
        leading.broker.stop()
    following.join()


def test_the_shared_key_is_needed_beside_a_certificate(leader: Leading, place: Place, tmp_path: Path) -> None:
    other = tmp_path / "another key"
    other.write_text("another key, which is as long\n")
    other.chmod(0o600)
    leader.place = Place.__new__(Place)
    leader.place.key = other
    with pytest.raises(Refused, match="another key: --cluster-key has to be the same file"):
        leader.follow(tmp_path / "follower", place.tls())


def test_files_between_nodes_are_all_needed_and_keys_are_nobody_elses(place: Place, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--cluster-tls-ca is missing: TLS between nodes needs --cluster-tls-cert, "):
        Config(
            follow="127.0.0.1:1", cluster_key=place.key, cluster_tls_cert=place.leader.cert, cluster_tls_key=place.key
        )
    with pytest.raises(ConfigError, match="--cluster-tls-cert needs --followers or --follow"):
        Config(cluster_tls_cert=place.leader.cert)
    key = tmp_path / "key.pem"
    key.write_bytes(place.leader.key.read_bytes())
    key.chmod(0o640)
    config = Config(
        follow="127.0.0.1:1",
        cluster_key=place.key,
        cluster_tls_cert=place.leader.cert,
        cluster_tls_key=key,
        cluster_tls_ca=place.ours.cert,
    )
    with pytest.raises(ConfigError, match=r"--cluster-tls-key \S+ can be read by other users of this machine"):
        node_tls(config)


class Secured:
    """A cluster whose nodes show certificates to each other and to etcd, which has users."""

    def __init__(self, place: Place, tmp_path: Path) -> None:
        if real_etcd() is None:
            pytest.skip("needs Debian's etcd-server")
        self.etcd = RealEtcd(tmp_path, place.ours)
        self.etcd.add_users("kvitto")
        self.user = tmp_path / "user"
        self.user.touch(0o600)
        self.user.write_text("node:node's")
        pair = place.follower
        self.known = Access(place.ours.cert, pair.cert, pair.key, self.user)
        files = {"cert": pair.cert, "key": pair.key, "ca": place.ours.cert}
        self.options = [word for name, path in files.items() for word in (f"--cluster-tls-{name}", str(path))]
        self.cluster = Cluster(tmp_path, self.etcd, options=self.options, known=self.known)

    def end(self) -> None:
        self.cluster.end()
        self.etcd.stop()


@pytest.mark.slow
def test_a_cluster_with_encryption_everywhere_elects_loses_nothing_and_lets_nobody_in(
    place: Place, tmp_path: Path
) -> None:
    secured = Secured(place, tmp_path)
    cluster = secured.cluster
    try:
        cluster.wait_in_sync(3)
        with cluster.publisher() as publisher:
            publisher.more(200)
            leader = cluster.wait_for_leader()
            leader.kill()
            publisher.more(200)
            leader.start()
            cluster.wait_in_sync(3)
            secured.etcd.kill()  # it forgets all logins
            secured.etcd.start()
            leader = cluster.wait_for_leader()
            leader.signal(signal.SIGSTOP)
            cluster.wait_for_leader(other=leader)
            leader.signal(signal.SIGCONT)
            publisher.more(200)
            cluster.wait_in_sync(3)
        check(cluster, publisher.confirmed)
        status = cluster.command("status")
        assert status.returncode == 0 and "in sync   3:" in status.stdout
        # clients of any node, whose connections go on by the TLS between nodes
        body = bytes(range(256)) * 8000
        for node in cluster.nodes:
            with node.connect() as connection, connection.channel() as channel:
                queue = channel.queue("through", durable=True)
                channel.publish(body, "through")
                message = queue.get()
                assert message is not None and message.body == body
                message.ack()
            found = Http(f"http://127.0.0.1:{node.http}").call("GET", "/api/queues/%2F/through").json
            assert found["name"] == "through"
        # etcd takes another password from now on: who runs goes on trying, and who starts is refused
        leader = cluster.wait_for_leader()
        follower = next(node for node in cluster.nodes if node is not leader)
        assert follower.stop() == 0
        secured.user.write_text("node:wrong")
        follower.start()
        assert follower.process.wait(STOP_S) == 1
        assert "does not take user and password of --etcd-user-file" in follower.log().splitlines()[-1]
        refused = cluster.command("status")
        assert refused.returncode == 1 and "does not take user and password" in refused.stderr
        # a node that has the key and no certificate
        secured.user.write_text("node:node's")
        cluster.options = []
        follower.start()
        assert follower.process.wait(STOP_S) == 1
        assert "this leader speaks TLS only: start the follower with --cluster-tls-cert" in follower.log()
        cluster.options = secured.options
        follower.start()
        cluster.wait_in_sync(3)
    finally:
        secured.end()

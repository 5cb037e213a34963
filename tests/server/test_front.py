"""The listeners of a node that does not lead, with a leader that shows what it is sent: bytes, ends and pauses are passed on."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from kvitto.base import limits
from kvitto.base.config import Config, address
from kvitto.cluster import handshake
from kvitto.cluster.handshake import FOLLOWER, Inbox, Refused
from kvitto.cluster.passing import AMQP, HTTP, MAGIC, PASSING, Client, Elsewhere, Passed, Passing
from kvitto.cluster.records import StreamError
from kvitto.cluster.register import Document, Seat
from kvitto.cluster.standing import FOLLOWING, Standing
from kvitto.server import front as fronts
from kvitto.server import pairing
from kvitto.server.front import Front
from kvitto.server.front_http import SILENT_S, OwnAnswers
from kvitto.server.node_tls import NodeTls
from kvitto.server.pairing import BUFFER_BYTES, End, Pair, Side
from kvitto.server.passed import PassedOn
from tests.http.api import Http
from tests.support.certificates import Authority
from tests.support.etcd import LOOPBACK as NAMES
from tests.support.wait import TIMEOUT_S, wait_until

KEY, CLUSTER = b"k" * 32, "a cluster"
USERS = {"watcher": ["monitoring"], "worker": ["management"]}


class Taken:
    """A connection that the leader has taken over."""

    def __init__(self, service: str, sock: socket.socket, where: Any) -> None:
        self.service = service
        self.where = where
        self.sock = sock
        sock.settimeout(TIMEOUT_S)

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count and (more := self.sock.recv(count - len(data))):
            data += more
        return data


class FakeLeader:
    """Takes connections over as a leader does, and leaves the rest to the test."""

    def __init__(self, key: bytes = KEY, services: tuple[str, ...] = (AMQP, HTTP), tls: NodeTls | None = None) -> None:
        self.taken: list[Taken] = []
        self.refused: list[str] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._on = PassedOn(key, CLUSTER, tls)
        self._pairs = self._on._pairs
        for service in services:
            self._on.services[service] = self._taker(service)
        self._loop = asyncio.new_event_loop()
        self._listening = socket.create_server(("127.0.0.1", 0))
        host, port = self._listening.getsockname()
        self.seat = Seat("leader" * 5, handshake.nonce(), f"{host}:{port}", "127.0.0.1:5672", 1000, "old", "it ended")
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accepted, sock=self._listening), self._loop
        ).result(TIMEOUT_S)

    def _taker(self, service: str) -> Callable[[socket.socket, Any], None]:
        return lambda sock, where: self.taken.append(Taken(service, sock, where))

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            assert await reader.readexactly(len(MAGIC)) == MAGIC
            await self._on.take(reader, writer)
        except (Refused, StreamError, EOFError, OSError) as error:
            self.refused.append(str(error))
            writer.close()

    def next(self) -> Taken:
        """The next connection."""
        wait_until(lambda: bool(self.taken), what="a connection is passed on")
        return self.taken.pop(0)

    async def _end(self) -> None:
        """End what is served: with the loop gone its sockets would stay open."""
        self._server.close()
        serving = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        for pair in self._pairs:
            pair.end()
        await asyncio.sleep(0)  # the transports close their sockets in the next round
        while self._pairs:
            await asyncio.sleep(0)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._listening.close()
        self._loop.close()
        for taken in self.taken:
            taken.sock.close()


class World:
    """A node that follows a leader."""

    def __init__(self, place: Path, tls: NodeTls | None = None) -> None:
        self.leader = FakeLeader(tls=tls)
        document = Document(CLUSTER, 3, self.leader.seat.member, (self.leader.seat.member, "me"), 2)
        self.standing = Standing("kvitto", "me", document, self.leader.seat, FOLLOWING, 2000)
        self.config = Config(data_dir=place, host="127.0.0.1", port=0, http_port=0)
        own = OwnAnswers(limits.of(self.config.limits), lambda: self.standing)
        self.front = Front(self.config, KEY, own, tls)
        self.front.cluster = CLUSTER
        self.front.start()
        self.front.lead_by(self.leader.seat)
        self._socks: list[socket.socket] = []

    def connect(self, service: str = AMQP) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.front.ports[service]), TIMEOUT_S)
        self._socks.append(sock)
        return sock

    def pair(self) -> tuple[socket.socket, Taken]:
        """A client, and what stands for it at the leader."""
        client = self.connect()
        taken = self.leader.next()
        self._socks.append(taken.sock)
        assert taken.where == client.getsockname()
        return client, taken

    def http(self, user: str = "") -> Http:
        return Http(f"http://127.0.0.1:{self.front.ports[HTTP]}", user)

    def close(self) -> None:
        for sock in self._socks:
            sock.close()
        self.front.close()
        self.leader.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> NodeTls:
    """The TLS of nodes that are one another's."""
    return signed(tmp_path_factory.mktemp("tls"))


def signed(place: Path, name: str = "nodes") -> NodeTls:
    authority = Authority(place, name)
    pair = authority.sign("node", "/O=node", NAMES)
    return NodeTls(pair.cert, pair.key, authority.cert)


@pytest.fixture(params=["plain", "encrypted"])
def either(request: pytest.FixtureRequest, tmp_path: Path, nodes: NodeTls) -> Iterator[World]:
    """With TLS between nodes, and without."""
    found = World(tmp_path, nodes if request.param == "encrypted" else None)
    try:
        yield found
    finally:
        found.close()


def gone(sock: socket.socket) -> bool:
    """Whether the other side has closed or reset the connection; waits for that."""
    sock.settimeout(TIMEOUT_S)
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


# -- bytes -----------------------------------------------------------------------------------------------------------


def test_bytes_come_through_as_they_are_in_both_directions(either: World) -> None:
    client, taken = either.pair()
    data = bytes(range(256)) * 8000
    for sender, receive in ((client, taken.read), (taken.sock, Taken("", client, None).read)):
        threading.Thread(target=sender.sendall, args=(data,)).start()
        assert receive(len(data)) == data
    assert either.front.connections == 1


def test_one_side_may_end_and_the_other_one_go_on(world: World) -> None:
    client, taken = world.pair()
    client.sendall(b"all")
    client.shutdown(socket.SHUT_WR)
    assert taken.read(4) == b"all"  # and the end
    taken.sock.sendall(b"answer" * 1000)
    taken.sock.shutdown(socket.SHUT_WR)
    assert Taken("", client, None).read(6001) == b"answer" * 1000
    wait_until(lambda: not world.front.connections, what="nothing is left of it")


def test_a_client_that_does_not_read_holds_up_the_leader_and_no_memory(world: World) -> None:
    """The leader can send no more than buffers hold, and goes on when the client reads. Others do not notice."""
    client, taken = world.pair()
    taken.sock.setblocking(False)
    sent, piece = 0, b"x" * 65536
    idle = 0
    while idle < 5:
        try:
            sent += taken.sock.send(piece)
            idle = 0
        except BlockingIOError:
            idle += 1
            other, mate = world.pair()  # each needs rounds of the loop
            other.sendall(b"quick")
            assert mate.read(5) == b"quick"
    held = max(pair.client.transport.get_write_buffer_size() for pair in list(world.front._pairs))
    assert 0 < held <= BUFFER_BYTES
    taken.sock.settimeout(TIMEOUT_S)
    threading.Thread(target=taken.sock.sendall, args=(b"end",)).start()
    assert Taken("", client, None).read(sent + 3).endswith(b"xend")


class Kept:
    """A transport that closes when it is told to abort, and not before: its peer does not take what is left."""

    def __init__(self, end: End) -> None:
        self._end = end
        self.closed = False
        end.connection_made(cast(asyncio.Transport, self))

    pause_reading = set_write_buffer_limits = lambda *_: None

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        if not self._end.lost:
            asyncio.get_running_loop().call_soon(self._end.connection_lost, None)


@pytest.mark.parametrize("ends", ["the node", "a timer"])
def test_a_pair_exists_until_both_sides_are_gone(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends all pairs would otherwise leave a socket open."""
    if ends == "a timer":
        monkeypatch.setattr(pairing, "LINGER_S", 0.0)
    pairs: dict[Pair, None] = {}

    async def main() -> None:
        pair = Pair(pairs, memoryview(b""))
        pairs[pair] = None
        client, leader = Kept(pair.client), Kept(pair.leader)
        pair.leader.eof = True
        pair.leader.connection_lost(None)
        assert client.closed and not leader.closed and pair in pairs
        if ends == "the node":
            pair.end()
        while pairs:
            await asyncio.sleep(0)
        assert pair.client.lost

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))


@pytest.mark.parametrize("ends", ["the node", "a timer"])
def test_tls_that_a_silent_leader_does_not_end_is_ended(
    ends: str, nodes: NodeTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio waits for the leader's own end of TLS. Told twice to close, it would not even abort any more."""
    if ends == "a timer":
        monkeypatch.setattr(pairing, "LINGER_S", 0.0)
    pairs: dict[Pair, None] = {}

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            ours = socket.create_connection(listening.getsockname())
            theirs, _ = listening.accept()
        node, client = socket.socketpair()
        for sock in (ours, node):
            sock.setblocking(False)
        loop = asyncio.get_running_loop()
        shaken = loop.run_in_executor(None, lambda: nodes.leading.wrap_socket(theirs, server_side=True))
        pair = Pair(pairs, memoryview(bytearray(BUFFER_BYTES)))
        await pair.reach(Side(ours, nodes.following, "127.0.0.1"))
        await pair.begin(Side(node))
        leader = await shaken
        if ends == "the node":
            client.shutdown(socket.SHUT_WR)
            while not pair.leader.transport.is_closing():
                await asyncio.sleep(0)
        pair.client.transport.abort()  # as a reset does
        while not pair.client.lost:
            await asyncio.sleep(0)
        if ends == "the node":
            assert pair in pairs
            pair.end()
        while pairs:
            await asyncio.sleep(0)
        assert ours.fileno() == -1
        leader.close()
        client.close()

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))


def test_a_handshake_that_is_given_up_disturbs_no_other_connection(
    nodes: NodeTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later connection gets the number of the socket. asyncio must have forgotten it when the timer of the handshake runs."""
    monkeypatch.setattr(pairing, "HANDSHAKE_S", 0.01)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ours, silent = socket.socketpair()
        number = ours.fileno()
        pair = Pair({}, memoryview(bytearray(BUFFER_BYTES)))
        reaching = loop.create_task(pair.reach(Side(ours, nodes.following, "127.0.0.1")))
        silent.setblocking(False)
        assert await loop.sock_recv(silent, 1)  # the handshake has begun
        reaching.cancel()
        await asyncio.gather(reaching, return_exceptions=True)
        while ours.fileno() >= 0:
            await asyncio.sleep(0)
        pairs: list[tuple[socket.socket, socket.socket]] = []
        while not pairs or number not in (pairs[-1][0].fileno(), pairs[-1][1].fileno()):
            assert len(pairs) < 100, "lower numbers may be free, but not so many"
            pairs.append(socket.socketpair())
        one, other = sorted(pairs.pop(), key=lambda sock: sock.fileno() != number)
        reader, writer = await asyncio.open_connection(sock=one)
        await asyncio.sleep(pairing.HANDSHAKE_S)  # timers run in order, so that of the handshake has had its turn
        other.sendall(b"a")
        assert await asyncio.wait_for(reader.read(1), 10) == b"a"
        writer.close()
        await writer.wait_closed()
        for sock in (other, silent, *(sock for both in pairs for sock in both)):
            sock.close()

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))


def test_when_the_leader_resets_a_connection_its_client_is_closed(either: World) -> None:
    client, taken = either.pair()
    taken.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    taken.sock.close()
    assert gone(client)


def test_a_client_that_does_not_close_its_side_is_closed_at_last(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "LINGER_S", 0.0)
    client, taken = world.pair()
    taken.sock.shutdown(socket.SHUT_WR)
    assert gone(client)
    wait_until(lambda: not world.front.connections, what="nothing is left of it")
    assert gone(taken.sock)


def test_a_client_that_does_not_read_is_closed_at_last_when_the_leader_has_reset_its_side(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads the leader's side then, where that would be seen."""
    monkeypatch.setattr(pairing, "LOOK_S", 0.01)
    monkeypatch.setattr(pairing, "LINGER_S", 0.05)
    client, taken = world.pair()
    fill(taken.sock)
    assert world.front.connections == 1
    taken.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    taken.sock.close()
    wait_until(lambda: not world.front.connections, what="the client is closed")
    client.close()


def test_a_client_that_reads_late_gets_everything(either: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "LOOK_S", 0.01)
    monkeypatch.setattr(pairing, "LINGER_S", 0.05)
    client, taken = either.pair()
    count, got = fill(taken.sock), 0
    while got < count:
        got += len(client.recv(1 << 20))
    assert either.front.connections == 1
    taken.sock.close()
    assert gone(client)


def fill(sock: socket.socket) -> int:
    """Send until nothing more is taken for a while. Return the number of bytes."""
    sock.settimeout(0.2)
    count = 0
    with suppress(TimeoutError):
        while True:
            count += sock.send(bytes(1 << 16))
    return count


def test_connections_end_when_another_node_leads_and_new_ones_go_there(world: World) -> None:
    client, taken = world.pair()
    other = FakeLeader()
    try:
        world.front.lead_by(other.seat)
        assert gone(client) and gone(taken.sock)
        client = world.connect()
        client.sendall(b"hello")
        taken = other.next()
        assert taken.read(5) == b"hello"
        taken.sock.close()
        assert not world.leader.taken
    finally:
        other.close()


def test_closing_ends_everything_and_the_ports_are_free(either: World) -> None:
    client, taken = either.pair()
    begun = either.connect(HTTP)
    begun.sendall(b"GET /api/overview HT")
    port = either.front.ports[AMQP]
    either.front.close()
    assert gone(client) and gone(taken.sock) and gone(begun)
    sock = socket.create_server(("127.0.0.1", port))
    sock.close()
    either.front.lead_by(None)  # nobody listens any more
    either.front.close()


# -- TLS between nodes -------------------------------------------------------------------------------------------------


def test_with_tls_between_nodes_what_a_client_sends_cannot_be_read_on_its_way(tmp_path: Path, nodes: NodeTls) -> None:
    world = World(tmp_path, nodes)
    host, port = address(world.leader.seat.address)
    relay = Relay(host, port)
    try:
        world.front.lead_by(replace(world.leader.seat, address=relay.address))
        client, taken = world.pair()
        client.sendall(b"a password")
        assert taken.read(10) == b"a password"
        taken.sock.sendall(b"a message")
        assert Taken("", client, None).read(9) == b"a message"
        assert b"KVITPAS1" in relay.seen and b"a password" not in relay.seen and b"a message" not in relay.seen
        assert not isinstance(taken.sock, ssl.SSLSocket), "the certificate of a node is none of a client"
    finally:
        world.close()
        relay.close()


def test_with_tls_between_nodes_each_end_reaches_the_other_side(tmp_path: Path, nodes: NodeTls) -> None:
    world = World(tmp_path, nodes)
    try:
        client, taken = world.pair()
        client.sendall(b"bye")
        client.close()
        assert taken.read(4) == b"bye"
        client, taken = world.pair()
        taken.sock.sendall(b"bye")
        taken.sock.close()
        assert Taken("", client, None).read(4) == b"bye"
        client = world.connect(HTTP)
        client.sendall(b"GET /api/overview HTTP/1.1\r\nHost: x\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        taken = world.leader.next()
        assert taken.read(3) == b"GET"
        taken.sock.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        taken.sock.close()
        assert Taken("", client, None).read(1000).startswith(b"HTTP/1.1 204")
        client = world.connect(HTTP)
        client.sendall(b"GET /api/overview HTTP/1.1\r\nHost: x\r\n\r\n")
        taken = world.leader.next()
        assert taken.read(3) == b"GET"
        taken.sock.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 204")
        client.close()
        assert taken.read(1 << 20).endswith(b"\r\n\r\n"), "who has got an answer and closes is gone at once"
        taken.sock.close()
        wait_until(lambda: not world.front.connections, what="nothing is left of them")
    finally:
        world.close()


@pytest.mark.parametrize("leads", [True, False])
def test_nodes_that_do_not_agree_about_tls_say_so(leads: bool, tmp_path: Path, nodes: NodeTls) -> None:
    world, leader = World(tmp_path, None if leads else nodes), FakeLeader(tls=nodes if leads else None)
    try:
        world.front.lead_by(leader.seat)
        assert "--cluster-tls-cert on all nodes" in refused(world)
    finally:
        leader.close()
        world.close()


def test_a_leader_with_a_certificate_of_another_authority_gets_no_client(
    tmp_path: Path, nodes: NodeTls, caplog: pytest.LogCaptureFixture
) -> None:
    world, leader = World(tmp_path, signed(tmp_path, "other")), FakeLeader(tls=nodes)
    try:
        world.front.lead_by(leader.seat)
        assert "certificate is not accepted" in refused(world)
        assert caplog.text.count("clients are not passed on: the leader at") == 1, "and not once for each client"
        assert not leader.taken and not world.front.connections
    finally:
        leader.close()
        world.close()


def test_a_node_with_a_certificate_of_another_authority_passes_nobody_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    leads, passes = ours.sign("leader", "/O=leader", NAMES), other.sign("node", "/O=node", NAMES)
    leader = FakeLeader(tls=NodeTls(leads.cert, leads.key, ours.cert))
    world = World(tmp_path, NodeTls(passes.cert, passes.key, ours.cert))
    try:
        world.front.lead_by(leader.seat)
        assert gone(world.connect())
        wait_until(lambda: "its node is not accepted: its certificate" in caplog.text, what="the leader says why")
        assert not leader.taken
    finally:
        leader.close()
        world.close()


def test_a_client_that_nodes_encrypt_costs_little_memory(tmp_path: Path, nodes: NodeTls) -> None:
    """asyncio's own TLS takes 256 KiB for each end."""
    world = World(tmp_path, nodes)
    try:
        for _ in range(5):
            world.pair()
        before = resident()
        for _ in range(60):
            world.pair()
        assert (resident() - before) / 60 < 256 << 10, "both ends are in this process"
    finally:
        world.close()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Relay:
    """Stands between a node and the leader, and keeps all that goes through it."""

    def __init__(self, host: str, port: int) -> None:
        self.seen = b""
        self._far = host, port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._socks: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(self._far)
                self._socks += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                self.seen += data
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listening.close()
        for sock in self._socks:
            sock.close()


# -- nobody to pass them to --------------------------------------------------------------------------------------------


def refused(world: World) -> str:
    """A new AMQP connection is closed, and HTTP says why."""
    assert gone(world.connect())
    answer = world.http().call("GET", "/api/overview")
    assert answer.status == 503 and answer.headers["Retry-After"] == "1"
    return answer.reason


def test_without_a_leader_connections_are_refused_at_once(world: World) -> None:
    world.front.lead_by(None)
    assert "nobody leads" in refused(world)


def test_an_answer_to_head_has_no_body(world: World) -> None:
    world.front.lead_by(None)
    for path in (b"/api/overview", b"/healthz/live"):
        client = world.connect(HTTP)
        client.sendall(b"HEAD %s HTTP/1.1\r\nHost: x\r\n\r\n" % path)
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(partial(client.recv, 65536), b""))
        assert answer.startswith(b"HTTP/1.1 ") and answer.endswith(b"\r\n\r\n")


def test_a_leader_that_has_ended_refuses(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    world.front.lead_by(Seat("m", "p", f"127.0.0.1:{port}"))
    assert "cannot be reached" in refused(world)


def test_a_leader_that_stands_still_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fronts, "REACH_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        world.front.lead_by(Seat("m", "p", f"127.0.0.1:{listening.getsockname()[1]}"))
        assert "does not answer" in refused(world)


def test_a_leader_with_another_key_gets_no_byte_of_a_client(world: World) -> None:
    other = FakeLeader(key=b"another")
    try:
        world.front.lead_by(other.seat)
        assert "another key" in refused(world)
        assert not other.taken
    finally:
        other.close()


def test_a_service_that_the_leader_does_not_have_is_refused_with_words(world: World) -> None:
    other = FakeLeader(services=(AMQP,))
    starting = FakeLeader(services=())
    try:
        world.front.lead_by(other.seat)
        assert "does not listen for http" in world.http().call("GET", "/api/overview").reason
        world.front.lead_by(starting.seat)
        assert "does not serve clients now" in refused(world)
    finally:
        other.close()
        starting.close()


def test_clients_beyond_the_descriptors_are_closed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.pair()
    monkeypatch.setattr(fronts, "open_files_max", lambda: 2)
    monkeypatch.setattr(fronts, "files_reserve", lambda: 0)
    assert gone(world.connect())
    assert world.front.refused == 1


def test_clients_of_amqp_leave_room_for_those_who_ask_how_the_node_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.pair()
    monkeypatch.setattr(fronts, "open_files_max", lambda: 2 * fronts.OWN_ANSWERS)
    monkeypatch.setattr(fronts, "files_reserve", lambda: 0)
    assert gone(world.connect())
    assert world.http().call("GET", "/healthz/live").status == 200


# -- who may pass connections on ---------------------------------------------------------------------------------------


def told(leader: FakeLeader, *messages: bytes | Callable[[dict[str, Any]], bytes]) -> str:
    """What a leader answers to somebody who says this behind the magic."""
    host, port = leader.seat.address.split(":")
    inbox = Inbox()
    with socket.create_connection((host, int(port)), TIMEOUT_S) as sock:
        sock.sendall(MAGIC)
        found: dict[str, Any] = {}
        for message in messages:
            sock.sendall(message if isinstance(message, bytes) else message(found))
            while True:
                try:
                    next_ = inbox.next()
                except Refused as error:
                    return str(error)
                if next_ is not None:
                    found = next_
                    break
                data = sock.recv(65536)
                if not data:
                    return "closed"
                inbox.feed(data)
        return "passed" if found.get("passed") else "?"


LOOPBACK = Client(AMQP, Elsewhere("127.0.0.1", 7))


def test_an_address_without_the_key_is_not_believed(world: World) -> None:
    forger = Passing(b"guessed", CLUSTER, LOOPBACK)

    def names(greeting: dict[str, Any]) -> bytes:
        said = {"cluster": CLUSTER, "service": AMQP, "host": "127.0.0.1", "port": 7}
        return handshake.proved(b"guessed", PASSING, forger._nonce, greeting["nonce"], said)

    assert "another key" in told(world.leader, forger.hello()[len(MAGIC) :], names)
    assert not world.leader.taken


def test_what_an_honest_node_has_said_is_of_no_use_a_second_time(world: World) -> None:
    """The nonce of the leader is another one."""
    honest = Passing(KEY, CLUSTER, LOOPBACK)
    said: list[bytes] = []

    def names(greeting: dict[str, Any]) -> bytes:
        said.append(honest.names(greeting))
        return said[0]

    hello = honest.hello()[len(MAGIC) :]
    assert told(world.leader, hello, names) == "passed"
    taken = world.leader.next()
    assert taken.where == ("127.0.0.1", 7)
    taken.sock.close()
    assert "another key" in told(world.leader, hello, said[0])
    assert not world.leader.taken


def test_an_address_that_was_changed_on_its_way_is_not_believed(world: World) -> None:
    honest = Passing(KEY, CLUSTER, Client(AMQP, Elsewhere("203.0.113.7", 7)))

    def names(greeting: dict[str, Any]) -> bytes:
        return honest.names(greeting).replace(b"203.0.113.7", b"127.0.0.001")

    assert "another key" in told(world.leader, honest.hello()[len(MAGIC) :], names)
    assert not world.leader.taken


def test_the_proof_of_a_follower_is_none_of_a_node_that_passes_clients_on(world: World) -> None:
    nonce = handshake.nonce()

    def names(greeting: dict[str, Any]) -> bytes:
        said = {"cluster": CLUSTER, "service": AMQP, "host": "127.0.0.1", "port": 7}
        return handshake.proved(KEY, FOLLOWER, nonce, greeting["nonce"], said)

    assert "another key" in told(world.leader, handshake.message(version=1, nonce=nonce), names)
    assert not world.leader.taken


def test_a_node_of_another_cluster_is_refused(world: World) -> None:
    other = Passing(KEY, "another cluster", LOOPBACK)
    assert "another cluster" in told(world.leader, other.hello()[len(MAGIC) :], other.names)
    assert not world.leader.taken


@pytest.mark.parametrize(
    "said",
    [
        {"service": "smtp", "host": "127.0.0.1", "port": 7},
        {"service": AMQP, "host": 7, "port": 7},
        {"service": AMQP, "host": "1" * 200, "port": 7},
        {"service": AMQP, "host": "127.0.0.1", "port": 70000},
        {"service": AMQP, "host": "127.0.0.1"},
    ],
)
def test_what_is_no_client_is_refused(said: dict[str, Any]) -> None:
    passed = Passed(KEY, CLUSTER)
    nonce = handshake.nonce()
    passed.greet({"version": 1, "nonce": nonce})
    said = {"cluster": CLUSTER, **said}
    proof = handshake.proof(KEY, PASSING, nonce, passed._nonce, said)
    with pytest.raises(StreamError):
        passed.client({**said, "proof": proof})


@pytest.mark.parametrize("message", [b"\xff\xff\xff\xff", b"\x02\0\0\0[]", b"\x03\0\0\0{}}"])
def test_a_message_that_is_none_ends_the_connection(world: World, message: bytes) -> None:
    assert told(world.leader, message) == "closed"
    assert not world.leader.taken


# -- what the node answers itself --------------------------------------------------------------------------------------


def test_the_node_says_itself_how_it_is(world: World) -> None:
    http = world.http()
    assert [http.call("GET", f"/healthz{path}").status for path in ("", "/live", "/ready", "/leader")] == [
        200,
        200,
        200,
        503,
    ]
    assert http.call("GET", "/healthz/leader").json["reason"] == "this node follows, kvitto@leaderle leads"
    assert http.call("HEAD", "/healthz").body == b""
    assert http.call("POST", "/healthz").status == 405
    world.front.lead_by(None)
    world.standing = Standing("kvitto", "me", why="waiting for others")
    assert [http.call("GET", f"/healthz{path}").status for path in ("", "/live", "/ready", "/leader")] == [
        503,
        200,
        503,
        503,
    ]
    assert "nobody leads" in http.call("GET", "/healthz/ready").json["reason"]
    assert not world.leader.taken


@pytest.mark.parametrize(("silent_s", "status"), [(0.0, 200), (SILENT_S - 0.01, 200), (SILENT_S, 503), (3600.0, 503)])
def test_a_node_whose_leader_is_silent_is_not_ready(world: World, silent_s: float, status: int) -> None:
    world.standing = replace(world.standing, silent_s=silent_s)
    answer = world.http().call("GET", "/healthz/ready")
    assert answer.status == status
    if status != 200:
        assert f"nothing has come from kvitto@leaderle, which leads, for {silent_s:.1f} s" in answer.json["reason"]
    assert world.http().call("GET", "/healthz").status == 200, "the node itself does all that it should"


def test_the_cluster_as_the_node_sees_it(world: World) -> None:
    found = world.http().get("/api/cluster")
    leader = world.leader.seat.member
    assert (found["epoch"], found["leads"], found["leader"]["member"], found["minimum"]) == (3, False, leader, 2)
    assert found["last_failover"] == {"at_ms": 1000, "before": "old", "why": "it ended"}
    assert {node["member"]: (node["state"], node["in_sync"]) for node in found["nodes"]} == {
        "me": ("following", True),
        leader: ("leading", True),
    }


def test_the_metrics_of_a_node_that_does_not_lead(world: World) -> None:
    world.pair()
    lines = world.http().call("GET", "/metrics").body.decode().splitlines()
    found = {"kvitto_cluster_is_leader 0", "kvitto_cluster_epoch 3", "kvitto_cluster_members 2"}
    found |= {"kvitto_cluster_following 1", "kvitto_cluster_connections_passed 1"}
    assert found <= set(lines)
    for path in ("/metrics?prefix=rabbitmq", "/metrics/per-object", "/metrics/detailed?family=queue_metrics"):
        answer = world.http().call("GET", path)
        assert answer.status == 200 and answer.body.startswith(b"# ")


def test_other_requests_are_the_leaders_with_all_their_bytes(either: World) -> None:
    sent = b"PUT /api/queues/%2F/q HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    malformed = b"\x16\x03\x01 no HTTP\r\n\r\n"
    for data in (sent, malformed):
        client = either.connect(HTTP)
        for at in range(0, len(data), 7):
            client.sendall(data[at : at + 7])
        taken = either.leader.next()
        assert taken.service == HTTP and taken.where == client.getsockname()
        assert taken.read(len(data)) == data
        taken.sock.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        assert Taken("", client, None).read(23) == b"HTTP/1.1 204 No Content"
        taken.sock.close()


def test_a_client_that_says_nothing_is_closed(world: World) -> None:
    object.__setattr__(world.front._own, "_limits", limits.of({"handshake_s": 0.1}))
    assert gone(world.connect(HTTP))


# -- logins from other machines ----------------------------------------------------------------------------------------


def answer_whoami(leader: FakeLeader, ended: threading.Event) -> None:
    """Answer as a leader does that knows USERS."""
    while not ended.is_set():
        with suppress(AssertionError, OSError):
            taken = leader.taken.pop(0) if leader.taken else None
            if taken is None:
                ended.wait(0.001)
                continue
            data = b""
            while b"\r\n\r\n" not in data:
                data += taken.sock.recv(65536)
            assert data.startswith(b"GET /api/whoami HTTP/1.1\r\n")
            found = next(
                (name for name in USERS if Http("http://h:1", name).headers["Authorization"].encode() in data), ""
            )
            body = b'{"tags": ["%s"]}' % USERS[found][0].encode() if found else b"{}"
            status = b"200 OK" if found else b"401 Unauthorized"
            taken.sock.sendall(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))
            taken.sock.close()


def test_who_asks_from_another_machine_has_to_log_in_at_the_leader(
    either: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvitto.server.front_http.is_loopback", lambda _where: False)
    ended = threading.Event()
    thread = threading.Thread(target=answer_whoami, args=(either.leader, ended))
    thread.start()
    try:
        for path in ("/metrics", "/api/cluster"):
            assert either.http().call("GET", path).status == 401
            assert either.http("nobody").call("GET", path).status == 401
            assert either.http("worker").call("GET", path).status == 401
            assert either.http("watcher").call("GET", path).status == 200
        assert either.http().call("GET", "/healthz").status == 200
        either.front.lead_by(None)
        # who was known may still look
        assert either.http("watcher").call("GET", "/metrics").status == 200
        assert either.http("worker").call("GET", "/metrics").status == 503
        assert either.http().call("GET", "/metrics").status == 401
    finally:
        ended.set()
        thread.join()

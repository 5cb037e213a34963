"""What peers do with their sockets: bytes that wait in OpenSSL, sockets that are half closed or broken, and times far away."""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from selectors import EVENT_READ

import pytest

import kvitto
from kvitto.base import ticks
from kvitto.protocol.connection import HEARTBEAT
from kvitto.protocol.states import CLOSED
from kvitto.server.pacing import Pacing
from kvitto.server.poller import Poller
from kvitto.server.served import Served
from kvitto.server.server import Server
from kvitto.wire import methods as m
from kvitto.wire.buf import Buf
from kvitto.wire.methods import decode
from tests.protocol.raw import Raw, content
from tests.server.test_client_certificates import Client, Tls
from tests.support.certificates import Authority
from tests.support.wait import TIMEOUT_S, wait_until


class ProtocolHarness:
    """A broker with a TLS listener, and what a test does to it."""

    def __init__(self, broker: Tls, authority: Path) -> None:
        self.broker = broker
        self._authority = authority
        assert broker._server is not None
        self.server: Server = broker._server

    def client(self) -> Client:
        """A client over TLS that has logged in."""
        client = Client(self.broker.tls_port, self._authority, None)
        client.login()
        return client

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While this lasts, the broker's loop is busy: all that a peer sends meanwhile is there at once behind it."""
        begun, over = threading.Event(), threading.Event()

        def wait() -> None:
            begun.set()
            assert over.wait(TIMEOUT_S)

        assert self.broker._loop is not None
        self.broker._loop.call_soon_threadsafe(wait)
        assert begun.wait(TIMEOUT_S)
        try:
            yield
        finally:
            over.set()

    def peers(self) -> int:
        """The number of connections."""
        return len(self.server.hub.connections)


class Eager(Pacing):
    """Pauses each fast publisher."""

    def over_budget(self, unsynced: int, now: float) -> bool:
        return bool(self.fast)


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProtocolHarness]:
    authority = Authority(tmp_path_factory.mktemp("tls"))
    pair = authority.sign("server", "/CN=localhost", "DNS:localhost,IP:127.0.0.1")
    with Tls(tmp_path_factory.mktemp("data"), pair.cert, pair.key) as broker:
        yield ProtocolHarness(broker, authority.cert)


def test_input_that_waits_in_openssl_is_read_when_its_connection_may_go_on(
    harness: ProtocolHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fast publisher was paused when a read had ended inside of a record. The socket had no more, so the rest was never read."""
    monkeypatch.setattr(harness.server, "inbox", Buf(20_000))
    monkeypatch.setattr(harness.server, "pacing", Eager())
    with harness.client() as client:
        client.channel(confirm=True)
        client.declare("records", auto_delete=True)
        messages = 30
        with harness.busy():
            client.send(content(1, m.BasicPublish("", "records"), b"\0\0", bytes(1000), client.frame_max) * messages)
        confirmed = 0
        while confirmed < messages:
            confirmed = client.expect(m.BasicAck).delivery_tag


def test_a_broken_record_behind_a_good_one_ends_the_connection(harness: ProtocolHarness) -> None:
    """The good one was handled, and the socket said nothing of the broken one again."""
    client = harness.client()
    peers = harness.peers()
    assert isinstance(client.socket, ssl.SSLSocket)
    plain = socket.socket(fileno=os.dup(client.socket.fileno()))
    with client, plain:
        with harness.busy():
            client.send(HEARTBEAT)
            plain.sendall(b"\x17\x03\x03\x00\x40" + bytes(64))  # application data with a wrong checksum
        wait_until(lambda: harness.peers() < peers)


def test_a_peer_that_half_closes_behind_its_close_gets_all_that_waits_for_it() -> None:
    """It reads what waits, and our CloseOk behind that. The end of its input ended the output too."""
    with kvitto.Broker() as broker:
        server = broker._server
        assert server is not None
        for listening in server._acceptors[0]._sockets:  # a connection takes this over
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        with Raw(broker.port) as client:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            client.channel()
            client.declare("backlog")
            client.call(1, m.BasicConsume("backlog", "", False, True), m.BasicConsumeOk)
            for _ in range(20):
                client.publish(1, "", "backlog", bytes(100_000))
            (connection,) = server.hub.connections
            wait_until(lambda: connection.output.paused, what="output that waits")
            client.put(0, m.ConnectionClose(200, "", 0, 0))
            client.socket.shutdown(socket.SHUT_WR)
            wait_until(lambda: connection.state == CLOSED, what="our side of the close")
            last = b""
            while (frame := client.frame()) is not None:
                last = frame[2]
            assert isinstance(decode(last), m.ConnectionCloseOk)
        wait_until(lambda: not server.hub.connections, what="the end of the connection")


def test_a_peer_that_raises_takes_no_turn_from_the_others() -> None:
    """Nothing but an error of ours or a want of memory does: what asks for a turn afterwards has to schedule it again."""
    poller = Poller()
    turns: list[bool] = []
    poller.turn = lambda: turns.append(poller.rounds.serving)
    ours, theirs = socket.socketpair()

    class Broken(Served):
        def ready(self, events: int) -> None:
            raise MemoryError

    with ours, theirs:
        poller.watch(ours.fileno(), Broken(), 0, EVENT_READ)
        theirs.send(b"x")
        with pytest.raises(MemoryError):
            poller.select(1)
        poller.watch(ours.fileno(), Broken(), EVENT_READ, 0)
    assert turns == [False] and not poller.rounds.serving
    poller.close()


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_round_ends_when_something_is_due(timeout: float | None) -> None:
    """It is not early, and what it asks for is done behind it, as with input of peers."""
    poller, rounds = Poller(), list[bool]()
    poller.rounds.on_due = lambda: rounds.append(poller.rounds.serving)
    poller.turn = lambda: rounds.append(poller.rounds.serving)
    poller.rounds.due = due = ticks.seconds() + 0.0003
    assert poller.round(timeout)
    assert ticks.seconds() >= due and rounds == [True, False]
    assert poller.rounds.due == 0.0 and not poller.round(0)
    poller.close()


needs_epoll = pytest.mark.skipif(not hasattr(select, "epoll"), reason="without epoll a round waits once")


class Passing(Served):
    """Reads a byte, and sends one to each of the next sockets."""

    def __init__(self, order: list[str], name: str, ours: socket.socket, following: tuple[socket.socket, ...]) -> None:
        self.order, self.name, self.ours, self.following = order, name, ours, following

    def ready(self, events: int) -> None:
        self.order.append(self.name)
        self.ours.recv(1)
        for end in self.following:
            end.send(b"x")


@needs_epoll
def test_a_round_looks_for_input_of_further_peers_before_its_turn() -> None:
    """What has come while a peer was served is served by the same round, but none is served twice in it."""
    poller, order = Poller(), list[str]()
    poller.turn = lambda: order.append("turn")
    first, second = socket.socketpair(), socket.socketpair()
    with first[0], first[1], second[0], second[1]:
        one, other = Passing(order, "one", first[0], (second[1],)), Passing(order, "other", second[0], (first[1],))
        poller.watch(first[0].fileno(), one, 0, EVENT_READ)
        poller.watch(second[0].fileno(), other, 0, EVENT_READ)
        first[1].send(b"x")
        while order not in (["one", "other", "turn"], ["other", "one", "turn"]):
            # a machine that is busy for 0.1 ms ends the round
            assert order in ([], ["one", "turn"], ["other", "turn"])
            order.clear()
            assert poller.round(None)
        poller.watch(first[0].fileno(), one, EVENT_READ, 0)
        poller.watch(second[0].fileno(), other, EVENT_READ, 0)
    poller.close()


@needs_epoll
def test_a_round_looks_for_no_more_input_once_asyncio_has_some() -> None:
    """A file of asyncio's that is ready would be found once more each time."""
    poller, order = Poller(), list[str]()
    first, second, third = socket.socketpair(), socket.socketpair(), socket.socketpair()
    with first[0], first[1], second[0], second[1], third[0], third[1]:
        one = Passing(order, "one", first[0], (second[1], third[1]))
        other = Passing(order, "other", second[0], ())
        poller.watch(first[0].fileno(), one, 0, EVENT_READ)
        poller.watch(second[0].fileno(), other, 0, EVENT_READ)
        poller.register(third[0], EVENT_READ)
        while order != ["one", "other"]:
            while order.count("one") > order.count("other"):  # the round has ended early
                assert poller.round(None)
            order.clear()
            poller.rounds.found.clear()
            if select.select([third[0]], [], [], 0)[0]:
                third[0].recv(1)
            first[1].send(b"x")
            assert poller.round(None)
        assert [key.fileobj for key, _ in poller.rounds.found] == [third[0]]
        poller.watch(first[0].fileno(), one, EVENT_READ, 0)
        poller.watch(second[0].fileno(), other, EVENT_READ, 0)
    poller.close()


def test_peers_wait_while_asyncio_has_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An HTTP request takes several rounds of asyncio: peers that always have input must not be served in each of them."""
    monkeypatch.setattr("kvitto.server.poller.SHARE_S", 1e9)
    poller, served = Poller(), list[int]()

    class Flooding(Served):
        def ready(self, events: int) -> None:
            served.append(events)

    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()
    with ours, theirs:
        theirs.send(b"x")
        poller.watch(ours.fileno(), Flooding(), 0, EVENT_READ)
        poller.register(reader, EVENT_READ)
        assert poller.select(0) == [] and len(served) == 1
        os.write(writer, b"x")
        found = poller.select(0)  # asyncio has callbacks: its own files are looked at, the peer is not served
        assert [key.fd for key, _ in found] == [reader] and len(served) == 1
        poller.select(1)  # it has none
        assert len(served) == 2
        poller.watch(ours.fileno(), Flooding(), EVENT_READ, 0)
    poller.close()
    os.close(reader)
    os.close(writer)

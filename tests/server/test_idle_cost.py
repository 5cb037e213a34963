"""What connections cost that are there and do nothing, and what is left of those that have ended."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import sys
import weakref
from asyncio import selector_events
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvitto
from kvitto.protocol.connection import Connection
from kvitto.server import acceptor as module
from kvitto.server import garbage
from kvitto.server.acceptor import Acceptor
from kvitto.server.peer import Peer
from kvitto.wire import methods as m
from kvitto.wire.spec import PROTOCOL_HEADER
from tests.protocol import sessions
from tests.protocol.raw import Raw
from tests.protocol.sansio import ProtocolHarness
from tests.protocol.test_limits import ask
from tests.support.certificates import Authority
from tests.support.wait import wait_until


@pytest.fixture
def unbound(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `kvitto serve` has it, for this test."""
    kind = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    monkeypatch.setattr(kind, "_read_ready_cb", None, raising=False)
    monkeypatch.setattr(kind, "_read_ready", kind._read_ready)
    garbage.unbind_transports()


def test_a_connection_that_has_ended_is_no_garbage_in_a_cycle() -> None:
    """A look for such garbage takes long where there are many objects, so nothing may need it."""
    harness = ProtocolHarness()
    with garbage.put_off():
        wire = harness.wire()
        ask(wire, m.QueueDeclare("a"), m.BasicQos(0, 1, True), m.BasicConsume("a", "c"))
        ask(wire, m.ChannelOpen(), channel=2)
        ask(wire, m.TxSelect(), m.BasicConsume("a", "d"), channel=2)
        wire.feed(sessions.content(1, m.BasicPublish("", "a"), b"\0\0", b"x") * 5)
        harness.settle_down()
        gone = [weakref.ref(wire.connection)]
        parts = [wire.connection.output, *wire.connection.channels.values()]
        wire.connection.lost()
        harness.settle_down()
        del wire.connection, parts
        assert gone[0]() is None


def test_connections_with_sockets_leave_nothing_behind(unbound: None) -> None:
    """Neither do the socket's sides of it."""
    with kvitto.Broker() as broker, garbage.put_off():
        hub = broker._server.hub
        with ExitStack() as open_:
            peers = [open_.enter_context(Raw(broker.port)) for _ in range(5)]
            peers.append(open_.enter_context(Raw(broker.port, login=False)))
            wait_until(lambda: len(hub.connections) == len(peers))
            gone: list[Any] = [weakref.ref(connection) for connection in list(hub.connections)]
            assert {type(connection()) for connection in gone} == {Connection}
            gone += [weakref.ref(connection.transport) for connection in list(hub.connections)]
        wait_until(lambda: all(connection() is None for connection in gone))


def test_a_tls_peer_that_says_nothing_costs_no_handshake() -> None:
    """Memory for TLS is taken once the peer has begun to speak."""
    asked = []

    def tls() -> ssl.SSLContext:
        asked.append(True)
        return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    async def connect() -> None:
        acceptor = Acceptor(lambda sock, address: None, lambda: True, lambda: None, 10, tls)
        port = await acceptor.listen(("127.0.0.1",), 0)
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", port)) as sock:
            while not acceptor.beginning:
                await asyncio.sleep(0)
            assert not asked
            await loop.run_in_executor(None, sock.send, b"\x16")
            while not asked:
                await asyncio.sleep(0)
        acceptor.close()

    asyncio.run(asyncio.wait_for(connect(), 30))


def test_too_many_tls_handshakes_end_the_one_that_has_taken_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the one that comes next: it may be the one that gets somewhere."""
    monkeypatch.setattr(module, "HANDSHAKES_MAX", 2)
    late = []

    async def connect() -> list[bool]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        acceptor = Acceptor(lambda sock, address: None, lambda: True, lambda: late.append(1), 10, lambda: context)
        port = await acceptor.listen(("127.0.0.1",), 0)
        streams = []
        for number in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x16")
            streams.append((reader, writer))
            while len(acceptor._handshakes) + len(late) <= number:
                await asyncio.sleep(0)
        for reader, _ in streams[:2]:
            with suppress(ConnectionError):
                assert await reader.read() == b""
        ended = [reader.at_eof() or reader.exception() is not None for reader, _ in streams]
        acceptor.close()
        for _, writer in streams:
            writer.close()
        return ended

    assert asyncio.run(asyncio.wait_for(connect(), 30)) == [True, True, False, False]
    assert len(late) == 2


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"GET / HTTP/1.0\r\n\r\n", None])
def test_tls_peers_leave_nothing_behind(tmp_path: Path, unbound: None, first: bytes | None) -> None:
    """Whether they send nothing, the begin of a handshake, something else, or get all the way (None)."""
    authority = Authority(tmp_path / "tls")
    pair = authority.sign("server", "/CN=localhost", "DNS:localhost")
    settings: dict[str, Any] = {"tls_port": 0, "tls_cert": pair.cert, "tls_key": pair.key}
    made = kvitto.Broker()
    made._config = replace(made._config, **settings)
    with made as broker, garbage.put_off():
        gc.collect()
        server = broker._server
        ended = server.hub.connections_made
        for _ in range(5):
            sock = socket.create_connection(("127.0.0.1", server.tls_port))
            if first is None:
                context = ssl.create_default_context(cafile=str(authority.cert))
                with context.wrap_socket(sock, server_hostname="localhost") as talk:
                    talk.sendall(PROTOCOL_HEADER)
                    assert talk.recv(100)
            else:
                with sock:
                    sock.sendall(first)
        acceptors = server._acceptors
        wait_until(lambda: not any(acceptor.beginning for acceptor in acceptors) and not server.hub.connections)
        assert server.hub.connections_made - ended == (5 if first is None else 0)
        wait_until(lambda: not alive(Peer))


def test_handshakes_that_begin_in_the_same_turn_are_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends another one, not all of them the same."""
    monkeypatch.setattr(module, "HANDSHAKES_MAX", 2)

    async def connect() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        acceptor = Acceptor(lambda sock, address: None, lambda: True, lambda: None, 10, lambda: context)
        port = await acceptor.listen(["127.0.0.1"], 0)
        with ExitStack() as open_:
            socks = [open_.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(10)]
            while acceptor.beginning < len(socks):
                await asyncio.sleep(0)
            for sock in socks:
                sock.send(b"\x16")
            while acceptor.beginning > 2:
                await asyncio.sleep(0)
            assert len(acceptor._handshakes) == 2
        acceptor.close()

    asyncio.run(asyncio.wait_for(connect(), 30))


def alive(kind: type) -> int:
    return sum(type(thing) is kind for thing in gc.get_objects())


@pytest.fixture
def spared(monkeypatch: pytest.MonkeyPatch, unbound: None) -> Iterator[tuple[int, int, int]]:
    """`spare_the_loop` has been called, and has not kept the objects of the tests from being collected. Gives the thresholds of before."""
    before, interval = gc.get_threshold(), sys.getswitchinterval()
    monkeypatch.setattr(gc, "freeze", lambda: None)
    try:
        garbage.spare_the_loop()
        yield before
    finally:
        gc.enable()
        gc.set_threshold(*before)
        sys.setswitchinterval(interval)


def test_the_process_looks_for_all_garbage_only_when_it_is_idle(spared: tuple[int, int, int]) -> None:
    """A look at all objects while others wait took 80 ms with ten thousand connections; at 7,700 that are not young any more, 14 ms."""
    young, middle, old = gc.get_threshold()
    assert young >= 500 and young * (middle + 1) <= 2500 and old > 1_000_000


def test_a_start_looks_for_no_garbage(spared: tuple[int, int, int]) -> None:
    """A full collection took 20 to 100 ms of it with 1,000 queues, while clients waited for a new leader."""
    with garbage.put_off():
        assert not gc.isenabled()
        garbage.spare_the_loop()
        assert gc.isenabled()


def test_a_start_that_fails_leaves_the_process_as_it_was() -> None:
    """Else the memory of a program with a broker in it would grow without a bound."""
    with pytest.raises(OSError, match="enough"), garbage.put_off():
        raise OSError("enough")
    assert gc.isenabled()


def test_the_thread_that_syncs_asks_for_the_interpreter_soon(spared: tuple[int, int, int]) -> None:
    """A loop with work kept it waiting for up to a second, and all confirms with it."""
    assert sys.getswitchinterval() <= 0.0005

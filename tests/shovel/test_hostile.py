"""Servers at the other end of a shovel that are no brokers, or bad ones: the reason is in words, nothing is lost, memory is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

import kvitto
from kvitto.client.aio.link import ANSWERS_MAX, Link
from kvitto.client.errors import AMQPError, ConnectionLost
from kvitto.client.uri import parse_uri
from kvitto.shovel import worker
from kvitto.shovel.endpoint import Endpoint, EndpointFailed
from kvitto.wire import methods as m
from kvitto.wire.properties import Properties
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD
from tests.shovel.hostile_amqp import Part, Peer, amqp
from tests.shovel.running import bodies, declare, publish, shovelling
from tests.support.wait import wait_until

LARGE = 16 << 20


@pytest.fixture
def broker() -> Iterator[kvitto.Broker]:
    with kvitto.Broker() as running:
        declare(running.url, "out")
        publish(running.url, "out", b"one", b"two")
        yield running


def logged_in(peer: Peer) -> None:
    peer.log_in()
    peer.wait()


def confirms_nothing(peer: Peer) -> None:
    peer.log_in()
    peer.answer_until(m.BasicPublish)
    peer.wait()


def confirms_what_was_not_published(peer: Peer) -> None:
    peer.log_in()
    channel, _ = peer.answer_until(m.BasicPublish)
    peer.send(m.BasicAck(1 << 62, True), channel)
    peer.wait()


def announces_a_body_without_end(peer: Peer) -> None:
    peer.log_in()
    channel, _ = peer.answer_until(m.BasicPublish)
    peer.send(m.BasicReturn(312, "NO_ROUTE", "", "nobody"), channel)
    peer.sock.sendall(m.frame(FRAME_HEADER, channel, header(1 << 60)))
    peer.wait()


def speaks_http(peer: Peer) -> None:
    peer.sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    peer.stop.wait()


def sends_a_frame_of_4_gib(peer: Peer) -> None:
    peer.sock.sendall(b"\1\0\0\xff\xff\xff\xff" + bytes(100))
    peer.stop.wait()


def wants_tiny_frames(peer: Peer) -> None:
    peer.log_in(m.ConnectionTune(10, 100, 0))


def header(size: int) -> bytes:
    return b"\0\x3c\0\0" + size.to_bytes(8, "big") + Properties().encode()


@pytest.mark.parametrize(
    ("part", "state", "reason"),
    [
        (logged_in, "terminated", "has accepted the login, but not answered within 0.3 s"),
        (confirms_nothing, "blocked", "messages wait for its confirm"),
        (confirms_what_was_not_published, "terminated", "not AMQP"),
        (announces_a_body_without_end, "terminated", "501"),
        (speaks_http, "terminated", "not AMQP"),
        (sends_a_frame_of_4_gib, "terminated", "not AMQP"),
        (wants_tiny_frames, "terminated", "frames of 100 bytes"),
    ],
)
def test_a_target_that_is_no_good_broker_is_named_and_the_messages_stay(
    broker: kvitto.Broker, monkeypatch: pytest.MonkeyPatch, part: Part, state: str, reason: str
) -> None:
    """One that answered nothing after the login, or confirmed nothing, left a shovel `starting` or `running` for ever, without a word."""
    monkeypatch.setattr(worker, "OPEN_S", 0.3)
    monkeypatch.setattr(worker, "CONFIRM_S", 0.3)
    with amqp(part) as uri, shovelling(src_uri=broker.url, src_queue="out", dest_uri=uri, dest_queue="d") as shovel:
        wait_until(lambda: shovel.status.state == state and reason in shovel.status.reason)
    assert sorted(bodies(broker.url, "out")) == [b"one", b"two"]


def test_a_source_that_sends_more_than_it_was_asked_for_is_left(broker: kvitto.Broker) -> None:
    """What it sends waits in memory."""

    def floods(peer: Peer) -> None:
        peer.log_in()
        channel, consume = peer.answer_until(m.BasicConsume)
        assert isinstance(consume, m.BasicConsume)
        peer.send(m.BasicConsumeOk(consume.consumer_tag), channel)
        for tag in range(1, 100):
            deliver = m.BasicDeliver(consume.consumer_tag, tag, False, "", "k")
            frames = (FRAME_METHOD, deliver.encode()), (FRAME_HEADER, header(1)), (FRAME_BODY, b"x")
            peer.sock.sendall(b"".join(m.frame(kind, channel, payload) for kind, payload in frames))
        peer.wait()

    def blocks(peer: Peer) -> None:
        peer.log_in()
        peer.answer_until(m.BasicPublish)
        peer.wait()

    with (
        amqp(floods) as source,
        amqp(blocks) as target,
        shovelling(src_uri=source, src_queue="q", src_prefetch_count=10, dest_uri=target, dest_queue="d") as shovel,
    ):
        wait_until(lambda: "sends more than the 10 messages" in shovel.status.reason)
    assert shovel.status.moved == 0


class Deaf(asyncio.Transport):
    """A transport whose other side reads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += len(data)

    def abort(self) -> None:
        pass


class Nobody:
    """The owner of a link and of its ports, who notes how they end."""

    def __init__(self) -> None:
        self.error: AMQPError | None = None

    def link_lost(self, _link: object, error: AMQPError) -> None:
        self.error = error

    def port_ended(self, _port: object, _error: AMQPError) -> None:
        pass


@pytest.mark.parametrize("method", [m.ChannelFlow(False), m.BasicCancel("t")])
def test_answers_to_a_server_that_reads_none_are_limited(method: m.Method) -> None:
    """Each channel.flow has an answer, which stayed in memory if the server went on and read nothing."""

    async def flood() -> AMQPError | None:
        owner = Nobody()
        owner.cancelled = lambda *_: None  # type: ignore[attr-defined]
        link = Link(parse_uri("amqp://"), asyncio.get_running_loop(), owner)  # type: ignore[arg-type]
        link.connection_made(Deaf())
        link.channel_max = 10
        port = link.port(owner)  # type: ignore[arg-type]
        data = m.frame(FRAME_METHOD, port.number, method.encode())
        for paused in (False, True):
            if paused:
                link.pause_writing()
            for _ in range(ANSWERS_MAX + 1):
                link.get_buffer(-1)[: len(data)] = data
                link.buffer_updated(len(data))
            assert (owner.error is not None) == paused
        return owner.error

    error = asyncio.run(flood())
    assert isinstance(error, ConnectionLost) and error.code == 506 and "has not read the last" in str(error)


def test_a_request_that_the_server_does_not_read_is_given_up_with_its_bytes() -> None:
    """Its connection was to be closed when all bytes were sent, which was never: each attempt left a socket and a body in memory."""
    listening = socket.create_server(("127.0.0.1", 0))
    got: list[int] = []
    given_up = threading.Event()

    def reads_when_it_is_too_late() -> None:
        sock, _ = listening.accept()
        with sock:
            given_up.wait(30)
            n = 0
            with contextlib.suppress(ConnectionError):
                while part := sock.recv(1 << 20):
                    n += len(part)
            got.append(n)

    thread = threading.Thread(target=reads_when_it_is_too_late)
    thread.start()

    async def post() -> None:
        endpoint = Endpoint(f"http://127.0.0.1:{listening.getsockname()[1]}/", 0.5)
        with pytest.raises(EndpointFailed, match=r"no answer within 0\.5 s"):
            await endpoint.post([], bytes(LARGE))
        given_up.set()
        await asyncio.to_thread(thread.join, 30)

    with listening:
        asyncio.run(post())
    assert got and got[0] < LARGE

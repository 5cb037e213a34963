"""The wire itself: W1-W8 of the contract."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

import kvitto
from kvitto.base.limits import DEFAULTS
from kvitto.broker.administration.auth import Attempt, User
from kvitto.protocol.connection import Connection
from kvitto.protocol.driver import Driver
from kvitto.wire import methods as m
from kvitto.wire import tables
from kvitto.wire.methods import Method, frame
from kvitto.wire.properties import Properties
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD, PROTOCOL_HEADER
from tests.protocol.raw import NO_PROPERTIES, Raw, content
from tests.protocol.sansio import BLOCKED, ProtocolHarness, Wire
from tests.support.wait import wait_until

More = Callable[..., Raw]
PLAIN = b"\0guest\0guest"
MIB = 1 << 20


@pytest.fixture
def silent(port: int) -> Any:
    """A socket on which nothing has been said."""
    with Raw(port, login=False) as client:
        yield client


def start(raw: Raw) -> m.ConnectionStart:
    raw.send(PROTOCOL_HEADER)
    return raw.expect(m.ConnectionStart)


def start_ok(
    response: bytes = PLAIN, mechanism: str = "PLAIN", capabilities: dict[str, bool] | None = None
) -> m.ConnectionStartOk:
    able = {"authentication_failure_close": True} if capabilities is None else capabilities
    return m.ConnectionStartOk({"capabilities": dict(able)}, mechanism, response, "en_US")


# -- W1, W2: the handshake -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\0\0\x09\x02",
        b"AMQP\x03\x01\0\0",
        b"AMQP\x01\x01\0\x0a",
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\0\x01\0\x01",
        b"AMQX",
    ],
)
def test_a_wrong_header_gets_ours_back(silent: Raw, header: bytes) -> None:
    """W1: then the end. Not every wrong byte has to come for that."""
    silent.send(header)
    assert silent._input.read(8) == PROTOCOL_HEADER
    assert silent.ended()


def test_start_says_what_we_are(silent: Raw) -> None:
    """W1, W2."""
    told = start(silent)
    assert (told.version_major, told.version_minor) == (0, 9)
    assert set(told.mechanisms.split()) >= {b"PLAIN", b"AMQPLAIN"} and b"en_US" in told.locales.split()
    able = told.server_properties["capabilities"]
    assert isinstance(able, dict)
    for capability in (
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ):
        assert able[capability] is True


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_both_mechanisms(silent: Raw, mechanism: str) -> None:
    """W1."""
    start(silent)
    table = tables.encode({"LOGIN": "guest", "PASSWORD": "guest"})[4:]
    silent.put(0, start_ok(PLAIN if mechanism == "PLAIN" else table, mechanism))
    tune = silent.expect(m.ConnectionTune)
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131072, 60)
    silent.put(0, m.ConnectionTuneOk(10, 4096, 0))
    silent.call(0, m.ConnectionOpen("/"), m.ConnectionOpenOk)


@pytest.mark.parametrize("able", [True, False])
@pytest.mark.parametrize("response", [b"\0guest\0wrong", b"\0nobody\0guest", b"\0guest\0"])
def test_a_bad_login(silent: Raw, able: bool, response: bytes) -> None:
    """W4: 403 for those that can take it, the end for the others."""
    start(silent)
    silent.put(0, start_ok(response, capabilities={"authentication_failure_close": able}))
    if able:
        close = silent.expect(m.ConnectionClose)
        assert close.reply_code == 403 and "PLAIN" in close.reply_text
        silent.put(0, m.ConnectionCloseOk())
    assert silent.ended()


@pytest.mark.parametrize(("mechanism", "response"), [("SCRAM", b""), ("PLAIN", b"guest"), ("AMQPLAIN", b"\x05LOGIN")])
def test_a_login_that_makes_no_sense(silent: Raw, mechanism: str, response: bytes) -> None:
    """W4."""
    start(silent)
    silent.put(0, start_ok(response, mechanism))
    try:
        assert silent.expect(m.ConnectionClose).reply_code in (403, 502, 530, 541)
    except AssertionError as error:
        assert "closed the socket" in str(error)


def tuned(raw: Raw, *tune: int) -> None:
    start(raw)
    raw.put(0, start_ok())
    raw.expect(m.ConnectionTune)
    raw.put(0, m.ConnectionTuneOk(*tune))


@pytest.mark.parametrize(
    "tune", [(2048, 131072, 0), (0xFFFF, 131072, 0), (2047, 131073, 0), (2047, 4095, 0), (2047, 8, 0)]
)
def test_tune_beyond_the_limits(silent: Raw, tune: tuple[int, int, int]) -> None:
    """W1: 530."""
    tuned(silent, *tune)
    try:
        assert silent.expect(m.ConnectionClose).reply_code == 530
    except AssertionError as error:
        assert "closed the socket" in str(error)


@pytest.mark.parametrize(("vhost", "code"), [("nowhere", 530), ("", 530)])
def test_a_vhost_that_is_not_there(silent: Raw, vhost: str, code: int) -> None:
    """W4."""
    tuned(silent, 2047, 131072, 0)
    silent.put(0, m.ConnectionOpen(vhost))
    silent.connection_error(code)


@pytest.mark.parametrize(
    "early", [m.ConnectionOpen("/"), m.ConnectionTuneOk(0, 0, 0), m.QueueDeclare("q")], ids=lambda x: x.NAME
)
def test_methods_out_of_turn(silent: Raw, early: Method) -> None:
    """W4: nothing but the next step is taken before the connection is open."""
    start(silent)
    silent.put(0, early)
    try:
        assert silent.expect(m.ConnectionClose).reply_code in (503, 504, 505)
    except AssertionError as error:
        assert "closed the socket" in str(error)


def test_a_large_frame_before_the_connection_is_open(silent: Raw) -> None:
    """W8: it is refused by its length, not read."""
    start(silent)
    silent.send(b"\x01\0\0\x7f\xff\xff\xff" + b"x" * 1000)
    try:
        assert silent.expect(m.ConnectionClose).reply_code == 501
    except (AssertionError, ConnectionResetError) as error:
        assert not isinstance(error, AssertionError) or "closed the socket" in str(error)


def test_guest_comes_from_loopback_only() -> None:
    """W7."""
    harness = ProtocolHarness()
    answers: list[Any] = []
    for loopback in (True, False):
        wire = Wire(harness)
        wire.connection = Connection(harness.hub, wire, "192.0.2.1:5", loopback)
        wire.feed(PROTOCOL_HEADER)
        wire.put(0, start_ok())
        harness.settle_down()
        answers.append(wire.methods()[-1])
    assert isinstance(answers[0], m.ConnectionTune)
    assert isinstance(answers[1], m.ConnectionClose) and answers[1].reply_code == 403


# -- W3, W4: mistakes that close the connection --------------------------------------------------------------

BODY = frame(FRAME_BODY, 1, b"x")
HEADER = frame(FRAME_HEADER, 1, b"\0\x3c\0\0" + bytes(7) + b"\x05\0\0")
PUBLISH = frame(FRAME_METHOD, 1, m.BasicPublish("", "q").encode())
QOS = frame(FRAME_METHOD, 1, m.BasicQos().encode())
MISTAKES = {
    "frame end": (QOS[:-1] + b"\xcd", 501),
    "frame end of a heartbeat": (b"\x08\0\0\0\0\0\0\0", 501),
    "oversize": (b"\x03\0\x01\xff\xff\xff\xff\0", 501),
    "a byte over frame_max": (frame(FRAME_BODY, 1, bytes(131072 + 1)), 501),
    "frame type": (frame(7, 1, b""), 501),
    "method without ids": (frame(FRAME_METHOD, 1, b"\0\x3c\0"), 501),
    "unknown class": (frame(FRAME_METHOD, 1, b"\0\x07\0\x0a"), 503),
    "unknown method": (frame(FRAME_METHOD, 1, b"\0\x3c\0\x63"), 503),
    "arguments cut short": (frame(FRAME_METHOD, 1, m.QueueDeclare("q").encode()[:-3]), 501),
    "string beyond the frame": (frame(FRAME_METHOD, 1, b"\0\x3c\0\x46\0\0\xffq\0"), 501),
    "table of an unknown type": (
        frame(FRAME_METHOD, 1, m.QueueDeclare("q", arguments={"k": None}).encode().replace(b"\x01kV", b"\x01k?")),
        501,
    ),
    "a server's method": (frame(FRAME_METHOD, 1, m.QueueDeclareOk("q").encode()), 503),
    "channel method on channel 0": (frame(FRAME_METHOD, 0, m.QueueDeclare("q").encode()), (503, 504)),
    "unopened channel": (frame(FRAME_METHOD, 5, m.BasicQos().encode()), 504),
    "channel opened twice": (frame(FRAME_METHOD, 1, m.ChannelOpen().encode()), 504),
    "content on an unopened channel": (frame(FRAME_BODY, 5, b"x"), 504),
    "header without a method": (HEADER, 505),
    "body without a method": (BODY, 505),
    "body without a header": (PUBLISH + BODY, 505),
    "two headers": (PUBLISH + HEADER + HEADER, 505),
    "method instead of a header": (PUBLISH + QOS, 505),
    "method inside a body": (PUBLISH + HEADER + BODY + QOS, 505),
    "publish inside a body": (PUBLISH + HEADER + BODY + PUBLISH, 505),
    "more body than announced": (PUBLISH + HEADER + frame(FRAME_BODY, 1, b"123456"), (501, 505)),
    "header of another class": (PUBLISH + HEADER.replace(b"\0\x3c\0\0", b"\0\x32\0\0"), 505),
    "heartbeat on a channel": (frame(FRAME_HEARTBEAT, 1, b""), 505),
    "immediate": (content(1, m.BasicPublish("", "q", False, True), NO_PROPERTIES, b"x"), 540),
    "property flags": (content(1, m.BasicPublish("", "q"), b"\0\x03", b"x"), (501, 502)),
    "properties cut short": (content(1, m.BasicPublish("", "q"), b"\x80\0\x05ab", b"x"), (501, 502)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_that_end_the_connection(raw: Raw, mistake: str) -> None:
    """W3, W4: the right code, and with the class and method if one is to blame."""
    data, code = MISTAKES[mistake]
    raw.send(data)
    close = raw.expect(m.ConnectionClose)
    assert close.reply_code in (code if isinstance(code, tuple) else (code,)), close
    raw.put(0, m.ConnectionCloseOk())
    assert raw.ended()


def test_what_comes_behind_a_mistake_is_dropped(raw: Raw, more: More, name: str) -> None:
    """W3: nothing is done for a connection that is being closed."""
    other = more()
    other.declare(name)
    raw.send(frame(FRAME_METHOD, 5, m.BasicQos().encode()) + content(1, m.BasicPublish("", name), NO_PROPERTIES, b"x"))
    raw.connection_error(504)
    assert other.count(name) == 0


def test_channel_numbers_have_a_limit(more: More) -> None:
    """W4: 530 for one more than the negotiated channel_max."""
    raw = more(channel_max=3)
    raw.channel(2)
    raw.channel(3)
    raw.put(4, m.ChannelOpen())
    method = raw.method()[1]
    assert isinstance(method, m.ConnectionClose) and method.reply_code in (504, 530)


def test_a_tag_that_is_in_use(raw: Raw, name: str) -> None:
    """W4: 530."""
    raw.declare(name)
    raw.consume(name, consumer_tag="c")
    raw.put(1, m.BasicConsume(name, "c"))
    raw.connection_error(530)


def test_tags_of_two_channels_may_be_the_same(raw: Raw, name: str) -> None:
    """W4."""
    raw.channel(2)
    raw.declare(name)
    for channel in (1, 2):
        assert raw.consume(name, channel, consumer_tag="c") == "c"


def test_a_closed_channel_can_be_opened_again(raw: Raw, name: str) -> None:
    """W3: after close and close-ok, with fresh tags and numbers."""
    raw.declare(name)
    raw.put_in(name, b"x")
    raw.get(name)
    raw.call(1, m.ChannelClose(200, "bye"), m.ChannelCloseOk)
    raw.channel(1, confirm=True)
    raw.publish(1, "", name, b"y")
    assert raw.expect(m.BasicAck).delivery_tag == 1
    message = raw.get(name)
    assert message is not None and message.method.delivery_tag == 1


def test_both_sides_may_close_a_channel_at_once(raw: Raw) -> None:
    """W3: crossing closes are answered, and the number is free."""
    raw.put(1, m.BasicAck(7), m.ChannelClose(200, "bye"))
    raw.expect(m.ChannelClose)
    raw.expect(m.ChannelCloseOk)
    raw.put(1, m.ChannelCloseOk())
    raw.channel(1)


def test_a_channel_error_leaves_the_others_alone(raw: Raw, name: str) -> None:
    """W3."""
    raw.channel(2)
    raw.put(1, m.QueueDeclare(name, passive=True))
    raw.channel_error(404)
    raw.declare(name, 2)


def test_a_body_that_is_too_large_is_refused_by_its_header(raw: Raw, name: str) -> None:
    """W3: 311 on the channel, before any of it has come."""
    raw.declare(name)
    header = b"\0\x3c\0\0" + (DEFAULTS.body_max + 1).to_bytes(8, "big") + NO_PROPERTIES
    raw.send(frame(FRAME_METHOD, 1, m.BasicPublish("", name).encode()) + frame(FRAME_HEADER, 1, header))
    close = raw.expect(m.ChannelClose)
    assert close.reply_code in (311, 406)
    raw.send(frame(FRAME_BODY, 1, b"x" * 1000))
    raw.put(1, m.ChannelCloseOk())
    raw.channel(1)


# -- content -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 8176, 8177, 131063, 131064, 131065, 262128, 1_000_000])
def test_bodies_of_any_size(raw: Raw, name: str, size: int) -> None:
    """W: around the edges of frames."""
    raw.declare(name, durable=True)
    body = os.urandom(min(size, 5000)) * (size // 5000 + 1)
    raw.put_in(name, body[:size], content_type="x")
    message = raw.get(name, no_ack=True)
    assert message is not None and message.body == body[:size] and message.properties.content_type == "x"


def test_frame_max_is_kept_both_ways(raw: Raw, more: More, name: str) -> None:
    """W: a peer with small frames gets small ones (raw.py checks), whatever the publisher's were."""
    small = more(frame_max=4096)
    raw.declare(name)
    body = os.urandom(100_000)
    raw.put_in(name, body)
    small.put_in(name, body)
    for client in (small, raw):
        message = client.get(name, no_ack=True)
        assert message is not None and message.body == body


def test_a_frame_larger_than_was_agreed(more: More) -> None:
    """W4: 501."""
    raw = more(frame_max=4096)
    raw.send(frame(FRAME_BODY, 1, bytes(4097)))
    raw.connection_error(501)


def test_properties_that_fit_no_consumers_frames_are_refused(raw: Raw, name: str) -> None:
    """W4: a content header may be 8 bytes larger than what is sent with frame_max, but what it says could not be delivered."""
    raw.declare(name)
    fits = b"\0\3" + bytes((1 << 17) - 2 - 20)  # not decoded: its size is looked at first
    too_large = fits + b"\0"
    header = b"\0\x3c\0\0" + (1).to_bytes(8, "big") + too_large
    raw.send(frame(FRAME_METHOD, 1, m.BasicPublish("", name).encode()) + frame(FRAME_HEADER, 1, header))
    assert "131052 are possible" in raw.channel_error(406).reply_text


def test_body_frames_of_any_size(raw: Raw, name: str) -> None:
    """W: empty ones and single bytes too, with other channels in between."""
    raw.channel(2)
    raw.declare(name)
    header = b"\0\x3c\0\0" + (6).to_bytes(8, "big") + NO_PROPERTIES
    parts = [
        frame(FRAME_METHOD, 1, m.BasicPublish("", name).encode()),
        frame(FRAME_METHOD, 2, m.BasicPublish("", name).encode()),
        frame(FRAME_HEADER, 1, header),
        frame(FRAME_BODY, 1, b""),
        frame(FRAME_BODY, 1, b"a"),
        frame(FRAME_HEADER, 2, header),
        frame(FRAME_HEARTBEAT, 0, b""),
        frame(FRAME_BODY, 1, b"bcde"),
        frame(FRAME_BODY, 2, b"123456"),
        frame(FRAME_BODY, 1, b"f"),
    ]
    raw.send(b"".join(parts))
    assert wait_until(lambda: raw.count(name) == 2)
    assert raw.drain(name) == [b"123456", b"abcdef"]


def test_a_heartbeat_alone_asks_for_no_turn() -> None:
    """W6: the peer is alive, and nothing else has changed."""
    harness = ProtocolHarness()
    wire = harness.wire()
    harness.settle_down()
    turns: list[bool] = []

    class Counting(Driver):
        def schedule(self) -> None:
            turns.append(True)

    wire.connection.driver = Counting()
    wire.connection.quiet_in = 3
    wire.feed(frame(FRAME_HEARTBEAT, 0, b""))
    assert not turns and wire.connection.quiet_in == 0
    wire.feed(frame(FRAME_HEARTBEAT, 0, b"")[:5])
    wire.feed(frame(FRAME_HEARTBEAT, 0, b"")[5:] + frame(FRAME_HEARTBEAT, 0, b"")[:3])
    assert turns and wire.connection.rest == frame(FRAME_HEARTBEAT, 0, b"")[:3]


@pytest.mark.slow
def test_the_largest_body(raw: Raw, name: str) -> None:
    """W: 128 MiB there and back, persistent."""
    raw.declare(name, durable=True)
    raw.socket.settimeout(60)
    block = os.urandom(MIB)
    raw.channel(2, confirm=True)
    header = b"\0\x3c\0\0" + DEFAULTS.body_max.to_bytes(8, "big") + b"\x10\0\x02"
    raw.send(frame(FRAME_METHOD, 2, m.BasicPublish("", name).encode()) + frame(FRAME_HEADER, 2, header))
    frames = b"".join(frame(FRAME_BODY, 2, block[at : at + 65536]) for at in range(0, MIB, 65536))
    for _ in range(128):
        raw.send(frames)
    raw.expect(m.BasicAck)
    message = raw.get(name, no_ack=True)
    assert message is not None and len(message.body) == DEFAULTS.body_max
    assert all(message.body[at : at + MIB] == block for at in range(0, DEFAULTS.body_max, 16 * MIB))
    raw.call(1, m.QueueDelete(name), m.QueueDeleteOk)


def test_bodies_that_never_end_have_a_limit(raw: Raw, name: str, allow: Callable[..., None]) -> None:
    """W8: over all channels of a connection; what has been completed or given up does not count."""
    allow(unfinished_max=1_000_000)
    raw.declare(name)
    raw.put_in(name, *[bytes(900_000)] * 3)
    header = b"\0\x3c\0\0" + (900_000).to_bytes(8, "big") + NO_PROPERTIES
    for number in (2, 3):
        raw.channel(number)
        begin = frame(FRAME_METHOD, number, m.BasicPublish("", name).encode()) + frame(FRAME_HEADER, number, header)
        raw.send(begin + frame(FRAME_BODY, number, bytes(100_000)) * 6)
    assert raw.expect(m.ConnectionClose).reply_code == 506


# -- W6: heartbeats and blocking -----------------------------------------------------------------------------


def test_heartbeats_come_and_count() -> None:
    """W6: one per half interval of silence, and any bytes of the peer's count as a sign of life."""
    harness = ProtocolHarness()
    wire = harness.wire()
    for _ in range(3):
        assert wire.connection.beat()
    harness.turn()
    assert {kind for kind, _, _ in wire.frames()} == {FRAME_HEARTBEAT}
    for _ in range(20):
        wire.feed(b"\x08\0\0\0\0\0\0\xce")
        assert wire.connection.beat()
    harness.turn()
    beats = wire.frames()
    assert beats and all(beat == (FRAME_HEARTBEAT, 0, b"") for beat in beats)


@pytest.mark.slow
def test_a_peer_that_falls_silent_is_gone(port: int, more: More, name: str) -> None:
    """W6: with an interval of one second, after about two; its messages come back."""
    raw = more()
    raw.declare(name)
    raw.put_in(name, b"x")
    silent = more(heartbeat=1)
    silent.get(name)
    silent.socket.settimeout(10)
    assert silent.ended()
    assert wait_until(lambda: raw.count(name) == 1)


@pytest.mark.slow
def test_a_peer_that_beats_stays(more: More) -> None:
    """W6: nothing but heartbeats, both ways, for longer than two intervals."""
    raw = more(heartbeat=1)
    seen = 0
    while seen < 6:
        found = raw.frame()
        assert found == (FRAME_HEARTBEAT, 0, b"")
        raw.send(frame(FRAME_HEARTBEAT, 0, b""))
        seen += 1
    raw.call(1, m.BasicQos(), m.BasicQosOk)


def blocked(wire: Wire) -> list[Method]:
    return [x for x in wire.methods() if isinstance(x, m.ConnectionBlocked | m.ConnectionUnblocked)]


def test_publishers_are_told_when_they_have_to_wait() -> None:
    """W6, D4: blocked and unblocked, when they publish, and can take it; new ones too; acks and consumers go on."""
    harness = ProtocolHarness()
    able, unable, consumer = Wire(harness), Wire(harness), harness.wire()
    able.login(**BLOCKED)
    unable.login()
    able.put(1, m.QueueDeclare("q"), m.ConfirmSelect())
    able.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"0"))
    harness.settle_down()
    for wire in (able, unable, consumer):
        wire.frames()
    harness.hub.alarms.block("no room")
    harness.turn()
    late, idle = Wire(harness), Wire(harness)
    late.login(**BLOCKED)
    idle.login(**BLOCKED)
    assert blocked(able) == [] and blocked(late) == []
    for wire in (able, unable, late):
        wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"1") * 3)
    harness.settle_down()
    assert not (able.reading or unable.reading or late.reading), "no further input is taken from a publisher"
    assert blocked(able) == blocked(late) == [m.ConnectionBlocked("no room")] and blocked(unable) == []
    consumer.put(1, m.BasicGet("q"), m.BasicAck(1), m.QueueDeclare("other", durable=True))
    harness.settle_down()
    assert [type(x) for x in consumer.methods()] == [m.BasicGetOk, m.QueueDeclareOk]
    harness.hub.alarms.block(None)
    harness.settle_down()
    assert able.reading and blocked(late) == [m.ConnectionUnblocked()]
    assert m.ConnectionUnblocked() in able.methods()
    assert blocked(unable) == blocked(idle) == []
    assert harness.broker.vhosts["/"].queues["q"].ready == 9


def test_the_end_of_a_block_does_not_overtake_an_answer() -> None:
    """W6, D2: a publisher that waits for a declare-ok goes on after it, not when publishing is free again."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q"))
    wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"x"))
    harness.settle_down()
    wire.frames()
    harness.hub.alarms.block("no room")
    wire.put(1, m.QueueDeclare("d", durable=True), m.QueueDeclare("q", passive=True))
    harness.turn()
    harness.hub.alarms.block(None)
    harness.turn()
    assert wire.methods() == []
    harness.settle_down()
    assert [x.queue for x in wire.methods() if isinstance(x, m.QueueDeclareOk)] == ["d", "q"]


@pytest.mark.slow
def test_a_blocked_publisher_still_hears_us() -> None:
    """W6: heartbeats go out although nothing is read; else the peer would think that we are gone."""
    with kvitto.Broker() as broker, Raw(broker.port, heartbeat=1) as raw:
        raw.channel(1)
        assert broker._server is not None
        loop, hub = broker._loop, broker._server.hub
        assert loop is not None
        loop.call_soon_threadsafe(hub.alarms.block, "no room", "test")
        raw.call(1, m.BasicQos(), m.BasicQosOk)
        raw.publish(1, "", "nowhere", b"x")
        raw.publish(1, "", "nowhere", b"x")
        raw.expect(m.ConnectionBlocked)
        for _ in range(2):
            assert raw.frame() == (FRAME_HEARTBEAT, 0, b"")
        loop.call_soon_threadsafe(hub.alarms.block, None, "test")
        raw.expect(m.ConnectionUnblocked)
        raw.call(1, m.BasicQos(), m.BasicQosOk)


def test_the_end_of_a_block_does_not_overtake_a_commit() -> None:
    """T4, W6."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("d", durable=True), m.TxSelect())
    harness.settle_down()
    wire.frames()
    harness.hub.alarms.block("no room")
    wire.feed(content(1, m.BasicPublish("", "d"), NO_PROPERTIES, b"x"))
    harness.hub.alarms.block(None)
    wire.put(1, m.TxCommit())
    harness.hub.alarms.block("no room")
    wire.connection.stall()
    harness.hub.alarms.block(None)
    harness.turn()
    assert wire.methods() == [] and not wire.reading
    harness.settle_down()
    assert wire.methods() == [m.TxCommitOk()] and wire.reading


# -- D2: durable before the answer ---------------------------------------------------------------------------

DEFINITIONS: list[Method] = [
    m.ExchangeDeclare("e", "topic", durable=True),
    m.ExchangeDeclare("f", "topic", durable=True),
    m.QueueDeclare("q", durable=True),
    m.QueueBind("q", "e", "k"),
    m.ExchangeBind("f", "e", "k"),
    m.ExchangeUnbind("f", "e", "k"),
    m.QueueUnbind("q", "e", "k"),
    m.ExchangeDelete("e"),
    m.QueueDelete("q"),
]


def test_definitions_are_durable_before_their_answer() -> None:
    """D2: each of them; requests behind them wait too."""
    harness = ProtocolHarness()
    wire = harness.wire()
    for method in DEFINITIONS:
        wire.put(1, method, m.BasicQos())
        harness.turn()
        assert wire.methods() == [], method
        harness.settle_down()
        answer, behind = wire.methods()
        assert type(answer).__name__ == type(method).__name__ + "Ok" and isinstance(behind, m.BasicQosOk)


def test_what_a_queue_takes_with_it_does_not_let_others_answer_early() -> None:
    """D2: an auto-delete queue went by itself; the next declaration still waits for the disk."""
    harness = ProtocolHarness()
    wire, other = harness.wire(), harness.wire()
    wire.put(1, m.QueueDeclare("gone", durable=True, auto_delete=True), m.BasicConsume("gone", "c"))
    harness.settle_down()
    wire.connection.lost()
    harness.turn()
    other.put(1, m.QueueDeclare("q", durable=True))
    harness.turn()
    assert other.methods() == []
    harness.settle_down()
    assert [type(x) for x in other.methods()] == [m.QueueDeclareOk]


def test_nothing_transient_waits_for_the_disk() -> None:
    """D2: only what is durable."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("t"), m.ExchangeDeclare("e", "direct"), m.QueueBind("t", "e"), m.QueueDelete("t"))
    harness.turn()
    assert len(wire.methods()) == 4


# -- the rest ------------------------------------------------------------------------------------------------


def test_what_comes_behind_close_is_dropped() -> None:
    """A6, W4: a connection that has said goodbye takes nothing more, not even from the same read."""
    harness = ProtocolHarness()
    harness.wire().put(1, m.QueueDeclare("q"))
    wire = harness.wire()
    wire.feed(
        frame(FRAME_METHOD, 0, m.ConnectionClose(200, "bye").encode())
        + frame(FRAME_METHOD, 1, m.ChannelOpen().encode())
        + frame(FRAME_METHOD, 1, m.BasicConsume("q", "t").encode())
        + frame(FRAME_METHOD, 1, m.QueueDeclare("mine", exclusive=True).encode())
    )
    harness.settle_down()
    assert wire.methods() == [m.ConnectionCloseOk()] and wire.closed
    queues = harness.broker.vhosts["/"].queues
    assert "mine" not in queues and not queues["q"].consumers


def test_an_exclusive_queue_that_is_deleted_leaves_nothing_behind() -> None:
    """W8: a reply queue for each request."""
    harness = ProtocolHarness()
    wire = harness.wire()
    for _ in range(3):
        wire.put(1, m.QueueDeclare("reply", exclusive=True), m.QueueDelete("reply"))
    assert not wire.connection.queues
    wire.put(1, m.QueueDeclare("reply", exclusive=True))
    harness.settle_down()
    wire.connection.lost()
    assert "reply" not in harness.broker.vhosts["/"].queues


def test_a_password_is_checked_outside_the_loop() -> None:
    """W7, W8: a slow hash holds up nobody else, and what the peer sends meanwhile waits."""
    harness = ProtocolHarness()
    guest = harness.broker.users.get("guest")
    assert guest is not None
    guest.proof = b""  # as after a start: the password has not been seen yet
    checks: list[Callable[[], None]] = []

    class Slow(Driver):
        def log_in(self, attempt: Attempt, checked: Callable[[User | None], None]) -> bool:
            checks.append(lambda: checked(attempt.check()))
            return True

    harness.hub.driver = Slow()
    right, wrong, gone = (Wire(harness) for _ in range(3))
    behind = b"".join(
        frame(FRAME_METHOD, 0, method.encode()) for method in (m.ConnectionTuneOk(0, 0, 0), m.ConnectionOpen("/"))
    )
    for wire, password in ((right, b"guest"), (wrong, b"no"), (gone, b"guest")):
        wire.feed(PROTOCOL_HEADER)
        harness.settle_down()
        wire.frames()
        wire.feed(frame(FRAME_METHOD, 0, start_ok(b"\0guest\0" + password).encode()) + behind)
        assert not wire.reading
    gone.connection.lost()
    for check in checks:
        check()
        harness.settle_down()
    assert [type(x) for x in right.methods()] == [m.ConnectionTune, m.ConnectionOpenOk] and right.reading
    assert [x.reply_code for x in wrong.methods() if isinstance(x, m.ConnectionClose)] == [403] and wrong.reading
    assert gone.methods() == []


def test_a_channel_reads_one_range_at_a_time() -> None:
    """W8: what is asked for and not yet read must not pile up."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q", durable=True))
    harness.settle_down()
    wire.put(1, m.LogRead("q", "a", 0, 9), m.LogRead("q", "b", 0, 9))
    harness.settle_down()
    assert [x.reply_code for x in wire.methods() if isinstance(x, m.ChannelClose)] == [406]
    assert not harness.broker.readers.waiting


def test_update_secret(raw: Raw) -> None:
    """W."""
    raw.call(0, m.ConnectionUpdateSecret(b"new", "expired"), m.ConnectionUpdateSecretOk)


def test_flow_stops_deliveries_of_a_channel(raw: Raw, name: str) -> None:
    """W: channel.flow; others go on. RabbitMQ has given it up (540)."""
    raw.declare(name)
    raw.consume(name, no_ack=True)
    assert raw.call(1, m.ChannelFlow(False), m.ChannelFlowOk).active is False
    raw.put_in(name, b"x")
    assert raw.count(name) == 1
    raw.put(1, m.ChannelFlow(True))
    kinds = {type(raw.method()[1])}
    assert kinds <= {m.ChannelFlowOk, m.BasicDeliver}


def test_close_is_answered(raw: Raw) -> None:
    """W."""
    raw.call(0, m.ConnectionClose(200, "bye"), m.ConnectionCloseOk)
    assert raw.ended()


def test_access_request_is_answered(raw: Raw) -> None:
    """W: gone from 0-9-1, but old clients ask."""
    raw.call(1, m.AccessRequest("/data"), m.AccessRequestOk)


def test_answers_that_nobody_reads_are_bounded(more: More, name: str) -> None:
    """W8: a peer that asks and never reads is not read from either, and costs no more than some MiB."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q"))
    wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, bytes(100_000)))
    harness.turn()
    wire.connection.writable(False)
    ask = frame(FRAME_METHOD, 1, m.BasicGet("q").encode()) + frame(FRAME_METHOD, 1, m.BasicNack(0, True, True).encode())
    wire.feed(ask * 2000)
    harness.turn()
    assert not wire.reading
    assert wire.connection.output.buf.n < 32 * MIB
    answers = 0
    while not wire.reading:
        wire.connection.writable(True)
        harness.turn()
        answers += sum(isinstance(x, m.BasicGetOk) for x in wire.methods())
        wire.connection.writable(False)
        harness.turn()
    wire.connection.writable(True)
    harness.turn()
    assert answers + sum(isinstance(x, m.BasicGetOk) for x in wire.methods()) == 2000


def test_replies_that_nobody_reads_are_bounded() -> None:
    """W8: direct reply-to has no queue in which answers could wait."""
    harness = ProtocolHarness()
    asker, server = harness.wire(), harness.wire()
    asker.put(1, m.BasicConsume("amq.rabbitmq.reply-to", "c", no_ack=True), m.QueueDeclare("q"))
    asker.feed(content(1, m.BasicPublish("", "q"), Properties(reply_to="amq.rabbitmq.reply-to").encode(), b""))
    harness.settle_down()
    server.put(1, m.BasicGet("q", True))
    harness.settle_down()
    header = next(payload for kind, _, payload in server.frames() if kind == FRAME_HEADER)
    address = Properties.decode(header[12:]).reply_to
    assert address is not None
    asker.connection.writable(False)
    for _ in range(100):
        server.feed(content(1, m.BasicPublish("", address), NO_PROPERTIES, bytes(MIB)))
        harness.turn()
    assert asker.connection.output.buf.n < 32 * MIB

"""W8: every limit that a hostile peer can meet: what it is told, that it is counted, and that others are served as before."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from kvitto.base import limits
from kvitto.base.limits import DEFAULTS
from kvitto.broker import vhost as vhosts
from kvitto.protocol.connection import INPUT_PAUSE
from kvitto.protocol.methods import HANDLERS
from kvitto.protocol.states import RUNNING
from kvitto.wire import methods as m
from kvitto.wire.methods import Method, frame
from kvitto.wire.properties import Properties
from kvitto.wire.spec import FRAME_BODY, FRAME_METHOD, PROTOCOL_HEADER
from tests.protocol import sessions
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.support.limited import limit

MIB = 1 << 20
ROUTE_S = 0.5
"""CPU that the routing of one message may take in these tests; the limits are a tenth of the real ones."""


def ask(wire: Wire, *methods: Method, channel: int = 1) -> list[Method]:
    """What is answered, once everything is durable."""
    for method in methods:
        while not wire.reading:
            wire.harness.settle_down()
        wire.put(channel, method)
    wire.harness.settle_down()
    return wire.methods()


def close_of(answers: list[Method]) -> tuple[type[Method], int, str]:
    close = answers[-1]
    assert isinstance(close, m.ChannelClose | m.ConnectionClose), answers
    return type(close), close.reply_code, close.reply_text


def check_others(harness: ProtocolHarness) -> None:
    probe = harness.wire()
    ask(probe, m.QueueDeclare("probe"))
    probe.feed(sessions.content(1, m.BasicPublish("", "probe"), b"\0\0", b"x"))
    assert isinstance(ask(probe, m.BasicGet("probe", True))[-1], m.BasicGetOk)


def begun(key: str, size: int, body: bytes, channel: int = 1) -> bytes:
    """A message of `size` bytes of which only `body` comes."""
    method = frame(FRAME_METHOD, channel, m.BasicPublish("", key).encode())
    parts = (frame(FRAME_BODY, channel, body[i : i + 100_000]) for i in range(0, len(body), 100_000))
    return method + sessions.header_frame(channel, size, b"\0\0") + b"".join(parts)


# -- before login --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kib", [9, 128])
def test_a_stranger_gets_no_room_for_large_client_properties(kib: int) -> None:
    """Limit HANDSHAKE_FRAME_MAX: refused by the announced size, before the bytes have come."""
    harness = ProtocolHarness()
    wire = harness.wire(login=False)
    wire.feed(PROTOCOL_HEADER)
    start = m.ConnectionStartOk({"x": "y" * kib * 1024}, "PLAIN", b"\0guest\0guest", "en_US").encode()
    wire.feed(frame(FRAME_METHOD, 0, start)[:100])
    kind, code, text = close_of(ask(wire))
    assert (kind, code) == (m.ConnectionClose, 501) and "8192" in text
    assert harness.broker.refused["frame"] == 1
    check_others(harness)


def test_a_refused_connection_is_told_why_as_soon_as_it_speaks_amqp() -> None:
    """Limit max_connections: no login is checked, no table is read."""
    harness = ProtocolHarness()
    wire = harness.wire(login=False)
    wire.connection.refusal = "the limit of 1 connections is reached"
    wire.feed(PROTOCOL_HEADER)
    harness.settle_down()
    start, close = wire.methods()
    assert isinstance(start, m.ConnectionStart)
    assert close_of([close]) == (m.ConnectionClose, 506, "RESOURCE_ERROR - the limit of 1 connections is reached")
    assert harness.broker.refused["connections"] == 1


# -- tables and frames ---------------------------------------------------------------------------------------


def test_deeply_nested_tables_close_the_connection() -> None:
    """Limit TABLE_DEPTH_MAX."""
    harness = ProtocolHarness()
    wire = harness.wire()
    table = bytes(4)
    for _ in range(limits.TABLE_DEPTH_MAX + 2):  # Kvitto does not write such tables itself
        table = (3 + len(table)).to_bytes(4, "big") + b"\x01kF" + table
    wire.feed(frame(FRAME_METHOD, 1, m.QueueDeclare("a").encode()[:-4] + table))
    harness.settle_down()
    kind, code, text = close_of(wire.methods())
    assert (kind, code) == (m.ConnectionClose, 501) and "nested deeper than 32" in text
    assert harness.broker.refused["table_depth"] == 1
    check_others(harness)


def test_a_table_that_fills_a_frame_costs_its_sender_little() -> None:
    """A table of 21,000 entries is read once, and is gone with its queue."""
    harness = ProtocolHarness()
    wire = harness.wire()
    started = time.process_time()
    table = {f"k{i}": None for i in range(15_000)}
    assert isinstance(ask(wire, m.QueueDeclare("a", arguments=table))[-1], m.QueueDeclareOk)  # type: ignore[arg-type]
    assert time.process_time() - started < 5.0


# -- floods --------------------------------------------------------------------------------------------------


def test_channels_end_at_their_limit() -> None:
    """Limit max_channels: offered in tune, and kept."""
    harness = ProtocolHarness()
    harness.hub.max_channels = 4
    wire = harness.wire(login=False)
    wire.feed(
        sessions.login(4).replace(m.ConnectionTuneOk(8, 4096, 60).encode(), m.ConnectionTuneOk(0, 4096, 60).encode())
    )
    harness.settle_down()
    tune = [method for method in wire.methods() if isinstance(method, m.ConnectionTune)]
    assert tune[0].channel_max == 4
    kind, code, _ = close_of(ask(wire, m.ChannelOpen(), channel=5))
    assert (kind, code) == (m.ConnectionClose, 530)
    assert harness.broker.refused["channels"] == 1


def test_all_connections_share_a_number_of_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit CHANNELS_MAX: what one closes others may open."""
    harness = ProtocolHarness()
    limit(harness.broker, channels_max=6)
    first, second = harness.wire(), harness.wire()
    ask(first, m.ChannelOpen(), channel=2)
    ask(first, m.ChannelClose(200, ""), channel=2)
    for number in range(2, 6):
        ask(first, m.ChannelOpen(), channel=number)
    assert close_of(ask(second, m.ChannelOpen(), channel=2))[:2] == (m.ConnectionClose, 506)
    first.connection.lost()
    assert harness.hub.channels == 0
    check_others(harness)


def test_a_flood_of_queues_is_refused_and_those_there_are_work() -> None:
    """Limit max_queues."""
    harness = ProtocolHarness()
    harness.broker.max_queues = 20
    wire = harness.wire()
    answers = ask(wire, *[m.QueueDeclare(f"q{i}", durable=i % 2 == 0) for i in range(20)])
    assert len(answers) == 20
    assert isinstance(ask(wire, m.QueueDeclare("q3"))[-1], m.QueueDeclareOk)
    kind, code, text = close_of(ask(wire, m.QueueDeclare("one more")))
    assert (kind, code) == (m.ChannelClose, 406) and "the limit of 20 queues is reached" in text
    assert harness.broker.refused["queues"] == 1
    other = harness.wire()
    assert close_of(ask(other, m.StageOpen("writer", 1, "0")))[1] == 406
    third = harness.wire()
    ask(third, m.QueueDelete("q0"))
    assert isinstance(ask(third, m.QueueDeclare(""))[-1], m.QueueDeclareOk)


def test_no_queue_is_declared_for_which_there_are_no_descriptors() -> None:
    """Limit of open files: what fails later, at the first message, would end the broker."""
    harness = ProtocolHarness()
    harness.broker.file_room = lambda: 1
    _, code, text = close_of(ask(harness.wire(), m.QueueDeclare("a", durable=True)))
    assert code == 406 and "ulimit" in text


def test_a_flood_of_exchanges_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit EXCHANGES_MAX; what is on the disk already is not refused by a start."""
    harness = ProtocolHarness()
    wire = harness.wire()
    ask(wire, *[m.ExchangeDeclare(f"e{i}", "direct", durable=True) for i in range(10)])
    limit(harness.broker, exchanges_max=10)
    kind, code, _ = close_of(ask(wire, m.ExchangeDeclare("more", "direct")))
    assert (kind, code) == (m.ChannelClose, 406) and harness.broker.refused["exchanges"] == 1
    again = ProtocolHarness(harness.disk.kill())
    assert "e9" in again.broker.vhosts["/"].exchanges


def test_a_binding_bomb_ends_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit BINDINGS_MAX, of a virtual host; a refused binding leaves nothing behind, in memory or on the disk."""
    harness = ProtocolHarness()
    limit(harness.broker, bindings_max=50)
    wire = harness.wire()
    ask(wire, m.QueueDeclare("a", durable=True), *[m.QueueBind("a", "amq.direct", f"k{i}") for i in range(50)])
    kind, code, _ = close_of(ask(wire, m.QueueBind("a", "amq.direct", "one more")))
    assert (kind, code) == (m.ChannelClose, 406) and harness.broker.refused["bindings"] == 1
    direct = harness.broker.vhosts["/"].exchanges["amq.direct"]
    assert len(list(direct.bindings())) == 50 and not direct.route("one more", Properties())
    other = harness.wire()
    ask(other, m.QueueUnbind("a", "amq.direct", "k0"), m.QueueBind("a", "amq.direct", "one more"))
    assert direct.route("one more", Properties())
    ask(other, m.QueueDeclare("b"), m.QueueDelete("a"), m.QueueBind("b", "amq.fanout"))
    assert harness.broker.vhosts["/"].bindings == 1
    ask(other, m.ExchangeDeclare("e", "direct"), m.QueueBind("b", "e"), m.ExchangeDelete("e"), m.QueueDelete("b"))
    assert harness.broker.vhosts["/"].bindings == 0


def test_a_start_refuses_no_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit BINDINGS_MAX: what the disk has is there."""
    harness = ProtocolHarness()
    wire = harness.wire()
    ask(wire, m.QueueDeclare("a", durable=True), *[m.QueueBind("a", "amq.direct", f"k{i}") for i in range(50)])
    limit(harness.broker, bindings_max=5)
    again = ProtocolHarness(harness.disk.kill())
    assert len(list(again.broker.vhosts["/"].exchanges["amq.direct"].bindings())) == 50


def test_consumers_end_at_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit CONSUMERS_MAX, of one queue and of one connection."""
    harness = ProtocolHarness()
    limit(harness.broker, consumers_max=10)
    wire, other = harness.wire(), harness.wire()
    ask(wire, m.QueueDeclare("a"), m.QueueDeclare("b"), *[m.BasicConsume("a", str(i)) for i in range(10)])
    _, code, text = close_of(ask(other, m.BasicConsume("a")))
    assert code == 406 and "has 10 consumers" in text
    _, code, text = close_of(ask(wire, m.BasicConsume("b")))
    assert code == 406 and "this connection has 10 consumers" in text
    assert harness.broker.refused["consumers"] == 2
    check_others(harness)


# -- routing -------------------------------------------------------------------------------------------------


def bind_until_refused(harness: ProtocolHarness, exchange: str, bindings: list[tuple[str, dict[str, Any]]]) -> int:
    wire = harness.wire()
    ask(wire, m.QueueDeclare("a"))
    for n, (key, arguments) in enumerate(bindings):
        wire.put(1, m.QueueBind("a", exchange, key, arguments=arguments))
        if wire.connection.channels[1].closing:
            assert close_of(ask(wire))[:2] == (m.ChannelClose, 406)
            assert harness.broker.refused["routing"] == 1
            return n
    raise AssertionError("none was refused")


def cpu_s(harness: ProtocolHarness, exchange: str, key: str, headers: dict[str, Any]) -> float:
    started = time.process_time()
    harness.broker.vhosts["/"].route_message(exchange, key, Properties(headers=headers))
    return time.process_time() - started


def test_topic_patterns_cannot_be_made_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit ROUTE_STEPS_MAX: patterns with many `#` and `*`, and the key that keeps all of them going."""
    harness = ProtocolHarness()
    limit(harness.broker, route_steps_max=100_000)
    ends = itertools.product("a*", repeat=12)
    patterns = [".".join(("#", "a") * 30 + end) for end in ends]
    taken = bind_until_refused(harness, "amq.topic", [(pattern, {}) for pattern in patterns])
    assert taken > 10
    assert cpu_s(harness, "amq.topic", ".".join("a" * 128), {}) < ROUTE_S
    steps = harness.broker.vhosts["/"].exchanges["amq.topic"].steps
    assert steps <= DEFAULTS.route_steps_max


def test_patterns_of_every_day_are_not_counted() -> None:
    """A hundred thousand devices with a pattern each are no bomb; what one unbinds is no longer counted."""
    topic = ProtocolHarness().broker.vhosts["/"].exchanges["amq.topic"]
    for i in range(1000):
        topic.bind(f"queue {i}", f"device.{i}.#", {})
    assert topic.steps == 0
    topic.bind("queue", "*.error", {})
    topic.bind("queue", "#.error", {})
    assert topic.steps == 2 + 128
    topic.unbind("queue", "#.error", {})
    topic.unbind("queue", "*.error", {})
    assert topic.steps == 0


def test_headers_with_thousands_of_arguments_cannot_be_made_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit ROUTE_STEPS_MAX: each binding compares thousands of headers of each message."""
    harness = ProtocolHarness()
    limit(harness.broker, route_steps_max=50_000)
    wanted = {f"k{i}": 1 for i in range(4999)}
    exchange = harness.broker.vhosts["/"].exchanges["amq.headers"]
    for n in range(harness.broker.limits.route_steps_max // 5001):
        exchange.bind("queue", "", {**wanted, f"only {n}": 1})
    exchange.check_steps(harness.broker.limits.route_steps_max)
    assert cpu_s(harness, "amq.headers", "", {**wanted, "other": 2}) < ROUTE_S
    assert bind_until_refused(harness, "amq.headers", [("", {f"k{i}": 2 for i in range(5000)})]) == 0
    assert cpu_s(harness, "amq.headers", "", {"k": 2}) < ROUTE_S


def test_routing_keys_in_headers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits COPIES_MAX and ROUTING_STEPS_MAX: CC with thousands of keys, or with a few to an exchange that is slow already."""
    harness = ProtocolHarness()
    limit(harness.broker, routing_steps_max=2_000_000)
    wire = harness.wire()
    props = Properties(headers={"CC": ["k"] * (DEFAULTS.copies_max + 1)}).encode()
    wire.feed(sessions.content(1, m.BasicPublish("amq.topic", "k"), props, b"x"))
    assert close_of(ask(wire))[:2] == (m.ChannelClose, 406)
    topic = harness.broker.vhosts["/"].exchanges["amq.topic"]
    for i in range(60):
        topic.bind("queue", f"#.{i}." + "a." * 30, {})
    assert topic.steps * 10 > harness.broker.limits.routing_steps_max
    other = harness.wire()
    props = Properties(headers={"CC": ["k"] * 10}).encode()
    other.feed(sessions.content(1, m.BasicPublish("amq.topic", "k"), props, b"x"))
    _, code, text = close_of(ask(other))
    assert code == 406 and "could take more than" in text
    assert harness.broker.refused["routing"] == 2


def test_remembered_routes_are_bounded_by_what_is_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit ROUTES_MAX: a key of its own for each message, to an exchange with many queues."""
    monkeypatch.setattr(vhosts, "ROUTES_MAX", 1000)
    harness = ProtocolHarness()
    vhost = harness.broker.vhosts["/"]
    wire = harness.wire()
    ask(wire, *[m.QueueDeclare(f"q{i}") for i in range(50)], *[m.QueueBind(f"q{i}", "amq.fanout") for i in range(50)])
    for i in range(100):
        vhost.route(b"\x0aamq.fanout\x04" + b"%04d" % i)
    assert sum(1 + route.count for route in vhost._routes.values()) <= 1000


# -- what is held for a peer ---------------------------------------------------------------------------------


def test_a_consumer_that_never_acks_gets_no_more_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit UNACKED_MAX: no prefetch, no acks. It waits, others do not, and an ack lets it go on."""
    harness = ProtocolHarness()
    limit(harness.broker, unacked_max=100)
    wire = harness.wire()
    ask(wire, m.QueueDeclare("a"), m.BasicConsume("a", "c"))
    wire.feed(sessions.content(1, m.BasicPublish("", "a"), b"\0\0", b"x") * 150)
    deliveries = [method for method in ask(wire) if isinstance(method, m.BasicDeliver)]
    assert len(deliveries) == 100 and harness.broker.refused["unacked"] == 1
    ask(wire)
    assert harness.broker.refused["unacked"] == 1
    other = harness.wire()
    assert isinstance(ask(other, m.BasicGet("a", True))[-1], m.BasicGetOk)
    assert len(ask(wire, m.BasicAck(10, True))) == 10
    assert harness.broker.refused["unacked"] == 1
    kind, code, text = close_of(ask(wire, m.BasicGet("a")))
    assert (kind, code) == (m.ChannelClose, 406) and "100 unacked messages" in text
    assert harness.broker.refused["unacked"] == 2 and harness.broker.vhosts["/"].queues["a"].ready == 139


def test_bodies_that_are_announced_and_never_sent_are_bounded_over_all_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Limit HELD_MAX: each connection stays below its own limit."""
    harness = ProtocolHarness()
    limit(harness.broker, buffered_max=10 * MIB)
    wires = [harness.wire() for _ in range(20)]
    for wire in wires:
        wire.feed(begun("a", 100 * MIB, bytes(300_000)))
        harness.settle_down()
    told = [close_of(wire.methods())[1] for wire in wires if wire.connection.state != RUNNING]
    assert told and set(told) == {506}
    assert harness.broker.refused["held"] == len(told)
    assert harness.hub.buffered.total <= 10 * MIB
    for wire in wires:
        wire.connection.lost()
    assert harness.hub.buffered.total == 0
    check_others(harness)


def test_transactions_are_bounded_over_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit HELD_MAX: the transaction is rolled back, and its room is free again."""
    harness = ProtocolHarness()
    limit(harness.broker, buffered_max=2 * MIB)
    first, second = harness.wire(), harness.wire()
    for wire in (first, second):
        ask(wire, m.TxSelect())
        wire.feed(sessions.content(1, m.BasicPublish("", "a"), b"\0\0", bytes(100_000)) * 6)
    assert close_of(ask(second))[:2] == (m.ChannelClose, 406)
    assert isinstance(ask(first, m.TxCommit())[-1], m.TxCommitOk)
    assert harness.hub.buffered.total == 0 and harness.broker.refused["held"] == 1


def test_a_peer_that_never_reads_is_not_read_from_either() -> None:
    """Limit INPUT_PAUSE: returned messages pile up for a socket that takes nothing."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.connection.writable(False)
    message = sessions.content(1, m.BasicPublish("", "nowhere", mandatory=True), b"\0\0", bytes(100_000))
    sent = 0
    while wire.reading and sent < 200:
        wire.feed(message)
        harness.turn()
        sent += 1
    assert not wire.reading and wire.connection.output.buf.n < INPUT_PAUSE + MIB
    wire.connection.lost()
    check_others(harness)


def test_a_peer_is_told_that_the_system_gives_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found with all limits reached at once and `prlimit --as`: it was told of an internal error."""

    def declare(*_: object) -> None:
        raise MemoryError

    monkeypatch.setitem(HANDLERS, m.ExchangeDeclare, declare)
    harness = ProtocolHarness()
    wire = harness.wire()
    what = "RESOURCE_ERROR - the system gives the broker no more memory"
    assert close_of(ask(wire, m.ExchangeDeclare("x"))) == (m.ConnectionClose, 506, what)
    check_others(harness)

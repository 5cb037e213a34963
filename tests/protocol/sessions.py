"""Sessions as a peer may send them: right ones, wrong ones, and right ones with a few bytes changed."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from hypothesis import strategies as st

from kvitto.wire import methods as m
from kvitto.wire.codec import METHODS, Method
from kvitto.wire.methods import frame
from kvitto.wire.properties import Properties
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD, PROTOCOL_HEADER
from tests.protocol.raw import NO_PROPERTIES, content
from tests.wire import strategies as wire

NOT_UTF8 = "\u00bf"
"""Stands for two bytes that are no UTF-8."""

NAMES = ["", "a", "b", "e", "amq.topic", "amq.fanout", "amq.match", "amq.rabbitmq.reply-to", "amq.x", NOT_UTF8]
TYPES = ["direct", "fanout", "topic", "headers", "x-none", NOT_UTF8]
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"x-max-length": 1},
    {"x-max-length": 0, "x-overflow": "reject-publish"},
    {"x-max-length-bytes": 5, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "amq.fanout"},
    {"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"},
    {"x-message-ttl": 0, "x-dead-letter-exchange": NOT_UTF8},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a", "x-delivery-limit": 0},
    {"x-dead-letter-exchange": "nowhere"},
    {"x-dead-letter-exchange": "x" * 300, "x-max-length": 0},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "x" * 300, "x-max-length": 0},
    {"x-expires": 1},
    {"x-max-priority": 5},
    {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 200, "x-max-length": 1},
    {"x-max-length": "none"},
    {"x-overflow": "away"},
    {"x-priority": 3},
    {"x-stream-offset": "first"},
    {"x-offset-header": True},
    {"x-stream-offset": -1, "x-stream-automatic-offset-tracking": True},
    {"x-priority": 1 << 62},
    {"x-match": "any", "k": 1},
    {"x-match": "all-with-x", "x-k": None},
    {"x-match": 5},
    {"alternate-exchange": "e"},
    {"alternate-exchange": 5},
    {"k": [{"k": [None, 1.5, float("nan"), True, b"\xff"]}]},
]
SOME_TABLE = wire.tables()
TABLES = st.sampled_from(ARGUMENTS) | st.sampled_from(ARGUMENTS) | SOME_TABLE
ANY_BYTES = wire.any_bytes()
PROPERTIES = [
    Properties(),
    Properties(expiration="0"),
    Properties(expiration="1"),
    Properties(expiration="-1"),
    Properties(expiration="9" * 200),
    Properties(expiration="٣"),
    Properties(user_id="guest"),
    Properties(user_id="other"),
    Properties(reply_to="amq.rabbitmq.reply-to"),
    Properties(headers={"CC": ["a", "b"], "BCC": ["b"]}),
    Properties(headers={"CC": "a"}),
    Properties(headers={"CC": [NOT_UTF8, "x" * 300], "BCC": [1]}),
    Properties(headers={"k": 1, "x-k": 5}),
    Properties(headers={NOT_UTF8: {NOT_UTF8: NOT_UTF8}}, priority=3),
    Properties(headers={"x-death": [{"count": 5, "queue": "a", "reason": "expired"}, 5], "x-delivery-count": "no"}),
    Properties("t" * 255, "e" * 255, {}, 255, 255, "c", "r" * 255, None, "i", 2**64 - 1, "t", None, "a", "c"),
]


@cache
def any_method() -> st.SearchStrategy[Method]:
    """Any method there is, those that only a server sends too, with arguments that meet each other."""
    return st.sampled_from(sorted(METHODS)).map(METHODS.__getitem__).flatmap(_built)  # type: ignore[arg-type]  # its cache makes no difference


@cache
def _built(kind: type[Method]) -> st.SearchStrategy[Method]:
    values: dict[str, st.SearchStrategy[Any]] = {}
    for parameter in inspect.signature(kind).parameters.values():
        name, type_ = parameter.name, parameter.annotation
        if type_ is bool:
            values[name] = st.booleans()
        elif type_ is int:
            values[name] = st.integers(0, 6)
        elif name == "type":
            values[name] = st.sampled_from(TYPES)
        elif type_ is str:
            values[name] = st.sampled_from(NAMES)
        elif type_ is bytes:
            values[name] = st.binary(max_size=20)
        else:
            values[name] = TABLES
    return st.builds(kind, **values)


@cache
def properties() -> st.SearchStrategy[bytes]:
    made = SOME_TABLE.map(lambda headers: Properties(headers=headers))
    return (st.sampled_from(PROPERTIES) | made).map(Properties.encode) | st.binary(max_size=12)


@cache
def publish() -> st.SearchStrategy[bytes]:
    """A whole message in one or more body frames, or none."""
    method = st.builds(
        m.BasicPublish,
        st.sampled_from(NAMES),
        st.sampled_from(NAMES),
        st.booleans(),
        st.sampled_from([False] * 9 + [True]),
    )
    small = st.just(NO_PROPERTIES)
    return st.builds(
        content,
        st.integers(1, 2),
        method,
        small | properties(),
        st.binary(max_size=40),
        st.sampled_from([131072, 18, 9]),
    )


def header_frame(channel: int, size: int, props: bytes) -> bytes:
    return frame(FRAME_HEADER, channel, b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + props)


@cache
def one_frame() -> st.SearchStrategy[bytes]:
    """One frame, seldom where it belongs."""
    channels = st.sampled_from([0, 1, 1, 1, 2, 3, 65535])
    sizes = st.sampled_from([0, 1, 5, 1 << 27, (1 << 27) + 1, 2**64 - 1])
    return st.one_of(
        st.builds(lambda c, x: frame(FRAME_METHOD, c, x.encode()), channels, any_method()),
        st.builds(header_frame, channels, sizes, properties()),
        st.builds(frame, st.just(FRAME_BODY), channels, st.binary(max_size=10)),
        st.builds(frame, st.just(FRAME_HEARTBEAT), channels, st.binary(max_size=2)),
        st.builds(frame, st.integers(0, 255), channels, ANY_BYTES),
    )


def login(channels: int = 2) -> bytes:
    """What every good session begins with."""
    client: dict[str, Any] = {"capabilities": {"consumer_cancel_notify": True, "authentication_failure_close": True}}
    methods = [
        (0, m.ConnectionStartOk(client, "PLAIN", b"\0guest\0guest", "en_US")),
        (0, m.ConnectionTuneOk(8, 4096, 60)),
        (0, m.ConnectionOpen("/")),
        *((n, m.ChannelOpen()) for n in range(1, channels + 1)),
    ]
    return PROTOCOL_HEADER + b"".join(frame(FRAME_METHOD, n, method.encode()) for n, method in methods)


@cache
def scene() -> st.SearchStrategy[bytes]:
    """Frames that get far: two queues that dead-letter to each other, bindings, a consumer, confirms or a transaction."""

    def build(arguments: list[dict[str, Any]], durable: bool, mode: list[Method], no_ack: bool, prefetch: int) -> bytes:
        methods: list[Method] = [
            m.QueueDeclare("a", durable=durable, arguments=arguments[0]),
            m.QueueDeclare("b", durable=True, arguments=arguments[1]),
            m.ExchangeDeclare("e", "headers", durable=durable),
            m.QueueBind("a", "amq.fanout", "k"),
            m.QueueBind("b", "e", "", arguments={"x-match": "any", "k": 1}),
            m.BasicQos(0, prefetch, False),
            *mode,
            m.BasicConsume("a", "c", no_ack=no_ack),
        ]
        return b"".join(frame(FRAME_METHOD, 1, method.encode()) for method in methods)

    arguments = st.lists(st.sampled_from(ARGUMENTS), min_size=2, max_size=2)
    modes = st.sampled_from([[], [m.ConfirmSelect()], [m.TxSelect()]])
    return st.builds(build, arguments, st.booleans(), modes, st.booleans(), st.sampled_from([0, 1, 3]))


@cache
def settling() -> st.SearchStrategy[bytes]:
    """Acks of what a consumer may have got."""
    tags = st.integers(0, 5)
    kinds = st.one_of(
        st.builds(m.BasicAck, tags, st.booleans()),
        st.builds(m.BasicNack, tags, st.booleans(), st.booleans()),
        st.builds(m.BasicReject, tags, st.booleans()),
        st.sampled_from([m.TxCommit(), m.TxRollback(), m.BasicRecover(True), m.BasicGet("b"), m.QueuePurge("a")]),
    )
    return kinds.map(lambda method: frame(FRAME_METHOD, 1, method.encode()))


BEGINNINGS = st.sampled_from([login()] * 9 + [b"", PROTOCOL_HEADER])
SCENES = scene() | scene() | st.just(b"")
GOOD = st.lists(publish() | publish() | settling(), max_size=12)
MIXED = st.lists(publish() | settling() | one_frame(), max_size=8)


@st.composite
def session(draw: st.DrawFn) -> bytes:
    """Bytes of one connection, from the protocol header on."""
    data = b"".join(
        (
            draw(BEGINNINGS),
            draw(SCENES),
            *draw(GOOD),
            *draw(MIXED),
        )
    )
    data = data.replace(NOT_UTF8.encode(), b"\xff\xfe")
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        data = _mutated(draw, data)
    return data


def _mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """One byte changed, a piece lost, or a piece come in from nowhere."""
    at = draw(st.integers(0, len(data)))
    match draw(st.sampled_from(["change", "lose", "insert", "cut"])):
        case "change":
            return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
        case "lose":
            return data[:at] + data[at + draw(st.integers(1, 30)) :]
        case "insert":
            return data[:at] + draw(ANY_BYTES) + data[at:]
    return data[:at]

"""Where the fuzzer begins when there is no corpus: one good story for each part of the protocol."""

from __future__ import annotations

from typing import Any

from kvitto.wire import methods as m
from kvitto.wire.methods import Method, frame
from kvitto.wire.properties import Properties
from kvitto.wire.spec import FRAME_METHOD
from tests.fuzz.story import BLOCK, CHOKE, FEED, LEAVE, PIECES, SETTLE, TIME, TURN, Step, pack
from tests.protocol import sessions

LOGIN = Step(FEED, 0, sessions.login())
OTHER = Step(FEED, 1, sessions.login())


def put(*methods: Method, channel: int = 1) -> bytes:
    return b"".join(frame(FRAME_METHOD, channel, method.encode()) for method in methods)


def message(exchange: str, key: str, body: bytes = b"hello", channel: int = 1, cut: int = 131072, **of: Any) -> bytes:
    props = Properties(**of).encode()
    return sessions.content(channel, m.BasicPublish(exchange, key), props, body, cut)


def seeds() -> list[bytes]:
    """Each whole, byte by byte, and in pieces that end inside a message whose method has come."""
    whole = [handshakes(), consumed(), confirmed(), routed(), held(), dead(), late(), *ours(), *flowing()]
    cut = [in_pieces(steps, n) for steps in whole for n in (1, 37, 61)]
    return [pack(steps) for steps in (*whole, *cut)]


def in_pieces(steps: list[Step], n: int) -> list[Step]:
    return [
        step._replace(kind=PIECES, argument=step.argument & 1 | n - 1 << 1) if step.data else step for step in steps
    ]


def handshakes() -> list[Step]:
    amqplain = m.ConnectionStartOk({}, "AMQPLAIN", b"\x05LOGINS\0\0\0\5guest\x08PASSWORDS\0\0\0\5guest", "en_US")
    last = put(m.ConnectionTuneOk(0, 4096, 1), m.ConnectionOpen("/"), m.ConnectionClose(200, "bye", 0, 0), channel=0)
    return [
        Step(PIECES, 6, LOGIN.data),
        Step(FEED, 1, LOGIN.data[:8] + put(amqplain, channel=0) + last),
        Step(SETTLE),
    ]


def consumed() -> list[Step]:
    first = put(m.QueueDeclare("a", durable=True), m.BasicQos(0, 2, False), m.BasicConsume("a", "c"))
    return [
        LOGIN,
        Step(FEED, 0, first + b"".join(message("", "a", b"x" * n) for n in range(5))),
        Step(SETTLE),
        Step(FEED, 0, put(m.BasicAck(1), m.BasicNack(2, False, True), m.BasicReject(3), m.BasicRecover(True))),
        Step(SETTLE),
        Step(
            FEED,
            0,
            put(
                m.BasicCancel("c"), m.BasicGet("a"), m.BasicAck(0, True), m.QueuePurge("a"), m.ChannelClose(0, "", 0, 0)
            ),
        ),
    ]


def confirmed() -> list[Step]:
    return [
        LOGIN,
        OTHER,
        Step(FEED, 0, put(m.QueueDeclare("a", durable=True), m.ConfirmSelect()) + message("", "a", b"x" * 50, cut=20)),
        Step(FEED, 1, put(m.BasicConsume("a", "c", no_ack=True))),
        Step(SETTLE),
        Step(FEED, 0, message("", "a") + message("", "nowhere") + message("", "a", expiration="1", priority=2)),
        Step(TIME, 4),
        Step(LEAVE, 1),
        Step(FEED, 0, put(m.QueueDelete("a"))),
    ]


def routed() -> list[Step]:
    steps = [LOGIN]
    kinds: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("direct", "k", {}),
        ("fanout", "", {}),
        ("topic", "a.*.#", {}),
        ("headers", "", {"x-match": "any", "k": 1}),
    )
    for kind, key, arguments in kinds:
        first = put(
            m.ExchangeDeclare("e", kind, durable=True, arguments={"alternate-exchange": "amq.fanout"}),
            m.QueueDeclare("a", durable=True),
            m.QueueBind("a", "e", key, arguments=arguments),
            m.QueueBind("a", "amq.fanout", ""),
            m.ExchangeBind("amq.topic", "e", "#"),
        )
        sent = message("e", "k", headers={"k": 1, "CC": ["a"], "BCC": ["b"]}) + message("e", "a.b.c")
        last = put(m.QueueUnbind("a", "e", key, arguments=arguments), m.ExchangeDelete("e"))
        steps += [Step(FEED, 0, first + sent), Step(SETTLE), Step(FEED, 0, last)]
    return steps


def late() -> list[Step]:
    """Two of three consumers wait for the end of the first, which comes with its time."""
    arguments: dict[str, Any] = {"x-single-active-consumer": True, "x-consumer-timeout": 1}
    first = put(m.QueueDeclare("a", arguments=arguments), m.BasicConsume("a", "c"), m.BasicConsume("a", "d"))
    return [
        LOGIN,
        OTHER,
        Step(FEED, 0, first + message("", "a") + message("", "a")),
        Step(FEED, 1, put(m.BasicConsume("a", "e"))),
        Step(SETTLE),
        *[Step(TIME, 4)] * 3,
        Step(FEED, 0, put(m.ChannelCloseOk(), m.ChannelOpen(), m.BasicGet("a"))),
        Step(FEED, 1, put(m.BasicAck(1))),
        *[Step(TIME, 4)] * 3,
    ]


def held() -> list[Step]:
    first = put(
        m.QueueDeclare("a", durable=True), m.QueueDeclare("b", durable=True), m.TxSelect(), m.BasicConsume("a", "c")
    )
    return [
        LOGIN,
        Step(FEED, 0, first + message("", "a") + message("", "b") + put(m.TxCommit())),
        Step(SETTLE),
        Step(
            FEED, 0, put(m.BasicAck(1)) + message("", "b") + put(m.TxRollback(), m.BasicReject(1, False), m.TxCommit())
        ),
        Step(SETTLE),
    ]


def dead() -> list[Step]:
    there: dict[str, Any] = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "b",
        "x-message-ttl": 100,
        "x-delivery-limit": 1,
    }
    back: dict[str, Any] = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "a",
        "x-max-length": 1,
        "x-max-priority": 3,
    }
    first = put(m.QueueDeclare("a", durable=True, arguments=there), m.QueueDeclare("b", durable=True, arguments=back))
    sent = b"".join(message("", "a", priority=n) for n in range(4))
    return [
        LOGIN,
        Step(FEED, 0, first + sent + put(m.BasicConsume("a", "c"))),
        Step(SETTLE),
        Step(FEED, 0, put(m.BasicNack(2, True, True), m.BasicReject(3, True))),
        Step(SETTLE),
        Step(TIME, 6),
        Step(SETTLE),
    ]


def ours() -> list[list[Step]]:
    """Streams, and Kvitto's classes `log` and `stage`."""
    stream: dict[str, Any] = {
        "x-queue-type": "stream",
        "x-stream-max-segment-size-bytes": 200,
        "x-max-length-bytes": 1000,
    }
    sent = b"".join(message("", "a", b"x" * 100) for _ in range(5))
    streamed = put(m.QueueDeclare("a", durable=True, arguments=stream), m.BasicQos(0, 3, False))
    reading = put(m.BasicConsume("a", "c", arguments={"x-stream-offset": "first"}))
    attached = put(m.LogAttach("a", "g"), m.LogInspect("a"), m.LogHold("a", "g", "", 0, 4), m.LogRead("a", "r", 0, 4))
    staged = put(m.QueueDeclare("a", durable=True), m.StageOpen("w", 1, "0"), m.ConfirmSelect()) + sent
    return [
        [
            LOGIN,
            Step(FEED, 0, streamed + sent),
            Step(SETTLE),
            Step(FEED, 0, reading),
            Step(TURN),
            Step(FEED, 0, put(m.BasicAck(2, True))),
            Step(SETTLE),
        ],
        [
            LOGIN,
            Step(FEED, 0, put(m.QueueDeclare("a", durable=True)) + sent),
            Step(SETTLE),
            Step(FEED, 0, attached),
            Step(TURN),
            Step(FEED, 0, put(m.LogSettle("a", "g", "", 3), m.LogDetach("a", "g"))),
        ],
        [
            LOGIN,
            OTHER,
            Step(FEED, 0, staged),
            Step(SETTLE),
            Step(FEED, 1, put(m.StageLast("w"), m.StageCommit("w", 1, b"0"))),
            Step(SETTLE),
            Step(FEED, 1, put(m.BasicGet("a"), m.StageForget("w"))),
            Step(SETTLE),
        ],
    ]


def flowing() -> list[list[Step]]:
    """Peers that do not read, publishers that are blocked, direct reply-to."""
    first = put(m.QueueDeclare("a"), m.BasicConsume("a", "c", no_ack=True))
    replies = put(m.BasicConsume("amq.rabbitmq.reply-to", "r", no_ack=True), m.QueueDeclare("a", exclusive=True))
    request = message("", "a", reply_to="amq.rabbitmq.reply-to")
    return [
        [
            LOGIN,
            Step(FEED, 0, first),
            Step(CHOKE, 0),
            Step(FEED, 0, message("", "a") * 3),
            Step(TURN),
            Step(CHOKE, 2),
            Step(TURN),
        ],
        [LOGIN, Step(BLOCK, 2), Step(FEED, 0, first + message("", "a") * 3), Step(TURN), Step(BLOCK), Step(TURN)],
        [
            LOGIN,
            Step(FEED, 0, replies + request + put(m.BasicGet("a", True), m.ChannelFlow(False), m.ChannelFlow(True))),
            Step(SETTLE),
        ],
    ]

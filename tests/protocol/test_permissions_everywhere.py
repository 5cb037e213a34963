"""Every method there is, sent by a user who may open the virtual host and nothing else (W5). A new one must be put into a table."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from kvitto.wire import methods as m
from kvitto.wire.methods import METHODS, Method
from tests.protocol.raw import NO_PROPERTIES, content
from tests.protocol.sansio import ProtocolHarness, Wire

REFUSED: list[Method] = [
    m.ExchangeDeclare("x", "direct"),
    m.ExchangeDeclare("new", "direct"),
    m.ExchangeDelete("x"),
    m.ExchangeBind("y", "x"),
    m.ExchangeUnbind("y", "x"),
    m.QueueDeclare("q"),
    m.QueueDeclare("new"),
    m.QueueDeclare(""),
    m.QueueDeclare("mine", exclusive=True),
    m.QueueBind("q", "x", "k"),
    m.QueueUnbind("q", "x", "k"),
    m.QueuePurge("q"),
    m.QueueDelete("q"),
    m.BasicConsume("q"),
    m.BasicConsume("s"),
    m.BasicGet("q"),
    m.BasicPublish("", "q"),
    m.BasicPublish("x", "k"),
    m.LogAttach("q", "group"),
    m.LogRead("q", "tag", 0, 10),
    m.LogSettle("q", "group", "", 10),
    m.LogDetach("q", "group"),
    m.LogInspect("q"),
    m.LogHold("q", "group", "", 0, 10),
    m.LogCount("q", "", 0, 10),
    m.StageOpen("writer", 1, "task"),
    m.StageCommit("writer", 1, b""),
    m.StageLast("writer"),
    m.StageForget("writer"),
    m.StageClaim("writer", "task"),
]
"""Each is a 403 on the channel."""

FREE: dict[type[Method], str] = {
    m.ConnectionStartOk: "the login itself",
    m.ConnectionTuneOk: "the login itself",
    m.ConnectionOpen: "needs permissions in the virtual host: test_semantics_permissions",
    m.ConnectionClose: "an end",
    m.ConnectionCloseOk: "an answer",
    m.ConnectionUpdateSecret: "changes nothing",
    m.ConnectionUpdateSecretOk: "an answer",
    m.ConnectionBlocked: "a notice",
    m.ConnectionUnblocked: "a notice",
    m.ChannelOpen: "its own channel",
    m.ChannelClose: "its own channel",
    m.ChannelCloseOk: "an answer",
    m.ChannelFlow: "its own channel",
    m.ChannelFlowOk: "an answer",
    m.AccessRequest: "changes nothing",
    m.BasicQos: "its own channel",
    m.BasicCancel: "its own consumer",
    m.BasicCancelOk: "an answer",
    m.BasicAck: "its own deliveries",
    m.BasicNack: "its own deliveries",
    m.BasicReject: "its own deliveries",
    m.BasicRecover: "its own deliveries",
    m.BasicRecoverAsync: "its own deliveries",
    m.ConfirmSelect: "its own channel",
    m.TxSelect: "its own channel: permissions are asked at publish (T3)",
    m.TxCommit: "its own channel",
    m.TxRollback: "its own channel",
}
"""Touches no queue and no exchange but by what was allowed before."""

PASSIVE: list[Method] = [m.QueueDeclare("q", passive=True), m.ExchangeDeclare("x", passive=True)]
"""As with RabbitMQ these ask for no permission: they tell whether it is there, and how many messages and consumers."""


def enter() -> tuple[ProtocolHarness, Wire]:
    """A harness with things in it, and a user without permissions but the entry."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q", durable=True), m.ExchangeDeclare("x", "direct"), m.ExchangeDeclare("y", "direct"))
    harness.settle_down()
    wire.put(1, m.QueueDeclare("s", durable=True, arguments={"x-queue-type": "stream"}))
    harness.settle_down()
    wire.put(1, m.QueueBind("q", "x", "k"))
    harness.settle_down()
    wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"secret"))
    harness.settle_down()
    harness.broker.users.add("mallory", "mallory")
    harness.broker.users.set_permission("mallory", "/", "", "", "")
    mallory = Wire(harness)
    mallory.login("mallory")
    return harness, mallory


def state(harness: ProtocolHarness) -> Any:
    vhost = harness.broker.vhosts["/"]
    queues = {name: (q.ready, q.unacked, len(q.consumers), q.group) for name, q in vhost.queues.items()}
    bindings = {name: len(list(exchange.bindings())) for name, exchange in vhost.exchanges.items()}
    return queues, bindings, len(harness.broker.queues)


def answer(harness: ProtocolHarness, wire: Wire, method: Method) -> list[Method]:
    """What comes back to it, and to a request behind it."""
    if isinstance(method, m.BasicPublish):
        wire.feed(content(1, method, NO_PROPERTIES, b"x"))
    else:
        wire.put(1, method)
    harness.settle_down()
    return wire.methods()


def test_every_method_is_in_a_table() -> None:
    """What a server says to a client is none of a client's, and is refused whatever the permissions: see below."""
    asked = {type(method) for method in (*REFUSED, *PASSIVE)}
    assert not asked & FREE.keys()
    rest = [kind for kind in METHODS.values() if kind not in asked | FREE.keys()]
    harness, _ = enter()
    for kind in rest:
        wire = Wire(harness)
        wire.login("mallory")
        wire.put(1, blank(kind))
        harness.settle_down()
        [close] = [x for x in wire.methods() if isinstance(x, m.ConnectionClose | m.ChannelClose)]
        assert isinstance(close, m.ConnectionClose) and close.reply_code == 503, kind


def blank(kind: type[Method]) -> Method:
    """One with nothing in it."""
    values: list[Any] = []
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.default is inspect.Parameter.empty:
            text = str(parameter.annotation)
            values.append({} if "Table" in text else b"" if "bytes" in text else "" if "str" in text else 0)
    return kind(*values)


@pytest.mark.parametrize("method", REFUSED, ids=lambda method: repr(method)[:50])
def test_a_user_without_rights_is_refused(method: Method) -> None:
    """403 on the channel, and nothing has changed."""
    harness, mallory = enter()
    before = state(harness)
    [close] = answer(harness, mallory, method)
    assert isinstance(close, m.ChannelClose) and close.reply_code == 403, close
    assert "refused for user 'mallory'" in close.reply_text
    assert state(harness) == before


@pytest.mark.parametrize("publish", [m.BasicPublish("", "q"), m.BasicPublish("x", "k")], ids=["default", "direct"])
@pytest.mark.parametrize("select", [m.TxSelect(), m.ConfirmSelect()], ids=["tx", "confirm"])
def test_neither_transaction_nor_confirms_go_round_it(publish: Method, select: Method) -> None:
    """T3: asked at the publish, also when CC in the headers names the queue."""
    harness, mallory = enter()
    before = state(harness)
    mallory.put(1, select)
    harness.settle_down()
    mallory.methods()
    [close] = answer(harness, mallory, publish)
    assert isinstance(close, m.ChannelClose) and close.reply_code == 403
    assert state(harness) == before


@pytest.mark.parametrize("method", PASSIVE, ids=repr)
def test_what_is_passive_needs_no_right(method: Method) -> None:
    harness, mallory = enter()
    before = state(harness)
    [found] = answer(harness, mallory, method)
    assert isinstance(found, m.QueueDeclareOk | m.ExchangeDeclareOk)
    assert state(harness) == before


def test_an_exclusive_queue_is_its_owners_alone() -> None:
    """W5: 405 for everybody else, whatever the permissions."""
    harness = ProtocolHarness()
    owner, other = harness.wire(), harness.wire()
    owner.put(1, m.QueueDeclare("mine", exclusive=True))
    harness.settle_down()
    for n, method in enumerate(
        (
            m.QueueDeclare("mine", passive=True),
            m.QueueBind("mine", "amq.direct", "k"),
            m.QueuePurge("mine"),
            m.QueueDelete("mine"),
            m.BasicConsume("mine"),
            m.BasicGet("mine"),
            m.LogInspect("mine"),
        ),
        2,
    ):
        other.put(n, m.ChannelOpen())
        other.put(n, method)
        harness.settle_down()
        [close] = [x for x in other.methods() if isinstance(x, m.ChannelClose)]
        assert close.reply_code == 405, method

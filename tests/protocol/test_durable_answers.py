"""D2: no answer tells of a changed definition before that is durable, whichever method has changed it, in however many turns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvitto.broker.changes import Changes, Unanswered
from kvitto.protocol.methods import HANDLERS
from kvitto.wire import methods as m
from kvitto.wire.methods import Method
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.protocol.test_stage import publish

SETUP = (
    m.QueueDeclare("q", durable=True),
    m.ExchangeDeclare("x", "direct", durable=True),
    m.ExchangeDeclare("y", "direct", durable=True),
    m.QueueBind("q", "x", "bound"),
    m.ExchangeBind("y", "x", "bound"),
    m.QueueDeclare("held", durable=True),
)
AUTO = m.QueueDeclare("auto", durable=True, auto_delete=True)
CHANGING: list[tuple[tuple[Method, ...], Method, type[Method]]] = [
    ((), m.QueueDeclare("new", durable=True), m.QueueDeclareOk),
    ((), m.QueueBind("q", "x", "new"), m.QueueBindOk),
    ((), m.QueueUnbind("q", "x", "bound"), m.QueueUnbindOk),
    ((), m.QueueDelete("q"), m.QueueDeleteOk),
    ((), m.ExchangeDeclare("new", "topic", durable=True), m.ExchangeDeclareOk),
    ((), m.ExchangeBind("y", "x", "new"), m.ExchangeBindOk),
    ((), m.ExchangeUnbind("y", "x", "bound"), m.ExchangeUnbindOk),
    ((), m.ExchangeDelete("x"), m.ExchangeDeleteOk),
    ((), m.StageOpen("w", 0, "t"), m.StageOpenOk),
    ((m.StageOpen("w", 0, "t"),), m.StageCommit("w", 0, b"t"), m.StageCommitOk),
    ((m.StageOpen("w", 0, "t"),), m.StageForget("w"), m.StageForgetOk),
    ((m.StageOpen("w", 0, "t"),), m.StageClaim("w", "other"), m.StageClaimOk),
    ((m.LogAttach("held", "g"),), m.LogHold("held", "g", "", 0, 100), m.LogHoldOk),
    ((m.LogAttach("held", "g"), m.LogHold("held", "g", "", 0, 100)), m.LogDetach("held", "g"), m.LogDetachOk),
    ((AUTO, m.BasicConsume("auto", "c")), m.BasicCancel("c"), m.BasicCancelOk),
    ((AUTO, m.BasicConsume("auto", "c")), m.ChannelClose(200, "", 0, 0), m.ChannelCloseOk),
]  # fmt: skip
UNCHANGING = {
    m.AccessRequest,
    m.BasicAck,
    m.BasicCancelOk,
    m.BasicConsume,
    m.BasicGet,
    m.BasicNack,
    m.BasicQos,
    m.BasicRecover,
    m.BasicRecoverAsync,
    m.BasicReject,
    m.ChannelCloseOk,
    m.ChannelFlow,
    m.ChannelFlowOk,
    m.ConfirmSelect,
    m.LogAttach,
    m.LogCount,
    m.LogInspect,
    m.LogRead,
    m.LogSettle,
    m.QueuePurge,
    m.StageLast,
    m.TxCommit,
    m.TxRollback,
    m.TxSelect,
}
"""Methods whose answers tell of no definition."""


def opened(harness: ProtocolHarness) -> Wire:
    wire = harness.wire()
    for method in SETUP:
        put(wire, method)
    put(wire, m.ConfirmSelect(False))
    for n in range(3):
        publish(wire, 1, "", "held", b"%d" % n)
    harness.settle_down()
    wire.frames()
    return wire


def put(wire: Wire, method: Method) -> None:
    wire.put(1, method)
    wire.harness.settle_down()
    wire.frames()


def turn(harness: ProtocolHarness) -> None:
    """Turns without a sync, until none has anything to do."""
    harness.turn()
    while harness.hub.unfinished():
        harness.turn()


@contextmanager
def counted(harness: ProtocolHarness, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The definitions that have changed meanwhile."""
    found: list[str] = []
    store = harness.store.definitions
    for name in ("put", "delete"):
        original = getattr(store, name)
        monkeypatch.setattr(store, name, lambda kind, *rest, original=original: (found.append(kind), original(kind, *rest)))  # fmt: skip
    yield found


def test_every_method_is_looked_at() -> None:
    changing = {type(method) for _, method, _ in CHANGING}
    assert not changing & UNCHANGING
    assert changing | UNCHANGING == set(HANDLERS)


@pytest.mark.parametrize(("before", "method", "answer"), CHANGING, ids=lambda value: getattr(value, "NAME", None))
def test_the_answer_waits_for_the_definition(
    before: tuple[Method, ...], method: Method, answer: type[Method], monkeypatch: pytest.MonkeyPatch
) -> None:
    """D2"""
    harness = ProtocolHarness()
    wire = opened(harness)
    for other in before:
        put(wire, other)
    with counted(harness, monkeypatch) as changed:
        wire.put(1, method)
        turn(harness)
    if not isinstance(method, m.StageCommit):  # its definition is written once its messages are durable
        assert changed, "this method changes no definition"
    assert not any(isinstance(found, answer) for found in wire.methods())
    harness.settle_down()
    assert any(isinstance(found, answer) for found in wire.methods())


def many_bindings(wire: Wire, name: str) -> None:
    """So many that deleting the queue takes several turns."""
    put(wire, m.QueueDeclare(name, durable=True))
    for n in range(300):
        put(wire, m.QueueBind(name, "amq.direct", f"k{n}"))


def test_so_does_the_answer_to_a_job_of_several_turns() -> None:
    """D2"""
    harness = ProtocolHarness()
    wire = opened(harness)
    many_bindings(wire, "many")
    wire.put(1, m.QueueDelete("many"))
    assert harness.hub.unfinished(), "it was all done at once"
    turn(harness)
    assert "many" not in harness.broker.vhosts["/"].queues and wire.methods() == []
    harness.settle_down()
    assert isinstance(wire.methods()[0], m.QueueDeleteOk)


def test_whoever_deletes_waits_for_the_definition_although_another_one_has_ended_the_deletion() -> None:
    """D2"""
    harness = ProtocolHarness()
    wire, other = opened(harness), harness.wire()
    put(wire, m.QueueDeclare("many", durable=True))
    put(wire, m.ExchangeDeclare("passing", "direct"))
    for n in range(110):  # bindings without definitions
        put(wire, m.QueueBind("many", "passing", f"k{n}"))
    wire.put(1, m.QueueDelete("many"))
    assert "many" in harness.broker.vhosts["/"].queues, "it was all done at once"
    other.put(1, m.QueueDeclare("many", durable=True))
    turn(harness)
    assert harness.broker.vhosts["/"].going == {}
    assert wire.methods() == [] and other.methods() == []
    harness.settle_down()
    assert isinstance(wire.methods()[0], m.QueueDeleteOk)
    assert isinstance(other.methods()[0], m.QueueDeclareOk)


def test_no_answer_waits_for_what_others_change() -> None:
    harness = ProtocolHarness()
    wire, other = opened(harness), harness.wire()
    other.put(1, m.QueueDeclare("new", durable=True))
    wire.put(1, m.QueueDeclare("q", durable=True))
    turn(harness)
    assert other.methods() == []
    assert isinstance(wire.methods()[0], m.QueueDeclareOk)
    harness.settle_down()


def test_changes_are_those_of_all_around_them_but_for_unanswered_ones() -> None:
    broker = ProtocolHarness().broker
    outer, inner, unanswered = Changes(broker), Changes(broker), Unanswered(broker)
    with outer:
        with unanswered, Changes(broker) as lost:
            broker.define("exchange", ("/", "a"), {})
        assert lost.made and not outer.made

        def steps() -> Iterator[None]:
            yield
            broker.define("exchange", ("/", "b"), {})

        job = inner.each(steps())
        next(job)
        assert not inner.made
    assert list(job) == [] and inner.made and not outer.made

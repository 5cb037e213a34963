"""A new exchange type is one class and one line in a table: one that reads a property works wherever messages are routed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker.routing import exchange
from kvitto.broker.routing.exchange import DirectIndex
from kvitto.broker.routing.index import Arguments, Dest
from kvitto.wire import methods as m
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.protocol.test_stage import answers, ask, bodies, commit, publish, stage

NAME = "x-by-property"


class PropertyIndex(DirectIndex):
    """The property that the exchange's argument names must be the binding's key."""

    arguments = ("property",)
    needs_properties = True

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self._property = str(arguments["property"])

    @classmethod
    def check_exchange(cls, thing: str, arguments: Arguments) -> None:
        if arguments.get("property") not in ("message_id", "type"):
            raise ChannelError(PRECONDITION_FAILED, f"invalid arg 'property' for {thing}")

    def check_binding(self, routing_key: str, _arguments: Arguments) -> None:
        if not routing_key:
            raise ChannelError(PRECONDITION_FAILED, "a binding needs a key")

    def route(self, _routing_key: str, properties: Any) -> Collection[Dest]:
        return super().route(getattr(properties, self._property) or "", properties)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Queues q1 and q2, bound for the message ids 1 and 2."""
    monkeypatch.setitem(exchange.TYPES, NAME, PropertyIndex)
    wire = ProtocolHarness().wire()
    wire.put(2, m.ChannelOpen())
    ask(wire, 2, m.ExchangeDeclare("x", NAME, durable=True, arguments={"property": "message_id"}))
    for n in "12":
        ask(wire, 2, m.QueueDeclare("q" + n, durable=True))
        ask(wire, 2, m.QueueBind("q" + n, "x", n))
    return wire


def expect_routed(wire: Wire, *numbers: int) -> None:
    """Each message went where its id says, and the one with an id that nobody wants to no queue."""
    for n in (1, 2):
        assert bodies(wire, 2, f"q{n}") == [b"for %d" % i for i in numbers if i == n]


def put(wire: Wire, *numbers: int) -> None:
    for n in numbers:
        publish(wire, 1, "x", "key", b"for %d" % n, message_id=str(n))
    wire.harness.settle_down()


def test_it_checks_its_own_arguments(wire: Wire) -> None:
    [close] = answers(wire, 1, m.ExchangeDeclare("y", NAME, durable=True, arguments={"property": "no-such"}))
    assert isinstance(close, m.ChannelClose) and close.reply_code == 406
    assert close.reply_text == "PRECONDITION_FAILED - invalid arg 'property' for exchange 'y' in vhost '/'"
    wire.put(3, m.ChannelOpen())
    again = m.ExchangeDeclare("x", NAME, durable=True, arguments={"property": "type"})
    close = answers(wire, 3, again)[-1]
    assert isinstance(close, m.ChannelClose) and "inequivalent arg 'property'" in close.reply_text
    wire.put(4, m.ChannelOpen())
    close = answers(wire, 4, m.QueueBind("q1", "x", ""))[-1]
    assert isinstance(close, m.ChannelClose) and close.reply_text.endswith("a binding needs a key")


def test_a_publish(wire: Wire) -> None:
    ask(wire, 1, m.ConfirmSelect(False))
    put(wire, 1, 2, 3, 1, 2)
    expect_routed(wire, 1, 2, 3, 1, 2)


def test_a_transaction(wire: Wire) -> None:
    ask(wire, 1, m.TxSelect())
    put(wire, 1, 2, 3, 1)
    expect_routed(wire)
    assert isinstance(ask(wire, 1, m.TxCommit()), m.TxCommitOk)
    expect_routed(wire, 1, 2, 3, 1)


def test_a_stage(wire: Wire) -> None:
    ask(wire, 1, m.ConfirmSelect(False))
    stage(wire)
    put(wire, 1, 2, 3, 1)
    commit(wire)
    expect_routed(wire, 1, 2, 3, 1)


def test_dead_letters(wire: Wire) -> None:
    ask(wire, 2, m.QueueDeclare("source", durable=True, arguments={"x-dead-letter-exchange": "x"}))
    for n in (1, 2, 1):
        publish(wire, 1, "", "source", b"for %d" % n, message_id=str(n))
        wire.harness.settle_down()
        wire.put(2, m.BasicGet("source", False))
        wire.harness.settle_down()
        [tag] = [method.delivery_tag for method in wire.methods() if isinstance(method, m.BasicGetOk)]
        wire.put(2, m.BasicReject(tag, False))
        wire.harness.settle_down()
    expect_routed(wire, 1, 2, 1)


def test_after_a_start(wire: Wire) -> None:
    """The start makes the exchange anew, with its arguments, and goes on with a stage that was committed."""
    ask(wire, 1, m.ConfirmSelect(False))
    stage(wire)
    put(wire, 1, 2)
    wire.put(2, m.StageCommit("w", 0, b"t"))
    harness = wire.harness
    harness.turn()
    while harness.broker.stages.writers["/", "w"].last:
        job = harness.store.begin_sync(everything=False)
        job.run()
        harness.end_sync(job)  # without a turn behind it, in which the messages would begin to move
    again = ProtocolHarness(harness.disk.kill()).wire()
    again.put(2, m.ChannelOpen())
    again.harness.settle_down()
    for _ in range(5):
        again.harness.settle_down()
    expect_routed(again, 1, 2)
    put(again, 2, 1)
    expect_routed(again, 2, 1)

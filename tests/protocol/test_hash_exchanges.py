"""Exchange types that choose one queue, on the wire: publishes of all kinds, restarts, bindings that change, alternate exchanges."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.wire import methods as m
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.protocol.test_stage import answers, ask, bodies, commit, publish, stage

QUEUES = [f"q{i}" for i in range(6)]


def wired(type_: str, **arguments: Any) -> Wire:
    """A durable exchange x with six queues, and a second channel."""
    wire = ProtocolHarness().wire()
    wire.put(2, m.ChannelOpen())
    ask(wire, 2, m.ExchangeDeclare("x", type_, durable=True, arguments=arguments))
    for name in QUEUES:
        ask(wire, 2, m.QueueDeclare(name, durable=True))
        ask(wire, 2, m.QueueBind(name, "x", "" if type_ == "x-local-random" else "1"))
    return wire


def put(wire: Wire, n: int = 60, channel: int = 1) -> None:
    for i in range(n):
        publish(wire, channel, "x", f"key-{i % 20}", b"%d" % (i % 20), headers={"h": str(i % 20)})
    wire.harness.settle_down()


def placement(wire: Wire) -> dict[bytes, str]:
    """By body, the queue in which all messages with it were."""
    found: dict[bytes, str] = {}
    for name in QUEUES:
        for body in bodies(wire, 2, name):
            assert found.setdefault(body, name) == name, "equal values went to two queues"
    return found


HASHES: list[tuple[str, dict[str, Any]]] = [
    ("x-consistent-hash", {}),
    ("x-consistent-hash", {"hash-header": "h"}),
    ("x-consistent-hash", {"x-hash-on": "h", "x-algorithm": "jump"}),
    ("x-modulus-hash", {}),
]


@pytest.mark.parametrize(("type_", "arguments"), HASHES)
def test_equal_values_go_to_one_queue_however_they_come(type_: str, arguments: dict[str, Any]) -> None:
    wire = wired(type_, **arguments)
    put(wire)
    expected = placement(wire)
    assert len(expected) == 20 and len(set(expected.values())) > 3
    ask(wire, 1, m.ConfirmSelect(False))
    put(wire)
    assert placement(wire) == expected, "with confirms"
    wire.put(3, m.ChannelOpen())
    ask(wire, 3, m.TxSelect())
    put(wire, channel=3)
    assert isinstance(ask(wire, 3, m.TxCommit()), m.TxCommitOk)
    wire.harness.settle_down()
    assert placement(wire) == expected, "in a transaction"
    stage(wire)
    put(wire)
    commit(wire)
    assert placement(wire) == expected, "in a stage"


@pytest.mark.parametrize(("type_", "arguments"), HASHES)
def test_the_placement_survives_a_restart_and_other_bindings(type_: str, arguments: dict[str, Any]) -> None:
    wire = wired(type_, **arguments)
    put(wire)
    expected = placement(wire)
    for name in ("q3", "q0"):  # they come back in another order
        ask(wire, 2, m.QueueUnbind(name, "x", "1"))
    for name in ("q3", "q0"):
        ask(wire, 2, m.QueueBind(name, "x", "1"))
    ask(wire, 2, m.QueueDeclare("guest", durable=True))
    ask(wire, 2, m.QueueBind("guest", "x", "1"))
    ask(wire, 2, m.QueueDelete("guest"))
    put(wire)
    assert placement(wire) == expected
    wire.harness.settle_down()
    again = ProtocolHarness(wire.harness.disk.kill()).wire()
    again.put(2, m.ChannelOpen())
    put(again)
    assert placement(again) == expected


def test_a_binding_that_is_taken_back_moves_its_values_only() -> None:
    wire = wired("x-consistent-hash")
    put(wire)
    before = placement(wire)
    ask(wire, 2, m.QueueUnbind("q2", "x", "1"))
    put(wire)
    after = placement(wire)
    assert {body for body in before if before[body] != after[body]} == {b for b, name in before.items() if name == "q2"}


@pytest.mark.parametrize("type_", ["x-random", "x-local-random"])
def test_chance_decides_for_each_message(type_: str) -> None:
    wire = wired(type_)
    ask(wire, 1, m.ConfirmSelect(False))
    for i in range(300):
        publish(wire, 1, "x", "key", b"%d" % i)
    wire.harness.settle_down()
    counts = [len(bodies(wire, 2, name)) for name in QUEUES]
    assert sum(counts) == 300 and min(counts) > 15


@pytest.mark.parametrize("type_", ["x-consistent-hash", "x-modulus-hash", "x-random"])
def test_a_message_without_a_queue_is_returned(type_: str) -> None:
    wire = ProtocolHarness().wire()
    ask(wire, 1, m.ExchangeDeclare("x", type_))
    publish(wire, 1, "x", "key", b"m", mandatory=True)
    wire.harness.settle_down()
    [returned] = wire.methods()
    assert isinstance(returned, m.BasicReturn) and returned.reply_code == 312


def test_dead_letters_are_placed_like_other_messages() -> None:
    wire = wired("x-consistent-hash", **{"hash-header": "h"})
    put(wire)
    expected = placement(wire)
    source: dict[str, Any] = {"x-dead-letter-exchange": "x", "x-message-ttl": 0}
    ask(wire, 2, m.QueueDeclare("source", durable=True, arguments=source))
    for i in range(20):
        publish(wire, 1, "", "source", b"%d" % i, headers={"h": str(i)})
    for _ in range(5):
        wire.harness.settle_down()
    assert placement(wire) == expected


# -- alternate exchanges -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["alternate-exchange", "x-alternate-exchange"])
def test_both_names_of_the_alternate_exchange(name: str) -> None:
    wire = ProtocolHarness().wire()
    ask(wire, 1, m.ExchangeDeclare("rest", "fanout"))
    ask(wire, 1, m.QueueDeclare("q"))
    ask(wire, 1, m.QueueBind("q", "rest", ""))
    ask(wire, 1, m.ExchangeDeclare("x", "direct", arguments={name: "rest"}))
    publish(wire, 1, "x", "nobody", b"m")
    wire.harness.settle_down()
    assert bodies(wire, 1, "q") == [b"m"]
    for other in ("alternate-exchange", "x-alternate-exchange"):
        assert isinstance(
            ask(wire, 1, m.ExchangeDeclare("x", "direct", arguments={other: "rest"})), m.ExchangeDeclareOk
        )
    [close] = answers(wire, 1, m.ExchangeDeclare("x", "direct", arguments={"x-alternate-exchange": "other"}))
    assert isinstance(close, m.ChannelClose) and "inequivalent arg 'alternate-exchange'" in close.reply_text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-alternate-exchange": 5}, "invalid type 'signedint' for arg 'x-alternate-exchange' in exchange 'x'"),
        ({"x-alternate-exchange": "a", "alternate-exchange": "b"}, "name two exchanges"),
    ],
)
def test_an_alternate_exchange_that_cannot_be(arguments: dict[str, Any], text: str) -> None:
    [close] = answers(ProtocolHarness().wire(), 1, m.ExchangeDeclare("x", "direct", arguments=arguments))
    assert isinstance(close, m.ChannelClose) and close.reply_code == 406 and text in close.reply_text

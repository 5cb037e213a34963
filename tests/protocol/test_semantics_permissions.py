"""Who may do what: W5 of the contract. A user with the right of one kind on names of one kind, and every method that asks."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.wire import methods as m
from kvitto.wire.methods import Method
from tests.protocol.raw import NO_PROPERTIES, content
from tests.protocol.sansio import ProtocolHarness, Wire

DEAD: dict[str, Any] = {"x-dead-letter-exchange": "x.dead"}
ALTERNATE: dict[str, Any] = {"alternate-exchange": "x.other"}

CASES: list[tuple[Method, list[tuple[str, str]]]] = [
    (m.QueueDeclare("q.new"), [("configure", "q.new")]),
    (m.QueueDeclare(""), [("configure", "amq.gen-")]),
    (m.QueueDeclare("q.new", arguments=DEAD), [("configure", "q.new"), ("read", "q.new"), ("write", "x.dead")]),
    (m.QueueDelete("q"), [("configure", "q")]),
    (m.QueuePurge("q"), [("read", "q")]),
    (m.QueueBind("q", "x", "k"), [("write", "q"), ("read", "x")]),
    (m.QueueUnbind("q", "x", "k"), [("write", "q"), ("read", "x")]),
    (m.ExchangeDeclare("x.new", "fanout"), [("configure", "x.new")]),
    (
        m.ExchangeDeclare("x.new", "fanout", arguments=ALTERNATE),
        [("configure", "x.new"), ("read", "x.new"), ("write", "x.other")],
    ),
    (m.ExchangeDelete("x"), [("configure", "x")]),
    (m.ExchangeBind("y", "x"), [("write", "y"), ("read", "x")]),
    (m.ExchangeUnbind("y", "x"), [("write", "y"), ("read", "x")]),
    (m.BasicConsume("q", "c"), [("read", "q")]),
    (m.BasicGet("q"), [("read", "q")]),
    (m.BasicPublish("x", "k"), [("write", "x")]),
    (m.BasicPublish("", "q"), [("write", "amq.default")]),
]


def enter(rights: dict[str, str]) -> tuple[ProtocolHarness, Wire]:
    """A harness with queue q and exchanges x and y, and a user with these rights: operation -> expression."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q"), m.ExchangeDeclare("x", "direct"), m.ExchangeDeclare("y", "direct"))
    harness.settle_down()
    harness.broker.users.add("alice", "alice")
    harness.broker.users.set_permission(
        "alice", "/", rights.get("configure", ""), rights.get("write", ""), rights.get("read", "")
    )
    alice = Wire(harness)
    alice.login("alice")
    return harness, alice


def answer(harness: ProtocolHarness, wire: Wire, method: Method) -> Any:
    """What comes back; a publish is followed by a request, so that there is an answer."""
    if isinstance(method, m.BasicPublish):
        wire.feed(content(1, method, NO_PROPERTIES, b"x"))
        wire.put(1, m.BasicQos())
    else:
        wire.put(1, method)
    harness.settle_down()
    return wire.methods()[0]


def rights_of(needed: list[tuple[str, str]]) -> dict[str, str]:
    rights: dict[str, str] = {}
    for operation, name in needed:
        expression = "^" + name.replace(".", r"\.") + ".*$"
        rights[operation] = f"{rights[operation]}|{expression}" if operation in rights else expression
    return rights


@pytest.mark.parametrize(("method", "needed"), CASES, ids=lambda x: repr(x)[:60] if isinstance(x, m.Method) else "")
def test_every_right_is_needed_and_enough(method: Method, needed: list[tuple[str, str]]) -> None:
    """W5: 403 on the channel, naming what is missing."""
    allowed = answer(*enter(rights_of(needed)), method)
    assert not isinstance(allowed, m.ChannelClose | m.ConnectionClose), allowed
    for missing in needed:
        rest = rights_of([right for right in needed if right != missing])
        if missing[0] in rest:  # the expression of the other name covers no more than that
            assert len({operation for operation, _ in needed}) < len(needed)
        close = answer(*enter(rest), method)
        assert isinstance(close, m.ChannelClose) and close.reply_code == 403
        assert close.reply_text.startswith(f"ACCESS_REFUSED - {missing[0]} access to ")
        assert "refused for user 'alice'" in close.reply_text


def test_what_is_there_may_be_declared_again_without_the_rights_on_what_it_points_to() -> None:
    """W5, D1: read and write are asked for when the arguments begin to count, as with RabbitMQ; others than those it has are still 406."""
    harness, alice = enter({"configure": r"^[qx]\."})
    admin = harness.wire()
    queue, exchange = m.QueueDeclare("q.new", arguments=DEAD), m.ExchangeDeclare("x.new", "fanout", arguments=ALTERNATE)
    admin.put(1, queue, exchange)
    harness.settle_down()
    assert isinstance(answer(harness, alice, queue), m.QueueDeclareOk)
    assert isinstance(answer(harness, alice, exchange), m.ExchangeDeclareOk)
    other = m.QueueDeclare("q.new", arguments={"x-dead-letter-exchange": "x.more"})
    assert answer(harness, alice, other).reply_code == 406


def test_a_generated_name_is_asked_for_as_it_is() -> None:
    """W5: an expression may want more than how it begins."""
    harness, alice = enter({"configure": r"^amq\.gen-[\w-]{22}$"})
    assert isinstance(answer(harness, alice, m.QueueDeclare("")), m.QueueDeclareOk)


def test_rights_that_change_count_at_once() -> None:
    """W5: for a publish whose route is cached too."""
    harness, alice = enter({"write": ".*"})
    publish = m.BasicPublish("x", "k")
    assert isinstance(answer(harness, alice, publish), m.BasicQosOk)
    harness.broker.users.set_permission("alice", "/", "", "", "")
    assert isinstance(answer(harness, alice, publish), m.ChannelClose)


def test_no_rights_on_a_vhost_means_no_entry() -> None:
    """W4: 530."""
    harness = ProtocolHarness()
    harness.broker.users.add("bob", "bob")
    wire = Wire(harness)
    wire.login("bob")
    assert b"access to vhost '/' refused for user 'bob'" in wire.written


def test_the_name_that_is_looked_for_is_not_told_to_who_may_not_know() -> None:
    """W5: 403 before 404."""
    harness, _ = enter({})
    for method in (
        m.BasicConsume("q.none", "c"),
        m.BasicGet("q.none"),
        m.QueueDelete("q.none"),
        m.ExchangeDelete("x.none"),
    ):
        wire = Wire(harness)
        wire.login("alice")
        assert answer(harness, wire, method).reply_code == 403, method

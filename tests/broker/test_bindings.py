"""Bindings of a virtual host: what finding and removing them costs, and which are the same."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvitto.broker.routing.exchange import Exchange
from kvitto.broker.vhost import VHost
from tests.support.harness import BrokerHarness

NAN = math.nan


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the exchanges that were asked for a binding to something, or to remove one."""
    names: list[str] = []

    def watch(name: str) -> None:
        before = getattr(Exchange, name)

        def asked(self: Exchange, *args: Any) -> Any:
            if self.name:
                names.append(self.name)
            return before(self, *args)

        monkeypatch.setattr(Exchange, name, asked)

    for name in ("pop", "leads_to", "unbind", "bindings_to", "unbind_all"):
        if hasattr(Exchange, name):
            watch(name)
    return names


def exchanges(vhost: VHost, count: int, auto_delete: bool = False) -> None:
    for i in range(count):
        vhost.declare_exchange(f"x{i}", "direct", False, auto_delete, False, {})


def test_deleting_a_queue_asks_only_the_exchanges_that_lead_to_it(asked: list[str]) -> None:
    """2,000 exclusive queues and 20,000 exchanges took 21 s to go."""
    harness = BrokerHarness()
    vhost = harness.broker.vhosts["/"]
    exchanges(vhost, 50)
    queue = harness.declare("q", durable=False)
    vhost.bind("x7", queue, "a", {})
    vhost.bind("x7", queue, "b", {})
    vhost.bind("amq.fanout", queue, "", {})
    asked.clear()
    harness.delete("q")
    assert set(asked) == {"x7", "amq.fanout"} and vhost.bindings == 0
    asked.clear()
    harness.declare("lonely", durable=False)
    harness.delete("lonely")
    assert not asked


def test_an_auto_delete_exchange_goes_without_a_look_at_the_others(asked: list[str]) -> None:
    """Unbinding and binding again with 20,000 auto-delete exchanges took 22 s."""
    harness = BrokerHarness()
    vhost = harness.broker.vhosts["/"]
    exchanges(vhost, 50, auto_delete=True)
    queue = harness.declare("q", durable=False)
    for i in range(50):
        vhost.bind(f"x{i}", queue, "", {})
    for i in range(50):
        asked.clear()
        vhost.unbind(f"x{i}", queue, "", {})
        assert set(asked) == {f"x{i}"}
    assert "x7" not in vhost.exchanges


def test_an_unbound_exchange_no_longer_leads_to_the_queue() -> None:
    harness = BrokerHarness()
    vhost = harness.broker.vhosts["/"]
    exchanges(vhost, 3)
    queue = harness.declare("q", durable=False)
    for key in ("a", "b"):
        vhost.bind("x1", queue, key, {})
    vhost.unbind("x1", queue, "a", {})
    assert [b.routing_key for b in vhost.bindings_to(queue)] == ["q", "b"]
    vhost.unbind("x1", queue, "b", {})
    vhost.bind("x2", vhost.exchange("x0"), "", {})
    vhost.delete_exchange("x2")
    assert [b.routing_key for b in vhost.bindings_to(queue)] == ["q"]
    assert list(vhost.bindings_to(vhost.exchange("x0"))) == []
    harness.delete("q")
    assert vhost.bindings == 0


def test_deleting_an_exchange_takes_its_bindings_away_from_both_ends() -> None:
    harness = BrokerHarness()
    vhost = harness.broker.vhosts["/"]
    exchanges(vhost, 3)
    queue = harness.declare("q")
    vhost.bind("x0", vhost.exchange("x1"), "", {})
    vhost.bind("x1", queue, "", {})
    vhost.bind("x2", queue, "", {})
    vhost.delete_exchange("x1")
    assert vhost.bindings == 1 and [b.source.name for b in vhost.bindings_to(queue)] == ["", "x2"]
    assert vhost.exchange("x0").unused


@pytest.mark.parametrize(
    "arguments", [{"a": NAN}, {"a": [1, NAN]}, {"a": {"b": NAN}}, {"x-match": "any", "a": -NAN}], ids=str
)
@pytest.mark.parametrize("kind", ["direct", "headers"])
def test_a_binding_with_a_nan_argument_is_one_binding(kind: str, arguments: dict[str, Any]) -> None:
    """It was made again and again, unbinding it removed nothing, and a restart made one of three."""
    harness = BrokerHarness()
    vhost = harness.broker.vhosts["/"]
    vhost.declare_exchange("x", kind, True, False, False, {})
    queue = harness.declare("q")
    for _ in range(3):
        vhost.bind("x", queue, "k", dict(arguments))
    assert vhost.bindings == 1
    harness.restart()
    vhost = harness.broker.vhosts["/"]
    queue = harness.queue("q")
    assert vhost.bindings == 1
    vhost.unbind("x", queue, "k", dict(arguments))
    assert vhost.bindings == 0
    harness.restart()
    assert harness.broker.vhosts["/"].bindings == 0


def test_a_binding_that_was_removed_by_equal_arguments_does_not_come_back() -> None:
    """1 and 1.0 are equal, but have other bytes: a restart brought the binding back."""
    harness = BrokerHarness()
    vhost = harness.broker.vhosts["/"]
    queue = harness.declare("q")
    vhost.bind("amq.headers", queue, "", {"a": 1})
    vhost.unbind("amq.headers", queue, "", {"a": 1.0})
    assert vhost.bindings == 0
    harness.restart()
    assert harness.broker.vhosts["/"].bindings == 0

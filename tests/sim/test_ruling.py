"""What the model of policies expects of the queue RULED."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvitto.broker.administration.policies import policy
from kvitto.broker.administration.policing import set_policy
from kvitto.wire import methods as m
from tests.sim.plan import DEAD
from tests.sim.setup import FLEETING, RULED
from tests.sim.world import SimulatedRun, check_state, small_world
from tests.support.simdisk import FillingDisk


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedRun]:
    """A client with the queue RULED that does nothing by chance. The disk has room until a test says otherwise."""
    with small_world(1):
        world = SimulatedRun(1, FillingDisk(1 << 60, 8), about="policies")
        world.start()
        monkeypatch.setattr(world.actor, "something_quick", lambda: None)
        yield world


def rule(world: SimulatedRun, queue: str = RULED, **definition: Any) -> None:
    definition = {key.replace("_", "-"): value for key, value in definition.items()}
    value = {"pattern": queue, "definition": definition, "apply-to": "all", "priority": 0}
    steps = set_policy(world.harness.broker.vhosts["/"], "policy", policy("one", value, False))
    world.actor.ruling.change([{("policy", "/", "one"): value}], steps)


def deliver_twice(world: SimulatedRun, body: bytes) -> None:
    """The message comes, goes back, and comes again."""
    actor = world.actor
    actor._send((RULED,), [body], "")
    actor.attend(RULED, 1)
    ((channel, tag),) = actor.held
    actor._note_given_up(channel, tag, True)
    actor.inbox_put(m.BasicNack(tag, False, True))
    actor.rest()
    assert list(actor.held.values()) == [(RULED, body)]


def test_a_delivery_limit_counts_what_was_delivered_before_it_came(world: SimulatedRun) -> None:
    """Such a message, unacked when the broker goes down, leaves at the next start, and is not lost."""
    deliver_twice(world, b"twice")
    rule(world, delivery_limit=0)
    found = check_state(world.disk.copy().kill(), world.clock, world.ledger)
    assert found[RULED] == []


def test_a_delivery_limit_that_is_not_reached_lets_nothing_leave(world: SimulatedRun) -> None:
    deliver_twice(world, b"twice")
    rule(world, delivery_limit=3)
    assert not world.ledger.queue(RULED).may_lack(b"twice")
    found = check_state(world.disk.copy().kill(), world.clock, world.ledger)
    assert found[RULED] == [(b"twice", True)]


def test_what_expired_behind_another_message_may_leave_to_where_a_later_policy_says(world: SimulatedRun) -> None:
    """Messages expire at the head of a queue, so that it is still there when the policy with the dead letters comes."""
    actor = world.actor
    actor._send((RULED,), [b"stays"], "")
    rule(world, message_ttl=500)
    actor._send((RULED,), [b"expires"], "")
    actor.rest()
    actor.let_tick(1000)
    rule(world, max_length=1, dead_letter_exchange="", dead_letter_routing_key=DEAD)
    found = check_state(world.disk.copy().kill(), world.clock, world.ledger)
    assert {body for body, _ in found[DEAD]} == {b"stays", b"expires"}


def test_a_queue_may_expire_before_its_declaration_is_answered(world: SimulatedRun) -> None:
    """The answer waits until the disk has room again, and the time of the queue does not."""
    rule(world, FLEETING, expires=1500)
    assert isinstance(world.disk, FillingDisk)
    world.disk.start = world.disk.operations
    world.actor.ruling.use_fleeting()
    found = check_state(world.disk.copy().kill(), world.clock, world.ledger)
    assert FLEETING not in found

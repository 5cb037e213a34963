"""Which message of the queue with a single active consumer the model expects next."""

from __future__ import annotations

from kvitto.wire import methods as m
from tests.sim.actor import INBOX
from tests.sim.singles import MATE, SINGLE, Registered
from tests.sim.world import SimulatedRun, small_world


def test_what_a_consumer_is_sent_meanwhile_on_another_connection_is_not_passed_over_by_a_get() -> None:
    """Both are read together, and which of them the broker sent first cannot be seen."""
    with small_world(1):
        world = SimulatedRun(1, about="consumers")
        world.start()
        actor = world.actor
        singles = actor.singles
        assert singles is not None
        actor.consumers["tag"] = SINGLE
        singles.register(Registered("tag", MATE, 0, 1))
        actor.inbox_put(m.BasicQos(0, 1, False), m.BasicConsume(SINGLE, "tag"), channel=MATE)
        actor._send((SINGLE,), [b"one", b"two", b"three"], "")
        actor.rest()
        assert list(actor.held.values()) == [(SINGLE, b"one")]
        actor.note_settled(1, MATE)
        actor.inbox_put(m.BasicAck(1, False), channel=MATE)
        actor.harness.turn()
        actor.inbox_put(m.BasicGet(SINGLE, False))
        actor.getting = SINGLE
        actor.rest()
        assert actor.held == {(INBOX, 1): (SINGLE, b"three"), (MATE, 2): (SINGLE, b"two")}

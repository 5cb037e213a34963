"""Which deliveries the model of consumer timeouts expects to be late."""

from __future__ import annotations

from kvitto.wire import methods as m
from tests.sim.actor import INBOX
from tests.sim.lateness import SLOW
from tests.sim.world import SimulatedRun, small_world


def test_a_delivery_with_the_tag_of_a_late_one_on_an_earlier_channel_is_not_late() -> None:
    """Only the first one was of a queue with a timeout."""
    with small_world(1):
        world = SimulatedRun(1, about="consumers")
        world.start()
        actor = world.actor
        for queue in (SLOW, "a"):
            actor._send((queue,), [queue.encode()], "")
            actor.rest()
            actor.inbox_put(m.BasicGet(queue, False))
            actor.getting = queue
            actor.rest()
            assert actor.held[INBOX, 1] == (queue, queue.encode())
            if queue == SLOW:
                assert [key for key, _ in actor.lateness.held()] == [(INBOX, 1)]
                actor.lose_channel()
        assert actor.lateness.held() == []

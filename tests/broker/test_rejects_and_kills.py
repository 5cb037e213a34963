"""X4, A11: what a killed process has done of a reject whose message goes to a dead-letter exchange."""

from __future__ import annotations

from tests.support.harness import BrokerHarness


def rejected(synced: bool) -> BrokerHarness:
    """Killed right after the turn in which the reject came in."""
    harness = BrokerHarness()
    harness.declare("dead")
    queue = harness.declare("work", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    harness.publish("work", b"rejected")
    harness.turn()
    if synced:
        harness.settle_down()
    (delivery,) = harness.take("work")
    queue.reject(delivery.offset, 1)
    harness.turn()
    harness.kill()
    harness.settle_down()
    return harness


def test_a_reject_of_a_synced_message_survives_a_kill_right_after_its_turn() -> None:
    harness = rejected(synced=True)
    assert [delivery.body for delivery in harness.take("dead")] == [b"rejected"]
    assert not harness.take("work")


def test_a_reject_of_a_message_that_is_not_synced_yet_comes_back_flagged() -> None:
    """Its move may not be in the journal before: an offset that a power cut takes belongs to another message later (P5)."""
    harness = rejected(synced=False)
    assert [(delivery.body, delivery.redelivered) for delivery in harness.take("work")] == [(b"rejected", True)]
    assert not harness.take("dead")

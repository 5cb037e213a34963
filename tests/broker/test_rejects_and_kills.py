"""X4, A11: what a killed process has done of a reject whose message goes to a dead-letter exchange."""

from __future__ import annotations

from tests.support.rig import Rig


def rejected(synced: bool) -> Rig:
    """Killed right after the turn in which the reject came in."""
    rig = Rig()
    rig.declare("dead")
    queue = rig.declare("work", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    rig.publish("work", b"rejected")
    rig.turn()
    if synced:
        rig.settle_down()
    (delivery,) = rig.take("work")
    queue.reject(delivery.offset, 1)
    rig.turn()
    rig.kill()
    rig.settle_down()
    return rig


def test_a_reject_of_a_synced_message_survives_a_kill_right_after_its_turn() -> None:
    rig = rejected(synced=True)
    assert [delivery.body for delivery in rig.take("dead")] == [b"rejected"]
    assert not rig.take("work")


def test_a_reject_of_a_message_that_is_not_synced_yet_comes_back_flagged() -> None:
    """Its move may not be in the journal before: an offset that a power cut takes belongs to another message later (P5)."""
    rig = rejected(synced=False)
    assert [(delivery.body, delivery.redelivered) for delivery in rig.take("work")] == [(b"rejected", True)]
    assert not rig.take("dead")

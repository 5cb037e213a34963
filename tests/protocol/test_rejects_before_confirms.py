"""P5, X4: what one connection rejects, and publishes behind it: after a kill the confirmed message is not there without the rejects."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.broker.transfers.deadletter import LETTERS_PER_TURN
from kvitto.wire import methods as m
from tests.protocol.sansio import NO_TIME_S, ProtocolHarness
from tests.sim.workload import content
from tests.support.harness import BrokerHarness


@pytest.mark.parametrize("count", [1, LETTERS_PER_TURN])
@pytest.mark.parametrize("synced", [False, True])
def test_a_confirm_does_not_overtake_as_many_rejects_as_one_turn_moves(synced: bool, count: int) -> None:
    harness = ProtocolHarness()
    wire = harness.wire()
    to_dead: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    for name in ("work", "dead", "other"):
        wire.put(1, m.QueueDeclare(name, False, True, arguments=to_dead if name == "work" else {}))
        harness.settle_down()
    wire.feed(content(1, "other", b"first"))  # the first message of a queue waits for one more sync
    harness.settle_down()
    wire.put(1, m.ConfirmSelect(False), m.BasicConsume("work", "c"))
    for _ in range(count):
        wire.feed(content(1, "work", b"rejected"))
    harness.turn()
    if synced:
        harness.settle_down()
    wire.put(1, m.BasicNack(count, True, False))
    wire.feed(content(1, "other", b"behind"))
    harness.turn()
    confirmed = 0
    while confirmed <= count:
        harness.sync()
        confirmed = max([confirmed, *(ack.delivery_tag for ack in wire.methods() if isinstance(ack, m.BasicAck))])
    restarted = BrokerHarness(harness.disk.kill())
    restarted.settle_down()
    assert restarted.peek("other") == [b"first", b"behind"]
    assert (restarted.peek("dead"), restarted.peek("work")) == ([b"rejected"] * count, [])


def test_a_confirm_does_not_overtake_rejects_because_letters_of_others_are_left() -> None:
    """Time limits letters that earlier turns have left (adr/0034), but not in a turn in which consumers have refused messages."""
    harness, each = ProtocolHarness(), 2
    wire, others = harness.wire(), [f"other{i}" for i in range(LETTERS_PER_TURN // each + 8)]
    to_dead: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    for name in (*others, "work", "dead", "behind"):
        wire.put(1, m.QueueDeclare(name, False, True, arguments={} if name in ("dead", "behind") else to_dead))
        harness.settle_down()
    wire.put(1, m.ConfirmSelect(False))
    for name in (*others, "work"):
        wire.put(1, m.BasicConsume(name, name))
        wire.feed(b"".join(content(1, name, name.encode()) for _ in range(1 if name == "work" else each)))
    wire.feed(content(1, "behind", b"first"))
    harness.settle_down()
    wire.methods()
    wire.put(1, m.BasicNack(len(others) * each, True, False))
    harness.turn()
    assert len(harness.broker.dead_letters.waiting) == 8
    wire.put(1, m.BasicNack(len(others) * each + 1, False, False))
    wire.feed(content(1, "behind", b"second"))
    harness.broker.turn_s = NO_TIME_S
    harness.turn()
    while not any(isinstance(ack, m.BasicAck) for ack in wire.methods()):
        harness.sync()
    restarted = BrokerHarness(harness.disk.kill())
    restarted.settle_down()
    assert restarted.peek("behind") == [b"first", b"second"]
    assert b"work" in restarted.peek("dead")
    assert restarted.peek("work") == []

"""P5, X4: what one connection rejects, and publishes behind it: after a kill the confirmed message is not there without the rejects."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.broker.transfers.deadletter import LETTERS_PER_TURN
from kvitto.wire import methods as m
from tests.protocol.sansio import ProtocolHarness
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

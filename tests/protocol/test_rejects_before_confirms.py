"""P5, X4: what one connection rejects, and publishes behind it: after a kill the confirmed message is not there without the rejects."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.broker.transfers.deadletter import LETTERS_PER_TURN
from kvitto.wire import methods as m
from tests.protocol.sansio import House
from tests.sim.workload import content
from tests.support.rig import Rig


@pytest.mark.parametrize("count", [1, LETTERS_PER_TURN])
@pytest.mark.parametrize("synced", [False, True])
def test_a_confirm_does_not_overtake_as_many_rejects_as_one_turn_moves(synced: bool, count: int) -> None:
    house = House()
    wire = house.wire()
    to_dead: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    for name in ("work", "dead", "other"):
        wire.put(1, m.QueueDeclare(name, False, True, arguments=to_dead if name == "work" else {}))
        house.settle()
    wire.feed(content(1, "other", b"first"))  # the first message of a queue waits for one more sync
    house.settle()
    wire.put(1, m.ConfirmSelect(False), m.BasicConsume("work", "c"))
    for _ in range(count):
        wire.feed(content(1, "work", b"rejected"))
    house.turn()
    if synced:
        house.settle()
    wire.put(1, m.BasicNack(count, True, False))
    wire.feed(content(1, "other", b"behind"))
    house.turn()
    confirmed = 0
    while confirmed <= count:
        house.sync()
        confirmed = max([confirmed, *(ack.delivery_tag for ack in wire.methods() if isinstance(ack, m.BasicAck))])
    rig = Rig(house.disk.kill())
    rig.settle_down()
    assert rig.peek("other") == [b"first", b"behind"]
    assert (rig.peek("dead"), rig.peek("work")) == ([b"rejected"] * count, [])

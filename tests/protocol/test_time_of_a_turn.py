"""A turn that is out of time (adr/0034) leaves what it can leave to the next one, and each turn does at least one step of everything."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.broker.transfers.deadletter import LETTERS_PER_TURN
from kvitto.broker.turning import LEAST_WRITTEN
from kvitto.protocol.hub import PUT_OFF_MAX
from kvitto.wire import methods as m
from tests.protocol.sansio import NO_TIME_S, ProtocolHarness
from tests.sim.workload import content


@pytest.fixture
def harness() -> ProtocolHarness:
    harness = ProtocolHarness()
    harness.broker.turn_s = NO_TIME_S
    return harness


def test_dead_letters_go_on_with_one_in_each_turn(harness: ProtocolHarness) -> None:
    # P5 says how many are moved by the turn that handles their reject: that many are, although there is no time
    wire, more = harness.wire(), 20
    to_dead: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    wire.put(1, m.QueueDeclare("work", False, True, arguments=to_dead))
    harness.settle_down()
    wire.put(1, m.QueueDeclare("dead", False, True))
    harness.settle_down()
    wire.put(1, m.BasicConsume("work", "c"))
    wire.feed(b"".join(content(1, "work", b"rejected") for _ in range(LETTERS_PER_TURN + more)))
    harness.settle_down()
    wire.put(1, m.BasicNack(0, True, False))
    queues, moves, waiting = harness.broker.vhosts["/"].queues, harness.broker.dead_letters.waiting, list[int]()
    harness.turn()
    while moves:
        waiting.append(sum(count for _, count, _ in next(iter(moves.values()))))
        harness.turn()
    assert waiting == list(range(more, 0, -1))
    harness.settle_down()
    assert [queue.ready for queue in (queues["work"], queues["dead"])] == [0, LETTERS_PER_TURN + more]


@pytest.mark.parametrize("turn_s", [0.0, NO_TIME_S])
def test_a_turn_writes_some_queues_and_the_next_ones_the_others(turn_s: float) -> None:
    harness = ProtocolHarness()
    wire, count = harness.wire(), LEAST_WRITTEN + 10
    wire.put(1, m.ConfirmSelect(False))
    for i in range(count):
        wire.put(1, m.QueueDeclare(f"q{i}", False, True))
        harness.settle_down()
        wire.feed(content(1, f"q{i}", b"first"))
    harness.settle_down()
    harness.broker.changes_each = count  # they are written in this turn, instead of in later ones
    wire.feed(b"".join(content(1, f"q{i}", b"second") for i in range(count)))
    before = harness.broker.written
    harness.broker.turn_s = turn_s
    harness.turn()
    assert harness.broker.written - before == (LEAST_WRITTEN if turn_s else count)
    harness.settle_down()
    wire.frames()
    assert harness.broker.written - before == count
    assert harness.hub.confirms.answered == 2 * count


def test_input_goes_on_with_one_method_in_each_turn(harness: ProtocolHarness) -> None:
    wire, count = harness.wire(), 10
    for i in range(count):
        wire.put(1, m.QueueDeclare(f"q{i}", False, False))
        harness.settle_down()
    wire.frames()
    wire.put(1, *(m.QueueDeclare(f"q{i}", True, False) for i in range(count)))
    answers = list[int]()
    while wire.connection.yielded:
        harness.turn()
        answers.append(len(wire.methods()))
    # one was handled when it came, and is answered before the others go on
    assert answers == [1] * count + [0]


def test_connections_that_wait_for_one_commit_take_their_input_in_several_turns(harness: ProtocolHarness) -> None:
    """50 clients whose changes were announced together held the loop until each had made its next change."""
    wires = [harness.wire() for _ in range(10)]
    for number, wire in enumerate(wires):
        wire.put(1, *(m.ExchangeDeclare(f"{name}{number}", "direct", durable=True) for name in "ef"))
        while wire.connection.yielded:
            harness.turn()
    exchanges = harness.broker.vhosts["/"].exchanges
    before = len(exchanges)
    job = harness.store.begin_sync(everything=False)
    job.run()
    harness.broker.begin_time()
    harness.end_sync(job)
    assert len(exchanges) == before
    harness.turn()
    assert len(exchanges) == before + 1
    harness.settle_down()
    assert len(exchanges) == before + len(wires)


def test_long_input_that_goes_on_waits_for_some_turns_for_what_others_wait_for(harness: ProtocolHarness) -> None:
    """Answers come behind it. A confirm beside tables of 128 KiB met one of them in each of its rounds."""
    wire, count = harness.wire(), 10
    wire.put(1, *(m.ExchangeDeclare(f"e{i}", "fanout") for i in range(count)))
    exchanges, made = harness.broker.vhosts["/"].exchanges, list[int]()
    before = len(exchanges) - 1  # one was made when the input came
    while wire.connection.yielded:
        harness.broker.somebody_waits = True
        harness.turn()
        made.append(len(exchanges) - before)
    assert made[: 3 * 9] == [1, 1, *(done for done in range(2, 10) for _ in range(PUT_OFF_MAX + 1)), 10]

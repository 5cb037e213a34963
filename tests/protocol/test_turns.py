"""A turn writes so much; what is left waits for the next ones, and so do its confirms."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.broker import turning
from kvitto.protocol import hub as hubs
from kvitto.wire import methods as m
from tests.protocol.raw import NO_PROPERTIES, content
from tests.protocol.sansio import ProtocolHarness, Wire

AT_ONCE = 4
"""Queues that a turn of these tests writes."""


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ProtocolHarness:
    harness = ProtocolHarness()
    monkeypatch.setattr(hubs, "WRITE_COST", AT_ONCE * turning.QUEUE_COST)
    return harness


def confirming(harness: ProtocolHarness, *queues: str) -> Wire:
    wire = harness.wire()
    wire.put(1, m.ConfirmSelect(), *(m.QueueDeclare(name, durable=True) for name in queues))
    harness.settle_down()
    wire.methods()
    return wire


def publish(wire: Wire, *queues: str) -> None:
    wire.feed(b"".join(content(1, m.BasicPublish("", name), NO_PROPERTIES, b"x") for name in queues))


def acked(wire: Wire) -> int:
    return max((method.delivery_tag for method in wire.methods() if isinstance(method, m.BasicAck)), default=0)


def names(count: int, what: str = "q") -> list[str]:
    return [f"{what}{i}" for i in range(count)]


def test_a_turn_writes_a_bounded_number_of_queues(harness: ProtocolHarness) -> None:
    """All that were dirty were written in one turn: 10,000 of them took a quarter of a second."""
    wire = confirming(harness, *names(28))
    publish(wire, *names(28))
    harness.settle_down()
    publish(wire, *names(28))
    before = harness.broker.written
    for turn in range(1, 8):
        harness.turn()
        assert harness.broker.written - before == AT_ONCE * turn
    assert not harness.broker.dirty and not harness.hub.unfinished()


def test_a_turn_makes_the_files_of_few_queues(harness: ProtocolHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """One message each for 3,000 new queues held the loop for 96 ms: a turn made the directories and files of 120."""
    monkeypatch.setattr(hubs, "WRITE_COST", 5 * (turning.QUEUE_COST + turning.FIRST_COST))
    wire = confirming(harness, *names(40))
    publish(wire, *names(40))
    before = harness.broker.written
    harness.turn()
    assert harness.broker.written - before == 5
    harness.settle_down()
    assert acked(wire) == 40


def test_a_confirm_waits_until_all_its_queues_are_written(harness: ProtocolHarness) -> None:
    """C2."""
    first, second = confirming(harness, *names(20)), confirming(harness, *names(3, "p"))
    publish(first, *names(20))
    publish(second, *names(3, "p"))
    for _ in range(4):
        harness.turn()
        assert not harness.store.commits.waiting
    harness.turn()
    harness.turn()
    harness.settle_down()
    assert (acked(first), acked(second)) == (20, 3)


def test_what_comes_while_much_waits_is_confirmed_in_order(harness: ProtocolHarness) -> None:
    """C5: each once, none before what was published before it."""
    wire = confirming(harness, *names(20))
    seen = []
    for number in range(10):
        publish(wire, f"q{number}", *names(5))
        harness.turn()
        if harness.store.commits.waiting:
            harness.sync()
        seen.append(acked(wire))
    harness.settle_down()
    tags = [tag for tag in [*seen, acked(wire)] if tag]
    assert tags == sorted(set(tags)) and tags[-1] == 60


def test_a_confirmed_message_is_there_after_a_power_cut_in_the_middle_of_it(harness: ProtocolHarness) -> None:
    """P2: what was confirmed had been written, whatever was still waiting."""
    first, second = confirming(harness, *names(3)), confirming(harness, *names(30, "p"))
    publish(first, *names(3))
    publish(second, *names(30, "p"))
    harness.turn()
    while not (tags := acked(first)):
        harness.sync()
    assert tags == 3 and acked(second) == 0 and harness.broker.dirty
    again = ProtocolHarness(harness.disk.kill())
    queues = again.broker.vhosts["/"].queues
    assert [queues[name].ready for name in names(3)] == [1, 1, 1]
    assert sum(queues[name].ready for name in names(30, "p")) < 30


def test_a_full_disk_holds_back_all_confirms_until_there_is_room(harness: ProtocolHarness) -> None:
    """D4."""
    wire = confirming(harness, *names(10))
    harness.disk.full = True
    publish(wire, *names(10))
    harness.settle_down()
    assert acked(wire) == 0 and harness.broker.unwritten
    harness.disk.full = False
    harness.broker.retry_writes()
    harness.settle_down()
    assert acked(wire) == 10


def test_publishers_wait_while_too_much_waits_to_be_written(
    harness: ProtocolHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turning, "BEHIND_BYTES", 100)
    flood, other = confirming(harness, *names(100)), harness.wire()
    publish(flood, *names(100))
    harness.turn()
    assert harness.broker.behind
    publish(flood, "q0")
    before = harness.broker.vhosts["/"].queues["q0"].published
    other.put(1, m.QueueDeclare("q0", passive=True))
    assert [type(method) for method in other.methods()] == []
    harness.hub.flush()
    assert [type(method) for method in other.methods()] == [m.QueueDeclareOk]
    assert harness.broker.vhosts["/"].queues["q0"].published == before and not flood.reading
    harness.settle_down()
    assert acked(flood) == 101 and flood.reading and not harness.broker.behind


def test_channel_flow_counts_the_consumers_that_it_wakes() -> None:
    """With 10,000 of them a page of it held everybody for 0.1 s."""
    wire = ProtocolHarness().wire()
    wire.put(1, m.QueueDeclare("q"))
    for number in range(400):
        wire.put(1, m.BasicConsume("q", str(number)))
    wire.harness.settle_down()
    wire.put(1, *(m.ChannelFlow(True) for _ in range(60)))
    assert wire.connection.yielded


def test_a_connection_knows_how_many_consumers_it_has() -> None:
    """Limit CONSUMERS_MAX: they are counted when they come and go, however that is."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(2, m.ChannelOpen())
    wire.put(1, m.QueueDeclare("q"), m.QueueDeclare("gone"))
    for number, queue in enumerate(("q", "q", "gone", "q")):
        wire.put(1, m.BasicConsume(queue, f"a{number}"))
        wire.put(2, m.BasicConsume(queue, f"b{number}"))
    assert wire.connection.consumers == 8
    wire.put(1, m.BasicCancel("a0"), m.BasicCancel("a0"), m.BasicCancel("b0"))
    assert wire.connection.consumers == 7
    wire.put(1, m.QueueDelete("gone"))
    harness.settle_down()
    assert wire.connection.consumers == 5
    wire.put(2, m.ChannelClose(200, ""))
    harness.settle_down()
    assert wire.connection.consumers == len(wire.connection.channels[1].consumers) == 2


def test_methods_count_the_bytes_of_their_arguments() -> None:
    """A page of consumers with filters of 255 conditions each held everybody for 40 ms."""
    wire = ProtocolHarness().wire()
    wire.put(1, m.QueueDeclare("s", durable=True, arguments={"x-queue-type": "stream"}), m.BasicQos(0, 10, False))
    wire.harness.settle_down()
    wire.methods()
    arguments: dict[str, Any] = {"x-stream-filter": [{f"header{n}": f"value{n}" for n in range(255)}]}
    wire.put(1, *(m.BasicConsume("s", str(number), arguments=arguments) for number in range(60)))
    assert wire.connection.yielded and len(wire.connection.channels[1].consumers) < 20
    wire.harness.settle_down()
    assert sum(isinstance(method, m.BasicConsumeOk) for method in wire.methods()) == 60

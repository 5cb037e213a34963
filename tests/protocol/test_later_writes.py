"""Queues wait for a commit that has room for them, so that others' confirms do not wait for a commit of thousands of files."""

from __future__ import annotations

import pytest

from kvitto.broker import state, turning
from kvitto.broker.queues import later_writes
from kvitto.protocol import hub as hubs
from kvitto.wire import methods as m
from tests.protocol.raw import NO_PROPERTIES, content
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.protocol.test_turns import acked, confirming, names, publish

AT_ONCE = 4
"""New files in one commit of these tests."""


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ProtocolHarness:
    monkeypatch.setattr(later_writes, "NEW_FILES_PER_COMMIT", AT_ONCE)
    monkeypatch.setattr(hubs, "WRITE_COST", 10 * turning.FIRST_COST)
    return ProtocolHarness()


def with_files(harness: ProtocolHarness) -> list[str]:
    queues = harness.broker.vhosts["/"].queues
    return [name for name, queue in queues.items() if queue.log.segments]


def test_a_commit_has_few_new_files(harness: ProtocolHarness) -> None:
    wire = confirming(harness, *names(20))
    publish(wire, *names(20))
    harness.turn()
    assert with_files(harness) == names(AT_ONCE)
    for count in range(2, 6):
        harness.sync()
        assert len(with_files(harness)) == AT_ONCE * (count - 1), "the commit behind is quick"
        harness.sync()
        assert len(with_files(harness)) == AT_ONCE * count
    harness.settle_down()
    assert acked(wire) == 20
    assert [harness.broker.vhosts["/"].queues[name].ready for name in names(20)] == [1] * 20


def test_others_are_confirmed_before(harness: ProtocolHarness) -> None:
    """p99.9 of another client was 0.2 to 3 s while one message each for 3,000 new queues was written."""
    flood, other = confirming(harness, *names(40)), confirming(harness, "p")
    publish(other, "p")
    harness.settle_down()
    publish(flood, *names(40))
    publish(other, "p")
    harness.turn()
    harness.sync()
    harness.sync()
    assert acked(other) == 2 and len(with_files(harness)) < 20
    harness.settle_down()
    assert acked(flood) == 40


def test_a_confirm_waits_for_one_commit_full_of_files(harness: ProtocolHarness) -> None:
    """The commit behind had as many new files, and for them the callbacks of its own were put off once more."""
    flood, other = confirming(harness, *names(40)), confirming(harness, "p")
    publish(other, "p")
    harness.settle_down()
    publish(flood, *names(40))
    harness.turn()
    commit = harness.store.begin_sync(everything=False)
    commit.run()
    publish(other, "p")
    harness.turn()
    harness.store.end_sync(commit)
    harness.sync()
    assert acked(other) == 2
    harness.settle_down()


def test_a_turn_has_room_for_queues_that_have_files(harness: ProtocolHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """First writes took whole turns, so that a confirm waited until the commit was full of new files: 0.7 s, seen with 3,000 queues."""
    flood, other = confirming(harness, *names(40)), confirming(harness, "p")
    publish(other, "p")
    harness.settle_down()
    publish(flood, *names(40))
    harness.turn()
    harness.sync()
    commit = harness.store.begin_sync(everything=False)
    commit.run()
    harness.end_sync(commit)
    monkeypatch.setattr(hubs, "WRITE_COST", 2 * turning.FIRST_COST)
    publish(other, "p")
    harness.turn()
    assert len(with_files(harness)) == 1 + AT_ONCE + 1 and not harness.broker.dirty
    monkeypatch.undo()
    harness.settle_down()


def test_nobody_has_to_ask_for_the_sync(harness: ProtocolHarness) -> None:
    """Without confirms a sync comes after 0.2 s only, which would make 3,000 queues wait for 20 s."""
    wire = harness.wire()
    wire.put(1, *(m.QueueDeclare(name, durable=True) for name in names(20)))
    harness.settle_down()
    publish(wire, *names(20))
    harness.turn()
    for _ in range(10):
        assert harness.store.commits.waiting
        harness.sync()
    assert len(with_files(harness)) == 20


def test_nothing_of_a_queue_that_waits_is_delivered(harness: ProtocolHarness) -> None:
    """A9: after a kill the files know of each delivery, and a queue without files knows nothing."""
    wire, consumer = confirming(harness, *names(20)), harness.wire()
    publish(wire, *names(20))
    harness.turn()
    consumer.put(1, m.BasicConsume("q19"), m.BasicGet("q18"))
    harness.turn()
    assert not [x for x in consumer.methods() if isinstance(x, (m.BasicDeliver, m.BasicGetOk, m.BasicGetEmpty))]
    harness.settle_down()
    got = [type(x) for x in consumer.methods()]
    assert m.BasicDeliver in got and m.BasicGetOk in got


def test_a_queue_with_much_does_not_wait(harness: ProtocolHarness) -> None:
    """What waits is in memory, so it is limited."""
    wire = confirming(harness, *names(20))
    publish(wire, *names(20))
    harness.turn()
    body = bytes(1 + later_writes.WAITING_BYTES)
    wire.feed(content(1, m.BasicPublish("", "q19"), NO_PROPERTIES, body))
    harness.turn()
    assert "q19" in with_files(harness) and "q18" not in with_files(harness)
    harness.settle_down()
    assert acked(wire) == 21
    assert harness.broker.vhosts["/"].queues["q19"].ready == 2


def test_queues_that_are_deleted_while_they_wait(harness: ProtocolHarness) -> None:
    wire = confirming(harness, *names(20))
    publish(wire, *names(20))
    harness.turn()
    wire.put(1, *(m.QueueDelete(name) for name in names(20)[5:]))
    harness.settle_down()
    assert acked(wire) == 20 and with_files(harness) == names(5)
    assert not harness.broker.later_writes.waiting


def test_a_queue_out_of_service_refuses_what_waits(harness: ProtocolHarness) -> None:
    wire = confirming(harness, *names(20))
    publish(wire, *names(20))
    harness.turn()
    harness.broker.vhosts["/"].queues["q19"].contain(RuntimeError("a bug"))
    harness.settle_down()
    assert any(isinstance(method, (m.ChannelClose, m.ConnectionClose)) for method in wire.methods())
    assert len(with_files(harness)) == 19


def test_a_transaction_is_applied_again_after_a_power_cut(harness: ProtocolHarness) -> None:
    """Its record stays in the journal until the queues that wait have been written."""
    flood, wire = confirming(harness, *names(20)), harness.wire()
    wire.put(1, m.TxSelect(), *(m.QueueDeclare(name, durable=True) for name in names(3, "p")))
    harness.settle_down()
    wire.methods()
    publish(flood, *names(20))
    publish(wire, *names(3, "p"))
    wire.put(1, m.TxCommit())
    harness.turn()
    for _ in range(3):
        harness.sync()
    assert m.TxCommitOk in [type(method) for method in wire.methods()]
    assert not {*names(3, "p")} & {*with_files(harness)}
    again = ProtocolHarness(harness.disk.kill())
    queues = again.broker.vhosts["/"].queues
    assert [queues[name].ready for name in names(3, "p")] == [1, 1, 1]


def test_an_end_in_order_writes_what_waits(harness: ProtocolHarness) -> None:
    wire = confirming(harness, *names(20))
    publish(wire, *names(20))
    harness.turn()
    harness.broker.finish()
    assert len(with_files(harness)) == 20 and not harness.broker.later_writes.waiting


def test_a_full_disk(harness: ProtocolHarness) -> None:
    """D4."""
    wire = confirming(harness, *names(20))
    publish(wire, *names(20))
    harness.turn()
    harness.disk.full = True
    harness.settle_down()
    assert acked(wire) < 20
    harness.disk.full = False
    harness.broker.retry_writes()
    harness.settle_down()
    assert acked(wire) == 20 and len(with_files(harness)) == 20
    assert not any(queue.returning for queue in harness.broker.vhosts["/"].queues.values())


# -- queues that have files, changed by a source that changes many ----------------------------------------------------------------------

LOAD = 8
"""Writes of queues that yield in one commit of these tests."""
OWN = 3
"""Queues that one source changes before further ones yield."""


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> ProtocolHarness:
    """A broker with 20 queues that have files, all of them bound to a fanout."""
    monkeypatch.setattr(later_writes, "LOAD_PER_COMMIT", LOAD)
    monkeypatch.setattr(state, "CHANGES_OF_ONE", OWN)
    monkeypatch.setattr(later_writes, "NEW_LOAD", 1)
    harness = ProtocolHarness()
    wire = confirming(harness, *names(20))
    wire.put(1, m.ExchangeDeclare("wide", "fanout"), *(m.QueueBind(name, "wide") for name in names(20)))
    harness.settle_down()
    publish(wire, *names(20))
    harness.settle_down()
    harness.sync()
    return harness


def written(harness: ProtocolHarness) -> int:
    """How many of the queues have the second message in their file."""
    queues = harness.broker.vhosts["/"].queues
    return sum(queues[name].log.next > 1 for name in names(20))


def to_all(wire: Wire, body: bytes = b"x") -> None:
    wire.feed(content(1, m.BasicPublish("wide", ""), NO_PROPERTIES, body))


def test_a_commit_has_few_queues_of_a_wide_message(wide: ProtocolHarness) -> None:
    """All 9,000 files of a message to 9,000 queues were in one commit: others' confirms waited for 0.4 s."""
    wire = confirming(wide)
    to_all(wire)
    for _ in range(3):
        wide.turn()
    assert written(wide) == OWN + LOAD
    wide.sync()
    assert written(wide) == OWN + LOAD, "the commit behind is quick"
    wide.sync()
    assert written(wide) == OWN + 2 * LOAD and not acked(wire)
    wide.settle_down()
    assert acked(wire) == 1 and written(wide) == 20


def test_others_are_confirmed_before_a_wide_message(wide: ProtocolHarness) -> None:
    wire, other = confirming(wide), confirming(wide, "p")
    publish(other, "p")
    wide.settle_down()
    to_all(wire)
    publish(other, "p")
    wide.turn()
    wide.sync()
    assert acked(other) == 2 and written(wide) < 20
    wide.settle_down()


def test_a_queue_that_yields_is_written_when_another_source_changes_it(wide: ProtocolHarness) -> None:
    """Its place in the line stays, so that whoever waits for the line to be written waits for no more than that."""
    wire, other = confirming(wide), confirming(wide)
    to_all(wire)
    wide.turn()
    queue = wide.broker.vhosts["/"].queues["q19"]
    assert queue.waits_for_commit and queue.log.next == 1
    publish(other, "q19")
    wide.turn()
    assert queue.waits_for_commit and queue.log.next == 3
    wide.sync()
    assert acked(other) == 1
    wide.settle_down()
    assert acked(wire) == 1 and not wide.broker.later_writes.waiting


def test_a_new_queue_does_not_wait_behind_queues_that_yield(wide: ProtocolHarness) -> None:
    """It waited behind 1,200 of them, for 10 commits."""
    wire, other = confirming(wide), confirming(wide, "new")
    to_all(wire)
    wide.turn()
    publish(other, "new")
    wide.turn()
    for _ in range(4):  # the second has room, the third has the new file, and the fourth the inventory that names it
        assert not acked(other)
        wide.sync()
    assert acked(other) == 1
    wide.settle_down()
    assert acked(wire) == 1 and not wide.broker.later_writes.waiting


def test_a_new_queue_that_yields_does_so_no_more_when_another_source_changes_it(wide: ProtocolHarness) -> None:
    wire, other = confirming(wide), confirming(wide)
    other.put(1, m.QueueDeclare("last", durable=True), m.QueueBind("last", "wide"))
    wide.settle_down()
    to_all(wire)
    wide.turn()
    queue = wide.broker.vhosts["/"].queues["last"]
    assert queue.waits_for_commit and not queue.log.segments
    publish(other, "last", "last")
    wide.turn()
    for _ in range(4):
        assert not acked(other)
        wide.sync()
    assert acked(other) == 2
    wide.settle_down()
    assert acked(wire) == 1 and queue.ready == 3
    assert not wide.broker.later_writes.waiting and wide.broker.later_writes.bytes == 0


def test_queues_that_yield_are_deleted_or_fail_while_they_wait(wide: ProtocolHarness) -> None:
    wire, consumer = confirming(wide), wide.wire()
    consumer.put(1, *(m.BasicConsume(name, no_ack=True) for name in names(20)[10:]))
    wide.settle_down()
    to_all(wire)
    wide.turn()
    wide.wire().put(1, *(m.QueueDelete(name) for name in names(20)[12:16]))
    wide.broker.vhosts["/"].queues["q19"].contain(RuntimeError("a bug"))
    wide.settle_down()
    assert not wide.broker.later_writes.waiting and not wide.broker.slow
    queues = wide.broker.vhosts["/"].queues
    assert [queues[name].log.next for name in names(12)] == [2] * 12


def test_a_queue_that_yields_delivers_when_it_is_written(wide: ProtocolHarness) -> None:
    """A9."""
    wire, consumer = confirming(wide), wide.wire()
    consumer.put(1, m.BasicConsume("q19", no_ack=True))
    wide.settle_down()
    consumer.methods()
    to_all(wire)
    wide.turn()
    assert not [x for x in consumer.methods() if isinstance(x, m.BasicDeliver)]
    wide.settle_down()
    assert len([x for x in consumer.methods() if isinstance(x, m.BasicDeliver)]) == 1
    assert acked(wire) == 1


def test_a_page_to_many_queues_yields(wide: ProtocolHarness) -> None:
    wire = confirming(wide)
    publish(wire, *names(20))
    for _ in range(3):
        wide.turn()
    assert written(wide) == OWN + LOAD
    wide.settle_down()
    assert acked(wire) == 20


def test_an_end_in_order_writes_a_wide_message(wide: ProtocolHarness) -> None:
    wire = confirming(wide)
    to_all(wire)
    wide.turn()
    wide.broker.finish()
    assert written(wide) == 20 and not wide.broker.later_writes.waiting


def test_large_bodies_of_a_wide_message_count_as_more(wide: ProtocolHarness) -> None:
    wire = confirming(wide)
    to_all(wire, bytes(3 << later_writes.LOAD_SHIFT))
    for _ in range(3):
        wide.turn()
    assert written(wide) == OWN + LOAD // 4
    wide.settle_down()
    assert acked(wire) == 1 and written(wide) == 20


def test_a_narrow_source_in_the_same_turn_is_not_put_off(wide: ProtocolHarness) -> None:
    """Its queue was dirty already, so that it stayed behind: 19 commits, seen with a page to 1,200 queues."""
    wire, other = confirming(wide), confirming(wide)
    publish(wire, *names(20))
    publish(other, "q19")
    wide.turn()
    wide.sync()
    assert acked(other) == 1 and not acked(wire)
    wide.settle_down()
    assert acked(wire) == 20


def test_a_get_does_not_wait_for_the_line(wide: ProtocolHarness) -> None:
    """10 commits, seen behind a line of 1,200 queues."""
    wire, other = confirming(wide), wide.wire()
    to_all(wire)
    wide.turn()
    assert wide.broker.vhosts["/"].queues["q19"].waits_for_commit
    other.put(1, m.BasicGet("q19", no_ack=True))
    for _ in range(3):
        wide.turn()
    assert [type(x) for x in other.methods()] == [m.BasicGetOk]
    wide.settle_down()
    assert acked(wire) == 1


def test_the_memory_of_the_line_is_limited(wide: ProtocolHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 messages of 40 KB to 600 queues took 205 MB."""
    monkeypatch.setattr(later_writes, "LINE_BYTES", 50_000)
    wire = confirming(wide)
    for _ in range(3):
        to_all(wire, bytes(10_000))
        for _ in range(3):
            wide.turn()
        waiting = [queue for queue in wide.broker.vhosts["/"].queues.values() if queue.waits_for_commit]
        assert sum(queue.own_bytes for queue in waiting) <= wide.broker.later_writes.bytes <= 50_000
    wide.settle_down()
    assert acked(wire) == 3 and wide.broker.later_writes.bytes == 0

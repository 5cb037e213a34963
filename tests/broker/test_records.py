"""Records of the journal in slices: others are served between two of them, and records stay in order."""

from __future__ import annotations

import pytest

from kvitto.base.errors import StoreError
from kvitto.broker.transfers.records import Records
from kvitto.store import pieces
from kvitto.store.batch import Batch
from kvitto.store.record import Append, Packed, Record
from tests.support.harness import NO_PROPERTIES, BrokerHarness, Taker, address
from tests.support.simdisk import SimDisk

SLICES = 12


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> BrokerHarness:
    monkeypatch.setattr(pieces, "WHOLE_BYTES", 200)
    monkeypatch.setattr(pieces, "SLICE_BYTES", 200)
    made = BrokerHarness(SimDisk(reserving=False))
    for name in "ab":
        made.declare(name)
    made.settle_down()
    return made


def write(harness: BrokerHarness, *messages: tuple[str, bytes], packed: bool = True) -> list[str]:
    """Have the messages written as one record. Returns what becomes of it, as it happens."""
    appends = [Append(harness.queue(name).log.queue_id, address(name), NO_PROPERTIES, body) for name, body in messages]
    record, seen = Record(), list[str]()
    if packed:
        record.packed = Packed()
        for a, (_, body) in zip(appends, messages, strict=True):
            record.packed.append(a.queue_id, (a.key, a.props, memoryview(body)), -1, 0)
        record.packed.close()
    else:
        record.appends = appends
    kept = Record(appends=appends)

    def done() -> None:
        seen.append("done")
        kept.sequence = record.sequence
        harness.broker.apply(kept)

    Records.write(harness.broker.records, record, done, lambda: seen.append("full"))
    return seen


def large(harness: BrokerHarness) -> list[str]:
    return write(harness, ("a", b"1" * 100 * SLICES), ("b", b"2" * 100 * SLICES))


def turns_until(harness: BrokerHarness, seen: list[str]) -> int:
    turns = 0
    while not seen:
        turns += 1
        if harness.store.commits.dirty and not harness.broker.jobs.waiting:
            harness.sync()
        else:
            harness.turn()
    return turns


def test_a_large_record_is_written_over_several_turns(harness: BrokerHarness) -> None:
    seen = large(harness)
    assert turns_until(harness, seen) > 2 and seen == ["done"]
    harness.settle_down()
    assert len(harness.drain("a")[0]) == len(harness.drain("b")[0]) == 100 * SLICES


def test_later_records_wait_for_it(harness: BrokerHarness) -> None:
    first = large(harness)
    second = write(harness, ("a", b"later"), packed=False)
    assert not harness.store.journal.written_out
    turns_until(harness, first)
    harness.settle_down()
    assert first == second == ["done"]
    assert [body[:5] for body in harness.drain("a")] == [b"11111", b"later"]


@pytest.mark.parametrize("turns", range(3))
def test_a_kill_in_the_middle_leaves_nothing_of_it(harness: BrokerHarness, turns: int) -> None:
    large(harness)
    for _ in range(turns):
        harness.turn()
    assert harness.store.journal._slices is not None, "it is complete"
    harness.kill()
    harness.settle_down()
    assert harness.queue("a").ready == harness.queue("b").ready == 0 and not harness.store.alarms


def test_a_kill_after_it_leaves_all_of_it(harness: BrokerHarness) -> None:
    seen = large(harness)
    while harness.broker.jobs.waiting:
        harness.turn()
    job = harness.store.begin_sync(everything=False)
    job.run()
    assert not seen
    harness.kill()
    harness.settle_down()
    assert harness.queue("a").ready == harness.queue("b").ready == 1 and not harness.store.alarms


def test_an_end_in_order_in_the_middle_leaves_nothing_of_it(harness: BrokerHarness) -> None:
    large(harness)
    write(harness, ("a", b"later"), packed=False)
    harness.turn()
    harness.broker.finish()
    harness.store.shut()
    harness.disk = harness.disk.kill()
    harness.start()
    assert harness.store.ending.in_order and harness.queue("a").ready == 0 and not harness.store.alarms


def test_who_finds_no_room_is_told_and_the_others_go_on(harness: BrokerHarness) -> None:
    first = large(harness)
    second = write(harness, ("a", b"later"), packed=False)
    harness.disk.full = True
    harness.turn()
    harness.turn()
    assert first == ["full"]
    harness.disk.full = False
    harness.settle_down()
    assert second in (["done"], ["full"])
    third = write(harness, ("b", b"after"), packed=False)
    harness.settle_down()
    assert third == ["done"] and harness.drain("b") == [b"after"]


def test_a_record_is_applied_when_it_is_announced(harness: BrokerHarness) -> None:
    """A9: were it applied before, and this machine lost, the move would be made again elsewhere, and its message delivered as a new one."""
    harness.store.commits.allow(harness.store.commits.syncs)
    seen = write(harness, ("a", b"m"), packed=False)
    for _ in range(3):
        harness.sync()
    assert seen == [] and not harness.queue("a").ready
    harness.store.commits.allow(harness.store.commits.syncs)
    harness.turn()
    assert seen == ["done"] and harness.queue("a").ready == 1


def test_what_a_record_brought_to_a_queue_that_went_out_of_service_comes_again_flagged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A9: it had been delivered in the turn in which the queue could not be written, and the next start has it from the journal."""
    harness = BrokerHarness()
    for name in "ab":
        harness.declare(name)
    harness.settle_down()
    taker = Taker(harness.queue("b"))
    harness.queue("b").add_consumer(taker)
    write(harness, ("a", b"1"), ("b", b"2"), packed=False)
    harness.sync()
    bad = harness.queue("b").log

    def failing(batch: Batch) -> None:
        raise StoreError("the write fails")

    monkeypatch.setattr(bad, "write", failing)
    for _ in range(3):
        harness.sync()
    assert [delivery.body for delivery in taker.got] == [b"2"] and harness.queue("b").fault
    monkeypatch.undo()
    harness.kill()
    assert harness.take("b")[0].redelivered

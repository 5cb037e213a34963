"""Records of the journal in slices: others are served between two of them, and records stay in order."""

from __future__ import annotations

import pytest

from kvitto.base.errors import StoreError
from kvitto.broker.transfers.records import Records
from kvitto.store import pieces
from kvitto.store.batch import Batch
from kvitto.store.record import Append, Packed, Record
from tests.support.rig import NO_PROPERTIES, Rig, Taker, address
from tests.support.simdisk import SimDisk

SLICES = 12


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(pieces, "WHOLE_BYTES", 200)
    monkeypatch.setattr(pieces, "SLICE_BYTES", 200)
    made = Rig(SimDisk(reserving=False))
    for name in "ab":
        made.declare(name)
    made.settle_down()
    return made


def write(rig: Rig, *messages: tuple[str, bytes], packed: bool = True) -> list[str]:
    """Have the messages written as one record. Returns what becomes of it, as it happens."""
    appends = [Append(rig.queue(name).log.queue_id, address(name), NO_PROPERTIES, body) for name, body in messages]
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
        rig.broker.apply(kept)

    Records.write(rig.broker.records, record, done, lambda: seen.append("full"))
    return seen


def large(rig: Rig) -> list[str]:
    return write(rig, ("a", b"1" * 100 * SLICES), ("b", b"2" * 100 * SLICES))


def turns_until(rig: Rig, seen: list[str]) -> int:
    turns = 0
    while not seen:
        turns += 1
        if rig.store.commits.dirty and not rig.broker.jobs.waiting:
            rig.sync()
        else:
            rig.turn()
    return turns


def test_a_large_record_is_written_over_several_turns(rig: Rig) -> None:
    seen = large(rig)
    assert turns_until(rig, seen) > 2 and seen == ["done"]
    rig.settle_down()
    assert len(rig.drain("a")[0]) == len(rig.drain("b")[0]) == 100 * SLICES


def test_later_records_wait_for_it(rig: Rig) -> None:
    first = large(rig)
    second = write(rig, ("a", b"later"), packed=False)
    assert not rig.store.journal.written_out
    turns_until(rig, first)
    rig.settle_down()
    assert first == second == ["done"]
    assert [body[:5] for body in rig.drain("a")] == [b"11111", b"later"]


@pytest.mark.parametrize("turns", range(3))
def test_a_kill_in_the_middle_leaves_nothing_of_it(rig: Rig, turns: int) -> None:
    large(rig)
    for _ in range(turns):
        rig.turn()
    assert rig.store.journal._slices is not None, "it is complete"
    rig.kill()
    rig.settle_down()
    assert rig.queue("a").ready == rig.queue("b").ready == 0 and not rig.store.alarms


def test_a_kill_after_it_leaves_all_of_it(rig: Rig) -> None:
    seen = large(rig)
    while rig.broker.jobs.waiting:
        rig.turn()
    job = rig.store.begin_sync(everything=False)
    job.run()
    assert not seen
    rig.kill()
    rig.settle_down()
    assert rig.queue("a").ready == rig.queue("b").ready == 1 and not rig.store.alarms


def test_an_end_in_order_in_the_middle_leaves_nothing_of_it(rig: Rig) -> None:
    large(rig)
    write(rig, ("a", b"later"), packed=False)
    rig.turn()
    rig.broker.finish()
    rig.store.shut()
    rig.disk = rig.disk.kill()
    rig.start()
    assert rig.store.ending.in_order and rig.queue("a").ready == 0 and not rig.store.alarms


def test_who_finds_no_room_is_told_and_the_others_go_on(rig: Rig) -> None:
    first = large(rig)
    second = write(rig, ("a", b"later"), packed=False)
    rig.disk.full = True
    rig.turn()
    rig.turn()
    assert first == ["full"]
    rig.disk.full = False
    rig.settle_down()
    assert second in (["done"], ["full"])
    third = write(rig, ("b", b"after"), packed=False)
    rig.settle_down()
    assert third == ["done"] and rig.drain("b") == [b"after"]


def test_a_record_is_applied_when_it_is_announced(rig: Rig) -> None:
    """A9: were it applied before, and this machine lost, the move would be made again elsewhere, and its message delivered as a new one."""
    rig.store.commits.allow(rig.store.commits.syncs)
    seen = write(rig, ("a", b"m"), packed=False)
    for _ in range(3):
        rig.sync()
    assert seen == [] and not rig.queue("a").ready
    rig.store.commits.allow(rig.store.commits.syncs)
    rig.turn()
    assert seen == ["done"] and rig.queue("a").ready == 1


def test_what_a_record_brought_to_a_queue_that_went_out_of_service_comes_again_flagged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A9: it had been delivered in the turn in which the queue could not be written, and the next start has it from the journal."""
    rig = Rig()
    for name in "ab":
        rig.declare(name)
    rig.settle_down()
    taker = Taker(rig.queue("b"))
    rig.queue("b").add_consumer(taker)
    write(rig, ("a", b"1"), ("b", b"2"), packed=False)
    rig.sync()
    bad = rig.queue("b").log

    def failing(batch: Batch) -> None:
        raise StoreError("the write fails")

    monkeypatch.setattr(bad, "write", failing)
    for _ in range(3):
        rig.sync()
    assert [delivery.body for delivery in taker.got] == [b"2"] and rig.queue("b").fault
    monkeypatch.undo()
    rig.kill()
    assert rig.take("b")[0].redelivered

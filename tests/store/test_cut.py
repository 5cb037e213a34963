"""A backup has what the files had at the cut, whatever happens while it is taken (store/cut.py, store/taking.py)."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.base.errors import StoreError, StoreFull
from kvitto.broker.queues.stream import Stream
from kvitto.store import log, paths
from kvitto.store.cut import Cut
from kvitto.store.offsets import Offsets
from kvitto.store.repair.survey import Survey
from kvitto.store.store import OF_BACKUP, Store
from kvitto.store.taking import Taking
from tests.support.backups import SimMover, taken
from tests.support.clock import ManualClock
from tests.support.harness import BrokerHarness
from tests.support.simdisk import SimDisk


def begin(harness: BrokerHarness) -> Cut:
    cut = Cut(harness.store, "test")
    cut.begin()
    return cut


def note_all(cut: Cut) -> None:
    while not cut.some():
        pass


def restored(disk: SimDisk) -> BrokerHarness:
    """A broker on a backup, which is sound, on another machine."""
    assert not Survey(disk.seen()).findings
    found = BrokerHarness(disk.seen(), ManualClock())
    assert not found.store.alarms
    return found


def filled(*queues: str, **arguments: Any) -> BrokerHarness:
    harness = BrokerHarness()
    for name in queues:
        harness.declare(name, **arguments)
        for i in range(4):
            harness.publish(name, b"%s %d" % (name.encode(), i))
    harness.settle_down()
    return harness


def test_what_comes_and_goes_after_the_cut_makes_no_difference() -> None:
    harness = filled("q", "gone")
    cut = begin(harness)
    harness.publish("q", b"too late")
    harness.settle_down()
    assert harness.drain("q")[-1] == b"too late"
    harness.delete("gone")
    harness.declare("new")
    harness.publish("new", b"too late")
    harness.settle_down()
    note_all(cut)
    found = restored(taken(harness.disk, cut))
    assert found.peek("q") == [b"q 0", b"q 1", b"q 2", b"q 3"]
    assert found.peek("gone") == [b"gone 0", b"gone 1", b"gone 2", b"gone 3"]
    assert "new" not in found.broker.vhosts["/"].queues


@pytest.mark.parametrize("linking", [True, False], ids=["links", "copies"])
def test_segments_that_are_dropped_meanwhile_are_kept_until_the_end(
    linking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 200)
    harness = BrokerHarness()
    harness.declare("q")
    for i in range(6):
        harness.publish("q", b"%d" % i + bytes(100))
        harness.settle_down()
    cut = begin(harness)
    note_all(cut)
    before = len(harness.disk.listdir(harness.queue("q").log.directory))
    assert len(harness.drain("q")) == 6
    for _ in range(3):
        harness.settle_down()
    staged = [name for name in harness.disk.listdir(cut.directory) if name.endswith(".log")]
    assert before > 5 and len(harness.disk.listdir(harness.queue("q").log.directory)) < 5 and len(staged) > 3
    found = restored(taken(harness.disk, cut, linking=linking))
    assert [body[:1] for body in found.peek("q")] == [b"%d" % i for i in range(6)]
    cut.end()
    harness.settle_down()
    assert not harness.disk.listdir(cut.directory) and harness.store.cut is None


def test_what_had_been_delivered_is_flagged_and_the_rest_is_not() -> None:
    harness = filled("q")
    taker = harness.take("q")
    harness.publish("q", b"later")
    harness.settle_down()
    cut = begin(harness)
    note_all(cut)
    found = restored(taken(harness.disk, cut))
    assert len(taker) == 4
    assert [d.redelivered for d in found.take("q")] == [True] * 4 + [False]


def test_a_start_on_a_backup_is_not_taken_for_one_after_a_power_cut() -> None:
    """On any machine: the files are complete. The next start is as after a kill again."""
    harness = filled("q")
    cut = begin(harness)
    note_all(cut)
    target = taken(harness.disk, cut)
    assert target.read_file(paths.BOOT) == OF_BACKUP
    found = restored(target)
    assert found.store.ending.of_backup and not found.store.ending.power_cut
    found.kill()
    assert not found.store.ending.of_backup and not found.store.ending.power_cut
    assert [d.redelivered for d in found.take("q")] == [False] * 4


def test_transient_queues_and_copies_of_damaged_segments_are_left_out() -> None:
    harness = filled("q")
    harness.declare("passing", durable=False)
    harness.publish("passing", b"x")
    harness.settle_down()
    directory = harness.queue("q").log.directory
    harness.disk.open(paths.quarantine(directory, 0), create=True).close()
    cut = begin(harness)
    note_all(cut)
    names = taken(harness.disk, cut).files()
    assert not [name for name in names if name.startswith("transient/") or name.endswith(".bad")]
    assert {paths.LOCK, paths.SPARE, paths.INCOMPLETE}.isdisjoint(names)


def test_a_backup_that_is_not_complete_is_refused_by_a_start_and_by_check() -> None:
    harness = filled("q")
    cut = begin(harness)
    note_all(cut)
    target = taken(harness.disk, cut)
    target.open(paths.INCOMPLETE, create=True).close()
    with pytest.raises(StoreError, match="never completed"):
        Store(target.seen(), ManualClock()).open()
    with pytest.raises(StoreError, match="never completed"):
        Survey(target.seen())


def test_a_byte_that_is_missing_in_a_backup_is_damage() -> None:
    """The backup's inventory has the length of every file."""
    harness = filled("q")
    cut = begin(harness)
    note_all(cut)
    target = taken(harness.disk, cut, linking=False)
    path = paths.segment(harness.queue("q").log.directory, 0)
    file = target.open(path)
    file.truncate(file.size() - 1)
    assert [finding.path for finding in Survey(target.seen()).findings] == [path]


def test_a_full_disk_gives_up_the_backup_and_hinders_nobody() -> None:
    harness = filled("q")
    cut = begin(harness)
    harness.disk.full = True
    note_all(cut)
    assert "full" in cut.failure and harness.store.cut is None and harness.disk.keeper is None
    assert len(harness.drain("q")) == 4
    harness.disk.full = False
    harness.publish("q", b"more")
    harness.settle_down()
    cut.end()
    harness.settle_down()
    assert harness.peek("q") == [b"more"] and not harness.disk.listdir(cut.directory)


def test_a_full_target_ends_the_taking() -> None:
    harness = filled("q")
    cut = begin(harness)
    note_all(cut)
    target = SimDisk(2)
    taking = Taking(harness.disk, cut.directory, target, SimMover(harness.disk, target, linking=True))
    taking.begin()
    list(taking.plan())
    target.full = True
    with pytest.raises(StoreFull):
        list(taking.steps())
    assert target.exists(paths.INCOMPLETE)


def test_no_backup_where_files_can_have_one_name_only_or_definitions_wait_for_room() -> None:
    harness = filled("q")
    harness.disk.linking = False
    with pytest.raises(StoreError, match="knows no hard links"):
        begin(harness)
    assert harness.store.cut is None and not harness.disk.listdir(paths.STAGING)
    harness.disk.linking, harness.disk.full = True, True
    harness.declare("unwritten")
    with pytest.raises(StoreError, match="definitions wait to be written"):
        begin(harness)


def test_the_offsets_of_a_streams_consumers_are_those_of_the_cut() -> None:
    """That file is written in place, so the cut has a copy of it."""
    harness = BrokerHarness()
    harness.declare("s", x_queue_type="stream")
    stream: Any = harness.broker.vhosts["/"].queues["s"]
    offsets = stream.log.offsets
    for i in range(3):
        harness.publish("s", b"%d" % i)
    offsets.put("reader", 1)
    offsets.write()
    harness.settle_down()
    cut = begin(harness)
    offsets.put("reader", 3)
    offsets.put("another", 2)
    offsets.write()
    harness.settle_down()
    note_all(cut)
    found: Any = restored(taken(harness.disk, cut)).broker.vhosts["/"].queues["s"]
    assert found.log.offsets.get("reader") == 1 and found.log.offsets.get("another") is None


def test_offsets_that_cannot_be_read_give_up_the_backup_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error reached the stream, which went out of service."""
    harness = BrokerHarness()
    harness.declare("s", x_queue_type="stream")
    stream = harness.broker.vhosts["/"].queues["s"]
    assert isinstance(stream, Stream)
    stream.log.offsets.put("reader", 1)
    stream.log.offsets.write()
    harness.settle_down()

    def failing(_offsets: Offsets) -> bytes:
        raise StoreError("cannot read")

    monkeypatch.setattr(Offsets, "content", failing)
    cut = begin(harness)
    harness.publish("s", b"m")
    harness.settle_down()
    assert cut.failure == "cannot read" and stream.fault is None
    cut.end()
    harness.settle_down()


def test_a_start_removes_what_a_backup_has_left() -> None:
    harness = filled("q")
    cut = begin(harness)
    assert harness.disk.listdir(cut.directory)
    harness.kill()
    assert not harness.disk.listdir(paths.STAGING) and harness.disk.keeper is None


def test_a_start_that_is_refused_leaves_the_backup_of_the_broker_that_runs_alone() -> None:
    harness = filled("q")
    cut = begin(harness)
    second = Store(harness.disk, ManualClock())
    with pytest.raises(StoreError, match="is in use"):
        second.open()
    second.shut()
    note_all(cut)
    assert restored(taken(harness.disk, cut)).peek("q")


def test_a_broker_that_stops_in_order_lets_go_of_a_backup() -> None:
    harness = filled("q")
    begin(harness)
    harness.restart()
    assert harness.store.ending.in_order and not harness.disk.listdir(paths.STAGING)

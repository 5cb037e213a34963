"""A start is killed, and the power goes during the next one: what they were writing is not taken for damage, and damage is (D3)."""

from __future__ import annotations

from random import Random

import pytest

from kvitto.store import paths
from kvitto.store.repair.survey import Survey
from tests.support.clock import ManualClock
from tests.support.harness import BrokerHarness
from tests.support.older import without_inventory
from tests.support.simdisk import PowerCut, SimDisk

WAYS = 5
EXPIRED = 3


@pytest.fixture
def left() -> BrokerHarness:
    """A directory that was left in order. Since then messages have expired that go to a queue with a message."""
    harness = BrokerHarness()
    harness.declare("dead")
    harness.publish("dead", b"confirmed")
    harness.declare("q", x_message_ttl=1000, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    for _ in range(EXPIRED):
        harness.publish("q", bytes(100))
    harness.settle_down()
    harness.broker.finish()
    harness.store.shut()
    harness.disk = harness.disk.kill()
    harness.clock.advance(10.0)
    return harness


def operations(disk: SimDisk, clock: ManualClock) -> list[tuple[int, str]]:
    """The numbers and names of the operations of a start on a copy of the disk."""
    copy = disk.copy()
    copy.trace = []
    BrokerHarness(copy, clock)
    return list(enumerate(copy.trace, disk.operations + 1))


def cut_short(disk: SimDisk, at: int, clock: ManualClock) -> SimDisk:
    """A copy of the disk on which a start has ended at this operation."""
    copy = disk.copy()
    copy.cut_at = at
    with pytest.raises(PowerCut):
        BrokerHarness(copy, clock)
    return copy


def test_what_a_start_was_writing_is_no_damage(left: BrokerHarness) -> None:
    """The first start writes dead letters to the journal. The second one brings them from there into their queue."""
    first, brought = operations(left.disk, left.clock), 0
    written = next(at for at, name in first if name.startswith("write journal/"))
    for killed_at in range(written, first[-1][0] + 1):
        killed = cut_short(left.disk, killed_at, left.clock).kill()
        for at, name in operations(killed, left.clock):
            disk = cut_short(killed, at, left.clock)
            brought += name.startswith("write queues/") and ".log " in name
            for way in range(WAYS):
                found = disk.survivor(Random(f"{killed_at} {at} {way}"), hostile=way % 2 == 1) if way else disk.kill()
                assert not Survey(found.copy()).findings, (killed_at, at, way)
                harness = BrokerHarness(found, left.clock)
                assert not harness.store.alarms, (killed_at, at, way)
                harness.settle_down()
                assert harness.drain("dead") == [b"confirmed"] + [bytes(100)] * EXPIRED, (killed_at, at, way)
    assert brought


@pytest.mark.parametrize("older", [False, True], ids=["with an inventory", "without"])
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power cut"])
def test_damage_is_found_behind_a_start_that_was_cut_short(left: BrokerHarness, older: bool, power: bool) -> None:
    """The end of a segment is lost before or behind that start. It had been confirmed, whether or not an inventory says so."""
    if older:
        without_inventory(left.disk)
    path = next(
        path for path, content in left.disk.files().items() if b"confirmed" in content and path.endswith(".log")
    )
    silent = []
    for at, _ in operations(left.disk, left.clock):
        disk = cut_short(left.disk, at, left.clock)
        found = disk.survivor(Random(at)) if power else disk.kill()
        if found.files().get(paths.BOOT) == left.disk.files()[paths.BOOT]:
            continue  # it has done nothing yet
        file = found.open(path)
        file.truncate(file.size() - 1)
        if not BrokerHarness(found, left.clock).store.alarms:
            silent.append(at)
    assert not silent


def test_damage_that_a_start_was_killed_over_is_told(left: BrokerHarness, caplog: pytest.LogCaptureFixture) -> None:
    """It is killed between the renaming of a segment that cannot be read and the alarm. The next start has nothing to raise one for."""
    path = next(
        path for path, content in left.disk.files().items() if b"confirmed" in content and path.endswith(".log")
    )
    left.disk.open(path).write_at(0, [bytes(72)])
    silent = []
    for at, _ in operations(left.disk, left.clock):
        found = cut_short(left.disk, at, left.clock).kill()
        caplog.clear()
        BrokerHarness(found, left.clock)
        if not any(".bad" in record.getMessage() for record in caplog.records):
            silent.append(at)
    assert not silent

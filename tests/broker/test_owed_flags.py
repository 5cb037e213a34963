"""After a power cut all that waits is flagged at once, and the files are told of it behind the start (A9, A11)."""

from __future__ import annotations

from random import Random

import pytest

from kvitto.store import paths
from kvitto.store.store import NOTED_PER_TURN, OWES_FLAGS, boot_fault, how_it_ended
from tests.support.harness import BrokerHarness
from tests.support.simdisk import PowerCut, SimDisk

QUEUES = 5 * NOTED_PER_TURN + 1


@pytest.fixture
def cut() -> BrokerHarness:
    """A broker that has just started after a power cut: messages wait in many queues."""
    harness = BrokerHarness()
    for number in range(QUEUES):
        harness.declare(f"q{number}")
        harness.publish(f"q{number}", b"before")
    harness.settle_down()
    harness.cut(Random(1))
    return harness


def boot(harness: BrokerHarness) -> bytes:
    return harness.disk.read_file(paths.BOOT)


def flags(harness: BrokerHarness) -> list[list[bool]]:
    """What is flagged of each queue's messages."""
    return [[delivery.redelivered for delivery in harness.take(f"q{number}")] for number in range(QUEUES)]


def test_the_files_are_told_behind_the_start(cut: BrokerHarness) -> None:
    assert OWES_FLAGS in boot(cut)
    left = len(cut.store.owed_flags)
    assert left > NOTED_PER_TURN
    cut.turn()
    assert len(cut.store.owed_flags) == left - NOTED_PER_TURN
    cut.settle_down()
    assert OWES_FLAGS not in boot(cut)
    for number in range(QUEUES):
        cut.publish(f"q{number}", b"later")
    cut.settle_down()
    cut.kill()
    assert flags(cut) == [[True, False]] * QUEUES


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_what_was_not_told_yet_is_flagged_again(cut: BrokerHarness, turns: int) -> None:
    for _ in range(turns):
        cut.turn()
    cut.kill()
    assert how_it_ended(cut.disk).owes_flags
    assert flags(cut) == [[True]] * QUEUES


def test_boot_says_it_until_all_is_durable(cut: BrokerHarness) -> None:
    while cut.store.owed_flags:
        cut.turn()
    cut.sync(everything=False)
    assert OWES_FLAGS in boot(cut)
    cut.cut(Random(2), hostile=True)
    assert flags(cut) == [[True]] * QUEUES


def test_a_power_cut_never_leaves_boot_empty(cut: BrokerHarness) -> None:
    """While `boot` is changed it can be found as it was before or as it is then, and nothing else: D3."""
    found: set[bytes] = set()

    def look() -> None:
        for way in range(20):
            disk = cut.disk.survivor(Random(f"{cut.disk.operations} {way}"), hostile=way % 2 == 1)
            assert not boot_fault(disk)
            found.add(disk.read_file(paths.BOOT))

    before = boot(cut)
    cut.disk.watch = look
    cut.settle_down()
    assert found == {before, boot(cut)} and before != boot(cut)


def test_an_end_in_order_tells_the_rest(cut: BrokerHarness) -> None:
    cut.broker.finish()
    cut.store.shut()
    cut.disk = cut.disk.kill()
    assert how_it_ended(cut.disk).in_order
    cut.start()
    assert not cut.store.owed_flags
    assert flags(cut) == [[True]] * QUEUES


def test_without_room_it_is_not_forgotten(cut: BrokerHarness) -> None:
    left = dict(cut.store.owed_flags)
    cut.disk.full = True
    cut.turn()
    assert cut.store.room.short and cut.store.owed_flags == left
    cut.turn()
    cut.disk.full = False
    cut.kill()
    assert flags(cut) == [[True]] * QUEUES
    cut.store.make_room(False)
    cut.settle_down()
    assert OWES_FLAGS not in boot(cut)


def test_a_queue_that_is_deleted_is_owed_nothing(cut: BrokerHarness) -> None:
    for queue in list(cut.broker.vhosts["/"].queues.values()):
        cut.broker.vhosts["/"].delete_queue(queue)
    cut.settle_down()
    assert not cut.store.owed_flags and OWES_FLAGS not in boot(cut)


def backup_of(harness: BrokerHarness) -> SimDisk:
    """A backup as it is taken of a broker that runs, but for the inventory."""
    copy = harness.disk.copy().kill()
    file = copy.open(paths.BOOT)
    file.truncate(0)
    file.write_at(0, [harness.store.boot_of_backup()])
    return copy


def test_a_backup_says_it_too(cut: BrokerHarness) -> None:
    assert OWES_FLAGS in cut.store.boot_of_backup()
    copy = backup_of(cut)
    assert how_it_ended(copy).of_backup
    assert flags(BrokerHarness(copy)) == [[True]] * QUEUES
    cut.settle_down()
    assert OWES_FLAGS not in cut.store.boot_of_backup()


@pytest.mark.parametrize("part", [0.01, 0.25, 0.5, 0.75, 0.99])
def test_a_first_start_of_a_backup_that_is_killed_does_not_forget_it(cut: BrokerHarness, part: float) -> None:
    copy = backup_of(cut)
    whole = copy.copy()
    BrokerHarness(whole)
    copy.cut_at = copy.operations + 1 + int(part * (whole.operations - copy.operations))
    with pytest.raises(PowerCut):
        BrokerHarness(copy)
    assert flags(BrokerHarness(copy.kill())) == [[True]] * QUEUES

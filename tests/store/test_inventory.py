"""The inventory where there is no room, and where what it says of a file has to change before the file does (adr/0014)."""

from __future__ import annotations

import pytest

from kvitto.base.errors import StoreFull
from kvitto.store import definitions, inventory, journal, paths
from kvitto.store.inventory import DEFINITIONS, HALF, NOBODY, SEGMENT, SLOT, Inventory
from kvitto.store.record import Append, Record
from tests.support.harness import BrokerHarness, address
from tests.support.simdisk import SimDisk


def entered(disk: SimDisk) -> dict[tuple[int, int], int]:
    """(kind, number) -> size, of all that the inventory says."""
    found = inventory.read(disk.read_file(paths.INVENTORY), in_order=True, power_cut=False)
    assert not found.damage
    return {(entry.kind, entry.number): entry.size for entry in found.entries}


class FullFile:
    """The inventory's file on a disk that refuses what is written over, as one that copies on write may."""

    def __init__(self, own: Inventory) -> None:
        self.full = True
        self._file = own.file
        own.file = self  # type: ignore[assignment]

    def write_at(self, at: int, data: list[bytes]) -> int:
        if self.full:
            raise StoreFull("no room")
        return self._file.write_at(at, data)

    def sync(self) -> None:
        self._file.sync()


def test_what_a_full_disk_refused_does_not_take_the_place_of_what_came_later() -> None:
    own = Inventory(SimDisk())
    own.create()
    own.load(in_order=True, power_cut=False)
    own.open()
    slot, key = own.take(), (SEGMENT, "ab" * 16, 7)
    file = FullFile(own)
    assert own.put(slot, key, (100, 0, 0))
    file.full = False
    own.put(slot, key, (200, 0, 0))
    own.write_owed()
    assert entered(own._disk) == {(SEGMENT, 7): 200}  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [paths.SEGMENT_SUFFIX, ".jnl"])
def test_a_file_that_cannot_be_made_takes_no_slot(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are no inodes it is tried again and again: the inventory grew until the disk was full."""
    harness = BrokerHarness()
    queue_id = harness.declare("q").log.queue_id
    harness.settle_down()
    before, make = sorted(harness.store.inventory._free), harness.disk.open

    def refuse(path: str, *, create: bool = False) -> object:
        if create and path.endswith(suffix):
            raise StoreFull("no inodes")
        return make(path, create=create)

    monkeypatch.setattr(harness.disk, "open", refuse)
    for _ in range(3):
        harness.publish("q", b"m")
        harness.turn()
        if suffix == ".jnl":
            with pytest.raises(StoreFull):
                harness.store.journal.write(Record(appends=[Append(queue_id, address("q"), b"\0\0", b"m")]))
    if suffix == ".jnl":
        harness.settle_down()
        assert len(harness.store.inventory._free) == len(before) - 1, "the queue's segment has one"
    else:
        assert sorted(harness.store.inventory._free) == before


def test_a_journal_file_that_ends_while_it_is_synced_is_entered() -> None:
    """The next record began another file during the sync: the one that was synced was not entered, and its loss was silent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "ROTATE_BYTES", 300)
        harness = BrokerHarness()
        queue_id = harness.declare("q").log.queue_id
        harness.settle_down()
        done: list[bool] = []
        record(harness, queue_id, b"x" * 400)
        harness.store.commits.when_announced(lambda: done.append(True), messages=False)
        job = harness.store.begin_sync(everything=False)
        record(harness, queue_id, b"y" * 400)
        job.run()
        harness.store.end_sync(job)
        while not done:
            sync(harness)
        assert (inventory.JOURNAL, 1) in entered(harness.disk)
        record(harness, queue_id, b"z" * 400)
        sync(harness)
        sizes = {number: size for (kind, number), size in entered(harness.disk).items() if kind == inventory.JOURNAL}
        assert sorted(sizes) == [1, 2, 3] and min(sizes.values()) > 400


def record(harness: BrokerHarness, queue_id: str, body: bytes) -> None:
    harness.store.journal.write(Record(appends=[Append(queue_id, address("q"), b"\0\0", body)]))


def sync(harness: BrokerHarness) -> None:
    job = harness.store.begin_sync(everything=False)
    job.run()
    harness.store.end_sync(job)


def test_definitions_are_not_written_anew_while_the_inventory_cannot_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new file is shorter than what the inventory says: a start after a kill refused it."""
    monkeypatch.setattr(definitions, "COMPACT_BYTES", 1000)
    harness = BrokerHarness()
    file = FullFile(harness.store.inventory)
    size = harness.store.definitions.file.end
    for _ in range(20):
        harness.store.definitions.put("policy", ("/", "p"), {"pattern": "x" * 100})
        harness.store.commits.wrote_file(harness.store.definitions.file)
        sync(harness)
    assert harness.store.definitions.file.end > size + 1000, "it was written anew"
    file.full = False
    harness.settle_down()
    harness.kill()
    assert not harness.store.alarms
    assert HALF * 2 == SLOT and entered(harness.disk)[DEFINITIONS, 0] == harness.store.definitions.file.durable
    assert harness.store.inventory.claim(DEFINITIONS, NOBODY) == {}

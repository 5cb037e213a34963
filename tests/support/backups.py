"""Backups between simulated disks."""

from __future__ import annotations

from kvitto.store.cut import Cut
from kvitto.store.disk import File
from kvitto.store.taking import Gone, Taking
from tests.support.simdisk import NameChange, SimDisk


class SimMover:
    """Between two simulated disks."""

    def __init__(self, source: SimDisk, target: SimDisk, linking: bool) -> None:
        self.linking = linking
        self.source = source
        self.target = target

    def open(self, path: str) -> File:
        if not self.source.exists(path):
            raise Gone(path)
        return self.source.open(path)

    def link(self, path: str, name: str) -> bool:
        if not self.source.exists(path):
            raise Gone(path)
        self.target._rename(NameChange(name, self.source._names[path], made=True))
        return True

    def copy(self, source: File, target: File, at: int, n: int) -> int:
        return target.write_at(at, [source.read_at(at, n)])


def taken(source: SimDisk, cut: Cut, *, linking: bool = True) -> SimDisk:
    """Take a backup of which everything has been noted."""
    target = SimDisk(2)
    taking = Taking(source, cut.directory, target, SimMover(source, target, linking))
    taking.begin()
    for _ in taking.plan():
        pass
    for _ in taking.steps():
        pass
    taking.complete()
    return target

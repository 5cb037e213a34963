"""A simulated disk that records each operation in one order, and another disk that the operations are applied to later.

Every change of a data directory goes through `Disk` and `File`, from one thread. So what a `RecordingDisk` records is a complete account,
and each prefix of it, applied to an empty disk, is what a process would have found at that moment. A replica is such a disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from kvitto.store.definitions import Tracked
from kvitto.store.disk import Bytes, File
from tests.support.simdisk import Inode, SimDisk, SimFile

Operation = Callable[["Replica"], object]


class RecordingFile(SimFile):
    """A file is named by its inode, because it may be renamed while it is open."""

    _disk: RecordingDisk

    def write_at(self, pos: int, buffers: Sequence[Bytes]) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)  # the caller may use its buffers again
        size = super().write_at(pos, [data])
        self._record(lambda file: file.write_at(pos, [data]))
        return size

    def truncate(self, n: int) -> None:
        super().truncate(n)
        self._record(lambda file: file.truncate(n))

    def reserve(self, start: int, end: int) -> None:
        super().reserve(start, end)
        self._record(lambda file: file.reserve(start, end))

    def sync(self) -> None:
        super().sync()
        self._record(lambda file: file.sync())

    def _record(self, act: Callable[[SimFile], object]) -> None:
        number = self._disk.numbers[id(self._inode)]
        self._disk.record(lambda replica: act(replica.file(number)))


class RecordingDisk(SimDisk):
    """A `SimDisk` that appends each operation to `recorded`, once it has succeeded."""

    def __init__(self, boot: int = 1) -> None:
        super().__init__(boot)
        self.recorded: list[Operation] = []
        self.numbers: dict[int, int] = {}
        """The number of each inode, in the order in which they were made."""
        self._inodes: list[Inode] = []
        """All inodes. As long as they are kept, no two of them have the same id."""
        self._thread = threading.get_ident()

    @classmethod
    def of(cls, found: SimDisk) -> RecordingDisk:
        """The disk on which the next broker starts: it has what is there, and nothing has been recorded."""
        disk = cls(found._boot)
        disk.linking = found.linking
        disk._names, disk._certain, disk._pending = found._names, found._certain, found._pending
        for inode in disk._names.values():
            if inode is not None and id(inode) not in disk.numbers:
                disk._number(inode)
        return disk

    def _number(self, inode: Inode) -> None:
        self.numbers[id(inode)] = len(self._inodes)
        self._inodes.append(inode)

    def record(self, operation: Operation) -> None:
        assert threading.get_ident() == self._thread, "two threads change the directory: there is no one order"
        self.recorded.append(operation)

    def record_sync(self, files: list[File], dirs: list[str]) -> None:
        """Record that these are to be synced here, as a leader tells its replica when a commit begins."""
        numbers = [self._number_of(file) for file in files]

        def sync(replica: Replica) -> None:
            for number in numbers:
                replica.file(number).sync()
            for path in dirs:
                replica.disk.sync_dir(path)

        self.record(sync)

    def _number_of(self, file: File) -> int:
        inner = file.file if isinstance(file, Tracked) else file
        assert isinstance(inner, SimFile)
        return self.numbers[id(inner._inode)]

    def open(self, path: str, *, create: bool = False) -> RecordingFile:
        made = create and path not in self._names
        inode = super().open(path, create=create)._inode
        if made:
            self._number(inode)
            self.record(lambda replica: replica.make(path))
        return RecordingFile(self, path, inode)

    def makedirs(self, path: str) -> None:
        super().makedirs(path)
        self.record(lambda replica: replica.disk.makedirs(path))

    def rename(self, a: str, b: str) -> None:
        super().rename(a, b)
        self.record(lambda replica: replica.disk.rename(a, b))

    def link(self, a: str, b: str) -> bool:
        linked = super().link(a, b)
        if linked:
            self.record(lambda replica: replica.disk.link(a, b))
        return linked

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self.record(lambda replica: replica.disk.unlink(path))

    def rmtree(self, path: str) -> None:
        super().rmtree(path)
        self.record(lambda replica: replica.disk.rmtree(path))

    def sync_dir(self, path: str) -> None:
        super().sync_dir(path)
        self.record(lambda replica: replica.disk.sync_dir(path))


class Replica:
    """A disk that has the first `applied` of the operations of another one."""

    def __init__(self, leader: RecordingDisk, disk: SimDisk) -> None:
        """`disk`: what the leader's disk was when it had recorded nothing; it is changed from now on."""
        self.leader = leader
        self.disk = disk
        self.applied = 0
        found = {id(inode): inode for inode in self.disk._names.values() if inode is not None}
        self._files = list(found.values())

    def apply(self, until: int) -> None:
        """Apply operations in order until `until` of them have been applied."""
        while self.applied < until:
            self.leader.recorded[self.applied](self)
            self.applied += 1

    def make(self, path: str) -> None:
        """Make a file, and give it the number that it has on the leader, which counts its files in the same order."""
        self._files.append(self.disk.open(path, create=True)._inode)

    def file(self, number: int) -> SimFile:
        """Open the file with this number. It may have been renamed or removed since it was made."""
        return SimFile(self.disk, "", self._files[number])

    def copy(self) -> Replica:
        """The same state, on a disk of its own."""
        copies: dict[int, Inode] = {}

        def copied(inode: Inode) -> Inode:
            return copies.setdefault(id(inode), inode.copy())

        twin = Replica(self.leader, self.disk.copy_with(copied))
        twin._files = [copied(inode) for inode in self._files]
        twin.applied = self.applied
        return twin

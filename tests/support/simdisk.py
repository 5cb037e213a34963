"""A disk in memory that forgets: what was not synced survives a power cut in part, or torn, or not at all.

A `SimDisk` keeps two states: what the process sees, and what is certain. Between them lie the pending writes of each
file (certain after `File.sync`) and the pending changes of names (certain after `sync_dir` of their directory; syncing
a file says nothing about its name). `crash` makes the disk that a machine finds after a power cut, `kill` the one that
a new process finds. Each operation that changes something is counted, so that a test can cut the power, or fail, at
every one of them, or look at each with `watch` what a power cut would leave. Everything random comes from the caller's
`random.Random`: same seed, same disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeVar

from kvitto.base.errors import StoreError, StoreFull
from kvitto.store.disk import Bytes, Keeper, Remover

PID = 4711
T = TypeVar("T")


class PowerCut(BaseException):
    """The power is gone. No Exception: whatever handles errors must not handle this."""


@dataclass
class Write:
    """A pending write, or (data is None) a cut to `pos`. One that a failed sync has seen is never certain."""

    pos: int
    data: bytes | None
    stuck: bool = False

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            del content[self.pos :]
            content.extend(bytes(self.pos - len(content)))
        elif self.data:
            content.extend(bytes(max(0, self.pos - len(content))))
            content[self.pos : self.pos + len(self.data)] = self.data


@dataclass
class Inode:
    """A file's contents, whatever its name."""

    live: bytearray = field(default_factory=bytearray)
    certain: bytearray = field(default_factory=bytearray)
    pending: list[Write] = field(default_factory=list)

    def change(self, write: Write) -> None:
        write.apply(self.live)
        self.pending.append(write)

    def copy(self) -> Inode:
        return Inode(bytearray(self.live), bytearray(self.certain), [replace(write) for write in self.pending])

    def sync(self) -> None:
        for write in self.pending:
            if not write.stuck:
                write.apply(self.certain)
        self.pending = [write for write in self.pending if write.stuck]


Names = dict[str, Inode | None]
"""Path -> file; a directory is None."""


@dataclass
class NameChange:
    """A name made, removed (not `made`) or, with `moved_from`, renamed; certain once one of `dirs` is synced."""

    path: str
    inode: Inode | None
    made: bool
    moved_from: str | None = None

    @property
    def dirs(self) -> set[str]:
        return {parent(path) for path in (self.path, self.moved_from) if path is not None}

    def apply(self, names: Names) -> None:
        if self.moved_from is not None:
            names.pop(self.moved_from, None)
        if self.made:
            names[self.path] = self.inode
        else:
            for below in [name for name in names if name.startswith(self.path + "/")]:
                del names[below]
            names.pop(self.path, None)


def parent(path: str) -> str:
    return path.rpartition("/")[0]


class SimFile:
    """A `File` of a SimDisk."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._closed = False

    def write_at(self, pos: int, buffers: Sequence[Bytes]) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)
        inode = self._open()
        failure = None
        if self._disk.full and pos + len(data) > len(inode.live):
            failure = StoreFull(f"cannot write to {self.path}: the simulated disk is full")

        def write() -> None:
            inode.change(Write(pos, data))
            self._disk.written = (self.path, inode)

        def fail() -> None:
            inode.change(Write(pos, data[: len(data) // 2]))

        self._disk.change(f"write {self.path} {pos}+{len(data)}", write, fail, failure)
        return len(data)

    def read_at(self, pos: int, n: int) -> bytes:
        self._disk.read(self.path)
        return bytes(self._open().live[pos : pos + n])

    def read_into(self, pos: int, buf: memoryview) -> int:
        data = self.read_at(pos, buf.nbytes)
        buf.cast("B")[: len(data)] = data
        return len(data)

    def size(self) -> int:
        self._disk.alive()
        return len(self._open().live)

    def truncate(self, n: int) -> None:
        inode = self._open()
        self._disk.change(f"cut {self.path} {n}", lambda: inode.change(Write(n, None)))

    def reserve(self, start: int, end: int) -> None:
        inode = self._open()
        if self._disk.reserving and not self._disk.full and end > len(inode.live):
            room = Write(len(inode.live), bytes(end - len(inode.live)))
            self._disk.change(f"reserve {self.path} {end}", lambda: inode.change(room))

    def fileno(self) -> int:
        return -1

    def sync(self) -> None:
        inode = self._open()

        def fail() -> None:  # the pages count as clean now, although they never arrived
            for write in inode.pending:
                write.stuck = True

        self._disk.sync(f"sync {self.path}", inode.sync, fail)

    def close(self) -> None:
        self._closed = True

    def _open(self) -> Inode:
        if self._closed:
            raise StoreError(f"{self.path} is closed")
        return self._inode


class SimLock:
    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def close(self) -> None:
        self._disk.locks.discard(self._path)


class SimDisk:
    """A `Disk` in memory.

    `cut_at`: the number of the operation at which PowerCut is raised (and from then on by every call). A write or a
    change of names has reached the pending ones by then, a sync has not happened.
    `fail_at`: operation -> the error that it raises; a failed write leaves half of its bytes, after a failed sync
    what it should have synced stays uncertain for good. `fail_read_at`: the same for reads, which are counted apart.
    `watch` is called at each operation, where `cut_at` would raise; `trace`, if it is a list, gets the names of all operations.
    `reserving`: whether files get the room that is asked for; without, they end behind what was written.
    `linking`: whether a file may have two names.
    `full`: writes that make a file longer raise StoreFull. `free`: what free_bytes says.
    """

    freeing = 0

    def close(self) -> None:
        """A test looks into it afterwards."""

    def __init__(self, boot: int = 1, *, reserving: bool = True) -> None:
        self.keeper: Keeper | None = None
        self.remover: Remover | None = None
        self.reserving = reserving
        self.linking = True
        self.operations = 0
        self.cut_at: int | None = None
        self.fail_at: dict[int, Exception] = {}
        self.reads = 0
        self.fail_read_at: dict[int, Exception] = {}
        self.watch: Callable[[], None] | None = None
        self.trace: list[str] | None = None
        self.written: tuple[str, Inode] | None = None
        """Where the last write went."""
        self.full = False
        self.free = 1 << 40
        self.locks: set[str] = set()
        self._boot = boot
        self._names: Names = {}
        self._certain: Names = {}
        self._pending: list[NameChange] = []
        self._dead = False

    # -- what the process does -------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self.alive()
        inode = self._names.get(path)
        if path not in self._names and create:
            self._directory(parent(path))
            inode = Inode()
            self._rename(NameChange(path, inode, made=True))
        if inode is None:
            raise StoreError(f"cannot open {path}: " + ("it is a directory" if path in self._names else "no such file"))
        return SimFile(self, path, inode)

    def exists(self, path: str) -> bool:
        self.alive()
        return path == "" or path in self._names

    def listdir(self, path: str) -> list[str]:
        self.alive()
        self._no_file(path)
        above = path and path + "/"
        below = [name[len(above) :] for name in self._names if name.startswith(above)]
        return sorted(name for name in below if "/" not in name)

    def makedirs(self, path: str) -> None:
        self.alive()
        made = ""
        for part in filter(None, path.split("/")):
            made = f"{made}/{part}" if made else part
            if made not in self._names:
                self._rename(NameChange(made, None, made=True))
            elif self._names[made] is not None:
                raise StoreError(f"cannot make the directory {made}: there is a file of that name")

    def rename(self, a: str, b: str) -> None:
        self.alive()
        inode = self._names.get(a)
        if inode is None or (b in self._names and self._names[b] is None):
            raise StoreError(f"cannot rename {a} to {b}: no such file, or a directory")
        self._directory(parent(b))
        if self._names.get(b) is inode:  # two names of one file: POSIX has both stay
            return
        self._going(a)
        if b in self._names:
            self._going(b)
        if a != b:
            self._rename(NameChange(b, inode, made=True, moved_from=a))

    def link(self, a: str, b: str) -> bool:
        """Either name may be lost without the other."""
        self.alive()
        inode = self._names.get(a)
        if inode is None or b in self._names:
            raise StoreError(f"cannot link {a} to {b}: no such file, or there is one of that name")
        self._directory(parent(b))
        if self.linking:
            self._rename(NameChange(b, inode, made=True))
        return self.linking

    def unlink(self, path: str) -> None:
        self.alive()
        if self._names.get(path) is None:
            raise StoreError(f"cannot remove {path}: no such file")
        self._going(path)
        self._rename(NameChange(path, None, made=False))

    def rmtree(self, path: str) -> None:
        """Leaves first; each name is an operation."""
        self.alive()
        assert path, "the data directory itself stays"
        self._no_file(path)
        below = sorted(name for name in self._names if name == path or name.startswith(path + "/"))
        for name in below:
            self._going(name)
        for name in reversed(below):
            self._rename(NameChange(name, None, made=False))

    def _going(self, path: str) -> None:
        if self.keeper is not None:
            self.keeper.going(path)

    def open_dir(self, path: str) -> int:
        raise NotImplementedError

    def sync_dir(self, path: str) -> None:
        self.alive()
        self._no_file(path)

        def sync() -> None:
            waiting: list[NameChange] = []
            chosen = self._certain_with(path)
            for change in self._pending:
                if id(change) not in chosen:
                    waiting.append(change)
                    continue
                change.apply(self._certain)
                if not change.made:  # what was below it is gone with it
                    waiting = [c for c in waiting if not c.path.startswith(f"{change.path}/")]
            self._pending = waiting

        self.sync(f"sync {path}/", sync)

    def _certain_with(self, directory: str) -> set[int]:
        """Ids of the changes that a sync of the directory makes certain: its own, and what gave a file the name it is moved from.

        If the directory was removed and made again that is certain too. Paths do not tell the two apart, and what is synced in the second
        one would go when it becomes certain that the first one was removed.
        """
        chosen: set[int] = set()
        sources: set[str] = set()
        below = {directory}
        removed = [change.path for change in self._pending if not change.made]
        before = -1
        while len(chosen) > before:
            before = len(chosen)
            again = {path for path in removed if any(f"{name}/".startswith(f"{path}/") for name in below)}
            for change in reversed(self._pending):
                if directory in change.dirs or change.path in sources or change.path in again:
                    chosen.add(id(change))
                    below.add(change.path)
                    if change.moved_from is not None:
                        sources.add(change.moved_from)
        return chosen

    def free_bytes(self) -> int:
        self.alive()
        return 0 if self.full else self.free

    def open_files(self) -> int:
        return 0

    def read_file(self, path: str) -> bytes:
        file = self.open(path)
        return file.read_at(0, file.size())

    def lock(self, path: str) -> SimLock:
        if path in self.locks:
            raise StoreError(f"the simulated disk is in use by process {PID}: stop it or choose another --data-dir")
        file = self.open(path, create=True)
        file.truncate(0)
        file.write_at(0, [f"{PID} {self.boot_id()}\n".encode()])
        self.locks.add(path)
        return SimLock(self, path)

    def boot_id(self) -> str:
        return f"{self._boot:08x}-0000-4000-8000-000000000000"

    # -- what happens to it ----------------------------------------------------------------------------------

    def crash(self, rng: Random, *, hostile: bool = False) -> SimDisk:
        """The disk after a power cut, one of the many that are legal. This one is dead from now on."""
        self._dead = True
        return self.survivor(rng, hostile=hostile)

    def survivor(self, rng: Random, *, hostile: bool = False) -> SimDisk:
        """What `crash` would give now; this disk goes on.

        Of the pending writes of each file any part survives, each whole, torn, or as zeros. Of the pending changes of
        names the first few survive in order, or, if hostile, any of them.
        """
        found = SimDisk(self._boot + 1, reserving=self.reserving)
        found.linking = self.linking
        survivors = self._surviving_names(rng, hostile)
        files: dict[int, Inode] = {}
        for path in sorted(survivors):
            above, inode = parent(path), survivors[path]
            if above and (above not in found._names or found._names[above] is not None):
                continue  # its directory did not survive
            if inode is not None and id(inode) not in files:
                content = surviving_content(inode, rng)
                files[id(inode)] = Inode(content, bytearray(content))
            found._names[path] = None if inode is None else files[id(inode)]
        found._certain = dict(found._names)
        return found

    def torn(self, n: int, *, cut: bool) -> SimDisk:
        """A disk on which all is certain but the end of the last write: n bytes of that have arrived. After a power cut, or a kill."""
        assert self.written is not None
        found = SimDisk(self._boot + cut, reserving=self.reserving)
        found.linking = self.linking
        last = self.written[1].pending[-1]
        assert last.data is not None
        content = bytearray(self.written[1].certain)
        for write in [*self.written[1].pending[:-1], Write(last.pos, last.data[:n])]:
            write.apply(content)
        found._see(self, {id(self.written[1]): Inode(content, bytearray(content))})
        return found

    def seen(self) -> SimDisk:
        """Another disk with what a process sees on this one. All of it is certain there, so it is no disk for a power cut."""
        found = SimDisk(self._boot, reserving=self.reserving)
        found.linking = self.linking
        found._see(self, {})
        return found

    def _see(self, other: SimDisk, files: dict[int, Inode]) -> None:
        """Have the names of another disk, and copies of its files as a process sees them, but for those in `files`, by id."""
        for path, inode in other._names.items():
            if inode is not None and id(inode) not in files:
                files[id(inode)] = Inode(bytearray(inode.live), bytearray(inode.live))
            self._names[path] = None if inode is None else files[id(inode)]
        self._certain = dict(self._names)

    def drop_stuck(self) -> None:
        """The operating system gives up the pages that a failed sync could not write: nobody sees them any more."""
        for inode in {id(inode): inode for inode in self._names.values() if inode is not None}.values():
            if any(write.stuck for write in inode.pending):
                size = len(inode.live)
                inode.pending = [write for write in inode.pending if not write.stuck]
                inode.live = bytearray(inode.certain)
                for write in inode.pending:
                    write.apply(inode.live)
                Write(max(size, len(inode.live)), None).apply(inode.live)

    def kill(self) -> SimDisk:
        """The disk that the next process finds after kill -9: nothing is lost, nothing became certain by it."""
        self._dead = True
        found = SimDisk(self._boot, reserving=self.reserving)
        found.linking = self.linking
        found._names, found._certain, found._pending = self._names, self._certain, self._pending
        return found

    def copy(self) -> SimDisk:
        """The same state on another disk, which a test may start from without touching this one."""
        inodes: dict[int, Inode] = {}
        return self.copy_with(lambda inode: inodes.setdefault(id(inode), inode.copy()))

    def copy_with(self, copied: Callable[[Inode], Inode]) -> SimDisk:
        """The same with the files that `copied` gives for those of this disk."""

        def of(inode: Inode | None) -> Inode | None:
            return None if inode is None else copied(inode)

        twin = SimDisk(self._boot, reserving=self.reserving)
        twin.linking, twin.operations, twin.cut_at, twin._dead = self.linking, self.operations, self.cut_at, self._dead
        twin.full, twin.free, twin.fail_at = self.full, self.free, dict(self.fail_at)
        twin._names = {path: of(inode) for path, inode in self._names.items()}
        twin._certain = {path: of(inode) for path, inode in self._certain.items()}
        twin._pending = [replace(change, inode=of(change.inode)) for change in self._pending]
        return twin

    def __deepcopy__(self, _: dict[int, object]) -> SimDisk:
        return self.copy()

    def flip(self, path: str, position: int, bit: int = 0) -> None:
        """Damage: one bit of a file is another, on the disk too if it was certain."""
        inode = self._names[path]
        assert inode is not None
        for content in (inode.live, inode.certain):
            if position < len(content):
                content[position] ^= 1 << bit

    def flip_random(self, rng: Random, under: str = "") -> tuple[str, int]:
        """Flip some bit of some file whose path begins with `under`; gives (path, position)."""
        paths = [p for p, i in sorted(self._names.items()) if i is not None and i.live and p.startswith(under)]
        path = rng.choice(paths)
        inode = self._names[path]
        assert inode is not None
        position = rng.randrange(len(inode.live))
        self.flip(path, position, rng.randrange(8))
        return path, position

    def files(self) -> dict[str, bytes]:
        """Everything that the process sees."""
        return {path: bytes(inode.live) for path, inode in sorted(self._names.items()) if inode is not None}

    @property
    def certain(self) -> bool:
        """A power cut now would lose nothing."""
        inodes = [inode for inode in self._names.values() if inode is not None]
        return not self._pending and not any(inode.pending for inode in inodes)

    # -- counting --------------------------------------------------------------------------------------------

    def alive(self) -> None:
        if self._dead:
            raise PowerCut("the power is gone")

    def read(self, path: str) -> None:
        """Count a read; raises if it is to fail."""
        self.alive()
        self.reads += 1
        failure = self.fail_read_at.pop(self.reads, None)
        if failure is not None:
            raise failure

    def _count(self, what: str, on_failure: Callable[[], None], failure: Exception | None = None) -> bool:
        """Count an operation; raises if it is to fail. True if the power goes at this one."""
        self.alive()
        self.operations += 1
        if self.trace is not None:
            self.trace.append(what)
        failure = self.fail_at.pop(self.operations, None) or failure
        if failure is not None:
            on_failure()
            raise failure
        self._dead = self.cut_at is not None and self.operations >= self.cut_at
        return self._dead

    def change(
        self,
        what: str,
        apply: Callable[[], None],
        on_failure: Callable[[], None] = lambda: None,
        failure: Exception | None = None,
    ) -> None:
        """An operation that becomes pending, also if the power goes at it."""
        cut = self._count(what, on_failure, failure)
        apply()
        if cut:
            self.alive()
        if self.watch is not None:
            self.watch()

    def sync(self, what: str, apply: Callable[[], None], on_failure: Callable[[], None] = lambda: None) -> None:
        """An operation that makes things certain, unless the power goes at it."""
        if self._count(what, on_failure):
            self.alive()
        if self.watch is not None:
            self.watch()
        apply()

    # -- inside ----------------------------------------------------------------------------------------------

    def _directory(self, path: str) -> None:
        if path and (path not in self._names or self._names[path] is not None):
            raise StoreError(f"no such directory: {path}")

    def _no_file(self, path: str) -> None:
        """There may be nothing at `path`, but no file on the way to it."""
        while path:
            if self._names.get(path) is not None:
                raise StoreError(f"not a directory: {path}")
            path = parent(path)

    def _rename(self, change: NameChange) -> None:
        def apply() -> None:
            change.apply(self._names)
            self._pending.append(change)

        name = "make" if change.made else "remove"
        self.change(f"{name} {change.path} from {change.moved_from}", apply)

    def _surviving_names(self, rng: Random, hostile: bool) -> Names:
        names = dict(self._certain)
        if hostile:
            kept = list(some(self._pending, rng))
        else:
            kept = self._pending[: rng.randint(0, len(self._pending))]
        for change in kept:
            change.apply(names)
        return names


class FillingDisk(SimDisk):
    """Full from operation `start` on, until `length` more have been tried."""

    def __init__(self, start: int, length: int) -> None:
        self.start, self.length = start, length
        super().__init__()

    @property
    def full(self) -> bool:
        return self.start <= self.operations < self.start + self.length

    @full.setter
    def full(self, _: bool) -> None:
        pass

    def free_bytes(self) -> int:
        """Asking counts as trying: who finds no room may not even write."""
        free = super().free_bytes()
        self.operations += not free
        return free


def some(items: Sequence[T], rng: Random) -> Iterator[T]:
    """Any of the items in order: all, none, or each with a chance that differs from call to call."""
    chance = rng.choice((0.0, 1.0, rng.random()))
    return (item for item in items if rng.random() < chance)


def surviving_content(inode: Inode, rng: Random) -> bytearray:
    """What is left of a file: the certain part and any of the pending writes, each whole or in part."""
    content = bytearray(inode.certain)
    torn = rng.choice((0.0, 0.5))
    for write in some(inode.pending, rng):
        (tear(write, rng) if rng.random() < torn else write).apply(content)
    return content


def tear(write: Write, rng: Random) -> Write:
    """Part of a write: its beginning, its end with a gap before it, or its length without its bytes."""
    if not write.data:
        return write
    at = rng.randint(0, len(write.data))
    match rng.randrange(3):
        case 0:
            return Write(write.pos, write.data[:at])
        case 1:
            return Write(write.pos + at, write.data[at:])
        case _:
            return Write(write.pos, write.data[:at] + bytes(len(write.data) - at))

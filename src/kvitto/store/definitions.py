"""The definitions log: vhosts, users, permissions, exchanges, queues and bindings, one checksummed line per change.

docs/formats.md has the form of a line. Lines are appended without a sync, and a caller that answers "-ok" waits for one (D2). Each
line also says how much of the file was durable when it was written. After a power cut, which may keep some unsynced lines and lose others,
that tells a torn tail, which nobody was promised and which is cut, from damage, which refuses the start. Used by the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from kvitto.base.errors import StoreError, StoreFull
from kvitto.store import judge, line, paths
from kvitto.store.disk import Bytes, Disk, File
from kvitto.store.judge import Lines
from kvitto.store.line import Defined, Key

NEW = paths.DEFINITIONS + ".new"
"""The name of the new log during a compaction."""
COMPACT_BYTES = 4 << 20
"""A compaction begins when obsolete lines have more bytes than this."""
COMPACT_LINES = 50
"""A step of a compaction encodes this many lines, which takes about 0.5 ms."""
WRITTEN_LINES, WRITTEN_BYTES = 1000, 1 << 20
"""A step of a compaction writes this many lines that are encoded already, and their bytes, or twice as many lines as have come since the
step before."""


class Tracked:
    """The log's file, with its length (`end`) and how much of that a sync has covered (`durable`)."""

    def __init__(self, file: File) -> None:
        self.path = file.path
        self.end = 0
        self.durable = 0
        self.file = file

    def append(self, data: bytes) -> None:
        """Append to the file. A write that fails leaves the end where it was."""
        try:
            self.write_at(self.end, [data])
        except StoreFull:
            self.truncate(self.end)  # a start after an end in order would take half a line for damage
            raise
        self.end += len(data)

    def sync(self) -> None:
        self.file.sync()

    def fileno(self) -> int:
        return self.file.fileno()

    def write_at(self, pos: int, buffers: Sequence[Bytes]) -> int:
        return self.file.write_at(pos, buffers)

    def read_at(self, pos: int, n: int) -> bytes:
        return self.file.read_at(pos, n)

    def read_into(self, pos: int, buf: memoryview) -> int:
        return self.file.read_into(pos, buf)

    def size(self) -> int:
        return self.file.size()

    def truncate(self, n: int) -> None:
        self.file.truncate(n)

    def reserve(self, start: int, end: int) -> None:
        self.file.reserve(start, end)

    def close(self) -> None:
        self.file.close()


class Compaction:
    """Rewrites the log into a new file, some lines in each step, while the old log keeps growing.

    It writes first what was defined when it began, and then all changes since. When it is `complete`, each change is written to both
    files, until `Definitions.replace` gives the new file the name of the old one.
    """

    def __init__(self, disk: Disk, entries: dict[tuple[str, Key], tuple[Any, int]]) -> None:
        self.file = Tracked(disk.open(NEW, create=True))
        self.file.truncate(0)
        self.complete = False
        # two lists, because a list of pairs would be thousands of new objects for the garbage collector to look at
        self._keys, self._values = list(entries), list(entries.values())
        self._size = 0
        """The size of what was defined at the beginning. Each line says that it is durable, which is true once the file has its name."""
        self._sized = False
        self._since: deque[tuple[str, str, Key, Any]] = deque()
        """The changes that have come before that size was known."""
        self._lines: deque[bytes] = deque()
        """The lines of those that have come since. Who makes a change encodes its line: a step would have to encode thousands."""
        self._come = self._came = 0
        """The number of changes since the latest step, and the number of changes between the two steps before."""
        self._steps = self._write()

    def step(self) -> None:
        """Write some lines. Raises StoreFull if there is no room for them."""
        self._came, self._come = self._come, 0
        next(self._steps, None)

    def add(self, op: str, kind: str, key: Key, value: Any) -> None:
        """Take a change that has been written to the old log. Raises StoreFull if the new file has no room for it."""
        if self.complete:
            self.file.append(line.encode(op, kind, key, value, self._size))
        elif self._sized:
            self._lines.append(line.encode(op, kind, key, value, self._size))
            self._come += 1
        else:
            self._since.append((op, kind, key, value))

    def _write(self) -> Iterator[None]:
        size = 0
        for part in self._parts(0):
            size += len(part)
            yield
        self._size, self._sized = size, True
        for part in self._parts(size):
            self.file.append(part)
            yield
        self._keys, self._values = [], []
        while self._since:
            some = [self._since.popleft() for _ in range(min(len(self._since), COMPACT_LINES))]
            self.file.append(b"".join(line.encode(*change, size) for change in some))
            if self._since:
                yield
        while self._lines:
            ready: list[bytes] = []
            taken = 0
            # always more than are added between two steps, so that this loop ends
            while self._lines and (
                len(ready) < 2 * self._came or (len(ready) < WRITTEN_LINES and taken < WRITTEN_BYTES)
            ):
                ready.append(self._lines.popleft())
                taken += len(ready[-1])
            self.file.append(b"".join(ready))
            if self._lines:
                yield
        self.complete = True

    def _parts(self, durable: int) -> Iterator[bytes]:
        """Yield the lines of what was defined, COMPACT_LINES at a time."""
        for at in range(0, len(self._keys), COMPACT_LINES):
            keys, values = self._keys[at : at + COMPACT_LINES], self._values[at : at + COMPACT_LINES]
            some = zip(keys, values, strict=True)
            yield b"".join(line.encode("put", kind, key, value, durable) for (kind, key), (value, _) in some)


class Definitions:
    """The definitions and their log. Call `load` first. `compact` and `replace` change `file`: no sync of the old file may be running."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._entries: dict[tuple[str, Key], tuple[Any, int]] = {}
        """What is defined, and the length of its line. One dictionary has both, because it takes milliseconds to let a large one grow."""
        self._live = 0
        self._tried = 0
        self._file: Tracked | None = None
        self.unwritten: list[bytes] = []
        self.compaction: Compaction | None = None
        """The compaction under way, if there is one."""

    @property
    def file(self) -> Tracked:
        assert self._file is not None, "not loaded"
        return self._file

    @property
    def dirty(self) -> bool:
        """Whether there are lines that no sync has covered."""
        return self._file is not None and self._file.end > self._file.durable

    def sync(self) -> None:
        """Make all of the log durable before this returns."""
        self.file.sync()
        self.synced(self.file.end)

    def synced(self, end: int) -> None:
        """Note that a sync has made the file durable up to `end`."""
        self.file.durable = max(self.file.durable, end)

    @property
    def bloated(self) -> bool:
        """Whether a compaction is worth its time: enough lines are obsolete, and enough has been written since the last attempt."""
        if self._file is None or self.unwritten or self.compaction is not None:
            return False
        dead = self._file.end - self._live
        return dead > max(COMPACT_BYTES, 2 * self._live) and self._file.end >= self._tried + COMPACT_BYTES

    @property
    def stale(self) -> bool:
        """Whether a start has to rewrite the log: it has lines that are not durable, is more than half obsolete, or a compaction was not
        finished.

        Otherwise the start, for which clients of a cluster wait, goes without the syncs of a compaction.
        """
        end = self.file.end
        return self.file.durable < end or end > 2 * self._live or self._disk.exists(NEW)

    def load(
        self, in_order: bool = False, missing: Callable[[Defined], None] = lambda said: None, known: int = 0
    ) -> Defined:
        """Read the log and cut a torn tail. Returns what is defined, in the order in which it was first put. Raises StoreError for damage.

        `in_order`: the last owner ended in order, so that nothing can be torn. `known`: so many bytes had been synced.
        `missing` is called if synced lines may be missing: before a torn tail is cut, and after an end in order. Its argument is all that
        the readable lines have ever defined, including what a later line deleted. A directory in `queues/` that is not among it may belong
        to a queue whose line is lost; one that is among it, and not defined now, belongs to a deleted queue.
        """
        file = self._file = Tracked(self._disk.open(paths.DEFINITIONS, create=True))
        self._disk.sync_dir("")
        data = file.read_at(0, file.size())
        has_queues = bool(self._disk.listdir(paths.QUEUES))
        found = judge.definitions_log(data, file.path, in_order, known, has_queues)
        end = found.end
        if found.what is Lines.DAMAGED:
            reason = (
                f"it had been synced up to byte {found.synced}"
                if end < found.synced
                else "the broker had stopped in order"
            )
            raise StoreError(
                f"{file.path} is damaged at byte {end}, although {reason}: what is "
                "behind that cannot be trusted. Restore the data directory, or this file, from a backup, "
                "or have `kvitto salvage` make a directory of what can be read"
            )
        if found.what is Lines.SILENT:
            raise StoreError(
                f"{file.path} says nothing, although there are directories of queues: restore the file from a backup, "
                "or have `kvitto salvage` make a directory of the messages"
            )
        for at, after, change in found.lines:
            if change is None:
                break
            entry = (change["kind"], tuple(change["key"]))
            if change["op"] == "put":
                self._set(entry, change["value"], after - at)
            else:
                self._unset(entry)
        if found.may_lack:
            missing(found.said)
        if end < len(data):
            file.truncate(end)
        # Lines that were written but not synced count from here on, so a power cut must not take them any more.
        file.end = end
        self.sync()
        return self._list()

    def put(self, kind: str, key: Key, value: Any) -> None:
        """Define or replace an entry. `value` is anything that JSON can express."""
        text = line.encode("put", kind, key, value, self.file.durable)
        self._append(text)
        self._set((kind, key), value, len(text))
        self._mirror("put", kind, key, value)

    def delete(self, kind: str, key: Key) -> None:
        """Delete an entry, if there is one."""
        if (kind, key) in self._entries:
            self._append(line.encode("delete", kind, key, None, self.file.durable))
            self._unset((kind, key))
            self._mirror("delete", kind, key, None)

    def _append(self, text: bytes) -> None:
        """Write a line. Without room on the disk it waits for `flush`, and so do those behind it."""
        self.unwritten.append(text)
        if len(self.unwritten) > 1:
            return
        try:
            self.flush()
        except StoreFull:
            pass
        except StoreError:
            self.unwritten.clear()
            raise

    def flush(self) -> None:
        """Write the lines that had no room on the disk. Raises StoreFull if there still is none."""
        while self.unwritten:
            self.file.append(self.unwritten[0])
            del self.unwritten[0]

    def _mirror(self, op: str, kind: str, key: Key, value: Any) -> None:
        if self.compaction is None:
            return
        try:
            if self.unwritten:
                raise StoreFull("the old log has no room either")
            self.compaction.add(op, kind, key, value)
        except StoreFull:
            self.abandon_compaction()

    def begin_compaction(self) -> Compaction:
        """Begin a compaction, whose steps the caller runs. Raises StoreFull if there is no room for another file."""
        self._tried = self.file.end
        self.compaction = Compaction(self._disk, self._entries)
        return self.compaction

    def abandon_compaction(self) -> None:
        """Give up a compaction. The old file stays."""
        given_up, self.compaction = self.compaction, None
        if given_up is not None:
            given_up.file.close()
            with suppress(StoreFull):
                self._disk.unlink(NEW)

    def replace(self, durable: int) -> None:
        """Give the new file the name of the old one. Its first `durable` bytes are durable, and hold all that is durable in the old file.

        Until the directory has been synced, a power cut may leave the old file under the name.
        """
        done = self.compaction
        assert done is not None
        self._disk.rename(NEW, paths.DEFINITIONS)
        self.file.close()
        done.file.durable = durable
        self._file, self.compaction, self._tried = done.file, None, 0

    def compact(self) -> None:
        """Rewrite the log with what is defined now, durably. After a crash either the old file or the new one is there.

        Raises StoreFull if there is no room; then the old file stays.
        """
        self.abandon_compaction()
        compaction = self.begin_compaction()
        try:
            while not compaction.complete:
                compaction.step()
        except StoreFull:
            self.abandon_compaction()
            raise
        compaction.file.sync()
        self.replace(compaction.file.end)
        self._disk.sync_dir("")

    def close(self) -> None:
        self.abandon_compaction()
        if self._file is not None:
            self._file.close()

    def _list(self) -> Defined:
        return [(kind, key, value) for (kind, key), (value, _) in self._entries.items()]

    def _set(self, entry: tuple[str, Key], value: Any, length: int) -> None:
        before = self._entries.get(entry)
        self._live += length - (before[1] if before else 0)
        self._entries[entry] = value, length

    def _unset(self, entry: tuple[str, Key]) -> None:
        before = self._entries.pop(entry, None)
        self._live -= before[1] if before else 0

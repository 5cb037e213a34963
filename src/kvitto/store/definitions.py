"""The definitions log: vhosts, users, permissions, exchanges, queues and bindings, one checksummed line per change.

Form in docs/formats.md. Lines are appended unsynced; whoever answers "-ok" syncs `file` first (semantics D2). Each line
also says how much of the file was known to be durable when it was written. That tells, after a power cut that kept
some unsynced lines and lost others, a torn tail (nobody was told, it is cut) from damage (the start is refused).
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
"""Bytes of lines that mean nothing any more, above which the log is worth writing anew."""
COMPACT_LINES = 50
"""A step of a compaction encodes this many lines, which takes about 0.5 ms."""


class Tracked:
    """The log's file; remembers how much of it a sync has covered."""

    def __init__(self, file: File) -> None:
        self.path = file.path
        self.end = 0
        self.durable = 0
        self._file = file

    def append(self, data: bytes) -> None:
        """A write that fails leaves the end where it was."""
        try:
            self.write_at(self.end, [data])
        except StoreFull:
            self.truncate(self.end)  # half a line would be damage to a start after an end in order
            raise
        self.end += len(data)

    def sync(self) -> None:
        self._file.sync()

    def fileno(self) -> int:
        return self._file.fileno()

    def write_at(self, pos: int, buffers: Sequence[Bytes]) -> int:
        return self._file.write_at(pos, buffers)

    def read_at(self, pos: int, n: int) -> bytes:
        return self._file.read_at(pos, n)

    def read_into(self, pos: int, buf: memoryview) -> int:
        return self._file.read_into(pos, buf)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, n: int) -> None:
        self._file.truncate(n)

    def reserve(self, start: int, end: int) -> None:
        self._file.reserve(start, end)

    def close(self) -> None:
        self._file.close()


class Compaction:
    """Rewrites the log into a new file, some lines in each step, while the old log keeps growing.

    It writes first what was defined when it began, and then all changes since. When it is `complete`, each change is written to both
    files, until `Definitions.replace` gives the new file the name of the old one.
    """

    def __init__(self, disk: Disk, entries: list[tuple[tuple[str, Key], Any]]) -> None:
        self.file = Tracked(disk.open(NEW, create=True))
        self.file.truncate(0)
        self.complete = False
        self._entries = entries
        self._size = 0
        """The size of what was defined at the begin. Each line says that this is durable, which is true once the file has its name."""
        self._since: deque[tuple[str, str, Key, Any]] = deque()
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
        else:
            self._since.append((op, kind, key, value))
            self._come += 1

    def _write(self) -> Iterator[None]:
        size = 0
        for part in self._parts(0):
            size += len(part)
            yield
        self._size = size
        for part in self._parts(size):
            self.file.append(part)
            yield
        self._entries = []
        while self._since:
            count = max(COMPACT_LINES, 2 * self._came)  # more than come meanwhile, so that it ends
            some = [self._since.popleft() for _ in range(min(len(self._since), count))]
            self.file.append(b"".join(line.encode(*change, size) for change in some))
            if self._since:
                yield
        self.complete = True

    def _parts(self, durable: int) -> Iterator[bytes]:
        """Yield the lines of what was defined, COMPACT_LINES at a time."""
        for at in range(0, len(self._entries), COMPACT_LINES):
            some = self._entries[at : at + COMPACT_LINES]
            yield b"".join(line.encode("put", kind, key, value, durable) for (kind, key), value in some)


class Definitions:
    """`load` comes first. `compact` and `replace` give `file` another one: only while nobody syncs the old one."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._entries: dict[tuple[str, Key], Any] = {}
        self._lengths: dict[tuple[str, Key], int] = {}
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
        """There are lines that no sync has covered."""
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
        """So much of the log means nothing any more that `compact` is worth its time, spread over what has been written since."""
        if self._file is None or self.unwritten or self.compaction is not None:
            return False
        dead = self._file.end - self._live
        return dead > max(COMPACT_BYTES, 2 * self._live) and self._file.end >= self._tried + COMPACT_BYTES

    def load(
        self, in_order: bool = False, missing: Callable[[Defined], None] = lambda said: None, known: int = 0
    ) -> Defined:
        """What is defined, in the order in which it was first put. Cuts a torn tail; StoreError on damage.

        `in_order`: the last owner has ended so, and nothing can be torn. `known`: so many bytes had been synced.
        `missing` is called before a torn tail is cut, and where each
        line that was ever written must be there, with all that the lines have ever defined, what was deleted since too.
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
        # What is on disk but was never synced counts from here on, so it must not be lost after all.
        file.end = end
        self.sync()
        return self._list()

    def put(self, kind: str, key: Key, value: Any) -> None:
        """Define or replace; `value` is anything that JSON can express."""
        text = line.encode("put", kind, key, value, self.file.durable)
        self._append(text)
        self._set((kind, key), value, len(text))
        self._mirror("put", kind, key, value)

    def delete(self, kind: str, key: Key) -> None:
        """One that is not there is fine."""
        if (kind, key) in self._entries:
            self._append(line.encode("delete", kind, key, None, self.file.durable))
            self._unset((kind, key))
            self._mirror("delete", kind, key, None)

    def _append(self, text: bytes) -> None:
        """Without room the line waits for `flush`, and those behind it too."""
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
        """Write what had no room. StoreFull if there still is none."""
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
        self.compaction = Compaction(self._disk, list(self._entries.items()))
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
        self._live = sum(self._lengths.values())

    def compact(self) -> None:
        """Rewrite the log with what is defined now, durably; after a crash either the old or the new one is there.

        StoreFull if there is no room; then the old one stays.
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
        return [(kind, key, value) for (kind, key), value in self._entries.items()]

    def _set(self, entry: tuple[str, Key], value: Any, length: int) -> None:
        self._live += length - self._lengths.get(entry, 0)
        self._entries[entry], self._lengths[entry] = value, length

    def _unset(self, entry: tuple[str, Key]) -> None:
        self._entries.pop(entry, None)
        self._live -= self._lengths.pop(entry, 0)

"""An index of messages by the time when they are due. `Delays` has one for each queue with messages that wait.

The entries that came last are in memory, in a heap. When there are many of them, most of them go into a file as a sorted run, and of a
run only the next few entries are in memory. So a million waiting messages cost a few hundred KiB.

The files are a cache: what they say is in the queue's log too, a start makes the index anew, and nothing here is ever synced.
An entry is due at a time in ms of the monotonic clock. It stays until it is due: whoever keeps the index ignores entries of messages that
no longer wait.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator
from typing import Protocol

from kvitto.base.errors import StoreError

log = logging.getLogger("kvitto.broker")

ENTRY_BYTES = 24
"""An entry is one integer, so that it is compared at once: due time, offset and size, of 64 bits each. Files have it in big-endian form."""
MEMORY_MAX, SPILLED = 4096, 3072
"""When so many entries are in memory, so many of them go into a file."""
SPILLED_SOON = 512
"""If there are still more in memory, because a file could not be written before, the next ones go after so many new entries."""
READ_ENTRIES = 32
"""Entries of a run that are read at a time."""
FILE_BYTES = 16 << 20
"""When a file has so many bytes, the next run begins another one. A file is removed when all of its runs have been read."""
FREED_PER_PIECE = 2000
_LOW = (1 << 64) - 1


class RunFile(Protocol):
    """A file for runs."""

    def append(self, data: bytes) -> int:
        """Append, and return the position of the first byte. Raises StoreError."""
        ...

    def read_at(self, pos: int, n: int) -> bytes: ...

    def remove(self) -> None: ...


class RunFiles(Protocol):
    """Where an index keeps its files."""

    def make(self) -> RunFile:
        """Make an empty file. Raises StoreError."""
        ...


def entry(due_ms: int, offset: int, size: int) -> int:
    return due_ms << 128 | offset << 64 | size


def due_of(packed: int) -> int:
    return packed >> 128


def offset_of(packed: int) -> int:
    return packed >> 64 & _LOW


def size_of(packed: int) -> int:
    return packed & _LOW


class Shared:
    """A file with several runs."""

    def __init__(self, file: RunFile) -> None:
        self.file = file
        self.size = 0
        self.runs = 0


class Run:
    """A sorted run of entries in a file."""

    def __init__(self, shared: Shared, at: int, count: int) -> None:
        self._shared = shared
        self._at = at
        self.left = count
        """The entries that have not been taken by `next`, without those in memory."""
        self._read: list[int] = []
        """Entries in memory, the next one last."""
        self._ended = False
        shared.runs += 1

    def next(self) -> int | None:
        """Take the next entry. None behind the last one; then the file is removed if this was its last run."""
        if not self._read:
            if not self.left:
                self.end()
                return None
            self._read = self._read_at(self._at, self.left)
            self._read.reverse()
            self._at += ENTRY_BYTES * len(self._read)
            self.left -= len(self._read)
        return self._read.pop()

    def _read_at(self, at: int, most: int) -> list[int]:
        n = min(most, READ_ENTRIES) * ENTRY_BYTES
        data = self._shared.file.read_at(at, n)
        return [int.from_bytes(data[i : i + ENTRY_BYTES], "big") for i in range(0, n, ENTRY_BYTES)]

    def rest(self) -> Iterator[int]:
        """Yield the entries that `next` has not taken, without taking them. This ends if the run ends meanwhile."""
        at, left = self._at, self.left
        yield from self._read[::-1]
        while left and not self._ended:
            some = self._read_at(at, left)
            at, left = at + ENTRY_BYTES * len(some), left - len(some)
            yield from some

    def end(self) -> None:
        """Forget the run. The file is removed with its last run."""
        shared, self._ended = self._shared, True
        shared.runs -= 1
        if not shared.runs:
            shared.file.remove()


class DueIndex:
    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._heap: list[int] = []
        self._heads: list[tuple[int, int, Run]] = []
        """The first entry of each run, as a heap. The number in the middle differs for each run, so that runs are never compared."""
        self._numbers = 0
        self._open: Shared | None = None
        self._most = MEMORY_MAX

    @property
    def next_ms(self) -> int | None:
        """When the first entry is due. None if there is none."""
        firsts = [self._heap[0]] if self._heap else []
        if self._heads:
            firsts.append(self._heads[0][0])
        return due_of(min(firsts)) if firsts else None

    def add(self, due_ms: int, offset: int, size: int) -> None:
        heapq.heappush(self._heap, entry(due_ms, offset, size))
        if len(self._heap) >= self._most:
            self._spill()

    def take(self, now_ms: int) -> int | None:
        """Take the first entry that is due at this time. Returns None if there is none."""
        heap, heads = self._heap, self._heads
        limit = (now_ms + 1) << 128
        if heads and (not heap or heads[0][0] < heap[0]):
            first, number, run = heads[0]
            if first >= limit:
                return None
            following = run.next()
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following, number, run))
            return first
        if heap and heap[0] < limit:
            return heapq.heappop(heap)
        return None

    def in_order(self) -> Iterator[int]:
        """Yield all entries by due time. The reader may pause; what is added or taken meanwhile may or may not be yielded."""
        yield from heapq.merge(sorted(self._heap), *(_from(first, run) for first, _, run in self._heads))

    def clear(self) -> Iterator[None]:
        """Forget all entries. Returns the steps that free their memory."""
        heap, self._heap = self._heap, []
        runs, self._heads = [run for _, _, run in self._heads], []
        self._open, self._most = None, MEMORY_MAX
        for run in runs:
            run.end()
        return _free(heap)

    def _spill(self) -> None:
        """Write most entries into a file: the last ones of the heap, so the rest is a heap still. If that fails, they stay in memory."""
        run = sorted(self._heap[-SPILLED:])
        data = b"".join([packed.to_bytes(ENTRY_BYTES, "big") for packed in run])
        shared = self._open
        try:
            if shared is None or not shared.runs or shared.size >= FILE_BYTES:
                self._open = None
                shared = self._open = Shared(self._files.make())
            at = shared.file.append(data)
        except StoreError as error:
            # The disk is full, or no descriptor for a file is left. No message is lost by that, because the log has them all.
            if self._open is not None and not self._open.runs:
                self._open.file.remove()
                self._open = None
            if self._most == MEMORY_MAX:
                log.warning("the index of waiting messages stays in memory: %s", error)
            self._most = len(self._heap) + MEMORY_MAX
            return
        shared.size += len(data)
        del self._heap[-SPILLED:]
        self._most = max(len(self._heap) + SPILLED_SOON, MEMORY_MAX)
        self._numbers += 1
        written = Run(shared, at, len(run))
        first = written.next()
        assert first is not None
        heapq.heappush(self._heads, (first, self._numbers, written))


def _from(first: int, run: Run) -> Iterator[int]:
    yield first
    yield from run.rest()


def _free(heap: list[int]) -> Iterator[None]:
    while heap:
        del heap[-FREED_PER_PIECE:]
        yield

"""How far the named consumers of a stream have acked: the file `offsets` of docs/formats.md.

`put` only notes; whoever owns it calls `write` from time to time. Every tag has two slots that are written in turn: a torn write
leaves the value before.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from kvitto.base.errors import StoreFull
from kvitto.store import judge, paths, slot
from kvitto.store.inventory import OFFSETS, Entry
from kvitto.store.judge import Slots
from kvitto.store.slot import SLOT, Kept

if TYPE_CHECKING:
    from kvitto.store.disk import File
    from kvitto.store.store import Store

TAGS_MAX = 1000
"""Tags that are remembered; the one that has not moved for longest gives way."""

log = logging.getLogger("kvitto.store")


class Offsets:
    def __init__(self, store: Store, directory: str) -> None:
        self._store = store
        self._directory = directory
        self._path = paths.offsets(directory)
        self._file: File | None = None
        self._kept: dict[str, Kept] = {}
        self._free: list[tuple[int, int]] = []
        self._pairs = 0
        self._changed: dict[str, None] = {}
        self._queue_id = directory.rpartition("/")[2]
        self._seed = slot.seed_of(self._queue_id)
        self._slot = -1
        self._entered = 0
        """Where the inventory has the file, and with how many bytes."""

    @property
    def changed(self) -> bool:
        """Something is not written yet."""
        return bool(self._changed)

    @property
    def on_disk(self) -> bool:
        return self._file is not None

    def get(self, tag: str) -> int | None:
        """The offset at which this consumer goes on."""
        found = self._kept.get(tag)
        return None if found is None else found.offset

    def put(self, tag: str, offset: int) -> None:
        """Remember it; on disk with the next `write`."""
        found = self._kept.pop(tag, None) or self._make(offset)
        found.offset, found.time_ms = offset, self._store.clock.now_ms()
        self._kept[tag] = found  # at the end: it has moved last
        self._changed[tag] = None

    def _make(self, offset: int) -> Kept:
        if len(self._kept) >= TAGS_MAX:
            oldest = next(iter(self._kept))
            gone = self._kept.pop(oldest)
            self._changed.pop(oldest, None)
            log.info("%s: how far %r has read is forgotten, %d others came later", self._path, oldest, TAGS_MAX)
            return Kept(gone.pair, gone.sequence, offset, 0)
        if self._free:
            return Kept(*self._free.pop(), offset, 0)
        self._pairs += 1
        return Kept(self._pairs - 1, -1, offset, 0)

    def write(self) -> None:
        """Write what has changed; it is durable after the next sync. Without room it stays for the next time."""
        if not self._changed:
            return
        with suppress(StoreFull):
            if self._file is None:
                self._store.make_dir(self._directory, True)
                self._file = self._store.disk.open(self._path, create=True)
                self._store.commits.renamed(self._directory)
            for tag in list(self._changed):
                self._write_slot(tag, self._kept[tag])
                del self._changed[tag]
        if self._file is not None:
            self._store.commits.wrote_file(self._file)
            size = self._file.size()
            if size > self._entered:
                self._entered = size
                self._store.commits.when_synced(lambda: self._enter(size))

    def _enter(self, size: int) -> None:
        """The file is durable with this size: from now on it is missed if it is not there, or shorter."""
        if self._file is None:
            return
        store = self._store
        try:
            self._slot = store.inventory.take() if self._slot < 0 else self._slot
            if store.inventory.put(self._slot, (OFFSETS, self._queue_id, 0), (size, 0, 0)):
                store.commits.wrote_file(store.inventory.file)
        except StoreFull:
            self._entered = 0

    def load(self) -> None:
        """Take what a start finds. What cannot be read is forgotten, and an alarm says so."""
        store, disk = self._store, self._store.disk
        known = store.inventory.claim(OFFSETS, self._queue_id).get(0)
        if not disk.exists(self._path):
            if known is not None:
                store.remember(self._directory, paths.offsets(self._directory) + paths.QUARANTINE_SUFFIX)
                store.alarm(f"{self._path} is missing: the stream's named consumers start over")
                store.drop_slot(known.slot)
            return
        self._file = disk.open(self._path)
        data = self._file.read_at(0, self._file.size())
        if known is not None:
            self._slot, self._entered = known.slot, known.size
            if len(data) < known.size:
                store.alarm(
                    f"{self._path} ends at byte {len(data)} of {known.size}: named consumers of the stream start over"
                )
        self._take(data, known)
        if store.upgrading:
            self._rewrite()
        elif self._slot < 0 and data:  # a killed process may not have synced it
            store.commits.wrote_file(self._file)
            store.commits.when_synced(lambda: self._enter(len(data)))

    def _take(self, data: bytes, known: Entry | None) -> None:
        kept: list[tuple[str, Kept]] = []
        pairs = judge.offsets(data, self._queue_id, self._store.ending, known, self._store.upgrading)
        self._pairs = len(pairs)
        for pair in pairs:
            if pair.newest is not None:
                kept.append(pair.newest)
            else:
                self._free.append((pair.number, -1))
            if pair.is_damaged:
                self._store.alarm(f"{self._path}, byte {pair.position}: {pair.what.value}")
            elif pair.what is Slots.TORN:
                self._mend(pair.number, pair.newest)
        self._kept = dict(sorted(kept, key=lambda tag: tag[1].time_ms))

    def _mend(self, pair: int, known: tuple[str, Kept] | None) -> None:
        """A power cut has torn a slot. It is written again at once: a start after a kill takes a torn slot for damage."""
        assert self._file is not None
        with suppress(StoreFull):
            if known is None:
                self._file.write_at(2 * SLOT * pair, [bytes(2 * SLOT)])
            else:
                self._write_slot(*known)
            self._store.commits.wrote_file(self._file)

    def _write_slot(self, tag: str, kept: Kept) -> None:
        assert self._file is not None
        size = self._file.size()
        try:
            self._file.write_at(SLOT * (2 * kept.pair + (kept.sequence + 1) % 2), [slot.encode(tag, kept, self._seed)])
        except StoreFull:
            self._file.truncate(size)  # after a kill, a start would take a part of a slot for damage
            raise
        kept.sequence += 1

    def _rewrite(self) -> None:
        """The format before this one had checksums that did not tell whose file it is."""
        self._store.commits.close(self._file)
        content = bytearray(2 * SLOT * self._pairs)
        for tag, kept in self._kept.items():
            at = SLOT * (2 * kept.pair + (kept.sequence + 1) % 2)
            content[at : at + SLOT] = slot.encode(tag, kept, self._seed)
            kept.sequence += 1
        name = self._path + ".new"
        file = self._store.disk.open(name, create=True)
        file.truncate(0)
        file.write_at(0, [content])
        file.sync()
        file.close()
        self._store.disk.rename(name, self._path)
        self._store.disk.sync_dir(self._directory)
        self._file = self._store.disk.open(self._path)
        self._enter(len(content))

    def close(self) -> None:
        """The stream is deleted."""
        self._store.commits.close(self._file)
        self._file = None
        self._changed.clear()
        with suppress(StoreFull):
            self._store.drop_slot(self._slot)
        self._slot = -1

"""How far the named consumers of a stream have acked: the file `offsets` (docs/formats.md, A stream's directory).

`put` changes memory only; the stream calls `write` from time to time. Each tag has two slots that are written alternately, so that a torn
write leaves the value before it. Used by the log of a stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from kvitto.base.errors import StoreFull
from kvitto.store import judge, paths, slot
from kvitto.store.disk import replace_small
from kvitto.store.inventory import OFFSETS, Entry
from kvitto.store.judge import Slots
from kvitto.store.slot import SLOT, Kept

if TYPE_CHECKING:
    from kvitto.store.disk import File
    from kvitto.store.store import Store

TAGS_MAX = 1000
"""At most this many tags are remembered. A new one takes the place of the one that has not changed for longest."""

log = logging.getLogger("kvitto.store")


class Offsets:
    def __init__(self, store: Store, directory: str, before_write: Callable[[], None]) -> None:
        """`before_write` is called before the file changes."""
        self._store = store
        self._before_write = before_write
        self._directory = directory
        self.path = paths.offsets(directory)
        self._file: File | None = None
        self._kept: dict[str, Kept] = {}
        self._free: list[tuple[int, int]] = []
        self._pairs = 0
        self._changed: dict[str, None] = {}
        self._queue_id = directory.rpartition("/")[2]
        self._seed = slot.seed_of(self._queue_id)
        self._slot = -1
        self._entered = 0
        """How many bytes of the file are in the inventory; `_slot` is where."""

    @property
    def changed(self) -> bool:
        """Whether something has not been written yet."""
        return bool(self._changed)

    @property
    def on_disk(self) -> bool:
        return self._file is not None

    def content(self) -> bytes:
        """Return what is in the file now."""
        assert self._file is not None
        return self._file.read_at(0, self._file.size())

    def get(self, tag: str) -> int | None:
        """Return the offset from which this consumer goes on, None if the tag is not known."""
        found = self._kept.get(tag)
        return None if found is None else found.offset

    def put(self, tag: str, offset: int) -> None:
        """Remember the offset from which a consumer goes on. The next `write` puts it on disk."""
        found = self._kept.pop(tag, None) or self._make(offset)
        found.offset, found.time_ms = offset, self._store.clock.now_ms()
        self._kept[tag] = found  # at the end of the dictionary, because it has changed last
        self._changed[tag] = None

    def _make(self, offset: int) -> Kept:
        if len(self._kept) >= TAGS_MAX:
            oldest = next(iter(self._kept))
            gone = self._kept.pop(oldest)
            self._changed.pop(oldest, None)
            log.info(
                "%s: forgets how far %r has read, since %d other consumers have acked later",
                self.path,
                oldest,
                TAGS_MAX,
            )
            return Kept(gone.pair, gone.sequence, offset, 0)
        if self._free:
            return Kept(*self._free.pop(), offset, 0)
        self._pairs += 1
        return Kept(self._pairs - 1, -1, offset, 0)

    def write(self) -> None:
        """Write what has changed, which the next sync makes durable. Without room on the disk the next call tries again."""
        if not self._changed:
            return
        self._before_write()
        with suppress(StoreFull):
            if self._file is None:
                self._store.make_dir(self._directory, True)
                self._file = self._store.disk.open(self.path, create=True)
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
        """Enter the file, which is durable with this size, in the inventory, so that a start notices if it is missing or shorter."""
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
        """Read the file at a start. An alarm tells of each tag that cannot be read."""
        store, disk = self._store, self._store.disk
        known = store.inventory.claim(OFFSETS, self._queue_id).get(0)
        if not disk.exists(self.path):
            if known is not None:
                store.remember(self._directory, paths.offsets(self._directory) + paths.QUARANTINE_SUFFIX)
                store.alarm(f"{self.path} is missing: the stream's named consumers start over")
                store.drop_slot(known.slot)
            return
        self._file = disk.open(self.path)
        data = self._file.read_at(0, self._file.size())
        if known is not None:
            self._slot, self._entered = known.slot, known.size
            if len(data) < known.size:
                store.alarm(
                    f"{self.path} ends at byte {len(data)} of {known.size}: named consumers of the stream start over"
                )
        self._take(data, known)
        if store.upgrading:
            self._rewrite()
        elif self._slot < 0 and data:  # a killed process may have written it without a sync
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
                self._store.alarm(f"{self.path}, byte {pair.position}: {pair.what.value}")
            elif pair.what is Slots.TORN:
                self._mend(pair.number, pair.newest)
        self._kept = dict(sorted(kept, key=lambda tag: tag[1].time_ms))

    def _mend(self, pair: int, known: tuple[str, Kept] | None) -> None:
        """Write a slot that a power cut has torn again at once, because a start after a kill would take it for damage."""
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
            self._file.truncate(size)  # a start after a kill would take a part of a slot for damage
            raise
        kept.sequence += 1

    def _rewrite(self) -> None:
        """Write the whole file again, durably: in the format before this one the checksums do not tell whose file it is."""
        self._store.commits.close(self._file)
        content = bytearray(2 * SLOT * self._pairs)
        for tag, kept in self._kept.items():
            at = SLOT * (2 * kept.pair + (kept.sequence + 1) % 2)
            content[at : at + SLOT] = slot.encode(tag, kept, self._seed)
            kept.sequence += 1
        replace_small(self._store.disk, self.path, content)
        self._file = self._store.disk.open(self.path)
        self._enter(len(content))

    def close(self) -> None:
        """Close the file, because the stream is deleted."""
        self._before_write()
        self._store.commits.close(self._file)
        self._file = None
        self._changed.clear()
        with suppress(StoreFull):
            self._store.drop_slot(self._slot)
        self._slot = -1

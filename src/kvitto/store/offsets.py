"""How far the named consumers of a stream have acked: the file `offsets` of docs/formats.md.

`put` only notes; whoever owns it calls `write` from time to time. Every tag has two slots that are written in turn: a torn write
leaves the value before.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import xxhash

from kvitto.base.errors import StoreFull
from kvitto.base.limits import SHORTSTR_MAX
from kvitto.store import paths

if TYPE_CHECKING:
    from kvitto.store.disk import File
    from kvitto.store.store import Store

SLOT = 512
TAGS_MAX = 1000
"""Tags that are remembered; the one that has not moved for longest gives way."""
_FIXED = 33

log = logging.getLogger("kvitto.store")


class Kept:
    """What is known of one tag. `pair` is the number of its two slots, `sequence` that of its last write, -1 before the first."""

    __slots__ = ("offset", "pair", "sequence", "time_ms")

    def __init__(self, pair: int, sequence: int, offset: int, time_ms: int) -> None:
        self.pair = pair
        self.sequence = sequence
        self.offset = offset
        self.time_ms = time_ms


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
                self._store.renamed(self._directory)
            for tag in list(self._changed):
                kept = self._kept[tag]
                self._file.write_at(SLOT * (2 * kept.pair + (kept.sequence + 1) % 2), [_slot(tag, kept)])
                kept.sequence += 1
                del self._changed[tag]
        if self._file is not None:
            self._store.wrote_file(self._file)

    def load(self) -> None:
        """Take what a start finds. What cannot be read is forgotten, and the log says so."""
        disk = self._store.disk
        if not disk.exists(self._path):
            return
        self._file = disk.open(self._path)
        data = self._file.read_at(0, self._file.size())
        self._pairs = -(-len(data) // (2 * SLOT))
        kept: list[tuple[str, Kept]] = []
        lost = 0
        for pair in range(self._pairs):
            slots = slots_of(data, pair)
            valid = [found for slot in slots if (found := entry(pair, slot)) is not None]
            if valid:
                kept.append(max(valid, key=lambda tag: tag[1].sequence))
            else:
                self._free.append((pair, -1))
                lost += any(any(slot) for slot in slots)
        if lost:
            log.error("%s: %d entries cannot be read: those consumers start over", self._path, lost)
        self._kept = dict(sorted(kept, key=lambda tag: tag[1].time_ms))

    def close(self) -> None:
        """The stream is deleted."""
        self._store.close(self._file)
        self._changed.clear()


def _slot(tag: str, kept: Kept) -> bytes:
    name = tag.encode("utf-8", "surrogateescape")
    assert len(name) <= SHORTSTR_MAX
    body = (kept.sequence + 1).to_bytes(8, "little") + kept.offset.to_bytes(8, "little")
    body += kept.time_ms.to_bytes(8, "little") + bytes((len(name),)) + name
    body = body.ljust(SLOT - 8, b"\0")
    return xxhash.xxh3_64_intdigest(body).to_bytes(8, "little") + body


def slots_of(data: bytes, pair: int) -> list[bytes]:
    """The two slots of a pair."""
    return [data[at : at + SLOT] for at in (2 * SLOT * pair, 2 * SLOT * pair + SLOT)]


def entry(pair: int, slot: bytes) -> tuple[str, Kept] | None:
    """What a slot says: a tag, and what is known of it. None if it does not verify."""
    if len(slot) < SLOT or xxhash.xxh3_64_intdigest(slot[8:]) != int.from_bytes(slot[:8], "little"):
        return None
    sequence, offset, time_ms = (int.from_bytes(slot[at : at + 8], "little") for at in (8, 16, 24))
    tag = slot[_FIXED : _FIXED + slot[_FIXED - 1]].decode("utf-8", "surrogateescape")
    return tag, Kept(pair, sequence, offset, time_ms)

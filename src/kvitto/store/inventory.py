"""Which files there are, and how long they are known to be: a file that is gone, or shorter, is missed (docs/formats.md, Inventory).

A file is entered once it is durable itself, and is forgotten durably before it is unlinked: so a file that is entered and not there is
damage, whatever ended the last owner. One that is there and not entered is taken in by the next start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

import xxhash

from kvitto.base.errors import StoreFull
from kvitto.format.layouts import INVENTORY, INVENTORY_MAGIC, INVENTORY_VERSION, SLOT_NAME, SLOT_SIZES, bytes_of, u64
from kvitto.store import paths
from kvitto.store.disk import Disk, File

SEGMENT = 1
ARCHIVED = 2
JOURNAL = 3
DEFINITIONS = 4
OFFSETS = 5
ORPHAN = 6
KINDS = range(SEGMENT, ORPHAN + 1)

HALF = SLOT_NAME.size
SLOT = HALF + SLOT_SIZES.size
STEP = 64
"""Slots that the file grows by."""
NOBODY = "0" * 32
"""The queue id of what belongs to no queue."""
FREE = bytes(SLOT)

_CHECKED = SLOT_NAME.at["checksum"]
"""The bytes of a half that its checksum covers; both halves have it at the same place."""

Key = tuple[int, str, int]
"""Kind, queue id, number: the base offset of a segment, the number of a journal file, else 0."""
Sizes = tuple[int, int, int]
"""Bytes known to be synced, the same of the settlement log, and the end of the offsets."""
UNKNOWN: Sizes = (0, 0, 0)


@dataclass
class Entry:
    """What the inventory says of a file. `slot`: where."""

    kind: int
    queue_id: str
    number: int
    sizes: Sizes
    slot: int = -1

    @property
    def size(self) -> int:
        return self.sizes[0]

    @property
    def acks_size(self) -> int:
        """0: there may be no settlement log."""
        return self.sizes[1]

    @property
    def end(self) -> int:
        return self.sizes[2]


def _name(key: Key) -> bytes:
    body = SLOT_NAME.pack(key[0], 0, bytes.fromhex(key[1]), key[2], b"", 0)[:_CHECKED]
    return body + bytes_of(xxhash.xxh3_64_intdigest(body))


def _sizes(seed: int, sizes: Sizes) -> bytes:
    """`seed`: the checksum of the name. A slot that is used again must not have the sizes of the file before."""
    body = SLOT_SIZES.pack(*sizes, b"", 0)[:_CHECKED]
    return body + bytes_of(xxhash.xxh3_64_intdigest(body, seed))


def _seed(name: bytes, at: int = 0) -> int:
    """The checksum of the first half of a slot, which is the seed of that of the second one."""
    return u64(name, at + _CHECKED)


def _header(slots: int) -> bytes:
    body = INVENTORY.pack(INVENTORY_MAGIC, INVENTORY_VERSION, b"", 0)[:_CHECKED]
    seed = xxhash.xxh3_64_intdigest(body)
    return body + bytes_of(seed) + _sizes(seed, (slots, 0, 0))


@dataclass
class Contents:
    """What is in the file. `damage`: what cannot be read, in words, and is not just what was being written."""

    entries: list[Entry]
    slots: int
    damage: list[tuple[str, int]]
    bad: list[int]
    """Slots that are not free and say nothing."""
    unsure: list[Entry] = field(default_factory=list)
    """Entries whose sizes cannot be read."""


def read(data: bytes, in_order: bool, power_cut: bool) -> Contents:
    """Take the inventory's bytes apart. `in_order`, `power_cut`: how the last owner ended; if not in order an entry may be half written."""
    found = Contents([], max(len(data) // SLOT - 1, 0), [], [])
    head = _header(0)
    if data[:HALF] != head[:HALF]:
        found.damage.append(("its header cannot be read: which files there should be is not known", 0))
        return Contents([], -1, found.damage, [])
    known = _read_sizes(data, 0)
    if known is None and in_order:
        found.damage.append(("how long it should be cannot be read", HALF))
    elif known is not None and known[0] > found.slots and not power_cut:
        text = "it ends here; whether a file is missing that should stand behind is not known"
        found.damage.append((text, len(data)))
    for slot in range(1, found.slots + 1):
        _read_slot(found, data, slot, in_order)
    return found


def _read_slot(found: Contents, data: bytes, slot: int, in_order: bool) -> None:
    at = slot * SLOT
    name = data[at : at + HALF]
    if not any(name):
        if any(data[at + HALF : at + SLOT]):
            found.bad.append(slot)
        if slot in found.bad[-1:] and in_order:
            found.damage.append(("an entry of no file is not empty", at + HALF))
        return
    found_name = SLOT_NAME.read(name)
    key = found_name.kind, found_name.queue_id.hex(), found_name.number
    if name != _name(key) or found_name.kind not in KINDS:
        found.bad.append(slot)
        if in_order:
            found.damage.append(("an entry cannot be read: if its file is missing too, nothing tells", at))
        return
    sizes = _read_sizes(data, at)
    if sizes is None and in_order:
        found.damage.append(("how long a file should be cannot be read", at + HALF))
    found.entries.append(Entry(*key, sizes or UNKNOWN, slot))
    if sizes is None:
        found.unsure.append(found.entries[-1])


def _read_sizes(data: bytes, at: int) -> Sizes | None:
    if at + SLOT > len(data):
        return None
    sizes = SLOT_SIZES.read(data, at + HALF)[:3]
    return sizes if data[at + HALF : at + SLOT] == _sizes(_seed(data, at), sizes) else None


class Inventory:
    """`load`, then `open`, come first. What is written is durable once `file` has been synced."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._found = Contents([], -1, [], [])
        self._slots = 0
        self._free: list[int] = []
        self._seeds: dict[int, int] = {}
        self._unclaimed: dict[tuple[int, str], dict[int, Entry]] = {}
        self._twice: list[int] = []
        self.owed: dict[int, bytes] = {}
        """What a full disk has refused, by position."""
        self.is_open = False
        self.file: File

    # -- start -----------------------------------------------------------------------------------------------

    def create(self) -> None:
        """An empty one; durable but for its name."""
        file = self._disk.open(paths.INVENTORY, create=True)
        file.truncate(0)
        file.write_at(0, [_header(0)])
        file.sync()
        file.close()

    def load(self, in_order: bool, power_cut: bool) -> list[str]:
        """Take what is there and change nothing; gives what is damaged, in words. Of that it knows nothing any more."""
        if not self._disk.exists(paths.INVENTORY):
            return [f"{paths.INVENTORY} is missing: which files there should be is not known"]
        found = self._found = read(self._disk.read_file(paths.INVENTORY), in_order, power_cut)
        for entry in found.entries:
            same = self._unclaimed.setdefault((entry.kind, entry.queue_id), {})
            if entry.number in same:  # it was to be free again
                self._twice.append(entry.slot)
            else:
                same[entry.number] = entry
        return [f"{paths.INVENTORY}, byte {at}: {text}" for text, at in found.damage]

    def open(self) -> None:
        """From here on it is written."""
        if self._found.slots < 0:
            self.create()
        self.file = self._disk.open(paths.INVENTORY)
        self._slots = max(self._found.slots, 0)
        used = {entry.slot for entry in self._found.entries} - set(self._twice)
        self._free = [slot for slot in range(1, self._slots + 1) if slot not in used]
        for slot in (*self._found.bad, *self._twice):
            self._write(slot * SLOT, FREE)
        self._write(HALF, _header(self._slots)[HALF:])
        for entry in self._found.entries:
            if entry.slot in used:
                key = (entry.kind, entry.queue_id, entry.number)
                self._seeds[entry.slot] = _seed(_name(key))
        for entry in self._found.unsure:
            if entry.slot in used:
                self.put(entry.slot, (entry.kind, entry.queue_id, entry.number), UNKNOWN)
        self._found.entries, self._found.unsure = [], []
        self.is_open = True

    def claim(self, kind: int, queue_id: str = NOBODY) -> dict[int, Entry]:
        """What should be there of one kind and queue, by number: the caller looks whether it is."""
        return self._unclaimed.pop((kind, queue_id), {})

    def unclaimed(self, kind: int) -> list[str]:
        """The queues of which nobody has claimed what should be there."""
        return [queue_id for known, queue_id in self._unclaimed if known == kind]

    def forget_unclaimed(self) -> None:
        """Of queues that are gone."""
        for entries in self._unclaimed.values():
            for entry in entries.values():
                self.drop(entry.slot)
        self._unclaimed.clear()

    # -- while it runs ---------------------------------------------------------------------------------------

    def take(self) -> int:
        """A slot for a file that is being made. StoreFull if there is no room for one."""
        if not self._free:
            self.file.write_at((1 + self._slots) * SLOT, [bytes(STEP * SLOT)])
            self.file.write_at(HALF, [_header(self._slots + STEP)[HALF:]])
            self._free = list(range(self._slots + 1, self._slots + STEP + 1))
            self._slots += STEP
        return heappop(self._free)

    def put(self, slot: int, key: Key, sizes: Sizes) -> bool:
        """Say how much of a file is durable; True if the inventory did not name it before."""
        at = slot * SLOT
        seed = self._seeds.get(slot)
        if seed is not None and at not in self.owed:
            self._write(at + HALF, _sizes(seed, sizes))
            return False
        name = _name(key)
        self._seeds[slot] = seed = _seed(name)
        self._write(at, name + _sizes(seed, sizes))
        return True

    def _write(self, at: int, data: bytes) -> None:
        """There should always be room: it is where something is already. If there is none all the same, it is tried again."""
        if self.owed:
            self.owed.pop(at, None)
        try:
            self.file.write_at(at, [data])
        except StoreFull:
            self.owed[at] = data

    def write_owed(self) -> None:
        """StoreFull if there still is no room."""
        while self.owed:
            at, data = next(iter(self.owed.items()))
            self.file.write_at(at, [data])
            del self.owed[at]

    def drop(self, slot: int) -> bool:
        """The file is about to go, or never came; True if it had been entered: then not before this is durable.

        StoreFull: it has to stay.
        """
        if slot < 0:
            return False
        entered = slot in self._seeds
        if entered:
            self.file.write_at(slot * SLOT, [FREE])
            del self._seeds[slot]
            self.owed.pop(slot * SLOT, None)
            self.owed.pop(slot * SLOT + HALF, None)
        heappush(self._free, slot)
        return entered

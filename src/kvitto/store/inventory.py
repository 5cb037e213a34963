"""The inventory: which files the data directory should have, and how many bytes of each are synced (docs/formats.md, Inventory).

A file is entered once it is durable, and its entry is durably freed before the file is unlinked. So a file that is entered and missing is
damage, whatever ended the last owner. A start enters files that it finds without an entry. The store reads and writes it; `kvitto check`
calls `read`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

from xxhash import xxh3_64_intdigest

from kvitto.base.errors import StoreFull
from kvitto.format import slot_sizes
from kvitto.format.layouts import INVENTORY, INVENTORY_MAGIC, INVENTORY_VERSION, SLOT_NAME, SLOT_SIZES, bytes_of, u64
from kvitto.store import paths
from kvitto.store.disk import Disk, File
from kvitto.wire import bits

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
"""The file grows by this many slots."""
NOBODY = "0" * 32
"""The queue id in the entry of a file that belongs to no queue."""
FREE = bytes(SLOT)

_NAME = SLOT_NAME.before("checksum")
_CHECKED = SLOT_NAME.at["checksum"]
"""The bytes of a half that its checksum covers; both halves have it at the same place."""

_SLOT, _HALF = SLOT, HALF  # C variables when compiled

Key = tuple[int, str, int]
"""Kind, queue id, number. The number is the base offset of a segment or the number of a journal file, 0 for others."""
Sizes = tuple[int, int, int]
"""How many bytes are known to be synced, how many of the settlement log, and the end of the offsets."""
UNKNOWN: Sizes = (0, 0, 0)


@dataclass
class Entry:
    """What the inventory says of a file. `slot`: the number of the entry's slot."""

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
        """How many bytes of the settlement log are known to be synced. 0: there may be none."""
        return self.sizes[1]

    @property
    def end(self) -> int:
        return self.sizes[2]


def _name(key: Key) -> bytes:
    body = _NAME.pack(key[0], 0, bytes.fromhex(key[1]), key[2], b"")
    return body + bytes_of(xxh3_64_intdigest(body))


def _sizes(seed: int, size: int, acks_size: int, end: int) -> bytearray:
    """Encode the sizes. `seed`: the checksum of the name, so that a slot that is used again does not keep the sizes of the file before."""
    half = bits.zeros(slot_sizes.SIZE)
    slot_sizes.put(half, size, acks_size, end)
    slot_sizes.put_checksum(half, xxh3_64_intdigest(bits.piece(half, 0, slot_sizes.CHECKSUM_AT), seed))
    return half


def _seed(name: bytes, at: int = 0) -> int:
    """Return the checksum of the first half of a slot, which is the seed of that of the second one."""
    return u64(name, at + _CHECKED)


def header(slots: int) -> bytes:
    """Encode slot 0 of an inventory that has so many slots behind it."""
    body = INVENTORY.before("checksum").pack(INVENTORY_MAGIC, INVENTORY_VERSION, b"")
    seed = xxh3_64_intdigest(body)
    return body + bytes_of(seed) + _sizes(seed, slots, 0, 0)


def slot(key: Key, sizes: Sizes) -> bytes:
    """Encode an entry."""
    name = _name(key)
    return name + _sizes(_seed(name), *sizes)


@dataclass
class Contents:
    """What is in the file. `damage`: (message, position) of what cannot be read and was not just being written."""

    entries: list[Entry]
    slots: int
    damage: list[tuple[str, int]]
    bad: list[int]
    """Slots that are not free and cannot be read."""
    unsure: list[Entry] = field(default_factory=list)
    """Entries whose sizes cannot be read."""


def read(data: bytes, in_order: bool, power_cut: bool) -> Contents:
    """Decode and judge the inventory. `in_order`, `power_cut`: how the last owner ended. If not in order, an entry may be half written."""
    found = Contents([], max(len(data) // SLOT - 1, 0), [], [])
    head = header(0)
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
    return sizes if data[at + HALF : at + SLOT] == _sizes(_seed(data, at), *sizes) else None


class Inventory:
    """The inventory of a store. Call `load` and then `open` first. What is written is durable once `file` has been synced."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._found = Contents([], -1, [], [])
        self._slots = 0
        self._free: list[int] = []
        self._seeds: dict[int, int] = {}
        self._unclaimed: dict[tuple[int, str], dict[int, Entry]] = {}
        self._twice: list[int] = []
        self.owed: dict[int, bytes | bytearray] = {}
        """Writes that a full disk has refused, by position."""
        self.is_open = False
        self.file: File

    # -- start -----------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Make an empty inventory. Its contents are durable; its name needs a sync of the directory."""
        file = self._disk.open(paths.INVENTORY, create=True)
        file.truncate(0)
        file.write_at(0, [header(0)])
        file.sync()
        file.close()

    def load(self, in_order: bool, power_cut: bool) -> list[str]:
        """Read the file and change nothing. Returns a message for each damage; entries that are damaged are left out."""
        if not self._disk.exists(paths.INVENTORY):
            return [f"{paths.INVENTORY} is missing: which files there should be is not known"]
        found = self._found = read(self._disk.read_file(paths.INVENTORY), in_order, power_cut)
        for entry in found.entries:
            same = self._unclaimed.setdefault((entry.kind, entry.queue_id), {})
            if entry.number in same:  # the file was entered twice; this slot was about to be freed
                self._twice.append(entry.slot)
            else:
                same[entry.number] = entry
        return [f"{paths.INVENTORY}, byte {at}: {text}" for text, at in found.damage]

    def open(self) -> None:
        """Open the file for writing, and clear what `load` could not read."""
        if self._found.slots < 0:
            self.create()
        self.file = self._disk.open(paths.INVENTORY)
        self._slots = max(self._found.slots, 0)
        used = {entry.slot for entry in self._found.entries} - set(self._twice)
        self._free = [slot for slot in range(1, self._slots + 1) if slot not in used]
        for slot in (*self._found.bad, *self._twice):
            self._write(slot * SLOT, FREE)
        self._write(HALF, header(self._slots)[HALF:])
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
        """Take out the entries of one kind and queue, by number. The caller has to look whether their files are there."""
        return self._unclaimed.pop((kind, queue_id), {})

    def unclaimed(self, kind: int) -> list[str]:
        """The queues of which nobody has claimed the entries of this kind."""
        return [queue_id for known, queue_id in self._unclaimed if known == kind]

    def forget_unclaimed(self) -> None:
        """Free the entries that nobody has claimed: their queues are gone."""
        for entries in self._unclaimed.values():
            for entry in entries.values():
                self.drop(entry.slot)
        self._unclaimed.clear()

    # -- while it runs ---------------------------------------------------------------------------------------

    def take(self) -> int:
        """Return a slot for a file that is being made. Raises StoreFull if there is no room for one."""
        if not self._free:
            self.file.write_at((1 + self._slots) * SLOT, [bytes(STEP * SLOT)])
            self.file.write_at(HALF, [header(self._slots + STEP)[HALF:]])
            self._free = list(range(self._slots + 1, self._slots + STEP + 1))
            self._slots += STEP
        return heappop(self._free)

    def put(self, slot: int, key: Key, sizes: Sizes) -> bool:
        """Enter how much of a file is durable. Returns True if the inventory did not name the file before."""
        if self.grown(slot, *sizes):
            return False
        at = slot * SLOT
        name = _name(key)
        self._seeds[slot] = seed = _seed(name)
        self._write(at, name + _sizes(seed, *sizes))
        return True

    def grown(self, slot: int, size: int, acks_size: int, end: int) -> bool:
        """Enter how much of a file is durable, as `put` does, if the inventory names the file. Returns whether it does."""
        at = slot * _SLOT
        seed = self._seeds.get(slot)
        if seed is None or (self.owed and at in self.owed):
            return False
        self._write(at + _HALF, _sizes(seed, size, acks_size, end))
        return True

    def _write(self, at: int, data: bytes | bytearray) -> None:
        """Write over existing bytes, which should always find room. If a full disk refuses it all the same, `write_owed` tries again."""
        if self.owed:
            self.owed.pop(at, None)
        try:
            self.file.write_at(at, [data])
        except StoreFull:
            self.owed[at] = data

    def write_owed(self) -> None:
        """Write what a full disk has refused. Raises StoreFull if there still is no room."""
        while self.owed:
            at, data = next(iter(self.owed.items()))
            self.file.write_at(at, [data])
            del self.owed[at]

    def drop(self, slot: int) -> bool:
        """Free a slot. Returns True if its file had been entered: then the file may not be unlinked before this is durable.

        Raises StoreFull; then the file has to stay.
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

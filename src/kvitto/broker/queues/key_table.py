"""The keys that a queue remembers, as 128-bit hashes in the order in which they were noted: about 50 bytes of memory for each.

Entries lie in pages, linked from the oldest to the newest one, and numbered from 1. Hash tables of 32-bit numbers find them. There are
many small tables, and they become more by linear hashing as keys come: each step takes well below a millisecond, and a table for
millions of keys begins small. `DeduplicatingQueue` decides what a hash means.
"""

from __future__ import annotations

from kvitto.wire import bits
from kvitto.wire.buf import Buf

PAGE = 1024
"""Entries of one page."""
SHARD = 2048
"""So many entries share a hash table on average. When there are more, one of the tables is split."""
SLOTS_LEAST = 16

# where the fields of an entry lie, and its size
_LOW, _HIGH, _OFFSET, _UNTIL, _BEFORE, _AFTER, _ENTRY = 0, 8, 16, 24, 32, 36, 40
_PAGE, _SHIFT, _LAST, _SHARD = PAGE, 10, PAGE - 1, SHARD


class Shard:
    """A hash table with open addressing and linear probing: each slot is the number of an entry, or 0."""

    def __init__(self) -> None:
        self.slots = Buf(4 * SLOTS_LEAST)
        self.mask = SLOTS_LEAST - 1
        self.used = 0


class KeyTable:
    """`oldest` and `newest` are numbers of entries, 0 if there are none."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: how many entries there may be at one time."""
        self.capacity = capacity
        self.count = 0
        self.oldest = self.newest = 0
        self.uncounted = 0
        """The oldest entry that `count_below` has not counted yet, 0 if there is none."""
        self._pages: list[Buf] = []
        self._used = 0
        self._free = 0
        self._shards = [Shard()]
        self._round = 1
        """The number of hash tables when the current round of splits began, a power of 2. After it there are twice as many."""

    def find(self, low, high):  # type: ignore[no-untyped-def]
        """Return the entry with this hash, 0 if there is none."""
        shard = self.shard_of(low)
        slots = shard.slots
        at = high & shard.mask
        while True:
            i = bits.be32(slots.p, 4 * at)
            if i == 0:
                return 0
            page = self.page_of(i)
            e = ((i - 1) & _LAST) * _ENTRY
            if bits.be64(page.p, e + _LOW) == low and bits.be64(page.p, e + _HIGH) == high:
                return i
            at = (at + 1) & shard.mask

    def add(self, low, high, offset, until_ms):  # type: ignore[no-untyped-def]
        """Add a hash that is not in the table as the newest entry. There must be room for it."""
        i = self.put(low, high, offset, until_ms)
        self.link(i, self.newest, 0)
        if self.uncounted == 0:
            self.uncounted = i
        return i

    def add_oldest(self, low, high, offset, until_ms):  # type: ignore[no-untyped-def]
        """Add a hash that is not in the table as the oldest entry, for a start, which reads what is stored from its end."""
        i = self.put(low, high, offset, until_ms)
        self.link(i, 0, self.oldest)
        self.uncounted = i
        return i

    def put(self, low, high, offset, until_ms):  # type: ignore[no-untyped-def]
        """Fill a free entry, and enter it in its hash table. Returns its number."""
        i = self._free
        if i:
            self._free = bits.be32(self.page_of(i).p, ((i - 1) & _LAST) * _ENTRY + _AFTER)
        else:
            if self._used == len(self._pages) * _PAGE:
                self._pages.append(Buf(_ENTRY * min(_PAGE, self.capacity - self._used)))
            self._used += 1
            i = self._used
        page = self.page_of(i)
        e = ((i - 1) & _LAST) * _ENTRY
        bits.put64(page.p, e + _LOW, low)
        bits.put64(page.p, e + _HIGH, high)
        bits.put64(page.p, e + _OFFSET, offset)
        bits.put64(page.p, e + _UNTIL, until_ms)
        self.take(self.shard_of(low), i, high)
        self.count += 1
        if self.count > len(self._shards) * _SHARD:
            self.split()
        return i

    def take(self, shard, i, high):  # type: ignore[no-untyped-def]
        """Enter an entry in its hash table, which grows if it is too full."""
        if (shard.used + 1) * 3 > (shard.mask + 1) * 2:
            self.widen(shard)
        self.enter(shard, i, high)
        shard.used += 1

    def split(self):  # type: ignore[no-untyped-def]
        """Divide the next hash table that this round has not divided yet into two."""
        n = len(self._shards)
        old, low, high = self._shards[n - self._round], Shard(), Shard()
        for at in range(old.mask + 1):
            i = bits.be32(old.slots.p, 4 * at)
            if i:
                page = self.page_of(i)
                e = ((i - 1) & _LAST) * _ENTRY
                upper = bits.be64(page.p, e + _LOW) & self._round
                self.take(high if upper else low, i, bits.be64(page.p, e + _HIGH))
        self._shards[n - self._round] = low
        self._shards.append(high)
        if n + 1 == 2 * self._round:
            self._round = n + 1

    def link(self, i, before, after):  # type: ignore[no-untyped-def]
        """Put an entry between two others; 0 is the end of the list."""
        self.set_before(i, before)
        self.set_after(i, after)
        if before:
            self.set_after(before, i)
        else:
            self.oldest = i
        if after:
            self.set_before(after, i)
        else:
            self.newest = i

    def enter(self, shard, i, high):  # type: ignore[no-untyped-def]
        """Put an entry into the first free slot from its own one on."""
        slots = shard.slots
        at = high & shard.mask
        while bits.be32(slots.p, 4 * at):
            at = (at + 1) & shard.mask
        bits.put32(slots.p, 4 * at, i)

    def widen(self, shard):  # type: ignore[no-untyped-def]
        """Double a hash table."""
        old, n = shard.slots, shard.mask + 1
        shard.slots, shard.mask = Buf(8 * n), 2 * n - 1
        for at in range(n):
            i = bits.be32(old.p, 4 * at)
            if i:
                self.enter(shard, i, bits.be64(self.page_of(i).p, ((i - 1) & _LAST) * _ENTRY + _HIGH))

    def remove(self, i):  # type: ignore[no-untyped-def]
        """Remove an entry."""
        page = self.page_of(i)
        e = ((i - 1) & _LAST) * _ENTRY
        before = bits.be32(page.p, e + _BEFORE)
        after = bits.be32(page.p, e + _AFTER)
        if before:
            self.set_after(before, after)
        else:
            self.oldest = after
        if after:
            self.set_before(after, before)
        else:
            self.newest = before
        if self.uncounted == i:
            self.uncounted = after
        shard = self.shard_of(bits.be64(page.p, e + _LOW))
        self.vacate(shard, i, bits.be64(page.p, e + _HIGH))
        shard.used -= 1
        bits.put32(page.p, e + _AFTER, self._free)
        self._free = i
        self.count -= 1

    def vacate(self, shard, i, high):  # type: ignore[no-untyped-def]
        """Empty the slot of an entry, and move those behind it up, so that a search still finds them."""
        slots = shard.slots
        mask = shard.mask
        hole = high & mask
        while bits.be32(slots.p, 4 * hole) != i:
            hole = (hole + 1) & mask
        at = hole
        while True:
            at = (at + 1) & mask
            moved = bits.be32(slots.p, 4 * at)
            if moved == 0:
                break
            home = bits.be64(self.page_of(moved).p, ((moved - 1) & _LAST) * _ENTRY + _HIGH) & mask
            if ((at - home) & mask) >= ((at - hole) & mask):
                bits.put32(slots.p, 4 * hole, moved)
                hole = at
        bits.put32(slots.p, 4 * hole, 0)

    def offset_of(self, i):  # type: ignore[no-untyped-def]
        """Return the offset of the message that an entry was noted with."""
        return bits.be64(self.page_of(i).p, ((i - 1) & _LAST) * _ENTRY + _OFFSET)

    def until_of(self, i):  # type: ignore[no-untyped-def]
        """Return the time in ms until which an entry is remembered."""
        return bits.be64(self.page_of(i).p, ((i - 1) & _LAST) * _ENTRY + _UNTIL)

    def count_below(self, end):  # type: ignore[no-untyped-def]
        """Count the entries with offsets below `end` that were not counted before."""
        n = 0
        i = self.uncounted
        while i and self.offset_of(i) < end:
            n += 1
            i = bits.be32(self.page_of(i).p, ((i - 1) & _LAST) * _ENTRY + _AFTER)
        self.uncounted = i
        return n

    # -- parts of an entry -----------------------------------------------------------------------------------

    def shard_of(self, low):  # type: ignore[no-untyped-def]
        at = low & (2 * self._round - 1)
        return self._shards[at if at < len(self._shards) else at - self._round]

    def page_of(self, i):  # type: ignore[no-untyped-def]
        return self._pages[(i - 1) >> _SHIFT]

    def set_before(self, i, before):  # type: ignore[no-untyped-def]
        bits.put32(self.page_of(i).p, ((i - 1) & _LAST) * _ENTRY + _BEFORE, before)

    def set_after(self, i, after):  # type: ignore[no-untyped-def]
        bits.put32(self.page_of(i).p, ((i - 1) & _LAST) * _ENTRY + _AFTER, after)

"""Settlements: gathered in memory for a turn, written to the settlement logs, and read back by a start (docs/formats.md, Settlement log).

A queue notes what it settles in a `Settlements`, which costs no Python object. Once per turn the log splits the entries by segment and
writes them as a `block` to each settlement log. A start, the judge of damage and the tools for damaged directories use `Replay`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from xxhash import xxh3_64, xxh3_64_intdigest

from kvitto.format import prefix, settlement
from kvitto.format.layouts import BLOCK, BLOCK_MAGIC, PREFIX, SETTLEMENT, BlockHead
from kvitto.format.settlement import IN_DOUBT, REDELIVERED
from kvitto.wire import bits
from kvitto.wire.buf import Buf

NOTHING = (1 << 63) - 1
SMALL = 4096
"""A block with at most this many bytes of entries is copied into one buffer to be written."""


class Settlements:
    """The settlements of one queue that are not written yet. Their offsets are between `lowest` and `highest`."""

    def __init__(self) -> None:
        self.entries = Buf(0)
        self.lowest = NOTHING
        self.highest = 0

    def add(self, offset, count, outcome, deliveries):  # type: ignore[no-untyped-def]
        """Note `count` offsets from `offset` on, in the entry before if they follow it with the same outcome."""
        b = self.entries
        e = b.n - settlement.SIZE
        if e >= 0:
            word = settlement.word(b.p, e)
            n = settlement.count_of(word)
            if (
                settlement.outcome_of(word) == outcome
                and settlement.offset(b.p, e) + n == offset
                and settlement.deliveries(b.p, e) == deliveries
                and n + count <= settlement.COUNT_MAX
            ):
                settlement.put_count(b.p, e, n + count, outcome)
                if offset + count - 1 > self.highest:
                    self.highest = offset + count - 1
                return
        left = count
        at = offset
        while left > 0:
            n = left if left < settlement.COUNT_MAX else settlement.COUNT_MAX
            b.reserve(settlement.SIZE)
            e = b.n
            settlement.put(b.p, e, at, n, outcome, deliveries)
            b.n = e + settlement.SIZE
            at += n
            left -= n
        if offset < self.lowest:
            self.lowest = offset
        if offset + count - 1 > self.highest:
            self.highest = offset + count - 1

    def take(self, start, end, out):  # type: ignore[no-untyped-def]
        """Append the entries for offsets in [start, end), clipped to it, to the buffer `out`. Returns how many offsets they settle."""
        b = self.entries
        settled = 0
        e = 0
        while e < b.n:
            lo = settlement.offset(b.p, e)
            word = settlement.word(b.p, e)
            hi = lo + settlement.count_of(word)
            outcome = settlement.outcome_of(word)
            if lo < start:
                lo = start
            if hi > end:
                hi = end
            if lo < hi:
                out.reserve(settlement.SIZE)
                settlement.put(out.p, out.n, lo, hi - lo, outcome, settlement.deliveries(b.p, e))
                out.n += settlement.SIZE
                if outcome < settlement.REDELIVERED:
                    settled += hi - lo
            e += settlement.SIZE
        return settled

    def cut(self, end: int) -> None:
        """Forget the entries for offsets from `end` on: these messages are never written."""
        if self.entries.n and self.highest >= end:
            kept = Buf(self.entries.n)
            self.take(0, end, kept)
            self.entries = kept
            self.highest = end - 1 if kept.n else 0
            if not kept.n:
                self.lowest = NOTHING

    def split(self, start: int) -> Settlements:
        """Take out the entries for offsets from `start` on, and return them."""
        later = Settlements()
        if self.entries.n and self.highest >= start:
            self.take(start, NOTHING, later.entries)
            later.lowest, later.highest = max(self.lowest, start), self.highest
            self.cut(start)
        return later

    def join(self, later: Settlements) -> None:
        """Put back what `split` took out."""
        if later.entries.n:
            self.entries.add(later.entries.view())
            self.lowest, self.highest = min(self.lowest, later.lowest), max(self.highest, later.highest)

    def clear(self) -> None:
        self.entries.clear(1 << 16)
        self.lowest = NOTHING
        self.highest = 0


def block(entries: Buf, time_ms: int, mark: int, durable: int) -> list[bytearray | memoryview]:
    """Return one block of a settlement log as buffers. `durable`: how many bytes of the log are known to be synced."""
    size = settlement.BLOCK_SIZE
    count = entries.n // settlement.SIZE
    if entries.n > SMALL:
        head = bits.zeros(size)
        settlement.put_block(head, size + entries.n, time_ms, mark, count, durable)
        digest = xxh3_64(memoryview(head)[prefix.SIZE :])
        digest.update(entries.view())
        prefix.put_checksum(head, digest.intdigest())
        return [head, entries.view()]
    whole = bits.zeros(size + entries.n)  # a copy of few bytes costs less than a second buffer
    settlement.put_block(whole, size + entries.n, time_ms, mark, count, durable)
    bits.copy(whole, size, entries.p, 0, entries.n)
    prefix.put_checksum(whole, xxh3_64_intdigest(bits.piece(whole, prefix.SIZE, size + entries.n - prefix.SIZE)))
    return [whole]


class Replay:
    """What a settlement log says, applied to a bitmap of the segment's offsets. It has `span` bits: offsets in `gaps` have none.

    After `run`: `settled` offsets have their bit set in `bitmap`, `mark` is the highest delivered mark, `redeliveries` counts the
    further deliveries of unsettled offsets, `flagged_below` is the end of those that may have been delivered before a power cut,
    `highest` is the largest offset mentioned (-1: none), `end` is where the valid blocks end,
    `damaged` says that something unreadable lies before valid blocks.
    """

    def __init__(self, base: int, span: int, gaps: Sequence[tuple[int, int]] = ()) -> None:
        """`gaps`: (start, count) of offsets below base + span that are not to be counted, in order."""
        self.base = base
        self._firsts: list[int] = []
        self._places: list[int] = []
        self.span, at = 0, base
        for start, count in (*gaps, (base + span, 0)):
            if start > at:
                self._firsts.append(at)
                self._places.append(self.span)
                self.span += start - at
            at = start + count
        self.bitmap = bytearray((self.span + 7) // 8)
        self.settled = 0
        self.mark = 0
        self.flagged_below = 0
        self.highest = -1
        self.end = 0
        self.damaged = False
        self.redeliveries: dict[int, int] = {}

    def run(self, data: bytes, at: int, power_cut: bool = True, known: int = 0) -> None:
        """Read the blocks of `data` from `at` on.

        `power_cut`: whether one ended the last owner; a killed process leaves at most a torn end. `known`: how many bytes had been synced.
        """
        bad_from, first = -1, at
        while at + BLOCK.size <= len(data):
            head = BLOCK.read(data, at)
            end = at + head.length
            if head.magic == BLOCK_MAGIC and at + BLOCK.size <= end <= len(data) and _is_valid(data, at, head):
                if bad_from >= 0 and power_cut and max(head.durable, known) <= bad_from:
                    break  # a torn tail: none of it had been synced before the power cut
                self.damaged = self.damaged or bad_from >= 0
                bad_from = -1
                self.mark = max(self.mark, head.mark)
                self._apply(data, at, head.length)
                at = self.end = end
                continue
            if bad_from < 0:
                bad_from = at
            at = data.find(BLOCK_MAGIC, at + 1)
            if at < 0:
                break
        self.damaged = self.damaged or max(self.end, first) < known

    def settle(self, offset: int, count: int) -> None:
        """Set the bits of these offsets, as far as they have any."""
        if self._firsts == [self.base]:  # the only gap, if any, is at the end
            self.settled += set_bits(self.bitmap, self.span, offset - self.base, count)
            return
        for place, n in self._where(offset, count):
            self.settled += set_bits(self.bitmap, self.span, place, n)

    def is_settled(self, offset: int) -> bool:
        """Whether an offset is settled. One that has no bit counts as settled."""
        return all(self.bitmap[place >> 3] >> (place & 7) & 1 for place, _ in self._where(offset, 1))

    def unsettled(self) -> list[tuple[int, int]]:
        """Return the runs (start, count) of offsets whose bit is clear."""
        runs: list[tuple[int, int]] = []
        for place, left in clear_runs(self.bitmap, self.span):
            i = bisect_right(self._places, place) - 1
            while left > 0:
                n = min(left, self._until(i) - place)
                runs.append((self._firsts[i] + place - self._places[i], n))
                place, left, i = place + n, left - n, i + 1
        return runs

    def _until(self, i: int) -> int:
        return self._places[i + 1] if i + 1 < len(self._places) else self.span

    def _where(self, offset: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield the runs (index of the first bit, count) of the bits of these offsets."""
        end = offset + count
        i = max(bisect_right(self._firsts, offset) - 1, 0)
        while i < len(self._firsts) and self._firsts[i] < end:
            first, place = self._firsts[i], self._places[i]
            start = max(offset, first)
            n = min(end, first + self._until(i) - place) - start
            if n > 0:
                yield place + start - first, n
            i += 1

    def _apply(self, data: bytes, at: int, length: int) -> None:
        entries = memoryview(data)[at + BLOCK.size : at + length]
        for offset, word, deliveries in SETTLEMENT.struct.iter_unpack(entries):
            outcome, count = settlement.outcome_of(word), settlement.count_of(word)
            self.highest = max(self.highest, offset + count - 1)
            if outcome == IN_DOUBT:
                self.flagged_below = max(self.flagged_below, offset + count)
            elif outcome == REDELIVERED:
                self.redeliveries.update(dict.fromkeys(range(offset, offset + count), deliveries))
            else:
                self.settle(offset, count)


def _is_valid(data: bytes, at: int, head: BlockHead) -> bool:
    digest = xxh3_64_intdigest(memoryview(data)[at + PREFIX.size : at + head.length])
    return bool(digest == head.checksum)


def newest_ms(data: bytes, at: int) -> int:
    """Return the time of the last block of a settlement log whose blocks begin at `at`, 0 if there is none."""
    newest = 0
    while at + BLOCK.size <= len(data):
        head = BLOCK.read(data, at)
        if head.magic != BLOCK_MAGIC:
            break
        newest = max(newest, head.time_ms)
        at += max(head.length, BLOCK.size)
    return newest


def set_bits(bitmap: bytearray, span: int, start: int, count: int) -> int:
    """Set `count` bits from `start` on, within 0..span. Returns how many were clear before."""
    fresh = 0
    end = min(start + count, span)
    i = max(start, 0)
    while i < end:
        if not i & 7 and end - i >= 8:
            old = bitmap[i >> 3]
            fresh += 8 - old.bit_count()
            bitmap[i >> 3] = 255
            i += 8
            continue
        if not bitmap[i >> 3] >> (i & 7) & 1:
            bitmap[i >> 3] |= 1 << (i & 7)
            fresh += 1
        i += 1
    return fresh


def clear_runs(bitmap: bytearray, span: int) -> list[tuple[int, int]]:
    """Return the runs (start, count) of clear bits."""
    runs: list[tuple[int, int]] = []
    i = 0
    while i < span:
        if not i & 7 and bitmap[i >> 3] == 255:
            i += 8
            continue
        if bitmap[i >> 3] >> (i & 7) & 1:
            i += 1
            continue
        start = i
        while i < span and not bitmap[i >> 3] >> (i & 7) & 1:
            if not i & 7 and not bitmap[i >> 3]:
                i += 8
            else:
                i += 1
        runs.append((start, min(i, span) - start))
    return runs

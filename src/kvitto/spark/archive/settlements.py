"""Reads a settlement log without the broker, as arrays, and looks up offsets in it: outcome, time, and number of deliveries."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from kvitto.format.layouts import BLOCK, BLOCK_MAGIC, FILE_HEAD, PREFIX, SETTLEMENT, BlockHead
from kvitto.format.settlement import ACKED, COUNT_BITS, COUNT_MAX, REDELIVERED, REJECTED
from kvitto.spark.archive.segment import Damage

log = logging.getLogger("kvitto.spark")

ENTRY: Final = np.dtype([(name, f"<{code}") for name, code in SETTLEMENT.codes.items()])
WAITING: Final = 0
"""The outcome of a message that is not settled; no settlement has it."""

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Entries:
    """The entries of a settlement log in the order in which they were written. All offsets below `mark` were delivered."""

    offset: Ints
    count: Ints
    outcome: NDArray[np.uint8]
    deliveries: Ints
    time_ms: Ints
    mark: int


def read_entries(data: bytes, path: str, whole: bool, ignore_damage: bool) -> Entries:
    """Return the entries. `whole`: the file is complete; otherwise an end that does not verify is being written."""
    parts: list[memoryview] = []
    times: list[int] = []
    counts: list[int] = []
    view, at, mark, bad = memoryview(data), FILE_HEAD.size, 0, -1
    while at < len(data):
        head = _block(view, at)
        if head is None:
            bad = at if bad < 0 else bad
            if (at := data.find(BLOCK_MAGIC, at + 1)) < 0:
                break
            continue
        if bad >= 0 and (whole or head.durable > bad):
            _damaged(path, bad, ignore_damage)
            bad = -1
        elif bad >= 0:
            break  # a torn end, which no start has cut off yet
        parts.append(view[at + BLOCK.size : at + head.length])
        times.append(head.time_ms)
        counts.append(head.entries)
        mark = max(mark, head.mark)
        at += head.length
    if bad >= 0 and whole:
        _damaged(path, bad, ignore_damage)
    entries = np.frombuffer(b"".join(parts), ENTRY)
    word = entries["word"].astype(np.int64)
    outcome = (word >> COUNT_BITS).astype(np.uint8)
    deliveries = entries["deliveries"].astype(np.int64)
    once = (deliveries == 0) & ((outcome == ACKED) | (outcome == REJECTED))
    return Entries(
        offset=entries["offset"].astype(np.int64),
        count=word & COUNT_MAX,
        outcome=outcome,
        deliveries=np.where(once, 1, deliveries),
        time_ms=np.repeat(np.array(times, np.int64), np.array(counts, np.int64)),
        mark=mark,
    )


def _block(data: memoryview, at: int) -> BlockHead | None:
    """Return the fixed part of the block at `at`, None if there is none that verifies."""
    if len(data) - at < BLOCK.size:
        return None
    head = BLOCK.read(data, at)
    length = BLOCK.size + SETTLEMENT.size * head.entries
    if head.magic != BLOCK_MAGIC or head.length != length or length > len(data) - at:
        return None
    if xxhash.xxh3_64_intdigest(data[at + PREFIX.size : at + length]) != head.checksum:
        return None
    return head


def _damaged(path: str, position: int, ignore_damage: bool) -> None:
    what = f"the settlements at byte {position:,} are damaged"
    if not ignore_damage:
        raise Damage(path, what)
    log.warning("%s: %s; what they settled counts as waiting (ignoreDamage)", path, what)


class Outcomes:
    """Looks up offsets of one segment. `mark`: the queue's delivered mark, which may be in another segment's log."""

    def __init__(self, entries: Entries, mark: int) -> None:
        self.mark = max(mark, entries.mark)
        settling = np.flatnonzero(entries.outcome < REDELIVERED)
        order = settling[np.argsort(entries.offset[settling], kind="stable")]
        self.start = entries.offset[order]
        self.end = self.start + entries.count[order]
        if len(order) and (self.end[:-1] > self.start[1:]).any():
            # settled twice, because damage had hidden the first settlement. Ranges must not overlap; the lower one
            # stays complete
            self.start[1:] = np.maximum(self.start[1:], np.maximum.accumulate(self.end)[:-1])
        self.outcome = entries.outcome[order]
        self.time_ms = entries.time_ms[order]
        self.deliveries = entries.deliveries[order]
        self._note_redeliveries(entries)

    def find(self, offsets: Ints) -> tuple[NDArray[np.bool_], Ints]:
        """Return (whether each is settled, by which range) for offsets in ascending order."""
        if not len(self.start):
            return np.zeros(len(offsets), np.bool_), np.zeros(len(offsets), np.int64)
        first, last = np.searchsorted(self.start, offsets[[0, -1]], "right")
        begin = max(int(first) - 1, 0)
        # find where each range begins among the offsets: fewer searches than offsets, if ranges are long
        places = np.searchsorted(offsets, self.start[begin : int(last)])
        runs = np.diff(places, prepend=0, append=len(offsets))
        at = np.repeat(np.arange(begin - 1, int(last)), runs)
        found = (at >= begin) & (offsets < self.end[np.maximum(at, 0)])
        return found, np.maximum(at, 0)

    def delivered(self, offsets: Ints, found: NDArray[np.bool_], at: Ints) -> Ints:
        """Return how often each was delivered: by its last record, or its settlement, or for a waiting message the mark."""
        counts = np.where(offsets < self.mark, 1, 0)
        if found.any():
            counts = np.where(found, self.deliveries[at], counts)
        if len(self.redelivered):
            k = np.minimum(np.searchsorted(self.redelivered, offsets), len(self.redelivered) - 1)
            counts = np.where(self.redelivered[k] == offsets, self.times[k], counts)
        return counts

    def _note_redeliveries(self, entries: Entries) -> None:
        """Store the redelivery records: `redelivered` are their offsets, ascending; `times` the deliveries in the last
        record of each."""
        chosen = np.flatnonzero(entries.outcome == REDELIVERED)
        counts = entries.count[chosen]
        step = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        offsets = np.repeat(entries.offset[chosen], counts) + step
        times = np.repeat(entries.deliveries[chosen], counts)
        order = np.argsort(offsets, kind="stable")
        offsets, times = offsets[order], times[order]
        last = np.append(offsets[1:] != offsets[:-1], True)[: len(offsets)]
        self.redelivered, self.times = offsets[last], times[last]

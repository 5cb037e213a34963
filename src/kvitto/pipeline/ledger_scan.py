"""The executors' part of the ledger: counts and compares where the files are read, and returns only sums and hashes.

A message is never a row of Spark here. `tallies` makes one row of all messages that share queue, hour, outcome and
latency. `keys` and `receipt_keys` make arrays of 64-bit hashes of message ids, divided into buckets by their highest
bits. `compare` finds in each bucket what is there twice and what is missing. Only these messages are then looked up by
`rows_of` and `receipt_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kvitto.format.entry import DEAD
from kvitto.format.settlement import OUTCOMES
from kvitto.spark.archive.columns import message_batches
from kvitto.spark.archive.files import Segment
from kvitto.spark.archive.options import ALWAYS
from kvitto.spark.archive.reading import SegmentPartition, segment_messages
from kvitto.spark.archive.segment import Messages, Wanted
from kvitto.spark.archive.settlements import WAITING, Outcomes
from kvitto.spark.columns import string_array
from kvitto.spark.properties import Slices, hashes, locate

Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]
Batches = Iterable[pa.RecordBatch]
Task = Callable[[Batches], Iterator[pa.RecordBatch]]
"""The argument of `DataFrame.mapInArrow`."""

HOUR_MS: Final = 3_600_000
EXACT_MS: Final = 1000
"""Latencies are exact to the millisecond below this, and to three digits above: 1.23 s, 45.6 s, 2,340 s."""
BUCKET_BITS: Final = 8
KEYS_MAX: Final = 1 << 22
"""The maximum number of hashes of receipts that a task collects."""
LOST_MAX: Final = 1 << 16
"""The maximum per bucket and queue; further lost ids are counted, but not listed."""

_TEXT, _LONG, _INT = pa.string(), pa.int64(), pa.int32()


def _columns(**types: pa.DataType) -> pa.Schema:
    return pa.schema(list(types.items()))


TALLIES: Final = _columns(
    vhost=_TEXT, queue=_TEXT, hour=_LONG, outcome=_TEXT, again=pa.bool_(), about=_LONG, n=_LONG, longest=_LONG
)
"""`hour` of publishing since 1970; `about`: ms from publishing to settling, rounded, null for a waiting message; `n` messages."""
KEYS: Final = _columns(bucket=_INT, kind=_INT, queue_id=_TEXT, queue=_TEXT, keys=pa.binary())
"""Hashes of message ids, u64. Stored messages have a queue_id; receipts have none, and a queue if they name one."""
VERDICTS: Final = _columns(kind=_INT, queue_id=_TEXT, queue=_TEXT, n=_LONG, keys=pa.binary())
RECEIPTS: Final = _columns(message_id=_TEXT, queue=_TEXT)
STORED: Final = _columns(
    vhost=_TEXT,
    queue=_TEXT,
    queue_id=_TEXT,
    offset=_LONG,
    message_id=_TEXT,
    dead_letter=pa.bool_(),
    published=pa.timestamp("us", "UTC"),
    exchange=_TEXT,
    routing_key=_TEXT,
    outcome=_TEXT,
    settled=pa.timestamp("us", "UTC"),
    deliveries=_INT,
)
"""The columns of the format `kvitto-archive` for single messages."""

PUBLISHED, DEAD_LETTER, RECEIPT = range(3)
"""Kinds of keys."""
DIFFERENT, DOUBLED, LOST = range(3)
"""Kinds of verdicts: the number of receipts, and the keys of doubled or lost messages."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The input: a partition for each task. `seed` makes the hashes differ from those of other runs."""

    parts: list[SegmentPartition]
    ignore_damage: bool
    seed: int

    def segments(self, batches: Batches) -> Iterator[tuple[Segment, int]]:
        """Yield the segments of the partitions whose numbers Spark gave this task, with their delivered marks."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                part = self.parts[number]
                yield from ((each, part.marks.get(each.queue.id, 0)) for each in part.segments)

    def messages(
        self, segment: Segment, mark: int, fate: bool, meta: bool
    ) -> Iterator[tuple[Messages, Outcomes | None]]:
        """Yield the messages of a segment without their bodies; with their outcomes if `fate`."""
        wanted = Wanted(*ALWAYS, meta, bodies=False)
        return segment_messages(segment, wanted, mark if fate else None, self.ignore_damage)


# --- counting


def tallies(scan: Scan) -> Task:
    """A task that yields rows of TALLIES, a few for each segment."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for segment, mark in scan.segments(batches):
            found = [
                _tally(some, fates) for some, fates in scan.messages(segment, mark, fate=True, meta=False) if fates
            ]
            if found:
                yield _tally_rows(segment, *_summed(*(np.concatenate(column) for column in zip(*found, strict=True))))

    return task


def _tally(found: Messages, outcomes: Outcomes) -> tuple[Ints, Ints, Ints]:
    """Return (kinds of messages as one number each, the number of each kind, the longest latency among them)."""
    settled, at = outcomes.find(found.offsets)
    if settled.any():
        outcome = np.where(settled, outcomes.outcome[at], WAITING).astype(np.int64)
        latency = np.where(settled, np.maximum(outcomes.time_ms[at] - found.times_ms, 0), -1)
    else:
        outcome, latency = np.full(len(settled), WAITING), np.full(len(settled), -1)
    again = outcomes.delivered(found.offsets, settled, at) > 1
    kind = (found.times_ms // HOUR_MS << 23) | (outcome << 15) | (again.astype(np.int64) << 14) | step(latency)
    return _summed(kind, np.ones(len(kind), np.int64), latency)


def _summed(kind: Ints, count: Ints, longest: Ints) -> tuple[Ints, Ints, Ints]:
    order = np.argsort(kind, kind="stable")
    kind = kind[order]
    starts = np.flatnonzero(np.append(True, kind[1:] != kind[:-1])[: len(kind)])
    if not len(starts):
        return kind, count, longest
    return kind[starts], np.add.reduceat(count[order], starts), np.maximum.reduceat(longest[order], starts)


def step(ms: Ints) -> Ints:
    """Return the number of a latency's step; 0 for -1, which means none. 14 bits are enough."""
    power = np.zeros(len(ms), np.int64)
    for k in range(1, 12):
        power += ms >= EXACT_MS * 10 ** (k - 1)
    digits = ms // 10**power
    return np.where(power == 0, ms + 1, EXACT_MS + 1 + (power - 1) * 900 + np.clip(digits, 100, 999) - 100)


def latency(steps: Ints) -> Ints:
    """Return the latency in ms of a step: rounded down to three digits."""
    power, digits = np.divmod(np.maximum(steps - EXACT_MS - 1, 0), 900)
    return np.where(steps <= EXACT_MS, steps - 1, (digits + 100) * 10 ** (power + 1))


def _tally_rows(segment: Segment, kind: Ints, count: Ints, longest: Ints) -> pa.RecordBatch:
    about, n = latency(kind & 0x3FFF), len(kind)
    names = np.array([OUTCOMES.get(code) for code in range(256)], dtype=object)
    columns = [
        pa.array([segment.queue.vhost] * n, pa.string()),
        pa.array([segment.queue.name] * n, pa.string()),
        pa.array(kind >> 23),
        pa.array(names[(kind >> 15) & 0xFF], pa.string()),
        pa.array((kind >> 14) & 1 == 1),
        pa.array(about, mask=about < 0),
        pa.array(count),
        pa.array(longest, mask=longest < 0),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TALLIES)


# --- hashes of message ids


def keys(scan: Scan) -> Task:
    """A task that yields rows of KEYS for stored messages."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for segment, mark in scan.segments(batches):
            found: dict[int, list[Keys]] = {PUBLISHED: [], DEAD_LETTER: []}
            for some, _ in scan.messages(segment, mark, fate=False, meta=True):
                ids = _ids(some)
                hashed, dead = hashes(some.meta, ids, scan.seed), some.index["flags"] & DEAD != 0
                named = ids.length > 0  # an empty id is not an id
                found[PUBLISHED].append(hashed[named & ~dead])
                found[DEAD_LETTER].append(hashed[named & dead])
            for kind, parts in found.items():
                if any(map(len, parts)):
                    yield _key_rows(np.concatenate(parts), kind, segment.queue.id, segment.queue.name)

    return task


def receipt_keys(seed: int) -> Task:
    """A task that yields rows of KEYS for lines of receipts."""

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        found: dict[str | None, list[Keys]] = {}
        size = 0
        for ids, queue in _by_queue(batches):
            found.setdefault(queue, []).append(_hashed(ids, seed))
            size += len(ids)
            if size >= KEYS_MAX:
                yield from rows(found)
                found, size = {}, 0
        yield from rows(found)

    def rows(found: dict[str | None, list[Keys]]) -> Iterator[pa.RecordBatch]:
        return (_key_rows(np.concatenate(parts), RECEIPT, None, queue) for queue, parts in found.items())

    return task


def _ids(found: Messages) -> Slices:
    lists = np.append(found.meta_at + found.index["key_len"], 0)
    return locate(found.meta, lists, {"message_id"})["message_id"]


def _by_queue(batches: Batches) -> Iterator[tuple[pa.Array, str | None]]:
    """Yield the message ids of lines of receipts, and the queue that they name."""
    for batch in batches:
        ids, queues = _receipts(batch.column(0))
        coded = pc.dictionary_encode(queues, null_encoding="encode")
        code = np.asarray(coded.indices)
        ids = ids.take(pa.array(np.argsort(code, kind="stable")))
        start = 0
        for name, count in zip(coded.dictionary.to_pylist(), np.bincount(code).tolist(), strict=True):
            yield ids.slice(start, count), name
            start += count


def _receipts(lines: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return (message ids, queues or null) of the lines that are not empty. The ids are the bytes of the line, UTF-8 or not."""
    parts = pc.split_pattern(pc.ascii_rtrim(lines, " "), "\t", max_splits=2)
    ids = pc.list_element(parts, 0)
    named = np.asarray(pc.greater(pc.list_value_length(parts), 1))
    queues = pa.nulls(len(lines), pa.string())
    if named.any():
        queues = pc.replace_with_mask(queues, pa.array(named), pc.list_element(parts.filter(pa.array(named)), 1))
        queues = string_array(queues.buffers(), len(queues))
        queues = pc.if_else(pc.equal(queues, ""), pa.scalar(None, pa.string()), queues)
    there = pc.not_equal(ids, "")
    return ids.filter(there), queues.filter(there)


def _hashed(texts: pa.Array, seed: int) -> Keys:
    _, ends, data = pa.array(texts.cast(pa.binary())).buffers()
    borders = np.frombuffer(ends, np.int32, len(texts) + 1, 4 * texts.offset).astype(np.int64)
    raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return hashes(raw, Slices(np.ones(len(texts), np.bool_), borders[:-1], np.diff(borders)), seed)


def _key_rows(hashed: Keys, kind: int, queue_id: str | None, queue: str | None) -> pa.RecordBatch:
    bucket = (hashed >> np.uint64(64 - BUCKET_BITS)).astype(np.uint8)
    sorted_ = hashed[np.argsort(bucket, kind="stable")]
    borders = np.append(0, np.cumsum(np.bincount(bucket, minlength=1 << BUCKET_BITS))) * 8
    n = 1 << BUCKET_BITS
    values = pa.Array.from_buffers(
        pa.binary(), n, [None, pa.py_buffer(borders.astype(np.int32)), pa.py_buffer(sorted_)]
    )
    rows = [
        pa.array(np.arange(n, dtype=np.int32)),
        pa.array([kind] * n, pa.int32()),
        pa.array([queue_id] * n, pa.string()),
        pa.array([queue] * n, pa.string()),
        values,
    ]
    return pa.RecordBatch.from_arrays(rows, schema=KEYS).filter(pa.array(np.diff(borders) > 0))


def compare(table: pa.Table) -> pa.Table:
    """Return rows of VERDICTS for rows of KEYS of one bucket."""
    groups: dict[tuple[int, str | None, str | None], list[Keys]] = {}
    rows = zip(*(table[name].to_pylist() for name in ("kind", "queue_id", "queue", "keys")), strict=True)
    for kind, queue_id, queue, raw in rows:
        groups.setdefault((kind, queue_id, queue), []).append(np.frombuffer(raw, np.uint64))
    merged = {key: np.concatenate(parts) for key, parts in groups.items()}
    stored: dict[str | None, list[Keys]] = {None: []}
    for (kind, _, queue), hashed in merged.items():
        if kind != RECEIPT:
            stored[None].append(hashed)
            stored.setdefault(queue, []).append(hashed)
    found: list[tuple[int, str | None, str | None, int, bytes]] = []
    for (kind, queue_id, queue), hashed in merged.items():
        if kind == PUBLISHED and len(twice := _twice(hashed)):
            found.append((DOUBLED, queue_id, queue, len(twice), twice.tobytes()))
        if kind == RECEIPT:
            different = np.unique(hashed)
            there = np.concatenate([*stored.get(queue, []), np.zeros(0, np.uint64)])
            lost = different[~_among(different, np.sort(there))]
            found.append((DIFFERENT, None, queue, len(different), b""))
            if len(lost):
                found.append((LOST, None, queue, len(lost), lost[:LOST_MAX].tobytes()))
    columns = list(zip(*found, strict=True)) or [()] * 5
    arrays = [pa.array(list(c), field.type) for c, field in zip(columns, VERDICTS, strict=True)]
    return pa.table(arrays, schema=VERDICTS)


def _twice(hashed: Keys) -> Keys:
    ordered = np.sort(hashed)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


# --- looking up messages


def rows_of(scan: Scan, wanted: Keys) -> Task:
    """A task that yields rows of STORED: the messages whose id has one of these hashes."""
    ordered = np.sort(wanted)

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for segment, mark in scan.segments(batches):
            for some, outcomes in scan.messages(segment, mark, fate=True, meta=True):
                ids = _ids(some)
                chosen = ids.present & _among(hashes(some.meta, ids, scan.seed), ordered)
                if not chosen.any():
                    continue
                start = 0
                for batch in message_batches(some, segment.queue, outcomes, STORED):
                    yield batch.filter(pa.array(chosen[start : start + batch.num_rows]))
                    start += batch.num_rows

    return task


def receipt_rows(seed: int, wanted: dict[str | None, Keys]) -> Task:
    """A task that yields rows of RECEIPTS whose id has one of the wanted hashes of their queue."""
    ordered = {queue: np.sort(hashed) for queue, hashed in wanted.items()}

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        for ids, name in _by_queue(batches):
            if name in ordered:
                lost = ids.filter(pa.array(_among(_hashed(ids, seed), ordered[name])))
                queue = pa.repeat(pa.scalar(name, pa.string()), len(lost))
                yield pa.RecordBatch.from_arrays([lost, queue], schema=RECEIPTS)

    return task


def key_of(message_id: str, seed: int) -> Keys:
    """Return the hash of one message id."""
    return _hashed(pa.array([message_id]), seed)


def _among(values: Keys, ordered: Keys) -> NDArray[np.bool_]:
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    found: NDArray[np.bool_] = ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values
    return found

"""Messages and settlements as Arrow batches of exactly the schema that Spark asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kvitto.format.entry import DEAD
from kvitto.format.settlement import OUTCOMES
from kvitto.spark.archive.files import Queue
from kvitto.spark.archive.segment import Messages
from kvitto.spark.archive.settlements import WAITING, Entries, Outcomes
from kvitto.spark.columns import ARROW_BYTES_MAX, PROPERTY_COLUMNS, Properties, string_array
from kvitto.spark.properties import Slices, gather

Ints = NDArray[np.int64]

ROWS_MAX: Final = 1 << 15
"""The maximum number of rows of one Arrow batch."""
META_COLUMNS: Final = PROPERTY_COLUMNS | {"exchange", "routing_key"}
FATE_COLUMNS: Final = {"outcome", "settled", "deliveries"}
_NAMES: Final = pa.array([OUTCOMES.get(code) for code in range(256)], pa.string())


def message_batches(
    found: Messages, queue: Queue, outcomes: Outcomes | None, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches of messages. `outcomes` may be None if no column of the schema is one of FATE_COLUMNS."""
    makers = _Makers(found, queue, outcomes, set(schema.names))
    rows = len(found.offsets)
    size = int(found.body_ends[-1]) if "body" in schema.names else 0
    step = max(1, min(ROWS_MAX, rows * ARROW_BYTES_MAX // max(size + 64 * rows, 1)))
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        yield pa.RecordBatch.from_arrays([makers.column(field, part) for field in schema], schema=schema)


def settlement_batches(
    entries: Entries, queue: Queue, start_ms: int, end_ms: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the entries of one settlement log whose time is in [start_ms, end_ms)."""
    chosen = np.flatnonzero((start_ms <= entries.time_ms) & (entries.time_ms < end_ms))
    for start in range(0, len(chosen), ROWS_MAX):
        rows = chosen[start : start + ROWS_MAX]
        yield pa.RecordBatch.from_arrays(
            [_entry_column(entries, queue, field, rows) for field in schema], schema=schema
        )


def _entry_column(entries: Entries, queue: Queue, field: pa.Field, rows: Ints) -> pa.Array:
    names = _names(queue, len(rows))
    if field.name in names:
        return names[field.name]()
    if field.name == "outcome":
        return _outcome(entries.outcome[rows])
    if field.name == "settled":
        return _timestamps(entries.time_ms[rows], None, field.type)
    if field.name == "deliveries":
        return pa.array(entries.deliveries[rows].astype(np.int32))
    return pa.array(entries.count[rows] if field.name == "count" else entries.offset[rows])


class _Makers:
    """Makes the columns of some messages; values that several columns need are computed once."""

    def __init__(self, found: Messages, queue: Queue, outcomes: Outcomes | None, names: set[str]) -> None:
        self.found = found
        self.queue = queue
        self.outcomes = outcomes
        if outcomes is not None:
            self.settled, self.at = outcomes.find(found.offsets)
        wanted = names & PROPERTY_COLUMNS
        if names & META_COLUMNS:
            lists = found.meta_at + found.index["key_len"]
            self.properties = Properties(
                len(found.offsets), found.meta, np.append(lists, 0) if wanted else None, wanted
            )

    def column(self, field: pa.Field, part: slice) -> pa.Array:
        """Return the rows `part` of one column."""
        if field.name in PROPERTY_COLUMNS:
            return self._whole(field.name, lambda: self.properties.column(field))[part]
        if field.name in ("exchange", "routing_key"):
            return self._whole(field.name, lambda: self._key(field.name))[part]
        count = part.stop - part.start
        names = _names(self.queue, count)
        if field.name in names:
            return names[field.name]()
        if field.name == "body":
            return self._bodies(part, field.type)
        return self._fate(field, part)

    def _fate(self, field: pa.Field, part: slice) -> pa.Array:
        found, outcomes = self.found, self.outcomes
        if field.name == "offset":
            return pa.array(found.offsets[part])
        if field.name == "published":
            return _timestamps(found.times_ms[part], None, field.type)
        if field.name == "dead_letter":
            return pa.array(found.index["flags"][part] & DEAD != 0)
        assert outcomes is not None
        settled, at = self.settled[part], self.at[part]
        if field.name == "deliveries":
            counts = outcomes.delivered(found.offsets[part], settled, at)
            return pa.array(counts.astype(np.int32))
        if not settled.any():
            return pa.nulls(len(settled), field.type)
        if field.name == "settled":
            return _timestamps(outcomes.time_ms[at], None if settled.all() else ~settled, field.type)
        return _outcome(np.where(settled, outcomes.outcome[at], WAITING).astype(np.uint8))

    def _bodies(self, part: slice, kind: pa.DataType) -> pa.Array:
        """Return the bodies without a copy."""
        ends = self.found.body_ends[part.start : part.stop + 1]
        data = self.found.bodies[int(ends[0]) : int(ends[-1])]
        buffers = [None, pa.py_buffer((ends - ends[0]).astype(np.int32)), pa.py_buffer(data)]
        if pa.types.is_string(kind):
            return string_array(buffers, len(ends) - 1)
        return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)

    def _key(self, name: str) -> pa.Array:
        """Return exchange or routing key: two short strings, one after the other."""
        meta, at = self.found.meta, self.found.meta_at
        length = meta[at].astype(np.int64)
        if name == "routing_key":
            at = at + 1 + length
            length = meta[at].astype(np.int64)
        values, borders = gather(meta, Slices(np.ones(len(at), np.bool_), at + 1, length))
        return string_array([None, pa.py_buffer(borders), pa.py_buffer(values)], len(at))

    def _whole(self, name: str, make: Callable[[], pa.Array]) -> pa.Array:
        made: dict[str, pa.Array] = self.__dict__.setdefault("_made", {})
        if name not in made:
            made[name] = make()
        return made[name]


def _names(queue: Queue, count: int) -> dict[str, Callable[[], pa.Array]]:
    return {
        "vhost": lambda: _repeated(queue.vhost)[:count],
        "queue": lambda: _repeated(queue.name)[:count],
        "queue_id": lambda: _repeated(queue.id)[:count],
    }


@lru_cache(maxsize=64)
def _repeated(value: str) -> pa.Array:
    return pa.repeat(pa.scalar(value.encode("utf-8", "replace").decode(), pa.string()), ROWS_MAX)


def _outcome(codes: NDArray[np.uint8]) -> pa.Array:
    """Return the names of outcomes; null for WAITING."""
    if codes[0] != WAITING and (codes == codes[0]).all():
        name: Any = _NAMES[int(codes[0])].as_py()
        return _repeated(name)[: len(codes)] if name is not None else pa.nulls(len(codes), pa.string())
    return _NAMES.take(pa.array(codes))


def _timestamps(times_ms: Ints, mask: NDArray[np.bool_] | None, kind: pa.DataType) -> pa.Array:
    return pa.array(times_ms * 1000, mask=mask).view(kind)

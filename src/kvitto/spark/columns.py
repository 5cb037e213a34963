"""Received messages as Arrow batches of exactly the schema that Spark asked for.

Bodies, exchanges and routing keys are handed over as the buffers they were received into; properties are decoded for
all messages of a batch at once. The one column with work per message is `headers`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kvitto.base.errors import ConnectionError_
from kvitto.client import Batch, Column
from kvitto.spark.properties import Bytes, Ints, Slices, gather, locate, unsigned
from kvitto.spark.schema import HEADERS, PROPERTIES
from kvitto.wire import tables

ARROW_BYTES_MAX: Final = 8 << 20
"""Larger Arrow batches are handed over in pieces: Spark copies each as a whole."""
PROPERTY_COLUMNS: Final = {*PROPERTIES, HEADERS, "timestamp"}
_SECONDS_MAX = 253_402_300_800
"""The year 10000: a later timestamp property is somebody's mistake and becomes null."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Arrow's form of it, equal to what Spark checks for."""
    return to_arrow_schema(schema, timezone="UTC")


def to_arrow(batch: Batch, queue: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The messages of a log.read (delivery tag = offset + 1), in pieces of at most ARROW_BYTES_MAX."""
    if batch.count == 0:
        return
    wanted = set(schema.names) & PROPERTY_COLUMNS
    ends, data = batch.properties.buffers()
    borders = np.frombuffer(ends, dtype="<u4").astype(np.int64) if wanted else None
    properties = Properties(batch.count, np.frombuffer(data, dtype=np.uint8), borders, wanted)
    arrays = [_column(batch, queue, field, properties) for field in schema]
    whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
    pieces = max(1, -(-whole.nbytes // ARROW_BYTES_MAX))
    rows = -(-whole.num_rows // pieces)
    for start in range(0, whole.num_rows, rows):
        yield whole.slice(start, rows)


def _column(batch: Batch, queue: str, field: pa.Field, properties: Properties) -> pa.Array:
    make = _MAKERS.get(field.name)
    if make is not None:
        return make(batch)
    if field.name == "body":
        return _text(batch.bodies) if pa.types.is_string(field.type) else _binary(batch.bodies)
    if field.name == "queue":
        return pa.repeat(pa.scalar(queue, pa.string()), batch.count)
    return properties.column(field)


def _offset(batch: Batch) -> pa.Array:
    tags = np.frombuffer(batch.tags.view(), dtype="<u8")
    return pa.array(tags.astype(np.int64) - 1)


def _redelivered(batch: Batch) -> NDArray[np.bool_]:
    return np.frombuffer(batch.flags.view(), dtype=np.uint8).astype(np.bool_)


_MAKERS: Final[dict[str, Callable[[Batch], pa.Array]]] = {
    "offset": _offset,
    "redelivered": lambda batch: pa.array(_redelivered(batch)),
    # the protocol says whether there were earlier deliveries, not how many
    "delivery_count": lambda batch: pa.array(_redelivered(batch).astype(np.int32)),
    "exchange": lambda batch: _text(batch.exchanges),
    "routing_key": lambda batch: _text(batch.routing_keys),
}


def _binary(column: Column) -> pa.Array:
    ends, data = column.buffers()
    return pa.Array.from_buffers(pa.binary(), len(column), [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _text(column: Column) -> pa.Array:
    ends, data = column.buffers()
    return string_array([None, pa.py_buffer(ends), pa.py_buffer(data)], len(column))


def string_array(buffers: list[pa.Buffer | None], count: int) -> pa.Array:
    """A string array over these buffers; bytes that are not UTF-8 become replacement characters."""
    array = pa.Array.from_buffers(pa.string(), count, buffers)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raw = pa.Array.from_buffers(pa.binary(), count, buffers).to_pylist()
        return pa.array([None if b is None else b.decode("utf-8", "replace") for b in raw], pa.string())
    return array


class Properties:
    """The wanted ones of PROPERTY_COLUMNS, out of `count` property lists that begin at borders[:-1] in `data`."""

    def __init__(self, count: int, data: Bytes, borders: Ints | None, wanted: set[str]) -> None:
        self.count = count
        self.data = data
        self.found: dict[str, Slices] = locate(data, borders, wanted) if borders is not None else {}

    def column(self, field: pa.Field) -> pa.Array:
        """One of them as an array of the field's type."""
        where = self.found[field.name]
        if not where.present.any():
            return pa.nulls(self.count, field.type)
        if field.name == HEADERS:
            return self._headers(where, field.type)
        if field.name == "timestamp":
            seconds = unsigned(self.data, where, 8)
            valid = where.present & (seconds >= 0) & (seconds < _SECONDS_MAX)
            return pa.array(np.where(valid, seconds, 0) * 1_000_000, mask=~valid).view(field.type)
        if field.name == "priority":
            return pa.array(unsigned(self.data, where, 1).astype(np.int32), mask=~where.present)
        values, borders = gather(self.data, where)
        bits = None if where.present.all() else pa.py_buffer(np.packbits(where.present, bitorder="little").tobytes())
        return string_array([bits, pa.py_buffer(borders), pa.py_buffer(values)], self.count)

    def _headers(self, where: Slices, kind: pa.DataType) -> pa.Array:
        data = self.data.tobytes()
        cells: list[Any] = [None] * self.count
        for k in np.flatnonzero(where.present).tolist():
            start = int(where.start[k]) - 4
            cells[k] = header_texts(data[start : start + 4 + int(where.length[k])])
        return pa.array(cells, kind)


@lru_cache(maxsize=4096)
def header_texts(raw: bytes) -> tuple[tuple[str, str | None], ...]:
    """An encoded table as pairs of text; what is no text is given as JSON. Nothing for a table that does not parse."""
    try:
        table = tables.decode(raw)
    except ConnectionError_:
        return ()
    return tuple((_text_only(name), _header_text(value)) for name, value in table.items())


def _header_text(value: tables.Value) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return _text_only(value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False))


def _text_only(text: str) -> str:
    """Without the bytes of a peer that are no UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

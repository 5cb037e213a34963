"""Received messages as Arrow batches of exactly the schema that Spark asked for.

Bodies, exchanges and routing keys are passed on as the buffers into which they were received. Properties are decoded
for all messages of a batch at once. Only the column `headers` needs work per message.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kvitto.base.errors import ConnectionError_
from kvitto.client import Batch
from kvitto.spark.properties import Bytes, Ints, Slices, gather, locate, unsigned
from kvitto.spark.schema import HEADERS, PROPERTIES
from kvitto.wire import tables

ARROW_BYTES_MAX: Final = 8 << 20
"""Larger Arrow batches are passed on in pieces, because Spark copies each as a whole."""
PROPERTY_COLUMNS: Final = {*PROPERTIES, HEADERS, "timestamp"}
_SECONDS_MAX = 253_402_300_800
"""The year 10000. A later timestamp property is a mistake and becomes null."""


Buffers = tuple[Any, Any]
"""Byte strings: their n + 1 borders as 32-bit numbers, and the bytes."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages as they were received, not decoded."""

    offsets: Ints
    redelivered: NDArray[np.bool_]
    exchanges: Buffers
    routing_keys: Buffers
    properties: Buffers
    bodies: Buffers

    @property
    def count(self) -> int:
        return len(self.offsets)


def received(batch: Batch, offsets: Ints | None = None) -> Messages:
    """Return the messages of a batch. Without `offsets` it must be of a log.read (delivery tag = offset + 1)."""
    if offsets is None:
        offsets = np.frombuffer(batch.tags.view(), dtype="<u8").astype(np.int64) - 1
    redelivered = np.frombuffer(batch.flags.view(), dtype=np.uint8).astype(np.bool_)
    columns = (batch.exchanges, batch.routing_keys, batch.properties, batch.bodies)
    return Messages(offsets, redelivered, *(column.buffers() for column in columns))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return Arrow's form of the schema, equal to the one that Spark checks for."""
    return to_arrow_schema(schema, timezone="UTC")


def to_arrow(
    batch: Batch | Messages, queue: str, schema: pa.Schema, rows: slice = slice(None)
) -> Iterator[pa.RecordBatch]:
    """Yield the messages, or those of `rows`, in pieces of at most ARROW_BYTES_MAX. The batch must be of one log.read."""
    messages = received(batch) if isinstance(batch, Batch) else batch
    start, stop, _ = rows.indices(messages.count)
    if start >= stop:
        return
    wanted = set(schema.names) & PROPERTY_COLUMNS
    ends, data = messages.properties
    borders = np.frombuffer(ends, dtype="<u4").astype(np.int64) if wanted else None
    properties = Properties(messages.count, np.frombuffer(data, dtype=np.uint8), borders, wanted)
    arrays = [_column(messages, queue, field, properties) for field in schema]
    whole = pa.RecordBatch.from_arrays(arrays, schema=schema).slice(start, stop - start)
    pieces = max(1, -(-whole.nbytes // ARROW_BYTES_MAX))
    step = -(-whole.num_rows // pieces)
    for first in range(0, whole.num_rows, step):
        yield whole.slice(first, step)


def _column(messages: Messages, queue: str, field: pa.Field, properties: Properties) -> pa.Array:
    make = _MAKERS.get(field.name)
    if make is not None:
        return make(messages)
    if field.name == "body":
        return (_text if pa.types.is_string(field.type) else binary)(messages.bodies)
    if field.name == "queue":
        return pa.repeat(pa.scalar(queue, pa.string()), messages.count)
    return properties.column(field)


_MAKERS: Final[dict[str, Callable[[Messages], pa.Array]]] = {
    "offset": lambda messages: pa.array(messages.offsets),
    "redelivered": lambda messages: pa.array(messages.redelivered),
    # the protocol says whether there were earlier deliveries, but not how many
    "delivery_count": lambda messages: pa.array(messages.redelivered.astype(np.int32)),
    "exchange": lambda messages: _text(messages.exchanges),
    "routing_key": lambda messages: _text(messages.routing_keys),
}


def binary(column: Buffers) -> pa.Array:
    """Return an Arrow array over the same bytes."""
    ends, data = column
    return pa.Array.from_buffers(pa.binary(), len(ends) // 4 - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _text(column: Buffers) -> pa.Array:
    ends, data = column
    return string_array([None, pa.py_buffer(ends), pa.py_buffer(data)], len(ends) // 4 - 1)


def message_ids(properties: Buffers) -> pa.Array:
    """Return the property message_id of each message as bytes; null if it is absent."""
    ends, data = properties
    raw = np.frombuffer(data, dtype=np.uint8)
    where = locate(raw, np.frombuffer(ends, dtype="<u4").astype(np.int64), {"message_id"})["message_id"]
    values, borders = gather(raw, where)
    bits = pa.py_buffer(np.packbits(where.present, bitorder="little").tobytes())
    return pa.Array.from_buffers(pa.binary(), len(where.present), [bits, pa.py_buffer(borders), pa.py_buffer(values)])


def string_array(buffers: list[pa.Buffer | None], count: int) -> pa.Array:
    """Return a string array over these buffers; bytes that are not UTF-8 become replacement characters."""
    array = pa.Array.from_buffers(pa.string(), count, buffers)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raw = pa.Array.from_buffers(pa.binary(), count, buffers).to_pylist()
        return pa.array([None if b is None else b.decode("utf-8", "replace") for b in raw], pa.string())
    return array


class Properties:
    """The wanted properties of PROPERTY_COLUMNS, from `count` property lists that begin at borders[:-1] in `data`."""

    def __init__(self, count: int, data: Bytes, borders: Ints | None, wanted: set[str]) -> None:
        self.count = count
        self.data = data
        self.found: dict[str, Slices] = locate(data, borders, wanted) if borders is not None else {}

    def column(self, field: pa.Field) -> pa.Array:
        """Return one of them as an array of the field's type."""
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
    """Return an encoded table as pairs of text. Values that are not text are JSON, bytes that are not UTF-8 are
    {"base64": "..."}.

    The result is empty for a table that does not parse.
    """
    try:
        table = tables.decode(raw)
    except ConnectionError_:
        return ()
    return tuple((_text_only(name), _header_text(value)) for name, value in table.items())


def _header_text(value: tables.Value) -> str | None:
    if value is None:
        return None
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, default=str, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Return a value for JSON without losing a byte: text as it is, other bytes in base64."""
    if isinstance(value, dict):
        return {_text_only(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _text_only(text: str) -> str:
    """Return the text without bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

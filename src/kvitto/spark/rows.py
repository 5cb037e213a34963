"""Rows of a DataFrame as messages: the meaning of columns, and an Arrow batch as the columns that the client sends.

Bodies, exchanges, routing keys and properties are passed as buffers, and compiled code builds the property lists. No
Python object is made per row.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kvitto.base import limits
from kvitto.client import Column, Properties
from kvitto.client.columns import Field, pack_fields, pack_tables
from kvitto.spark.errors import SinkError
from kvitto.spark.jsonbody import json_bodies
from kvitto.spark.schema import HEADERS
from kvitto.spark.sink_options import SinkOptions
from kvitto.wire.properties import FIELDS

BODY, EXCHANGE, ROUTING_KEY, PRIORITY, TIMESTAMP = "body", "exchange", "routing_key", "priority", "timestamp"
PERSISTENT: Final = 2
JSON_TYPE: Final = "application/json"
_BITS: Final = {name: 1 << (15 - k) for k, (name, _) in enumerate(FIELDS)}
_TEXT = (StringType,)
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_TYPES: Final[dict[str, tuple[str, tuple[type[DataType], ...]]]] = {
    BODY: ("binary or string", (BinaryType, StringType)),
    EXCHANGE: ("string", _TEXT),
    ROUTING_KEY: ("string", _TEXT),
    "message_id": ("string", _TEXT),
    "correlation_id": ("string", _TEXT),
    "content_type": ("string", _TEXT),
    "content_encoding": ("string", _TEXT),
    PRIORITY: ("int", _WHOLE),
    "expiration": ("string", _TEXT),
    "type": ("string", _TEXT),
    "user_id": ("string", _TEXT),
    "app_id": ("string", _TEXT),
    "reply_to": ("string", _TEXT),
    TIMESTAMP: ("timestamp, or seconds as bigint", (TimestampType, TimestampNTZType, *_WHOLE)),
    HEADERS: ("map<string,string>", (MapType,)),
}
"""The possible columns in the order of docs/spark.md, each with its types."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a row's message. `packed`: the columns that become a JSON body; None means that column `body` is the body."""

    names: tuple[str, ...]
    packed: tuple[str, ...] | None
    exchange: str
    routing_key: str


class Messages(NamedTuple):
    """Rows ready to be published; `borders` of the bodies as int64."""

    bodies: Column
    exchanges: Column
    routing_keys: Column
    properties: Column
    borders: NDArray[np.int64]


def layout_of(schema: StructType, options: SinkOptions) -> Layout:
    """Return the layout. Raise SinkError if these columns cannot be published with these options; it names the column
    and what to do."""
    names = tuple(schema.fieldNames())
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SinkError(f"there are two columns {', '.join(twice)}; drop or rename one")
    others = tuple(name for name in names if name not in _TYPES)
    if options.json and BODY in names:
        raise SinkError("column body and option value = json are two bodies; drop the column, or the option")
    if not options.json:
        _refuse(others, names)
    for field in schema.fields:
        if field.name in _TYPES:
            _check_type(field.name, field.dataType)
    if options.routing_key is None and ROUTING_KEY not in names and EXCHANGE not in names and not options.exchange:
        raise SinkError(
            "where do the rows go? Give option routingKey (with the default exchange it is the name of a queue),"
            " option exchange, or a column routing_key or exchange"
        )
    return Layout(names, others if options.json else None, options.exchange, options.routing_key or "")


def _refuse(others: tuple[str, ...], names: tuple[str, ...]) -> None:
    if others:
        near = {name: difflib.get_close_matches(name, _TYPES, n=1) for name in others}
        hints = [f"did you mean {found[0]!r} for {name!r}?" for name, found in near.items() if found]
        raise SinkError(
            f"these columns are no part of a message: {', '.join(others)}. {' '.join(hints)}{' ' if hints else ''}"
            "Drop or rename them, or say option value = json to send them as a JSON body"
        )
    if BODY not in names:
        raise SinkError("there is no column body (binary or string); name one so, or say option value = json")


def _check_type(name: str, kind: DataType) -> None:
    wanted, types = _TYPES[name]
    right = isinstance(kind, types)
    if isinstance(kind, MapType):
        right = right and isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
    if not right:
        raise SinkError(f"column {name!r} is {kind.simpleString()}, but has to be {wanted}: cast it")


def with_ids(batch: pa.RecordBatch, prefix: str, first: int) -> pa.RecordBatch:
    """Give rows without a message_id the id `<prefix><row number>`, which is the same whenever the same rows are written."""
    numbers = pa.array(np.arange(first, first + batch.num_rows)).cast(pa.string())
    ids = pc.binary_join_element_wise(prefix, numbers, "")
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if "message_id" in columns:
        ids = pc.coalesce(columns["message_id"].cast(pa.string()), ids)
    columns["message_id"] = ids
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def to_messages(batch: pa.RecordBatch, layout: Layout) -> Messages:
    """Return the rows of a non-empty batch. Raise SinkError for a value that AMQP cannot carry."""
    if layout.packed is None:
        body = batch.column(BODY)
        if body.null_count:
            raise SinkError(
                f"column body is null in {body.null_count} of {batch.num_rows} rows: filter them out, or give them a body"
            )
    else:
        body = json_bodies(batch, layout.packed)
    bodies, borders = _column(body)
    return Messages(
        bodies,
        _place(batch, EXCHANGE, layout.exchange),
        _place(batch, ROUTING_KEY, layout.routing_key),
        _properties(batch, JSON_TYPE if layout.packed is not None else None),
        borders,
    )


def _place(batch: pa.RecordBatch, name: str, default: str) -> Column:
    if name not in batch.schema.names:
        return Column.one(default.encode())
    array = batch.column(name)
    return _short(name, pc.fill_null(array, default) if array.null_count else array)


def _properties(batch: pa.RecordBatch, content_type: str | None) -> Column:
    """Return the property lists; one for all rows if no column adds to it."""
    given = [name for name, _ in FIELDS if name in batch.schema.names and name in _BITS]
    if not given:
        return Column.one(Properties(delivery_mode=PERSISTENT, content_type=content_type).encode())
    fields = []
    for name, _ in FIELDS:
        if name == "delivery_mode":
            fields.append(Field(_BITS[name], Column.one(bytes((PERSISTENT,))), b"", False))
        elif name == "content_type" and content_type is not None:
            fields.append(Field(_BITS[name], _place(batch, name, content_type)))
        elif name in given:
            array = batch.column(name)
            if array.null_count < len(array):
                fields.append(_field(name, array))
    return pack_fields(batch.num_rows, fields)


def _field(name: str, array: pa.Array) -> Field:
    present = _marks(array)
    if name == HEADERS:
        return Field(_BITS[name], _tables(array), present, False)
    if name == PRIORITY:
        return Field(_BITS[name], _numbers(_whole(name, array, 255).astype(np.uint8)), present, False)
    if name == TIMESTAMP:
        return Field(_BITS[name], _numbers(_whole(name, _seconds(array), 1 << 62).astype(">u8")), present, False)
    return Field(_BITS[name], _short(name, array), present)


def _marks(array: pa.Array) -> bytes:
    """Return a byte per value, 1 means not null; empty if none is null."""
    if array.null_count == 0:
        return b""
    marks: NDArray[np.uint8] = array.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    return marks.tobytes()


def _column(array: pa.Array) -> tuple[Column, NDArray[np.int64]]:
    """Return strings or bytes as a column, and its borders."""
    if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type):
        array = array.cast(pa.string() if pa.types.is_large_string(array.type) else pa.binary())
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32, count=len(array) + 1, offset=4 * array.offset)
    first, last = int(ends[0]), int(ends[-1])
    borders = (ends - first).astype("<u4")
    bytes_ = memoryview(data).cast("B")[first:last] if data is not None else b""
    return Column.of(borders.tobytes(), bytes_), borders.astype(np.int64)


def _short(name: str, array: pa.Array) -> Column:
    """Return a column of short strings. Raise SinkError if one is too long."""
    column, borders = _column(array)
    longest = int(np.diff(borders).max(initial=0))
    if longest > limits.SHORTSTR_MAX:
        raise SinkError(f"column {name!r} has a value of {longest} bytes; AMQP carries at most {limits.SHORTSTR_MAX}")
    return column


def _whole(name: str, array: pa.Array, most: int) -> NDArray[np.int64]:
    values = pc.fill_null(array.cast(pa.int64()), 0).to_numpy()
    if values.min() < 0 or values.max() > most:
        raise SinkError(f"column {name!r} goes from {values.min()} to {values.max()}; AMQP carries 0 to {most}")
    return np.asarray(values)


def _seconds(array: pa.Array) -> pa.Array:
    """Return timestamps (us) as whole seconds."""
    if not pa.types.is_timestamp(array.type):
        return array
    micros = array.cast(pa.timestamp("us", array.type.tz)).view(pa.int64())
    return pa.array(micros.fill_null(0).to_numpy() // 1_000_000)


def _numbers(values: NDArray[Any]) -> Column:
    """Return the bytes of each number in the order of the wire."""
    size = values.dtype.itemsize
    ends = (np.arange(len(values) + 1) * size).astype("<u4")
    return Column.of(ends.tobytes(), values.tobytes())


def _tables(array: pa.Array) -> Column:
    """Return maps as encoded tables of strings."""
    ends = np.frombuffer(array.buffers()[1], dtype=np.int32, count=len(array) + 1, offset=4 * array.offset)
    first, last = int(ends[0]), int(ends[-1])
    keys, values = array.keys.slice(first, last - first), array.items.slice(first, last - first)
    names = _short("headers, a name", keys)
    return pack_tables((ends - first).astype("<u4").tobytes(), names, _column(values)[0], _marks(values))

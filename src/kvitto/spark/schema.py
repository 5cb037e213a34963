"""The columns of a message, and the check of a schema that a query asks for.

A query may ask for fewer columns. Other columns are not decoded, which saves time (3 of 19 columns are four times as
fast).
"""

from __future__ import annotations

import difflib
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kvitto.spark.errors import SourceError

HEADERS: Final = "headers"
BASE: Final[dict[str, DataType]] = {
    "body": BinaryType(),
    "queue": StringType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "redelivered": BooleanType(),
    "delivery_count": IntegerType(),
    "exchange": StringType(),
    "routing_key": StringType(),
}
PROPERTIES: Final[dict[str, DataType]] = {
    "message_id": StringType(),
    "correlation_id": StringType(),
    "content_type": StringType(),
    "content_encoding": StringType(),
    "priority": IntegerType(),
    "expiration": StringType(),
    "type": StringType(),
    "user_id": StringType(),
    "app_id": StringType(),
    "reply_to": StringType(),
}


def full_schema(include_headers: bool) -> StructType:
    """Return all columns; `headers` only on request, because it costs more than all others together."""
    columns = BASE | PROPERTIES
    if include_headers:
        columns = columns | {HEADERS: MapType(StringType(), StringType())}
    return StructType([StructField(name, kind, True) for name, kind in columns.items()])


def check_schema(schema: StructType, include_headers: bool) -> None:
    """Raise SourceError unless `schema` has only existing columns, with their types (`body` may be a string)."""
    check_columns(schema, full_schema(True), "format 'amqp'", include_headers)


def check_columns(schema: StructType, known: StructType, what: str, headers: bool) -> None:
    """Raise SourceError unless every column is one of the known, with its type. `headers`: the option that adds that column."""
    if not schema.fields:
        raise SourceError("the schema has no column; leave it out for all, or name those that are needed")
    kinds = {field.name: field.dataType for field in known.fields}
    for field in schema.fields:
        if field.name == HEADERS and not headers:
            raise SourceError("column 'headers' needs option includeHeaders = true")
        kind = kinds.get(field.name)
        if kind is None:
            near = difflib.get_close_matches(field.name, kinds, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(kinds)}"
            raise SourceError(f"{what} has no column {field.name!r}; {hint}")
        if field.name == "body" and isinstance(field.dataType, StringType):
            continue
        if field.dataType.simpleString() != kind.simpleString():
            wanted, is_ = field.dataType.simpleString(), kind.simpleString()
            raise SourceError(f"column {field.name!r} is {is_}, not {wanted}; read it as {is_} and cast it afterwards")

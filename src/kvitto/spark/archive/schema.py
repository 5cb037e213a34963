"""The columns of the two tables, and the check of a schema that a query asks for; what is not asked for is not decoded."""

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

from kvitto.spark.archive.options import MESSAGES, Options
from kvitto.spark.errors import SourceError
from kvitto.spark.schema import HEADERS, PROPERTIES

_QUEUE: Final[dict[str, DataType]] = {
    "vhost": StringType(),
    "queue": StringType(),
    "queue_id": StringType(),
    "offset": LongType(),
}
_MESSAGE: Final[dict[str, DataType]] = {
    **_QUEUE,
    "published": TimestampType(),
    "exchange": StringType(),
    "routing_key": StringType(),
    "body": BinaryType(),
    "timestamp": TimestampType(),
    **PROPERTIES,
}
_FATE: Final[dict[str, DataType]] = {
    "outcome": StringType(),
    "settled": TimestampType(),
    "deliveries": IntegerType(),
    "dead_letter": BooleanType(),
}
_SETTLEMENT: Final[dict[str, DataType]] = {
    **_QUEUE,
    "count": LongType(),
    "outcome": StringType(),
    "settled": TimestampType(),
    "deliveries": IntegerType(),
}


def full_schema(options: Options) -> StructType:
    """All columns of the chosen table; `headers` only on request, for it costs more than all others together."""
    columns = _SETTLEMENT
    if options.table == MESSAGES:
        headers: dict[str, DataType] = {HEADERS: MapType(StringType(), StringType())}
        columns = _MESSAGE | (headers if options.include_headers else {}) | _FATE
    return StructType([StructField(name, kind, True) for name, kind in columns.items()])


def check_schema(schema: StructType, options: Options) -> None:
    """SourceError unless `schema` is made of columns that the table has, with their types (`body` may be a string)."""
    if not schema.fields:
        raise SourceError("the schema has no column; leave it out for all, or name those that are needed")
    known = {field.name: field.dataType for field in full_schema(options).fields}
    for field in schema.fields:
        kind = known.get(field.name)
        if kind is None and field.name == HEADERS and options.table == MESSAGES:
            raise SourceError("column 'headers' needs option includeHeaders = true")
        if kind is None:
            near = difflib.get_close_matches(field.name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise SourceError(
                f"table {options.table!r} of format 'kvitto-archive' has no column {field.name!r}; {hint}"
            )
        if field.name == "body" and isinstance(field.dataType, StringType):
            continue
        if field.dataType.simpleString() != kind.simpleString():
            wanted, is_ = field.dataType.simpleString(), kind.simpleString()
            raise SourceError(f"column {field.name!r} is {is_}, not {wanted}; read it as {is_} and cast it afterwards")

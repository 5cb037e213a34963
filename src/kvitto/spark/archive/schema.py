"""The columns of the two tables, and the check of a schema that a query asks for. Other columns are not decoded."""

from __future__ import annotations

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
from kvitto.spark.schema import HEADERS, PROPERTIES, check_columns

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
    """Return all columns of the chosen table; `headers` only on request, because it costs more than all others together."""
    columns = _SETTLEMENT
    if options.table == MESSAGES:
        headers: dict[str, DataType] = {HEADERS: MapType(StringType(), StringType())}
        columns = _MESSAGE | (headers if options.include_headers else {}) | _FATE
    return StructType([StructField(name, kind, True) for name, kind in columns.items()])


def check_schema(schema: StructType, options: Options) -> None:
    """Raise SourceError unless `schema` has only columns of the table, with their types (`body` may be a string)."""
    what = f"table {options.table!r} of format 'kvitto-archive'"
    check_columns(schema, full_schema(options), what, options.include_headers or options.table != MESSAGES)

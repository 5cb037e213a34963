"""Rows as JSON objects, a column at a time: the result of `to_json(struct(...))` in Spark, without a separate pass.

Arrow writes numbers, booleans, strings, dates and times for a whole batch. Strings that need escapes, bytes, floats
that are not a number, and nested values are written one by one. Null fields are left out, as in Spark.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_ESCAPED: Final = r'["\\\x00-\x1f]'


def json_bodies(batch: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    """Return a string per row: an object of the columns `names`. Times are ISO 8601 in UTC, bytes base64."""
    if not names:
        return pa.repeat(pa.scalar("{}"), batch.num_rows)
    fields = [_field(name, batch.column(name)) for name in names]
    # not null_handling="skip": that drops a row in which all are null
    inner = pc.binary_join_element_wise("{", *fields, "", null_handling="replace", null_replacement="")
    return _join(pc.ascii_rtrim(inner, ","), "}")


def _field(name: str, array: pa.Array) -> pa.Array:
    """Return `"name":value,`, or null for a null value."""
    label = json.dumps(name, ensure_ascii=False) + ":"
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _join(label + '"', _escaped(array.cast(pa.string())), '",')
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return _join(label, array.cast(pa.string()), ",")
    if pa.types.is_floating(kind) and pc.all(pc.is_finite(array)).as_py() is not False:
        return _join(label, array.cast(pa.string()), ",")
    if pa.types.is_date32(kind):
        return _join(label + '"', array.cast(pa.string()), '",')
    if pa.types.is_timestamp(kind):
        text = pc.replace_substring(array.cast(pa.timestamp("us")).cast(pa.string()), " ", "T")
        return _join(label + '"', text, 'Z",' if kind.tz else '",')
    one_by_one = [None if value is None else _text(value, kind) for value in array.to_pylist()]
    return _join(label, pa.array(one_by_one, pa.string()), ",")


def _join(*parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _escaped(array: pa.Array) -> pa.Array:
    special = pc.fill_null(pc.match_substring_regex(array, _ESCAPED), False)
    if not pc.any(special).as_py():
        return array
    escaped = [json.dumps(text, ensure_ascii=False)[1:-1] for text in array.filter(special).to_pylist()]
    return pc.replace_with_mask(array, special, pa.array(escaped, pa.string()))


def _text(value: Any, kind: pa.DataType) -> str:
    """Return one value as JSON."""
    if value is None:
        return "null"
    if pa.types.is_struct(kind):
        pairs = ((field.name, value[field.name], field.type) for field in kind)
        return _object((name, _text(item, of)) for name, item, of in pairs if item is not None)
    if pa.types.is_map(kind):
        return _object((str(key), _text(item, kind.item_type)) for key, item in value)
    if pa.types.is_list(kind):
        return "[" + ",".join(_text(item, kind.value_type) for item in value) + "]"
    if isinstance(value, datetime.datetime):
        text = value.astimezone(datetime.UTC) if value.tzinfo else value
        return json.dumps(text.strftime("%Y-%m-%dT%H:%M:%S.%f") + ("Z" if value.tzinfo else ""))
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float):
        if math.isfinite(value):
            return json.dumps(value)
        return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    if isinstance(value, bytes):
        return json.dumps(base64.b64encode(value).decode())
    return json.dumps(str(value), ensure_ascii=False)


def _object(pairs: Any) -> str:
    return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{text}" for name, text in pairs) + "}"

"""Values without a column in the schema: the column `_rest`, and a schema inferred from a sample so that few odd
records do not spoil it.

A table whose schema has `_rest STRING` loses no field: fields that the schema does not name, and values that do not
have their column's type, are stored there as one JSON object. An inferred schema always has it, because it is made from
the first messages only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

REST: Final = "_rest"
STRING: Final = "string"
_KINDS: Final = {bool: "boolean", int: "number", float: "number", str: STRING, dict: "object", list: "array"}

# --- the column


def without_rest(schema: StructType) -> tuple[StructType, bool]:
    """Return the columns for a record's fields, and whether there is one for the rest."""
    from pyspark.sql.types import StructType

    fields = [each for each in schema.fields if each.name != REST]
    return StructType(fields), len(fields) < len(schema.fields)


def fields_of(text: Column) -> Column:
    """Return the fields of a JSON object as a map of variants; null if it is not an object, or has a name twice."""
    from pyspark.sql import functions as f

    return f.try_variant_get(f.try_parse_json(text), "$", "map<string,variant>")


def rest(fields: Column, row: Column, schema: StructType, misfit: Column) -> Column:
    """Return JSON of the values that `row`, which was parsed with that schema, does not have; null if it has all.

    `misfit`: whether the parser has found a value that does not have its column's type.
    """
    from pyspark.sql import functions as f

    lost = [
        f.when(_lost(f.element_at(fields, f.lit(each.name)), row.getField(each.name), each.dataType, misfit), each.name)
        for each in schema.fields
    ]
    named, wrong = f.array(*(f.lit(name) for name in schema.names)), f.array_compact(f.array(*lost))
    left = f.map_filter(
        fields,
        lambda name, value: (
            (~f.array_contains(named, name) & ~f.is_variant_null(value)) | f.array_contains(wrong, name)
        ),
    )
    return f.when(f.size(left) > 0, f.to_json(left))


def _lost(value: Column, parsed: Column, kind: DataType, misfit: Column) -> Column:
    """Return whether a value, a variant, has something that the parsed value does not have."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, StructType

    there = f.coalesce(~f.is_variant_null(value), f.lit(False))
    if isinstance(kind, StructType):
        fields = f.try_variant_get(value, "$", "map<string,variant>")
        named = f.array(*(f.lit(name) for name in kind.names))
        lost = f.exists(f.map_keys(fields), lambda name: ~f.array_contains(named, name))
        for each in kind.fields:
            inner = f.element_at(fields, f.lit(each.name))
            lost = lost | _lost(inner, parsed.getField(each.name), each.dataType, misfit)
        return there & f.coalesce(lost, f.lit(True))
    if isinstance(kind, ArrayType):
        zipped = f.arrays_zip(f.try_variant_get(value, "$", "array<variant>").alias("was"), parsed.alias("is"))
        element = kind.elementType
        lost = f.exists(zipped, lambda pair: _lost(pair.getField("was"), pair.getField("is"), element, misfit))
        return there & f.coalesce(lost, f.lit(True))
    return misfit & there & parsed.isNull()


# --- a schema for most of a sample


def prune(bodies: Iterable[str], reserved: Iterable[str]) -> list[str]:
    """Return the JSON objects among these texts, without values whose kind is not the most frequent one at their
    position.

    One number as a word must not make a column of numbers a column of texts for ever. Names of `reserved` are left out.
    """
    objects = [found for body in bodies if isinstance(found := _parse(body), dict)]
    left_out = set(reserved)
    objects = [{name: value for name, value in each.items() if name.lower() not in left_out} for each in objects]
    seen: dict[str, Counter[str]] = {}
    for each in objects:
        _count(each, "", seen)
    most = {place: max(kinds, key=lambda kind: (kinds[kind], kind == STRING)) for place, kinds in seen.items()}
    return [json.dumps(_keep(each, "", most)) for each in objects]


def _parse(body: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _kind(value: Any) -> str | None:
    return _KINDS.get(type(value))


def _inner(value: Any, place: str) -> list[tuple[str, Any]]:
    """Return the values in an object or an array, each with its position; all of an array have the same."""
    if isinstance(value, dict):
        return [(f"{place}.{name}", inner) for name, inner in value.items()]
    return [(f"{place}[]", inner) for inner in value] if isinstance(value, list) else []


def _count(value: Any, place: str, seen: dict[str, Counter[str]]) -> None:
    for where, inner in _inner(value, place):
        if (kind := _kind(inner)) is not None:
            seen.setdefault(where, Counter())[kind] += 1
        _count(inner, where, seen)


def _keep(value: Any, place: str, most: dict[str, str]) -> Any:
    def fits(where: str, inner: Any) -> bool:
        return inner is None or _kind(inner) == most.get(where)

    if isinstance(value, dict):
        there = {name: (f"{place}.{name}", inner) for name, inner in value.items()}
        return {name: _keep(inner, where, most) for name, (where, inner) in there.items() if fits(where, inner)}
    if isinstance(value, list):
        return [_keep(inner, f"{place}[]", most) for inner in value if fits(f"{place}[]", inner)]
    return value

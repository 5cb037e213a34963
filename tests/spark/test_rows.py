"""Rows to messages: columns, properties and JSON, without Spark and without a broker."""

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kvitto.client import Properties
from kvitto.spark.errors import OptionError, SinkError
from kvitto.spark.jsonbody import json_bodies
from kvitto.spark.rows import Messages, layout_of, to_messages, with_ids
from kvitto.spark.sink_options import SinkOptions, read_sink_options

KINDS: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "map<string,int>": MapType(StringType(), IntegerType()),
}


def schema_of(text: str) -> StructType:
    """`name type, ...`; Spark's own parser needs a running Spark."""
    pairs = (field.split() for field in text.split(", "))
    return StructType([StructField(name, KINDS[kind]) for name, kind in pairs])


def options(**given: str) -> SinkOptions:
    return read_sink_options({"routingKey": "q", **given})


def messages(columns: dict[str, pa.Array], schema: str, **given: str) -> Messages:
    layout = layout_of(schema_of(schema), options(**given))
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return to_messages(batch, layout)


def properties(found: Messages) -> list[Properties]:
    return [Properties.decode(encoded) for encoded in found.properties.tolist()]


def test_bodies_alone_share_everything_else() -> None:
    found = messages({"body": pa.array([b"a", b"", b"ccc"])}, "body binary")
    assert found.bodies.tolist() == [b"a", b"", b"ccc"]
    assert found.borders.tolist() == [0, 1, 1, 4]
    assert (found.exchanges.tolist(), found.routing_keys.tolist()) == ([b""], [b"q"])
    assert properties(found) == [Properties(delivery_mode=2)]


def test_every_property_has_its_column() -> None:
    texts = [
        "message_id",
        "correlation_id",
        "content_type",
        "content_encoding",
        "expiration",
        "type",
        "user_id",
        "app_id",
        "reply_to",
    ]
    at = datetime.datetime(2023, 11, 14, 22, 13, 20, 500000, tzinfo=datetime.UTC)
    columns = {
        "body": pa.array(["ä", "b"]),
        "exchange": pa.array(["ex", None]),
        "routing_key": pa.array(["key", None]),
        **{name: pa.array([name, None]) for name in texts},
        "priority": pa.array([7, None], pa.int32()),
        "timestamp": pa.array([at, None], pa.timestamp("us", "UTC")),
        "headers": pa.array([[("a", "1"), ("b", None)], None], pa.map_(pa.string(), pa.string())),
    }
    schema = "body string, exchange string, routing_key string, priority int, timestamp timestamp, headers map<string,string>, "
    found = messages(columns, schema + ", ".join(f"{name} string" for name in texts), exchange="other")
    assert found.bodies.tolist() == ["ä".encode(), b"b"]
    assert (found.exchanges.tolist(), found.routing_keys.tolist()) == ([b"ex", b"other"], [b"key", b"q"])
    full: dict[str, Any] = {name: name for name in texts}
    first = Properties(**full, delivery_mode=2, priority=7, timestamp=1_700_000_000, headers={"a": "1", "b": None})
    assert properties(found) == [first, Properties(delivery_mode=2)]


def test_a_slice_of_a_batch_is_its_rows() -> None:
    """Arrow hands over windows into larger buffers."""
    arrays = {
        "body": pa.array([b"%d" % k for k in range(10)]),
        "type": pa.array([None if k % 2 else str(k) for k in range(10)]),
        "headers": pa.array([[("k", str(k))] for k in range(10)], pa.map_(pa.string(), pa.string())),
    }
    found = messages(
        {name: array.slice(3, 4) for name, array in arrays.items()},
        "body binary, type string, headers map<string,string>",
    )
    assert found.bodies.tolist() == [b"3", b"4", b"5", b"6"]
    assert [(p.type, p.headers) for p in properties(found)] == [
        (None, {"k": "3"}),
        ("4", {"k": "4"}),
        (None, {"k": "5"}),
        ("6", {"k": "6"}),
    ]


def test_rows_without_an_id_get_the_same_one_each_time() -> None:
    bodies = pa.array([b"a", b"b"])
    bare = pa.RecordBatch.from_arrays([bodies], names=["body"])
    assert with_ids(bare, "w-1-0-", 40).column("message_id").to_pylist() == ["w-1-0-40", "w-1-0-41"]
    some = pa.RecordBatch.from_arrays([bodies, pa.array([None, "mine"])], names=["body", "message_id"])
    assert with_ids(some, "w-1-0-", 40).column("message_id").to_pylist() == ["w-1-0-40", "mine"]


def test_all_other_columns_are_one_json_object() -> None:
    at = datetime.datetime(2024, 2, 3, 4, 5, 6, 789000, tzinfo=datetime.UTC)
    kinds: dict[str, tuple[Any, pa.DataType]] = {
        "i": (-5, pa.int64()),
        "b": (True, pa.bool_()),
        "f": (1.5, pa.float64()),
        "s": ('say "ä"\\\n\x01', pa.string()),
        "d": (Decimal("12.30"), pa.decimal128(10, 2)),
        "day": (at.date(), pa.date32()),
        "at": (at, pa.timestamp("us", "UTC")),
        "raw": (b"\xff", pa.binary()),
        "nan": (float("nan"), pa.float64()),
        "list": ([1, None], pa.list_(pa.int32())),
        "map": ([("k", 1.0)], pa.map_(pa.string(), pa.float64())),
        "row": (
            {"x": 1, "y": None, "at": at},
            pa.struct([("x", pa.int8()), ("y", pa.string()), ("at", pa.timestamp("us", "UTC"))]),
        ),
        'na"me': ("plain", pa.string()),
    }
    arrays = [pa.array([value, None], kind) for value, kind in kinds.values()]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(kinds))
    first, second = json_bodies(batch, list(kinds)).to_pylist()
    assert json.loads(first, parse_float=str) == {
        "i": -5,
        "b": True,
        "f": "1.5",
        "s": 'say "ä"\\\n\x01',
        "d": "12.30",
        "day": "2024-02-03",
        "at": "2024-02-03T04:05:06.789000Z",
        "raw": "/w==",
        "nan": "NaN",
        "list": [1, None],
        "map": {"k": "1.0"},
        "row": {"x": 1, "at": "2024-02-03T04:05:06.789000Z"},
        'na"me': "plain",
    }
    assert second == "{}"


def test_a_json_message_says_so_unless_the_row_says_otherwise() -> None:
    columns = {"n": pa.array([1, 2]), "content_type": pa.array([None, "text/x"])}
    found = messages(columns, "n bigint, content_type string", value="json")
    assert found.bodies.tolist() == [b'{"n":1}', b'{"n":2}']
    assert [p.content_type for p in properties(found)] == ["application/json", "text/x"]
    assert properties(messages({"n": pa.array([1, 2])}, "n bigint", value="json")) == [
        Properties(delivery_mode=2, content_type="application/json")
    ]


@pytest.mark.parametrize(
    ("schema", "given", "said"),
    [
        ("body binary, mesage_id string, x int", {}, r"mesage_id, x.*did you mean 'message_id'.*value = json"),
        ("type string", {}, "no column body"),
        ("body int", {}, r"column 'body' is int, but has to be binary or string"),
        ("body string, headers map<string,int>", {}, r"'headers' is map<string,int>"),
        ("body string, priority string", {}, "'priority' is string, but has to be int"),
        ("body string, x int", {"value": "json"}, "two bodies"),
        ("body string, body string", {}, "two columns body"),
    ],
)
def test_columns_that_cannot_be_sent_are_named(schema: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(SinkError, match=said):
        layout_of(schema_of(schema), options(**given))


def test_rows_need_a_destination() -> None:
    body = schema_of("body string")
    with pytest.raises(SinkError, match="option routingKey"):
        layout_of(body, read_sink_options({}))
    layout_of(body, read_sink_options({"exchange": "amq.fanout"}))
    layout_of(schema_of("body string, routing_key string"), read_sink_options({}))


@pytest.mark.parametrize(
    ("column", "kind", "said"),
    [
        (pa.array([b"a", None]), "body binary", "body is null in 1 of 2 rows"),
        (pa.array(["a" * 256, "b"]), "routing_key string", "256 bytes"),
        (pa.array([256, 0], pa.int32()), "priority int", "AMQP carries 0 to 255"),
        (pa.array([-1, 0], pa.int64()), "timestamp bigint", "from -1 to 0"),
    ],
)
def test_values_that_amqp_cannot_carry_are_named(column: pa.Array, kind: str, said: str) -> None:
    columns = {"body": pa.array([b"a", b"b"])} | {kind.split()[0]: column}
    schema = kind if kind.startswith("body") else f"body binary, {kind}"
    with pytest.raises(SinkError, match=said):
        messages(columns, schema)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"routing_key": "q"}, "did you mean 'routingKey'"),
        ({"queue": "q"}, "known are uri, exchange"),
        ({"path": "x"}, "has no path"),
        ({"value": "avro"}, "say json"),
        ({"mandatory": "maybe"}, "true or false"),
        ({"exchange": "x" * 256}, "longer than 255"),
        ({"writerId": "x" * 200}, "at most 120"),
        ({"uri": "http://localhost"}, "option uri"),
    ],
)
def test_wrong_options_are_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        read_sink_options(given)


def test_spark_s_own_options_are_let_through() -> None:
    assert read_sink_options({"checkpointLocation": "x", "queryName": "y"}).mandatory

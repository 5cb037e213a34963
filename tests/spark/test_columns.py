"""Arrow columns against the plain decoder, message by message."""

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from kvitto.client import Batch, Properties
from kvitto.spark.columns import arrow_schema, to_arrow
from kvitto.spark.errors import SourceError
from kvitto.spark.schema import PROPERTIES, check_schema, full_schema
from kvitto.wire.properties import FIELDS
from kvitto.wire.tables import Table
from tests.wire.test_properties import VALUES

MESSAGES = st.lists(st.fixed_dictionaries({}, optional={name: VALUES[kind] for name, kind in FIELDS}), max_size=12)


def batch_of(messages: list[tuple[Properties, bytes]]) -> Batch:
    """As a log.read would have brought them, with offsets from 0."""
    batch = Batch()
    for offset, (properties, body) in enumerate(messages):
        batch.tags.add((offset + 1).to_bytes(8, "little"))
        batch.flags.add(bytes([offset % 2]))
        fields = [(batch.consumer_tags, b"c"), (batch.exchanges, b"logs"), (batch.routing_keys, "über".encode())]
        for column, value in [*fields, (batch.properties, properties.encode()), (batch.bodies, body)]:
            column.data.add(value)
            column.ends.add(column.data.n.to_bytes(4, "little"))
        batch.count += 1
    return batch


def rows(batch: Batch, schema: StructType) -> list[dict[str, Any]]:
    columns = arrow_schema(schema)
    pieces = list(to_arrow(batch, "q", columns))
    for piece in pieces:
        piece.validate(full=True)
        assert piece.schema.equals(columns)
    return [row for piece in pieces for row in piece.to_pylist()]


def test_header_names_that_are_no_text_are_shown_as_far_as_they_are() -> None:
    """Another client may have written any bytes; Arrow takes text only."""
    properties = Properties(headers={"\udcff": 1, "t": {"a\udcff": 2}})
    (row,) = rows(batch_of([(properties, b"")]), full_schema(True))
    assert row["headers"] == [("\ufffd", "1"), ("t", '{"a\ufffd": 2}')]


def test_header_values_that_are_no_text_lose_no_byte() -> None:
    key = bytes(range(256))
    digits = base64.b64encode(key).decode()
    headers: Table = {"text": "ü", "key": key, "deep": {"key": key, "list": [b"\xff", "ü", 1]}}
    (row,) = rows(batch_of([(Properties(headers=headers), b"")]), full_schema(True))
    found = dict(row["headers"])
    assert found["text"] == "ü"
    assert json.loads(found["key"]) == {"base64": digits}
    assert json.loads(found["deep"]) == {"key": {"base64": digits}, "list": [{"base64": "/w=="}, "ü", 1]}


def test_all_columns_of_a_message() -> None:
    properties = Properties(
        content_type="text/plain",
        headers={"a": 1, "b": "ü", "c": b"raw", "d": None, "e": {"f": [1, 2]}},
        priority=7,
        correlation_id="c-1",
        message_id="m-1",
        timestamp=1_700_000_000,
        app_id="app",
    )
    first, second = rows(batch_of([(properties, b"one"), (Properties(), b"")]), full_schema(True))
    assert first == {
        "body": b"one",
        "queue": "q",
        "offset": 0,
        "timestamp": datetime.fromtimestamp(1_700_000_000, UTC),
        "redelivered": False,
        "delivery_count": 0,
        "exchange": "logs",
        "routing_key": "über",
        **dict.fromkeys(PROPERTIES),
        "content_type": "text/plain",
        "priority": 7,
        "correlation_id": "c-1",
        "message_id": "m-1",
        "app_id": "app",
        "headers": [("a", "1"), ("b", "ü"), ("c", "raw"), ("d", None), ("e", '{"f": [1, 2]}')],
    }
    assert second["body"] == b""
    assert (second["offset"], second["redelivered"], second["delivery_count"]) == (1, True, 1)
    assert second["headers"] is second["timestamp"] is second["message_id"] is None


@given(MESSAGES)
def test_properties_are_those_of_the_plain_decoder(fields: list[dict[str, Any]]) -> None:
    given = [Properties(**each) for each in fields]
    names = [*PROPERTIES, "timestamp"]
    schema = StructType([full_schema(False)[name] for name in names])
    got = rows(batch_of([(properties, b"") for properties in given]), schema)
    for row, properties in zip(got, given, strict=True):
        for name in PROPERTIES:
            value = getattr(properties, name)
            if isinstance(value, str):
                value = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            assert row[name] == value


@pytest.mark.parametrize("raw", [b"", b"\x80", b"\xff\xfc", b"\x80\x00\xff", b"\x20\x00\xff\xff\xff\xff", b"\x00\x40"])
def test_malformed_properties_stay_inside_their_batch(raw: bytes) -> None:
    """No broker lets them through; if one does, the query gets nonsense for that message and goes on."""
    batch = batch_of([(Properties(message_id="before"), b""), (Properties(), b"")])
    batch.properties.data.add(raw)
    batch.properties.ends.data[8:12] = batch.properties.data.n.to_bytes(4, "little")
    got = rows(batch, full_schema(True))
    assert got[0]["message_id"] == "before"
    assert len(got) == 2


def test_a_timestamp_that_no_calendar_has_is_null() -> None:
    got = rows(batch_of([(Properties(timestamp=2**63 + 5), b""), (Properties(timestamp=0), b"")]), full_schema(False))
    assert [row["timestamp"] for row in got] == [None, datetime(1970, 1, 1, tzinfo=UTC)]


def test_the_body_may_be_read_as_text() -> None:
    schema = StructType([StructField("body", StringType())])
    got = rows(batch_of([(Properties(), "grün".encode()), (Properties(), b"\xff!")]), schema)
    assert [row["body"] for row in got] == ["grün", "\ufffd!"]


def test_large_batches_are_handed_over_in_pieces() -> None:
    batch = batch_of([(Properties(), bytes(1 << 20))] * 20)
    schema = arrow_schema(StructType([full_schema(False)["body"]]))
    pieces = list(to_arrow(batch, "q", schema))
    assert len(pieces) >= 2
    assert sum(piece.num_rows for piece in pieces) == 20


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("mesage_id string", "did you mean 'message_id'"),
        ("body int", "is binary, not int"),
        ("headers map<string,string>", "includeHeaders"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(schema: str, said: str) -> None:
    name, kind = schema.split(" ")
    types = {"string": "string", "int": "integer"}
    field = {"name": name, "nullable": True, "metadata": {}, "type": types.get(kind)}
    if kind.startswith("map"):
        field["type"] = {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True}
    with pytest.raises(SourceError, match=said):
        check_schema(StructType.fromJson({"type": "struct", "fields": [field]}), include_headers=False)

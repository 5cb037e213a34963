"""Field tables: round trips, RabbitMQ's type letters, limits, any bytes."""

import struct
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitto.base import limits
from kvitto.base.errors import ConnectionError_
from kvitto.wire import tables
from kvitto.wire.tables import Table, Value

from .strategies import any_bytes
from .strategies import tables as any_table


def one(kind: bytes, data: bytes) -> bytes:
    """A table with the single field `k`."""
    field = b"\x01k" + kind + data
    return struct.pack(">I", len(field)) + field


@given(any_table())
def test_tables_round_trip(table: Table) -> None:
    assert tables.decode(tables.encode(table)) == table


@given(any_bytes())
def test_any_bytes_parse_or_are_the_one_error(data: bytes) -> None:
    for candidate in (data, struct.pack(">I", len(data)) + data):
        try:
            tables.decode(candidate)
        except ConnectionError_ as error:
            assert error.code == 502


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        (b"t", b"\x01", True),
        (b"b", b"\xff", -1),
        (b"B", b"\xff", 255),
        (b"s", b"\xff\xfe", -2),
        (b"U", b"\xff\xfe", -2),
        (b"u", b"\xff\xfe", 65534),
        (b"I", b"\xff\xff\xff\xff", -1),
        (b"i", b"\xff\xff\xff\xff", 2**32 - 1),
        (b"l", b"\xff" * 8, -1),
        (b"L", b"\xff" * 8, -1),
        (b"f", b"\x3f\xc0\x00\x00", 1.5),
        (b"d", b"\x3f\xf8" + b"\0" * 6, 1.5),
        (b"D", b"\x02\x00\x00\x04\xd2", Decimal("12.34")),
        (b"S", b"\0\0\0\x02hi", "hi"),
        (b"S", b"\0\0\0\x01\xff", b"\xff"),
        (b"A", b"\0\0\0\x02VV", [None, None]),
        (b"T", b"\0" * 7 + b"\x01", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        (b"F", b"\0\0\0\x03\x01aV", {"a": None}),
        (b"V", b"", None),
        (b"x", b"\0\0\0\x01\xff", b"\xff"),
    ],
)
def test_every_type_letter_of_rabbitmq_is_read(kind: bytes, data: bytes, value: Value) -> None:
    assert tables.decode(one(kind, data)) == {"k": value}


def test_integers_take_the_smaller_of_two_types() -> None:
    assert tables.encode({"k": 2**31 - 1})[6:7] == b"I"
    assert tables.encode({"k": 2**31})[6:7] == b"l"
    assert tables.encode({"k": True})[6:7] == b"t"


def test_a_decimal_with_exponent_keeps_its_value() -> None:
    assert tables.decode(tables.encode({"k": Decimal("1E+3")})) == {"k": Decimal(1000)}


@pytest.mark.parametrize("value", [2**63, object(), Decimal("NaN"), Decimal(2**31), datetime(1900, 1, 1, tzinfo=UTC)])
def test_what_amqp_cannot_express_is_a_value_error(value: Value) -> None:
    with pytest.raises(ValueError):
        tables.encode({"k": value})


def nested(depth: int) -> bytes:
    data = b""
    for _ in range(depth):
        data = one(b"F", data if data else b"\0\0\0\0")
    return data


def test_depth_is_limited() -> None:
    tables.decode(nested(limits.TABLE_DEPTH_MAX))
    with pytest.raises(ConnectionError_, match="nested deeper"):
        tables.decode(nested(limits.TABLE_DEPTH_MAX + 1))


def test_size_is_limited_before_anything_is_read() -> None:
    with pytest.raises(ConnectionError_, match="at most"):
        tables.decode(b"\xff\xff\xff\xff")


def test_a_field_may_not_reach_beyond_its_table() -> None:
    with pytest.raises(ConnectionError_):
        tables.decode(b"\0\0\0\x06\x01kI\0\0\0" + b"\x01")


@given(st.binary(max_size=255))
def test_keys_keep_any_bytes(raw: bytes) -> None:
    data = (2 + len(raw)).to_bytes(4, "big") + bytes((len(raw),)) + raw + b"V"
    assert tables.encode(tables.decode(data)) == data


@given(st.integers(0, 253402300799))
def test_times_are_those_of_datetime(seconds: int) -> None:
    found = tables.decode(one(b"T", seconds.to_bytes(8, "big")))
    assert found == {"k": datetime.fromtimestamp(seconds, UTC)} and type(found["k"]) is datetime


@pytest.mark.parametrize("seconds", [253402300800, 1 << 40, (1 << 64) - 1])
def test_times_that_datetime_does_not_know_keep_their_seconds(seconds: int) -> None:
    found = tables.decode(one(b"T", seconds.to_bytes(8, "big")))
    assert found == {"k": seconds} and type(found["k"]) is tables.Timestamp


LEADS = b"\x41\x80\x8f\x90\x9f\xa0\xbf\xc0\xc1\xc2\xdf\xe0\xe1\xed\xef\xf0\xf1\xf4\xf5\xff"


@given(st.lists(st.one_of(st.sampled_from(LEADS), st.integers(0, 255)), max_size=8), st.booleans())
def test_what_is_utf_8_is_text_and_all_else_is_bytes(values: list[int], in_text: bool) -> None:
    raw = bytes(values)
    if in_text:
        raw = "\u00e9\u20ac\U0001f600".encode() + raw
    try:
        expected: Value = raw.decode()
    except UnicodeDecodeError:
        expected = raw
    assert tables.decode(one(b"S", len(raw).to_bytes(4, "big") + raw)) == {"k": expected}


@given(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(0, 255))
def test_decimals_keep_their_digits(unscaled: int, scale: int) -> None:
    raw = bytes((scale,)) + unscaled.to_bytes(4, "big", signed=True)
    data = one(b"D", raw)
    assert tables.encode(tables.decode(data)) == data


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (Decimal("-0.05"), b"\x02\xff\xff\xff\xfb"),
        (Decimal("1E+3"), b"\x00\x00\x00\x03\xe8"),
        (Decimal("0E-255"), b"\xff\x00\x00\x00\x00"),
        (Decimal("0.0000001"), b"\x07\x00\x00\x00\x01"),
    ],
)
def test_decimals_in_any_notation(value: Decimal, raw: bytes) -> None:
    assert tables.encode({"k": value}) == one(b"D", raw)


@pytest.mark.parametrize("value", [Decimal("1E+999999"), Decimal("1E-256"), Decimal("Infinity"), Decimal("9" * 19)])
def test_decimals_that_do_not_fit(value: Decimal) -> None:
    with pytest.raises(ValueError, match="decimal field"):
        tables.encode({"k": value})


def test_a_key_may_be_of_a_type_that_is_based_on_str() -> None:
    """As `StrEnum` is: compiled code refused it with a TypeError."""

    class Key(StrEnum):
        TYPE = "x-queue-type"

    assert tables.encode({Key.TYPE: Key.TYPE}) == tables.encode({"x-queue-type": "x-queue-type"})
    assert tables.edit(tables.encode({}), {Key.TYPE: 1}) == tables.encode({"x-queue-type": 1})
    with pytest.raises(ValueError, match="a key is text, not int: 7"):
        tables.encode({7: 1})  # type: ignore[dict-item]


def test_what_no_reader_takes_is_not_written() -> None:
    """Compiled code has no limit of its own: a start would end the process."""
    deep: Value = None
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested deeper than 32"):
        tables.encode({"k": deep})
    while isinstance(deep, list):
        deep = deep[0]


@given(st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)), st.sets(st.sampled_from("abc")))
def test_an_edited_table_is_that_of_the_edited_fields(table: dict[str, int], drop: set[str]) -> None:
    left = {key: value for key, value in table.items() if key not in drop and key != "a"}
    assert tables.edit(tables.encode(dict(table)), {"a": "new"}, drop) == tables.encode({**left, "a": "new"})

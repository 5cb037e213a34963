"""The compiled properties of the client: the bytes and values of `wire.properties`, and one error for any others."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitto.base.errors import ConnectionError_
from kvitto.client.fields import read_fields, write_fields
from kvitto.wire.properties import FIELDS, Properties
from tests.wire.strategies import any_bytes, shortstrs, tables

NAMES = tuple(name for name, _ in FIELDS)
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "str": shortstrs(),
    "table": tables(),
    "octet": st.integers(0, 255),
    "longlong": st.integers(0, 2**64 - 1),
}


@given(st.fixed_dictionaries({}, optional={name: KINDS[kind] for name, kind in FIELDS}))
def test_the_bytes_are_those_of_properties_and_are_read_back(given: dict[str, Any]) -> None:
    encoded = write_fields(given, NAMES)
    assert encoded == Properties(**given).encode()
    found = read_fields(encoded, NAMES)
    assert Properties(**found) == Properties.decode(encoded) and found.keys() == given.keys()


@given(any_bytes())
def test_any_bytes_read_as_properties_does_or_are_the_one_error(data: bytes) -> None:
    try:
        expected = Properties.decode(data)
    except ConnectionError_:
        with pytest.raises(ConnectionError_) as error:
            read_fields(data, NAMES)
        assert error.value.code == 502
    else:
        found = Properties(**read_fields(data, NAMES))
        assert found == expected or "nan" in repr(expected)


@given(tables(), st.integers(0, 400))
def test_a_list_that_ends_too_early_is_an_error(headers: dict[str, Any], cut: int) -> None:
    data = write_fields({"headers": headers, "message_id": "x" * 50}, NAMES)
    with pytest.raises(ConnectionError_):
        read_fields(data[: cut % len(data)], NAMES)


@pytest.mark.parametrize(
    "wrong",
    [
        {"message_id": "x" * 256},
        {"timestamp": -1},
        {"timestamp": 1 << 64},
        {"priority": 256},
        {"priority": -1},
        {"headers": {"x" * 256: 1}},
        {"headers": {"x": object()}},
        {"headers": {"x": 1 << 64}},
    ],
)
def test_a_value_that_does_not_fit_is_a_value_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        write_fields(wrong, NAMES)


def test_rare_types_none_and_other_names() -> None:
    headers = {"d": Decimal("1.5"), "b": b"\xff", "f": 0.5, "t": (1, 2), "big": -(1 << 40)}
    given = {"headers": headers, "type": None, "body": 3}
    assert read_fields(write_fields(given, NAMES), NAMES) == {"headers": headers | {"t": [1, 2]}}


def test_depth_is_limited_in_both_directions() -> None:
    deep: Any = {}
    for _ in range(40):
        deep = {"x": deep}
    with pytest.raises(ValueError, match="nested deeper"):
        write_fields({"headers": deep}, NAMES)
    lists: Any = []
    for _ in range(40):
        lists = [lists]
    with pytest.raises(ValueError, match="nested deeper"):
        write_fields({"headers": {"x": lists}}, NAMES)
    inner = b"\0\0\0\0"
    for _ in range(40):
        inner = (len(inner) + 3).to_bytes(4, "big") + b"\x01xF" + inner
    with pytest.raises(ConnectionError_, match="nested deeper"):
        read_fields(b"\x20\0" + inner, NAMES)

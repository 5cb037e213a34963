"""Basic properties: round trips, known bytes, any bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitto.base.errors import ConnectionError_
from kvitto.wire.properties import FIELDS, Properties, priority_of

from .strategies import any_bytes, shortstrs, tables

VALUES = {
    "str": shortstrs(),
    "table": tables(),
    "octet": st.integers(0, 255),
    "longlong": st.integers(0, 2**64 - 1),
}


@given(st.fixed_dictionaries({}, optional={name: VALUES[kind] for name, kind in FIELDS}))
def test_properties_round_trip(given: dict[str, object]) -> None:
    properties = Properties(**given)  # type: ignore[arg-type]
    assert Properties.decode(properties.encode()) == properties


@given(any_bytes())
def test_any_bytes_parse_or_are_the_one_error(data: bytes) -> None:
    try:
        properties = Properties.decode(data)
    except ConnectionError_ as error:
        assert error.code == 502
    else:
        assert Properties.decode(properties.encode()) == properties or "nan" in repr(properties)


@given(st.binary(max_size=200))
def test_text_properties_keep_any_bytes(raw: bytes) -> None:
    data = b"\x04\x00" + bytes((len(raw),)) + raw
    assert Properties.decode(data).encode() == data


def test_flags_and_order_are_those_of_the_specification() -> None:
    properties = Properties(content_type="a", delivery_mode=2, timestamp=1, cluster_id="c")
    assert properties.encode() == b"\x90\x44" + b"\x01a" + b"\x02" + b"\0" * 7 + b"\x01" + b"\x01c"


def test_a_second_flag_word_is_a_syntax_error() -> None:
    with pytest.raises(ConnectionError_):
        Properties.decode(b"\x00\x01\x00\x00")


def test_a_property_that_does_not_fit_is_a_value_error() -> None:
    for properties in (Properties(message_id="x" * 256), Properties(timestamp=-1), Properties(priority=256)):
        with pytest.raises(ValueError):
            properties.encode()


@given(st.fixed_dictionaries({}, optional={name: VALUES[kind] for name, kind in FIELDS}))
def test_the_priority_is_found_without_decoding_the_rest(given: dict[str, object]) -> None:
    properties = Properties(**given)  # type: ignore[arg-type]
    assert priority_of(properties.encode()) == (properties.priority or 0)


@given(any_bytes())
def test_the_priority_of_any_bytes_is_a_number(data: bytes) -> None:
    assert 0 <= priority_of(data) <= 255

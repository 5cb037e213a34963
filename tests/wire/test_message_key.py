"""The key of deduplication that is read from encoded properties is the one that the decoded properties have."""

from __future__ import annotations

import math
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitto.base.build import compiled
from kvitto.wire.message_key import TTL_HEADER, TTL_MAX_MS, MessageKey
from kvitto.wire.properties import Properties
from kvitto.wire.tables import Value
from tests.wire.strategies import any_bytes, scalars, shortstrs, tables

HEADER = "x-deduplication-header"
texts = st.none() | shortstrs()
octets = st.none() | st.integers(0, 255)


def key(found: MessageKey, props: bytes) -> bytes | None:
    read: bytes | None = found.read(props, 0, len(props))
    return read


def alike(one: Value, other: Value) -> bool:
    """Whether two values are the same key."""
    if isinstance(one, str | bytes) and isinstance(other, str | bytes):
        return as_bytes(one) == as_bytes(other)
    return type(one) is type(other) and one == other and str(one) == str(other)


def as_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


@st.composite
def properties(draw: st.DrawFn, value: Value = None) -> Properties:
    headers = draw(st.none() | tables())
    if value is not None:
        headers = {**(headers or {}), HEADER: value}
    return Properties(
        content_type=draw(texts),
        content_encoding=draw(texts),
        headers=headers,
        delivery_mode=draw(octets),
        priority=draw(octets),
        correlation_id=draw(texts),
        expiration=draw(texts),
        message_id=draw(texts),
        timestamp=draw(st.none() | st.integers(0, 1 << 63)),
        type=draw(texts),
        user_id=draw(texts),
    )


@given(st.data(), scalars(), scalars())
def test_values_are_the_same_key_if_they_mean_the_same(data: st.DataObject, one: Value, other: Value) -> None:
    read = MessageKey(HEADER)
    keys = [key(read, data.draw(properties(value)).encode()) for value in (one, other)]
    for value, found in zip((one, other), keys, strict=True):
        assert (found is None) == (value is None or value in ("", b""))
    if None not in keys and not any(isinstance(value, float) and math.isnan(value) for value in (one, other)):
        assert (keys[0] == keys[1]) == alike(one, other)


@given(properties())
def test_the_message_id_is_found_among_all_others(found: Properties) -> None:
    expected = None if not found.message_id else found.message_id.encode()
    read = key(MessageKey(None), found.encode())
    assert (read and read[1:]) == expected
    assert key(MessageKey(HEADER), found.encode()) is None


@given(st.data(), tables(), st.booleans())
def test_the_time_of_one_message_is_read(data: st.DataObject, headers: dict[str, Any], by_header: bool) -> None:
    read = MessageKey(HEADER if by_header else None)
    ttl = data.draw(st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.booleans() | st.text(max_size=3))
    encoded = Properties(headers={**headers, TTL_HEADER: ttl, HEADER: "k"}, message_id="k").encode()
    assert key(read, encoded) is not None
    valid = isinstance(ttl, int) and not isinstance(ttl, bool) and ttl >= 0
    assert read.ttl_ms == (min(ttl, TTL_MAX_MS) if valid and ttl is not None else -1)
    key(read, b"\0\0")
    assert read.ttl_ms == -1


@given(any_bytes(), st.booleans(), st.binary(max_size=5))
def test_nothing_beyond_the_properties_is_read(data: bytes, by_header: bool, behind: bytes) -> None:
    """They may come from a damaged disk."""
    read = MessageKey("k" if by_header else None)
    found: bytes | None = read.read(data + behind, 0, len(data))
    assert found == read.read(data, 0, len(data))


@pytest.mark.skipif(not compiled(), reason="needs the compiled form: run `make build`")
def test_a_long_value_is_not_decoded() -> None:
    """Decoding a table of 128 KiB took 10 ms for each publish."""
    table: Value = {f"{i:x}": None for i in range(10_000)}
    props = Properties(headers={HEADER: table, TTL_HEADER: table}).encode()
    read = MessageKey(HEADER)
    began = process_time()
    for _ in range(20):
        found = key(read, props)
    took = process_time() - began
    assert found is not None and found[:1] == b"F" and read.ttl_ms == -1
    began = process_time()
    for _ in range(20):
        Properties.decode(props)
    assert took < (process_time() - began) / 4

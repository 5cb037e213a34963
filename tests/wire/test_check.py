"""What the check lets through is stored as it came: the decoder must be able to read it, whoever asks for it later."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvitto.base import limits
from kvitto.base.errors import ConnectionError_
from kvitto.wire import check
from kvitto.wire.properties import FIELDS, Properties, edit_headers, join, split

SCALARS = {1: b"tbB", 2: b"sUu", 4: b"Iif", 5: b"D", 8: b"LldT", 0: b"V"}
KEYS = st.sampled_from([b"", b"k", b"CC", b"BCC", b"\xff\xfe", b"\xc3", "ü".encode(), b"k" * 255])


def sized(form: str, data: bytes) -> bytes:
    return struct.pack(form, len(data)) + data


def values() -> st.SearchStrategy[bytes]:
    """Type letter and value, of every type there is."""
    scalars = [
        st.tuples(st.sampled_from(letters), st.binary(min_size=size, max_size=size)).map(lambda v: bytes([v[0]]) + v[1])
        for size, letters in SCALARS.items()
    ]
    texts = st.tuples(st.sampled_from(b"Sx"), st.binary(max_size=9)).map(lambda v: bytes([v[0]]) + sized(">I", v[1]))
    return st.recursive(
        st.one_of(*scalars, texts),
        lambda inner: (
            st.lists(inner, max_size=3).map(lambda items: b"A" + sized(">I", b"".join(items)))
            | pairs(inner).map(lambda table: b"F" + sized(">I", table))
        ),
        max_leaves=6,
    )


def pairs(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    fields = st.lists(st.tuples(KEYS, inner).map(lambda f: sized(">B", f[0]) + f[1]), max_size=4)
    return fields.map(b"".join)


RAW = {
    "str": st.binary(max_size=20).map(lambda text: sized(">B", text)),
    "table": pairs(values()).map(lambda table: sized(">I", table)),
    "octet": st.binary(min_size=1, max_size=1),
    "longlong": st.binary(min_size=8, max_size=8),
}


@st.composite
def property_lists(draw: st.DrawFn) -> bytes:
    """Flags and list, mostly well-formed."""
    given = draw(st.fixed_dictionaries({}, optional={name: RAW[kind] for name, kind in FIELDS}))
    flags = sum(1 << (15 - k) for k, (name, _) in enumerate(FIELDS) if name in given)
    data = bytearray(struct.pack(">H", flags) + b"".join(given[name] for name, _ in FIELDS if name in given))
    for at in draw(st.lists(st.integers(0, len(data) - 1), max_size=1)):
        data[at] = draw(st.integers(0, 255))
    return bytes(data)


def nested(depth: int) -> bytes:
    """Headers with that many tables inside each other."""
    value = b"V"
    for _ in range(depth):
        value = b"F" + sized(">I", b"\0" + value)
    return b"\x20\0" + sized(">I", b"\0" + value)


@given(property_lists())
@example(nested(limits.TABLE_DEPTH_MAX))
@example(nested(limits.TABLE_DEPTH_MAX + 1))
@settings(max_examples=300)
def test_what_is_let_through_can_be_decoded_and_encoded(data: bytes) -> None:
    """W8: and what is not let through, the decoder refuses."""
    try:
        properties = Properties.decode(data)
    except ConnectionError_:
        properties = None
    assert (check.check_properties(data, 0, len(data)) != check.MALFORMED) == (properties is not None)
    if properties is not None:
        again = Properties.decode(properties.encode())
        assert again == properties or "nan" in repr(properties).lower()


def with_header(data: bytes, name: str) -> bytes:
    fields = split(data)
    edit_headers(fields, {name: 7}, ("BCC",))
    return join(fields)


@given(property_lists(), st.sampled_from(["", "k", "CC", "\udcff\udcfe"]))
def test_what_is_changed_leaves_the_rest_as_it_came(data: bytes, name: str) -> None:
    """Byte for byte; the properties of a redelivered message came in 60,013 bytes and went out in 150,035."""
    if check.check_properties(data, 0, len(data)) == check.MALFORMED:
        with pytest.raises(ConnectionError_):
            with_header(data, name)
        return
    assert join(split(data)) == data
    changed = with_header(data, name)
    assert len(changed) <= len(data) + 4 + 1 + len(name) + 5
    before, after = Properties.decode(data), Properties.decode(changed)
    expected = {key: value for key, value in (before.headers or {}).items() if key not in (name, "BCC")} | {name: 7}
    assert repr(after.headers) == repr(expected)
    before.headers = None
    fields = split(changed)
    del fields["headers"]
    assert Properties.decode(join(fields)) == before


def test_the_generator_reaches_both_sides() -> None:
    for depth, expected in ((limits.TABLE_DEPTH_MAX, 0), (limits.TABLE_DEPTH_MAX + 1, check.MALFORMED)):
        assert check.check_properties(nested(depth), 0, len(nested(depth))) == expected

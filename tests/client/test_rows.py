"""Columns to send: what they become is what one publish after the other would be, and nothing outside of them is sent."""

import struct
from itertools import accumulate
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitto import Broker
from kvitto.client import Connection
from kvitto.client.codec import put_publish, put_rows
from kvitto.client.columns import Column, Field, Window, pack_fields, pack_tables
from kvitto.wire import tables
from kvitto.wire.buf import Buf
from kvitto.wire.properties import FIELDS, Properties
from kvitto.wire.tables import Value

BITS = {name: 1 << (15 - k) for k, (name, _) in enumerate(FIELDS)}
SHORT = st.binary(max_size=255)


def ends(lengths: list[int]) -> bytes:
    return struct.pack(f"<{len(lengths) + 1}I", *accumulate(lengths, initial=0))


def column(strings: list[bytes]) -> Column:
    return Column.of(ends([len(s) for s in strings]), b"".join(strings))


@given(
    st.lists(st.tuples(SHORT, SHORT, st.binary(max_size=300), st.binary(max_size=9000)), min_size=2, max_size=5),
    st.sampled_from([4096, 131072]),
    st.booleans(),
)
def test_rows_are_the_publishes_one_after_the_other(
    rows: list[tuple[bytes, bytes, bytes, bytes]], frame_max: int, one: bool
) -> None:
    """`one`: a column of one string stands for all rows."""
    if one:
        rows = [(rows[0][0], rows[0][1], rows[0][2], body) for *_, body in rows]
    a, b, c, d = [column([row[k] for row in (rows[:1] if one and k < 3 else rows)]) for k in range(4)]
    expected, out = Buf(1), Buf(1)
    for exchange, key, properties, body in rows[1:]:
        put_publish(expected, 3, exchange, key, 1, properties, body, frame_max)
    put_rows(out, 3, a, b, c, d, 1, len(rows), 1, frame_max)
    assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "borders", [b"", b"\0\0\0", ends([2, 2]), ends([4]), struct.pack("<3I", 0, 4, 3), ends([3])[4:]]
)
def test_borders_that_do_not_divide_the_data_are_refused(borders: bytes) -> None:
    with pytest.raises(ValueError, match="borders"):
        Column.of(borders, b"abc")


def test_too_few_values_and_too_long_ones_are_refused() -> None:
    one, two, long = Column.one(b"x"), column([b"a", b"b"]), Column.one(bytes(256))
    for first, last in ((two, one), (one, two)):
        with pytest.raises(ValueError, match="3 rows"):
            put_rows(Buf(1), 1, first, one, one, last, 0, 3, 0, 131072)
    with pytest.raises(ValueError, match="255 bytes"):
        put_rows(Buf(1), 1, one, long, one, one, 0, 1, 0, 131072)
    with pytest.raises(ValueError, match="frame_max"):
        put_rows(Buf(1), 1, one, one, Column.one(bytes(5000)), one, 0, 1, 0, 4096)
    with pytest.raises(ValueError, match="3 messages"):
        pack_fields(3, [Field(BITS["type"], two)])
    with pytest.raises(ValueError, match="255 fit"):
        pack_fields(1, [Field(BITS["type"], long)])


@given(
    st.lists(
        st.tuples(
            st.none() | st.text(max_size=20),
            st.none() | st.dictionaries(st.text(max_size=20), st.none() | st.text(max_size=50), max_size=4),
            st.none() | st.integers(0, 255),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_packed_properties_are_the_encoded_ones(
    rows: list[tuple[str | None, dict[str, str | None] | None, int | None]],
) -> None:
    def marks(k: int) -> bytes:
        return bytes(row[k] is not None for row in rows)

    pairs = [pair for _, headers, _ in rows for pair in (headers or {}).items()]
    packed_headers = pack_tables(
        ends([len(headers or {}) for _, headers, _ in rows]),
        column([name.encode() for name, _ in pairs]),
        column([(value or "").encode() for _, value in pairs]),
        bytes(value is not None for _, value in pairs),
    )
    fields = [
        Field(BITS["headers"], packed_headers, marks(1), False),
        Field(BITS["delivery_mode"], Column.one(b"\2"), b"", False),
        Field(BITS["priority"], column([bytes((number or 0,)) for *_, number in rows]), marks(2), False),
        Field(BITS["message_id"], column([(text or "").encode() for text, *_ in rows]), marks(0)),
    ]
    lists = pack_fields(len(rows), fields).tolist()
    expected = [
        Properties(headers=cast("dict[str, Value] | None", h), delivery_mode=2, priority=n, message_id=t)
        for t, h, n in rows
    ]
    if len(rows) > 1:  # else each column stands for all rows
        assert [Properties.decode(encoded) for encoded in lists] == expected
    assert [tables.decode(raw) for raw in packed_headers.tolist()] == [headers or {} for _, headers, _ in rows]


def test_a_window_tells_what_was_refused() -> None:
    window = Window()
    window.refused = []
    window.sent(10)
    window.settle(2, False, True)
    window.settle(7, False, False)
    window.settle(4, True, False)
    assert window.refused == [7, 1, 3, 4]
    window.settle(0, True, False)
    assert window.refused == [7, 1, 3, 4, 5, 6, 8, 9, 10]


def test_rows_arrive(kvitto_broker: Broker) -> None:
    with Connection(kvitto_broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_select()
        bodies = column([b"message %d" % k for k in range(1000)])
        properties = Column.one(Properties(type="t").encode())
        first = channel.publish_rows(bodies, Column.one(b""), Column.one(b"q"), properties, 0, 1000, mandatory=True)
        assert channel.wait_for_confirms(30)
        assert (first, channel.confirmed, channel.settled_below) == (1, 1000, 1001)
        got = channel.log_read("q", 0, 1000)
        assert got.bodies.tolist() == bodies.tolist()
        assert got.properties.tolist() == [properties[0]] * 1000

"""Records of the stream come back as they were, however they are cut; nothing else comes back."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.ha.stream.records import HEADER, PAYLOAD_BYTES_MAX, PLACES, Decoder, Encoder, Kind, Record, StreamError

U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, PLACES - 1)
RECORDS = st.builds(Record, st.sampled_from(Kind), U32, U64, st.binary(max_size=200))


def encoded(records: list[Record], nonce: int = 7, place: int = 0) -> list[bytes]:
    encoder = Encoder(nonce, place)
    return [encoder.encode(record) for record in records]


def taken(data: bytes, nonce: int = 7, place: int = 0) -> tuple[list[Record], bool]:
    """The records that a follower applies, and whether it then breaks the connection."""
    found: list[Record] = []
    try:
        for record in Decoder(nonce, place).feed(data):
            found.append(record)
    except StreamError:
        return found, True
    return found, False


@given(st.lists(RECORDS, max_size=6), U64, U64, st.data())
def test_records_come_back_however_the_bytes_are_cut(
    records: list[Record], nonce: int, place: int, data: st.DataObject
) -> None:
    whole = b"".join(encoded(records, nonce, place))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    decoder = Decoder(nonce, place)
    found: list[Record] = []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        found += decoder.feed(whole[start:end])
    assert found == records and decoder.place == place + len(records) and not decoder.waiting


@given(st.lists(RECORDS, min_size=1, max_size=4), st.data())
def test_a_flipped_bit_is_refused_and_what_came_before_it_is_not(records: list[Record], data: st.DataObject) -> None:
    parts = encoded(records)
    which = data.draw(st.integers(0, len(parts) - 1))
    bit = data.draw(st.integers(0, len(parts[which]) * 8 - 1))
    damaged = bytearray(parts[which])
    damaged[bit // 8] ^= 1 << bit % 8
    # a length that became larger has the decoder wait for more: zeros, until it has enough or refuses the length
    found, broken = taken(b"".join([*parts[:which], damaged, *parts[which + 1 :], bytes(PAYLOAD_BYTES_MAX)]))
    assert found == records[:which] and broken


@given(st.lists(RECORDS, min_size=2, max_size=5, unique=True), st.permutations(range(5)))
def test_records_in_another_order_are_refused(records: list[Record], order: list[int]) -> None:
    order = [place for place in order if place < len(records)]
    first = next((place for place, other in enumerate(order) if place != other), None)
    assume(first is not None)
    parts = encoded(records)
    assert taken(b"".join(parts[place] for place in order)) == (records[:first], True)


@given(st.lists(RECORDS, min_size=2, max_size=5), st.data())
def test_a_record_that_is_repeated_or_left_out_is_noticed(records: list[Record], data: st.DataObject) -> None:
    parts = encoded(records)
    which = data.draw(st.integers(0, len(parts) - 2))
    twice = parts[: which + 1] + parts[which:]
    without = parts[:which] + parts[which + 1 :]
    assert taken(b"".join(twice)) == (records[: which + 1], True)
    assert taken(b"".join(without)) == (records[:which], True)


@given(RECORDS, U64, U64)
def test_a_record_of_another_connection_or_place_is_refused(record: Record, nonce: int, place: int) -> None:
    part = encoded([record], nonce, place)[0]
    assert taken(part, (nonce + 1) % PLACES, place) == ([], True)
    assert taken(part, nonce, place + 1) == ([], True)
    assert taken(part, nonce, place) == ([record], False)


@given(st.binary(min_size=HEADER.size, max_size=300))
def test_other_bytes_are_refused_or_waited_for(data: bytes) -> None:
    assert taken(data)[0] == []


def test_a_length_beyond_the_limit_is_refused_before_it_has_come() -> None:
    header = HEADER.pack(Kind.WRITE, bytes(3), 1, 0, PAYLOAD_BYTES_MAX + 1, bytes(4), 0)
    with pytest.raises(StreamError, match="a record of 1048577 bytes, at place 3"):
        list(Decoder(7, 3).feed(header))


def test_nothing_is_taken_after_an_error() -> None:
    decoder = Decoder(7, 0)
    good = encoded([Record(Kind.TIME)])[0]
    with pytest.raises(StreamError):
        list(decoder.feed(bytes(HEADER.size)))
    with pytest.raises(StreamError, match="is broken"):
        list(decoder.feed(good))


def test_the_form_is_that_of_the_document() -> None:
    part = encoded([Record(Kind.WRITE, 0x01020304, 0x1122334455667788, b"abc")])[0]
    assert part[:24].hex() == "020000000403020188776655443322110300000000000000"
    assert (HEADER.size, len(part), part[32:]) == (32, 35, b"abc")

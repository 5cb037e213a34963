"""What travels is what docs/adr/0032 says, byte for byte as in the reference (tests/ha/stream), and damage is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitto.cluster import records
from kvitto.cluster.records import (
    FRAMES,
    PAYLOAD_BYTES_MAX,
    Decoder,
    Frames,
    Kind,
    StreamError,
    sync_parts,
    sync_payloads,
)
from kvitto.cluster.ring import Ring
from tests.ha.stream import records as reference
from tests.ha.stream.test_records import RECORDS, U64

FRAME_KINDS = [kind for kind in Kind if kind >= FRAMES]


def encoded(record: reference.Record, nonce: int, place: int) -> bytes:
    head = records.covered(record.kind, record.file, record.position, len(record.payload))
    return head + records.checksum(nonce + place, head, record.payload) + record.payload


def for_all(stream: Iterator[records.Record], got: list[records.Record]) -> None:
    for record in stream:
        got.append(record)


def test_the_kinds_are_those_of_the_reference() -> None:
    assert {kind.name: int(kind) for kind in Kind if kind < FRAMES} == {kind.name: int(kind) for kind in reference.Kind}


@given(st.lists(RECORDS, max_size=6), U64, U64)
def test_records_are_encoded_as_the_reference_does(found: list[reference.Record], nonce: int, place: int) -> None:
    encoder = reference.Encoder(nonce, place)
    for i, record in enumerate(found):
        assert encoded(record, nonce, place + i) == encoder.encode(record)


@given(st.lists(RECORDS, max_size=6), U64, U64, st.data())
def test_records_and_frames_come_back_however_the_bytes_are_cut(
    found: list[reference.Record], nonce: int, place: int, data: st.DataObject
) -> None:
    frames, parts, wanted = Frames(5), [], []
    for i, record in enumerate(found):
        parts.append(encoded(record, nonce, place + i))
        wanted.append(tuple(record))
        if data.draw(st.booleans()):
            kind = data.draw(st.sampled_from(FRAME_KINDS))
            parts.append(frames.encode(kind, 1, 2, b"frame"))
            wanted.append((kind, 1, 2, b"frame"))
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    decoder = Decoder(nonce, place, 5)
    got = [
        tuple(record)
        for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)
        for record in decoder.feed(whole[start:end])
    ]
    assert got == wanted and decoder.place == place + len(found)


@given(st.lists(RECORDS, min_size=1, max_size=4), st.data())
def test_a_flipped_bit_is_refused_and_what_came_before_it_is_not(
    found: list[reference.Record], data: st.DataObject
) -> None:
    frames = Frames(5)
    parts = [
        part
        for i, record in enumerate(found)
        for part in (encoded(record, 7, i), frames.encode(Kind.CHUNK, 1, i, b"abc"))
    ]
    which = data.draw(st.integers(0, len(parts) - 1))
    bit = data.draw(st.integers(0, len(parts[which]) * 8 - 1))
    damaged = bytearray(parts[which])
    damaged[bit // 8] ^= 1 << bit % 8
    got: list[records.Record] = []
    stream = Decoder(7, 0, 5).feed(b"".join([*parts[:which], damaged, *parts[which + 1 :], bytes(PAYLOAD_BYTES_MAX)]))
    with pytest.raises(StreamError):
        for_all(stream, got)
    assert len(got) == which


def test_a_frame_that_comes_twice_is_refused() -> None:
    part = Frames(5).encode(Kind.CHUNK, 1, 0, b"abc")
    with pytest.raises(StreamError, match="a checksum that is wrong here"):
        list(Decoder(7, 0, 5).feed(part + part))


@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=50), st.lists(st.text("abc/", min_size=1), max_size=20))
def test_a_sync_point_comes_back(files: list[int], directories: list[str]) -> None:
    (payload,) = sync_payloads(files, directories)
    numbers, names = sync_parts(payload)
    assert list(numbers) == files and sorted(names) == sorted(directories)


def test_a_sync_point_that_is_too_large_becomes_several() -> None:
    files, directories = list(range(300_000)), [f"queues/{i:032x}" for i in range(40_000)]
    found = [sync_parts(payload) for payload in sync_payloads(files, directories)]
    assert len(found) > 2
    assert [number for numbers, _ in found for number in numbers] == files
    assert sorted(name for _, names in found for name in names) == directories


def test_a_sync_point_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(StreamError):
        sync_parts(b"\xff\xff\xff\xff")


def test_the_ring_has_a_bound_and_counts_all_bytes() -> None:
    ring = Ring(10_000)
    for i in range(100):
        assert ring.put(Kind.WRITE, 1, i, [bytearray(b"x" * 500), b"y" * 500]) == i
    assert ring.next == 100 and ring.total == 100 * 1032 and 0 < ring.next - ring.first < 10
    head, payload, total = ring.at(99)
    assert payload == b"x" * 500 + b"y" * 500 and total == ring.total and len(head) == 24
    assert ring.total_before(ring.first) == ring.first * 1032 and ring.total_before(ring.next) == ring.total


def test_the_ring_copies_what_it_takes_and_cuts_a_large_write() -> None:
    ring, buffer = Ring(), bytearray(b"x" * (PAYLOAD_BYTES_MAX + 5))
    assert ring.put(Kind.WRITE, 7, 100, [buffer]) == 1
    buffer[:] = bytes(len(buffer))
    assert ring.at(0)[1] == b"x" * PAYLOAD_BYTES_MAX and ring.at(1)[1] == b"x" * 5
    assert ring.at(1)[0][8:16] == (100 + PAYLOAD_BYTES_MAX).to_bytes(8, "little")

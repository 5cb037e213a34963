"""Batches: what a queue adds comes back, from the tail in memory and from the bytes on disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitto.format.entry import DEAD, EXPIRES, TTL_MAX
from kvitto.store.batch import Batch, BatchHeader, verify, whole_before
from kvitto.wire.buf import Buf
from kvitto.wire.properties import priority_of
from tests.support.harness import BrokerHarness

Message = tuple[bytes, bytes, bytes, int, int]
SALT = 0x0123456789ABCDEF
messages = st.lists(
    st.tuples(
        st.binary(max_size=40),
        st.binary(max_size=60),
        st.binary(max_size=200),
        st.one_of(st.just(-1), st.integers(0, (1 << 32) - 1), st.integers(0, TTL_MAX)),
        st.sampled_from([0, DEAD]),
    ),
    min_size=1,
    max_size=20,
)


def tail(contents: list[Message]) -> Batch:
    queue = BrokerHarness().declare("q")
    for key, props, body, ttl_ms, flags in contents:
        queue.append_bytes(key, props, body, ttl_ms, flags)
    assert queue.tail.batch is not None
    return queue.tail.batch


def same(batch: Batch, contents: list[Message]) -> None:
    assert batch.count == len(contents)
    for i, (key, props, body, ttl_ms, flags) in enumerate(contents):
        assert batch.message(i) == (key, props, body, flags | (EXPIRES if ttl_ms >= 0 else 0))
        assert batch.expires_at(i) == (batch.time_ms + ttl_ms if ttl_ms >= 0 else -1)
        if ttl_ms >= 0:
            assert batch.live_run(i, 1, batch.time_ms + ttl_ms - 1) == 1
            assert batch.live_run(i, 1, batch.time_ms + ttl_ms) == 0
        assert batch.body_len(i) == len(body)
        assert batch.body_bytes(0, i + 1) == sum(len(c[2]) for c in contents[: i + 1])


@given(messages)
def test_what_was_added_comes_back(contents: list[Message]) -> None:
    """C2: in memory, and from the sealed bytes at any place of a chunk."""
    batch = tail(contents)
    same(batch, contents)
    data = b"".join(bytes(part) for part in batch.seal(77, SALT))
    assert len(data) == batch.size()
    chunk = Buf(0)
    chunk.add(b"before" + data + b"behind")
    head = BatchHeader(chunk.data, 6)
    assert (head.first, head.end, head.length, head.durable) == (batch.first, batch.first + batch.count, len(data), 77)
    assert verify(chunk.data, 6, head, SALT) and not verify(chunk.data, 6, head, SALT + 1)
    window = Batch()
    window.open(chunk, 6, head)
    same(window, contents)


@given(messages, st.data())
def test_any_changed_bit_is_noticed(contents: list[Message], data: st.DataObject) -> None:
    """D3."""
    whole = bytearray(b"".join(bytes(part) for part in tail(contents).seal(0, SALT)))
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] ^= 1 << data.draw(st.integers(0, 7))
    head = BatchHeader(whole, 0)
    assert not head.length or head.length > len(whole) or not verify(whole, 0, head, SALT)


@given(messages, st.data())
def test_a_run_of_messages_ends_at_the_first_that_has_expired(contents: list[Message], data: st.DataObject) -> None:
    batch = tail(contents)
    now = batch.time_ms + data.draw(st.integers(0, 1 << 32))
    gone = [i for i in range(batch.count) if 0 <= batch.expires_at(i) <= now]
    assert batch.live_run(0, batch.count, now) == (gone[0] if gone else batch.count)


properties = st.builds(
    lambda flags, fields: bytes((flags, 0)) + b"".join(fields),
    st.integers(0, 255),
    st.lists(st.one_of(st.binary(max_size=6), st.integers(0, 9).map(lambda n: n.to_bytes(4, "big") + bytes(n)))),
)


@given(st.lists(st.one_of(st.binary(max_size=12), properties), min_size=1, max_size=5))
def test_a_priority_is_found_without_a_copy(lists: list[bytes]) -> None:
    """Where the properties end too early there is none."""
    batch = tail([(b"key", props, b"body", -1, 0) for props in lists])
    assert [batch.priority_of(i) for i in range(len(lists))] == [priority_of(props) for props in lists]


def test_an_empty_or_cut_header_is_no_batch() -> None:
    data = b"".join(bytes(part) for part in tail([(b"k", b"\0\0", b"body", -1, 0)]).seal(0, SALT))
    assert not BatchHeader(b"", 0).length
    assert not BatchHeader(data[:63], 0).length
    assert not BatchHeader(data, 1).length


def a_batch() -> Batch:
    batch = Batch()
    batch.start(0, 0)
    return batch


@pytest.mark.parametrize("size", range(140))
def test_fields_of_any_length_are_copied_whole_and_alone(size: int) -> None:
    """Short fields are copied in moves that overlap: none may write or leave out a byte at its ends."""
    field = bytes(range(1, 1 + size))
    batch = a_batch()
    for _ in range(3):
        batch.put(field, b"\xfe" * size, field, -1, 0)
    for number in range(3):
        key, props, body, *_ = batch.message(number)
        assert (bytes(key), bytes(props), bytes(body)) == (field, b"\xfe" * size, field)


@pytest.mark.parametrize("size", range(1, 140))
def test_keys_are_the_same_only_if_every_byte_is(size: int) -> None:
    key = bytes(range(1, 1 + size))
    batch = a_batch()
    for at in range(size):
        for one in (key, key, key[:at] + b"\xff" + key[at + 1 :]):
            batch.put(one, b"", b"", -1, 0)
    assert [batch.same_key(3 * at, 3) for at in range(size)] == [2] * size


@given(st.lists(st.integers(1, 3), max_size=6), st.integers(0, 20), st.integers(0, 600))
def test_whole_before_passes_complete_batches_of_earlier_offsets_only(
    counts: list[int], offset: int, cut_off: int
) -> None:
    chunk, ends, first = Buf(0), [(0, 0)], 0
    for count in counts:
        batch = Batch()
        batch.start(first, 1)
        for i in range(count):
            batch.put(b"k", b"\0\0", bytes(i), -1, 0)
        first += count
        for part in batch.seal(0, 0):
            chunk.add(part)
        ends.append((chunk.n, first))
    n = max(chunk.n - cut_off, 0)
    assert whole_before(chunk, n, offset) == max(at for at, end in ends if (at <= n and end <= offset) or not at)


def test_whole_before_stops_where_no_batch_begins() -> None:
    chunk = Buf(0)
    chunk.add(bytes(200))
    assert whole_before(chunk, 200, 5) == 0

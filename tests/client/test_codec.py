"""The client's data plane: what is encoded is AMQP, what is received is counted or gathered, whole and byte by byte."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitto.base.errors import ConnectionError_
from kvitto.client import codec
from kvitto.client.codec import COLLECT, CONTENT, COUNT, METHOD, Scanner, Template, put_acks, put_publish, put_settle
from kvitto.client.columns import Latencies, Window
from kvitto.wire import methods as m
from kvitto.wire.buf import Buf
from kvitto.wire.methods import frame
from kvitto.wire.properties import Properties

PROPERTIES = Properties(delivery_mode=2, message_id="m").encode()


def frames(data: bytes) -> list[tuple[int, int, bytes]]:
    """(type, channel, payload) of each frame."""
    out = []
    while data:
        kind, channel, size = struct.unpack_from(">BHI", data)
        assert data[7 + size] == 0xCE
        out.append((kind, channel, data[7 : 7 + size]))
        data = data[8 + size :]
    return out


def content(body: bytes, step: int = 1000) -> bytes:
    """Header and body frames on channel 1."""
    header = struct.pack(">HHQ", 60, 0, len(body)) + PROPERTIES
    pieces = [frame(3, 1, body[i : i + step]) for i in range(0, len(body), step)]
    return frame(2, 1, header) + b"".join(pieces)


def delivery(tag: int, body: bytes, redelivered: bool = False) -> bytes:
    """All frames of one delivery on channel 1."""
    return frame(1, 1, m.BasicDeliver("ctag", tag, redelivered, "ex", f"key.{tag}").encode()) + content(body)


def scanner(mode: int = COLLECT) -> tuple[Scanner, codec.Sink]:
    scan = Scanner()
    sink = scan.open(1)
    sink.mode = mode
    return scan, sink


def feed(scan: Scanner, data: bytes, step: int) -> None:
    for i in range(0, len(data), step):
        scan.inp.add(data[i : i + step])
        scan.scan(0)


@given(st.binary(max_size=20000), st.sampled_from([4096, 4100, 131072]), st.booleans())
def test_a_publish_is_method_header_and_body_frames(body: bytes, frame_max: int, mandatory: bool) -> None:
    out = Buf(1)
    put_publish(out, 7, b"ex", b"key", int(mandatory), PROPERTIES, body, frame_max)
    method, header, *pieces = frames(out.tobytes())
    assert method == (1, 7, m.BasicPublish("ex", "key", mandatory).encode())
    assert header == (2, 7, struct.pack(">HHQ", 60, 0, len(body)) + PROPERTIES)
    assert b"".join(payload for _, _, payload in pieces) == body
    assert all(kind == 3 and channel == 7 and 0 < len(payload) <= frame_max - 8 for kind, channel, payload in pieces)


def test_a_template_is_the_publish_repeated_with_its_time_stamp() -> None:
    template = Template(1, "", "q", b"\0\0", b"0123456789abcdef")
    out = Buf(1)
    template.fill(out, 3, 0)
    one = out.tobytes()[: template.size]
    assert out.tobytes() == one * 3
    out.clear()
    template.fill(out, 2, 77)
    assert out.tobytes() == one.replace(b"01234567", (77).to_bytes(8, "big")) * 2


@pytest.mark.parametrize(
    ("method", "flags", "expected"),
    [(80, 1, m.BasicAck(9, True)), (90, 1, m.BasicReject(9, True)), (120, 3, m.BasicNack(9, True, True))],
)
def test_settlements_are_encoded(method: int, flags: int, expected: m.Method) -> None:
    out = Buf(1)
    put_settle(out, 3, method, 9, flags)
    assert out.tobytes() == frame(1, 3, expected.encode())


def test_acks_are_one_each_or_one_for_every_few() -> None:
    out = Buf(1)
    put_acks(out, 1, 4, 6, 1)
    assert [m.decode(payload) for _, _, payload in frames(out.tobytes())] == [m.BasicAck(tag) for tag in (4, 5, 6)]
    out.clear()
    put_acks(out, 1, 4, 9, 3)
    assert [m.decode(payload) for _, _, payload in frames(out.tobytes())] == [m.BasicAck(6, True), m.BasicAck(9, True)]


@given(st.lists(st.binary(max_size=3000), max_size=8), st.integers(1, 5000))
def test_deliveries_are_gathered_however_they_are_cut(bodies: list[bytes], step: int) -> None:
    scan, sink = scanner()
    feed(scan, b"".join(delivery(k + 1, body, bool(k % 2)) for k, body in enumerate(bodies)), step)
    batch = sink.batch
    assert (len(batch), sink.count, sink.body_bytes) == (len(bodies), len(bodies), sum(map(len, bodies)))
    assert batch.delivery_tags() == list(range(1, len(bodies) + 1))
    assert batch.bodies.tolist() == bodies
    assert [d.routing_key for d in batch] == [f"key.{k + 1}" for k in range(len(bodies))]
    assert [d.redelivered for d in batch] == [bool(k % 2) for k in range(len(bodies))]
    assert all(d.properties.message_id == "m" and d.exchange == "ex" and d.consumer_tag == "ctag" for d in batch)


@given(st.lists(st.binary(max_size=3000), max_size=8), st.integers(1, 5000))
def test_deliveries_are_counted_however_they_are_cut(bodies: list[bytes], step: int) -> None:
    scan, sink = scanner(COUNT)
    feed(scan, b"".join(delivery(k + 1, body) for k, body in enumerate(bodies)), step)
    assert (sink.count, sink.body_bytes, sink.last_tag) == (len(bodies), sum(map(len, bodies)), len(bodies))
    assert len(sink.batch) == 0


def test_latency_is_read_from_the_first_eight_bytes() -> None:
    scan, sink = scanner(COUNT)
    sink.latencies = Latencies()
    scan.inp.add(delivery(1, (1000).to_bytes(8, "big") + bytes(2000)))
    scan.scan(5000)
    assert (sink.latencies.total, sink.latencies.largest) == (1, 4000)


@pytest.mark.parametrize("mode", [COUNT, COLLECT])
def test_rare_things_become_events_in_the_order_of_the_wire(mode: int) -> None:
    scan, _ = scanner(mode)
    returned = m.BasicReturn(312, "NO_ROUTE", "", "key")
    got = m.BasicGetOk(1, False, "", "q", 0)
    data = frame(1, 1, returned.encode()) + content(b"body" * 600)
    data += frame(1, 1, m.TxCommitOk().encode()) + frame(1, 1, got.encode()) + content(b"")
    data += frame(8, 0, b"") + frame(1, 0, m.ConnectionUnblocked().encode())
    feed(scan, data, 7)
    assert scan.events == [
        (1, CONTENT, returned.encode(), PROPERTIES, b"body" * 600),
        (1, METHOD, m.TxCommitOk().encode()),
        (1, CONTENT, got.encode(), PROPERTIES, b""),
        (0, METHOD, m.ConnectionUnblocked().encode()),
    ]


def test_confirms_reach_the_window() -> None:
    scan, sink = scanner()
    sink.window = Window()
    sink.record_confirms = True
    sink.window.sent(5)
    acks = (m.BasicAck(2), m.BasicNack(1), m.BasicAck(4, True))
    scan.inp.add(b"".join(frame(1, 1, ack.encode()) for ack in acks))
    scan.scan(0)
    assert (sink.window.acked, sink.window.nacked, sink.window.unconfirmed()) == (3, 1, [5])
    assert [event[2:] for event in scan.events] == [(2, False, True), (1, False, False), (4, True, True)]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x01\x00\x01\x00\x00\x00\x01\x00\x00", 501),
        (b"\x01\x00\x01\xff\xff\xff\xff\x00", 501),
        (b"AMQP\x00\x00\x09\x01", 501),
        (frame(3, 1, b"x"), 505),
        (frame(2, 1, bytes(14)), 505),
        (frame(1, 1, m.BasicDeliver("c", 1).encode()) * 2, 505),
        (frame(1, 1, b"\0\x3c\0\x3c\xff"), 502),
        (frame(1, 1, m.BasicDeliver("c", 1).encode()) + content(b"1")[:-9] + frame(3, 1, b"12"), 505),
    ],
)
def test_what_is_not_amqp_is_the_one_error(data: bytes, code: int) -> None:
    scan, _ = scanner()
    scan.inp.add(data)
    with pytest.raises(ConnectionError_) as caught:
        scan.scan(0)
    assert caught.value.code == code


@given(
    st.lists(st.sampled_from([1, 2, 3, 8]).flatmap(lambda kind: st.tuples(st.just(kind), st.binary(max_size=40)))),
    st.sampled_from([COUNT, COLLECT]),
)
def test_any_frames_are_taken_or_the_one_error(parts: list[tuple[int, bytes]], mode: int) -> None:
    scan, _ = scanner(mode)
    heads = {1: b"\0\x3c\0\x3c", 2: b"\0\x3c\0\0\0\0\0\0", 3: b"", 8: b""}
    scan.inp.add(b"".join(frame(kind, 1, heads[kind] + payload) for kind, payload in parts))
    try:
        scan.scan(0)
    except ConnectionError_ as error:
        assert error.code in (501, 502, 505)

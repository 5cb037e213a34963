"""How large a frame may be, and what is said of one that cannot be read."""

import pytest

from kvitto.wire import methods as m
from kvitto.wire.methods import frame
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD
from tests.protocol.raw import NO_PROPERTIES, Raw

FRAME_MAX = 131072


def publish_in(raw: Raw, queue: str, *parts: bytes) -> None:
    """A message whose body comes in exactly these frames."""
    size = sum(map(len, parts))
    header = b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + NO_PROPERTIES
    frames = [frame(FRAME_METHOD, 1, m.BasicPublish("", queue).encode()), frame(FRAME_HEADER, 1, header)]
    raw.send(b"".join(frames + [frame(FRAME_BODY, 1, part) for part in parts]))


@pytest.mark.parametrize("rest", [0, 1, 5000])
def test_a_payload_may_be_as_large_as_frame_max(raw: Raw, name: str, rest: int) -> None:
    """amqpstorm and rabbitpy cut bodies so: they do not count the 8 bytes around the payload."""
    raw.declare(name)
    parts = [b"a" * FRAME_MAX, b"b" * rest] if rest else [b"a" * FRAME_MAX]
    publish_in(raw, name, *parts)
    found = raw.get(name, no_ack=True)
    assert found is not None and found.body == b"".join(parts)


def test_a_payload_above_frame_max_is_a_frame_error(raw: Raw, name: str) -> None:
    raw.declare(name, exclusive=True)
    publish_in(raw, name, b"a" * (FRAME_MAX + 1))
    raw.connection_error(501)


UNDECODABLE = {
    "arguments that end too early": b"\0\x3c\0\x0a\0\0",
    "a name longer than the method": b"\0\x32\0\x0a\0\0\x05ab",
    "a table with an unknown type": b"\0\x32\0\x0a\0\0\x01a\0\0\0\0\x09\x01kZ\0\0",
    "bytes behind the arguments": m.QueueDeclare("undecodable").encode() + b"xx",
    "a name that is not UTF-8": b"\0\x32\0\x0a\0\0\x01\xff\0\0\0\0\0",
    "an ack that ends too early": b"\0\x3c\0\x50\0\0",
    "an ack with bytes behind it": b"\0\x3c\0\x50" + bytes(9) + b"zz",
    "a publish that ends too early": b"\0\x3c\0\x28\0\0\x05ab",
    "a publish with bytes behind it": m.BasicPublish("", "q").encode() + b"\0",
    "no method at all": b"",
    "half a method id": b"\0\x32\0",
}
PYTHONS_WORDS = ("unpack", "buffer", "codec", "index out of range", "position", "0x")


@pytest.mark.parametrize("payload", UNDECODABLE.values(), ids=UNDECODABLE)
def test_an_undecodable_method_is_a_frame_error(raw: Raw, payload: bytes) -> None:
    raw.send(frame(FRAME_METHOD, 1, payload))
    close = raw.connection_error(501)
    assert not any(word in close.reply_text for word in PYTHONS_WORDS)

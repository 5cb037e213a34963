"""What is on its way to one peer: frames are encoded straight into `buf`, which the server empties once per turn.

`paused`: the socket takes no more; `full`: something has to wait because `buf` held LIMIT bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvitto.base import limits
from kvitto.protocol.crowd import Crowd
from kvitto.wire import bits
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.protocol.delivery import ChannelConsumer
    from kvitto.protocol.hub import Hub

LIMIT = 512 * 1024
"""Bytes waiting in `buf` above which nothing more is delivered to this peer in this turn."""


class Output:
    def __init__(self, hub: Hub, owner: object) -> None:
        self.hub = hub
        self.owner = owner
        self.buf = Buf(0)
        self.paused = False
        self.full = False
        self.crowd: Crowd | None = None
        self.dirty = False
        self.limit_frames(limits.FRAME_MAX)

    def limit_frames(self, frame_max: int) -> None:
        """What was negotiated; a content header is one frame, so it limits properties too."""
        self.frame_max = frame_max
        self.properties_max = frame_max - limits.HEADER_BYTES

    def mark(self) -> None:
        """Have the end of this turn hand `buf` to the socket."""
        self.dirty = True
        self.hub.outputs.append(self)

    def wait_for_room(self, c: ChannelConsumer) -> None:
        """A consumer could have more if there was room in `buf`."""
        if self.crowd is None:
            self.crowd = Crowd(self.hub.broker, self.has_room)
        self.crowd.join(c)
        self.full = True

    def has_room(self) -> bool:
        return not self.paused and self.buf.n < LIMIT

    def backlog(self) -> int:
        """Bytes that wait for a socket that takes no more."""
        return self.buf.n if self.paused else 0

    def put_method(self, channel: int, payload: bytes) -> None:
        """One method frame."""
        n = len(payload)
        buf = self.buf
        buf.reserve(n + 8)
        o = buf.n
        buf.data[o] = 1
        buf.data[o + 1 : o + 3] = channel.to_bytes(2, "big")
        buf.data[o + 3 : o + 7] = n.to_bytes(4, "big")
        buf.data[o + 7 : o + 7 + n] = payload
        buf.data[o + 7 + n] = 0xCE
        buf.n = o + n + 8
        if not self.dirty:
            self.mark()

    def put_delivery(self, channel, tag_p, tag_len, delivery_tag, redelivered, key_p, key, key_len):  # type: ignore[no-untyped-def]
        """The basic.deliver frame; tag is the consumer's tag and key exchange and routing key, as short strings."""
        size = 13 + tag_len + key_len
        buf = self.buf
        if buf.n + size + 8 > buf.cap:
            buf.grow(buf.n + size + 8)
        q = buf.p
        o = buf.n
        q[o] = 1
        bits.put16(q, o + 1, channel)
        bits.put32(q, o + 3, size)
        bits.put32(q, o + 7, 0x003C003C)
        bits.copy(q, o + 11, tag_p, 0, tag_len)
        o += 11 + tag_len
        bits.put64(q, o, delivery_tag)
        q[o + 8] = redelivered
        bits.copy(q, o + 9, key_p, key, key_len)
        q[o + 9 + key_len] = 0xCE
        buf.n += size + 8
        if not self.dirty:
            self.mark()

    def put_content(self, channel, props_p, props, props_len, body_p, body, body_len):  # type: ignore[no-untyped-def]
        """Header frame and body frames of one message."""
        buf = self.buf
        most = self.frame_max - 8
        need = buf.n + 28 + props_len + body_len
        if body_len > most:
            need += 8 * (body_len // most)
        if need > buf.cap:
            buf.grow(need)
        q = buf.p
        o = buf.n
        q[o] = 2
        bits.put16(q, o + 1, channel)
        bits.put32(q, o + 3, 12 + props_len)
        bits.put32(q, o + 7, 0x003C0000)
        bits.put64(q, o + 11, body_len)
        bits.copy(q, o + 19, props_p, props, props_len)
        o += 19 + props_len
        q[o] = 0xCE
        o += 1
        at = 0
        while at < body_len:
            part = body_len - at
            if part > most:
                part = most
            q[o] = 3
            bits.put16(q, o + 1, channel)
            bits.put32(q, o + 3, part)
            bits.copy(q, o + 7, body_p, body + at, part)
            q[o + 7 + part] = 0xCE
            o += part + 8
            at += part
        buf.n = o
        if not self.dirty:
            self.mark()

    def put_content_bytes(self, channel: int, props: bytes, body: bytes) -> None:
        """`put_content` for those who hold bytes objects."""
        self.put_content(channel, props, 0, len(props), body, 0, len(body))

"""The output to one peer: frames are encoded straight into `buf`, which the server empties once per turn.

`paused`: the socket takes no more; `full`: something has to wait because `buf` held LIMIT bytes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kvitto.base import limits
from kvitto.protocol.crowd import Crowd
from kvitto.protocol.large import LargeBody, Streamed
from kvitto.wire import bits
from kvitto.wire.buf import Buf
from kvitto.wire.spec import FRAME_END, FRAME_HEADER

if TYPE_CHECKING:
    from kvitto.protocol.connection import Connection
    from kvitto.protocol.delivery import ChannelConsumer
    from kvitto.protocol.hub import Hub

LIMIT = 512 * 1024
"""Above this number of bytes in `buf`, nothing more is delivered to the peer in this turn."""


class Output:
    def __init__(self, hub: Hub, owner: Connection) -> None:
        self.hub = hub
        self.owner: Connection | None = owner
        self.buf = Buf(0)
        self.paused = False
        self.full = False
        self.crowd: Crowd | None = None
        self.dirty = False
        self.parts: deque[Buf | Streamed] = deque()
        """Frames and large bodies that are sent before `buf`."""
        self.streaming = False
        """Whether there are such parts. Nothing more is delivered to this peer until they have been sent."""
        self.limit_frames(limits.FRAME_MAX)

    def limit_frames(self, frame_max: int) -> None:
        """Set the negotiated frame size. It limits properties too, because a content header is one frame."""
        self.frame_max = frame_max
        self.properties_max = frame_max - limits.HEADER_BYTES

    def mark_dirty(self) -> None:
        """Have the end of this turn hand `buf` to the socket."""
        self.dirty = True
        self.hub.outputs.append(self)

    def wait_for_room(self, c: ChannelConsumer) -> None:
        """Whether a consumer waits for room in `buf`."""
        if self.crowd is None:
            self.crowd = Crowd(self.hub.broker, self.has_room)
        self.crowd.join(c)
        self.full = True

    def has_room(self) -> bool:
        """Return whether more deliveries fit into `buf`. If not, `full` is set, and the next flush has the waiting consumers served."""
        if self.paused or self.streaming or self.buf.n >= LIMIT:
            self.full = True
            return False
        return True

    def backlog(self) -> int:
        """Return how many bytes in memory wait for a socket that takes no more."""
        if not self.paused:
            return 0
        return self.buf.n + sum(part.memory if isinstance(part, Streamed) else part.n for part in self.parts)

    def put_method(self, channel: int, payload: bytes) -> None:
        """Encode one method frame."""
        n = len(payload)
        buf = self.buf
        if buf.n + n + 8 > buf.cap:
            buf.grow(buf.n + n + 8)
        q = buf.p
        o = buf.n
        q[o] = 1
        bits.put16(q, o + 1, channel)
        bits.put32(q, o + 3, n)
        bits.copy(q, o + 7, payload, 0, n)
        q[o + 7 + n] = 0xCE
        buf.n = o + n + 8
        if not self.dirty:
            self.mark_dirty()

    def put_ack(self, channel: int, tag: int, multiple: bool) -> None:
        """Encode the basic.ack frame of a confirm."""
        buf = self.buf
        if buf.n + 21 > buf.cap:
            buf.grow(buf.n + 21)
        q = buf.p
        o = buf.n
        q[o] = 1
        bits.put16(q, o + 1, channel)
        bits.put32(q, o + 3, 13)
        bits.put32(q, o + 7, 0x003C0050)
        bits.put64(q, o + 11, tag)
        q[o + 19] = multiple
        q[o + 20] = 0xCE
        buf.n = o + 21
        if not self.dirty:
            self.mark_dirty()

    def put_delivery(self, channel, tag_p, tag_len, delivery_tag, redelivered, key_p, key, key_len):  # type: ignore[no-untyped-def]
        """Encode a basic.deliver frame. `tag` is the consumer's tag and key exchange and routing key, as short strings."""
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
            self.mark_dirty()

    def put_content(self, channel, props_p, props, props_len, body_p, body, body_len):  # type: ignore[no-untyped-def]
        """Encode the header frame and the body frames of one message."""
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
            self.mark_dirty()

    def put_content_bytes(self, channel: int, props: bytes, body: bytes | Buf) -> None:
        """`put_content` for callers that have bytes objects, or a large body in a buffer."""
        if isinstance(body, Buf):
            self.put_large(channel, props, Streamed(channel, body.view()))
            return
        whole = body
        self.put_content(channel, props, 0, len(props), whole, 0, len(whole))

    # -- large bodies ----------------------------------------------------------------------------------------

    def put_large(self, channel: int, props: bytes, body: Streamed) -> None:
        """Do what `put_content` does for a body that is sent in pieces. Later frames wait until all of it has been sent."""
        head = bytes([FRAME_HEADER]) + channel.to_bytes(2, "big") + (12 + len(props)).to_bytes(4, "big")
        if not self.dirty:
            self.mark_dirty()
        fresh = Buf(0)
        self.buf.add(head + b"\x00\x3c\x00\x00" + body.size.to_bytes(8, "big") + props + bytes([FRAME_END]))
        self.parts += (self.buf, body)  # from here on nothing can fail: a consumer's `undo` knows of one buffer
        self.buf = fresh
        self.streaming = True

    def forget(self) -> None:
        """Drop all references to the connection when its socket is gone, so that its memory is freed at once."""
        self.paused = True
        self.abandon_bodies()
        self.owner = self.crowd = None

    def find_bodies(self) -> None:
        """Free memory at the end of a turn: the messages that it has delivered are in the files now."""
        for part in self.parts:
            if isinstance(part, LargeBody):
                part.find()

    def next_piece(self) -> memoryview | None:
        """Return the data to be sent next, or None if `buf` is next."""
        while self.parts:
            part = self.parts[0]
            if isinstance(part, Streamed) and not part.is_out:
                return part.encode(self.frame_max)
            self.parts.popleft()
            if isinstance(part, Streamed):
                part.end()
                self.hub.driver.schedule()
            elif part.n:
                return part.view()
        self.streaming = False
        return None

    def abandon_bodies(self) -> None:
        """Release the large bodies that have not been sent, because the connection ends."""
        parts, self.parts = [*self.parts, self.buf], deque()
        if not self.streaming:
            return
        self.streaming = False
        self.buf = Buf(0)
        for part in parts:
            if isinstance(part, Streamed):
                part.end()
            else:
                self.buf.add(part.view())

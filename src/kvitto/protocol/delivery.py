"""Consumers of a channel, which encode a queue's messages as frames. A queue asks for their `credit` and then calls `deliver`.

`ChannelConsumer` serves basic.consume, `StreamConsumer` the same on a stream, `OffsetConsumer` a consumer that wants to know the offsets of
a queue, `GetConsumer` basic.get, and `RangeConsumer` Kvitto's log.read. The loops of `deliver` are compiled, and copy each message from its
batch into the output buffer without a Python object.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker import walls
from kvitto.broker.queues.consumer import Consumer
from kvitto.format import entry
from kvitto.protocol.channel import Channel
from kvitto.protocol.large import LARGE, LargeBody
from kvitto.protocol.output import LIMIT, Output
from kvitto.store.batch import Body
from kvitto.wire import bits, tables
from kvitto.wire.buf import Buf
from kvitto.wire.methods import BasicCancel, BasicGetOk, LogRead
from kvitto.wire.properties import edit_headers, join, split

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue
    from kvitto.broker.queues.work_queue import WorkQueue
    from kvitto.store.batch import Batch

log = logging.getLogger("kvitto.amqp")

OFFSET_KEY = b"\x0fx-stream-offset"
OFFSET_HEADER = 25
"""Bytes of the header with a message's offset: key, type and value."""

FULL_MS = 100
"""On a full disk a consumer that waits for durable messages looks so often."""

_KEY = OFFSET_KEY
_KEY_LEN = len(OFFSET_KEY)
_HEADER = OFFSET_HEADER
_LIMIT = LIMIT  # C variables when compiled
_LARGE = LARGE
_PLENTY = 1 << 30


class ChannelConsumer(Consumer):
    def __init__(
        self,
        channel: Channel,
        queue: Queue,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        arguments: dict[str, Any],
    ) -> None:
        super().__init__(queue, tag, no_ack, exclusive, priority, arguments)
        self.channel = channel
        self.output = channel.output
        self.prefetch = channel.prefetch
        self.slot = 0 if no_ack else channel.slot_of(self)
        self.tag_bytes = Buf(256)
        self.tag_bytes.add(tables.encode_shortstr(tag))
        self.tag_before = 0
        """The next delivery tag before the delivery that is being encoded, and the output's length: what `undo` goes back to."""
        self.bytes_before = 0

    def undo(self) -> None:
        if self.tag_before:
            self.channel.forget_since(self.tag_before)
            self.output.buf.n = self.bytes_before
            self.tag_before = 0

    def contain(self, error: Exception) -> None:
        self.channel.contain(error)

    def credit(self):  # type: ignore[no-untyped-def]
        out = self.output
        c = self.channel
        if not self.active or not c.flow or c.closing:
            return 0
        left = _PLENTY
        if not self.no_ack:
            if self.prefetch:
                left = self.prefetch - self.unacked
                if left <= 0:
                    return 0
            room = c.room()
            if room < left:
                left = room
            crowd = c.crowd
            if left <= 0 or (crowd is not None and self.comes_later(crowd)):
                c.wait_for_room(self)
                return 0
        crowd = out.crowd
        if out.paused or out.streaming or out.buf.n >= _LIMIT or (crowd is not None and self.comes_later(crowd)):
            out.wait_for_room(self)
            return 0
        return left

    def comes_later(self, crowd):  # type: ignore[no-untyped-def]
        """Whether another one of those who wait for the same room is served before."""
        if crowd.serving is not None:
            return crowd.serving is not self
        return crowd.first is not None and crowd.first is not self

    def deliver(self, batch, i, n, redelivered):  # type: ignore[no-untyped-def]
        out = self.output
        c = self.channel
        self.tag_before = c.next_tag
        self.bytes_before = out.buf.n
        k = 0
        while k < n:
            message = entry.read(batch.index.p, batch.index_at + entry.SIZE * (i + k))
            m = batch.meta_at + message.meta
            b = batch.body_at + message.body
            key_len = message.key_len
            props_len = message.props_len
            body_len = message.body_len
            if props_len > out.properties_max or (body_len > _LARGE and k):
                break
            if self.no_ack:
                tag = c.next_tag
                c.next_tag = tag + 1
            else:
                tag = c.remember(batch.first + i + k, body_len, self.slot)
            out.put_delivery(c.number, self.tag_bytes.p, self.tag_bytes.n, tag, redelivered, batch.meta.p, m, key_len)
            if body_len > _LARGE:
                k = 1
                self.lent = self.no_ack
                whole = batch.meta.tobytes(m + key_len, m + key_len + props_len)
                put_large(out, c.number, self.queue, batch.first + i, whole, batch, b, body_len, self.lent)
                break
            out.put_content(c.number, batch.meta.p, m + key_len, props_len, batch.body.p, b, body_len)
            k += 1
            if out.buf.n >= _LIMIT:
                break
        self.delivered += k
        if redelivered:
            c.redelivered += k
        if k and not self.no_ack:
            c.timed.begin(c.next_tag - 1)
        self.tag_before = 0  # last: whatever was raised before is undone
        return k

    def deliver_again(self, key, props, body, offset):  # type: ignore[no-untyped-def]
        out = self.output
        c = self.channel
        self.tag_before = c.next_tag
        self.bytes_before = out.buf.n
        if self.no_ack:
            tag = c.next_tag
            c.next_tag = tag + 1
        else:
            tag = c.remember(offset, len(body), self.slot)
        out.put_delivery(c.number, self.tag_bytes.p, self.tag_bytes.n, tag, 1, key, 0, len(key))
        if len(body) > _LARGE:
            self.lent = self.no_ack
            out.put_large(c.number, props, LargeBody(c.number, self.queue, offset, body, self.lent))
        else:
            out.put_content(c.number, props, 0, len(props), body, 0, len(body))
        self.delivered += 1
        c.redelivered += 1
        self.tag_before = 0

    def waits_no_more(self) -> None:
        for crowd in (self.channel.crowd, self.output.crowd):
            if crowd is not None:
                crowd.leave(self)

    def takes(self, props_len: int) -> bool:
        return bool(props_len <= self.output.properties_max)

    def message_does_not_fit(self) -> None:
        """Cancel the consumer. A frame larger than the negotiated maximum would end this connection, and the next one, too."""
        text = (
            "%s: consumer %r of queue %r is cancelled: the next message's properties do not fit into frames of %d bytes"
        )
        log.warning(text, self.channel.connection.peer, self.tag, self.queue.name, self.output.frame_max)
        self.tag_before = 0  # nothing of this message was written, and the deliveries before it stand
        self.queue_gone()

    def settings_changed(self) -> None:
        timeout_ms = self.queue.consumer_timeout_ms
        if not self.no_ack and self.timeout_ms < 0 < timeout_ms:
            self.channel.connection.hub.timeouts.watch_again(self.channel, timeout_ms)

    def queue_gone(self):  # type: ignore[no-untyped-def]
        """Send basic.cancel, if the client supports it (A14)."""
        self.active = False
        self.channel.forget_consumer(self.tag)
        self.waits_no_more()
        if self.slot and not self.unacked:
            self.channel.free_slot(self.slot)
        if self.channel.connection.can_cancel and not self.channel.closing:
            self.output.put_method(self.channel.number, BasicCancel(self.tag, True).encode())


class StreamConsumer(ChannelConsumer):
    """Delivers from a stream: each message has its offset among the headers."""

    def __init__(
        self,
        channel: Channel,
        queue: Queue,
        tag: str,
        arguments: dict[str, Any],
        exclusive: bool = False,
        priority: int = 0,
    ) -> None:
        super().__init__(channel, queue, tag, False, exclusive, priority, arguments)
        self.props = Buf(256)

    def deliver(self, batch, i, n, redelivered):  # type: ignore[no-untyped-def]
        out = self.output
        c = self.channel
        props = self.props
        self.tag_before = c.next_tag
        self.bytes_before = out.buf.n
        k = 0
        while k < n:
            message = entry.read(batch.index.p, batch.index_at + entry.SIZE * (i + k))
            m = batch.meta_at + message.meta
            b = batch.body_at + message.body
            key_len = message.key_len
            props_len = message.props_len
            body_len = message.body_len
            offset = batch.first + i + k
            if not self.with_offset(batch.meta.p, m + key_len, props_len, offset, True):
                self.edited(batch.meta.tobytes(m + key_len, m + key_len + props_len), offset)
            if props.n > out.properties_max or (body_len > _LARGE and k):
                break
            tag = c.remember(offset, body_len, self.slot)
            out.put_delivery(c.number, self.tag_bytes.p, self.tag_bytes.n, tag, redelivered, batch.meta.p, m, key_len)
            if body_len > _LARGE:
                k = 1
                put_large(out, c.number, self.queue, offset, props.tobytes(0, props.n), batch, b, body_len)
                break
            out.put_content(c.number, props.p, 0, props.n, batch.body.p, b, body_len)
            k += 1
            if out.buf.n >= _LIMIT:
                break
        self.delivered += k
        if redelivered:
            c.redelivered += k
        self.tag_before = 0
        return k

    def with_offset(self, p, at, n, offset, look):  # type: ignore[no-untyped-def]
        """Put the properties in p[at:at+n] into `props`, with the header. `look`: False if such a header may be there already."""
        flags = bits.be16(p, at)
        end = at + n
        i = at + 2
        if flags & 0x8000:
            i += 1 + p[i]
        if flags & 0x4000:
            i += 1 + p[i]
        size = 0
        start = i
        if flags & 0x2000:
            size = bits.be32(p, i)
            start = i + 4
            k = start
            while look and k + _KEY_LEN <= start + size:
                if p[k] == 15 and bits.same(p, k, _KEY, 0, _KEY_LEN):
                    return False
                k += 1
        props = self.props
        props.reserve(n + 4 + _HEADER)
        q = props.p
        bits.copy(q, 0, p, at, i - at)
        bits.put16(q, 0, flags | 0x2000)
        o = i - at
        bits.put32(q, o, size + _HEADER)
        bits.copy(q, o + 4, p, start, size)
        o += 4 + size
        bits.copy(q, o, _KEY, 0, _KEY_LEN)
        q[o + _KEY_LEN] = 108  # l
        bits.put64(q, o + _KEY_LEN + 1, offset)
        o += _HEADER
        bits.copy(q, o, p, start + size, end - start - size)
        props.n = o + end - start - size
        return True

    def edited(self, props: bytes, offset: int) -> None:
        """Set the header in a message that already has one, because it was read from another stream."""
        fields = split(props)
        edit_headers(fields, {}, ("x-stream-offset",))
        props = join(fields)
        self.with_offset(props, 0, len(props), offset, False)


class OffsetConsumer(StreamConsumer):
    """Delivers from a work queue with offsets. A message waits until it is durable, since after a crash its offset may be reused."""

    def __init__(
        self, channel: Channel, queue: WorkQueue, tag: str, exclusive: bool, priority: int, arguments: dict[str, Any]
    ) -> None:
        super().__init__(channel, queue, tag, arguments, exclusive, priority)
        self.backlog = queue.backlog
        self.awaiting = False

    def credit(self):  # type: ignore[no-untyped-def]
        left = ChannelConsumer.credit(self)
        queue = self.queue
        backlog = self.backlog
        if left <= 0 or not backlog.any_ready():
            return left
        durable = queue.log.announced_end
        at = backlog.cursor
        if backlog.ranked:  # any of them may be the next one
            at = queue.next - 1
        elif backlog.requeued.count:
            at = backlog.requeued.first()
        if at >= durable:
            self.wait()
            return 0
        return min(left, durable - at)

    def wait(self) -> None:
        """Look again after the next sync; on a full disk, where nothing is written, a little later."""
        if self.awaiting:
            return
        self.awaiting = True
        broker = self.queue.broker
        if broker.full:
            broker.timers.after(FULL_MS, self.look)
        else:
            broker.store.commits.when_announced(walls.guarded(self, self.look))

    def look(self) -> None:
        self.awaiting = False
        if self.active:
            self.queue.resume(self)

    def deliver_again(self, key, props, body, offset):  # type: ignore[no-untyped-def]
        if not self.with_offset(props, 0, len(props), offset, True):
            self.edited(props, offset)
        ChannelConsumer.deliver_again(self, key, self.props.tobytes(0, self.props.n), body, offset)

    def takes(self, props_len: int) -> bool:
        return bool(props_len + 4 + OFFSET_HEADER <= self.output.properties_max)


class GetConsumer(Consumer):
    """Takes one message for a basic.get."""

    def __init__(self, channel: Channel, queue: Queue, no_ack: bool, offsets: bool) -> None:
        """`offsets`: put a durable message's offset among the headers."""
        super().__init__(queue, "", no_ack, False, 0, {})
        self.channel = channel
        self.offsets = offsets and queue.log.durable
        self.active = False
        self.counted = False
        self.keep_timeout()
        self.slot = 0 if no_ack else channel.slot_of(self)
        self.tag_before = 0
        self.bytes_before = 0

    def undo(self) -> None:
        if self.tag_before:
            self.channel.forget_since(self.tag_before)
            self.channel.output.buf.n = self.bytes_before
            self.tag_before = 0

    def contain(self, error: Exception) -> None:
        self.channel.contain(error)

    def credit(self) -> int:
        return 1

    def takes(self, props_len: int) -> bool:
        if self.offsets:
            props_len += 4 + OFFSET_HEADER
        return bool(props_len <= self.channel.output.properties_max)

    def message_does_not_fit(self) -> None:
        self.tag_before = 0  # nothing of this get was written, and the one before it stands
        text = f"the message's properties do not fit into frames of {self.channel.output.frame_max} bytes"
        raise ChannelError(PRECONDITION_FAILED, text)

    def deliver(self, batch: Batch, i: int, n: int, redelivered: int) -> int:
        key, props, body, _ = batch.parts(i)
        if not self.takes(len(props)):
            return 0
        self._put(key, props, body, batch.first + i, bool(redelivered))
        return 1

    def deliver_again(self, key: bytes, props: bytes, body: Body, offset: int) -> None:
        self._put(key, props, body, offset, True)

    def _put(self, key: bytes, props: bytes, body: Body, offset: int, redelivered: bool) -> None:
        channel = self.channel
        self.tag_before = channel.next_tag
        self.bytes_before = channel.output.buf.n
        if self.no_ack:
            tag = channel.next_tag
            channel.next_tag = tag + 1
        else:
            tag = channel.remember_one(offset, len(body), self.slot)
            channel.got += 1
        if redelivered:
            channel.redelivered += 1
        if self.offsets and offset < self.queue.log.announced_end:
            fields = split(props)
            edit_headers(fields, {"x-stream-offset": offset})
            props = join(fields)
        exchange, at = tables.read_shortstr(key, 0)
        routing_key = tables.read_shortstr(key, at)[0]
        left = max(self.queue.ready - 1, 0)
        channel.output.put_method(channel.number, BasicGetOk(tag, redelivered, exchange, routing_key, left).encode())
        if not isinstance(body, bytes) or len(body) > LARGE:
            self.lent = self.no_ack
            large = LargeBody(channel.number, self.queue, offset, body, self.lent)
            channel.output.put_large(channel.number, props, large)
        else:
            channel.output.put_content_bytes(channel.number, props, body)


class RangeConsumer(Consumer):
    """Encodes for log.read: the delivery tag is the offset + 1, nothing is settled."""

    def __init__(self, channel: Channel, queue: Queue, tag: str) -> None:
        super().__init__(queue, tag, True, False, 0, {})
        self.channel = channel
        self.output = channel.output
        self.tag_bytes = Buf(256)
        self.tag_bytes.add(tables.encode_shortstr(tag))
        self.bytes_before = -1

    def undo(self) -> None:
        if self.bytes_before >= 0:
            self.output.buf.n = self.bytes_before

    def contain(self, error: Exception) -> None:
        self.channel.contain(error)

    def message_does_not_fit(self) -> None:
        out = self.output
        text = (
            f"the properties of the next message of queue '{self.queue.name}' do not fit into frames of {out.frame_max} bytes:"
            " connect with a larger frame_max"
        )
        error = ChannelError(PRECONDITION_FAILED, text, LogRead.CLASS_ID, LogRead.METHOD_ID)
        self.channel.connection.contain_in(self.channel, error)

    def credit(self):  # type: ignore[no-untyped-def]
        if self.output.paused or self.channel.closing:
            return 0
        if self.output.streaming or self.output.buf.n >= _LIMIT:
            self.output.full = True
            return 0
        return _PLENTY

    def deliver(self, batch, i, n, redelivered):  # type: ignore[no-untyped-def]
        out = self.output
        c = self.channel
        self.bytes_before = out.buf.n
        k = 0
        while k < n:
            message = entry.read(batch.index.p, batch.index_at + entry.SIZE * (i + k))
            m = batch.meta_at + message.meta
            b = batch.body_at + message.body
            key_len = message.key_len
            props_len = message.props_len
            body_len = message.body_len
            if props_len > out.properties_max:
                break
            tag = batch.first + i + k + 1
            out.put_delivery(c.number, self.tag_bytes.p, self.tag_bytes.n, tag, redelivered, batch.meta.p, m, key_len)
            k += 1
            if body_len > _LARGE:
                whole = batch.meta.tobytes(m + key_len, m + key_len + props_len)
                put_large(out, c.number, self.queue, tag - 1, whole, batch, b, body_len)
                break
            out.put_content(c.number, batch.meta.p, m + key_len, props_len, batch.body.p, b, body_len)
            if out.buf.n >= _LIMIT:
                break
        self.bytes_before = -1
        return k


def put_large(
    out: Output,
    number: int,
    queue: Queue,
    offset: int,
    props: bytes,
    batch: Batch,
    at: int,
    size: int,
    settles: bool = False,
) -> None:
    """The content of a message of a batch whose body goes out in pieces."""
    data = memoryview(batch.body.data)[at : at + size] if batch.stored is None else batch.stored
    body = LargeBody(number, queue, offset, data, settles)
    if batch is not queue.tail.batch and not batch.shared:
        body.keep()
    out.put_large(number, props, body)

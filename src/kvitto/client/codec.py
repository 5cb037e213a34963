"""The client's data plane: publishes into a buffer, received bytes into counters or columns.

Compiled, one core encodes and scans several million messages per second. Rare events (methods, returns, gets) go into
`Scanner.events` in the order of the wire, and plain Python handles them.
"""

from __future__ import annotations

from kvitto.base.errors import ConnectionError_
from kvitto.client.columns import Batch, Column, Latencies, Window
from kvitto.wire import bits
from kvitto.wire.buf import Buf

METHOD, CONTENT, CONFIRM, DELIVER = 1, 2, 3, 4
"""Kinds of events: (channel, METHOD, payload), (channel, CONTENT, method payload, properties, body), (channel, CONFIRM,
tag, multiple, ok), (channel, DELIVER, consumer tag, delivery tag, redelivered, exchange, routing key, properties, body)."""

COUNT, COLLECT, EVENTS = 1, 2, 3
"""What a Sink does with deliveries: count them, collect them in its batch, or make an event of each."""

# C integers when compiled (see codec.pxd), so they cannot be imported
_COUNT, _EVENTS = 1, 3
_WAITING, _HEADER, _BODY, _MORE = 0, 1, 2, 3
_BASIC, _DELIVER, _ACK, _NACK, _RETURN, _GET_OK = 60, 60, 80, 120, 50, 71
_BODY_MAX = 1 << 30
"""Larger bodies are refused, because they would not fit into a column."""


class Template:
    """One message that can be sent any number of times: its frames, and the position of its body."""

    def __init__(
        self,
        channel: int,
        exchange: str,
        routing_key: str,
        properties: bytes,
        body: bytes,
        mandatory: bool = False,
        frame_max: int = 131072,
    ) -> None:
        buf = Buf(256 + len(body))
        put_publish(buf, channel, exchange.encode(), routing_key.encode(), int(mandatory), properties, body, frame_max)
        self.buf = buf
        self.size = buf.n
        self.stamp_at = -1
        """The position of the 8 bytes of time, -1 for none."""
        if len(body) >= 8:
            self.stamp_at = buf.n - 1 - len(body) if len(body) <= frame_max - 8 else -1

    def fill(self, out: Buf, count: int, now: int) -> None:
        """Append `count` copies to `out`. With `now` > 0 each body starts with it, as big-endian u64."""
        size = self.size
        out.reserve(count * size)
        p = out.p
        source = self.buf.p
        at = out.n
        stamp = self.stamp_at if now > 0 else -1
        k = 0
        while k < count:
            bits.copy(p, at, source, 0, size)
            if stamp >= 0:
                bits.put64(p, at + stamp, now)
            at += size
            k += 1
        out.n = at


def put_publish(
    out: Buf,
    channel: int,
    exchange: bytes,
    routing_key: bytes,
    flags: int,
    properties: bytes,
    body: bytes,
    frame_max: int,
) -> None:
    """Append method, header and body frames of one publish. `flags`: 1 is mandatory. `properties` are encoded."""
    e = len(exchange)
    r = len(routing_key)
    n = len(properties)
    size = len(body)
    if e > 255 or r > 255:
        raise ValueError("exchange and routing key have at most 255 bytes each")
    if n + 20 > frame_max or frame_max < 4096:
        raise ValueError(f"the properties have {n} bytes; with frame_max {frame_max} they do not fit into a frame")
    step = frame_max - 8
    out.reserve(64 + e + r + n + size + 8 * (size // step + 1))
    out.n = put_frames(
        out.p, out.n, channel, exchange, 0, e, routing_key, 0, r, flags, properties, 0, n, body, 0, size, step
    )


def put_rows(
    out: Buf,
    channel: int,
    exchanges: Column,
    routing_keys: Column,
    properties: Column,
    bodies: Column,
    start: int,
    end: int,
    flags: int,
    frame_max: int,
) -> None:
    """Append the publishes of rows start..end-1 like `put_publish`. A column of one string is for all rows."""
    step = frame_max - 8
    e_step = column_step(exchanges, end)
    r_step = column_step(routing_keys, end)
    p_step = column_step(properties, end)
    b_step = column_step(bodies, end)
    if start < 0 or frame_max < 4096:
        raise ValueError(f"rows from {start} on, frame_max {frame_max}")
    e_ends = exchanges.ends.p
    r_ends = routing_keys.ends.p
    p_ends = properties.ends.p
    b_ends = bodies.ends.p
    k = start
    while k < end:
        i = 4 * k * e_step
        e_at = bits.le32(e_ends, i)
        e = bits.le32(e_ends, i + 4) - e_at
        i = 4 * k * r_step
        r_at = bits.le32(r_ends, i)
        r = bits.le32(r_ends, i + 4) - r_at
        i = 4 * k * p_step
        p_at = bits.le32(p_ends, i)
        n = bits.le32(p_ends, i + 4) - p_at
        i = 4 * k * b_step
        b_at = bits.le32(b_ends, i)
        size = bits.le32(b_ends, i + 4) - b_at
        if e > 255 or r > 255:
            raise ValueError(f"row {k}: exchange and routing key have at most 255 bytes each")
        if n + 20 > frame_max:
            raise ValueError(f"row {k}: the properties have {n} bytes; frame_max {frame_max} is too small for them")
        out.reserve(64 + e + r + n + size + 8 * (size // step + 1))
        out.n = put_frames(
            out.p,
            out.n,
            channel,
            exchanges.data.p,
            e_at,
            e,
            routing_keys.data.p,
            r_at,
            r,
            flags,
            properties.data.p,
            p_at,
            n,
            bodies.data.p,
            b_at,
            size,
            step,
        )
        k += 1


def column_step(column: Column, rows: int) -> int:
    """Return 0 for a column of one string, which is for all rows, else 1. Raise ValueError if the column is too short."""
    if column.ends.n == 8:
        return 0
    if column.ends.n < 4 * rows + 4:
        raise ValueError(f"{rows} rows, but a column of {len(column)} strings")
    return 1


def put_frames(
    p: bytearray,
    i: int,
    channel: int,
    exchange: bytes | bytearray,
    e_at: int,
    e: int,
    routing_key: bytes | bytearray,
    r_at: int,
    r: int,
    flags: int,
    properties: bytes | bytearray,
    p_at: int,
    n: int,
    body: bytes | bytearray,
    b_at: int,
    size: int,
    step: int,
) -> int:
    """Write method, header and body frames at p[i:], which has space for them. Return the position after them."""
    start_frame(p, i, 1, channel, 9 + e + r)
    bits.put32(p, i + 7, 0x003C0028)
    bits.put16(p, i + 11, 0)
    p[i + 13] = e
    bits.copy(p, i + 14, exchange, e_at, e)
    i += 14 + e
    p[i] = r
    bits.copy(p, i + 1, routing_key, r_at, r)
    i += 1 + r
    p[i] = flags
    p[i + 1] = 206
    i += 2
    start_frame(p, i, 2, channel, 12 + n)
    bits.put32(p, i + 7, 0x003C0000)
    bits.put64(p, i + 11, size)
    bits.copy(p, i + 19, properties, p_at, n)
    i += 19 + n
    p[i] = 206
    i += 1
    k = 0
    while k < size:
        n = size - k if size - k < step else step
        start_frame(p, i, 3, channel, n)
        bits.copy(p, i + 7, body, b_at + k, n)
        p[i + 7 + n] = 206
        i += n + 8
        k += n
    return i


def start_frame(p: bytearray, i: int, kind: int, channel: int, size: int) -> int:
    p[i] = kind
    bits.put16(p, i + 1, channel)
    bits.put32(p, i + 3, size)
    return 0


def put_settle(out: Buf, channel: int, method: int, tag: int, flags: int) -> None:
    """Append a basic.ack (80), reject (90) or nack (120). All three have the same form, tag and bits."""
    out.reserve(21)
    p = out.p
    i = out.n
    start_frame(p, i, 1, channel, 13)
    bits.put32(p, i + 7, (_BASIC << 16) | method)
    bits.put64(p, i + 11, tag)
    p[i + 19] = flags
    p[i + 20] = 206
    out.n = i + 21


def put_acks(out: Buf, channel: int, first: int, last: int, step: int) -> None:
    """Append acks for the tags first..last: one for each (step 1), or a cumulative one for every `step` tags."""
    out.reserve(21 * ((last - first) // step + 1))
    p = out.p
    i = out.n
    tag = first + step - 1
    while tag <= last:
        start_frame(p, i, 1, channel, 13)
        bits.put32(p, i + 7, (_BASIC << 16) | _ACK)
        bits.put64(p, i + 11, tag)
        p[i + 19] = 1 if step > 1 else 0
        p[i + 20] = 206
        i += 21
        tag += step
    out.n = i


class Sink:
    """What one channel does with the frames that it receives: counters, a batch, a window of unconfirmed publishes."""

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.mode = COLLECT
        self.batch = Batch()
        self.window: Window | None = None
        self.record_confirms = False
        """Also put each confirm into the events, for a callback."""
        self.latencies: Latencies | None = None
        self.count = 0
        """The number of deliveries, in both modes."""
        self.body_bytes = 0
        self.last_tag = 0
        self.state = _WAITING
        self.method = 0
        self.rest = 0
        self.head = Buf(256)
        self.props = Buf(256)
        self.partial = Buf(0)

    def begin(self, p: bytearray, i: int, n: int, method: int) -> int:
        """Begin a method that has content. Return 0, or the reply code of the error."""
        if self.state != _WAITING:
            return 505
        self.state = _HEADER
        self.method = method
        if method == _DELIVER:
            k = i + 5 + p[i + 4]
            if k + 10 > i + n:
                return 502
            self.last_tag = bits.be64(p, k)
            if self.mode == _COUNT:
                return 0
        head = self.head
        head.n = 0
        head.reserve(n)
        bits.copy(head.p, 0, p, i, n)
        head.n = n
        return 0

    def header(self, p: bytearray, i: int, n: int) -> int:
        """Read the content header: size and properties."""
        if self.state != _HEADER or n < 14:
            return 505
        self.rest = bits.be64(p, i + 4)
        if self.rest > _BODY_MAX:
            return 501
        if self.mode != _COUNT or self.method != _DELIVER:
            props = self.props
            props.n = 0
            props.reserve(n - 12)
            bits.copy(props.p, 0, p, i + 12, n - 12)
            props.n = n - 12
        self.state = _BODY
        return 0

    def __len__(self) -> int:
        return self.count


class Scanner:
    """The receiving side of a connection. Read into `inp` behind `inp.n`, then call `scan`."""

    def __init__(self) -> None:
        self.inp = Buf(1 << 18)
        self.sinks: list[Sink | None] = [None]
        self.events: list[tuple[object, ...]] = []
        self.frames = 0
        self.frame_max = 131072

    def open(self, channel: int) -> Sink:
        """Return the sink of a new channel."""
        while len(self.sinks) <= channel:
            self.sinks.append(None)
        sink = Sink(channel)
        self.sinks[channel] = sink
        return sink

    def scan(self, now: int) -> None:
        """Handle all complete frames. `now` (ns) is compared with the time stamps in bodies if a sink measures latencies."""
        inp = self.inp
        p = inp.p
        i = 0
        end = inp.n
        last = -1
        sink = None
        error = 0
        while end - i >= 8:
            kind = p[i]
            channel = bits.be16(p, i + 1)
            size = bits.be32(p, i + 3)
            if size + 8 > self.frame_max or kind > 8:
                self.fail(501, channel)
            if end - i < size + 8:
                break
            if p[i + 7 + size] != 206:
                self.fail(501, channel)
            if channel != last:
                sink = self.sinks[channel] if channel < len(self.sinks) else None
                last = channel
            if sink is None or kind == 8:
                self.other(channel, kind, i + 7, size)
            elif kind == 3:
                error = self.body(sink, p, i + 7, size, now)
            elif kind == 2:
                error = sink.header(p, i + 7, size)
                if error == 0 and sink.rest == 0:
                    error = self.finish(sink, p, i + 7, 0)
            else:
                error = self.take_method(sink, p, i + 7, size)
            if error != 0:
                self.fail(error, channel)
            i += size + 8
            self.frames += 1
        if i:
            inp.drop(i)

    def take_method(self, sink: Sink, p: bytearray, i: int, n: int) -> int:
        """Handle deliveries and confirms in place, and make an event of every other method."""
        if n < 4:
            return 502
        method = bits.be16(p, i + 2)
        if bits.be16(p, i) == _BASIC:
            if method == _DELIVER or method == _GET_OK or method == _RETURN:  # noqa: SIM109 - `in` makes a tuple
                return sink.begin(p, i, n, method)
            if (method == _ACK or method == _NACK) and n == 13:  # noqa: SIM109
                return self.confirm(sink, bits.be64(p, i + 4), p[i + 12] & 1, method == _ACK)
        self.other(sink.channel, METHOD, i, n)
        return 0

    def body(self, sink: Sink, p: bytearray, i: int, n: int, now: int) -> int:
        """Handle a piece of a body. Most bodies are one piece, and are read straight from the receive buffer."""
        if sink.state < _BODY or n > sink.rest:
            return 505
        partial = sink.partial
        if sink.latencies is not None and sink.state == _BODY and n >= 8 and sink.method == _DELIVER:
            sink.latencies.add(now - bits.be64(p, i))
        sink.state = _MORE
        sink.rest -= n
        if sink.rest == 0 and partial.n == 0:
            return self.finish(sink, p, i, n)
        if sink.mode == _COUNT and sink.method == _DELIVER:
            sink.body_bytes += n
            return self.finish(sink, p, i, 0) if sink.rest == 0 else 0
        partial.reserve(n)
        bits.copy(partial.p, partial.n, p, i, n)
        partial.n += n
        if sink.rest == 0:
            n = self.finish(sink, partial.p, 0, partial.n)
            partial.clear()
            return n
        return 0

    def finish(self, sink: Sink, p: bytearray, i: int, n: int) -> int:
        """End a message: p[i:i+n] is its body, or the part of it that is not counted yet."""
        sink.state = _WAITING
        if sink.method == _DELIVER:
            sink.count += 1
            sink.body_bytes += n
            if sink.mode == _COUNT:
                return 0
            if sink.mode == _EVENTS:
                return self.deliver(sink, sink.partial if sink.partial.n else self.inp, i, n)
            return sink.batch.add(sink.head, sink.props, p, i, n)
        self.content(sink, sink.partial if sink.partial.n else self.inp, i, n)
        return 0

    def deliver(self, sink: Sink, source: Buf, i: int, n: int) -> int:
        """Make an event of a delivery. Return 0, or the reply code of the error."""
        head = sink.head.tobytes()
        size = len(head)
        h = head
        t = 5 + h[4]
        if t + 10 > size:
            return 502
        e = t + 10 + h[t + 9]
        if e >= size or e + 1 + h[e] != size:
            return 502
        tag = head[5:t].decode("utf-8", "surrogateescape")
        exchange = head[t + 10 : e].decode("utf-8", "surrogateescape")
        key = head[e + 1 : size].decode("utf-8", "surrogateescape")
        number = bits.be64(h, t)
        again = h[t + 8] & 1 != 0
        body = source.tobytes(i, i + n)
        self.events.append((sink.channel, DELIVER, tag, number, again, exchange, key, sink.props.tobytes(), body))
        return 0

    def content(self, sink: Sink, source: Buf, i: int, n: int) -> None:
        """Make an event of a returned message, or of the answer to a get."""
        event = (sink.channel, CONTENT, sink.head.tobytes(), sink.props.tobytes(), source.tobytes(i, i + n))
        self.events.append(event)

    def confirm(self, sink: Sink, tag: int, multiple: int, ok: int) -> int:
        if sink.window is not None:
            sink.window.settle(tag, multiple, ok)
            if sink.record_confirms:
                self.events.append((sink.channel, CONFIRM, tag, bool(multiple), bool(ok)))
        return 0

    def other(self, channel: int, kind: int, i: int, n: int) -> None:
        """Make an event of a method for Python. A heartbeat needs no answer; content for a closed channel is dropped."""
        if kind == METHOD:
            self.events.append((channel, METHOD, self.inp.tobytes(i, i + n)))

    def fail(self, code: int, channel: int) -> None:
        raise ConnectionError_(code, f"the server sent a frame on channel {channel} that is not AMQP 0-9-1 here")

"""One AMQP connection: it parses frames, handles or dispatches them, and encodes the output. The server feeds it through `receive`.

The compiled `scan` handles complete publishes and acks, the data plane, in place. A message with missing frames is assembled in
`Channel.content`. Every other method becomes an object and goes to `protocol/methods/`. Code anywhere raises a peer's mistake as
ChannelError or ConnectionError_, and `fail` turns it into a Close.
States: header -> start -> tune -> open -> running -> closing (Close was sent) -> closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from kvitto.base import limits
from kvitto.base.errors import (
    CHANNEL_ERROR,
    CONTENT_TOO_LARGE,
    FRAME_ERROR,
    INTERNAL_ERROR,
    RESOURCE_ERROR,
    UNEXPECTED_FRAME,
    ChannelError,
    ConnectionError_,
    ProtocolError,
    StoreError,
)
from kvitto.broker import walls
from kvitto.broker.administration.admission import check_size
from kvitto.broker.administration.operations import Operations
from kvitto.broker.administration.removal import delete_queues
from kvitto.broker.changes import Changes, Unanswered
from kvitto.broker.jobs import nothing
from kvitto.broker.queues.consumer import ACK
from kvitto.broker.queues.hold import leave_group
from kvitto.protocol import closing, handshake
from kvitto.protocol.buffered import BUFFER_BYTES
from kvitto.protocol.channel import MORE, UNKNOWN, Channel, Content
from kvitto.protocol.methods import dispatch
from kvitto.protocol.output import Output
from kvitto.protocol.states import CLOSED, CLOSING, HEADER, RUNNING, START
from kvitto.wire import bits, check
from kvitto.wire.buf import Buf
from kvitto.wire.methods import (
    ChannelClose,
    ChannelCloseOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionUnblocked,
    Method,
    decode,
)

if TYPE_CHECKING:
    from kvitto.broker.administration.auth import User
    from kvitto.broker.vhost import VHost
    from kvitto.protocol.hub import Hub

log = logging.getLogger("kvitto.amqp")

HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
KEPT_BYTES = 4 << 20
"""The most bytes that a buffer of a connection keeps for its next use. A quiet connection releases them."""
UNCOPIED = BUFFER_BYTES
"""A body with more bytes than this is not copied: the queue gets the buffer that it is in."""
READ_BUDGET = 2000
"""What the input of one connection may cost in one turn, in units of about a microsecond of compiled work (`Connection.spend`)."""
METHOD_COST = 20
"""The cost of a method that is not handled in place: decoding, a look-up, an answer."""
DECODE_SHIFT = 4
"""To decode 2 ** 4 bytes of a method, and to read the arguments in them, costs 1."""
PIECES_PER_TURN = 4
"""Pieces of large bodies that one socket gets in one turn: about 1 MiB."""
PARTS_MAX = 16
"""The most large bodies, with the frames between them, that wait for a peer. Beyond that its input, such as basic.get, is not read."""
INPUT_PAUSE = 8 << 20
"""If more bytes of output than this wait for a peer, its input is not read."""

_PUBLISH = 0x003C0028  # C variables when compiled
_ACK = 0x003C0050
_KIND_ACK = ACK
_UNKNOWN = UNKNOWN
_MORE = MORE
_RUNNING = RUNNING
_CLOSING = CLOSING
_READ_BUDGET = READ_BUDGET
_CHANGES_LATER = 1  # input that goes on belongs to much input


class Transport(Protocol):
    """What the server gives a connection to act on its socket."""

    def send(self, buf: Buf) -> bool:
        """Send the bytes of a buffer; False if some of them wait: then they must stay as they are."""
        ...

    def write(self, data: memoryview) -> bool:
        """Send it; False if some of it waits: then its bytes must stay as they are."""
        ...

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Connection:
    def __init__(self, hub: Hub, transport: Transport, peer: str, loopback: bool, tls: bool = False) -> None:
        self.hub, self.broker, self.driver, self.confirms = hub, hub.broker, hub.driver, hub.confirms
        self.transport = transport
        self.peer = peer
        self.loopback = loopback
        self.tls = tls
        self.external: str | None = None
        """The user that a verified client certificate stands for."""
        self.refusal = ""
        """Why there is no room for this connection: its peer is told as soon as it speaks AMQP."""
        self.output = Output(hub, self)
        self.state = HEADER
        self.frame_max = limits.FRAME_MAX
        self.channel_max = limits.CHANNEL_MAX
        self.heartbeat = 0
        self.user: User = None  # type: ignore[assignment]
        self.vhost: VHost = None  # type: ignore[assignment]
        self.client: dict[str, Any] = {}
        self.can_cancel = False
        self.can_block = False
        self.told_blocked = False
        self.wants_offsets = False
        self.channels: dict[int, Channel] = {}
        self.consumers = 0
        """The number of consumers of all its channels."""
        self.queues: dict[Any, None] = {}
        """Its exclusive queues."""
        self.groups: dict[Any, None] = {}
        """Queues that it has been attached to."""
        self.rest = b""
        self.stalled = self.answering = self.choked = False
        self.yielded = False
        """Whether its budget is used up, so that the rest of its input is handled in the next turn."""
        self.budget = self.caught_up = 0
        """`caught_up`: how often input that had been left to a next turn was handled to its end."""
        self.publisher = False
        self.blocked = hub.alarms.blocked is not None
        self.held_back = False
        """Whether it has published while publishers were blocked. Its input does not continue before they are unblocked."""
        self.failed = False
        self._last: Channel | None = None
        self._last_number = -1
        self._at = 0
        self._secret: Any = None
        self.received_bytes = self.sent_bytes = 0
        self.quiet_in = 0
        self.quiet_out = 0
        self.sent_at_beat = 0
        self.unfinished = 0
        """Bytes of bodies that are not complete."""
        self.begun = 0
        """Messages that are not complete."""
        self.buffered = 0
        """Memory for these bodies and for transactions, as `hub.buffered` counts it."""
        self._looked_at = 0
        self.in_transactions = 0
        self.started_ms = hub.broker.now_ms
        self.since_ms = hub.broker.timers.now_ms
        """The same moment by the monotonic clock."""
        hub.connections[self] = None
        hub.connections_made += 1

    # -- in --------------------------------------------------------------------------------------------------

    def receive(self, box, n):  # type: ignore[no-untyped-def]
        """The first n bytes of the buffer `box` have arrived (what `rest` held comes first); take what is complete."""
        self.quiet_in = 0
        if n == 8 and self.state == _RUNNING and self._is_heartbeat(box.p):
            return  # nothing has changed, so there is nothing for a turn to do
        self._at = 0
        broker = self.broker
        begun = broker.ends_at
        try:
            if self.publisher or not broker.clock_is_read:  # only messages need to know exactly when they came
                broker.read_clock()
                broker.clock_is_read = True
            broker.changes_left = broker.changes_each
            if not self.yielded:
                self.budget = _READ_BUDGET
                if begun == 0.0:
                    broker.begin_time()
                if self.publisher and broker.behind:
                    self.spend(_READ_BUDGET)
                self._take(box, n)
            self.rest = b"" if self.state == CLOSED or self._at >= n else box.tobytes(self._at, n)
            if self.output.buf.n > INPUT_PAUSE:
                self._choke()
            if self.confirms.touched:
                self.confirms.note_published()
            self.driver.schedule()
        except Exception as error:  # noqa: BLE001 - the wall around this connection's input
            self.contain(error)
        if begun == 0.0 and broker.out_of_time():
            broker.somebody_waits = True
        broker.ends_at = begun

    def _is_heartbeat(self, p):  # type: ignore[no-untyped-def]
        """Whether 8 bytes are a heartbeat, and nothing else waits. Thousands of idle connections send little more."""
        if self.rest or self.yielded or self.stalled or self.choked:
            return False
        return bits.be64(p, 0) == 0x08000000000000CE

    def _take(self, box, n):  # type: ignore[no-untyped-def]
        """Handle what is complete. After a mistake of the peer the input behind it is handled; after a mistake of ours there is none."""
        while True:
            try:
                if self.state != _RUNNING and self.state != _CLOSING:
                    self._at = handshake.receive(self, box, n, self._at)
                if self.state == _RUNNING or self.state == _CLOSING:
                    self.scan(box, n)
                return
            except ProtocolError as error:
                self.fail(error)
            except Exception as error:
                told = None if self._last is None else self._last.blame(error)
                if told is None:
                    raise
                self.fail(told)

    def spend(self, cost: int) -> None:
        """Count work for this connection's input. When the budget or the time of a turn is used up, the rest waits for the next turn."""
        self.budget -= cost
        if (self.budget <= 0 or self.broker.out_of_time()) and not self.yielded:
            self._yield()

    def _yield(self) -> None:
        """Leave the rest of the input to the next turn."""
        self.yielded = True
        self.transport.pause()
        self.hub.go_on_later(self)

    def go_on(self) -> int:
        """The next turn has come: handle the input that the budget did not reach. Returns what that cost."""
        self.yielded = False
        if self.stalled or self.choked:
            return 0
        self.budget = _READ_BUDGET
        self.broker.changes_left = _CHANGES_LATER
        if self.state != CLOSED:
            self._take_rest()
        return _READ_BUDGET - self.budget

    def _choke(self) -> None:
        """Stop reading input if the socket does not take the output that waits."""
        if not self.output.paused:
            self.flush()
        if self.output.paused and not self.choked:
            self.choked = True
            self.transport.pause()

    def scan(self, box, n):  # type: ignore[no-untyped-def]
        """Handle frames from `_at` on; `_at` is behind the last one when this returns or raises."""
        p = box.p
        pos = self._at
        most = self.frame_max  # as RabbitMQ: some clients count the payload alone, without the 8 bytes around it
        while (
            n - pos >= 8
            and not self.stalled
            and not self.choked
            and not self.yielded
            and (self.state == _RUNNING or self.state == _CLOSING)
        ):
            size = bits.be32(p, pos + 3)
            if size > most:
                self._at = n
                text = f"a frame with {size} bytes of payload, frame_max is {self.frame_max}"
                raise ConnectionError_(FRAME_ERROR, text, limit="frame")
            end = pos + 8 + size
            if end > n:
                break
            self._at = end
            if p[end - 1] != 0xCE:
                self._at = n
                raise ConnectionError_(FRAME_ERROR, f"frame end {p[end - 1]:#04x} instead of 0xce")
            kind = p[pos]
            number = bits.be16(p, pos + 1)
            if kind == 8:
                if number != 0:
                    raise ConnectionError_(UNEXPECTED_FRAME, "heartbeat on a channel other than 0")
                pos = end
                continue
            if number != self._last_number:
                self._find_channel(number)
            c = self._last
            if self.state == _CLOSING:
                c = None
            if kind == 1:
                if size < 4:
                    raise ConnectionError_(FRAME_ERROR, "method frame without a method")
                method = bits.be32(p, pos + 7)
                if c is not None and c.content is None and not c.closing:
                    if method == _PUBLISH:
                        pos = self.publish(c, p, pos, end, n)
                        continue
                    if method == _ACK and size == 13 and c.tx is None:
                        found = c.settle_tags(bits.be64(p, pos + 11), p[pos + 19] & 1, _KIND_ACK)
                        if found == _UNKNOWN:
                            raise unknown_tag(bits.be64(p, pos + 11))
                        if found == _MORE:
                            self.perform(c.settle_rest(_KIND_ACK), channel=c)
                        pos = end
                        continue
                self._method(number, bytes(p[pos + 7 : end - 1]))
            elif kind == 2:
                self._header(number, bytes(p[pos + 7 : end - 1]))
            elif kind == 3:
                self._body(number, p, pos + 7, size)
            else:
                self._at = n
                raise ConnectionError_(FRAME_ERROR, f"unknown frame type {kind}")
            pos = end

    def publish(self, c, p, pos, end, n):  # type: ignore[no-untyped-def]
        """A basic.publish frame: if its content is all there, publish; else begin to put it together. Returns the new position."""
        key = pos + 13
        if key >= end - 1:
            raise malformed_publish()
        k = key + 1 + p[key]
        if k >= end - 1:
            raise malformed_publish()
        k += 1 + p[k]
        if k + 2 != end:
            raise malformed_publish()
        options = p[k] & 3
        key_len = k - key
        self.publisher = True
        if self.blocked and not c.refuses(bytes(p[key:k])):
            self.block()
        if n - end >= 22 and p[end] == 2 and bits.be16(p, end + 1) == c.number and bits.be16(p, end + 7) == 60:
            size = bits.be32(p, end + 3)
            if size >= 14 and size <= self.frame_max - 8 and n - end >= size + 8 and p[end + 7 + size] == 0xCE:
                body_len = bits.be64(p, end + 11)
                b = end + size + 8
                if body_len == 0:
                    self._at = b
                    c.publish(p, key, key_len, options, p, end + 19, size - 12, p, b, 0)
                    return b
                if (
                    body_len <= self.frame_max
                    and n - b >= body_len + 8
                    and p[b] == 3
                    and bits.be32(p, b + 3) == body_len
                    and bits.be16(p, b + 1) == c.number
                    and p[b + 7 + body_len] == 0xCE
                ):
                    self._at = b + 8 + body_len
                    c.publish(p, key, key_len, options, p, end + 19, size - 12, p, b + 7, body_len)
                    return self._at
        body = self.hub.buffered.buffer()
        c.content = Content(bytes(p[key:k]), options, body)
        self.begun += 1
        if body.cap:
            self._count(c.content)
        return end

    def _find_channel(self, number: int) -> None:
        self._last = self.channels.get(number)
        self._last_number = number

    def forget_channel(self, number: int) -> None:
        if self.channels.pop(number, None) is not None:
            self.hub.channels -= 1
        self.forget_last()

    def forget_last(self) -> None:
        """The channels have changed: look the next frame's up."""
        self._last, self._last_number = None, -1

    # -- frames one by one -----------------------------------------------------------------------------------

    def _method(self, number: int, payload: bytes) -> None:
        c = self.channels.get(number)
        if c is not None and c.closing:
            # Everything but the end of the handshake is ignored until the peer has seen our Close.
            if payload[:4] == b"\x00\x14\x00\x29":
                self.forget_channel(number)
            elif payload[:4] == b"\x00\x14\x00\x28":
                self.output.put_method(number, ChannelCloseOk().encode())
                self.forget_channel(number)
            return
        if self.state == CLOSING:
            if payload[:4] == b"\x00\x0a\x00\x33":
                self.finish()
            elif payload[:4] == b"\x00\x0a\x00\x32":
                self.output.put_method(0, b"\x00\x0a\x00\x33")
                self.finish()
            return
        if c is not None and c.content is not None:
            self._take_content(c)
            raise ConnectionError_(UNEXPECTED_FRAME, "expected content header or body, got a method frame instead")
        method = decode(payload)
        self.spend(METHOD_COST + (len(payload) >> DECODE_SHIFT))
        before = self.output.buf.n
        defined = self.broker.defined
        try:
            dispatch(self, number, c, method)
        except ProtocolError as error:
            if not error.class_id:
                error.class_id, error.method_id = method.CLASS_ID, method.METHOD_ID
            raise
        if self.broker.defined != defined and not self.answering:  # what still works waits for the disk when it is done
            self._answer_when_announced(before)
        elif self.output.buf.n > INPUT_PAUSE or len(self.output.parts) > PARTS_MAX:
            self._choke()

    def _answer_when_announced(self, before: int) -> None:
        """What the method changed must be on disk before its answer goes out (D2): hold the answer, and the input behind it."""
        buf = self.output.buf
        answer = buf.tobytes(before)
        buf.n = before

        def announced() -> None:
            self.output.buf.add(answer)
            if not self.output.dirty:
                self.output.mark_dirty()
            self.answering = False
            self.unstall()

        self.answering = True
        self.stall()
        self.broker.store.when_defined(walls.guarded(self, announced), announced=True)

    def perform(
        self,
        steps: Iterator[object],
        done: Callable[[], None] = nothing,
        *,
        channel: Channel | None = None,
        method: Method | None = None,
    ) -> None:
        """Do work for a method that may take several turns (broker/jobs.py); the input behind it waits, and that of no other connection.

        `done` sends the answer, which goes out once everything that the job has defined is durable. It is not called if the channel or the
        connection has ended meanwhile. A ChannelError closes `channel` and names `method`, in whichever turn it is raised; a
        ConnectionError_ closes the connection.
        """
        changes = Changes(self.broker)
        working = True
        first = True

        def contained() -> Iterator[object]:
            try:
                yield from changes.each(steps)
            except ProtocolError as error:
                if first:
                    raise
                if not isinstance(error, ChannelError):
                    self.fail(error)
                    return
                if channel is None:
                    raise
                if method is not None and not error.class_id:
                    error.class_id, error.method_id = method.CLASS_ID, method.METHOD_ID
                self.contain_in(channel, error)

        def ended() -> None:
            nonlocal working
            working = False
            before = self.output.buf.n
            if self.state == RUNNING and not (channel is not None and channel.closing):
                done()
            if first:
                return
            self.answering = False
            if self.state == RUNNING and changes.made:
                self._answer_when_announced(before)
            else:
                self.unstall()

        self.broker.jobs.start(contained(), ended, self)
        first = False
        if working:
            self.answering = True
            self.stall()

    def _header(self, number: int, payload: bytes) -> None:
        c = self._content_channel(number)
        if c is None:
            return
        content = c.content
        if content is None or content.props is not None:
            raise ConnectionError_(UNEXPECTED_FRAME, "expected method frame, got content header frame instead")
        if len(payload) < 14:
            raise ConnectionError_(FRAME_ERROR, "content header frame too short")
        if int.from_bytes(payload[:2], "big") != 60:
            raise ConnectionError_(UNEXPECTED_FRAME, "content header of another class than basic")
        content.size = int.from_bytes(payload[4:12], "big")
        content.props = payload[12:]
        if len(content.props) > limits.PROPERTIES_MAX:
            self._take_content(c)
            check_size(content.props)
        if content.size > self.broker.limits.body_max:
            self._take_content(c)
            text = f"message size {content.size} is larger than the maximum of {self.broker.limits.body_max} bytes"
            raise ChannelError(CONTENT_TOO_LARGE, text, 60, 40, limit="body")
        if not content.size:
            self._publish_whole(c)

    def _body(self, number, p, at, n):  # type: ignore[no-untyped-def]
        c = self._content_channel(number)
        if c is None:
            return
        content = c.content
        if content is None or content.props is None:
            raise ConnectionError_(UNEXPECTED_FRAME, "expected method or header frame, got content body frame instead")
        body = content.body
        if body.n + n > content.size:
            raise ConnectionError_(UNEXPECTED_FRAME, "more body than the content header announced")
        if self.unfinished + n > self.broker.limits.unfinished_max:
            text = f"more than {self.broker.limits.unfinished_max} bytes of messages that are not complete"
            raise ConnectionError_(RESOURCE_ERROR, text, 60, 40, limit="unfinished")
        if body.n + n > body.cap:
            body.widen(body.n + n)
            self._count(content)
        bits.copy(body.p, body.n, p, at, n)
        body.n += n
        self.unfinished += n
        if body.n == content.size:
            self._publish_whole(c)

    def _count(self, content: Content) -> None:
        """A body takes more memory: count it. Raises ConnectionError_ 506 if this connection, its user or all together have too much."""
        counter, size = self.hub.buffered, content.body.cap
        too_much = counter.add(self, size - content.buffered)
        content.buffered = size
        if too_much and (excess := counter.excess(self)):
            raise ConnectionError_(RESOURCE_ERROR, excess, 60, 40, limit="held")

    def _take_content(self, c: Channel) -> Content:
        """The message is complete, or never will be: it is no longer counted."""
        content, c.content = c.content, None
        assert content is not None
        self.begun -= 1
        self.unfinished -= content.body.n
        if content.buffered:
            self.hub.buffered.add(self, -content.buffered)
        return content

    def look_for_progress(self) -> None:
        """End the connection if a message that it has begun makes no progress, because its memory would never be free."""
        now_ms = self.broker.timers.now_ms
        for c in self.channels.values():
            content = c.content
            if content is None:
                continue
            if content.body.n != content.seen or self.stalled or self.choked or self.yielded:
                content.seen, content.since_ms = content.body.n, now_ms
            elif now_ms - content.since_ms > limits.BODY_S * 1000:
                text = f"nothing of the message begun on channel {c.number} has come for {limits.BODY_S:g} s"
                self.fail(ConnectionError_(RESOURCE_ERROR, text, 60, 40, limit="unfinished"))
                return

    def _content_channel(self, number: int) -> Channel | None:
        c = self.channels.get(number)
        if c is None:
            if self.state == CLOSING:
                return None
            raise ConnectionError_(CHANNEL_ERROR, f"channel {number} is not open")
        return None if c.closing or self.state == CLOSING else c

    def _publish_whole(self, c):  # type: ignore[no-untyped-def]
        content = self._take_content(c)
        key, props, body = content.key, content.props or b"", content.body
        if self.blocked and not c.refuses(key):  # the alarm may have come after its first frame
            self.block()
        if body.n > UNCOPIED:
            c.publish_large(key, content.options, props, body)
            return
        c.publish(key, 0, len(key), content.options, props, 0, len(props), body.p, 0, body.n)
        self.hub.buffered.keep(body)

    # -- mistakes --------------------------------------------------------------------------------------------

    def contain(self, error: Exception) -> None:
        """End the connection after an error in any work for it. The peer is told the reason, but no details of an internal error."""
        if isinstance(error, StoreError):
            raise error
        if isinstance(error, ProtocolError):
            self.fail(error)
            return
        told = ConnectionError_(INTERNAL_ERROR, "internal error, see the broker's log")
        what = "internal error"
        if isinstance(error, MemoryError):
            what = "the system gives the broker no more memory"
            told = ConnectionError_(RESOURCE_ERROR, what)
        log.error("%s: %s, the connection is closed", self.peer, what, exc_info=error)
        self.rest = b""
        if self.state < CLOSING:
            self.close(told)
            self.stalled = self.choked = self.yielded = False
            self.transport.resume()  # for the peer's close-ok
        else:
            self.state = CLOSED
            self.transport.abort()

    def contain_in(self, c: Channel, error: Exception) -> None:
        """Work for one channel has failed, in a timer or behind a sync: a mistake that is the channel's closes the channel only."""
        if isinstance(error, ChannelError):
            self.broker.count_refusal(error)
            self.fail_channel(c, error)
        else:
            self.contain(error)

    def fail(self, error: ProtocolError) -> None:
        """The one place where a peer's mistake becomes a Close."""
        self.broker.count_refusal(error)
        number = self._last_number
        c = self.channels.get(number)
        if isinstance(error, ChannelError) and c is not None and self.state == RUNNING:
            if not error.class_id:
                error.class_id, error.method_id = 60, 40
            self.fail_channel(c, error)
            return
        if self.state == CLOSING:
            self.finish()
            return
        log.warning("%s: connection closed: %d %s", self.peer, error.code, error.reply_text)
        self.close(error)

    def fail_channel(self, c: Channel, error: ChannelError) -> None:
        """Close a channel and say why, unless it or the connection is closed already. No method is to blame: class 0."""
        if c.closing or self.state != RUNNING:
            return
        log.info("%s: channel %d closed: %d %s", self.peer, c.number, error.code, error.reply_text)
        self.broker.jobs.start(self.close_channel(c), owner=self)
        close = ChannelClose(error.code, error.reply_text[:255], error.class_id, error.method_id)
        self.output.put_method(c.number, close.encode())

    def close(self, error: ProtocolError) -> None:
        """Say why, and wait for the answer (the server ends it after a while)."""
        if self.state >= CLOSING:
            return
        self.release()
        self.output.abandon_bodies()
        self.state = CLOSING
        close = ConnectionClose(error.code, error.reply_text[:255], error.class_id, error.method_id)
        self.output.put_method(0, close.encode())
        self.driver.schedule()

    def close_channel(self, c: Channel) -> Iterator[None]:
        """Stop all input and output of a channel. Returns the steps that release what it holds (`closing.steps`)."""
        c.closing = True
        if c.content is not None:
            self._take_content(c)
        if c.tx is not None:
            c.tx.clear()  # the rollback may take several turns, and others may need the memory at once
        self.broker.readers.remove(self, c)
        self.hub.timeouts.forget(c)
        self.hub.replies.forget(c)
        return closing.steps(c)

    def release(self) -> None:
        """The connection ends: give back everything it holds (A6), delete its exclusive queues."""
        with Unanswered(self.broker):
            self._release()

    def _release(self) -> None:
        ending = [(c, self.close_channel(c)) for c in self.channels.values() if not c.closing]
        if ending:
            self.broker.jobs.start(closing.all_steps(ending), owner=self)
        self.hub.channels -= len(self.channels)
        self.channels.clear()
        self._last, self._last_number = None, -1
        if self.queues:
            self.broker.jobs.start(delete_queues(list(self.queues)))
        for queue in self.groups:
            leave_group(queue, self)

    def finish(self) -> None:
        """Send the output that is left and close the socket."""
        if self.state != CLOSED:
            self.state = CLOSED
            self.output.abandon_bodies()
            self.flush()
            self.transport.close()

    def lost(self) -> None:
        """Called when the socket is closed."""
        if self.state < CLOSING:
            self.release()
            if self.state == RUNNING:
                log.info("%s: connection lost", self.peer)
        self.state = CLOSED
        if self.hub.connections.pop(self, 0) is None:
            self.hub.connections_closed += 1
        self.output.forget()
        self.driver.schedule()

    # -- out and flow ----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Hand what has been encoded to the socket."""
        if self.broker.unmarked:
            self.broker.write_marks()
        if self.output.streaming and not self._stream():
            return
        buf = self.output.buf
        if self.output.paused and self.state < CLOSING:
            return
        if buf.n and self.state >= START:
            self.quiet_out = 0
            self.sent_bytes += buf.n
            if self.transport.send(buf):
                buf.clear(KEPT_BYTES)
            else:
                buf.detach()
        if self.output.full:
            self.output.full = False
            if not self.output.paused:
                self._wake()

    def _stream(self) -> bool:
        """Hand on large bodies, some pieces in each turn; False if there are more of them."""
        output = self.output
        output.find_bodies()
        for _ in range(PIECES_PER_TURN):
            if output.paused:
                return False
            piece = output.next_piece()
            if piece is None:
                return True
            self.quiet_out = 0
            self.sent_bytes += len(piece)
            self.transport.write(piece)
        if not output.dirty:
            output.mark_dirty()
        self.driver.schedule()
        return False

    def _wake(self) -> None:
        """Deliveries that had to wait for this socket may go on."""
        if self.output.crowd is not None:
            self.hub.serve_later(self, self.output.crowd)
        self.broker.readers.wake(self)
        self.driver.schedule()

    def writable(self, yes: bool) -> None:
        """The socket takes no more for now (False), or does again."""
        self.output.paused = not yes
        if yes:
            self.flush()
            if self.choked and not self.output.paused:
                self.choked = False
                if not self.stalled:
                    self.unstall()
            self._wake()

    def stall(self) -> None:
        """Take no input until an answer is out."""
        self.stalled = True
        self.transport.pause()

    def unstall(self) -> None:
        """Go on with the input that has been waiting, unless publishers are blocked and this one is held back."""
        if self.held_back and self.state == RUNNING:
            return
        self.stalled = False
        if self.state == CLOSED or self.yielded:
            return
        if self.rest and self.broker.out_of_time():
            self._yield()
        else:
            self._take_rest()

    def _take_rest(self) -> None:
        """Handle the input that has been waiting, and have more read once that is done."""
        if self.rest:
            box = Buf(0)
            box.add(self.rest)
            self.receive(box, box.n)
        if not self.stalled and not self.choked and not self.yielded:
            self.caught_up += 1
            self.transport.resume()

    def set_blocked(self, blocked: bool) -> None:
        """Set whether publishers are blocked (D4). A connection is blocked at its next publish, and that message is still accepted."""
        self.blocked = blocked
        for channel in self.channels.values():
            channel.forget_route()
        if blocked:
            return
        if self.told_blocked and self.state == RUNNING:
            self.told_blocked = False
            self.send(0, ConnectionUnblocked())
        held_back, self.held_back = self.held_back, False
        if held_back and not self.answering:
            self.unstall()

    def block(self) -> None:
        """A message is being published that its queues do not refuse."""
        self.held_back = True
        self.stall()
        self.tell_blocked()

    def tell_blocked(self) -> None:
        """Say that publishers wait, once for an alarm, to a peer that wants to know."""
        if self.can_block and not self.told_blocked and self.state == RUNNING:
            self.told_blocked = True
            self.send(0, ConnectionBlocked(self.hub.alarms.blocked or ""))

    def send(self, channel: int, method: Method) -> None:
        self.output.put_method(channel, method.encode())

    def beat(self) -> bool:
        """Half a heartbeat interval has passed; False if the peer has been silent for two intervals (W6)."""
        unread = self.stalled or self.choked or self.yielded  # it may be alive: we do not look
        self.quiet_in = 0 if unread else self.quiet_in + 1
        if self.quiet_in > 4:
            return False
        output = self.output
        if self.sent_at_beat in (0, self.sent_bytes) and not output.buf.n and not output.paused:
            output.buf.add(HEARTBEAT)
            if not output.dirty:
                output.mark_dirty()
            self.driver.schedule()
        self.sent_at_beat = self.sent_bytes + output.buf.n
        return True

    def give_back(self) -> None:
        """Release large buffers if there was no input or output since the last call. Called at intervals."""
        if self.received_bytes + self.sent_bytes == self._looked_at and not self.output.buf.n:
            self.output.buf.clear(1 << 16)
        self._looked_at = self.received_bytes + self.sent_bytes

    def opened(self) -> None:
        log.info("%s: user %r opened vhost %r", self.peer, self.user.name, self.vhost.name)

    def why_refused(self, name: str) -> None:
        kept_out = not self.loopback and name in self.broker.users.loopback_only
        why = " (this user only from loopback)" if kept_out else ""
        log.warning("%s: login of user %r refused%s", self.peer, name, why)

    # -- permissions -----------------------------------------------------------------------------------------

    @property
    def operations(self) -> Operations:
        """What its user may do in its virtual host."""
        return Operations(self.vhost, self.user, self)

    def reply_address(self, channel: Channel) -> str:
        """The name behind direct reply-to for a request of this channel. ChannelError 406 without its consumer."""
        if channel.reply_tag is None:
            raise ChannelError(406, "fast reply consumer does not exist", 60, 40)
        return self.hub.replies.address_of(channel)


def unknown_tag(tag: int) -> ChannelError:
    return ChannelError(406, f"unknown delivery tag {tag}", 60, 80)


def malformed_publish() -> ConnectionError_:
    return ConnectionError_(FRAME_ERROR, "cannot decode basic.publish", 60, 40)


__all__ = ["Connection", "Transport", "check", "unknown_tag"]

"""The asyncio client's work per message: publishes into bytes, confirms to futures, frames to messages, acks to few frames.

`link.Link` owns a `ConnectionCore` for one TCP connection, each open channel on it has a `ChannelCore`. Nothing here
waits or sends: `ConnectionCore.take` gives what has to be sent, and `call_soon(flush)` asks for that once per loop turn.
Rare methods go into `events`, as in `codec.Scanner`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import ConnectionError_
from kvitto.client.aio.errors import AlreadySettled, Nacked, Returned
from kvitto.client.codec import Scanner, Sink, put_publish, put_settle
from kvitto.client.errors import AMQPError
from kvitto.wire import bits
from kvitto.wire.buf import Buf
from kvitto.wire.properties import Properties

if TYPE_CHECKING:
    from asyncio import Future

    from kvitto.wire.tables import Table, Value

# C integers when compiled (see core.pxd)
_DELIVER, _GET_OK, _RETURN, _ACK, _REJECT, _NACK = 60, 71, 50, 80, 90, 120
_UNSETTLED, _ACKED = 1, 2
_CHUNK = 1 << 17
"""`publish_from` stops when so many bytes wait to be sent."""


class Many:
    """A stream of publishes that one caller waits for together: how many are settled, and which ones have failed."""

    def __init__(self, exchange: bytes, routing_key: bytes, flags: int, properties: bytes) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.flags = flags
        self.properties = properties
        self.sent = 0
        self.settled = 0
        self.failed: list[tuple[int, Exception]] = []
        """(index in the stream, error) of each message that was not confirmed."""
        self.runs: list[tuple[int, int, int]] = []
        """(first tag, index of it, count) of messages whose tags follow each other, to find an index by its tag."""
        self.wake_at = 0
        self.waiter: Future[None] | None = None

    def note(self, tag: int, error: Exception | None) -> int:
        """Note the outcome of one message."""
        self.settled += 1
        if error is not None:
            self.failed.append((self.index(tag), error))
        if self.waiter is not None and (self.settled >= self.wake_at or error is not None):
            self.wake()
        return 0

    def note_failed(self, tag: int, error: Exception) -> None:
        """Note a message whose confirm will not come."""
        self.note(tag, error)

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
        self.waiter = None

    def index(self, tag: int) -> int:
        """Return the index of the message that has this publish number."""
        for first, index, count in reversed(self.runs):
            if first <= tag < first + count:
                return index + tag - first
        return -1


class Waiting:
    """One publish whose content is kept until it is settled: mandatory, or to be sent again after a lost connection."""

    def __init__(
        self,
        exchange: bytes,
        routing_key: bytes,
        flags: int,
        properties: bytes,
        body: bytes,
        owner: Future[None] | Many,
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.flags = flags
        self.properties = properties
        self.body = body
        self.owner: Any = owner
        self.index = -1
        """Its index in the stream if the owner is a `Many`."""
        self.returned: Exception | None = None

    def key(self) -> tuple[bytes, bytes, bytes]:
        """What a returned message is recognised by."""
        return (self.exchange, self.routing_key, self.body)

    def abandoned(self) -> bool:
        """Return whether nobody waits for it any more: the call that published it was cancelled."""
        return not isinstance(self.owner, Many) and self.owner.done()

    def settle(self, error: Exception | None) -> None:
        """Give the outcome to whoever waits for it."""
        owner = self.owner
        if isinstance(owner, Many):
            owner.settled += 1
            if error is not None:
                owner.failed.append((self.index, error))
            if owner.settled >= owner.wake_at or error is not None:
                owner.wake()
        elif owner.done():
            pass
        elif error is None:
            owner.set_result(None)
        else:
            owner.set_exception(error)


class ConsumerCore:
    """The messages of one consumer that have arrived and are not taken yet."""

    def __init__(self) -> None:
        self.messages: deque[IncomingMessage] = deque()
        self.waiter: Future[None] | None = None
        self.no_ack = False
        self.last: IncomingMessage | None = None
        """The message that was taken last: a stream goes on after it when the connection is back."""

    def take(self) -> IncomingMessage | None:
        """Return the next message, or None if none is here."""
        if not self.messages:
            return None
        self.last = self.messages.popleft()
        return self.last

    def wake(self) -> None:
        if self.waiter is not None:
            if not self.waiter.done():
                self.waiter.set_result(None)
            self.waiter = None


class IncomingMessage:
    """A message from the broker.

    `body` is bytes. `exchange`, `routing_key`, `consumer_tag` ("" from `Queue.get`), `delivery_tag` and `redelivered`
    are the broker's. `message_count` is the number of messages left in the queue, from `Queue.get` only.
    """

    def __init__(self) -> None:
        raise TypeError("messages are made by the client; kvitto.Message makes one to publish")

    channel: ChannelCore
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    consumer_tag: str
    raw_properties: bytes
    body: bytes
    message_count: int
    unsettled: bool
    _properties: Properties | None

    @property
    def properties(self) -> Properties:
        """All properties; a field that is absent is None. Raises AMQPError if they are malformed."""
        if self._properties is None:
            try:
                self._properties = Properties.decode(self.raw_properties)
            except ConnectionError_ as error:
                raise AMQPError(
                    f"message {self.delivery_tag}: {error.text}; reject it, or ask who published it"
                ) from None
        return self._properties

    @property
    def headers(self) -> Table:
        """The headers as plain Python types, {} if there are none."""
        if self.properties.headers is None:
            self.properties.headers = {}
        return self.properties.headers

    @property
    def offset(self) -> int | None:
        """The position in its stream (header x-stream-offset), None in other queues."""
        found: Value = self.headers.get("x-stream-offset")
        return found if isinstance(found, int) else None

    @property
    def settled(self) -> bool:
        """Whether it was acked or rejected here, or needs no ack."""
        return not self.unsettled or self.channel.is_settled(self.delivery_tag)

    def ack(self, *, multiple: bool = False) -> bool:
        """Acknowledge it, with `multiple` all earlier messages of the channel too. There is nothing to wait for.

        Return False if the connection or channel on which it came is gone: the broker delivers the message again.
        Raise AlreadySettled after an ack or reject.
        """
        return self._settle(_ACK, 1 if multiple else 0)

    def reject(self, *, requeue: bool = False) -> bool:
        """Reject it: the broker dead-letters or drops it, or with `requeue` delivers it again. Returns and raises as `ack`."""
        return self._settle(_REJECT, 1 if requeue else 0)

    def nack(self, *, multiple: bool = False, requeue: bool = True) -> bool:
        """Like `reject`, with `multiple` for all earlier messages of the channel too, and `requeue` by default."""
        return self._settle(_NACK, (1 if multiple else 0) | (2 if requeue else 0))

    def _settle(self, method: int, flags: int) -> bool:
        channel = self.channel
        if not self.unsettled:
            raise AlreadySettled("this message was acked or rejected before, or its consumer needs no acks")
        self.unsettled = False
        if not channel.alive:
            channel.connection.dropped += 1
            return False
        if method == _ACK and flags == 0:
            channel.ack(self.delivery_tag)
        else:
            channel.settle_now(self.delivery_tag, method, flags)
        return True

    def mark_settled(self) -> None:
        """Note that this message needs no ack."""
        self.unsettled = False
        self.channel.release_delivery(self.delivery_tag)

    def process(self, *, on_error: str = "reject") -> Processing:
        """`async with message.process(on_error="requeue"):` acks at the end; on an exception it rejects or requeues, and the
        exception goes on. A message that was settled inside is left alone."""
        if on_error not in ("reject", "requeue"):
            raise ValueError(f'on_error is "reject" or "requeue", not {on_error!r}')
        return Processing(self, on_error == "requeue")

    async def __aenter__(self) -> IncomingMessage:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        end(self, error, False)

    def __enter__(self) -> IncomingMessage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        end(self, error, False)

    def __repr__(self) -> str:
        shown = self.body if len(self.body) <= 40 else self.body[:40] + b"..."
        return f"<IncomingMessage {self.delivery_tag} {self.exchange!r} {self.routing_key!r} {shown!r}>"


class Processing:
    """What `IncomingMessage.process` returns."""

    def __init__(self, message: IncomingMessage, requeue: bool) -> None:
        self.message = message
        self.requeue = requeue

    async def __aenter__(self) -> IncomingMessage:
        return self.message

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        end(self.message, error, self.requeue)

    def __enter__(self) -> IncomingMessage:
        return self.message

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        end(self.message, error, self.requeue)


def end(message: IncomingMessage, error: BaseException | None, requeue: bool) -> None:
    """Settle a message at the end of its block. A cancelled block (no Exception) has not failed: the message returns to
    its queue."""
    if message.settled:
        return
    if error is None:
        message.ack()
    else:
        message.reject(requeue=requeue or not isinstance(error, Exception))


class ChannelCore(Sink):
    """One channel on one TCP connection. `alive` is False when either has ended."""

    def __init__(self, connection: ConnectionCore, channel: int, new_future: Callable[[], Future[None]]) -> None:
        Sink.__init__(self, channel)
        self.connection = connection
        self.new_future = new_future
        self.alive = True
        self.open = False
        """Whether publishes go straight out: alive, open, not paused."""
        self.confirms = False
        self.keep = False
        """Whether the content of each publish is kept, to be sent again after a lost connection."""
        self.ring: list[Any] = [None] * 64
        self.low = 1
        self.next = 1
        self.mandatory: dict[tuple[bytes, bytes, bytes], deque[Waiting]] = {}
        self.consumers: dict[bytes, ConsumerCore] = {}
        self.last_consumer: ConsumerCore | None = None
        self.last_consumer_tag = b""
        self.consumer_name = ""
        self.last_exchange = b""
        self.exchange_name = ""
        self.last_key = b""
        self.key_name = ""
        self.states = Buf(256)
        self.states_mask = 255
        self.unacked_low = 1
        """The lowest delivery tag that may be unsettled."""
        self.tag_next = 1
        self.sequential = True
        """Whether delivery tags have come as 1, 2, 3, ... as from all known brokers. Otherwise acks are not combined."""
        self.combine = True
        self.acks: list[int] = []
        """Tags whose acks are not written yet."""
        self.new_message: Callable[[], IncomingMessage] | None = None
        """Makes a message of another class, None for `IncomingMessage`."""
        self.unexpected = 0
        """The number of deliveries for a consumer that does not exist (any more)."""

    # --- publishing

    def publish(
        self, exchange: str, routing_key: str, flags: int, properties: bytes, body: bytes, waiter: Any = None
    ) -> Future[None] | None:
        """Write one publish. Return the future of its confirm, or `waiter` if there is one, or None on a channel without confirms.

        waiter: what gets the outcome instead of a new future. It has a future's methods `done`, `set_result` and `set_exception`.
        """
        e = exchange.encode()
        r = routing_key.encode()
        future = None
        put_publish(self.connection.out, self.channel, e, r, flags, properties, body, self.connection.frame_max)
        if self.confirms:
            future = self.new_future() if waiter is None else waiter
            if flags or self.keep:
                self.enter(self.remember(Waiting(e, r, flags, properties, body, future)))
            else:
                self.enter(future)
        self.connection.schedule()
        return future

    def publish_again(self, waiting: Waiting) -> None:
        """Write a publish that got no confirm before its connection was lost."""
        frame_max = self.connection.frame_max
        key, flags = waiting.routing_key, waiting.flags
        waiting.returned = None  # this publish has an outcome of its own: there may be a queue now
        put_publish(
            self.connection.out, self.channel, waiting.exchange, key, flags, waiting.properties, waiting.body, frame_max
        )
        self.enter(self.remember(waiting))
        self.connection.schedule()

    def publish_from(self, messages: Iterator[Any], many: Many, most: int) -> bool:
        """Write up to `most` messages, until about 128 KiB are there. Return False at the end of `messages`.

        Each message is bytes, or has `exchange`, `routing_key` and `body`, and `encoded()` for its properties.
        """
        out = self.connection.out
        frame_max = self.connection.frame_max
        count = 0
        first = self.next
        more = True
        plain = not self.keep and many.flags == 0 and self.confirms
        try:
            while count < most and out.n < _CHUNK:
                try:
                    item = next(messages)
                except StopIteration:
                    more = False
                    break
                exchange = many.exchange
                key = many.routing_key
                properties = many.properties
                if type(item) is bytes:
                    body = item
                else:
                    body = item.body
                    exchange = item.exchange.encode() or exchange
                    key = item.routing_key.encode() or key
                    properties = item.encoded()
                put_publish(out, self.channel, exchange, key, many.flags, properties, body, frame_max)
                if plain:
                    self.enter(many)
                elif self.confirms:
                    waiting = Waiting(exchange, key, many.flags, properties, body, many)
                    waiting.index = many.sent + count
                    self.enter(self.remember(waiting))
                count += 1
        finally:
            if plain and count:
                many.runs.append((first, many.sent, count))
                if len(many.runs) > 64:  # runs whose messages are all settled are not needed any more
                    many.runs = [run for run in many.runs if run[0] + run[2] > self.low]
            many.sent += count
            if not self.confirms:
                many.settled = many.sent
            self.connection.schedule()
        return more

    def remember(self, waiting: Waiting) -> Waiting:
        """Note a mandatory message, to recognise it if it is returned."""
        if waiting.flags & 1:
            self.mandatory.setdefault(waiting.key(), deque()).append(waiting)
        return waiting

    def enter(self, entry: Any) -> int:
        """Give the next publish number to what waits for its confirm."""
        mask = len(self.ring) - 1
        if self.next - self.low > mask:
            self.widen()
            mask = len(self.ring) - 1
        self.ring[self.next & mask] = entry
        self.next += 1
        return 0

    def widen(self) -> None:
        """Make a larger ring, and move what waits into it."""
        size = len(self.ring)
        fresh = [None] * (2 * size)
        for tag in range(self.low, self.next):
            fresh[tag & (2 * size - 1)] = self.ring[tag & (size - 1)]
        self.ring = fresh

    def confirmed(self, tag: int, multiple: int, ok: int) -> int:
        """Handle a confirm. Return 0, or a reply code if no such publish was ever sent."""
        if not self.confirms or tag >= self.next:
            return 503
        ring = self.ring
        mask = len(ring) - 1
        k = tag
        last = tag
        if multiple:
            k = self.low
            if tag == 0:
                last = self.next - 1
        elif tag < self.low:
            return 0
        while k <= last:
            entry = ring[k & mask]
            if entry is not None:
                ring[k & mask] = None
                self.resolve(entry, k, ok)
            k += 1
        k = self.low
        while k < self.next and ring[k & mask] is None:
            k += 1
        self.low = k
        return 0

    def resolve(self, entry: Any, tag: int, ok: int) -> int:
        """Give one publish its outcome."""
        if type(entry) is Many:
            many: Many = entry
            many.note(tag, None if ok else Nacked(tag))
        elif type(entry) is Waiting:
            waiting: Waiting = entry
            if waiting.flags & 1:
                self.forget(waiting)
            waiting.settle(waiting.returned if ok else Nacked(tag))
        elif not entry.done():
            if ok:
                entry.set_result(None)
            else:
                entry.set_exception(Nacked(tag))
        return 0

    def forget(self, waiting: Waiting) -> None:
        """Stop waiting for a mandatory message's return."""
        key = waiting.key()
        alike = self.mandatory.get(key)
        if alike is not None:
            if waiting in alike:
                alike.remove(waiting)
            if not alike:
                del self.mandatory[key]

    def returned(self, code: int, text: str, exchange: str, routing_key: str, properties: bytes, body: bytes) -> bool:
        """Note a returned message. Return False if no publish waits that it could be."""
        key = (exchange.encode("utf-8", "surrogateescape"), routing_key.encode("utf-8", "surrogateescape"), body)
        for waiting in self.mandatory.get(key, ()):
            if waiting.returned is None:
                waiting.returned = Returned(code, text, exchange, routing_key, properties, body)
                return True
        return False

    def unconfirmed(self) -> list[tuple[int, Any]]:
        """Return what waits for a confirm, with its publish number, in the order of the publishes; nothing waits any more."""
        mask = len(self.ring) - 1
        found = [(tag, self.ring[tag & mask]) for tag in range(self.low, self.next)]
        self.ring = [None] * 64
        self.low = self.next
        self.mandatory = {}
        return [(tag, entry) for tag, entry in found if entry is not None]

    # --- consuming

    def deliver(self, p: bytearray, i: int, n: int) -> int:
        """Make a message of the method in `head`, the properties in `props` and the body p[i:i+n]."""
        h = self.head.p
        k = 4
        size = self.head.n
        consumer = None
        if self.method == _DELIVER:
            c = h[4]
            consumer = self.last_consumer
            if (
                consumer is None
                or c != len(self.last_consumer_tag)
                or not bits.same(h, 5, self.last_consumer_tag, 0, c)
            ):
                if self.find_consumer(bytes(h[5 : 5 + c])):
                    consumer = self.last_consumer
                else:
                    consumer = None
            k = 5 + c
        if k + 11 > size:
            return 502
        tag = bits.be64(h, k)
        redelivered = h[k + 8] & 1
        k += 9
        c = h[k]
        if k + 2 + c > size:
            return 502
        if c != len(self.last_exchange) or not bits.same(h, k + 1, self.last_exchange, 0, c):
            self.last_exchange = bytes(h[k + 1 : k + 1 + c])
            self.exchange_name = self.last_exchange.decode("utf-8", "surrogateescape")
        k += 1 + c
        c = h[k]
        if k + 1 + c > size:
            return 502
        if c != len(self.last_key) or not bits.same(h, k + 1, self.last_key, 0, c):
            self.last_key = bytes(h[k + 1 : k + 1 + c])
            self.key_name = self.last_key.decode("utf-8", "surrogateescape")
        k += 1 + c
        make = self.new_message
        message = IncomingMessage.__new__(IncomingMessage) if make is None else make()
        message.channel = self
        message.delivery_tag = tag
        message.redelivered = redelivered == 1
        message.exchange = self.exchange_name
        message.routing_key = self.key_name
        message.raw_properties = bytes(self.props.p[0 : self.props.n])
        message.body = bytes(p[i : i + n])
        message.message_count = 0
        message.unsettled = True
        message._properties = None
        if self.method == _DELIVER:
            if consumer is None:
                self.note_delivery(tag, 1)
                self.unexpected += 1
                self.connection.events.append((self.channel, 2, b"", message))
                return 0
            message.consumer_tag = self.consumer_name
            message.unsettled = not consumer.no_ack
            self.note_delivery(tag, 0 if consumer.no_ack else 1)
            consumer.messages.append(message)
            if consumer.waiter is not None:
                consumer.wake()
        else:
            if k + 4 > size:
                return 502
            message.consumer_tag = ""
            message.message_count = bits.be32(h, k)
            self.note_delivery(tag, 1)
            self.connection.events.append((self.channel, 2, self.head.tobytes(), message))
        return 0

    def find_consumer(self, tag: bytes) -> bool:
        """Make the consumer with this tag the last one. Return False if there is none."""
        found = self.consumers.get(tag)
        self.last_consumer = found
        self.last_consumer_tag = tag
        self.consumer_name = tag.decode("utf-8", "surrogateescape")
        return found is not None

    def add_consumer(self, tag: str, consumer: ConsumerCore) -> None:
        self.consumers[tag.encode()] = consumer
        self.last_consumer = None

    def remove_consumer(self, tag: str) -> None:
        self.consumers.pop(tag.encode(), None)
        self.last_consumer = None

    def note_delivery(self, tag: int, state: int) -> int:
        """Note that a message came: `state` 1 if it has to be settled."""
        if not self.sequential:
            return 0
        if tag != self.tag_next:
            self.write_acks()
            self.sequential = False
            return 0
        if state == 0 and tag == self.unacked_low:  # nothing to remember
            self.unacked_low = self.tag_next = tag + 1
            return 0
        if tag - self.unacked_low > self.states_mask:
            self.widen_states()
        self.states.p[tag & self.states_mask] = state
        self.tag_next = tag + 1
        return 0

    def release_delivery(self, tag: int) -> None:
        """Note that a delivery needs no ack."""
        if self.sequential and not self.is_settled(tag):
            self.states.p[tag & self.states_mask] = 0
            self.advance()

    def widen_states(self) -> None:
        size = self.states_mask + 1
        fresh = Buf(2 * size)
        for tag in range(self.unacked_low, self.tag_next):
            fresh.data[tag & (2 * size - 1)] = self.states.data[tag & (size - 1)]
        self.states = fresh
        self.states_mask = 2 * size - 1

    def is_settled(self, tag: int) -> bool:
        """Return whether a delivery is known to be settled, by a `multiple` ack too."""
        if not self.sequential:
            return False
        return tag < self.unacked_low or (tag < self.tag_next and self.states.p[tag & self.states_mask] != _UNSETTLED)

    def ack(self, tag: int) -> int:
        """Ack one delivery with the next `take`."""
        if self.sequential:
            if self.is_settled(tag):
                raise AlreadySettled("this message was acked or rejected before")
            self.states.p[tag & self.states_mask] = _ACKED
        if not self.acks:
            self.connection.acking.append(self)
            self.connection.schedule()
        self.acks.append(tag)
        return 0

    def settle_now(self, tag: int, method: int, flags: int) -> int:
        """Write an ack of many, a reject or a nack, after the acks that came before."""
        self.write_acks()
        if self.sequential:
            if self.is_settled(tag):
                raise AlreadySettled("this message was acked or rejected before")
            if method != _REJECT and flags & 1:
                for earlier in range(self.unacked_low, tag):
                    self.states.p[earlier & self.states_mask] = 0
            self.states.p[tag & self.states_mask] = 0
            self.advance()
        put_settle(self.connection.out, self.channel, method, tag, flags)
        self.connection.schedule()
        return 0

    def write_acks(self) -> None:
        """Write the acks that wait, as one if that is the same: no earlier message of the channel is unsettled."""
        acks = self.acks
        if not acks:
            return
        out = self.connection.out
        states = self.states.p
        mask = self.states_mask
        count = 0
        last = 0
        if self.sequential and self.combine:
            k = self.unacked_low
            while k < self.tag_next and states[k & mask] != _UNSETTLED:
                if states[k & mask] == _ACKED:
                    last = k
                    count += 1
                    states[k & mask] = 0
                k += 1
            self.unacked_low = k
            if count:
                put_settle(out, self.channel, _ACK, last, 1 if count > 1 else 0)
        if count < len(acks):
            for tag in acks:
                if tag > last:
                    put_settle(out, self.channel, _ACK, tag, 0)
                    if self.sequential:
                        states[tag & mask] = 0
        self.acks = []
        self.advance()

    def advance(self) -> None:
        k = self.unacked_low
        while k < self.tag_next and self.states.p[k & self.states_mask] == 0:
            k += 1
        self.unacked_low = k

    def die(self) -> None:
        """Note that the channel or its connection has ended."""
        self.alive = False
        self.open = False
        self.acks = []


class ConnectionCore(Scanner):
    """The bytes of one TCP connection, both ways."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], flush: Callable[[], None]) -> None:
        Scanner.__init__(self)
        self.out = Buf(1 << 16)
        self.call_soon = call_soon
        self.flush = flush
        self.scheduled = False
        self.acking: list[ChannelCore] = []
        """The channels with acks that are not written yet."""
        self.dropped = 0
        """The number of acks and rejects that came after the connection was lost."""

    def open_channel(self, number: int, new_future: Callable[[], Future[None]]) -> ChannelCore:
        self.open(number)
        core = ChannelCore(self, number, new_future)
        self.sinks[number] = core
        return core

    def close_channel(self, number: int) -> None:
        """Take no more content for this channel. Methods become events still."""
        self.sinks[number] = None

    def schedule(self) -> None:
        """Ask for `flush` in this turn of the loop, once."""
        if not self.scheduled:
            self.scheduled = True
            self.call_soon(self.flush)

    def take(self) -> bytes:
        """Return what has to be sent, acks too."""
        self.scheduled = False
        if self.acking:
            acking, self.acking = self.acking, []
            for channel in acking:
                if channel.alive:
                    channel.write_acks()
        data = self.out.tobytes()
        self.out.clear()
        return data

    def received(self, count: int) -> None:
        """Handle `count` bytes that were read behind `inp`. Raise ConnectionError_ if they are not AMQP."""
        self.inp.n += count
        self.scan(0)

    # --- what Scanner calls

    def finish(self, sink: Sink, p: bytearray, i: int, n: int) -> int:
        """End a message: p[i:i+n] is its body."""
        sink.state = 0
        if sink.method == _RETURN:
            self.content(sink, sink.partial if sink.partial.n else self.inp, i, n)
            return 0
        channel: ChannelCore = sink  # type: ignore[assignment]  # `open_channel` makes all sinks
        return channel.deliver(p, i, n)

    def content(self, sink: Sink, source: Buf, i: int, n: int) -> None:
        """Handle a returned message before the confirm that follows it."""
        self.note_return(sink, sink.head.tobytes(), sink.props.tobytes(), source.tobytes(i, i + n))

    def note_return(self, sink: Any, head: bytes, properties: bytes, body: bytes) -> None:
        try:
            code = int.from_bytes(head[4:6], "big")
            at, texts = 6, []
            for _ in range(3):
                texts.append(head[at + 1 : at + 1 + head[at]].decode("utf-8", "surrogateescape"))
                at += 1 + head[at]
        except IndexError:
            raise ConnectionError_(502, "the server sent a basic.return that ends too early") from None
        text, exchange, key = texts
        if not sink.returned(code, text, exchange, key, properties, body):
            self.events.append((sink.channel, 4, head, Returned(code, text, exchange, key, properties, body)))

    def confirm(self, sink: Sink, tag: int, multiple: int, ok: int) -> int:
        channel: ChannelCore = sink  # type: ignore[assignment]
        return channel.confirmed(tag, multiple, ok)

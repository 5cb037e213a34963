"""One channel: its publishes, its unacked deliveries, and its confirm numbers.

The data plane of a channel (`publish`, `remember`, `settle_tags`) is compiled. Unacked deliveries are 24-byte entries in `_tags`
(offset u64, tag u64, body length u32, slot u32), tags ascending; a tag without an entry needed no ack. The slot says which
consumer, 0 = settled, and its highest bit that the entry is uncommitted. `protocol/methods/` decodes methods and calls this.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import (
    FRAME_ERROR,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    ChannelError,
    ConnectionError_,
    ProtocolError,
)
from kvitto.broker import walls
from kvitto.broker.administration.admission import DIRECT_REPLY_TO, admit, as_stored, copy_keys
from kvitto.broker.administration.histories import Unseen
from kvitto.broker.latencies import Timed
from kvitto.broker.queues.consumer import ACK, FAILED, REJECT, REQUEUE, RETRY, Consumer
from kvitto.broker.queues.queue import Queue
from kvitto.broker.queues.ranges import RangeSet
from kvitto.broker.routing.route import Route
from kvitto.broker.routing.walking import SEARCH_COST
from kvitto.broker.transfers.copying import COPIES_BYTES, PIECE_COST, copies
from kvitto.format.entry import SPECIAL
from kvitto.protocol.crowd import Crowd
from kvitto.protocol.output import Output
from kvitto.wire import bits, check
from kvitto.wire.buf import Buf
from kvitto.wire.methods import BasicNack, BasicReturn
from kvitto.wire.properties import Properties

if TYPE_CHECKING:
    from kvitto.broker.transfers.stages import Stage
    from kvitto.broker.transfers.transactions import Transaction
    from kvitto.broker.vhost import VHost
    from kvitto.protocol.connection import Connection
    from kvitto.protocol.delivery import ChannelConsumer, GetConsumer

log = logging.getLogger("kvitto.amqp")

AT_COMMIT = 3
"""A kind of settlement beside those of broker/queues/consumer.py: it waits for a commit, and its deliveries go to `Channel.uncommitted`."""
UNKNOWN, SETTLED, MORE = 0, 1, 2
PIECE = 5000
"""The most that settling may cost in one piece, in units of 0.1 us."""
RUN_MAX = 256
"""Deliveries that are settled by one call of their queue."""
SCANNED = 500 * 24
"""Bytes of entries that can be looked at in 1 us."""
LOOKED_AT = 300 * SCANNED
"""Bytes of entries that are looked at in one piece."""

MANY = 200
"""The number of queues above which a message is appended in pieces."""
DIRTY_COST = 5
"""The cost of a first message for a queue in a turn, for its connection. The write itself has a budget of its own."""
SPECIAL_COST, DECODE_COST = 4, 10
"""The cost of a message whose properties are read, and of decoding them if they matter."""
ENTRY = 24
UNCOMMITTED = 0x80000000

_ENTRY = ENTRY  # C variables when compiled
_MANY = MANY
_COPIES_BYTES = COPIES_BYTES
_UNCOMMITTED = UNCOMMITTED
_UNKNOWN, _SETTLED, _MORE = UNKNOWN, SETTLED, MORE
_PIECE = PIECE
_RUN_MAX = RUN_MAX
_SCANNED = SCANNED
_LOOKED_AT = LOOKED_AT
_ACK = ACK
_REJECT = REJECT
_AT_COMMIT = AT_COMMIT
_RETRY = RETRY
_FAILED = FAILED


class Channel:
    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.vhost: VHost = connection.vhost
        self._traffic, self._touched = connection.vhost.traffic, connection.confirms.touched
        self.output: Output = connection.output
        self.closing = False
        self.flow = True
        self.consumers: dict[str, Consumer] = {}
        self.last_queue = ""

        self.prefetch = self.prefetch_all = 0
        self.unacked = 0
        self.unacked_max = self.connection.broker.limits.unacked_max
        self.capped = False
        self.got = 0
        """The unacked deliveries of basic.get, which do not count towards the prefetch (A10)."""
        self.crowd: Crowd | None = None
        self.getters: dict[Queue, GetConsumer] = {}
        self.next_tag = 1
        self._head = 0
        self._tags = Buf(0)
        self.slots: list[Consumer | None] = []
        self._free: list[int] = []
        self.uncommitted: list[tuple[Consumer, int, int, int, int]] = []
        self.next_to_settle = self.settle_until = 0

        self.timed = Timed(connection.broker.latencies, connection.broker.clock)

        self.confirm = False
        self.tx: Any = None
        self.sequence = 0
        self.noted = 0
        """The sequence that `Confirms.note_published` has seen last."""
        self.confirmed = 0
        self.published = self.counted = self.answered = self.returned = self.dropped = 0
        """Publishes, how many of them the traffic of its exchange has, and how many were acked; those that reached no queue: with the flag
        mandatory, and without."""
        self.delivered = self.delivered_auto = self.redelivered = self.acks = 0
        self.gets = self.gets_auto = self.gets_empty = 0
        """`delivered`, `delivered_auto`: deliveries to consumers that have gone, with acks and without."""
        self.nacked: RangeSet | None = None
        self.unsynced = self.touched = self.reading = False
        self.in_flight = 0

        self.stage: Stage | None = None
        self.route: Route | None = None
        self.appending = -1
        """The index of the route's queue that is taking a message, and is to blame if that raises an exception."""
        self.settling = 0
        """The slot whose queue is taking a settlement, and is to blame if that raises an exception."""
        self.used: list[Route] = []
        """The routes of unconfirmed publishes, without the last route."""
        self.plain = -1
        """A body of up to this many bytes is appended to all queues of the route in one step, unless its properties need a look."""
        self.dirtied = 0
        """Queues that had something to be written when the last message for several queues came."""
        self.searching: Generator[bool, None, Route] | None = None
        """The search for a route that takes more than one turn."""
        self._key = Buf(256)
        self._epoch = connection.vhost.epoch
        self._generation = -1
        self._props = Buf(64)
        self._allowed: dict[str, int] = {}

        self.content: Content | None = None
        self.reply_tag: str | None = None

    # -- publish ---------------------------------------------------------------------------------------------

    def publish(self, p, key, key_len, options, props_p, props, props_len, body_p, body, body_len):  # type: ignore[no-untyped-def]
        """Publish a complete message. key: exchange and routing key as short strings. options: mandatory | immediate << 1."""
        route = self.route
        if (
            route is None
            or self._generation != self._epoch.value
            or key_len != self._key.n
            or not bits.same(self._key.p, 0, p, key, key_len)
        ):
            route = self.find_route(bytes(p[key : key + key_len]))
            if route is None:
                self.publish_later(
                    bytes(p[key : key + key_len]),
                    options,
                    bytes(props_p[props : props + props_len]),
                    bytes(body_p[body : body + body_len]),
                )
                return 0
        self.published += 1
        inside = 0
        if props_len != self._props.n or not bits.same(self._props.p, 0, props_p, props, props_len):
            inside = check.check_properties(props_p, props, props_len)
            if inside == 0:
                self._props.n = 0
                self._props.reserve(props_len)
                bits.copy(self._props.p, 0, props_p, props, props_len)
                self._props.n = props_len
        if self.confirm:
            self.sequence += 1
            if not self.touched:
                self.touch()
        if inside or options & 2 or body_len > self.plain:
            self.take_turns(
                self.publish_special(
                    bytes(p[key : key + key_len]),
                    options,
                    bytes(props_p[props : props + props_len]),
                    bytes(body_p[body : body + body_len]),
                    inside,
                    self.tx,
                )
            )
            return 0
        if route.count > 1:
            self.several(route.count, body_len)
        refused = None
        for k in range(route.count):
            q = route.first
            if k:
                q = route.queues[k]
            self.appending = k
            if not q.append(p, key, key_len, props_p, props, props_len, body_p, body, body_len, -1, 0):
                if refused is None:
                    refused = []
                refused.append(q)
        self.appending = -1
        if route.durable:
            self.unsynced = True
        if refused is not None:
            self.take_turns(
                self.refused(
                    refused,
                    bytes(p[key : key + key_len]),
                    bytes(props_p[props : props + props_len]),
                    bytes(body_p[body : body + body_len]),
                )
            )
        return 0

    def publish_large(self, key: bytes, options: int, props: bytes, body: Buf) -> None:
        """Do the work of `publish` for a body that is not copied and must not be changed any more."""
        if self.find_route(key) is None:
            self.publish_later(key, options, props, body)
            return
        self.published += 1
        self._count()
        inside = check.check_properties(props, 0, len(props))
        self.take_turns(self.publish_special(key, options, props, body, inside, self.tx))

    def publish_later(self, key: bytes, options: int, props: bytes, body: bytes | Buf) -> None:
        """Publish a message when the search for its route, which has begun, is done. That takes several turns."""
        searching, self.searching = self.searching, None
        assert searching is not None
        tx = self.tx

        def steps() -> Iterator[bool]:
            self._take_route(key, (yield from searching))
            if self.vhost.remembered(key) is None:
                self._generation = -1  # something has changed meanwhile
            self.published += 1
            self._count()
            inside = check.check_properties(props, 0, len(props))
            yield from self.publish_special(key, options, props, body, inside, tx)

        self.take_turns(steps())

    def several(self, count, body_len):  # type: ignore[no-untyped-def]
        """Count the cost of a message for several queues: its copies, and the writes of queues that had nothing to write yet."""
        broker = self.connection.broker
        dirty = len(broker.dirty)
        self.connection.spend((count >> 3) + (count * body_len >> 11) + DIRTY_COST * max(dirty - self.dirtied, 0))
        self.dirtied = dirty

    def take_turns(self, steps: Iterator[bool]) -> None:
        """Publish a message: now, or in several turns, while the input behind it waits."""
        for _ in steps:
            self.connection.perform(blamed(steps), channel=self)
            return

    def _count(self) -> None:
        """Count a published message."""
        if self.confirm:
            self.sequence += 1
            if not self.touched:
                self.touch()

    def _uncount(self) -> None:
        """Take back the count of a message that is not published yet at the end of this turn, so that nothing confirms it."""
        if self.confirm:
            self.sequence -= 1

    def _search(self, steps: Generator[bool, None, Route]) -> Generator[bool, None, Route]:
        try:
            next(steps)
        except StopIteration as end:
            found: Route = end.value
            self.connection.spend(self.vhost.search_cost >> 3)
            return found
        self._uncount()
        yield True
        found = yield from steps
        self._count()
        return found

    def find_route(self, key: bytes) -> Route | None:
        """Return the route for a key that is not the last one, and check that this user may publish there (W5).

        Returns None if the search takes more than one turn. It is then under way.
        """
        try:
            route = self.vhost.remembered(key)
            if route is None:
                self.searching = self.vhost.route_steps(key)
                next(self.searching)
                return None
        except StopIteration as end:
            route = end.value
            self.connection.spend(SEARCH_COST + (self.vhost.search_cost >> 3))
        except UnicodeDecodeError:
            text = "exchange and routing key of basic.publish must be UTF-8"
            raise ConnectionError_(FRAME_ERROR, text, 60, 40) from None
        return self._take_route(key, route)

    def _take_route(self, key: bytes, route: Route) -> Route:
        """Use this route for further publishes, if the user has the permission."""
        self.may_publish(route.exchange)
        if self.connection.user.topics:
            self.connection.operations.may_use_topic("write", route.exchange, route.routing_key)
        if self.published != self.counted:
            self.count_published()
        if self.stage is not None and (route.count or route.dynamic):
            staged: list[Queue] = [self.open_stage().queue]
            route = Route(route.exchange, route.routing_key, staged, route.dynamic, route.traffic)
        elif self.confirm and self.connection.blocked and route.nacks_on_alarm:
            route = Route(route.exchange, route.routing_key, [], False, route.traffic)
            route.refused = True
        if self.tx is not None or route.dynamic or route.out_of_service is not None or not 0 < route.count <= _MANY:
            self.plain = -1
        elif route.count == 1:
            self.plain = self.connection.broker.limits.body_max
        else:
            self.plain = _COPIES_BYTES // route.count
        self._key.n = 0
        self._key.add(key)
        self._generation = self._epoch.value
        if self.confirm and self.route is not None:
            self.used.append(self.route)
        self.route = route
        return route

    def count_published(self):  # type: ignore[no-untyped-def]
        """Count what was published since the last call in the traffic of the exchange."""
        count = self.published - self.counted
        route = self.route
        if count and route is not None:
            self.counted = self.published
            route.traffic.add(count, 0 if route.dynamic else count * route.count)

    def refuses(self, key: bytes) -> bool:
        """Whether a publish during an alarm is nacked, so that its connection need not be blocked (D4)."""
        try:
            route = self.find_route(key)
            return route is not None and route.refused
        except ProtocolError:  # raised again when the message is complete
            return False

    def put_aside_in(self, stage: Stage) -> None:
        """Put all further publishes into the stage, where they wait for its commit."""
        self.stage = stage
        self.forget_route()

    def forget_route(self) -> None:
        """Drop the cached route, because something that it depends on has changed."""
        self._generation = -1

    def open_stage(self) -> Stage:
        """Return the stage. Raises ChannelError 406 if it is closed."""
        assert self.stage is not None
        if self.stage.closed:
            raise ChannelError(PRECONDITION_FAILED, f"the {self.stage.name} was committed or dropped: open another")
        return self.stage

    def may_publish(self, exchange: str) -> None:
        """Raises ChannelError 403 for an internal exchange or one that the user may not write to."""
        if self._allowed.get(exchange) == self._epoch.value:
            return
        self.connection.operations.may_publish(exchange)
        self._allowed[exchange] = self._epoch.value

    def publish_special(
        self, key: bytes, options: int, props: bytes, body: bytes | Buf, inside: int, tx: Transaction | None
    ) -> Iterator[bool]:
        """Publish a message that needs more checks: its properties matter, it has no queue or very many, or it waits for a commit.

        This works in pieces, since routing may take long. The message is counted in `sequence`, except between two pieces.
        `tx` is the transaction in which it was published. The channel, and with it the transaction, may have ended since then.
        """
        assert self.route is not None
        route, ttl_ms, published = self.route, -1, props
        self.connection.spend(SPECIAL_COST)
        if options & 2:
            raise ConnectionError_(NOT_IMPLEMENTED, "immediate=true", 60, 40)
        if inside == check.MALFORMED:
            Properties.decode(props)  # says what is wrong, if it finds it too
            raise ConnectionError_(502, "malformed properties", 60, 40)
        if inside or route.dynamic:
            properties = Properties.decode(props)
            self.connection.spend(DECODE_COST + (len(props) >> 5))
            ttl_ms = admit(properties, self.connection.user, self.connection.broker.limits.copies_max)
            if inside & check.COPIES and self.connection.user.topics:
                keys = copy_keys(properties.headers or {})
                self.connection.operations.may_use_topic("write", route.exchange, *keys)
            if (inside & check.COPIES and not route.refused) or route.dynamic:
                known = 0 if route.dynamic else route.count
                route = yield from self._search(
                    self.vhost.message_route_steps(route.exchange, route.routing_key, properties)
                )
                route.traffic.add(0, route.count - known)
            if inside & (check.COPIES | check.REPLY_TO):
                direct = properties.reply_to == DIRECT_REPLY_TO
                reply_to = self.connection.reply_address(self) if direct else None
                props = as_stored(props, properties.headers or {}, route.queues, reply_to)
        if self.stage is not None and route.count:
            if inside & check.REPLY_TO:
                raise ChannelError(PRECONDITION_FAILED, "direct reply-to cannot wait in a stage")
            self.unsynced = True
            queue = self.open_stage().queue
            if isinstance(body, Buf):
                self._uncount()
                yield from copies([queue], key, published, body, -1, [], SPECIAL)
                self._count()
            else:
                walls.within(queue, queue.append_bytes, key, published, body, -1, SPECIAL)
            return
        if tx is not None:
            if not self.closing:
                tx.publish(route, key, bool(options & 1), props, body, ttl_ms)
            return
        yield from self.enqueue(route, key, bool(options & 1), props, body, ttl_ms)

    def enqueue(
        self, route: Route, key: bytes, mandatory: bool, props: bytes, body: bytes | Buf, ttl_ms: int
    ) -> Iterator[bool]:
        """Append the message to its queues, or return it to the publisher (C4, D4)."""
        if route.refused:
            yield from self.refused([], key, props, body)
            return
        if route.out_of_service is not None and not self.confirm and not route.count:
            raise walls.out_of_service(route.out_of_service)
        if not route.count and route.out_of_service is None:
            self.unroutable(route, mandatory, props, body)
            return
        if isinstance(route, Unseen):
            self.unroutable(route, mandatory, props, body)
        refused: list[Queue] = []
        lost = False
        size = len(body)
        if isinstance(body, Buf) or route.count > MANY or (route.count > 1 and route.count * size > COPIES_BYTES):
            self._uncount()
            yield from copies(route.queues, key, props, body, ttl_ms, refused)
            # one that has gone out of service meanwhile has no copy, or not written it
            lost = any(q.fault is not None for q in route.queues)
            self._count()
        else:
            refused += [q for q in route.queues if not walls.within(q, q.append_bytes, key, props, body, ttl_ms, 0)]
        if route.dynamic and self.confirm:
            self.used.append(route)
        if route.durable:
            self.unsynced = True
        if refused or lost or route.out_of_service is not None:
            yield from self.refused(refused, key, props, body)

    def unroutable(self, route: Route, mandatory: bool, props: bytes, body: bytes | Buf) -> None:
        """Handle a message without a queue: it is a direct reply, or goes back to its publisher, or nowhere."""
        if self.connection.hub.replies.deliver(route, props, body):
            return
        route.traffic.miss(mandatory)
        if mandatory:
            self.returned += 1
            self.give_back(route, props, body)
        else:
            self.dropped += 1

    def give_back(self, route: Route, props: bytes, body: bytes | Buf) -> None:
        """Send basic.return 312, unless the channel has ended since the message came."""
        if self.closing:
            return
        method = BasicReturn(312, "NO_ROUTE", route.exchange, route.routing_key)
        self.output.put_method(self.number, method.encode())
        self.output.put_content_bytes(self.number, props, body)

    def refused(self, queues: list[Queue], key: bytes, props: bytes, body: bytes | Buf) -> Iterator[bool]:
        """Queues with x-overflow=reject-publish* are full (C6): nack; for reject-publish-dlx they also dead-letter the message."""
        if self.confirm and not self.closing:
            if self.nacked is None:
                self.nacked = RangeSet()
            self.nacked.add(self.sequence, 1)
            self.output.put_method(self.number, BasicNack(self.sequence, False, False).encode())
        left = PIECE_COST
        for queue in queues:
            for cost in queue.broker.dead_letters.refused(queue, key, props, body):
                left -= cost
                self.connection.spend(cost)
                if left <= 0:
                    left = PIECE_COST
                    yield True

    def blame(self, error: Exception) -> ChannelError | None:
        """If a queue has raised it while it took a message or a settlement: take the queue out of service; return what the peer is told."""
        if self.appending >= 0:
            assert self.route is not None
            queue = self.route.queues[self.appending]
        elif self.settling:
            consumer = self.slots[self.settling - 1]
            assert consumer is not None
            queue = consumer.queue
        else:
            return None
        self.appending, self.settling = -1, 0
        queue.contain(error)
        return walls.out_of_service(queue)

    def contain(self, error: Exception) -> None:
        """Handle an error in work for this channel outside of its connection's input."""
        self.connection.contain_in(self, error)

    def touch(self) -> None:
        """Let the end of this turn handle the confirms of this channel."""
        self.touched = True
        self._touched.append(self)

    def confirm_to(self, sequence: int) -> None:
        """Confirm every publish up to `sequence` that was not refused (C2), with one cumulative ack."""
        if self.closing or sequence <= self.confirmed:
            return
        last, count = sequence, sequence - self.confirmed
        if self.nacked:
            for start, n in self.nacked.remove_below(sequence + 1):
                count -= n
                if start + n > last:
                    last = start - 1
        self.confirmed = sequence
        if count:
            self.answered += count
            self._traffic.confirm(count)
            self.output.put_ack(self.number, last, count > 1)

    # -- deliveries ------------------------------------------------------------------------------------------

    def remember(self, offset, body_len, slot):  # type: ignore[no-untyped-def]
        """Note an unacked delivery and return its tag."""
        b = self._tags
        if b.n == self._head:
            b.n = 0
            self._head = 0
        elif self._head > 65536 and self._head * 2 > b.n:
            b.drop(self._head)
            self._head = 0
        if b.n + _ENTRY > b.cap:
            self.make_room()
        o = b.n
        tag = self.next_tag
        bits.put_le64(b.p, o, offset)
        bits.put_le64(b.p, o + 8, tag)
        bits.put_le32(b.p, o + 16, body_len)
        bits.put_le32(b.p, o + 20, slot)
        b.n = o + _ENTRY
        self.unacked += 1
        self.next_tag = tag + 1
        return tag

    def forget_since(self, tag):  # type: ignore[no-untyped-def]
        """Forget the deliveries from this tag on, which were never sent."""
        b = self._tags
        while b.n > self._head and bits.le64(b.p, b.n - _ENTRY + 8) >= tag:
            b.n -= _ENTRY
            self.unacked -= 1
        self.next_tag = tag

    def make_room(self):  # type: ignore[no-untyped-def]
        """Remove settled entries if they are the majority. Otherwise one delivery that is never settled would keep all later entries."""
        b = self._tags
        if (b.n - self._head) // _ENTRY > 2 * self.unacked:
            kept = 0
            o = self._head
            while o < b.n:
                if bits.le32(b.p, o + 20) != 0:
                    bits.copy(b.p, kept, b.p, o, _ENTRY)
                    kept += _ENTRY
                o += _ENTRY
            b.n = kept
            self._head = 0
        b.reserve_in_place(_ENTRY)

    def remember_one(self, offset: int, body_len: int, slot: int) -> int:
        """`remember` for callers that are not compiled."""
        return self.remember(offset, body_len, slot)  # type: ignore[no-any-return]

    def seek(self, tag):  # type: ignore[no-untyped-def]
        """Return the position of the first entry with this tag or a higher one, or the end of all entries."""
        b = self._tags
        low = self._head // _ENTRY
        high = b.n // _ENTRY - 1
        if high < low:
            return b.n
        first = bits.le64(b.p, self._head + 8)
        if tag <= first:
            return self._head
        if tag - first < high - low:
            high = low + (tag - first)  # there it is, unless tags were passed over
        if bits.le64(b.p, high * _ENTRY + 8) == tag:
            return high * _ENTRY
        if bits.le64(b.p, high * _ENTRY + 8) < tag:
            return b.n
        while low < high:
            middle = (low + high) // 2
            if bits.le64(b.p, middle * _ENTRY + 8) < tag:
                low = middle + 1
            else:
                high = middle
        return low * _ENTRY

    def find(self, tag):  # type: ignore[no-untyped-def]
        """Return the position of the entry with this tag, or -1."""
        o = self.seek(tag)
        return o if o < self._tags.n and bits.le64(self._tags.p, o + 8) == tag else -1

    def settle_tags(self, tag, multiple, kind):  # type: ignore[no-untyped-def]
        """Settle one delivery, or all up to it, as ACK, REJECT, REQUEUE, RETRY or FAILED, or later (AT_COMMIT).

        UNKNOWN: there is no such tag, nothing is done. MORE: there is so much to settle that `settle_rest` must go on. Else SETTLED.
        """
        b = self._tags
        if multiple and tag == 0:
            if self.timed.tag:
                self.timed.end(kind == _ACK)
            return self.settle_piece(self._head, self.next_tag - 1, kind)
        o = self.find(tag)
        if o < 0:
            return _UNKNOWN
        slot = bits.le32(b.p, o + 20)
        if slot == 0 or slot >= _UNCOMMITTED:
            return _UNKNOWN
        if self.timed.tag and (tag == self.timed.tag or (multiple and tag > self.timed.tag)):
            self.timed.end(kind == _ACK)
        return self.settle_piece(self._head if multiple else o, tag, kind)

    def settle_piece(self, o, until, kind):  # type: ignore[no-untyped-def]
        """Settle what is unacked from entry o on up to the tag `until`, or as much of it as one piece may cost: then MORE."""
        b = self._tags
        begin = o
        left = _PIECE
        run_slot = 0
        run_offset = 0
        run = 0
        run_bytes = 0
        result = _SETTLED
        while o < b.n:
            tag = bits.le64(b.p, o + 8)
            if tag > until:
                break
            slot = bits.le32(b.p, o + 20)
            if slot != 0 and slot < _UNCOMMITTED:
                offset = bits.le64(b.p, o)
                if run and (slot != run_slot or offset != run_offset + run or run == _RUN_MAX):
                    left -= self.finish(run_slot, run_offset, run, run_bytes, kind)
                    run = 0
                    if left <= 0:
                        result = _MORE
                        self.next_to_settle = tag
                        self.settle_until = until
                        break
                bits.put_le32(b.p, o + 20, slot | _UNCOMMITTED if kind == _AT_COMMIT else 0)
                if run == 0:
                    run_slot = slot
                    run_offset = offset
                    run_bytes = 0
                run += 1
                run_bytes += bits.le32(b.p, o + 16)
            o += _ENTRY
        if run:
            left -= self.finish(run_slot, run_offset, run, run_bytes, kind)
        while self._head < b.n and bits.le32(b.p, self._head + 20) == 0:
            self._head += _ENTRY
        cost = (_PIECE - left) // 10 + (o - begin) // _SCANNED
        if cost > 0:
            self.connection.spend(cost)
        return result

    def settle_rest(self, kind: int) -> Iterator[None]:
        """Go on with what `settle_tags` has begun."""
        until, at = self.settle_until, self.next_to_settle
        with self.returning() if kind in (RETRY, REQUEUE) else nullcontext():
            yield
            while (not self.closing or kind == REQUEUE) and self._settle_next(at, until, kind) == MORE:
                at = self.next_to_settle
                yield

    def _settle_next(self, at: int, until: int, kind: int) -> int:
        """Settle the next piece, from the tag `at` on. Raises ChannelError if a queue fails in it: that queue is then out of service."""
        try:
            return self.settle_from(at, until, kind)  # type: ignore[no-any-return]
        except Exception as error:
            raise self.blame(error) or error from error

    def settle_from(self, tag, until, kind):  # type: ignore[no-untyped-def]
        """Do the same as `settle_piece`, from a tag on."""
        return self.settle_piece(self.seek(tag), until, kind)

    @contextmanager
    def returning(self) -> Iterator[None]:
        """Return messages in pieces. Their queues deliver nothing meanwhile, because newer messages must not overtake them (A5)."""
        queues = {c.queue for c in self.slots if c is not None}
        for queue in queues:
            queue.begin_return()
        try:
            yield
        finally:
            for queue in queues:
                queue.end_return()

    def finish(self, slot, offset, n, body_bytes, kind):  # type: ignore[no-untyped-def]
        """Settle n deliveries of one consumer with consecutive offsets. Returns the cost, in units of 0.1 us."""
        c = self.slots[slot - 1]
        if kind == _AT_COMMIT:
            self.uncommitted.append((c, offset, n, body_bytes, slot))
            return 10
        q = c.queue
        self.settling = slot
        q.unacked_bytes -= body_bytes
        cost = 2
        if kind == _ACK:
            self.acks += n
            q.ack(offset, n, c)
        elif kind == _REJECT:
            q.reject(offset, n, c)
            cost = 20
        elif kind == _RETRY:
            q.retry(offset, n, body_bytes)
            cost = 20 + n * q.return_cost
        elif kind == _FAILED:
            q.retry(offset, n, body_bytes, "failed")
            cost = 20 + n * q.return_cost
        else:
            q.requeue(offset, n, body_bytes)
            cost = 20 + n * q.return_cost
        self.settling = 0
        if not q.dirty:
            q.mark_dirty()
        self.settled(c, slot, n)
        return cost

    def settled(self, c, slot, n):  # type: ignore[no-untyped-def]
        """Note that a consumer has n fewer unacked deliveries. It, and consumers that wait for room in the channel, may get more."""
        self.unacked -= n
        c.unacked -= n
        if not c.counted:
            self.got -= n
        if c.idle:
            c.queue.resume(c)
        if self.crowd is not None and self.crowd.first is not None:
            self.connection.hub.serve_later(self.connection, self.crowd)
        if not c.active and c.unacked == 0:
            self.free_slot(slot)

    def room(self):  # type: ignore[no-untyped-def]
        """Return how many more deliveries the limits of the channel allow."""
        left = self.unacked_max - self.unacked
        if self.prefetch_all and self.prefetch_all - self.unacked + self.got < left:
            left = self.prefetch_all - self.unacked + self.got
        return left if left > 0 else 0

    def has_room(self) -> bool:
        return bool(self.room() > 0)

    def wait_for_room(self, c: ChannelConsumer) -> None:
        """Let a consumer wait until the limits of the channel allow more deliveries."""
        if self.unacked >= self.unacked_max and not self.capped:
            self.cap(c)
        if self.crowd is None:
            self.crowd = Crowd(self.connection.broker, self.has_room)
        self.crowd.join(c)

    def cap(self, c: Consumer) -> None:
        """Let a consumer wait because the channel has too many unacked messages. This is logged once for a channel."""
        self.capped = True
        self.connection.broker.refused["unacked"] += 1
        text = "%s: consumer %r of queue %r waits: channel %d has %d unacked messages, the limit"
        log.warning(text, self.connection.peer, c.tag, c.queue.name, self.number, self.unacked)

    def limit_all(self, prefetch: int) -> None:
        """Set the prefetch of the whole channel (basic.qos)."""
        self.prefetch_all = prefetch
        if self.crowd is not None and self.crowd.first is not None:
            self.connection.hub.serve_later(self.connection, self.crowd)

    def wake(self) -> None:
        """Resume all consumers of the channel, since they may have credit again."""
        for c in self.consumers.values():
            c.queue.resume(c)

    def forget_consumer(self, tag: str) -> Consumer | None:
        """End deliveries to the consumer with this tag. Returns the consumer, or None if there is none."""
        consumer = self.consumers.pop(tag, None)
        if consumer is not None:
            consumer.keep_timeout()
            self.connection.consumers -= 1
            self.delivered += 0 if consumer.no_ack else consumer.delivered
            self.delivered_auto += consumer.delivered if consumer.no_ack else 0
        return consumer

    def slot_of(self, c: Consumer) -> int:
        """Return a number for a consumer that fits into an entry. It is free again when the consumer and all its deliveries are gone."""
        self.watch(c)
        if self._free:
            slot = self._free.pop()
            self.slots[slot - 1] = c
            return slot
        self.slots.append(c)
        return len(self.slots)

    def holds_nothing(self) -> bool:
        """Whether nothing is unacked here, and nothing will be before there is another consumer or basic.get."""
        return len(self.slots) == len(self._free)

    def watch(self, c: Consumer) -> None:
        """Deliveries of this consumer may be unacked here: if it or its queue has a consumer timeout, they are looked at."""
        timeout_ms = self.timeout_of(c)
        if timeout_ms > 0:
            self.connection.hub.timeouts.watch(self, timeout_ms)

    @staticmethod
    def timeout_of(c: Consumer) -> int:
        """How long in ms this consumer may leave a delivery unacked; 0 or less: without limit."""
        timeout_ms: int = c.timeout_ms if c.timeout_ms >= 0 else c.queue.consumer_timeout_ms
        return timeout_ms

    def free_slot(self, slot: int) -> None:
        c = self.slots[slot - 1]
        if c is not None and not c.counted:
            queue = c.queue
            if self.getters.get(queue) is c:
                del self.getters[queue]
        self.slots[slot - 1] = None
        self._free.append(slot)

    def late(self, first, end, shorter_ms, longest_ms):  # type: ignore[no-untyped-def]
        """(consumer, tag) of the first unacked delivery among the tags from `first` up to `end` whose timeout is longer than `shorter_ms`,
        and `longest_ms` at most.

        The consumer is None if there is none below the tag. That is less than `end` if there were too many to look at all of them.
        """
        b = self._tags
        o = self.seek(first)
        most = o + _LOOKED_AT
        passed = 0
        while o < b.n and bits.le64(b.p, o + 8) < end:
            slot = bits.le32(b.p, o + 20)
            if o >= most:
                return None, bits.le64(b.p, o + 8)
            if slot != 0 and slot < _UNCOMMITTED and slot != passed:
                c = self.slots[slot - 1]
                assert c is not None
                q = c.queue
                limit = c.timeout_ms
                if limit < 0:
                    limit = q.consumer_timeout_ms
                if shorter_ms < limit and limit <= longest_ms and not q.deleted:
                    return c, bits.le64(b.p, o + 8)
                passed = slot
            o += _ENTRY
        return None, end

    def release(self, first, last, done):  # type: ignore[no-untyped-def]
        """Uncommitted entries from one tag to another are settled (`done`: the commit does it), or unacked as before."""
        b = self._tags
        o = self.seek(first)
        while o < b.n and bits.le64(b.p, o + 8) <= last:
            slot = bits.le32(b.p, o + 20)
            if slot >= _UNCOMMITTED:
                bits.put_le32(b.p, o + 20, 0 if done else slot - _UNCOMMITTED)
            o += _ENTRY
        while self._head < b.n and bits.le32(b.p, self._head + 20) == 0:
            self._head += _ENTRY

    def first_tag(self):  # type: ignore[no-untyped-def]
        """The tag of the first delivery that is unacked, 0 if there is none."""
        return bits.le64(self._tags.p, self._head + 8) if self._head < self._tags.n else 0

    def requeue_all(self) -> Iterator[None]:
        """Return all unacked messages to their queues (A6, A13), in pieces."""
        if self.settle_tags(0, True, REQUEUE) == MORE:
            yield
            yield from self.settle_rest(REQUEUE)


def blamed(steps: Iterator[bool]) -> Iterator[bool]:
    """Steps whose mistakes are those of a basic.publish."""
    try:
        yield from steps
    except ChannelError as error:
        error.class_id, error.method_id = 60, 40
        raise


class Content:
    """A message whose frames come one by one: after the method, the header, then the body until `size` is reached."""

    def __init__(self, key: bytes, options: int, body: Buf) -> None:
        self.key = key
        self.options = options
        self.body = body
        self.props: bytes | None = None
        self.size = 0
        self.buffered = 0
        """The bytes of memory that are counted for it."""
        self.seen = -1
        """Bytes of the body that had come when somebody looked, and since when that has not changed."""
        self.since_ms = 0


__all__ = [
    "AT_COMMIT",
    "MORE",
    "SETTLED",
    "UNKNOWN",
    "Channel",
    "Content",
    "Queue",
]

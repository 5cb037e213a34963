"""Moves the messages of a passage on to their queues, in order (broker/queues/passage.py).

Once messages are durable in the passage, a job finds their queues and gathers them, and one record of the journal appends them there
and settles them here. A passage has one record under way at a time. If a queue cannot take the first message, all wait for it, and
the passage refuses what is published meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kvitto.base.errors import ChannelError
from kvitto.broker import walls
from kvitto.broker.administration.admission import as_stored, expiration_ms
from kvitto.broker.jobs import Cost
from kvitto.broker.routing.index import PIECE_STEPS
from kvitto.broker.routing.walking import NOTHING_SAID, SEARCH_COST, Found, walk
from kvitto.broker.transfers.bulk import QUEUE_COST, Bulk
from kvitto.broker.transfers.copying import copies
from kvitto.broker.transfers.deadletter import (
    LETTER_MAX,
    deaths_of,
    is_cycle,
    read_properties,
    split_key,
    strings,
    weight,
)
from kvitto.broker.transfers.in_order import fitting, in_the_way, takers, unmoved
from kvitto.broker.transfers.reservation import Reservation
from kvitto.format.entry import DEAD, EXPIRES
from kvitto.format.settlement import RANGE_SETTLED
from kvitto.store import pieces
from kvitto.store.batch import Batch, Body, Stored
from kvitto.store.reading import Window
from kvitto.store.record import Append, Record, Settle
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.queues.passage import Passage
    from kvitto.broker.queues.queue import Queue
    from kvitto.wire.properties import Properties

RECORD_BYTES = 1 << 20
"""The bytes of messages in one record. The last one may exceed this."""
MESSAGES_MAX = 5000
"""The most messages in one record."""
ALONE_BYTES = 1 << 20
"""A message whose copies have more bytes than this has a record of its own, in which they share the body."""
SHARED_BYTES = 4096
"""A body with more bytes than this is shared by the queues then, and not copied."""
AGAIN_MS, SOON_MS = 100, 5
"""The time after which it is tried again to move the first message: if a queue was full, and if a message of another passage was in
the way."""
RUN_COST, SPECIAL_COST = 5, 25
"""The costs of looking at messages that do not differ, and at a message whose properties matter, in the units of jobs.PIECE."""
ROUTES_MAX = 10_000
"""The most routing keys whose queues are remembered."""
LAST = "that was all"

log = logging.getLogger("kvitto.broker")


class Message(NamedTuple):
    """What the queues of a message get, and which queues these are."""

    key: bytes
    props: bytes
    body: Body
    ttl_ms: int
    flags: int
    queues: list[Queue]


class Heavy:
    """A lock on the memory for large messages. One passage at a time has it, until its large message is in its queues."""

    def __init__(self) -> None:
        self._holder: Passage | None = None

    def take(self, passage: Passage) -> bool:
        """Return whether the passage holds it now."""
        holder = self._holder
        if holder is None or holder.deleted or not holder.onward.busy:
            self._holder = passage
        return self._holder is passage


class Onward:
    def __init__(self, passage: Passage) -> None:
        self._passage = passage
        self.busy = False
        """Whether messages are on their way: in a job, or in a record that is not applied yet."""
        self._resting = False
        """Whether a sync or a timer has to wake this up."""
        self._window = Window()
        self._routes: dict[bytes, list[Queue] | None] = {}
        """By exchange and routing key, the queues; None if the properties of a message decide."""
        self._epoch = -1
        """The epoch of the virtual host to which these belong."""
        self._told: set[str] = set()
        """The queues of which the log has said that they are in the way."""

    @property
    def _broker(self) -> Broker:
        return self._passage.vhost.broker

    def contain(self, error: Exception) -> None:
        """Called if work for the passage has failed unexpectedly."""
        self._passage.contain(error)

    # -- when ------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Move messages that are durable, or have a sync make them so."""
        passage = self._passage
        if self.busy or self._resting or passage.deleted or passage.broker.replaying:
            return
        start, end = unmoved(passage, 0)
        if start < end:
            self.busy = True
            passage.broker.jobs.start(self._steps(), owner=passage)
        elif start < passage.tail.unwritten_from and passage.log.durable:
            self._resting = True
            passage.broker.store.commits.when_synced(walls.guarded(self, self._wake), messages=True)

    def _wake(self) -> None:
        self._resting = False
        self._passage.mark_dirty()

    def _rest(self, ms: int) -> None:
        self.busy, self._resting = False, True
        self._broker.timers.after(ms, self._wake)

    def cancel(self) -> None:
        """The passage is deleted."""
        self._broker.timers.cancel(self._wake)

    def _left(self, end: int) -> None:
        """The messages below `end` have left."""
        self.busy = False
        if not self._passage.deleted:
            self._passage.settle_until(end)
            self._passage.mark_dirty()
        if not self._passage.messages:
            self._window.release()  # it may have some MiB, and there may be many exchanges

    # -- gather ----------------------------------------------------------------------------------------------

    def _steps(self) -> Iterator[object]:
        steps = self._move()
        for step in steps:
            yield step
            if self._passage.deleted:
                steps.close()
                return

    def _move(self) -> Generator[object, None, None]:
        passage, bulk = self._passage, Bulk(self._broker)
        try:
            at, blocked, alone = yield from self._gather(bulk)
            if bulk.batches and passage.log.durable:
                yield from bulk.encode()
        except BaseException:
            bulk.room.give_back()
            raise
        self._note(blocked)
        if bulk.batches:
            yield from self._send(bulk, at)
        elif alone is not None:
            yield from self._send_alone(at, *alone)
        elif blocked is not None:
            passage.settle_until(at)
            self._rest(AGAIN_MS)
        else:
            self._left(at)

    def _gather(self, bulk: Bulk) -> Generator[object, None, tuple[int, Queue | None, tuple[Batch, int] | None]]:
        """Put the first messages into the batches of their queues, as many as fit into a record.

        Returns the offset behind them, the queue that the next one has to wait for, and the next one (batch, index) if it needs a record
        of its own.
        """
        passage, count = self._passage, 0
        batch, at, most = yield from self._next(0)
        while batch is not None and bulk.size < RECORD_BYTES and count < MESSAGES_MAX:
            i = at - batch.first
            n = 0 if batch.stored is not None else batch.alike(i, min(most, MESSAGES_MAX - count))
            key, queues, message = batch.key_and_props(i)[0], None, None
            if n:
                queues = yield from self._queues_of(bulk, key)
            if queues is None:
                message = yield from self._address(bulk, batch, i)
                n, queues = 1, message.queues
            body_len = batch.body_len(i)
            blocked = in_the_way(queues, body_len)
            if blocked is not None:
                return at, blocked, None
            if any(queue.limited and queue.rejects for queue in queues):
                n = 1
            queues = takers(queues, body_len, "a message")
            n, size = fitting(batch, i, n, max(RECORD_BYTES - bulk.size, 0) // max(len(queues), 1))
            if size * len(queues) > ALONE_BYTES and n == 1:
                return at, None, None if count else (batch, i)
            for queue in queues:
                bulk.room.keep(queue, n, body_len)
            if not queues:
                passage.drop(n)
            elif message is None:
                yield from bulk.put_run(queues, batch, i, n, size)
            else:
                assert isinstance(message.body, bytes), "a large body has a record of its own"
                yield from bulk.put(queues, key, message.props, message.body, message.ttl_ms, message.flags)
            if passage.log.durable:
                bulk.settle(passage, at, n, RANGE_SETTLED)
            count += n
            if bulk.cost.spend(RUN_COST + (len(queues) >> 3)):
                yield None
            batch, at, most = yield from self._next(at + n)
        return at, None, None

    def _next(self, at: int) -> Generator[object, None, tuple[Batch | None, int, int]]:
        """Find the first messages from offset `at` on that are durable. Returns (batch, offset, number), without a batch if there is none.

        What is passed over was never written, or is lost to damage, of which the store has raised the alarm.
        """
        passage, window = self._passage, self._window
        while True:
            offset, end = unmoved(passage, at)
            if offset >= end:
                return None, at, 0
            if not window.holds(offset):
                loaded = yield from passage.log.reader.load_steps(window, offset)
                passage.backlog.write_off_lost()
                if not loaded:
                    at = end
                    continue
            if window.batch.first <= offset:
                return window.batch, offset, min(end, window.batch.first + window.batch.count) - offset
            at = window.batch.first

    # -- routes ----------------------------------------------------------------------------------------------

    def _queues_of(self, bulk: Bulk, key: bytes) -> Generator[object, None, list[Queue] | None]:
        """Find the queues of messages with this key whose properties do not matter. None: they do."""
        epoch = self._passage.vhost.epoch.value
        if epoch != self._epoch or len(self._routes) >= ROUTES_MAX:
            self._routes, self._epoch = {}, epoch
        if key in self._routes:
            return self._routes[key]
        found = yield from self._search(bulk, [split_key(key)[1]], NOTHING_SAID)
        queues = None if found.dynamic else found.queues + found.histories
        if epoch == self._passage.vhost.epoch.value:
            self._routes[key] = queues
        return queues

    def _search(self, bulk: Bulk, keys: list[str], properties: Properties) -> Generator[object, None, Found]:
        exchange = self._passage.exchange
        found = yield from walk(exchange, keys, properties, self._passage.vhost.exchanges.get, None, exchange)
        if bulk.cost.spend(SEARCH_COST + (min(found.cost, PIECE_STEPS) >> 3)):
            yield None
        return found

    def _address(self, bulk: Bulk, batch: Batch, i: int) -> Generator[object, None, Message]:
        """Find the queues of a message as the exchange would if it were published now, and what they get.

        A dead letter does not go back to a queue in which it has died, without a rejection since then (X3).
        """
        key, props, body, flags = batch.parts(i)
        _, properties = read_properties(props)
        headers = properties.headers or {}
        keys = [split_key(key)[1], *strings(headers.get("CC")), *strings(headers.get("BCC"))]
        found = yield from self._search(bulk, keys, properties)
        queues: list[Queue] = found.queues + found.histories
        if flags & DEAD:
            deaths = deaths_of(headers)
            queues = [queue for queue in queues if not is_cycle(queue.name, deaths)]
        try:
            ttl_ms = expiration_ms(properties.expiration)
        except ChannelError:  # a dead letter may have come with it
            ttl_ms = -1
        if bulk.cost.spend(SPECIAL_COST + (len(props) >> 5)):
            yield None
        return Message(key, as_stored(props, headers, queues), body, ttl_ms, flags & ~EXPIRES, queues)

    # -- send ------------------------------------------------------------------------------------------------

    def _note(self, blocked: Queue | None) -> None:
        """Refuse publishes while a queue is in the way."""
        passage = self._passage
        passage.refuse(blocked is not None)
        if blocked is not None and blocked.name not in self._told:
            self._told.add(blocked.name)
            why = "full" if blocked.fault is None else "out of service"
            log.warning(
                "exchange '%s' in vhost '%s': queue '%s' is %s; until it takes the messages that are on their way to it, the exchange "
                "refuses further ones",
                passage.exchange.name,
                passage.vhost.name,
                blocked.name,
                why,
            )

    def _send(self, bulk: Bulk, end: int) -> Iterator[object]:
        """Bring what was gathered to its queues, by a record if the passage is durable."""

        def applied() -> Iterator[object]:
            yield from bulk.apply()
            self._left(end)

        if self._passage.log.durable:
            self._write(bulk.record, applied(), bulk.room)
        else:
            yield from applied()

    def _send_alone(self, offset: int, batch: Batch, i: int) -> Generator[object, None, None]:
        """Send a message with large copies. Its body is in memory once, and in the record for each durable queue."""
        passage = self._passage
        if not self._broker.heavy.take(passage):
            self._rest(SOON_MS)
            return
        bulk = Bulk(self._broker)
        body = batch.parts(i)[2]
        if isinstance(body, Stored):
            body = yield from body.take()
        elif isinstance(body, bytes) and len(body) > SHARED_BYTES:
            body = buffer(body)
        message = yield from self._address(bulk, batch, i)  # reading may have taken a while
        blocked = in_the_way(message.queues, len(body))
        self._note(blocked)
        if blocked is not None:
            self._rest(AGAIN_MS)
            return
        queues = takers(message.queues, len(body), "a message")
        sent = Message(message.key, message.props, body, message.ttl_ms, message.flags, queues)
        if not queues:
            passage.drop(1)
            self._left(offset + 1)
        elif passage.log.durable:
            self._write_alone(offset, sent)
        else:
            yield from copies(queues, sent.key, sent.props, body, sent.ttl_ms, [], sent.flags)
            self._left(offset + 1)

    def _write_alone(self, offset: int, message: Message) -> None:
        """Write the record of one message. If it would be too large, further records follow, and the last one settles the message."""
        key, props, body, ttl_ms, flags, queues = message
        assert not isinstance(body, Stored)
        most = max(LETTER_MAX // weight(key, props, body), 1)
        first, rest = queues[:most], queues[most:]
        room = Reservation()
        for queue in first:
            room.keep(queue, 1, len(body))
        durable = [queue.log.queue_id for queue in first if queue.log.durable]
        record = Record(appends=[Append(queue_id, key, props, body, ttl_ms, flags) for queue_id in durable])
        if not rest:
            record.settles.append(Settle(self._passage.log.queue_id, offset, 1, RANGE_SETTLED))

        def applied() -> Iterator[object]:
            yield from self._apply_alone(record, room, message._replace(queues=first))
            if rest:
                self._write_alone(offset, message._replace(queues=rest))
            else:
                self._left(offset + 1)

        self._write(record, applied(), room)

    def _apply_alone(self, record: Record, room: Reservation, message: Message) -> Iterator[None]:
        """Give a message to its queues, in pieces: the journal keeps the record until all of them have it in their files."""
        broker, cost = self._broker, Cost()
        key, props, body, ttl_ms, flags, queues = message
        for queue in queues:
            room.give_back_to(queue)
            if queue.deleted:
                continue
            sequence = record.sequence if queue.log.durable else 0
            broker.applying = True
            try:
                walls.run(queue, queue.append_journaled, key, props, body, ttl_ms, flags, sequence)
            finally:
                broker.applying = False
            if queue.tail.batch is not None and queue.tail.batch.size() > pieces.WHOLE_BYTES:
                broker.flush(queue)
            if cost.spend(QUEUE_COST):
                yield
        broker.store.journal.applied_to(record.sequence)

    def _write(self, record: Record, steps: Iterator[object], room: Reservation) -> None:
        """Write a record. Once it is durable, the steps apply it, a piece in each turn."""

        def full() -> None:
            room.give_back()
            record.packed = None
            self._rest(AGAIN_MS)

        self._broker.records.write(
            record, lambda: walls.run(self, next, steps, LAST) is None, walls.guarded(self, full)
        )


def buffer(body: bytes) -> Buf:
    """Return a body as a buffer that queues can share."""
    made = Buf(0)
    made.add(body)
    return made

"""Transactions (T1-T6): publishes and settlements of a channel are held until commit.

One journal record then makes all of it durable, before it is applied. Publishes to one durable queue alone need none: they are one batch
of that queue, all of it or nothing; like any publish they may be delivered before they are durable, and wait for room on a full disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kvitto.base import limits
from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker import walls
from kvitto.broker.deadletter import Parcel, weight
from kvitto.broker.queue import TAIL_BYTES, Queue
from kvitto.broker.route import Route
from kvitto.broker.vhost import route_to
from kvitto.protocol.channel import ACK, FAILED, REJECT, REQUEUE, RETRY, STAGE, UNKNOWN
from kvitto.store.journal import Append, Settle
from kvitto.store.settlements import ACKED, DEAD_LETTERED, REJECTED
from kvitto.wire.methods import Method, TxCommit, TxCommitOk, TxRollback, TxRollbackOk, TxSelect, TxSelectOk

if TYPE_CHECKING:
    from kvitto.broker.consumer import Consumer
    from kvitto.protocol.channel import Channel
    from kvitto.protocol.connection import Connection

    Settlement = tuple[int, Consumer, int, int, int, int]
    """Kind, consumer, first offset, how many, bytes of their bodies, slot."""

COPIES_MAX = 4
"""How often all of the largest transaction may be copied to queues."""
OFTEN = "commit more often"
MOVE = 5
"""A reject whose dead-letter move is in the transaction's own record."""


class Transaction:
    def __init__(self, chan: Channel) -> None:
        self.chan = chan
        self.publishes: list[tuple[Route, bytes, bool, bytes, bytes, int]] = []
        self.settles: list[Settlement] = []
        self.tags: list[tuple[int, int]] = []
        """Deliveries among which those of `settles` are, from one tag to another."""
        self.size = 0

    def publish(self, route: Route, key: bytes, mandatory: bool, props: bytes, body: bytes, ttl_ms: int) -> None:
        self._hold(limits.STAGED_BYTES + len(key) + len(props) + len(body))
        self.publishes.append((route, key, mandatory, props, body, ttl_ms))

    def settle_tags(self, tag: int, multiple: bool, kind: int) -> int:
        """Hold deliveries for the commit; the result is that of `Channel.settle_tags`."""
        first, last = (self.chan.first_tag() if multiple else tag), tag or self.chan.next_tag - 1
        found: int = self.chan.settle_tags(tag, multiple, STAGE)
        if found != UNKNOWN:
            self.tags.append((first, last))
            self._take_held(kind)
        return found

    def settle_rest(self, kind: int) -> Iterator[None]:
        """Go on where `settle_tags` has stopped."""
        for _ in self.chan.settle_rest(STAGE):
            self._take_held(kind)
            yield
        self._take_held(kind)

    def _take_held(self, kind: int) -> None:
        held, self.chan.held = self.chan.held, []
        for consumer, offset, n, size, slot in held:
            self._hold(limits.STAGED_BYTES * (n if kind == REJECT and moves(consumer.queue) else 1))
            self.settles.append((kind, consumer, offset, n, size, slot))

    def _hold(self, size: int) -> None:
        """Count what is held now; ChannelError 406 if it is too much (W8)."""
        conn = self.chan.connection
        self.size += size
        conn.staged += size
        conn.hub.holding.add(conn, size)
        if self.size > limits.TX_MAX:
            text = f"a transaction may hold {limits.TX_MAX} bytes at most: {OFTEN}"
            raise ChannelError(PRECONDITION_FAILED, text, 60, 40, limit="transaction")
        if excess := conn.hub.holding.excess(conn):
            raise ChannelError(PRECONDITION_FAILED, f"{excess}: {OFTEN}", 60, 40, limit="held")
        if conn.staged > limits.STAGED_MAX:
            text = f"the transactions of a connection may hold {limits.STAGED_MAX} bytes at most: {OFTEN}"
            raise ChannelError(PRECONDITION_FAILED, text, 60, 40, limit="transaction")

    def clear(self) -> None:
        """Forget what it holds: the memory counts no more."""
        self.publishes, self.settles = [], []
        conn = self.chan.connection
        conn.staged -= self.size
        conn.hub.holding.add(conn, -self.size)
        self.size = 0

    def _let_go(self, held: bool) -> None:
        """The deliveries that it holds are settled, or unacked as before."""
        tags, self.tags = sorted(self.tags), []
        if tags and not held:
            self.chan.connection.hub.timeouts.look_again(self.chan, tags[0][0])
        end = 0
        for first, last in tags:
            if last > end:
                self.chan.let_go(max(first, end + 1) if end else first, last, held)
                end = last

    def rollback(self) -> None:
        """Publishes are gone, held deliveries are unacked as before (T6)."""
        self.clear()
        self._let_go(False)

    def commit(self, done: Callable[[], None], full: Callable[[], None], lost: Callable[[Queue], None]) -> None:
        """Make all of it durable, then apply it, then `done`. What goes to one queue alone needs no journal: one batch is all or nothing.

        ChannelError 406 if a queue refuses; then nothing is applied (T5). If the disk is full: `full`, the settlements are undone.
        `lost` gets a queue that has gone out of service before it had written what was published.
        """
        chan, broker = self.chan, self.chan.connection.hub.broker
        publishes = [(self._routed(p), *p[1:]) for p in self.publishes]
        self._check_in_service([p[0] for p in publishes])
        parcel = Parcel()
        record = parcel.record
        durable = self._check_refusals(publishes, parcel)
        try:
            settles = self._settlements(parcel)
        except Exception:
            parcel.room.give_back()
            raise
        alone = len(durable) == 1 and not record.settles and parcel.size <= TAIL_BYTES and not broker.full
        returned = []
        for route, key, mandatory, props, body, ttl_ms in publishes:
            if not route.count and not chan.connection.hub.deliver_reply(route, props, body) and mandatory:
                returned.append((route, props, body))
            for queue in route.queues:
                if queue.log.durable and not alone:
                    record.appends.append(Append(queue.log.queue_id, key, props, body, ttl_ms))
                else:
                    parcel.direct.append((queue, key, props, body, ttl_ms, 0))
        held = self.settles
        self.clear()

        def apply() -> None:
            parcel.apply(broker)
            finish_all()

        def finish_all() -> None:
            for kind, consumer, offset, n, size, slot in settles:
                finish(chan, kind, consumer, offset, n, size, slot)
            for route, props, body in returned:
                chan.give_back(route, props, body)
            done()

        def undo() -> None:
            parcel.room.give_back()
            for _, consumer, offset, n, size, slot in held:
                finish(chan, REQUEUE, consumer, offset, n, size, slot)
            full()

        self._let_go(True)
        if record.appends or record.settles:
            broker.journal(record, walls.guarded(chan, apply), walls.guarded(chan, undo))
        elif alone:
            parcel.apply(broker)
            chan.connection.hub.when_written(durable, walls.guarded(chan, finish_all), lost)
        else:
            apply()

    def _routed(self, publish: tuple[Route, bytes, bool, bytes, bytes, int]) -> Route:
        """Routing happens at commit (T3): a queue may have gone or come since the publish."""
        route = publish[0]
        if route.dynamic:
            return route_to(
                route.exchange,
                route.routing_key,
                [q for q in route.queues if q.fault is not None or not q.deleted],
                True,
            )
        return self.chan.vhost.route(publish[1])

    def _check_in_service(self, routes: list[Route]) -> None:
        """ChannelError 541 if a queue is out of service that takes part: nothing is applied then."""
        queues = [route.out_of_service for route in routes] + [run[1].queue for run in self.settles]
        for queue in queues:
            if queue is not None and queue.fault is not None:
                raise walls.out_of_service(queue)

    def _settlements(self, parcel: Parcel) -> list[Settlement]:
        """Put them into the record, rejects with their moves; return what is to be done with each once that is durable."""
        settles: list[Settlement] = []
        dead_letters = self.chan.connection.hub.broker.dead_letters
        check_copies(parcel.size + sum(run[4] for run in self.settles if run[0] == REJECT and moves(run[1].queue)))
        for kind, consumer, offset, n, size, slot in self.settles:
            queue = consumer.queue
            if kind in (RETRY, FAILED) or not queue.log.durable or queue.deleted or queue.stream:
                settles.append((kind, consumer, offset, n, size, slot))
            elif kind == ACK or not moves(queue):
                outcome = ACKED if kind == ACK else REJECTED
                parcel.record.settles.append(Settle(queue.log.queue_id, offset, n, outcome))
                settles.append((kind, consumer, offset, n, size, slot))
            else:
                for o in range(offset, offset + n):
                    joined = walls.within(queue, dead_letters.join, parcel, queue, o)
                    settles.append((MOVE if joined else REJECT, consumer, o, 1, 0, slot))
                    check_copies(parcel.size)
        return settles

    def _check_refusals(self, publishes: list[Any], parcel: Parcel) -> list[Queue]:
        """ChannelError 406 if a queue has no room for all of them (T5); else they have it. Returns the durable queues among theirs."""
        room: dict[Queue, tuple[int, int]] = {}
        for route, key, _, props, body, _ in publishes:
            parcel.size += weight(key, props, body) * route.count
            for queue in route.queues:
                n, size = room.get(queue, (0, 0))
                room[queue] = (n + 1, size + len(body))
        check_copies(parcel.size)
        for queue, (n, size) in room.items():
            if queue.limited and queue.rejects and queue.refuses(n, size):
                raise ChannelError(
                    PRECONDITION_FAILED, f"queue '{queue.name}' is full: the transaction was not committed"
                )
        for queue, (n, size) in room.items():
            parcel.room.keep(queue, n, size)
        return [queue for queue in room if queue.log.durable]


def moves(queue: Queue) -> bool:
    """Whether a reject is a dead-letter move that becomes part of the record."""
    return queue.log.durable and not queue.deleted and queue.settings.dead_letter_exchange is not None


def check_copies(size: int) -> None:
    """ChannelError 406 if that is too much for one record."""
    if size > COPIES_MAX * limits.TX_MAX:
        text = f"the copies of this transaction's messages are more than {COPIES_MAX * limits.TX_MAX} bytes: {OFTEN}"
        raise ChannelError(PRECONDITION_FAILED, text, limit="transaction")


def finish(chan: Channel, kind: int, consumer: Consumer, offset: int, n: int, size: int, slot: int) -> None:
    walls.run(consumer.queue, finish_in, consumer.queue, kind, consumer, offset, n, size)
    chan.settled(consumer, slot, n)


def finish_in(queue: Queue, kind: int, consumer: Consumer, offset: int, n: int, size: int) -> None:
    """What `finish` does to the queue."""
    if kind == ACK:
        queue.ack(offset, n, consumer)
    elif kind == REJECT:
        queue.reject(offset, n, consumer)
    elif kind in (RETRY, FAILED):
        queue.retry(offset, n, size, "failed" if kind == FAILED else "returned")
    elif kind == MOVE:
        queue.unacked -= n
        queue.settle(offset, n, DEAD_LETTERED, 1)
    else:
        queue.requeue(offset, n, size)
    queue.mark_dirty()


def select(conn: Connection, chan: Channel, _method: TxSelect) -> None:
    if chan.stage is not None:
        raise ChannelError(PRECONDITION_FAILED, "cannot hold in a transaction what is put aside")
    if chan.confirm:
        raise ChannelError(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if chan.tx is None:
        chan.tx = Transaction(chan)
        chan.forget_route()
    conn.send(chan.number, TxSelectOk())


def commit(conn: Connection, chan: Channel, _method: TxCommit) -> None:
    if chan.tx is None:
        raise ChannelError(PRECONDITION_FAILED, "channel is not transactional")
    waiting = True

    def end() -> None:
        nonlocal waiting
        waiting = False
        if conn.answering:
            conn.answering = False
            conn.unstall()

    def done() -> None:
        if not chan.closing:  # its peer has been told of the end
            conn.send(chan.number, TxCommitOk())
        end()

    def full() -> None:
        text = "the disk is full: the transaction was not committed"
        conn.fail_channel(chan, ChannelError(PRECONDITION_FAILED, text, 90, 20))
        end()

    def lost(queue: Queue) -> None:
        conn.fail_channel(chan, walls.out_of_service(queue))
        end()

    chan.tx.commit(done, full, lost)
    if waiting:
        conn.answering = True
        conn.stall()


def rollback(conn: Connection, chan: Channel, _method: TxRollback) -> None:
    if chan.tx is None:
        raise ChannelError(PRECONDITION_FAILED, "channel is not transactional")
    chan.tx.rollback()
    conn.send(chan.number, TxRollbackOk())


HANDLERS: dict[type[Method], Callable[[Any, Any, Any], None]] = {
    TxSelect: select,
    TxCommit: commit,
    TxRollback: rollback,
}

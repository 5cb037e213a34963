"""Transactions (T1-T6): publishes and settlements of a channel are held until commit.

One journal record then makes all of it durable, before it is applied. Publishes to one durable queue alone need none: they are one batch
of that queue, all of it or nothing; like any publish they may be delivered before they are durable, and wait for room on a full disk.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from kvitto.base import limits
from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker import walls
from kvitto.broker.deadletter import Parcel, weight
from kvitto.broker.queue import TAIL_BYTES, Queue
from kvitto.broker.route import Route
from kvitto.broker.vhost import route_to
from kvitto.protocol.channel import ACK, FAILED, REJECT, REQUEUE, RETRY, STAGE, UNKNOWN
from kvitto.store.batch import Batch
from kvitto.store.journal import Append, Run, Settle
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
PIECE = 500
"""What a commit does in one piece, in units of about a microsecond; a dead letter takes some."""
LETTER = 80
FINISHED_PER_PIECE = 200
"""Settlements."""
MANY, SMALL = 64, 16 * 1024
"""So many messages of that many bytes, or fewer, go to a queue in batches."""
NEAR = 200
"""Tags: those in between cost less to be passed over than another look."""
LAST = "that was all"
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
        begin, end = 0, -NEAR
        for first, last in tags:
            if first > end + NEAR:
                if begin:
                    self.chan.let_go(begin, end, held)
                begin = first
            end = max(end, last)
        if begin:
            self.chan.let_go(begin, end, held)

    def rollback(self) -> None:
        """Publishes are gone, held deliveries are unacked as before (T6)."""
        self.clear()
        self._let_go(False)

    def commit(
        self, done: Callable[[], None], full: Callable[[], None], lost: Callable[[Queue], None]
    ) -> Iterator[None]:
        """Make all of it durable, then apply it, then `done`. What goes to one queue alone needs no journal: one batch is all or nothing.

        In pieces, until the record is there to be written; nothing is applied if the channel ends before. ChannelError 406 if a queue
        refuses; then nothing is applied either (T5). If the disk is full: `full`, the settlements are undone.
        `lost` gets a queue that has gone out of service before it had written what was published.
        """
        plan = Plan(self)
        try:
            for _ in plan.steps():
                yield
                if self.chan.closing:
                    plan.parcel.room.give_back()
                    return
            plan.check_in_service()
        except BaseException:
            plan.parcel.room.give_back()
            raise
        self._commit(plan, done, full, lost)

    def _commit(
        self, plan: Plan, done: Callable[[], None], full: Callable[[], None], lost: Callable[[Queue], None]
    ) -> None:
        """Write it, and have it applied."""
        chan, broker, parcel = self.chan, self.chan.connection.hub.broker, plan.parcel
        record, held = parcel.record, self.settles
        self.clear()

        def finished() -> Iterator[None]:
            for at in range(0, len(plan.settles), FINISHED_PER_PIECE):
                if at:
                    yield
                for kind, consumer, offset, n, size, slot in plan.settles[at : at + FINISHED_PER_PIECE]:
                    finish(chan, kind, consumer, offset, n, size, slot)

        def applied() -> Iterator[None]:
            yield from finished()  # the journal keeps the record until its messages have been applied, too
            parcel.apply(broker)

        def answered(steps: Iterator[None]) -> Iterator[None]:
            yield from steps
            for route, props, body in plan.returned:
                if not chan.closing:
                    chan.give_back(route, props, body)
            done()

        def undo() -> None:
            parcel.room.give_back()
            for _, consumer, offset, n, size, slot in held:
                finish(chan, REQUEUE, consumer, offset, n, size, slot)
            full()

        self._let_go(True)
        for route, props, body, mandatory in plan.unrouted:
            if not chan.connection.hub.deliver_reply(route, props, body) and mandatory:
                plan.returned.append((route, props, body))
        if record.appends or record.runs or record.settles:
            steps = answered(applied())
            broker.journal(record, lambda: walls.run(chan, next, steps, LAST) is None, walls.guarded(chan, undo))
        elif plan.alone:
            parcel.apply(broker)

            def written() -> None:
                broker.jobs.start(answered(finished()), owner=chan)

            chan.connection.hub.when_written(plan.durable, walls.guarded(chan, written), lost)
        else:
            broker.jobs.start(answered(applied()), owner=chan)


class Plan:
    """What a commit will do, as its queues are now. Made in pieces: there may be a million messages, and dead letters are read."""

    def __init__(self, tx: Transaction) -> None:
        self.chan = tx.chan
        self.publishes, self.held = tx.publishes, tx.settles
        self.parcel = Parcel()
        self.routed: list[Route] = []
        self.room: dict[Queue, tuple[int, int]] = {}
        self.timed: set[Queue] = set()
        """Queues that get messages with a time to live."""
        self.settles: list[Settlement] = []
        """What is to be done with each once the record is durable."""
        self.unrouted: list[tuple[Route, bytes, bytes, bool]] = []
        self.returned: list[tuple[Route, bytes, bytes]] = []
        self.durable: list[Queue] = []
        self.alone = False
        self._left = PIECE

    def _spend(self, cost: int) -> bool:
        """Whether the piece ends here."""
        self._left -= cost
        if self._left > 0:
            return False
        self._left = PIECE
        return True

    def steps(self) -> Iterator[None]:
        """ChannelError 406 if it is too much, or a queue has no room for all of it (T5); else the room is kept."""
        yield from self._route()
        self.check_in_service()
        self._keep_room()
        yield from self._settle()
        broker = self.chan.connection.hub.broker
        small = self.parcel.size <= TAIL_BYTES
        self.alone = len(self.durable) == 1 and not self.parcel.record.settles and small and not broker.full
        yield from self._copy()
        yield from self.parcel.record.prepare()

    def _route(self) -> Iterator[None]:
        """Routing happens at commit (T3): a queue may have gone or come since the publish."""
        for published, key, _, props, body, ttl_ms in self.publishes:
            if published.dynamic:
                queues = [q for q in published.queues if q.fault is not None or not q.deleted]
                route = route_to(published.exchange, published.routing_key, queues, True)
            else:
                vhost = self.chan.vhost
                route = vhost.remembered(key) or (yield from passed(vhost.route_steps(key)))
            self.routed.append(route)
            self.parcel.size += weight(key, props, body) * route.count
            for queue in route.queues:
                n, size = self.room.get(queue, (0, 0))
                self.room[queue] = (n + 1, size + len(body))
                if ttl_ms >= 0:
                    self.timed.add(queue)
            if self._spend(1 + route.count):
                check_copies(self.parcel.size)
                yield
        check_copies(self.parcel.size)

    def check_in_service(self) -> None:
        """ChannelError 541 if a queue is out of service that takes part: nothing is applied then."""
        gone = next((route.out_of_service for route in self.routed if route.out_of_service is not None), None)
        queues = (gone, *self.room, *{run[1].queue for run in self.held})
        for queue in queues:
            if queue is not None and queue.fault is not None:
                raise walls.out_of_service(queue)

    def _keep_room(self) -> None:
        for queue, (n, size) in self.room.items():
            if queue.limited and queue.rejects and queue.refuses(n, size):
                raise ChannelError(
                    PRECONDITION_FAILED, f"queue '{queue.name}' is full: the transaction was not committed"
                )
        for queue, (n, size) in self.room.items():
            self.parcel.room.keep(queue, n, size)
        self.durable = [queue for queue in self.room if queue.log.durable]

    def _settle(self) -> Iterator[None]:
        """Put settlements into the record, rejects with their moves."""
        parcel, dead_letters = self.parcel, self.chan.connection.hub.broker.dead_letters
        check_copies(parcel.size + sum(run[4] for run in self.held if run[0] == REJECT and moves(run[1].queue)))
        for kind, consumer, offset, n, size, slot in self.held:
            queue = consumer.queue
            if kind in (RETRY, FAILED) or not queue.log.durable or queue.deleted or queue.stream:
                self.settles.append((kind, consumer, offset, n, size, slot))
            elif kind == ACK or not moves(queue):
                outcome = ACKED if kind == ACK else REJECTED
                parcel.record.settles.append(Settle(queue.log.queue_id, offset, n, outcome))
                self.settles.append((kind, consumer, offset, n, size, slot))
            else:
                for o in range(offset, offset + n):
                    joined = walls.within(queue, dead_letters.join, parcel, queue, o)
                    self.settles.append((MOVE if joined else REJECT, consumer, o, 1, 0, slot))
                    check_copies(parcel.size)
                    if self._spend(LETTER):
                        yield
            if self._spend(2):
                yield

    def _copy(self) -> Iterator[None]:
        """Put messages into the record: where there are many small ones for a queue, side by side in batches."""
        record, batches = self.parcel.record, dict[Queue, Batch]()
        many = {queue for queue, (n, size) in self.room.items() if n >= MANY and size <= n * SMALL}
        many -= self.timed
        for (_, key, mandatory, props, body, ttl_ms), route in zip(self.publishes, self.routed, strict=True):
            if not route.count:
                self.unrouted.append((route, props, body, mandatory))
            for queue in route.queues:
                if not queue.log.durable or self.alone:
                    self.parcel.direct.append((queue, key, props, body, ttl_ms, 0))
                elif queue in many:
                    batch = batches.get(queue)
                    if batch is None or batch.size() > TAIL_BYTES:
                        batch = batches[queue] = Batch()
                        record.runs.append(Run(queue.log.queue_id, batch))
                    batch.put(key, props, body)
                else:
                    record.appends.append(Append(queue.log.queue_id, key, props, body, ttl_ms))
            if self._spend(1 + route.count):
                yield


def passed(steps: Generator[bool, None, Route]) -> Generator[None, None, Route]:
    """A search for a route, as steps of a commit."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            route: Route = end.value
            return route
        yield


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


def commit(conn: Connection, chan: Channel, method: TxCommit) -> None:
    if chan.tx is None:
        raise ChannelError(PRECONDITION_FAILED, "channel is not transactional")
    first = waiting = True

    def end() -> None:
        nonlocal waiting
        waiting = False
        if conn.answering:
            conn.answering = False
            conn.unstall()

    def done() -> None:
        if not chan.closing:
            conn.send(chan.number, TxCommitOk())
        end()

    def fail(error: ChannelError) -> None:
        error.class_id, error.method_id = method.CLASS_ID, method.METHOD_ID
        conn.contain_in(chan, error)
        end()

    def full() -> None:
        fail(ChannelError(PRECONDITION_FAILED, "the disk is full: the transaction was not committed"))

    def lost(queue: Queue) -> None:
        conn.fail_channel(chan, walls.out_of_service(queue))
        end()

    def steps() -> Iterator[None]:
        try:
            yield from chan.tx.commit(done, full, lost)
        except ChannelError as error:
            if first:
                raise
            fail(error)
        if chan.closing:
            end()

    conn.hub.broker.jobs.start(steps(), owner=conn)
    first = False
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

"""Transactions (T1-T6): publishes and settlements of a channel are held until commit.

One journal record then makes all of it durable, before it is applied. Publishes to one durable queue alone need none: they are one batch
of that queue, all of it or nothing; like any publish they may be delivered before they are durable, and wait for room on a full disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from kvitto.base import limits
from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker import jobs, walls
from kvitto.broker.bulk import BYTES_SHIFT, Bulk
from kvitto.broker.queue import TAIL_BYTES, Queue
from kvitto.broker.ranges import RangeSet
from kvitto.broker.route import Route
from kvitto.broker.vhost import route_to
from kvitto.broker.work_queue import WorkQueue
from kvitto.format.settlement import ACKED, DEAD_LETTERED, REJECTED
from kvitto.protocol.channel import ACK, FAILED, REJECT, RETRY, SEARCH_COST, STAGE, UNKNOWN
from kvitto.wire.buf import Buf
from kvitto.wire.methods import Method, TxCommit, TxCommitOk, TxRollback, TxRollbackOk, TxSelect, TxSelectOk

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.consumer import Consumer
    from kvitto.protocol.channel import Channel
    from kvitto.protocol.connection import Connection

    Settlement = tuple[int, Consumer, int, int, int, int]
    """Kind, consumer, first offset, how many, bytes of their bodies, slot."""

OFTEN = "commit more often"
PUBLISH, SETTLE, FINISH, RETURN = 4, 4, 5, 10
"""The cost of each operation in a commit, in units of about a microsecond."""
FEW = 100
"""Queues."""
NEAR = 200
"""Tags at most this far apart are taken together: passing over the tags in between costs less than another search."""
LOOKS, LOOK = 100_000, 500
"""How many tags are looked at in one piece, and as how many of them each range counts."""
RANGES = 100
FREED, FREED_SHIFT = 300, 14
"""How many objects are freed in one piece. Each 16 KiB count as one object more."""
ATTEMPTS = 10
LAST = "that was all"
MOVE = 5
"""A reject whose dead-letter move is in the transaction's own record."""


class Transaction:
    def __init__(self, chan: Channel) -> None:
        self.chan = chan
        self.publishes: list[tuple[Route, bytes, bool, bytes, bytes | Buf, int]] = []
        self.settles: list[Settlement] = []
        self.acks = 0
        """The deliveries whose settlement waits for the commit."""
        self.held = Held()
        self.size = 0

    def publish(self, route: Route, key: bytes, mandatory: bool, props: bytes, body: bytes | Buf, ttl_ms: int) -> None:
        self._hold(limits.STAGED_BYTES + len(key) + len(props) + len(body))
        self.publishes.append((route, key, mandatory, props, body, ttl_ms))

    def settle_tags(self, tag: int, multiple: bool, kind: int) -> int:
        """Hold deliveries for the commit; the result is that of `Channel.settle_tags`."""
        first, last = (self.chan.first_tag() if multiple else tag), tag or self.chan.next_tag - 1
        found: int = self.chan.settle_tags(tag, multiple, STAGE)
        if found != UNKNOWN:
            self.held.add(first, last, multiple)
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
            self.acks += n

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
        conn = self.chan.connection
        held: list[list[Any]] = [self.publishes, self.settles]
        self.publishes, self.settles, self.acks = [], [], 0
        conn.staged -= self.size
        conn.hub.holding.add(conn, -self.size)
        self.size = 0
        free(conn.hub.broker, *held)

    def rollback(self) -> Iterator[None]:
        """Drop the publishes, and make held deliveries unacked as before (T6), in pieces. A second call goes on with what is left."""
        self.clear()
        if self.held:
            self.chan.connection.hub.timeouts.look_again(self.chan, self.held.first)
        yield from self.held.let_go(self.chan, False)

    def commit(
        self, done: Callable[[], None], full: Callable[[], None], lost: Callable[[Queue], None]
    ) -> Iterator[None]:
        """Make all of it durable, then apply it, then `done`. What goes to one queue alone needs no journal: one batch is all or nothing.

        In pieces, until the record is there to be written; nothing is applied if the channel ends before. ChannelError 406 if a queue
        refuses; then nothing is applied either (T5). If the disk is full: `full`, the settlements are undone.
        `lost` gets a queue that has gone out of service before it had written what was published.
        """
        for _ in range(ATTEMPTS):
            plan = Plan(self)
            try:
                for _ in plan.steps():
                    yield
                    if self.chan.closing:
                        plan.bulk.room.give_back()
                        return
                plan.check_in_service()
            except BaseException:
                plan.bulk.room.give_back()
                raise
            if not plan.bulk.changed:
                self._commit(plan, done, full, lost)
                return
            # a queue has been deleted meanwhile: a dead letter for it must find another one, or stay
            plan.bulk.room.give_back()
            yield
            if self.chan.closing:
                return
        raise ChannelError(PRECONDITION_FAILED, "the queues of the transaction change too often: it was not committed")

    def _commit(
        self, plan: Plan, done: Callable[[], None], full: Callable[[], None], lost: Callable[[Queue], None]
    ) -> None:
        """Write the record, and apply it once it is durable."""
        chan, broker, bulk = self.chan, self.chan.connection.hub.broker, plan.bulk
        held, self.held = self.held, Held()
        self.settles = []  # `clear` must not free this list, because the plan still reads it
        self.clear()

        def finished() -> Iterator[None]:
            yield from held.let_go(chan, True)
            yield from plan.finish()

        def applied() -> Iterator[None]:
            try:
                yield from finished()  # the journal keeps the record until its messages have been applied, too
            except Exception as error:  # noqa: BLE001 - the end of this channel; what was committed comes to its queues
                chan.contain(error)
            yield from bulk.apply()

        def answered(steps: Iterator[None]) -> Iterator[None]:
            yield from steps
            yield from plan.give_back()
            done()

        def undo() -> None:
            bulk.room.give_back()
            bulk.record.packed = None
            free(broker, plan.held)
            if chan.closing:
                broker.jobs.start(given_back(chan, held), owner=chan)
            self.held = held
            full()  # the channel ends, and all that it held comes back

        if bulk.packed.operations:
            steps = answered(applied())
            broker.records.write(
                bulk.record, lambda: walls.run(chan, next, steps, LAST) is None, walls.guarded(chan, undo)
            )
        elif plan.alone:
            for _ in bulk.apply():
                pass

            def written() -> None:
                broker.jobs.start(answered(finished()), owner=chan)

            chan.connection.hub.when_written(plan.durable, walls.guarded(chan, written), lost)
        else:
            broker.jobs.start(answered(applied()), owner=chan)


class Held:
    """Ranges of delivery tags in which one transaction holds deliveries, and no other transaction does."""

    def __init__(self) -> None:
        self._single = RangeSet()
        self._first = self._last = 0
        """Add the tags that a settlement with `multiple` has named."""

    def __bool__(self) -> bool:
        return bool(self._last or self._single.count)

    @property
    def first(self) -> int:
        """The lowest tag of all ranges."""
        lowest = [self._first] if self._last else []
        return min([*lowest, *(start for start, _ in islice(self._single, 1))])

    def add(self, first: int, last: int, multiple: bool) -> None:
        if multiple:
            self._first = min(self._first, first) if self._last else first
            self._last = max(self._last, last)
        else:
            self._single.add(first, 1)

    def let_go(self, chan: Channel, settled: bool) -> Iterator[None]:
        """Forget the ranges in pieces, since their deliveries are settled or unacked again. A second call goes on with what is left."""
        left = LOOKS
        while self:
            first, last, ranges = self._next()
            chan.let_go(first, last, settled)
            left -= ranges * LOOK + last - first
            if left <= 0:
                left = LOOKS
                yield

    def _next(self) -> tuple[int, int, int]:
        """Take some tags out. Returns (first tag, last tag, number of ranges); ranges that are near are taken together."""
        if self._last:
            first = self._first
            last = min(first + LOOKS, self._last)
            self._first = last + 1
            if last == self._last:
                self._first = self._last = 0
            return first, last, 1
        first = last = self.first
        for start, n in islice(self._single, RANGES):
            if start > last + NEAR:
                break
            last = start + n - 1
        last = min(last, first + LOOKS)
        return first, last, len(self._single.remove_below(last + 1))


def free(broker: Broker, *lists: list[Any]) -> None:
    """Free lists in pieces, because freeing a million objects, or a few large ones, takes some milliseconds."""
    if any(lists):
        broker.jobs.start(freed(*lists))


def freed(*lists: list[Any]) -> Iterator[None]:
    left = FREED
    for each in lists:
        while each:
            left -= 1 + (sum(len(value) for value in each.pop() if isinstance(value, bytes | Buf)) >> FREED_SHIFT)
            if left <= 0:
                yield
                left = FREED


def given_back(chan: Channel, held: Held) -> Iterator[None]:
    """Return what a transaction held to its queues, after its channel has ended."""
    with chan.returning():
        yield from held.let_go(chan, False)
        yield from chan.requeue_all()


class Plan:
    """What a commit will do to its queues. It is made in pieces: there may be a million messages, and dead letters have to be read."""

    def __init__(self, tx: Transaction) -> None:
        self.chan = tx.chan
        self.publishes, self.held = tx.publishes, tx.settles
        self.bulk = Bulk(tx.chan.connection.hub.broker)
        self.sources: dict[Queue, None] = {}
        """The queues whose messages are settled."""
        self.returning: dict[Queue, None] = {}
        """The queues to which messages come back."""
        self.moved: dict[int, list[Settlement]] = {}
        """By index in `held`, the settlements that replace a reject whose messages are moved to dead-letter queues one by one."""
        self.unrouted: list[tuple[Route, bytes, bytes | Buf, bool]] = []
        self.durable: list[Queue] = []
        self.alone = False

    def steps(self) -> Iterator[object]:
        """Keep room in the queues. Raises ChannelError 406 if the transaction is too large, or a queue has no room for all of it (T5)."""
        bulk = self.bulk
        yield from self._route()
        yield from bulk.keep_room()
        yield from self._settle()
        bulk.packed.close()
        self.durable = [queue for queue in islice(bulk.batches, FEW) if queue.log.durable]
        few = len(bulk.batches) < FEW and len(self.durable) == 1
        small = bulk.size <= TAIL_BYTES and not bulk.packed.operations
        # A batch without a record is delivered at once. Messages that this commit gives back have to be delivered before it.
        self.alone = few and small and not self.returning and not self.chan.connection.hub.broker.full
        if not self.alone:
            yield from bulk.encode()

    def _route(self) -> Iterator[object]:
        """Routing happens at commit (T3): a queue may have gone or come since the publish."""
        bulk, vhost = self.bulk, self.chan.vhost
        for published, key, mandatory, props, body, ttl_ms in self.publishes:
            if published.dynamic:
                queues = [q for q in published.queues if q.fault is not None or not q.deleted]
                route = route_to(published.exchange, published.routing_key, queues, True)
            else:
                found = vhost.remembered(key)
                route = found or (yield from vhost.route_steps(key))
                if found is None and bulk.cost.spend(SEARCH_COST + bulk.way(vhost)):
                    yield None
            if route.out_of_service is not None:
                raise walls.out_of_service(route.out_of_service)
            if not route.count:
                self.unrouted.append((route, props, body, mandatory))
            yield from bulk.put(route.queues, key, props, body, ttl_ms)
            if bulk.cost.spend(PUBLISH + (len(published.queues) >> 3 if published.dynamic else 0)):
                yield None

    def check_in_service(self) -> None:
        """ChannelError 541 if a queue is out of service that takes part: nothing is applied then."""
        for queue in chain(self.bulk.batches, self.sources):
            if queue.fault is not None:
                raise walls.out_of_service(queue)

    def _settle(self) -> Iterator[object]:
        """Add the settlements to the record, and the moves of rejected messages to dead-letter queues."""
        bulk = self.bulk
        for at, (kind, consumer, offset, n, _, slot) in enumerate(self.held):
            queue = consumer.queue
            if queue.fault is not None:
                raise walls.out_of_service(queue)
            self.sources[queue] = None
            if kind in (RETRY, FAILED):
                self.returning[queue] = None
            if kind not in (RETRY, FAILED) and queue.log.durable and not queue.deleted and not queue.stream:
                if kind == ACK or not moves(queue):
                    bulk.settle(queue, offset, n, ACKED if kind == ACK else REJECTED)
                else:
                    moved = self.moved[at] = []
                    for o in range(offset, offset + n):
                        joined = yield from walls.steps_within(queue, bulk.move(queue, o))
                        moved.append((MOVE if joined else REJECT, consumer, o, 1, 0, slot))
            if bulk.cost.spend(SETTLE):
                yield None

    # -- once it is durable ----------------------------------------------------------------------------------

    def finish(self) -> Iterator[None]:
        """Carry out the settlements. While messages come back to a queue it delivers nothing, so that none overtakes them (A5)."""
        bulk = self.bulk
        for queue in self.returning:
            queue.begin_return()
        try:
            for at, run in enumerate(self.held):
                for kind, consumer, offset, n, size, slot in self.moved.pop(at, (run,)):
                    finish(self.chan, kind, consumer, offset, n, size, slot)
                    returns = kind in (RETRY, FAILED)
                    if bulk.cost.spend(FINISH + (n * consumer.queue.return_cost // 10 if returns else 0)):
                        yield
        finally:
            for queue in self.returning:
                queue.end_return()
        free(self.chan.connection.hub.broker, self.held)

    def give_back(self) -> Iterator[None]:
        """Handle messages that no queue takes: direct replies are sent, mandatory messages are returned."""
        hub = self.chan.connection.hub
        for route, props, body, mandatory in self.unrouted:
            if not hub.deliver_reply(route, props, body) and mandatory:
                self.chan.give_back(route, props, body)
            if self.bulk.cost.spend(RETURN + (len(body) >> BYTES_SHIFT)):
                yield
        free(hub.broker, self.unrouted)


def moves(queue: Queue) -> bool:
    """Whether a reject is a dead-letter move that becomes part of the record."""
    return queue.log.durable and not queue.deleted and queue.settings.dead_letter_exchange is not None


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
        assert isinstance(queue, WorkQueue)
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

    conn.spend(min(PUBLISH * len(chan.tx.publishes) + FINISH * len(chan.tx.settles), jobs.PIECE))
    conn.hub.broker.jobs.start(steps(), owner=conn)
    first = False
    if waiting:
        conn.answering = True
        conn.stall()


def rollback(conn: Connection, chan: Channel, method: TxRollback) -> None:
    if chan.tx is None:
        raise ChannelError(PRECONDITION_FAILED, "channel is not transactional")
    conn.perform(
        chan.tx.rollback(), lambda: conn.send(chan.number, TxRollbackOk()), channel=chan, method=method, defines=False
    )


HANDLERS: dict[type[Method], Callable[[Any, Any, Any], None]] = {
    TxSelect: select,
    TxCommit: commit,
    TxRollback: rollback,
}

"""Transactions (T1-T6): the publishes and settlements of a channel wait for its commit, and are then done as a whole.

One journal record makes all of them durable before they are applied. Publishes to only one durable queue need no record, because they
are one batch of that queue, which is atomic. Like any publish they may be delivered before they are durable, and wait if the disk is full.
`protocol/methods/tx.py` has one `Transaction` for each channel in tx mode. It maps delivery tags and answers the peer; `Client` is the
interface that a commit needs of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol

from kvitto.base import limits
from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker import walls
from kvitto.broker.administration.histories import Unseen
from kvitto.broker.queues.consumer import ACK, FAILED, REJECT, RETRY, Consumer
from kvitto.broker.queues.queue import TAIL_BYTES, Queue
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.broker.routing.route import Route
from kvitto.broker.routing.walking import SEARCH_COST
from kvitto.broker.transfers.bulk import BYTES_SHIFT, Bulk
from kvitto.broker.vhost import route_to
from kvitto.format.settlement import ACKED, DEAD_LETTERED, REJECTED
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.vhost import VHost

Delivered = tuple[Consumer, int, int, int, int]
"""Deliveries of one consumer: (consumer, first offset, count, bytes of their bodies, slot of the consumer in its channel)."""
Settlement = tuple[int, Consumer, int, int, int, int]
"""How deliveries are settled (broker/queues/consumer.py), or MOVE, and `Delivered`."""

OFTEN = "commit more often"
PUBLISH, SETTLE, FINISH, RETURN = 4, 4, 5, 10
"""The cost of each operation in a commit, in units of about a microsecond."""
FEW = 100
"""A commit that publishes to this many queues or more is never applied at once without a record."""
FREED, FREED_SHIFT = 300, 14
"""How many objects are freed in one piece. Each 16 KiB of memory count as one more object."""
ATTEMPTS = 10
LAST = "that was all"
MOVE = 5
"""A reject whose dead-letter move is in the transaction's own record."""


class Client(Protocol):
    """What a commit needs of its channel. Each method but `closing` is called at most once, unless its text says otherwise."""

    @property
    def closing(self) -> bool:
        """Whether the channel has ended. A commit that has not begun by then is dropped."""
        ...

    def begun(self) -> None:
        """From now on the commit goes on even if the channel ends, and owns the deliveries that it settles until `settled` or `undone`."""

    def settled(self) -> Iterator[None]:
        """Forget the deliveries that the commit settles, in pieces, now that it is durable."""
        ...

    def has_settled(self, consumer: Consumer, slot: int, n: int) -> None:
        """Note that `n` deliveries of a consumer are settled. Called for each run of deliveries."""

    def give_back(self, route: Route, props: bytes, body: bytes | Buf, mandatory: bool) -> None:
        """Handle a message that no queue takes. Called for each of them, before `done`."""

    def when_written(self, queues: list[Queue], done: Callable[[], None], lost: Callable[[Queue], None]) -> None:
        """Call `done` once what these queues have been given is durable, or `lost` with a queue that goes out of service before."""

    def done(self) -> None:
        """Called when all of it is durable and applied."""

    def undone(self) -> None:
        """Called if the disk is full: nothing is committed."""

    def lost(self, queue: Queue) -> None:
        """Called if a queue has gone out of service before it had written the published messages."""

    def contain(self, error: Exception) -> None:
        """Called if work for this commit has failed unexpectedly (broker/walls.py)."""


class Transaction:
    """The publishes and settlements that wait for the commit.

    The protocol's transaction derives from this. It counts the memory for its owner, and finds deliveries by their tags.
    """

    def __init__(self, vhost: VHost) -> None:
        self.vhost = vhost
        self.publishes: list[tuple[Route, bytes, bool, bytes, bytes | Buf, int]] = []
        self.settles: list[Settlement] = []
        self.acks = 0
        """The number of deliveries whose settlement waits for the commit."""
        self.size = 0
        """The bytes of memory that are counted for this transaction."""

    def publish(self, route: Route, key: bytes, mandatory: bool, props: bytes, body: bytes | Buf, ttl_ms: int) -> None:
        """Keep a message. Raises ChannelError 406 if that is too much (W8)."""
        self._count(limits.TX_ENTRY_BYTES + len(key) + len(props) + len(body))
        self.publishes.append((route, key, mandatory, props, body, ttl_ms))

    def _count(self, size: int) -> None:
        """Count `size` more bytes."""
        most = self.vhost.broker.limits.tx_max
        if self.size + size > most:
            text = f"a transaction may hold {most} bytes at most: {OFTEN}"
            raise ChannelError(PRECONDITION_FAILED, text, 60, 40, limit="transaction")
        self.size += size
        self.count(size)

    def settle(self, kind: int, deliveries: list[Delivered]) -> None:
        """Keep the settlement of deliveries. Raises ChannelError 406 if that is too much (W8)."""
        size = count = 0
        for consumer, offset, n, body_bytes, slot in deliveries:
            size += limits.TX_ENTRY_BYTES * (n if kind == REJECT and moves(consumer.queue) else 1)
            self.settles.append((kind, consumer, offset, n, body_bytes, slot))
            count += n
        self.acks += count
        self._count(size)

    def count(self, size: int) -> None:
        """Count so many bytes of memory more, or fewer, for whoever has them. Raises ChannelError 406 if that is too much (W8)."""
        raise NotImplementedError

    def clear(self) -> None:
        """Drop all of it, and no longer count the memory."""
        dropped: list[list[Any]] = [self.publishes, self.settles]
        self.publishes, self.settles, self.acks = [], [], 0
        size, self.size = self.size, 0
        self.count(-size)
        free(self.vhost.broker, *dropped)

    def commit(self, client: Client) -> Iterator[None]:
        """Make all of it durable, then apply it, and tell `client`. Messages for only one queue need no journal: one batch is atomic.

        The record is prepared in pieces, and nothing is applied if the channel ends before it is complete. Raises ChannelError 406 if a
        queue refuses its messages; then nothing is applied either (T5).
        """
        for _ in range(ATTEMPTS):
            plan = Plan(self, client)
            try:
                for _ in plan.steps():
                    yield
                    if client.closing:
                        plan.bulk.room.give_back()
                        return
                plan.check_in_service()
            except BaseException:
                plan.bulk.room.give_back()
                raise
            if not plan.bulk.changed:
                self._commit(plan, client)
                return
            # a queue has been deleted meanwhile: its dead letters must be routed again
            plan.bulk.room.give_back()
            yield
            if client.closing:
                return
        raise ChannelError(PRECONDITION_FAILED, "the queues of the transaction change too often: it was not committed")

    def _commit(self, plan: Plan, client: Client) -> None:
        """Write the record, and apply it once it is durable."""
        broker, bulk = self.vhost.broker, plan.bulk
        client.begun()
        self.settles = []  # `clear` must not free this list, because the plan still reads it
        self.clear()

        def finished() -> Iterator[None]:
            yield from client.settled()
            yield from plan.finish()

        def applied() -> Iterator[None]:
            try:
                yield from finished()  # may come first, because the journal keeps the record until its messages have been applied, too
            except Exception as error:  # noqa: BLE001 - the end of this channel; what was committed comes to its queues
                client.contain(error)
            yield from bulk.apply()

        def answered(steps: Iterator[None]) -> Iterator[None]:
            yield from steps
            yield from plan.give_back()
            client.done()

        def undo() -> None:
            bulk.room.give_back()
            bulk.record.packed = None
            free(broker, plan.settles)
            client.undone()

        if bulk.packed.operations:
            steps = answered(applied())
            broker.records.write(
                bulk.record, lambda: walls.run(client, next, steps, LAST) is None, walls.guarded(client, undo)
            )
        elif plan.alone:
            for _ in bulk.apply():
                pass

            def written() -> None:
                broker.jobs.start(answered(finished()), owner=client)

            client.when_written(plan.durable, walls.guarded(client, written), client.lost)
        else:
            broker.jobs.start(answered(applied()), owner=client)


class Plan:
    """What a commit will do to its queues. It is made in pieces, since there may be a million messages, and dead letters must be read."""

    def __init__(self, tx: Transaction, client: Client) -> None:
        self.vhost = tx.vhost
        self.client = client
        self.publishes, self.settles = tx.publishes, tx.settles
        self.bulk = Bulk(tx.vhost.broker)
        self.sources: dict[Queue, None] = {}
        """The queues whose messages are settled."""
        self.returning: dict[Queue, None] = {}
        """The queues to which messages come back."""
        self.moved: dict[int, list[Settlement]] = {}
        """By index in `settles`, the settlements that replace a reject whose messages are moved to dead-letter queues one by one."""
        self.unrouted: list[tuple[Route, bytes, bytes | Buf, bool]] = []
        self.durable: list[Queue] = []
        self.alone = False

    def steps(self) -> Iterator[object]:
        """Make the plan and reserve room. Raises ChannelError 406 if the transaction is too large, or a queue has no room for it (T5)."""
        bulk = self.bulk
        yield from self._route()
        yield from bulk.keep_room()
        yield from self._settle()
        bulk.packed.close()
        self.durable = [queue for queue in islice(bulk.batches, FEW) if queue.log.durable]
        few = len(bulk.batches) < FEW and len(self.durable) == 1
        small = bulk.size <= TAIL_BYTES and not bulk.packed.operations
        # A batch without a record is delivered at once, but messages that this commit returns must be delivered before it.
        self.alone = few and small and not self.returning and not self.vhost.broker.full
        if not self.alone:
            yield from bulk.encode()

    def _route(self) -> Iterator[object]:
        """Route the messages at the commit (T3), since queues may have been deleted or declared since the publish."""
        bulk, vhost = self.bulk, self.vhost
        for published, key, mandatory, props, body, ttl_ms in self.publishes:
            if published.dynamic:
                queues = [q for q in published.queues if q.fault is not None or not q.deleted]
                route = route_to(published.exchange, published.routing_key, queues, True, published.traffic)
            else:
                found = vhost.remembered(key)
                route = found or (yield from vhost.route_steps(key))
                if found is None and bulk.cost.spend(SEARCH_COST + bulk.way(vhost)):
                    yield None
            if route.out_of_service is not None:
                raise walls.out_of_service(route.out_of_service)
            if not route.count or isinstance(published, Unseen):
                self.unrouted.append((route, props, body, mandatory))
            yield from bulk.put(route.queues, key, props, body, ttl_ms)
            if bulk.cost.spend(PUBLISH + (len(published.queues) >> 3 if published.dynamic else 0)):
                yield None

    def check_in_service(self) -> None:
        """Raises ChannelError 541 if one of the queues is out of service. Nothing is applied then."""
        for queue in chain(self.bulk.batches, self.sources):
            if queue.fault is not None:
                raise walls.out_of_service(queue)

    def _settle(self) -> Iterator[object]:
        """Add the settlements to the record, and the moves of rejected messages to dead-letter queues."""
        bulk = self.bulk
        for at, (kind, consumer, offset, n, size, slot) in enumerate(self.settles):
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
                    assert isinstance(queue, WorkQueue)
                    moved = self.moved[at] = []
                    for o in range(offset, offset + n):
                        joined = yield from walls.steps_within(queue, bulk.move(queue, o))
                        moved.append((MOVE if joined else REJECT, consumer, o, 1, size if o == offset else 0, slot))
            if bulk.cost.spend(SETTLE):
                yield None

    # -- once it is durable ----------------------------------------------------------------------------------

    def finish(self) -> Iterator[None]:
        """Carry out the settlements. While messages come back to a queue it delivers nothing, so that none overtakes them (A5)."""
        bulk, has_settled = self.bulk, self.client.has_settled
        for queue in self.returning:
            queue.begin_return()
        try:
            for at, run in enumerate(self.settles):
                for kind, consumer, offset, n, size, slot in self.moved.pop(at, (run,)):
                    walls.run(consumer.queue, finish, consumer.queue, kind, consumer, offset, n, size)
                    has_settled(consumer, slot, n)
                    returns = kind in (RETRY, FAILED)
                    if bulk.cost.spend(FINISH + (n * consumer.queue.return_cost // 10 if returns else 0)):
                        yield
        finally:
            for queue in self.returning:
                queue.end_return()
        free(self.vhost.broker, self.settles)

    def give_back(self) -> Iterator[None]:
        """Hand the messages that no queue takes to the client."""
        for route, props, body, mandatory in self.unrouted:
            self.client.give_back(route, props, body, mandatory)
            if self.bulk.cost.spend(RETURN + (len(body) >> BYTES_SHIFT)):
                yield
        free(self.vhost.broker, self.unrouted)


def moves(queue: Queue) -> bool:
    """Whether a reject is a dead-letter move that becomes part of the record."""
    return queue.log.durable and not queue.deleted and queue.settings.dead_letter_exchange is not None


def finish(queue: Queue, kind: int, consumer: Consumer, offset: int, n: int, size: int) -> None:
    """Carry out one settlement of the transaction in its queue."""
    queue.unacked_bytes -= size
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

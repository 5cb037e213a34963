"""tx.*: the transaction of a channel by delivery tags, and the answers to its peer. broker/transfers/transactions.py has the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker import jobs, walls
from kvitto.broker.queues.queue import Queue
from kvitto.broker.queues.ranges import RangeSet
from kvitto.broker.routing.route import Route
from kvitto.broker.transfers.transactions import FINISH, OFTEN, PUBLISH, Transaction
from kvitto.protocol.channel import AT_COMMIT, UNKNOWN
from kvitto.wire.buf import Buf
from kvitto.wire.methods import Method, TxCommit, TxCommitOk, TxRollback, TxRollbackOk, TxSelect, TxSelectOk

if TYPE_CHECKING:
    from kvitto.protocol.channel import Channel
    from kvitto.protocol.connection import Connection

NEAR = 200
"""Ranges of tags that are at most this far apart are handled together, since another search would cost more than the tags between."""
LOOKS, LOOK = 100_000, 500
"""The tags that are handled in one piece of work, and the tags that one range counts as."""
RANGES = 100


class ChannelTransaction(Transaction):
    """A transaction that knows by tag which deliveries of its channel wait for its commit."""

    def __init__(self, chan: Channel) -> None:
        super().__init__(chan.vhost)
        self.chan = chan
        self.tags = Tags()

    def count(self, size: int) -> None:
        """Count memory for the connection and its user."""
        conn = self.chan.connection
        conn.in_transactions += size
        too_much = conn.hub.buffered.add(conn, size)
        if size <= 0:
            return
        if too_much and (excess := conn.hub.buffered.excess(conn)):
            raise ChannelError(PRECONDITION_FAILED, f"{excess}: {OFTEN}", 60, 40, limit="held")
        most = conn.broker.limits.transactions_max
        if conn.in_transactions > most:
            text = f"the transactions of a connection may hold {most} bytes at most: {OFTEN}"
            raise ChannelError(PRECONDITION_FAILED, text, 60, 40, limit="transaction")

    def settle_tags(self, tag: int, multiple: bool, kind: int) -> int:
        """Keep settlements for the commit; the result is that of `Channel.settle_tags`."""
        first, last = (self.chan.first_tag() if multiple else tag), tag or self.chan.next_tag - 1
        found: int = self.chan.settle_tags(tag, multiple, AT_COMMIT)
        if found != UNKNOWN:
            self.tags.add(first, last, multiple)
            self._take(kind)
        return found

    def settle_rest(self, kind: int) -> Iterator[None]:
        """Continue where `settle_tags` has stopped."""
        for _ in self.chan.settle_rest(AT_COMMIT):
            self._take(kind)
            yield
        self._take(kind)

    def _take(self, kind: int) -> None:
        deliveries, self.chan.uncommitted = self.chan.uncommitted, []
        self.settle(kind, deliveries)

    def rollback(self) -> Iterator[None]:
        """Drop the publishes, and make its deliveries unacked as before (T6), in pieces. A second call goes on with what is left."""
        self.clear()
        if self.tags:
            self.chan.connection.hub.timeouts.look_again(self.chan, self.tags.first)
        yield from self.tags.release(self.chan, False)


class Tags:
    """Ranges of delivery tags in which deliveries wait for the commit of one transaction, and of no other."""

    def __init__(self) -> None:
        self._single = RangeSet()
        self._first = self._last = 0
        """The first and the last tag that a settlement with `multiple` has named."""

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

    def release(self, chan: Channel, settled: bool) -> Iterator[None]:
        """Forget the ranges in pieces, since their deliveries are settled or unacked again. A second call goes on with what is left."""
        left = LOOKS
        while self:
            first, last, ranges = self._next()
            chan.release(first, last, settled)
            left -= ranges * LOOK + last - first
            if left <= 0:
                left = LOOKS
                yield

    def _next(self) -> tuple[int, int, int]:
        """Remove some tags and return (first tag, last tag, number of ranges). Ranges near each other are removed together."""
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


def given_back(chan: Channel, tags: Tags) -> Iterator[None]:
    """Return the deliveries of a transaction to their queues, after its channel has ended."""
    with chan.returning():
        yield from tags.release(chan, False)
        yield from chan.requeue_all()


class Commit:
    """One tx.commit: it takes the tags that the commit settles, and answers the peer (transactions.Client)."""

    def __init__(self, conn: Connection, chan: Channel, method: TxCommit) -> None:
        self.conn = conn
        self.chan = chan
        self.tx: ChannelTransaction = chan.tx
        self.method = method
        self.tags = Tags()
        self.ended = False
        self.has_settled = chan.settled

    @property
    def closing(self) -> bool:
        return self.chan.closing

    def contain(self, error: Exception) -> None:
        self.chan.contain(error)

    def begun(self) -> None:
        self.tags, self.tx.tags = self.tx.tags, Tags()

    def settled(self) -> Iterator[None]:
        yield from self.tags.release(self.chan, True)

    def undone(self) -> None:
        if self.chan.closing:
            self.conn.broker.jobs.start(given_back(self.chan, self.tags), owner=self.chan)
        self.tx.tags = self.tags
        # the channel ends, and all its deliveries come back
        self.fail(
            ChannelError(
                PRECONDITION_FAILED,
                "the transaction was not committed: the disk is full, or a queue in it has gone out of service",
            )
        )

    def give_back(self, route: Route, props: bytes, body: bytes | Buf, mandatory: bool) -> None:
        """Send a direct reply, or return a mandatory message."""
        self.chan.unroutable(route, mandatory, props, body)

    def when_written(self, queues: list[Queue], done: Callable[[], None], lost: Callable[[Queue], None]) -> None:
        self.conn.hub.confirms.when_written(queues, done, lost)

    def done(self) -> None:
        if not self.chan.closing:
            self.conn.send(self.chan.number, TxCommitOk())
        self.end()

    def lost(self, queue: Queue) -> None:
        self.conn.fail_channel(self.chan, walls.out_of_service(queue))
        self.end()

    def fail(self, error: ChannelError) -> None:
        error.class_id, error.method_id = self.method.CLASS_ID, self.method.METHOD_ID
        self.conn.contain_in(self.chan, error)
        self.end()

    def end(self) -> None:
        """Handle the input that came after the commit."""
        self.ended = True
        if self.conn.answering:
            self.conn.answering = False
            self.conn.unstall()


def select(conn: Connection, chan: Channel, _method: TxSelect) -> None:
    if chan.stage is not None:
        raise ChannelError(PRECONDITION_FAILED, "cannot hold in a transaction what is put aside")
    if chan.confirm:
        raise ChannelError(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if chan.tx is None:
        chan.tx = ChannelTransaction(chan)
        chan.forget_route()
    conn.send(chan.number, TxSelectOk())


def commit(conn: Connection, chan: Channel, method: TxCommit) -> None:
    if chan.tx is None:
        raise ChannelError(PRECONDITION_FAILED, "channel is not transactional")
    made = Commit(conn, chan, method)
    first = True

    def steps() -> Iterator[None]:
        try:
            yield from made.tx.commit(made)
        except ChannelError as error:
            if first:
                raise
            made.fail(error)
        if chan.closing:
            made.end()

    conn.spend(min(PUBLISH * len(chan.tx.publishes) + FINISH * len(chan.tx.settles), jobs.PIECE))
    conn.broker.jobs.start(steps(), owner=conn)
    first = False
    if not made.ended:
        conn.answering = True
        conn.stall()


def rollback(conn: Connection, chan: Channel, method: TxRollback) -> None:
    if chan.tx is None:
        raise ChannelError(PRECONDITION_FAILED, "channel is not transactional")
    conn.perform(chan.tx.rollback(), lambda: conn.send(chan.number, TxRollbackOk()), channel=chan, method=method)


HANDLERS: dict[type[Method], Callable[[Any, Any, Any], None]] = {
    TxSelect: select,
    TxCommit: commit,
    TxRollback: rollback,
}

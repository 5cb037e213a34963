"""The hidden queues of recent history exchanges: made and deleted with their exchange, and sent to what is bound to it.

A history is a queue that does not outlive the broker, with a limit of messages and bytes. It is in `Broker.queues` like a stage, and in
no virtual host's list: no client sees it. `VHost` calls this where it makes, binds and removes exchanges.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from kvitto.base.limits import HISTORY_BYTES
from kvitto.broker import walls
from kvitto.broker.administration.admission import expiration_ms
from kvitto.broker.administration.arguments import QueueSettings
from kvitto.broker.jobs import Cost
from kvitto.broker.queues.look import looks
from kvitto.broker.queues.queue import Declaration, Queue
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.broker.routing.delayed import DelayedIndex
from kvitto.broker.routing.exchange import Exchange
from kvitto.broker.routing.recent_history import LENGTH, LENGTH_DEFAULT, RecentHistoryIndex
from kvitto.broker.routing.route import Route
from kvitto.broker.routing.walking import SEARCH_COST
from kvitto.broker.transfers.copying import copies
from kvitto.broker.transfers.deadletter import read_properties, split_key
from kvitto.store.batch import Stored

if TYPE_CHECKING:
    from kvitto.broker.vhost import VHost

LENGTH_MAX = (1 << 31) - 1
MESSAGE_COST = 10
"""The cost of sending a message to one queue, in the units of jobs.PIECE."""
AT_ONCE, AT_ONCE_BYTES = 100, 1 << 20
"""So many messages, or bytes of messages, are sent before a new message can come to the destination."""
SMALL_BYTES = 16 << 10
"""A history with more bytes than this is not begun while another one of the virtual host is being sent."""


class Unseen(Route):
    """A route to histories only: nobody gets the message, so a mandatory one is returned."""


def _index_of(exchange: Exchange) -> RecentHistoryIndex | None:
    """Return the index of a recent history exchange, which may delay too, or None for other types."""
    index = exchange.index.inner if isinstance(exchange.index, DelayedIndex) else exchange.index
    return index if isinstance(index, RecentHistoryIndex) else None


def attach(vhost: VHost, exchange: Exchange) -> None:
    """Give a new recent history exchange its queue. Raises ChannelError 406 if no other queue may be made."""
    index = _index_of(exchange)
    if index is None:
        return
    broker = vhost.broker
    if not broker.restoring:
        broker.check_queues(f"history of exchange {exchange.name}", vhost.name)
    length = exchange.arguments.get(LENGTH, LENGTH_DEFAULT)
    assert isinstance(length, int), "checked by the index"
    queue_id = secrets.token_hex(16)
    settings = QueueSettings(max_length=min(length, LENGTH_MAX), max_bytes=HISTORY_BYTES)
    declared = Declaration(f"history of exchange {exchange.name}", {}, durable=False)
    index.history = WorkQueue(broker, vhost, broker.open_log(queue_id, False), settings, declared)
    broker.queues[queue_id] = index.history


def detach(exchange: Exchange) -> None:
    """Delete the history of an exchange that is deleted."""
    index = _index_of(exchange)
    if index is None or index.history is None:
        return
    queue, index.history = index.history, None
    queue.vhost.broker.drop_hidden(queue)


class Senders:
    """Sends the histories of a virtual host to what has been bound, one after the other.

    Otherwise each would have a message in memory, of up to HISTORY_BYTES. One that waits has none, or a small one.
    """

    def __init__(self, vhost: VHost) -> None:
        self._vhost = vhost
        self._waiting: deque[Iterator[bool]] = deque()
        self.busy = False

    def start(self, steps: Iterator[bool]) -> None:
        """Do the first step now, and the others when the histories before it have been sent."""
        if next(steps, None) is None:
            return
        self._waiting.append(steps)
        if not self.busy:
            self.busy = True
            self._vhost.broker.jobs.start(self._send(), owner=self._vhost)

    def _send(self) -> Iterator[bool]:
        yield True
        while self._waiting:
            steps = self._waiting.popleft()
            while (going := walls.run(self._vhost, next, steps, None)) is not None:
                yield going
        self.busy = False


def send(vhost: VHost, exchange: Exchange, dest: Queue | Exchange) -> int:
    """Send the history of an exchange, if it has one, to what has just been bound to it. Returns the cost of what is sent at once."""
    index = _index_of(exchange)
    if index is None or index.history is None or not index.history.ready:
        return 0
    at_once = min(index.history.ready, AT_ONCE)
    vhost.senders.start(_steps(vhost, index.history, dest))
    return at_once * MESSAGE_COST


def _steps(vhost: VHost, history: WorkQueue, dest: Queue | Exchange) -> Generator[bool, None, None]:
    """Send what is in the history now, oldest first: the first AT_ONCE messages in the first piece, unless they are large or have to
    wait."""
    cost, left, behind = Cost(), history.ready, history.next
    if vhost.senders.busy and history.ready_bytes > SMALL_BYTES:
        yield True
    messages, size = AT_ONCE, AT_ONCE_BYTES
    for look in looks(history, left):
        if history.deleted or dest.deleted:
            return
        if look is None:
            yield True
            continue
        if look.offset >= behind:
            return  # it was published since, and came to the destination by itself
        body = look.body
        if isinstance(body, Stored):
            yield True  # it is read when the histories before this one have been sent
            steps = body.take()
            while isinstance(body, Stored):
                try:
                    next(steps)
                except StopIteration as end:
                    body = end.value
                else:
                    yield True
        _, properties = read_properties(look.props)
        if isinstance(dest, Exchange):
            _, routing_key = split_key(look.key)
            queues = yield from vhost.target_steps(dest.name, [routing_key], properties)
            searched = SEARCH_COST + (vhost.search_cost >> 3)
        else:
            queues, searched = [dest], 0
        yield from copies(queues, look.key, look.props, body, expiration_ms(properties.expiration), [])
        left -= 1
        if left <= 0:
            return
        messages -= 1
        size -= len(body) * len(queues)
        spent = MESSAGE_COST + searched + (MESSAGE_COST + (len(body) >> 11)) * len(queues)
        del look, body, properties  # nothing is kept while this pauses
        if cost.spend(spent) and (messages <= 0 or size <= 0):
            yield True

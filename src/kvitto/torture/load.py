"""The load: publishers, transactions and consumers, each in a thread that connects again and again.

    exchange torture.all  -> queues a, b, idle          publisher p (confirms), transactions t
    exchange torture.some -> queues b, c                publisher q (confirms), transactions t
    c --rejected--> dead --one transaction of ack and publish--> moved

Consumers publish to `fence` after their acks: a broker that handles both in order and answers when the message is
durable has the acks by then. `idle` has no consumer until everything is drained.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from struct import pack
from typing import NamedTuple

from kvitto.client import AMQPError, Channel, ChannelClosed, Column, Connection, ConnectionLost, Properties
from kvitto.torture.oracle import (
    ACKED,
    CONFIRMED,
    FLOW_SHIFT,
    HEAD,
    NEVER,
    REFUSED,
    REJECTED,
    REQUEUED,
    SAFE,
    Flow,
    Item,
    Journal,
    Ledger,
    Oracle,
    body,
    padding,
)

ALL, SOME = "torture.all", "torture.some"
A, B, C, IDLE, DEAD, MOVED, FENCE = (f"torture.{name}" for name in ("a", "b", "c", "idle", "dead", "moved", "fence"))
ROUTE_ALL, ROUTE_SOME = (ALL, (A, B, IDLE)), (SOME, (B, C))
QUEUES = (A, B, C, IDLE, DEAD, MOVED)
PERSISTENT = Properties(delivery_mode=2)
CLASSIC, QUORUM = QUEUE_TYPES = ("classic", "quorum")
BURST = 50
WINDOW = 500
"""The maximum number of unconfirmed publishes of a publisher."""
BEHIND_MAX = 3_000
"""Publishers wait while consumers are this many deliveries behind."""
GROUP = 6
ROLLBACK_EVERY = 8
PREFETCH = 500
UNREAD_MAX = 2 * PREFETCH
"""The number of messages that the last connection of a consumer may have left unread, and one before it that the broker
had not closed yet."""
SETTLE_AT = 100
"""A consumer settles when it has this many messages, or when none comes."""
CONFIRM_S = 60.0
"""A confirm that is missing after this time on an open connection counts as missing."""
WAIT_S = 0.05
RETRY_S = 0.02
NO_COMMIT = (406, "the disk is full")
"""What a transaction is told that finds no room, and of which nothing is applied: the reply code, and a part of the text."""
GONE = (0, 320)
"""Reply codes of a connection that ended because the broker ended."""


class Target:
    """The current address of the broker, and whether the load goes on. Shared by all clients."""

    def __init__(self) -> None:
        self.uri = ""
        self.up = threading.Event()
        self.paused = threading.Event()
        """Publishers wait for their confirms and publish nothing more; consumers settle their messages."""
        self.ended = threading.Event()
        self.may_be_full = False
        """Whether the run fills disks."""
        self.safe_after_s = 0.0
        """The time after the fence's confirm when an ack counts as synced, because brokers other than Kvitto sync acks
        when they like."""


class Client(threading.Thread):
    """Connects and talks until it has to end. The end of a connection is normal here, any other error is a finding."""

    def __init__(self, oracle: Oracle, target: Target, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.oracle = oracle
        self.target = target
        self.connections = 0
        self.moves = 0
        """Increases when something was confirmed or settled."""
        self.idle = threading.Event()
        """Set when the client waits for nothing."""
        self.done = threading.Event()
        """Set when this client alone has to end."""
        self.uri = ""
        """Where it is connected."""
        self.connection: Connection | None = None

    def leave(self) -> None:
        """End its connection, from another thread."""
        connection = self.connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.transport.sock.shutdown(socket.SHUT_RDWR)

    @property
    def ending(self) -> bool:
        return self.done.is_set() or self.target.ended.is_set()

    def run(self) -> None:
        while not self.ending:
            if not self.target.up.wait(WAIT_S):
                continue
            self.uri = self.target.uri
            try:
                connection = Connection(self.uri, name=f"kvitto torture {self.name}", buffer_bytes=1 << 18)
            except (AMQPError, TimeoutError, OSError):
                time.sleep(RETRY_S)
                continue
            self.connections += 1
            self.connection = connection
            try:
                self.talk(connection.channel())
                connection.close()
            except ChannelClosed as error:
                if not (self.target.may_be_full and no_room(error)):
                    self._finding(error)
            except ConnectionLost as error:
                if error.code not in GONE:
                    self._finding(error)
            except TimeoutError:
                pass  # _await has recorded it if it is a finding
            except (AMQPError, OSError) as error:
                self._finding(error)
            finally:
                self.idle.clear()
                self.connection = None
                connection.transport.close()

    def talk(self, channel: Channel) -> None:
        """Use one connection until it ends."""
        raise NotImplementedError

    def _finding(self, error: Exception) -> None:
        if not self.ending:
            self.oracle.findings.add("protocol", f"{self.name}: {type(error).__name__}: {error}")

    def _rest(self, channel: Channel) -> None:
        """Wait a moment, and handle input meanwhile."""
        channel.connection.process(WAIT_S)
        if channel.closed is not None:
            raise channel.closed


class Burst(NamedTuple):
    """Publishes that were sent together."""

    last: int
    """The tag of the last one."""
    at: float
    led: bool
    """Whether the node to which they were sent said that it leads. Else it passed them on."""
    deposed: bool
    """Whether another node led already when they were sent."""


class Publisher(Client):
    """Streamed confirms: BURST publishes at a time, at most WINDOW unconfirmed. It records each confirm."""

    def __init__(self, oracle: Oracle, target: Target, flow: Flow, behind: Callable[[], int], limit: int = 0) -> None:
        super().__init__(oracle, target, f"publisher {flow.name}")
        self.flow = flow
        self.behind = behind
        self.limit = limit
        """It ends after this many numbers; 0 means never."""
        self.first = 0
        self.sent = 0
        self.low = 1
        self.high = 0
        self.bursts: deque[Burst] = deque()

    @property
    def finished(self) -> bool:
        return bool(self.limit) and self.flow.next >= self.limit

    def talk(self, channel: Channel) -> None:
        flow = self.flow
        flow.session += 1
        self.first, self.sent, self.low, self.high = flow.next, 0, 1, 0
        self.bursts.clear()
        terms, connected = self.oracle.terms, time.monotonic()
        channel.confirm_select(on_confirm=self.confirm)
        exchange, key, properties = Column.one(flow.routes[0][0].encode()), Column.one(b""), persistent()
        while not self.ending:
            if self.target.paused.is_set() or self.finished:
                self._await(channel, 0)
                self.idle.set()
                self._rest(channel)
                continue
            self.idle.clear()
            if self.behind() > BEHIND_MAX:
                self._rest(channel)
                continue
            first = flow.take(BURST)
            self.sent += BURST
            if terms is not None:
                led, deposed = terms.leads(self.uri), terms.deposed(self.uri, connected)
                self.bursts.append(Burst(self.sent, time.monotonic(), led, deposed))
            channel.publish_rows(bodies(flow, first, BURST), exchange, key, properties, 0, BURST)
            self._await(channel, WINDOW - BURST)
        self._await(channel, 0)

    def confirm(self, tag: int, multiple: bool, ok: bool) -> None:
        """Check that each publish is confirmed once, and none that was not sent (C5)."""
        last = self.sent if multiple and tag == 0 else tag
        if not (self.low if multiple else 1) <= last <= self.sent:
            self.oracle.findings.add("confirms", f"{self.name}: confirm {tag} of {self.low} to {self.sent}")
            return
        if last < self.high:
            self.oracle.findings.add("confirms out of order", f"{self.name}: confirm {last} after {self.high}")
        self.high = max(self.high, last)
        start, end = self.first + (self.low if multiple else last) - 1, self.first + last
        marks, mark = self.flow.marks, CONFIRMED if ok else REFUSED
        if not any(marks[start:end]):
            self.flow.mark(start, end, mark)
        elif not multiple:
            self.oracle.findings.add("confirms", f"{self.name}: number {start} is confirmed twice")
        else:
            for number in range(start, end):
                if not marks[number]:
                    self.flow.mark(number, number + 1, mark)
        while self.low <= self.sent and marks[self.first + self.low - 1]:
            self.low += 1
        if ok:
            self._confirmed_bursts(last)
        self.moves += 1

    def _confirmed_bursts(self, last: int) -> None:
        """Record which node has confirmed which bursts, and find those that it may not confirm any more."""
        while self.bursts and self.bursts[0].last <= last:
            burst, terms = self.bursts.popleft(), self.oracle.terms
            assert terms is not None
            if not burst.led:
                continue
            terms.confirmed(self.uri, burst.at)
            if burst.deposed:
                number = self.first + burst.last - 1
                self.oracle.findings.add("two epochs", f"{self.name}: up to {number} by {self.uri.rpartition('@')[2]}")

    def _await(self, channel: Channel, most: int) -> None:
        """Wait until at most `most` publishes are unconfirmed. Their confirms have to come as long as the connection is open."""
        try:
            channel.wait_until_outstanding(most, CONFIRM_S)
        except TimeoutError:
            if channel.connection.blocked is None and self.target.up.is_set():
                text = f"{self.name}: {channel.outstanding} publishes from {self.first + self.low - 1} on"
                self.oracle.findings.add(
                    "confirms", f"{text} have no confirm after {CONFIRM_S:g} s", channel.outstanding
                )
            raise


class Transactor(Client):
    """Transactions of GROUP messages over all queues, some of them rolled back: all or nothing."""

    def __init__(self, oracle: Oracle, target: Target, flow: Flow, behind: Callable[[], int]) -> None:
        super().__init__(oracle, target, f"transactions {flow.name}")
        self.flow = flow
        self.behind = behind

    def talk(self, channel: Channel) -> None:
        flow = self.flow
        flow.session += 1
        channel.tx_select()
        properties = PERSISTENT.encode()
        while not self.ending:
            if self.target.paused.is_set() or self.behind() > BEHIND_MAX:
                self.idle.set()
                self._rest(channel)
                continue
            self.idle.clear()
            first = flow.take(flow.group)
            rollback = first // flow.group % ROLLBACK_EVERY == ROLLBACK_EVERY - 1
            if rollback:
                flow.mark(first, first + flow.group, NEVER)
            for number in range(first, first + flow.group):
                exchange = flow.routes[number % len(flow.routes)][0]
                channel.publish(body(flow.number, flow.session, number), exchange, "", properties)
            if rollback:
                channel.tx_rollback()
                continue
            try:
                channel.tx_commit()
            except ChannelClosed as error:
                if no_room(error):
                    flow.mark(first, first + flow.group, NEVER)
                raise
            flow.mark(first, first + flow.group, CONFIRMED)
            self.moves += 1


def no_room(error: ChannelClosed) -> bool:
    """Return whether a transaction was not committed because the disk is full."""
    return error.code == NO_COMMIT[0] and NO_COMMIT[1] in error.text


def persistent() -> Column:
    return Column.one(PERSISTENT.encode())


def bodies(flow: Flow, first: int, count: int) -> Column:
    """Return the bodies of these numbers."""
    numbers = range(first, first + count)
    if any(map(padding, numbers)):
        texts = [body(flow.number, flow.session, number) for number in numbers]
        ends = pack(f"<{count + 1}I", 0, *accumulate(map(len, texts)))
        return Column.of(ends, b"".join(texts))
    key = flow.number << FLOW_SHIFT | flow.session
    words = [word for number in numbers for word in (key, number)]
    ends = pack(f"<{count + 1}I", *range(0, HEAD.size * (count + 1), HEAD.size))
    return Column.of(ends, pack(f">{2 * count}Q", *words))


class Promise:
    """Settlements whose fence is published and not confirmed yet."""

    def __init__(self, fence: int, items: list[Item]) -> None:
        self.fence = fence
        self.items = items
        self.confirmed_at = 0.0


class Consumer(Client):
    """Consumes one queue with manual acks; `_settle` says how a batch is settled."""

    def __init__(self, oracle: Oracle, target: Target, ledger: Ledger) -> None:
        super().__init__(oracle, target, f"consumer of {ledger.queue}")
        self.ledger = ledger
        self.queue = ledger.queue

    def talk(self, channel: Channel) -> None:
        channel.qos(PREFETCH)
        self.ledger.unread = UNREAD_MAX if self.connections > 1 else 0
        channel.confirm_select()
        channel.consume(self.queue)
        last: dict[int, int] = {}
        items: list[Item] = []
        promises: deque[Promise] = deque()
        while not self.ending:
            batch = channel.receive(WAIT_S)
            if len(batch):
                self.idle.clear()
                items += self.ledger.deliver(batch, last)
            if len(items) >= SETTLE_AT or (items and not len(batch)):
                settled = self._settle(channel, items)
                promises.append(Promise(channel.publish(b"", "", FENCE, PERSISTENT), settled))
                items = []
                channel.connection.flush(CONFIRM_S)
            self._keep(channel, promises)
            if not items and not len(batch) and (not promises or self.target.safe_after_s != 0.0):
                self.idle.set()

    def _settle(self, channel: Channel, items: list[Item]) -> list[Item]:
        """Record and send the settlements. Return the messages that they settle for good."""
        self.ledger.settle(items, ACKED)
        channel.ack(items[-1][0], multiple=True)
        return items

    def _keep(self, channel: Channel, promises: deque[Promise]) -> None:
        """Record as stored what the broker must have stored by now."""
        now = time.monotonic()
        for promise in promises:
            if promise.fence >= channel.settled_below:
                break
            promise.confirmed_at = promise.confirmed_at or now
        while promises and promises[0].confirmed_at and now - promises[0].confirmed_at >= self.target.safe_after_s:
            self.ledger.settle(promises.popleft().items, SAFE)
            self.moves += 1


class Requeuer(Consumer):
    """Acks one by one, the last first, and requeues some, once each."""

    EVERY = 16

    def _settle(self, channel: Channel, items: list[Item]) -> list[Item]:
        back = {tag for tag, flow, number in items if self._wants_back(flow, number)}
        self.ledger.settle([item for item in items if item[0] in back], REQUEUED)
        acked = [item for item in items if item[0] not in back]
        self.ledger.settle(acked, ACKED)
        for tag, _, _ in reversed(items):
            if tag in back:
                channel.nack(tag)
            else:
                channel.ack(tag)
        return acked

    def _wants_back(self, flow: int, number: int) -> bool:
        return number % self.EVERY == 3 and flow >= 0 and not self.ledger.marks[flow][number] & REQUEUED


class Rejecter(Consumer):
    """Acks most messages and rejects the rest, which become dead letters.

    A rejected message may come back after a kill until its dead letter is in the journal (docs/reliability.md, P5), and
    the fence does not show when that is. The only promise is that the message is in one of the two queues.
    """

    EVERY = 3

    def _settle(self, channel: Channel, items: list[Item]) -> list[Item]:
        refused = [item for item in items if item[2] % self.EVERY == 0]
        self.ledger.settle(refused, ACKED | REJECTED)
        self.ledger.settle([item for item in items if item[2] % self.EVERY], ACKED)
        for tag, _, number in items:
            if number % self.EVERY == 0:
                channel.reject(tag, requeue=False)
            else:
                channel.ack(tag)
        return [item for item in items if item[2] % self.EVERY]


class Mover(Consumer):
    """Consumes dead letters and publishes them again, with ack and publish in one transaction."""

    def talk(self, channel: Channel) -> None:
        channel.qos(PREFETCH)
        self.ledger.unread = UNREAD_MAX if self.connections > 1 else 0
        channel.tx_select()
        channel.consume(self.queue)
        properties = PERSISTENT.encode()
        promises: deque[Promise] = deque()
        while not self.ending:
            batch = channel.receive(WAIT_S)
            if len(batch):
                self.idle.clear()
                texts = batch.bodies.tolist()
                items = self.ledger.deliver(batch, {})
                for text in texts:
                    channel.publish(text, "", MOVED, properties)
                channel.ack(items[-1][0], multiple=True)
                self.ledger.settle(items, ACKED)
                channel.tx_commit()
                promises.append(Promise(0, items))
                promises[-1].confirmed_at = time.monotonic()
            self._keep(channel, promises)
            if not len(batch):
                self.idle.set()


class Load:
    """All clients of a run and their records."""

    def __init__(self, journal: Journal, target: Target, publishes: int = 0) -> None:
        self.target = target
        self.oracle = oracle = Oracle(journal, (C, DEAD, MOVED))
        p, q = oracle.flow("p", [ROUTE_ALL]), oracle.flow("q", [ROUTE_SOME])
        t = oracle.flow("t", [ROUTE_ALL, ROUTE_SOME], GROUP)
        for queue in QUEUES:
            oracle.ledger(queue, ordered=queue not in (DEAD, MOVED))
        half = -(-publishes // 2 // BURST) * BURST
        self.publishers = [Publisher(oracle, target, flow, self.behind, half) for flow in (p, q)]
        self.transactors = [Transactor(oracle, target, t, self.behind)]
        kinds: dict[str, type[Consumer]] = {A: Consumer, B: Requeuer, C: Rejecter, DEAD: Mover, MOVED: Consumer}
        self.consumers = [kind(oracle, target, oracle.ledgers[queue]) for queue, kind in kinds.items()]
        self._idler: Consumer | None = None
        self._given_up = 0

    @property
    def clients(self) -> list[Client]:
        return [*self.publishers, *self.transactors, *self.consumers]

    def behind(self) -> int:
        """Return about how many confirmed messages the slowest consumer has not received."""
        p, q, t = (flow.confirmed for flow in self.oracle.flows)
        seen = {queue: self.oracle.ledgers[queue].first_deliveries for queue in (A, B, C)}
        return max(p + t // 2 - seen[A], p + q + t - seen[B], q + t // 2 - seen[C]) - self._given_up

    def start(self) -> None:
        for client in self.clients:
            client.start()

    def drain_idle(self, on: bool) -> None:
        """Begin to consume the idle queue, or end it."""
        if on and self._idler is None:
            self._idler = Consumer(self.oracle, self.target, self.oracle.ledgers[IDLE])
            self._idler.start()
        elif not on and self._idler is not None:
            self._idler.done.set()
            self._idler.join()
            self._idler = None

    def forgive(self) -> None:
        """Ignore after a judgement the messages that have not arrived by now."""
        self._given_up = 0
        self._given_up = self.behind()

    @property
    def quiet(self) -> bool:
        """Whether no client waits for anything."""
        idlers = [self._idler] if self._idler is not None else []
        return all(client.idle.is_set() for client in [*self.clients, *idlers])

    def join(self, broker_ended: bool = False) -> None:
        """End all clients. The broker must be running, or have ended: with its network the news of that may have gone, too."""
        self.target.ended.set()
        for client in [*self.clients, *([self._idler] if self._idler else [])]:
            while client.is_alive():
                if broker_ended:
                    client.leave()
                client.join(1.0)


def declare(uri: str, queue_type: str = "") -> None:
    """Declare exchanges, queues and bindings of the load, and purge the messages of an earlier run."""
    kind = {"x-queue-type": queue_type} if queue_type else {}
    with Connection(uri) as connection:
        channel = connection.channel()
        channel.exchange_declare(ALL, "fanout", durable=True)
        channel.exchange_declare(SOME, "direct", durable=True)
        channel.queue_declare(FENCE, durable=True, arguments={"x-max-length": 5, **kind})
        for queue in QUEUES:
            dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD} if queue == C else {}
            if dead and queue_type == QUORUM:
                dead |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
            channel.queue_declare(queue, durable=True, arguments={**dead, **kind})
            channel.queue_purge(queue)
        for exchange, queues in (ROUTE_ALL, ROUTE_SOME):
            for queue in queues:
                channel.queue_bind(queue, exchange, "")


def delete(uri: str) -> None:
    """Delete all of it."""
    with Connection(uri) as connection:
        channel = connection.channel()
        for queue in (*QUEUES, FENCE):
            channel.queue_delete(queue)
        for exchange in (ALL, SOME):
            channel.exchange_delete(exchange)


def waiting(uri: str) -> int:
    """Return the number of ready messages in all queues; -1 if the broker does not say."""
    with contextlib.suppress(AMQPError, TimeoutError, OSError), Connection(uri, heartbeat_thread=False) as connection:
        channel = connection.channel()
        return sum(channel.queue_declare(queue, passive=True).message_count for queue in QUEUES)
    return -1

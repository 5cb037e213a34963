"""A client's day, step by step, against the real protocol on a simulated disk; the ledger notes what it was told."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from kvitto.wire import methods as m
from kvitto.wire.methods import BasicAck, BasicDeliver, BasicGetOk, BasicNack, Method, decode, frame
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD
from tests.protocol.sansio import Frame, ProtocolHarness, Wire
from tests.sim.ledger import Ledger, Transaction

CONFIRMS, PLAIN, TX, STAGE = 1, 2, 3, 5


class Client:
    def __init__(self, harness: ProtocolHarness, ledger: Ledger) -> None:
        self.harness = harness
        self.ledger = ledger
        self.wire: Wire = harness.wire()
        self.wires = [self.wire]
        self.unconfirmed: dict[int, tuple[tuple[str, ...], bytes]] = {}
        self.published = 0
        self.tags: dict[tuple[int, bytes], int] = {}
        self._deliveries: list[BasicDeliver | BasicGetOk] = []
        self._channels: list[int] = []
        self.consumers: dict[str, str] = {}
        self.patience = 200
        self.wire.put(PLAIN, m.ChannelOpen())
        self.wire.put(TX, m.ChannelOpen(), m.TxSelect())
        self.wire.put(CONFIRMS, m.ConfirmSelect(False))
        self.read()

    # -- what comes back -------------------------------------------------------------------------------------

    def read(self) -> list[Method]:
        """Take what was written; note confirms and deliveries."""
        methods = []
        frames = list(chain.from_iterable(wire.frames() for wire in self.wires))
        self.foresee(frames)
        for kind, channel, payload in frames:
            if kind == FRAME_METHOD:
                method = decode(payload)
                methods.append(method)
                self.heard(channel, method)
                if isinstance(method, BasicAck | BasicNack) and channel == CONFIRMS:
                    self._answered(method)
                elif isinstance(method, m.QueueDeclareOk):
                    self.ledger.queue(method.queue).exists = True
                elif isinstance(method, m.TxCommitOk | m.StageCommitOk) and self.ledger.transactions:
                    self.ledger.transactions[-1].told = True
                elif isinstance(method, BasicDeliver | BasicGetOk):
                    self._deliveries.append(method)
                    self._channels.append(channel)
            elif kind == FRAME_BODY:
                self.take(self._deliveries.pop(0), self._channels.pop(0), payload)
        for queue in self.harness.broker.queues.values():
            if queue.durable:
                self.ledger.tell_end(queue.log.queue_id, queue.log.announced_end)
        return methods

    def foresee(self, frames: list[Frame]) -> None:
        """Called with all that was read: the order of frames of several connections is not known."""

    def heard(self, channel: int, method: Method) -> None:
        """Called for each method, in the order of its connection."""

    def take(self, delivery: BasicDeliver | BasicGetOk, channel: int, body: bytes) -> None:
        if isinstance(delivery, BasicDeliver):
            self.ledger.queue(self.consumers[delivery.consumer_tag]).delivered.add(body)
        self.tags[channel, body] = delivery.delivery_tag

    def _answered(self, answer: BasicAck | BasicNack) -> None:
        first = min(self.unconfirmed, default=1) if answer.multiple else answer.delivery_tag
        for number in range(first, answer.delivery_tag + 1):
            if number in self.unconfirmed:
                queues, body = self.unconfirmed.pop(number)
                for queue in queues:
                    told = self.ledger.queue(queue)
                    (told.confirmed if isinstance(answer, BasicAck) else told.refused).add(body)

    def put(self, channel: int, *methods: Method) -> None:
        self.wait_to_write()
        self.wire.put(channel, *methods)

    def wait_to_write(self) -> None:
        """The broker does not read while the disk is full, or an answer waits for a sync."""
        for _ in range(self.patience):
            if self.wire.reading:
                return
            self.flow()
        raise AssertionError("the broker never reads again")

    def flow(self) -> list[Method]:
        """A turn and a sync of what somebody waits for."""
        if self.harness.broker.full:
            self.let_tick(1000)
            self.harness.broker.retry_writes()
        self.harness.turn()
        methods = self.read()
        if self.harness.store.commits.waiting:
            self.harness.sync()
        return methods + self.read()

    def let_tick(self, ms: int) -> None:
        self.harness.clock.advance(ms / 1000)
        self.harness.broker.tick()

    def rest(self) -> list[Method]:
        methods = self.flow()
        commits, broker = self.harness.store.commits, self.harness.broker
        for _ in range(self.patience):
            if not (commits.waiting or commits.behind or broker.full or self.harness.hub.unfinished()):
                return methods
            methods += self.flow()
            for _ in range(self.patience):  # a large batch is written in slices, one in a turn
                if not broker.slow or broker.full:
                    break
                self.harness.turn()
        raise AssertionError("the broker never comes to rest")

    def full_sync(self) -> None:
        """Settlements too."""
        commits = self.harness.store.commits
        gone = {name: set(told.settled) for name, told in self.ledger.queues.items()}
        self.harness.turn()
        while self.harness.hub.unfinished():
            self.harness.turn()
        self.read()
        for queue in self.harness.broker.queues.values():
            if queue.fault is not None:  # it writes nothing any more: what it had not written comes again (D6)
                gone.pop(queue.name, None)
        job = self.harness.store.begin_sync(everything=True)
        job.run()
        self.harness.end_sync(job)
        for name, bodies in gone.items():
            # a replica that has not synced them yet may bring them back
            if not self.harness.broker.unwritten and (commits.allowed is None or commits.allowed >= commits.syncs):
                self.ledger.queue(name).gone |= bodies
        self.harness.turn()
        self.read()

    # -- what the client does --------------------------------------------------------------------------------

    def declare(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        self.ledger.queue(name).exists = None
        self.put(PLAIN, m.QueueDeclare(name, False, True, False, False, False, arguments or {}))
        assert any(isinstance(method, m.QueueDeclareOk) for method in self.rest())
        self.ledger.queue(name).exists = True

    def delete(self, name: str) -> None:
        self.ledger.queue(name).exists = None
        self.put(PLAIN, m.QueueDelete(name, False, False, False))
        assert any(isinstance(method, m.QueueDeleteOk) for method in self.rest())
        self.ledger.forget(name)

    def publish(self, queue: str, *bodies: bytes, channel: int = CONFIRMS) -> None:
        for body in bodies:
            if channel == CONFIRMS:
                self.published += 1
                self.unconfirmed[self.published] = ((queue,), body)
                self.ledger.queue(queue).sent.append(body)
            self.wait_to_write()
            self.wire.feed(content(channel, queue, body))

    def consume(self, queue: str, channel: int = PLAIN, prefetch: int = 0) -> None:
        self.consumers[queue] = queue
        self.put(channel, m.BasicQos(0, prefetch, False))
        self.put(channel, m.BasicConsume(queue, queue, False, False, False, False, {}))
        self.rest()

    def pass_through(self, queue: str, *bodies: bytes) -> None:
        """Delivered and settled at once, with all that waits: these are never written."""
        self.consumers[queue] = queue
        self.put(PLAIN, m.BasicConsume(queue, queue, False, True, False, False, {}))
        self.publish(queue, *bodies)
        self.ledger.queue(queue).settled |= set(self.ledger.queue(queue).sent)
        self.rest()
        self.cancel(queue)

    def cancel(self, queue: str, channel: int = PLAIN) -> None:
        self.put(channel, m.BasicCancel(queue, False))
        self.rest()

    def ack(self, queue: str, *bodies: bytes) -> None:
        for body in bodies:
            self.ledger.queue(queue).settled.add(body)
            self.put(PLAIN, m.BasicAck(self.tags[PLAIN, body], False))

    def reject(self, source: str, target: str, *bodies: bytes) -> None:
        self.ledger.move(source, target, *bodies)
        for body in bodies:
            self.put(PLAIN, m.BasicReject(self.tags[PLAIN, body], False))

    def expire(self, source: str, target: str, *bodies: bytes) -> None:
        self.ledger.move(source, target, *bodies)
        self.harness.clock.advance(2.0)
        self.harness.broker.tick()
        self.rest()

    def meanwhile(self, act: Callable[[], None]) -> None:
        """A sync runs while more happens: it covers what was there when it began."""
        self.harness.turn()
        self.read()
        store = self.harness.store
        job = store.begin_sync(everything=True)
        act()
        self.harness.turn()
        self.read()
        job.run()
        self.harness.end_sync(job)
        self.rest()

    def roll_back(self, queue: str, *bodies: bytes) -> None:
        """Acks of a transaction that is rolled back: nothing happens (T6)."""
        for body in bodies:
            self.put(TX, m.BasicAck(self.tags[TX, body], False))
        self.put(TX, m.TxRollback())
        self.rest()

    def commit(self, publishes: dict[str, list[bytes]], acks: dict[str, list[bytes]]) -> None:
        transaction = Transaction(publishes, acks)
        self.ledger.transactions.append(transaction)
        for queue, bodies in publishes.items():
            self.ledger.queue(queue).sent += bodies
        for queue, bodies in acks.items():
            self.ledger.queue(queue).settled |= set(bodies)
        while not self._committed(publishes, acks):
            self._open_again(list(acks))
        transaction.told = True
        for queue, bodies in publishes.items():
            self.ledger.queue(queue).confirmed |= set(bodies)
        for queue, bodies in acks.items():
            self.ledger.queue(queue).gone |= set(bodies)

    def _committed(self, publishes: dict[str, list[bytes]], acks: dict[str, list[bytes]]) -> bool:
        """False if the disk was full: then nothing has happened, and the channel is closed (T5)."""
        for queue, bodies in publishes.items():
            self.publish(queue, *bodies, channel=TX)
        for bodies in acks.values():
            for body in bodies:
                self.put(TX, m.BasicAck(self.tags[TX, body], False))
        self.put(TX, m.TxCommit())
        answers = self.rest()
        closed = any(isinstance(method, m.ChannelClose) for method in answers)
        assert closed or any(isinstance(method, m.TxCommitOk) for method in answers)
        return not closed

    def _open_again(self, queues: list[str]) -> None:
        self.put(TX, m.ChannelCloseOk(), m.ChannelOpen(), m.TxSelect())
        for queue in queues:
            self.consume(queue, TX, prefetch=4)
        self.rest()


def content(channel: int, key: str, body: bytes, exchange: str = "", props: bytes = b"\0\0") -> bytes:
    """The three frames of a publish, to a queue if no exchange is given."""
    header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + props
    publish = m.BasicPublish(exchange, key, False, False).encode()
    return (
        frame(FRAME_METHOD, channel, publish) + frame(FRAME_HEADER, channel, header) + frame(FRAME_BODY, channel, body)
    )


def bodies(name: str, start: int, end: int, size: int = 40) -> list[bytes]:
    return [f"{name}-{i}".ljust(size, ".").encode() for i in range(start, end)]


def day(client: Client) -> None:
    """Everything that moves messages, with small segments so that they roll, fill and go."""
    client.declare("left")
    client.declare("right")
    client.declare("dead")
    client.declare("work", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    client.publish("left", *bodies("l", 0, 3))
    client.publish("right", *bodies("r", 0, 2))
    client.publish("work", *bodies("w", 0, 4))
    client.flow()
    client.consume("work", prefetch=3)
    client.publish("left", *bodies("l", 3, 6))
    client.reject("work", "dead", bodies("w", 0, 4)[1])
    client.rest()
    client.consume("left", TX, prefetch=4)
    client.commit({"left": bodies("t", 0, 2), "right": bodies("t", 2, 4)}, {"left": bodies("l", 0, 2)})
    client.ack("work", bodies("w", 0, 4)[0])
    client.full_sync()
    client.publish("work", *bodies("w", 4, 12, 200))
    client.rest()
    client.ack("work", *bodies("w", 2, 4), *bodies("w", 4, 5, 200))
    client.rest()
    client.reject("work", "dead", bodies("w", 4, 12, 200)[1])
    client.ack("work", *bodies("w", 6, 8, 200))
    client.publish("right", *bodies("r", 2, 8, 150))
    client.full_sync()
    client.commit({"right": bodies("u", 0, 1), "dead": bodies("u", 1, 2)}, {"left": bodies("l", 2, 4)})
    client.delete("right")
    client.declare("right")
    client.publish("right", *bodies("n", 0, 2))
    client.ack("work", *bodies("w", 8, 11, 200))
    client.rest()
    client.declare("brief", {"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    client.publish("brief", *bodies("b", 0, 3))
    client.rest()
    client.expire("brief", "dead", *bodies("b", 0, 3))
    client.meanwhile(lambda: client.publish("left", *bodies("l", 6, 12, 120)))
    client.roll_back("left", *bodies("l", 4, 6), *bodies("t", 0, 2))
    client.meanwhile(lambda: client.publish("right", *bodies("n", 2, 6, 300)))
    client.reject("work", "dead", *bodies("w", 11, 12, 200))
    client.meanwhile(lambda: client.publish("work", *bodies("w", 12, 14)))
    client.commit({"left": bodies("v", 0, 1), "dead": bodies("v", 1, 2)}, {"left": bodies("l", 4, 6)})
    client.declare("through")
    client.pass_through("through", *bodies("p", 0, 5))
    client.full_sync()
    client.publish("through", *bodies("p", 5, 7))
    client.rest()
    client.pass_through("through", *bodies("p", 7, 9))
    client.publish("through", *bodies("p", 9, 11))
    client.rest()
    client.publish("work", *bodies("w", 14, 16))
    client.harness.turn()
    client.read()
    client.reject("work", "dead", *bodies("w", 12, 15))  # 14 is not durable yet
    client.rest()
    client.full_sync()
    client.full_sync()
    client.full_sync()
    client.full_sync()


def churn(client: Client) -> None:
    """Queues come and go while others stay."""
    client.declare("left")
    client.publish("left", *bodies("l", 0, 2))
    client.rest()
    for i in range(14):
        client.declare("right", {"x-max-length": i + 10})
        client.publish("right", *bodies(f"r{i}", 0, 2))
        client.rest()
        client.delete("right")
    client.declare("right")
    client.publish("left", *bodies("l", 2, 4))
    client.full_sync()
    client.full_sync()

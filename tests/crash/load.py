"""Publishers and consumers that keep exact books while the broker under them is killed.

Every message is (publisher, number). Each client is a thread with a connection of its own; it ends when its socket does.
What a client may rely on is written down only when the broker has said so: a confirm, a commit-ok, or, for an
acknowledgement, the confirm of a message that was published behind it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from kvitto.wire import methods as m
from kvitto.wire.methods import Method, decode, frame
from kvitto.wire.spec import FRAME_BODY, FRAME_METHOD
from tests.protocol.raw import Raw, content

FANOUT, TOPIC = "load.fanout", "load.topic"
ROUTES = {FANOUT: ("a", "b", "idle"), TOPIC: ("b", "c")}
"""Exchange -> its queues. Nobody consumes from `idle` until the end."""
QUEUES = ("a", "b", "c", "idle")
DEAD = "dead"
"""Where what is rejected from c goes."""
FENCE = "fence"
"""Where consumers publish behind their acks."""
PREFETCH = 60
BURST = 20
WINDOW = 200
PERSISTENT = b"\x10\x00\x02"

ENDS = ("closed the socket", "ends inside a frame", "reply_code=320")
"""What the end of the broker looks like."""

Message = tuple[str, int]
Place = tuple[str, Message]
"""A copy of a message: (queue, message)."""


class Books:
    """What has been promised, and what has been seen, over all lives of the broker."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.published: dict[Message, str] = {}
        self.confirmed: set[Message] = set()
        self.groups: dict[Message, int] = {}
        self.received: set[Place] = set()
        self.settled: set[Place] = set()
        self.rejected: set[Message] = set()
        self.surprises: dict[tuple[int, str], int] = {}
        self.problems: list[str] = []
        self.life = 0

    def problem(self, text: str) -> None:
        with self.lock:
            self.problems.append(f"life {self.life}: {text}")

    def deliver(self, queue: str, message: Message, redelivered: bool) -> None:
        """Check one delivery against all that is known."""
        place = (queue, message)
        with self.lock:
            if message not in self.published:
                self.problems.append(f"{place} was never published")
            if place in self.settled:
                self.problems.append(f"life {self.life}: {place} comes again, but its ack was safe")
            if place in self.received and not redelivered:
                self.problems.append(f"life {self.life}: {place} comes again and is not flagged")
            if redelivered and place not in self.received:
                key = (self.life, queue)
                self.surprises[key] = self.surprises.get(key, 0) + 1
            self.received.add(place)

    def owed(self) -> set[Place]:
        """Copies that were confirmed, and no ack of theirs is safe."""
        places = {(queue, message) for message in self.confirmed for queue in ROUTES[self.published[message]]}
        return places - self.settled


def declare(port: int) -> None:
    with Raw(port) as raw:
        raw.channel(1)
        for exchange, kind in ((FANOUT, "fanout"), (TOPIC, "topic")):
            raw.call(1, m.ExchangeDeclare(exchange, kind, durable=True), m.ExchangeDeclareOk)
        raw.declare(DEAD, durable=True)
        raw.declare(FENCE, durable=True, arguments={"x-max-length": 5})
        for queue in QUEUES:
            dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD} if queue == "c" else {}
            raw.declare(queue, durable=True, arguments=dead)
        for exchange, queues in ROUTES.items():
            for queue in queues:
                raw.call(1, m.QueueBind(queue, exchange, "load.#" if exchange == TOPIC else ""), m.QueueBindOk)


class Client(threading.Thread):
    """Runs until its socket ends; anything else that goes wrong is a problem in the books."""

    def __init__(self, books: Books, port: int, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.books = books
        self.port = port
        self.moved = threading.Event()

    def run(self) -> None:
        try:
            with Raw(self.port) as raw:
                raw.channel(1)
                self.talk(raw)
        except OSError:
            pass
        except AssertionError as error:
            if not any(end in str(error) for end in ENDS):
                self.books.problem(f"{self.name}: {error}")
        finally:
            self.moved.set()

    def talk(self, raw: Raw) -> None:
        raise NotImplementedError


class Publisher(Client):
    """Streamed confirms: BURST publishes at a time, at most WINDOW unconfirmed."""

    def __init__(self, books: Books, port: int, name: str, first: int) -> None:
        super().__init__(books, port, name)
        self.next = first

    def talk(self, raw: Raw) -> None:
        raw.call(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        pending: dict[int, Message] = {}
        tag = 0
        while True:
            parts = []
            for _ in range(BURST):
                tag += 1
                pending[tag] = message = (self.name, self.next)
                parts.append(publish(self.books, message))
                self.next += 1
            raw.send(b"".join(parts))
            while len(pending) > WINDOW:
                ack = raw.expect(m.BasicAck)
                tags = [t for t in pending if t <= ack.delivery_tag] if ack.multiple else [ack.delivery_tag]
                with self.books.lock:
                    self.books.confirmed.update(pending.pop(t) for t in tags)
                self.moved.set()


class Transactor(Client):
    """Transactions of 6 messages over all queues: all or nothing."""

    SIZE = 6

    def __init__(self, books: Books, port: int, name: str, first: int) -> None:
        super().__init__(books, port, name)
        self.next = first

    def talk(self, raw: Raw) -> None:
        raw.call(1, m.TxSelect(), m.TxSelectOk)
        while True:
            group = [(self.name, self.next + i) for i in range(self.SIZE)]
            with self.books.lock:
                self.books.groups.update(dict.fromkeys(group, self.next))
            self.next += self.SIZE
            raw.send(b"".join(publish(self.books, message) for message in group))
            raw.call(1, m.TxCommit(), m.TxCommitOk)
            with self.books.lock:
                self.books.confirmed.update(group)
            self.moved.set()


def publish(books: Books, message: Message) -> bytes:
    """The frames of a message, which is written down as published."""
    exchange = FANOUT if message[1] % 2 else TOPIC
    with books.lock:
        books.published[message] = exchange
    key = f"load.{message[0]}"
    return content(1, m.BasicPublish(exchange, key), PERSISTENT, b"%s.%d" % (message[0].encode(), message[1]))


def read(body: bytes) -> Message:
    name, _, number = body.partition(b".")
    return name.decode(), int(number)


class Subscriber(Client):
    """Takes from one queue with manual acks; `settle` says how a batch is settled."""

    def __init__(self, books: Books, port: int, queue: str, settle: Callable[[list[int]], list[Method]]) -> None:
        super().__init__(books, port, f"consumer of {queue}")
        self.queue = queue
        self.settle = settle

    def talk(self, raw: Raw) -> None:
        raw.call(1, m.BasicQos(0, PREFETCH), m.BasicQosOk)
        raw.call(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        raw.put(1, m.BasicConsume(self.queue, "c"))
        unacked: list[tuple[int, Message]] = []
        promised: list[tuple[list[Message], list[Message]]] = []
        safe = 0
        last: dict[str, int] = {}
        deliver: Any = None
        while True:
            kind, _, payload = raw.next()
            if kind == FRAME_METHOD:
                method = decode(payload)
                if isinstance(method, m.BasicDeliver):
                    deliver = method
                elif isinstance(method, m.BasicAck):
                    while safe < method.delivery_tag:
                        self._safe(*promised[safe])
                        safe += 1
                continue
            if kind != FRAME_BODY:
                continue
            message = read(payload)
            self.books.deliver(self.queue, message, deliver.redelivered)
            if message[1] <= last.get(message[0], -1):
                self.books.problem(f"{self.queue}: {message} after {last[message[0]]}")
            last[message[0]] = message[1]
            unacked.append((deliver.delivery_tag, message))
            if len(unacked) >= PREFETCH // 2:
                methods = self.settle([tag for tag, _ in unacked])
                refused = {x.delivery_tag for x in methods if isinstance(x, m.BasicReject)}
                promised.append(([x for _, x in unacked], [x for tag, x in unacked if tag in refused]))
                unacked = []
                frames = [frame(FRAME_METHOD, 1, method.encode()) for method in methods]
                raw.send(b"".join((*frames, content(1, m.BasicPublish("", FENCE), PERSISTENT, b""))))

    def _safe(self, messages: list[Message], refused: list[Message]) -> None:
        """The broker has confirmed what was published behind these settlements."""
        with self.books.lock:
            self.books.settled.update((self.queue, message) for message in messages)
            self.books.rejected.update(refused)
        self.moved.set()


def ack_multiple(tags: list[int]) -> list[Method]:
    return [m.BasicAck(tags[-1], True)]


def ack_backwards(tags: list[int]) -> list[Method]:
    return [m.BasicAck(tag) for tag in reversed(tags)]


def reject_some(tags: list[int]) -> list[Method]:
    return [m.BasicReject(tag, False) if tag % 3 == 0 else m.BasicAck(tag) for tag in tags]


def drain(books: Books, port: int) -> dict[str, list[Message]]:
    """Everything that is left, by queue, in order."""
    left: dict[str, list[Message]] = {}
    with Raw(port) as raw:
        raw.channel(1)
        for queue in (*QUEUES, DEAD):
            left[queue] = []
            for _ in range(raw.count(queue)):
                if not left[queue]:
                    raw.put(1, m.BasicConsume(queue, queue, no_ack=True))
                    raw.expect(m.BasicConsumeOk)
                delivery = raw.message()
                left[queue].append(read(delivery.body))
                if queue != DEAD:
                    books.deliver(queue, left[queue][-1], delivery.method.redelivered)
    return left


def start(books: Books, port: int) -> list[Client]:
    """Publishers and consumers for one life of the broker."""
    first = 10_000_000 * books.life
    clients: list[Client] = [
        Publisher(books, port, "p", first),
        Publisher(books, port, "q", first),
        Transactor(books, port, "t", first),
        Subscriber(books, port, "a", ack_multiple),
        Subscriber(books, port, "b", ack_backwards),
        Subscriber(books, port, "c", reject_some),
    ]
    for client in clients:
        client.start()
    return clients


def end(clients: list[Client]) -> None:
    """The broker is gone: so is each client, soon."""
    for client in clients:
        client.join(20)
        assert not client.is_alive()


def check_transactions(books: Books) -> None:
    """T4: of each transaction every copy has been seen, or none."""
    wanted: Counter[int] = Counter()
    seen: Counter[int] = Counter()
    for message, group in books.groups.items():
        for queue in ROUTES[books.published.get(message, TOPIC)]:
            wanted[group] += 1
            seen[group] += (queue, message) in books.received
    halves = [group for group in wanted if seen[group] not in (0, wanted[group])]
    assert not halves, f"{len(halves)} transactions were applied by half, such as {halves[:3]}"

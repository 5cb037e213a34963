"""Publishers that send everything again, and what a queue with deduplication, or an exchange with two queues, must have made of it.

Each message has a key, and is sent several times: what is unconfirmed after a lost connection is sent again, and so is some of what was
confirmed. The consumers note each key with the offset of its message in the queue. A key that was confirmed and is in no message of a
queue has been without one; a message whose key is in another message too has been without one.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

from kvitto.client import AMQPError, Channel, Connection, Properties
from kvitto.wire.tables import Table
from tests.support.wait import wait_until

QUEUE, OTHER, DELAY, FANOUT = "once", "all", "delay", "both"
EXCHANGE, SECOND = "compared", "second"
"""An exchange with deduplication, and the second queue that is bound to it."""
ARGUMENTS: Table = {"x-message-deduplication": True, "x-cache-size": 1_000_000}
BURST = 30
AGAIN = 0.3
"""The part of messages that is sent again although it was confirmed."""


def declare(port: int) -> None:
    """Have a queue compare the messages."""
    with Connection(uri(port)) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True, arguments=ARGUMENTS)
        channel.queue_declare(OTHER, durable=True, arguments={"x-max-length": 1000})
        expires: Table = {"x-message-ttl": 20, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": QUEUE}
        channel.queue_declare(DELAY, durable=True, arguments=expires)
        channel.exchange_declare(FANOUT, "fanout", durable=True)
        for queue in (QUEUE, OTHER):
            channel.queue_bind(queue, FANOUT)


def declare_exchange(port: int) -> None:
    """Have an exchange compare the messages of two queues."""
    with Connection(uri(port)) as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, "fanout", durable=True, arguments=ARGUMENTS)
        for queue in (QUEUE, SECOND):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, EXCHANGE)
        channel.queue_declare(OTHER, durable=True, arguments={"x-max-length": 1000})
        channel.exchange_declare(FANOUT, "fanout", durable=True)
        channel.queue_bind(OTHER, FANOUT)
        channel.exchange_bind(EXCHANGE, FANOUT)


def uri(port: int) -> str:
    return f"amqp://guest:guest@127.0.0.1:{port}/%2f"


def properties(key: str) -> Properties:
    return Properties(headers={"x-deduplication-header": key}, delivery_mode=2)


class Load:
    """Publishers and consumers that live longer than the broker; `port` says where it is now, 0 while it is down.

    `exchange`: it is the exchange that compares, and each of its queues has to have each message once.
    """

    def __init__(self, seed: int, size: int, exchange: bool = False) -> None:
        self.port = 0
        self.to = (EXCHANGE, "") if exchange else ("", QUEUE)
        self.size = size
        self.seed = seed
        self.confirmed: set[str] = set()
        self.committed = self.rolled_back = self.sent = self.refused = 0
        names = (QUEUE, SECOND) if exchange else (QUEUE,)
        self.offsets: dict[str, dict[str, set[int]]] = {name: defaultdict(set) for name in names}
        """By queue and key, the offsets of the messages."""
        self.stopping = threading.Event()
        self.draining = threading.Event()
        self.errors: list[str] = []
        publishers: list[tuple[str, Callable[[str, random.Random], None]]]
        publishers = [("p", self._publish), ("q", self._publish), ("t", self._commit)]
        if not exchange:  # which does not compare dead letters
            publishers.append(("d", self._delay))
        self._publishers = [self._thread(name, work) for name, work in publishers]
        self._consumers = [self._thread(name, self._consume) for name in names]

    def _thread(self, name: str, work: Callable[[str, random.Random], None]) -> threading.Thread:
        rng = random.Random(f"{self.seed} {name}")
        thread = threading.Thread(target=self._guard, args=(work, name, rng), daemon=True)
        thread.start()
        return thread

    def _guard(self, work: Callable[[str, random.Random], None], name: str, rng: random.Random) -> None:
        try:
            work(name, rng)
        except Exception as error:  # noqa: BLE001 - the test tells of it
            self.errors.append(f"{name}: {error!r}")

    def _connect(self) -> Connection | None:
        if not self.port:
            self.stopping.wait(0.01)
            return None
        with suppress(OSError, AMQPError):
            return Connection(uri(self.port))
        self.stopping.wait(0.01)
        return None

    # -- publishers ------------------------------------------------------------------------------------------

    def _publish(self, name: str, rng: random.Random) -> None:
        """Publish with confirms, to the queue alone or to both."""
        number = 0
        waiting: dict[str, None] = {}
        while not (self.stopping.is_set() and not waiting):
            connection = self._connect()
            if connection is None:
                continue
            with suppress(OSError, AMQPError):
                channel = connection.channel()
                channel.confirm_select()
                refused = channel.gather_refused()
                while not (self.stopping.is_set() and not waiting):
                    burst = list(waiting)
                    if not self.stopping.is_set():
                        burst += [f"{name}{number + i}" for i in range(BURST)]
                        burst += [
                            f"{name}{rng.randrange(number)}" for _ in range(BURST) if number and rng.random() < AGAIN
                        ]
                        number += BURST
                    waiting |= dict.fromkeys(burst)
                    rng.shuffle(burst)
                    tags = {self._send(channel, rng, key): key for key in burst}
                    channel.wait_for_confirms(120)
                    self.refused += len(refused)
                    kept = {tags[tag] for tag in refused}
                    refused.clear()
                    self.confirmed |= waiting.keys() - kept
                    waiting = dict.fromkeys(kept)
            connection.close()

    def _send(self, channel: Channel, rng: random.Random, key: str) -> int:
        self.sent += 1
        exchange, to = (FANOUT, "") if rng.random() < 0.2 else self.to
        return channel.publish(key.encode().ljust(self.size), exchange, to, properties(key))

    def _commit(self, name: str, rng: random.Random) -> None:
        """Publish in transactions, some of which are rolled back first; the same key may be in one of them twice."""
        number = 0
        waiting: list[str] = []
        while not (self.stopping.is_set() and not waiting):
            connection = self._connect()
            if connection is None:
                continue
            with suppress(OSError, AMQPError):
                channel = connection.channel()
                channel.tx_select()
                while not (self.stopping.is_set() and not waiting):
                    if not waiting:
                        waiting = [f"{name}{number + i}" for i in range(rng.randrange(1, BURST))]
                        number += len(waiting)
                    both = rng.random() < 0.5
                    keys = waiting + [f"{name}{rng.randrange(number)}" for _ in range(rng.randrange(3))]
                    if rng.random() < 0.3:
                        self._put(channel, keys, both)
                        channel.tx_rollback()
                        self.rolled_back += 1
                    self._put(channel, keys, both)
                    channel.tx_commit()
                    self.committed += 1
                    self.confirmed |= set(keys)
                    waiting = []
            connection.close()

    def _put(self, channel: Channel, keys: list[str], both: bool) -> None:
        for key in keys:
            exchange, to = (FANOUT, "") if both else self.to
            channel.publish(key.encode().ljust(self.size), exchange, to, properties(key))

    def _delay(self, _name: str, rng: random.Random) -> None:
        """Send what the others have sent once more, as dead letters of another queue."""
        while not self.stopping.is_set():
            connection = self._connect()
            if connection is None:
                continue
            with suppress(OSError, AMQPError):
                channel = connection.channel()
                channel.confirm_select()
                while not self.stopping.is_set():
                    known = list(self.confirmed)[:200]
                    for key in rng.sample(known, min(len(known), 5)):
                        channel.publish(key.encode().ljust(self.size), "", DELAY, properties(key))
                    channel.wait_for_confirms(120)
                    self.stopping.wait(0.02)
            connection.close()

    # -- consumer --------------------------------------------------------------------------------------------

    def _consume(self, queue: str, rng: random.Random) -> None:
        while True:
            connection = self._connect()
            if connection is None:
                if self.draining.is_set() and not self.port:
                    return
                continue
            with suppress(OSError, AMQPError):
                channel = connection.channel()
                channel.qos(100)
                channel.consume(queue, arguments={"x-offset-header": True})
                while not (self.draining.is_set() and self._is_empty(channel, queue)):
                    for delivery in channel.receive(0.2):
                        self.offsets[queue][key_of(delivery.properties)].add(offset_of(delivery.properties))
                        if rng.random() < 0.1:
                            channel.reject(delivery.delivery_tag, requeue=True)
                        else:
                            channel.ack(delivery.delivery_tag)
                    connection.flush()
                return
            connection.close()

    @staticmethod
    def _is_empty(channel: Channel, queue: str) -> bool:
        """Tell whether this consumer has had everything: the count leaves out what is on its way, so that comes before it.

        Deliveries precede the answer on the channel, and a reject has been carried out before it.
        """
        return channel.queue_declare(queue, passive=True).message_count == 0 and channel.sink.batch.count == 0

    # -- verdict ---------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Let the publishers have everything confirmed, and the consumer take everything."""
        self.stopping.set()
        for thread in self._publishers:
            thread.join(120)
        assert not any(thread.is_alive() for thread in self._publishers), "a publisher waits for its confirms"
        with Connection(uri(self.port)) as connection:
            channel = connection.channel()
            if self.to == ("", QUEUE):
                wait_until(lambda: channel.queue_declare(DELAY, passive=True).message_count == 0, what="dead letters")
            else:
                wait_until(self._has_arrived, what="messages that pass the exchange")
        self.draining.set()
        for consumer in self._consumers:
            consumer.join(120)
            assert not consumer.is_alive(), "a consumer does not come to an end"
        assert self.errors == []

    def _has_arrived(self) -> bool:
        """Whether each queue has had all that was confirmed. What has not come to a queue by the end counts as lost."""
        return all(self.confirmed <= offsets.keys() for offsets in self.offsets.values())

    def verdict(self) -> tuple[list[str], list[str]]:
        """Return the confirmed keys that are in no message of a queue, and those that are in several."""
        found = self.offsets.values()
        return [key for keys in found for key in self.confirmed if not keys.get(key)], [
            key for keys in found for key, offsets in keys.items() if len(offsets) > 1
        ]

    def told(self) -> str:
        return (
            f"{self.sent} publishes and {self.committed} commits, {self.rolled_back} rolled back, {len(self.confirmed)} keys confirmed,"
            f" {' and '.join(str(len(keys)) for keys in self.offsets.values())} seen, {self.refused} refused"
        )


def key_of(found: Properties) -> str:
    key = (found.headers or {})["x-deduplication-header"]
    assert isinstance(key, str)
    return key


def offset_of(found: Properties) -> int:
    offset = (found.headers or {})["x-stream-offset"]
    assert isinstance(offset, int)
    return offset

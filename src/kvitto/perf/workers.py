"""The publisher and the consumer of the load generator. Each has one connection, which the loop in `engine.py` drives.

They use the client's connection for the handshake, and never wait afterwards: `readable` and `writable` do as much as
possible at once, and `wants_write` says whether there is more to send. All work per message is in the compiled codec.
"""

import time
from dataclasses import dataclass

from kvitto.client import Connection, Properties
from kvitto.client.codec import COUNT, put_acks
from kvitto.client.columns import Latencies
from kvitto.wire.methods import TxCommit, TxCommitOk

CHUNK_BYTES = 128 * 1024
"""The bytes that a publisher adds to its output at one time: enough for few system calls, few enough to be fair."""


@dataclass(slots=True)
class Options:
    """What a run does; see `kvitto perf throughput --help`. 0 means off or no limit."""

    uri: str
    publishers: int = 1
    consumers: int = 1
    size: int = 16
    max_unconfirmed: int = 0
    ack_every: int = 0
    publish_tx: int = 0
    ack_tx: int = 0
    queue: str = "perf-test"
    exchange: str = ""
    routing_key: str = ""
    prefetch: int = 0
    persistent: bool = False
    seconds: float = 0.0
    publish_count: int = 0
    consume_count: int = 0
    rate: float = 0.0
    latency: bool = False


@dataclass(slots=True)
class Quota:
    """The number of messages that all publishers together may still publish; None means no limit."""

    left: int | None

    def take(self, wanted: int) -> int:
        """Return at most `wanted`, and reduce the rest by it."""
        if self.left is None:
            return wanted
        granted = min(wanted, self.left)
        self.left -= granted
        return granted


class Publisher:
    """Keeps its connection's output full, as far as window, transaction, rate and quota allow."""

    def __init__(self, options: Options, quota: Quota, number: int) -> None:
        self.connection = Connection(options.uri, name=f"kvitto perf publisher {number}")
        self.channel = self.connection.channel()
        self.quota = quota
        self.window_size = options.max_unconfirmed
        self.tx_size = options.publish_tx
        self.tx_left = options.publish_tx
        self.committing = False
        self.rate = options.rate
        self.latency = options.latency
        self.published = 0
        self.started_at = time.monotonic()
        if self.window_size:
            self.channel.confirm_select()
        if self.tx_size:
            self.channel.tx_select()
        properties = Properties(delivery_mode=2 if options.persistent else 1)
        key = options.routing_key or options.queue
        self.template = self.channel.template(bytes(options.size), options.exchange, key, properties)
        self.chunk = max(1, CHUNK_BYTES // self.template.size)

    def start(self, now: float) -> None:
        """Start the clock of a limited rate."""
        self.started_at = now

    @property
    def settled(self) -> bool:
        """Whether nothing is left to send and no answer is missing."""
        return (
            self.quota.left == 0 and not self.committing and not self.channel.outstanding and not self.connection.out.n
        )

    def allowed(self, now: float) -> int:
        """Return how many messages may be sent now."""
        count = self.chunk
        if self.quota.left == 0 or self.committing:
            return 0
        if self.window_size:
            count = min(count, self.window_size - self.channel.outstanding)
        if self.tx_size:
            count = min(count, self.tx_left)
        if self.rate:
            count = min(count, int((now - self.started_at) * self.rate) - self.published)
        return max(count, 0)

    def wants_write(self, now: float) -> bool:
        return self.connection.out.n > 0 or self.allowed(now) > 0

    def writable(self, now: float) -> None:
        """Send the rest of the output, then the next chunk."""
        if not self.connection.push():
            return
        count = self.quota.take(self.allowed(now))
        if count:
            self.template.fill(self.connection.out, count, time.monotonic_ns() if self.latency else 0)
            if self.window_size:
                assert self.channel.sink.window is not None
                self.channel.sink.window.sent(count)
            self.published += count
            if self.tx_size:
                self.tx_left -= count
                self._commit()
            self.connection.push()

    def readable(self) -> None:
        """Handle confirms and answers."""
        self.connection.read()
        replies = self.channel.replies
        while replies:
            if isinstance(replies.popleft(), TxCommitOk):
                self.committing = False
                self.tx_left = self.tx_size

    @property
    def sent(self) -> int:
        """The number of messages that were handed to the operating system."""
        return max(0, self.published - self.unsent_bytes // self.template.size)

    @property
    def unsent_bytes(self) -> int:
        return self.connection.out.n - self.connection.transport.sent

    def _commit(self) -> None:
        """End the transaction when it is full, or when no further message will come."""
        if self.tx_left == 0 or self.quota.left == 0:
            self.connection.send(TxCommit(), self.channel.number)
            self.committing = True


class Consumer:
    """Counts the messages that it receives, and acks each, or every N, or in transactions."""

    def __init__(self, options: Options, number: int) -> None:
        self.connection = Connection(options.uri, name=f"kvitto perf consumer {number}")
        self.channel = self.connection.channel()
        self.sink = self.channel.sink
        self.sink.mode = COUNT
        self.step = options.ack_every or (1 if options.ack_tx else 0)
        self.tx_size = options.ack_tx
        self.committing = False
        self.acked = 0
        if options.latency:
            self.sink.latencies = Latencies()
        if options.prefetch:
            self.channel.qos(options.prefetch)
        if self.tx_size:
            self.channel.tx_select()
        self.queue = options.queue

    def start(self, now: float) -> None:
        """Subscribe. The answer is received like everything else."""
        self.channel.consume(self.queue, no_ack=self.step == 0)

    @property
    def consumed(self) -> int:
        return self.sink.count

    def wants_write(self, now: float) -> bool:
        return self.connection.out.n > 0

    def writable(self, now: float) -> None:
        self.connection.push()

    def readable(self) -> None:
        """Count the received messages and ack them."""
        self.connection.read()
        while self.channel.replies:
            if isinstance(self.channel.replies.popleft(), TxCommitOk):
                self.committing = False
        if self.step and not self.committing:
            self.ack(self.sink.count)

    def ack(self, received: int) -> None:
        """Ack up to `received`, rounded down to whole steps (and to one whole transaction)."""
        due = received - received % self.step
        if self.tx_size:
            due = min(due, self.acked + self.tx_size)
            if due < self.acked + self.tx_size:
                return
        if due <= self.acked:
            return
        put_acks(self.connection.out, self.channel.number, self.acked + 1, due, self.step)
        self.acked = due
        if self.tx_size:
            self.connection.send(TxCommit(), self.channel.number)
            self.committing = True
        self.connection.push()

    def finish(self) -> None:
        """Ack the rest of the counted messages, so that none of them is delivered again."""
        if self.step and self.acked < self.sink.count:
            self.channel.ack(self.sink.count, multiple=True)
        if self.tx_size and not self.committing:
            self.channel.tx_commit()
        self.connection.flush()


Worker = Publisher | Consumer

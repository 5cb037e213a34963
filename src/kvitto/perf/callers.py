"""The two sides of remote calls through a queue: a client that waits for each answer, and a server that sends the request back.

Answers come by direct reply-to. The loop in `engine.py` drives both, as it does the workers of `kvitto perf throughput`.
"""

from __future__ import annotations

from kvitto.base import ticks
from kvitto.client import Properties
from kvitto.client.codec import COUNT, Template, put_acks
from kvitto.client.columns import Batch, Column, Latencies
from kvitto.perf.options import Options, Quota
from kvitto.perf.workers import Worker
from kvitto.wire import bits

REPLY_TO = "amq.rabbitmq.reply-to"


class Client(Worker):
    """Sends a request, waits for its answer, sends the next. Its latencies are those of whole calls."""

    def __init__(self, options: Options, quota: Quota, number: int) -> None:
        super().__init__(options, f"client {number}")
        self.quota = quota
        self.published = 0
        self.sink.mode = COUNT
        self.sink.latencies = Latencies()
        self.channel.consume(REPLY_TO, no_ack=True)
        properties = Properties(delivery_mode=1, correlation_id=str(number), reply_to=REPLY_TO)
        self.template: Template = self.channel.template(bytes(options.size), "", options.queue, properties)

    @property
    def sent(self) -> int:
        return self.published

    @property
    def settled(self) -> bool:
        return self.quota.left == 0 and self.published == self.sink.count

    def readable(self) -> bool:
        """Count the answer, and send the next request."""
        self.receive()
        return self.write()

    def write(self) -> bool:
        if not self.push():
            return True
        if self.published == self.sink.count and (self.quota.left is None or self.quota.take(1)):
            self.template.fill(self.out, 1, ticks.now_ns())
            self.published += 1
        return not self.push()


class Server(Worker):
    """Answers each request with its own time stamp, and acks it if told so."""

    def __init__(self, options: Options, number: int) -> None:
        super().__init__(options, f"server {number}")
        self.acks = options.ack_every > 0
        self.size = options.size
        self.queue = options.queue
        self.served = 0
        self.answers: dict[bytes, Template] = {}
        """By the properties of the request, which are the same for all requests of one client."""
        if options.prefetch:
            self.channel.qos(options.prefetch)

    def start(self) -> None:
        """Subscribe."""
        self.channel.consume(self.queue, no_ack=not self.acks)

    @property
    def consumed(self) -> int:
        return self.served

    def readable(self) -> bool:
        """Answer all requests that have arrived, in one send."""
        self.receive()
        return self.write()

    def write(self) -> bool:
        batch = self.sink.batch
        if batch.count:
            k = 0
            while k < batch.count:
                properties = batch.properties[k]
                template = self.answers.get(properties)
                if template is None:
                    template = self.answers[properties] = self.answer(properties)
                template.fill(self.out, 1, bits.be64(batch.bodies.data.p, k * self.size))
                k += 1
            if self.acks:
                put_acks(self.out, self.sink.channel, self.served + 1, self.served + batch.count, 1)
            self.served += batch.count
            self.forget(batch)
        return not self.push()

    def answer(self, properties: bytes) -> Template:
        request = Properties.decode(properties)
        found = Properties(delivery_mode=1, correlation_id=request.correlation_id)
        return self.channel.template(bytes(self.size), "", request.reply_to or "", found)

    def forget(self, batch: Batch) -> None:
        """Empty the batch for the next requests."""
        batch.count = 0
        batch.tags.n = 0
        batch.flags.n = 0
        self.empty(batch.consumer_tags)
        self.empty(batch.exchanges)
        self.empty(batch.routing_keys)
        self.empty(batch.properties)
        self.empty(batch.bodies)

    def empty(self, column: Column) -> None:
        column.data.n = 0
        column.ends.n = 4

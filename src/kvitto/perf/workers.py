"""The publisher and the consumer of the load generator. Each has one connection, which the loop in `engine.py` drives.

They use the client's connection for the handshake, and never wait afterwards. An event costs one receive and one send: a write is tried
at once, and `readable` and `write` return whether the worker has to be called again when the socket is writable. All work per message
and per event is compiled.
"""

from __future__ import annotations

import os
import select
from typing import Any

from kvitto.base import rawio, ticks
from kvitto.base.errors import ConnectionError_
from kvitto.client import Channel, Connection, ConnectionLost, Properties
from kvitto.client.codec import COUNT, put_acks
from kvitto.client.columns import Latencies
from kvitto.client.transport import HEARTBEAT_FRAME
from kvitto.perf.options import Options, Quota
from kvitto.wire.buf import FRESH, Buf
from kvitto.wire.methods import TxCommit, TxCommitOk

CHUNK_BYTES = 128 * 1024
"""The bytes that a publisher adds to its output at one time: enough for few system calls, few enough to be fair."""
# C integers when compiled (see workers.pxd), so they cannot be imported
_RECEIVE_BYTES = 256 * 1024
_IN, _OUT = 1, 4  # EPOLLIN, EPOLLOUT

RECEIVED = Buf(_RECEIVE_BYTES)
"""All workers receive into this buffer; only an incomplete frame goes into one of the connection's own. So a thousand connections need
little memory, and the bytes are in the processor's cache."""


def serve(workers: dict[int, Worker], ready: list[tuple[int, int]]) -> None:
    """Serve the workers with events, as epoll lists them. A descriptor of no worker is a timer."""
    for fd, events in ready:
        worker = workers.get(fd)
        if worker is None:
            os.read(fd, 8)
        elif events & ~_OUT:
            worker.watch(worker.readable())
        else:
            worker.watch(worker.write())


class Worker:
    """A connection with one channel. Its output is the connection's: while the worker runs, nothing else may send."""

    def __init__(self, options: Options, name: str) -> None:
        self.connection = Connection(options.uri, name=f"kvitto perf {name}", heartbeat_thread=False)
        self.channel: Channel = self.connection.channel()
        self.fd = self.connection.fileno()
        self.tls = self.connection.transport.tls
        self.scanner = self.connection.scanner
        self.sink = self.channel.sink
        self.out = self.connection.out
        self.unsent = False
        """Whether the socket has taken only a part of the output."""
        self.epoll: Any = None
        self.watching = False
        """Whether epoll reports that the socket is writable."""
        self.due = 0
        """How many messages the rate has allowed so far."""
        self.scanner.inp.clear(FRESH)
        self.out.clear(FRESH)

    def start(self) -> None:
        """Do what has to be done before the first event."""

    @property
    def sent(self) -> int:
        """The number of messages that were handed to the operating system."""
        return 0

    @property
    def consumed(self) -> int:
        """The number of messages that were received."""
        return 0

    @property
    def settled(self) -> bool:
        """Whether nothing is left to send and no answer is missing."""
        return True

    def readable(self) -> bool:
        """Receive once, and answer."""
        self.receive()
        return not self.push()

    def write(self) -> bool:
        """Send what may be sent now."""
        return not self.push()

    def watch(self, writable: bool) -> None:
        """Let epoll report that the socket is writable, or not. It is asked only when that changes."""
        if writable != self.watching:
            self.watching = writable
            self.epoll.modify(self.fd, _IN | _OUT if writable else _IN)

    def receive(self) -> None:
        """Receive once, and count. Raise ConnectionLost or ChannelClosed when that is so."""
        if self.tls:
            self.connection.read()
            # OpenSSL may hold bytes of which epoll does not know
            while self.connection.transport.sock.pending():  # type: ignore[attr-defined]
                self.connection.read()
            self.check()
            return
        own = self.scanner.inp
        inp = RECEIVED if own.n == 0 else own
        inp.reserve(_RECEIVE_BYTES)
        count = rawio.receive(self.fd, inp.p, inp.n, inp.cap - inp.n)
        if count <= 0:
            self.connection.read()  # it knows what an end and what an error is
            self.check()
            return
        inp.n += count
        self.scanner.inp = inp
        try:
            self.scanner.scan(ticks.now_ns())
        except ConnectionError_ as error:
            raise ConnectionLost(f"{self.connection.address}: {error.text}", error.code) from None
        finally:
            self.scanner.inp = own
            if inp is not own:
                if inp.n:
                    own.add(inp.view())
                inp.n = 0
        if self.scanner.events:
            self.connection.dispatch()
            self.check()

    def check(self) -> None:
        if self.connection.closed is not None:
            raise self.connection.closed
        if self.channel.closed is not None:
            raise self.channel.closed

    def push(self) -> bool:
        """Send what the socket takes. Return True if nothing is left."""
        out = self.out
        if out.n == 0:
            return True
        if not self.tls and not self.unsent:
            count = rawio.send(self.fd, out.p, 0, out.n)
            if count == out.n:
                out.clear()
                return True
            if count > 0:
                self.connection.transport.sent = count
                self.unsent = True
                return False
        self.unsent = not self.connection.push()
        return not self.unsent

    def beat(self) -> None:
        """Send a heartbeat, unless something else is on its way."""
        if self.out.n == 0:
            self.out.add(HEARTBEAT_FRAME)
            self.watch(not self.push())


class Publisher(Worker):
    """Keeps its connection's output full, as far as window, transaction, rate and quota allow."""

    def __init__(self, options: Options, quota: Quota, number: int) -> None:
        super().__init__(options, f"publisher {number}")
        self.quota = quota
        self.window_size = options.max_unconfirmed
        self.tx_size = options.publish_tx
        self.tx_left = options.publish_tx
        self.committing = False
        self.paced = options.rate > 0
        self.latency = options.latency
        self.published = 0
        if self.window_size:
            self.channel.confirm_select()
        if self.tx_size:
            self.channel.tx_select()
        self.window = self.sink.window
        properties = Properties(delivery_mode=2 if options.persistent else 1)
        key = options.routing_key or options.queue
        # any object with a `size` and a `fill` as it has: benchmarks/load.py puts several templates here
        self.template: Any = self.channel.template(bytes(options.size), options.exchange, key, properties)
        self.size: int = self.template.size
        self.chunk = max(1, CHUNK_BYTES // self.size)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to send and no answer is missing."""
        return self.quota.left == 0 and not self.committing and not self.channel.outstanding and not self.out.n

    def allowed(self) -> int:
        """Return how many messages may be sent now."""
        count = self.chunk
        if self.committing:
            return 0
        if self.window is not None and self.window_size - self.window.outstanding < count:
            count = self.window_size - self.window.outstanding
        if self.tx_size and self.tx_left < count:
            count = self.tx_left
        if self.paced and self.due - self.published < count:
            count = self.due - self.published
        return 0 if count <= 0 or self.quota.left == 0 else count

    def write(self) -> bool:
        """Send the rest of the output, then the next chunk."""
        if not self.push():
            return True
        count = self.allowed()
        if count and self.quota.left is not None:
            count = self.quota.take(count)
        if count == 0:
            return False
        self.template.fill(self.out, count, ticks.now_ns() if self.latency else 0)
        if self.window is not None:
            self.window.sent(count)
        self.published += count
        if self.tx_size:
            self.tx_left -= count
            # the transaction ends when it is full, or when no further message will come
            if self.tx_left == 0 or self.quota.left == 0:
                self.connection.send(TxCommit(), self.channel.number)
                self.committing = True
        return not self.push() or self.allowed() > 0

    def readable(self) -> bool:
        """Handle confirms and answers, and publish what they allow."""
        self.receive()
        if self.committing:
            replies = self.channel.replies
            while replies:
                if isinstance(replies.popleft(), TxCommitOk):
                    self.committing = False
                    self.tx_left = self.tx_size
        return self.write()

    @property
    def sent(self) -> int:
        """The number of messages that were handed to the operating system."""
        return max(0, self.published - self.unsent_bytes // self.size)

    @property
    def unsent_bytes(self) -> int:
        return self.out.n - self.connection.transport.sent


class Consumer(Worker):
    """Counts the messages that it receives, and acks each, or every N, or in transactions."""

    def __init__(self, options: Options, number: int) -> None:
        super().__init__(options, f"consumer {number}")
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

    def start(self) -> None:
        """Subscribe."""
        self.channel.consume(self.queue, no_ack=self.step == 0)

    @property
    def consumed(self) -> int:
        return self.sink.count

    def readable(self) -> bool:
        """Count the received messages and ack them."""
        self.receive()
        if self.committing:
            while self.channel.replies:
                if isinstance(self.channel.replies.popleft(), TxCommitOk):
                    self.committing = False
        return self.write()

    def write(self) -> bool:
        """Ack what has been received, also with the answer to the subscription."""
        if self.step and not self.committing:
            self.ack(self.sink.count)
        return not self.push()

    def ack(self, received: int) -> None:
        """Ack up to `received`, rounded down to whole steps (and to one whole transaction)."""
        due = received - received % self.step
        if self.tx_size:
            if due < self.acked + self.tx_size:
                return
            due = self.acked + self.tx_size
        if due <= self.acked:
            return
        put_acks(self.out, self.sink.channel, self.acked + 1, due, self.step)
        self.acked = due
        if self.tx_size:
            self.connection.send(TxCommit(), self.channel.number)
            self.committing = True

    def finish(self) -> None:
        """Ack the rest of the counted messages, so that none of them is delivered again."""
        if self.step and self.acked < self.sink.count:
            self.channel.ack(self.sink.count, multiple=True)
        if self.tx_size and not self.committing:
            self.channel.tx_commit()
        self.connection.flush()


assert not hasattr(select, "EPOLLOUT") or (_IN, _OUT) == (select.EPOLLIN, select.EPOLLOUT)

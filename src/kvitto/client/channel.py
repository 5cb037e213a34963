"""A channel: declarations, publishing with confirms, consuming in columns, transactions, reading a queue by offset.

Compiled code writes publishes and settlements into the connection's output, and puts deliveries into the sink's batch.
Confirms are streamed: `publish` returns the message's tag at once, and the window knows which tags are unconfirmed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from kvitto.client.codec import CONFIRM, CONTENT, Sink, Template, put_publish, put_rows, put_settle
from kvitto.client.columns import Batch, Column, Delivery, Window
from kvitto.client.errors import AMQPError, ChannelClosed, ConsumerCancelled
from kvitto.wire import methods as m
from kvitto.wire.properties import Properties
from kvitto.wire.tables import Table

if TYPE_CHECKING:
    from kvitto.client.connection import Connection

M = TypeVar("M", bound=m.Method)
ACK, REJECT, NACK = 80, 90, 120
MULTIPLE, REQUEUE = 1, 2
NO_PROPERTIES = b"\0\0"
RETURNS_KEPT = 1000
RPC_TIMEOUT_S = 60.0


class Returned(NamedTuple):
    """A mandatory message that no queue took."""

    reply_code: int
    reply_text: str
    exchange: str
    routing_key: str
    properties: Properties
    body: bytes


class Channel:
    """Made by `Connection.channel()`. If the server closes the channel, the next call raises ChannelClosed."""

    def __init__(self, connection: Connection, number: int, sink: Sink) -> None:
        self.connection = connection
        self.number = number
        self.sink = sink
        self.closed: ChannelClosed | None = None
        self.returned: deque[Returned] = deque(maxlen=RETURNS_KEPT)
        """The last returned messages, if there is no `on_return`."""
        self.on_return: Callable[[Returned], None] | None = None
        self.on_confirm: Callable[[int, bool, bool], None] | None = None
        """Called with (tag, multiple, ok) for each confirm as it was received."""
        self.consumers: set[str] = set()
        self.last_read: m.LogReadOk | None = None
        """The end of the last read by offset: the offset after it and the number of messages."""
        self.max_unconfirmed = 0
        self._window: Window | None = None
        self._nacked_before = 0
        self.replies: deque[m.Method] = deque()
        """Answers of the server that have not been taken yet, for callers that do not wait in `call`."""
        self._got: deque[Delivery] = deque()
        self._last_get: m.BasicGetOk | None = None

    # --- exchanges and queues

    def exchange_declare(
        self,
        exchange: str,
        type: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Table | None = None,
    ) -> None:
        request = m.ExchangeDeclare(exchange, type, passive, durable, auto_delete, internal, False, arguments)
        self.call(request, m.ExchangeDeclareOk)

    def exchange_delete(self, exchange: str, *, if_unused: bool = False) -> None:
        self.call(m.ExchangeDelete(exchange, if_unused), m.ExchangeDeleteOk)

    def exchange_bind(
        self, destination: str, source: str, routing_key: str = "", arguments: Table | None = None
    ) -> None:
        self.call(m.ExchangeBind(destination, source, routing_key, False, arguments), m.ExchangeBindOk)

    def exchange_unbind(
        self, destination: str, source: str, routing_key: str = "", arguments: Table | None = None
    ) -> None:
        self.call(m.ExchangeUnbind(destination, source, routing_key, False, arguments), m.ExchangeUnbindOk)

    def queue_declare(
        self,
        queue: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Table | None = None,
    ) -> m.QueueDeclareOk:
        """The answer has the name (the server makes one for ""), message_count and consumer_count."""
        request = m.QueueDeclare(queue, passive, durable, exclusive, auto_delete, False, arguments)
        return self.call(request, m.QueueDeclareOk)

    def queue_bind(self, queue: str, exchange: str, routing_key: str = "", arguments: Table | None = None) -> None:
        self.call(m.QueueBind(queue, exchange, routing_key, False, arguments), m.QueueBindOk)

    def queue_unbind(self, queue: str, exchange: str, routing_key: str = "", arguments: Table | None = None) -> None:
        self.call(m.QueueUnbind(queue, exchange, routing_key, arguments), m.QueueUnbindOk)

    def queue_purge(self, queue: str) -> int:
        """Purge the queue. Return the number of messages dropped."""
        return self.call(m.QueuePurge(queue), m.QueuePurgeOk).message_count

    def queue_delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete the queue. Return the number of messages dropped with it."""
        return self.call(m.QueueDelete(queue, if_unused, if_empty), m.QueueDeleteOk).message_count

    # --- publishing

    def confirm_select(
        self,
        *,
        max_unconfirmed: int = 0,
        on_confirm: Callable[[int, bool, bool], None] | None = None,
        on_return: Callable[[Returned], None] | None = None,
    ) -> None:
        """From now on each publish gets a tag and a receipt. With `max_unconfirmed` > 0 `publish` waits at that many
        unconfirmed messages."""
        self.call(m.ConfirmSelect(), m.ConfirmSelectOk)
        self._window = self.sink.window = Window()
        self.max_unconfirmed = max_unconfirmed
        self.on_confirm = on_confirm
        self.on_return = on_return or self.on_return
        self.sink.record_confirms = on_confirm is not None

    def publish(
        self,
        body: bytes,
        exchange: str = "",
        routing_key: str = "",
        properties: Properties | bytes | None = None,
        *,
        mandatory: bool = False,
    ) -> int:
        """Send one message. Return its publish number if confirms are on, else 0. `properties` may be encoded already."""
        self._check()
        if self.max_unconfirmed and self._window is not None and self._window.outstanding >= self.max_unconfirmed:
            self._wait(lambda: self.outstanding < self.max_unconfirmed, None, "for confirms")
        if properties is None:
            properties = NO_PROPERTIES
        elif isinstance(properties, Properties):
            properties = properties.encode()
        connection = self.connection
        name, key = exchange.encode("utf-8", "surrogateescape"), routing_key.encode("utf-8", "surrogateescape")
        put_publish(connection.out, self.number, name, key, int(mandatory), properties, body, connection.frame_max)
        return self._published(1)

    def template(
        self,
        body: bytes,
        exchange: str = "",
        routing_key: str = "",
        properties: Properties | None = None,
        *,
        mandatory: bool = False,
    ) -> Template:
        """Return a message that can be sent many times with `publish_template`."""
        encoded = properties.encode() if properties else NO_PROPERTIES
        return Template(self.number, exchange, routing_key, encoded, body, mandatory, self.connection.frame_max)

    def publish_template(self, template: Template, count: int, now_ns: int = 0) -> int:
        """Send it `count` times. Return the number of the first. `now_ns` > 0 is written into the first 8 bytes of each body."""
        self._check()
        template.fill(self.connection.out, count, now_ns)
        return self._published(count)

    def publish_rows(
        self,
        bodies: Column,
        exchanges: Column,
        routing_keys: Column,
        properties: Column,
        start: int,
        end: int,
        *,
        mandatory: bool = False,
    ) -> int:
        """Publish rows start..end-1 of these columns (a column of one string is for all rows). Return the number of the
        first.

        They are sent with the next flush or wait.
        """
        self._check()
        connection = self.connection
        columns = (exchanges, routing_keys, properties, bodies)
        put_rows(connection.out, self.number, *columns, start, end, int(mandatory), connection.frame_max)
        return self._window.sent(end - start) if self._window is not None else 0

    def _published(self, count: int) -> int:
        tag = self._window.sent(count) if self._window is not None else 0
        if self.connection.out.n > self.connection.buffer_bytes:
            self.connection.flush()
        return tag

    @property
    def outstanding(self) -> int:
        """The number of publishes that are not confirmed yet."""
        return self._window.outstanding if self._window is not None else 0

    @property
    def confirmed(self) -> int:
        """The number of publishes that were acked so far."""
        return self._window.acked if self._window is not None else 0

    @property
    def settled_below(self) -> int:
        """The publish number below which every publish has its receipt, ack or nack."""
        return self._window.low if self._window is not None else 0

    def unconfirmed(self) -> list[int]:
        """Return the tags of unconfirmed publishes; after ConnectionLost, these messages have to be published again."""
        return self._window.unconfirmed() if self._window is not None else []

    def gather_refused(self) -> list[int]:
        """From now on put the tags of nacked publishes into the list that this returns."""
        if self._window is None:
            raise AMQPError("confirms are off on this channel; call confirm_select first")
        self._window.refused = []
        return self._window.refused

    def wait_until_outstanding(self, most: int, timeout_s: float | None = None) -> None:
        """Wait until at most `most` publishes are unconfirmed, else raise TimeoutError."""
        self._wait(lambda: self.outstanding <= most, timeout_s, "for confirms")

    def wait_for_confirms(self, timeout_s: float | None = None) -> bool:
        """Wait until all publishes are confirmed, else raise TimeoutError. Return False if any was nacked since the last call."""
        window = self._window
        if window is None:
            raise AMQPError("confirms are off on this channel; call confirm_select first")
        self._wait(lambda: self.outstanding == 0, timeout_s, "for confirms")
        clean = window.nacked == self._nacked_before
        self._nacked_before = window.nacked
        return clean

    # --- consuming

    def qos(self, prefetch_count: int, *, global_: bool = False) -> None:
        self.call(m.BasicQos(0, prefetch_count, global_), m.BasicQosOk)

    def consume(
        self,
        queue: str,
        *,
        consumer_tag: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Table | None = None,
    ) -> str:
        """Start a consumer and return its tag. Messages come from `receive`."""
        request = m.BasicConsume(queue, consumer_tag, False, no_ack, exclusive, False, arguments)
        tag = self.call(request, m.BasicConsumeOk).consumer_tag
        self.consumers.add(tag)
        return tag

    def cancel(self, consumer_tag: str) -> None:
        """End a consumer. Messages that were delivered before can still be received and settled."""
        self.call(m.BasicCancel(consumer_tag), m.BasicCancelOk)
        self.consumers.discard(consumer_tag)

    def receive(self, timeout_s: float | None = None, *, least: int = 1) -> Batch:
        """Return all deliveries that have arrived, after waiting for `least` of them; fewer, perhaps none, if no more
        arrive in time."""
        sink = self.sink
        try:
            self._wait(lambda: sink.batch.count >= least or not self.consumers, timeout_s, "for a delivery")
        except TimeoutError:
            return self._take_batch()
        if sink.batch.count == 0:
            raise ConsumerCancelled("this channel has no consumer (any more); was its queue deleted?")
        return self._take_batch()

    def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        """Return one message, or None if the queue is empty."""
        self.call(m.BasicGet(queue, no_ack), m.BasicGetOk, m.BasicGetEmpty)
        return self._got.popleft() if self._got else None

    def ack(self, delivery_tag: int, *, multiple: bool = False) -> None:
        self._settle(ACK, delivery_tag, MULTIPLE if multiple else 0)

    def nack(self, delivery_tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self._settle(NACK, delivery_tag, (MULTIPLE if multiple else 0) | (REQUEUE if requeue else 0))

    def reject(self, delivery_tag: int, *, requeue: bool = True) -> None:
        self._settle(REJECT, delivery_tag, int(requeue))

    def recover(self) -> None:
        """Requeue all unacknowledged messages of this channel."""
        self.call(m.BasicRecover(True), m.BasicRecoverOk)

    def _settle(self, method: int, tag: int, flags: int) -> None:
        self._check()
        put_settle(self.connection.out, self.number, method, tag, flags)
        if self.connection.out.n > self.connection.buffer_bytes:
            self.connection.flush()

    def _take_batch(self) -> Batch:
        batch, self.sink.batch = self.sink.batch, Batch()
        return batch

    # --- transactions

    def tx_select(self) -> None:
        self.call(m.TxSelect(), m.TxSelectOk)

    def tx_commit(self) -> None:
        """Commit. This returns when everything in the transaction is durable."""
        self.call(m.TxCommit(), m.TxCommitOk)

    def tx_rollback(self) -> None:
        self.call(m.TxRollback(), m.TxRollbackOk)

    # --- Kvitto's class `log`: a queue by offset

    def log_attach(self, queue: str, group: str) -> m.LogAttachOk:
        """Attach as a reader. The answer has the queue's incarnation and its offsets `first`, `next` and `settled`."""
        return self.call(m.LogAttach(queue, group), m.LogAttachOk)

    def log_inspect(self, queue: str) -> m.LogInspectOk:
        """Return the same fields without attaching."""
        return self.call(m.LogInspect(queue), m.LogInspectOk)

    def log_detach(self, queue: str, group: str) -> None:
        self.call(m.LogDetach(queue, group), m.LogDetachOk)

    def log_settle(self, queue: str, group: str, incarnation: str, end: int) -> int:
        """Settle all messages below offset `end`. Return the offset below which everything is settled now."""
        return self.call(m.LogSettle(queue, group, incarnation, end), m.LogSettleOk).settled

    def log_hold(self, queue: str, group: str, incarnation: str, start: int, end: int) -> m.LogHoldOk:
        """Hold all messages below `end` for the group until they are settled. `count` in the answer is the number of
        messages that wait in [start, end)."""
        return self.call(m.LogHold(queue, group, incarnation, start, end), m.LogHoldOk)

    def log_count(self, queue: str, incarnation: str, start: int, end: int) -> m.LogCountOk:
        """Return the same answer without holding anything."""
        return self.call(m.LogCount(queue, incarnation, start, end), m.LogCountOk)

    def log_read(self, queue: str, start: int, end: int) -> Batch:
        """Return the unsettled messages with offsets in [start, end) without consuming them; their delivery tag is offset + 1."""
        batches = list(self.log_batches(queue, start, end, batch_bytes=1 << 30))
        if len(batches) > 1:
            raise AMQPError(f"offsets {start} to {end} of {queue!r} hold over 1 GiB; read fewer, or use log_batches")
        return batches[0] if batches else Batch()

    def log_batches(self, queue: str, start: int, end: int, batch_bytes: int = 4 << 20) -> Iterator[Batch]:
        """Yield the same in pieces of about `batch_bytes` of bodies. This needs a channel that does not consume."""
        if self.consumers:
            raise AMQPError("reading by offset needs a channel of its own: this one has consumers")
        self._check()
        self.replies.clear()
        self.connection.send(m.LogRead(queue, f"log-{start}", start, end), self.number)
        sink = self.sink
        what = f"for messages {start} to {end} of queue {queue!r}"
        try:
            while not self.replies:
                self._wait(lambda: bool(self.replies) or sink.batch.bodies.data.n >= batch_bytes, RPC_TIMEOUT_S, what)
                if sink.batch.count:
                    yield self._take_batch()
        finally:
            if self.closed is None and self.connection.closed is None:
                self._wait(lambda: bool(self.replies), RPC_TIMEOUT_S, what)
                self._take_batch()
        self.last_read = self._reply((m.LogReadOk,))

    # --- Kvitto's class `stage`: many publishers, one commit

    def stage_open(self, writer: str, batch: int, task: str) -> int:
        """From now on this channel publishes into the stage. Return the writer's last committed batch, -1 if there is none."""
        return _last(self.call(m.StageOpen(writer, batch, task), m.StageOpenOk).last)

    def stage_commit(self, writer: str, batch: int, tasks: Sequence[str]) -> bool:
        """Publish the messages in the stages of these tasks. Return False if this batch was committed before."""
        return self.call(m.StageCommit(writer, batch, "\n".join(tasks).encode()), m.StageCommitOk).fresh

    def stage_last(self, writer: str) -> int:
        """Return the writer's last committed batch, -1 if there is none."""
        return _last(self.call(m.StageLast(writer), m.StageLastOk).last)

    def stage_forget(self, writer: str) -> None:
        """Delete the writer: it will not come back."""
        self.call(m.StageForget(writer), m.StageForgetOk)

    # --- internals

    def call(self, request: m.Method, *answers: type[M]) -> M:
        """Send a method and wait for one of its answers."""
        self._check()
        self.replies.clear()
        self.connection.send(request, self.number)
        self._wait(lambda: bool(self.replies), RPC_TIMEOUT_S, f"for the answer to {request.NAME}")
        return self._reply(answers)

    def _reply(self, answers: tuple[type[M], ...]) -> M:
        reply = self.replies.popleft()
        if not isinstance(reply, answers):
            raise AMQPError(f"expected {answers[0].NAME}, the server sent {reply.NAME}")
        return reply

    def close(self) -> None:
        """Close the channel; its unacknowledged messages return to their queues."""
        if self.closed is None and self.connection.closed is None:
            self.call(m.ChannelClose(200, "Goodbye"), m.ChannelCloseOk)
        self._end(ChannelClosed(0, "the channel was closed by this client"))

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()

    def take(self, event: tuple[object, ...]) -> None:
        """Handle one event of this channel, from the connection."""
        if event[1] == CONFIRM:
            if self.on_confirm is not None:
                self.on_confirm(cast(int, event[2]), cast(bool, event[3]), cast(bool, event[4]))
            return
        method = m.decode(cast(bytes, event[2]))
        if event[1] == CONTENT:
            self._take_content(method, cast(bytes, event[3]), cast(bytes, event[4]))
        elif isinstance(method, m.ChannelClose):
            self.connection.send(m.ChannelCloseOk(), self.number)
            self._end(ChannelClosed(method.reply_code, method.reply_text))
        elif isinstance(method, m.BasicCancel):
            self.consumers.discard(method.consumer_tag)
        elif isinstance(method, m.ChannelFlow):
            self.connection.send(m.ChannelFlowOk(method.active), self.number)
        else:
            self.replies.append(method)

    def _take_content(self, method: m.Method, raw: bytes, body: bytes) -> None:
        properties = Properties.decode(raw)
        if isinstance(method, m.BasicReturn):
            arguments = (method.reply_code, method.reply_text, method.exchange, method.routing_key)
            returned = Returned(*arguments, properties, body)
            if self.on_return is not None:
                self.on_return(returned)
            else:
                self.returned.append(returned)
        elif isinstance(method, m.BasicGetOk):
            got = (method.delivery_tag, method.redelivered, method.exchange, method.routing_key)
            self._got.append(Delivery("", *got, properties, body))
            self.replies.append(method)

    def disown(self) -> None:
        """In a forked child: the parent handles what is here."""
        self.sink.batch = Batch()

    def _end(self, reason: ChannelClosed) -> None:
        if self.closed is None:
            self.closed = reason
            self.connection.channels.pop(self.number, None)

    def _check(self) -> None:
        if self.closed is not None:
            raise ChannelClosed(self.closed.code, self.closed.text)

    def _wait(self, condition: Callable[[], bool], timeout_s: float | None, what: str) -> None:
        """Wait until the condition holds. If the channel is closed meanwhile, raise ChannelClosed."""
        self.connection.wait_until(lambda: self.closed is not None or condition(), timeout_s, what)
        self._check()


def _last(batch: int) -> int:
    return -1 if batch == (1 << 64) - 1 else batch

"""A channel of the asyncio client: it publishes, declares, consumes, and lives on when its connection comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from kvitto.client.aio.consumer import Subscription, cancelled_by_broker
from kvitto.client.aio.core import ChannelCore, IncomingMessage, Many, Waiting
from kvitto.client.aio.errors import Closed, ManyFailed, PublishUnknown, Returned
from kvitto.client.aio.events import ChannelFailed, ConsumerFailed, MessageReturned
from kvitto.client.aio.link import FLUSH_BYTES, Port, answered, copy_of
from kvitto.client.aio.message import DEFAULT, Fields, Message, encode, reply_to
from kvitto.client.aio.queue import REPLY_TO, Exchange, Queue
from kvitto.client.aio.stages import Stage, claim_writer, commit_stages, forget_writer, last_batch
from kvitto.client.errors import AMQPError, ChannelClosed, ConnectionLost
from kvitto.wire import methods as m
from kvitto.wire.tables import Table

if TYPE_CHECKING:
    from kvitto.client.aio.connection import Connection
    from kvitto.client.aio.rpc import RPC

M = TypeVar("M", bound=m.Method)
WINDOW = 1 << 14
"""The number of unconfirmed messages at which `publish_many` waits."""
CHUNK = 1 << 11
"""The number of messages that `publish_many` takes at a time before other tasks run."""


class Channel:
    """Made by `Connection.channel`. All methods may be called by many tasks at once.

    Calls wait while the client reconnects. If the broker closes the channel, each call raises ChannelClosed with its
    reason; open another channel.
    """

    survives = True
    """Whether the channel is opened again when its connection comes back."""

    def __init__(self, connection: Connection, *, confirms: bool = True) -> None:
        self.connection = connection
        self.confirms = confirms
        self.closed: AMQPError | None = None
        """Why the channel has ended, None while it is open."""
        self._port: Port | None = None
        self._core: ChannelCore | None = None
        self.number = 0
        """The number that the channel has on the wire."""
        self._qos: m.BasicQos | None = None
        self._subscriptions: dict[str, Subscription] = {}
        self._resend: list[Waiting] = []
        self._transacted: Port | None = None
        """The port on which tx.select was sent."""
        self._in_transaction = False
        self.rpcs: set[RPC] = set()

    # --- publishing

    async def publish(
        self,
        body: bytes,
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool = False,
        **fields: Unpack[Fields],
    ) -> None:
        """Publish a message, and return when the broker has confirmed it. Messages are persistent by default.

        routing_key: with exchange "" the name of a queue. mandatory: raise Returned if no queue takes it. The other
        arguments are properties. Raises Nacked, Returned, PublishUnknown, ChannelClosed, ConnectionLost. A call that is
        cancelled may have published. In a transaction, or with confirms=False, it returns when the message is on its way.
        """
        core = self._core
        if core is None or not core.open:
            core = await self.clear()
        properties = encode(fields, identify=core.keep) if fields or core.keep else DEFAULT
        future = core.publish(exchange, routing_key, 1 if mandatory else 0, properties, body)
        if future is not None:
            await future
        elif core.connection.out.n > FLUSH_BYTES:  # without confirms nothing else lets other tasks run
            core.connection.flush()
            await asyncio.sleep(0)

    def publish_for(
        self, waiter: Any, body: bytes, routing_key: str, exchange: str, mandatory: bool, fields: Fields
    ) -> Callable[[], None] | None:
        """Publish with a confirm from outside of a task. Return None if the caller has to use `publish` instead, which can wait.

        Otherwise the message is written, and the caller has to call what is returned in this turn of the loop, which sends it. It may do so
        once for several messages. waiter: gets the outcome as a future does. Raises ValueError, TypeError or AttributeError for arguments
        that do not fit.
        """
        core = self._core
        if core is None or not core.open or not core.confirms:
            return None
        properties = encode(fields, identify=core.keep) if fields or core.keep else DEFAULT
        connection = core.connection
        before, connection.scheduled = connection.scheduled, True  # the caller sends it: no turn of the loop has to
        try:
            core.publish(exchange, routing_key, 1 if mandatory else 0, properties, body, waiter)
        except BaseException:
            connection.scheduled = before
            raise
        return connection.flush

    async def publish_many(
        self,
        messages: Iterable[bytes | Message] | AsyncIterable[bytes | Message],
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool = False,
        **fields: Unpack[Fields],
    ) -> int:
        """Publish a stream of messages, and return their number when all of them are confirmed.

        messages: an iterable or asynchronous iterable of bytes, or of `Message`, whose routing key and exchange, if not
        "", are used instead of those given here. It is read as fast as the broker confirms. Raises ManyFailed after the
        first failure, with what became of which message; no more messages are taken then.
        """
        core = self._core
        if core is None or not core.open:
            core = await self.clear()
        many = Many(exchange.encode(), routing_key.encode(), 1 if mandatory else 0, encode(fields))
        if isinstance(messages, AsyncIterable):
            await self._send_async(messages, many)
        else:
            await self._send_all(iter(messages), many)
        await self._wait_many(many, many.sent)
        if many.failed:
            raise ManyFailed(many.sent, sorted(many.failed, key=lambda pair: pair[0]))
        return many.sent

    async def _send_all(self, messages: Iterator[bytes | Message], many: Many) -> None:
        more = True
        while more and not many.failed:
            core = self._core
            if core is None or not core.open:
                core = await self.clear()
            more = core.publish_from(self._identified(messages, core), many, CHUNK)
            if core.connection.scheduled:
                core.connection.flush()
            if many.sent - many.settled >= WINDOW:
                await self._wait_many(many, many.sent - WINDOW // 2)
            else:
                await asyncio.sleep(0)

    async def _send_async(self, messages: AsyncIterable[bytes | Message], many: Many) -> None:
        async for message in messages:
            core = self._core
            if core is None or not core.open:
                core = await self.clear()
            core.publish_from(self._identified(iter((message,)), core), many, 1)
            if many.sent - many.settled >= WINDOW:
                await self._wait_many(many, many.sent - WINDOW // 2)
            if many.failed:
                return

    def _identified(self, messages: Iterator[bytes | Message], core: ChannelCore) -> Iterator[bytes | Message]:
        """The same messages; each with a `message_id` if it may be sent again."""
        return map(self.connection.identified, messages) if core.keep else messages

    async def _wait_many(self, many: Many, settled: int) -> None:
        """Wait until so many messages are settled, or one has failed; at the end until all are."""
        while many.settled < settled and (not many.failed or settled == many.sent):
            many.wake_at = settled
            waiter = many.waiter = asyncio.get_running_loop().create_future()
            await waiter

    async def clear(self) -> ChannelCore:
        """Wait until a publish can go out, and make the channel ready for it."""
        while True:
            port = await self.port()
            port.check()
            if self._in_transaction:
                self._check_transaction(port)
            elif self._transacted is port:
                raise AMQPError("this channel has transactions: publish inside the block of `channel.transaction()`")
            if port.link.paused:
                await port.link.drain()
                continue
            core = port.core
            if not self._in_transaction:
                self._select(port)
            core.open = not self._in_transaction
            return core

    # --- declarations

    async def queue(
        self,
        name: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Table | None = None,
    ) -> Queue:
        """Declare a queue. "" lets the broker choose its name. passive: only look whether it exists, else raise ChannelClosed."""
        request = m.QueueDeclare(name, passive, durable, exclusive, auto_delete, False, arguments)
        answer = await self.call(request, m.QueueDeclareOk)
        queue = Queue(self, answer.queue, answer.message_count, answer.consumer_count)
        if not passive:
            self.connection.topology.queues[queue.name] = request
            if not name:
                self.connection.topology.named_by_server[queue.name] = queue
        return queue

    async def exchange(
        self,
        name: str,
        type: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Table | None = None,
    ) -> Exchange:
        """Declare an exchange of type direct, fanout, topic, headers, or one that the broker adds."""
        request = m.ExchangeDeclare(name, type, passive, durable, auto_delete, internal, False, arguments)
        await self.call(request, m.ExchangeDeclareOk)
        if not passive:
            self.connection.topology.exchanges[name] = request
        return Exchange(self, name)

    async def qos(self, prefetch: int) -> None:
        """Limit the unsettled messages of all consumers of this channel together; 0 is no limit."""
        self._qos = m.BasicQos(0, prefetch, True)
        await self.call(self._qos, m.BasicQosOk)

    async def get(self, queue: str, *, no_ack: bool = False) -> IncomingMessage | None:
        """Return one message of a queue, None if it is empty."""
        port = await self.port()
        request = m.BasicGet(queue, no_ack)
        future = port.call(request, m.BasicGetOk, m.BasicGetEmpty, dropped=None if no_ack else _requeue)
        try:
            answer = await future
        except asyncio.CancelledError:
            if not no_ack and future.done() and not future.cancelled() and future.exception() is None:
                _requeue(future.result())  # it came in the same turn
            raise
        if not isinstance(answer, IncomingMessage):
            return None
        if no_ack:
            answer.mark_settled()
        return answer

    async def reply(self, message: IncomingMessage, body: bytes, **fields: Unpack[Fields]) -> None:
        """Publish an answer to a message with `reply_to`, with its `correlation_id`. Raise ValueError if it has none."""
        key, fields = reply_to(message, fields)
        await self.publish(body, key, **fields)

    def rpc(self, *, resend: bool = False) -> RPC:
        """Return a caller: `async with channel.rpc() as rpc: answer = await rpc.call(b"question", "queue")`.

        resend: whether a question is asked again after a lost connection. It may be executed twice then.
        """
        from kvitto.client.aio.rpc import RPC

        return RPC(self, resend=resend)

    # --- transactions

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """`async with channel.transaction():` commits publishes and acks at the end, and rolls back on an exception.

        A channel has either confirms or transactions: use one on which nothing was published with confirms. Raises
        ConnectionLost if the connection is lost before the end; if that happens during the commit, its effect is unknown.
        """
        port = await self.begin_transaction()
        try:
            yield
        except BaseException:
            if (done := self.roll_back(port)) is not None:
                await done
            raise
        await self.commit(port)

    # --- stages, which only Kvitto has

    def stage(self, writer: str, batch: int, *, task: str = "1", commit: bool = True) -> Stage:
        """Return a stage: what is published into it becomes visible at once, when it is committed, and only once.

        writer: a name for what must be written once, such as a job. batch: a number that only increases. task: the name
        of one attempt at a part of the batch; one that is opened again is emptied first. commit: whether the end of
        `async with` commits this stage; else call `commit_stages` with the tasks that are accepted. An exception in
        the block commits nothing. Raises NotSupported if the broker is not Kvitto, ChannelClosed if it refuses.
        """
        return Stage(self, writer, batch, task, commit)

    async def commit_stages(self, writer: str, batch: int, tasks: Sequence[str]) -> bool:
        """Publish the messages in the stages of these tasks, in this order, and drop the writer's others up to this batch.

        Return when that is durable: True, or False if this batch or a later one was committed before and nothing
        happened. It is asked again after a reconnect, then False may mean that the lost call has committed. Raises
        CommitUnknown if the connection does not come back, ChannelClosed (404) if a stage is missing. After a call that
        was cancelled, call it again.
        """
        return await commit_stages(self, writer, batch, tasks)

    async def last_batch(self, writer: str) -> int | None:
        """Return the number of the last batch that this writer has committed, or None if it has committed none."""
        return await last_batch(self, writer)

    async def claim_writer(self, writer: str, task: str) -> int | None:
        """Take a writer over for a task, and return its last batch, as `last_batch` does.

        From then on the broker refuses the stages of all other tasks, so that an attempt that was given up commits nothing later. A restart
        of the broker ends the claim.
        """
        return await claim_writer(self, writer, task)

    async def forget_writer(self, writer: str) -> None:
        """Forget a writer that will not come back: the broker drops its stages that are not committed, and the number of its last batch."""
        await forget_writer(self, writer)

    # --- internals: transactions, calls, subscriptions

    async def begin_transaction(self) -> Port:
        """Begin a transaction, and return the port that it is on."""
        port = await self.port()
        if self._in_transaction:
            raise AMQPError("a transaction is under way on this channel; one channel has one at a time")
        if port.core.confirms:
            raise AMQPError("this channel has confirms; open another one for transactions")
        self._in_transaction = True
        if self._transacted is not port:
            try:
                self._transacted = port
                port.core.combine = False
                await port.call(m.TxSelect(), m.TxSelectOk)
            except BaseException:
                self._in_transaction = False
                raise
        return port

    def commit(self, port: Port) -> asyncio.Future[m.TxCommitOk]:
        """Commit the transaction that is on this port. Return the future of the answer."""
        self._in_transaction = False  # at once: what is published from now on would be behind the commit
        self._check_transaction(port)
        return port.call(m.TxCommit(), m.TxCommitOk)

    def roll_back(self, port: Port) -> asyncio.Future[m.TxRollbackOk] | None:
        """Roll back the transaction that is on this port. Return the future of the answer, None if the channel has ended."""
        self._in_transaction = False
        return port.call(m.TxRollback(), m.TxRollbackOk) if port.shut is None else None

    def _check_transaction(self, port: Port) -> None:
        if self._transacted is not port or port.ended is not None:
            raise ConnectionLost("the connection was lost during the transaction, which had no effect; begin it again")

    async def call(self, request: m.Method, answer: type[M]) -> M:
        """Send a method and return its answer."""
        port = await self.port()
        result: M = await port.call(request, answer)
        return result

    async def port(self) -> Port:
        """Return the port of this channel, after a wait while the client reconnects."""
        while self._port is None:
            await self.wait()
        return self._port

    async def wait(self) -> None:
        """Wait once while the client reconnects. Raise if the channel has ended."""
        if self.closed is not None:
            raise copy_of(self.closed)
        await self.connection.wait_ready()

    def port_or_none(self) -> Port | None:
        return self._port

    async def subscribe(self, subscription: Subscription) -> None:
        """Start a consumer."""
        port = await self.port()
        if subscription.consumer_tag in self._subscriptions:
            raise AMQPError(f"the channel has a consumer {subscription.consumer_tag!r} already")
        self._subscriptions[subscription.consumer_tag] = subscription
        try:
            while not subscription.started:
                try:
                    await subscription.start(port)
                    subscription.started = True
                except ConnectionLost:
                    port = await self.port()
        except BaseException:
            self.unsubscribe(subscription)
            raise

    def unsubscribe(self, subscription: Subscription) -> None:
        if self._subscriptions.get(subscription.consumer_tag) is subscription:
            del self._subscriptions[subscription.consumer_tag]

    def abandon(self, subscription: Subscription) -> None:
        """End a consumer whose handle is gone. The garbage collector may run in any thread."""
        loop = self.connection.loop
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._abandon, subscription)

    def _abandon(self, subscription: Subscription) -> None:
        subscription.stop(self._port)
        self.unsubscribe(subscription)

    # --- internals: beginning, end, and between two connections

    async def open(self, port: Port, *, again: bool = False) -> None:
        """Open the channel on a new link."""
        requests = [port.call(m.ChannelOpen(), m.ChannelOpenOk)]
        if self._qos is not None:
            requests.append(port.call(self._qos, m.BasicQosOk))
        await asyncio.gather(*requests)
        self.number = port.number
        port.core.keep = self.confirms and self.connection.resends and self.survives
        if not again:
            self.attach(port)

    def attach(self, port: Port) -> None:
        """Use this port from now on, and send again what was not confirmed on the last one."""
        if port.ended is None:
            self._port = port
            self._core = port.core
            if self._resend:
                self._select(port)
                resend, self._resend = self._resend, []
                for waiting in resend:
                    if not waiting.abandoned():
                        port.core.publish_again(waiting)

    async def resume(self, port: Port) -> None:
        """Start the consumers again; one that the broker refuses closes the channel, as it would have at first."""
        answers_first = sorted(self._subscriptions.values(), key=lambda each: each.queue.name != REPLY_TO)
        for subscription in answers_first:  # a question needs them, and other tasks may ask from now on
            if subscription.started and subscription.ended is None and not subscription.cancelled:
                await subscription.start(port)
        if port.shut is None:
            if self.rpcs and self._transacted is None:  # without confirms a question that no queue takes gets no answer
                self._select(port)
            for rpc in self.rpcs:
                rpc.again(port.core)

    def _select(self, port: Port) -> None:
        """Ask for confirms, once, if this channel has them."""
        if self.confirms and not port.core.confirms:
            port.tell(m.ConfirmSelect(True))
            port.core.confirms = True

    def port_ended(self, port: Port, error: AMQPError) -> None:
        """From the port: give all that waits its error, or keep it for the next connection."""
        comes_back = self.connection.reconnects and self.survives and self.closed is None
        lost = isinstance(error, ConnectionLost) and comes_back
        if self._port is port:
            self._port = self._core = None
        for rpc in self.rpcs:
            rpc.lost(error, comes_back=lost)
        unconfirmed = port.core.unconfirmed()
        self.connection.count_unconfirmed(len(unconfirmed))
        for tag, entry in unconfirmed:
            if lost and isinstance(entry, Waiting) and port.core.keep:
                self._resend.append(entry)
            else:
                _fail_publish(entry, tag, error)
        if not lost:
            self.end(error)

    def end(self, error: AMQPError) -> None:
        """The channel is closed for good."""
        if self.closed is not None:
            return
        self.closed = error
        self._port = self._core = None
        resend, self._resend = self._resend, []
        for waiting in resend:
            _fail_publish(waiting, 0, error)
        for subscription in list(self._subscriptions.values()):
            subscription.fail(error)
        self.connection.channel_ended(self)
        if isinstance(error, ChannelClosed):
            self.connection.tell(ChannelFailed(error))

    def disown(self, error: AMQPError) -> None:
        """Note that the channel is closed, and touch nothing that belongs to the event loop."""
        self.closed = self.closed or error
        self._port = self._core = None
        for subscription in self._subscriptions.values():
            subscription.ended = error
            subscription.core.messages.clear()

    def cancelled(self, port: Port, consumer_tag: str) -> None:
        """From the port: the broker has ended a consumer."""
        subscription = self._subscriptions.pop(consumer_tag, None)
        if subscription is not None:
            error = cancelled_by_broker(subscription.queue)
            subscription.fail(error)
            self.connection.tell(ConsumerFailed(consumer_tag, error))

    def returned(self, returned: Returned) -> None:
        """From the port: a message came back that no publish waits for."""
        self.connection.tell(MessageReturned(returned))

    async def close(self) -> None:
        """Close the channel; messages that were not settled return to their queues. A second call does nothing.

        It takes 5 s at most: a broker that blocks publishers reads nothing, and then the channel is closed when it reads again.
        """
        port = self._port
        for subscription in list(self._subscriptions.values()):
            subscription.cancelled = True
            subscription.core.wake()
        try:
            if port is not None and port.shut is None:
                with contextlib.suppress(ConnectionLost, ChannelClosed, Closed):
                    await answered(port.close())
        finally:  # after a close that was cancelled, too: nothing may be sent behind it
            self.end(Closed("the channel was closed by this program"))

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        await self.close()


def _requeue(answer: object) -> None:
    """Return a message that came for a `get` that was cancelled."""
    if isinstance(answer, IncomingMessage):
        answer.reject(requeue=True)


def _fail_publish(entry: Any, tag: int, error: AMQPError) -> None:
    """Tell a publisher that the confirm of its message will not come."""
    unknown = PublishUnknown(f"{error}; whether the broker has the message is unknown")
    unknown.__cause__ = error
    if isinstance(entry, Waiting):
        entry.settle(unknown)
    elif isinstance(entry, Many):
        entry.note_failed(tag, unknown)
    elif not entry.done():
        entry.set_exception(unknown)

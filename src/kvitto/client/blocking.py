"""The asyncio client for threads: `with kvitto.connect_sync(url) as connection:`, with the same names.

Each connection has a thread with an event loop, in which `kvitto.client.aio` does all work; so heartbeats, confirms and
reconnects depend on no thread of the program. Calls of the program hand over what they want and wait for its outcome.
Any number of threads may use one connection, channel or consumer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack

from kvitto.client.aio import connection as aio
from kvitto.client.aio.channel import Channel, reply_to
from kvitto.client.aio.consumer import Consumer
from kvitto.client.aio.core import IncomingMessage
from kvitto.client.aio.errors import AlreadySettled, Closed, ManyFailed, PublishFailed
from kvitto.client.aio.events import Event
from kvitto.client.aio.message import DEFAULT, Fields, Message, encode
from kvitto.client.aio.queue import PREFETCH, Exchange, Queue
from kvitto.client.aio.ranges import Offsets, RangeReader
from kvitto.client.aio.rpc import RPC
from kvitto.client.aio.stages import Stage
from kvitto.client.uri import DEFAULT_URI
from kvitto.wire.tables import Table

if TYPE_CHECKING:
    from datetime import datetime

    from kvitto.client.intercept import Interceptor

T = TypeVar("T")
CHUNK = 1 << 12
"""The number of messages that `publish_many` hands over at a time."""
UNDER_WAY = 4
"""The number of such chunks that may be under way before the first of them is waited for."""
WAITING_MAX = 1 << 15
"""Without confirms `publish` waits while so many messages are not handed over."""


class Loop:
    """A thread with an event loop. `run` is called from other threads."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._main, name="kvitto-client", daemon=True)
        self.thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine in the loop and return its result. After `timeout_s` it is cancelled, and TimeoutError raised."""
        if threading.current_thread() is self.thread:
            work.close()
            raise RuntimeError("this is the client's own thread (a callback): a call that waits would wait for itself")
        if self.loop.is_closed():
            work.close()
            raise Closed("the connection was closed by this program")
        future = asyncio.run_coroutine_threadsafe(_limited(work, timeout_s), self.loop)
        try:
            return future.result()
        except BaseException:  # KeyboardInterrupt of the waiting thread, too
            future.cancel()
            raise

    def stop(self) -> None:
        """End the tasks that other threads wait for, then the thread."""
        if not self.loop.is_closed():
            asyncio.run_coroutine_threadsafe(_end_tasks(), self.loop).result()
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _limited(work: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
    async with asyncio.timeout(timeout_s):
        return await work


def connect_sync(
    urls: str | Sequence[str] = DEFAULT_URI,
    *,
    name: str = "",
    reconnect: bool = True,
    on_unconfirmed: Literal["raise", "resend"] = "raise",
    on_event: Callable[[Event], object] | None = None,
    interceptors: Sequence[Interceptor] = (),
) -> SyncConnection:
    """Connect to an AMQP 0-9-1 broker, for programs without asyncio: `with kvitto.connect_sync(url) as connection:`.

    The arguments and errors are those of `kvitto.connect`. `on_event` is called in the client's thread, and interceptors run
    in the thread that publishes or handles.
    """
    opening = aio.connect(urls, name=name, reconnect=reconnect, on_unconfirmed=on_unconfirmed, on_event=on_event)

    async def start() -> aio.Connection:
        return await opening

    loop = Loop()
    try:
        return SyncConnection(loop, loop.run(start()), tuple(interceptors))
    except BaseException:
        loop.stop()
        raise


class SyncConnection:
    """Made by `kvitto.connect_sync`."""

    def __init__(self, loop: Loop, connection: aio.Connection, interceptors: tuple[Interceptor, ...]) -> None:
        self._loop = loop
        self._connection = connection
        self._interceptors = interceptors

    def channel(self, *, confirms: bool = True) -> SyncChannel:
        """Open a channel, see `Connection.channel`."""

        async def start() -> Channel:
            return await self._connection.channel(confirms=confirms)

        channel = self._loop.run(start())
        if not self._interceptors:
            return SyncChannel(self._loop, channel)
        from kvitto.client.blocking_intercepted import InterceptedSyncChannel

        return InterceptedSyncChannel(self._loop, channel, self._interceptors)

    @property
    def blocked(self) -> str | None:
        """Why the broker takes no publishes now (connection.blocked), else None."""
        return self._connection.blocked

    @property
    def connected(self) -> bool:
        """Whether the connection is there now."""
        return self._connection.connected

    def close(self) -> None:
        """Close in order, and end the client's thread. A second call does nothing."""
        if not self._loop.loop.is_closed():
            try:
                self._loop.run(self._connection.close())
            finally:
                self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class SyncChannel:
    """A channel; see `Channel` for arguments and errors. Calls take `timeout_s`, and raise TimeoutError after it."""

    def __init__(self, loop: Loop, channel: Channel) -> None:
        self._loop = loop
        self._channel = channel
        self._waiting: deque[tuple[str, str, int, bytes, bytes]] = deque()
        self._lock = threading.Lock()
        self._sending = False
        self._sent = threading.Condition(self._lock)
        self._failed: BaseException | None = None

    def publish(
        self,
        body: bytes,
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool = False,
        timeout_s: float | None = None,
        **fields: Unpack[Fields],
    ) -> None:
        """Publish a message, and return when the broker has confirmed it. On a channel without confirms it returns when
        the message is on its way; if it could not be sent, the next call or `flush` raises the error."""
        if self._channel.confirms:
            work = self._channel.publish(body, routing_key, exchange=exchange, mandatory=mandatory, **fields)
            self._loop.run(work, timeout_s)
            return
        if self._loop.loop.is_closed():
            raise Closed("the connection was closed by this program")
        item = (exchange, routing_key, int(mandatory), encode(fields) if fields else DEFAULT, body)
        with self._lock:
            if self._failed is not None:
                self._raise()
            self._waiting.append(item)
            if self._sending:
                if len(self._waiting) > WAITING_MAX and not self._sent.wait_for(self._has_room, timeout_s):
                    raise TimeoutError("the broker does not take messages; this one is still sent when it does")
                return
            self._sending = True
        asyncio.run_coroutine_threadsafe(self._send(), self._loop.loop)

    def _has_room(self) -> bool:
        return len(self._waiting) <= WAITING_MAX // 2 or self._failed is not None

    def _raise(self) -> None:
        failed, self._failed = self._failed, None
        assert failed is not None
        raise failed

    async def _send(self) -> None:
        """In the loop: send what waits, and end when nothing is left."""
        try:
            while True:
                core = await self._channel.clear()
                for _ in range(min(len(self._waiting), 512)):
                    try:
                        core.publish(*self._waiting.popleft())
                    except ValueError as error:  # this message does not fit into its frame; the others do
                        self._failed = error
                core.connection.flush()
                with self._lock:
                    self._sent.notify_all()
                    if not self._waiting:
                        self._sending = False
                        return
                await asyncio.sleep(0)
        except BaseException as error:
            with self._lock:
                self._failed = error
                self._waiting.clear()
                self._sending = False
                self._sent.notify_all()
            if not isinstance(error, Exception):
                raise

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything published without confirms is on its way. Raise the error if something could not be sent."""
        with self._lock:
            if not self._sent.wait_for(lambda: not self._sending, timeout_s):
                raise TimeoutError(f"{len(self._waiting)} messages are not sent yet")
            if self._failed is not None:
                self._raise()

    def publish_many(
        self,
        messages: Iterable[bytes | Message],
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool = False,
        **fields: Unpack[Fields],
    ) -> int:
        """Publish a stream of messages, and return their number when all are confirmed; see `Channel.publish_many`.

        The iterable is read in this thread, some thousand messages ahead of the confirms.
        """

        def publish(chunk: Iterable[bytes | Message]) -> Coroutine[Any, Any, int]:
            return self._channel.publish_many(chunk, routing_key, exchange=exchange, mandatory=mandatory, **fields)

        return _Stream(self._loop, publish).publish(messages)

    def queue(
        self,
        name: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Table | None = None,
    ) -> SyncQueue:
        """Declare a queue, see `Channel.queue`."""
        work = self._channel.queue(
            name, passive=passive, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=arguments
        )
        return SyncQueue(self, self._loop.run(work))

    def exchange(
        self,
        name: str,
        type: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Table | None = None,
    ) -> SyncExchange:
        """Declare an exchange, see `Channel.exchange`."""
        work = self._channel.exchange(
            name,
            type,
            passive=passive,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
        )
        return SyncExchange(self._loop, self, self._loop.run(work))

    def qos(self, prefetch: int) -> None:
        """Limit the unsettled messages of all consumers of this channel together; 0 is no limit."""
        self._loop.run(self._channel.qos(prefetch))

    def reply(self, message: SyncMessage, body: bytes, **fields: Unpack[Fields]) -> None:
        """Answer a message that has `reply_to`, see `Channel.reply`."""
        key, fields = reply_to(message.incoming, fields)
        self.publish(body, key, **fields)

    def rpc(self, *, resend: bool = False) -> SyncRPC:
        """Return a caller, see `Channel.rpc`: `with channel.rpc() as rpc: answer = rpc.call(b"question", "queue")`."""
        return SyncRPC(self, self._channel.rpc(resend=resend))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """`with channel.transaction():`, see `Channel.transaction`. Use the channel from one thread meanwhile."""
        transaction = self._channel.transaction()
        self._loop.run(transaction.__aenter__())
        try:
            yield
        except BaseException as error:
            self._loop.run(transaction.__aexit__(type(error), error, error.__traceback__))
            raise
        self._loop.run(transaction.__aexit__(None, None, None))

    def stage(self, writer: str, batch: int, *, task: str = "1", commit: bool = True) -> SyncStage:
        """Return a stage, see `Channel.stage`: `with channel.stage("import", 7) as stage:`."""
        return SyncStage(self._loop, self._channel.stage(writer, batch, task=task, commit=commit))

    def commit_stages(self, writer: str, batch: int, tasks: Sequence[str], *, timeout_s: float | None = None) -> bool:
        """Commit the stages of these tasks, see `Channel.commit_stages`. After TimeoutError call it again."""
        return self._loop.run(self._channel.commit_stages(writer, batch, tasks), timeout_s)

    def last_batch(self, writer: str) -> int | None:
        """Return the number of the last batch that this writer has committed, or None if it has committed none."""
        return self._loop.run(self._channel.last_batch(writer))

    def forget_writer(self, writer: str) -> None:
        """Forget a writer, see `Channel.forget_writer`."""
        self._loop.run(self._channel.forget_writer(writer))

    def wrap(self, queue: Queue) -> Wrap:
        """Return what makes a message for the program of one of this queue."""
        return SyncMessage

    def close(self) -> None:
        """Close the channel, after what was published without confirms is on its way."""
        if not self._loop.loop.is_closed():
            self.flush()
            self._loop.run(self._channel.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class SyncStage:
    """A stage, see `Stage`. Any number of threads may publish into it."""

    def __init__(self, loop: Loop, stage: Stage) -> None:
        self._loop = loop
        self._stage = stage

    @property
    def committed(self) -> bool:
        """Whether the broker has committed this batch or a later one. If it had done so when the stage was opened, nothing is sent."""
        return self._stage.committed

    @property
    def fresh(self) -> bool | None:
        """Whether the commit of this stage has published the batch; False if an earlier commit had. It is None before the commit."""
        return self._stage.fresh

    def publish(
        self,
        body: bytes,
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool = False,
        timeout_s: float | None = None,
        **fields: Unpack[Fields],
    ) -> None:
        """Publish into the stage, see `Stage.publish`."""
        work = self._stage.publish(body, routing_key, exchange=exchange, mandatory=mandatory, **fields)
        self._loop.run(work, timeout_s)

    def publish_many(
        self,
        messages: Iterable[bytes | Message],
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool = False,
        **fields: Unpack[Fields],
    ) -> int:
        """Publish a stream of messages into the stage, as `Stage.publish_many` does. The iterable is read in this thread, some
        thousand messages ahead of the confirms."""
        if self._stage.committed:
            return 0

        def publish(chunk: Iterable[bytes | Message]) -> Coroutine[Any, Any, int]:
            return self._stage.publish_many(chunk, routing_key, exchange=exchange, mandatory=mandatory, **fields)

        return _Stream(self._loop, publish).publish(messages)

    def commit(self, *, timeout_s: float | None = None) -> bool:
        """Commit this stage, see `Stage.commit`. After TimeoutError call it again."""
        return self._loop.run(self._stage.commit(), timeout_s)

    def __enter__(self) -> Self:
        self._loop.run(self._stage.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None or not self._loop.loop.is_closed():
            self._loop.run(self._stage.__aexit__(kind, error, tb))


class SyncRPC:
    """Calls and their answers, see `RPC`. Any number of threads may call at once."""

    def __init__(self, channel: SyncChannel, rpc: RPC) -> None:
        self._loop = channel._loop
        self._rpc = rpc
        self._wrap = channel.wrap(rpc.answers)

    def call(
        self,
        body: bytes,
        routing_key: str,
        *,
        exchange: str = "",
        timeout_s: float | None = None,
        **fields: Unpack[Fields],
    ) -> SyncMessage:
        """Publish a question and return its answer. Set `timeout_s`: nobody may answer."""
        answer = self._loop.run(self._rpc.call(body, routing_key, exchange=exchange, **fields), timeout_s)
        return self._wrap(answer, Settling(self._loop))

    def __enter__(self) -> Self:
        self._loop.run(self._rpc.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if not self._loop.loop.is_closed():
            self._loop.run(self._rpc.__aexit__(None, None, None))


class SyncQueue:
    """A queue, see `Queue`."""

    def __init__(self, channel: SyncChannel, queue: Queue) -> None:
        self._channel = channel
        self._loop = channel._loop
        self._queue = queue
        self.message_count = queue.message_count
        self.consumer_count = queue.consumer_count

    @property
    def name(self) -> str:
        """Its name; it changes after a reconnect if the broker chose it."""
        return self._queue.name

    def consume(
        self,
        *,
        prefetch: int = PREFETCH,
        no_ack: bool = False,
        exclusive: bool = False,
        consumer_tag: str = "",
        offset: int | Literal["first", "last", "next"] | datetime | None = None,
        arguments: Table | None = None,
        timeout_s: float | None = None,
    ) -> SyncConsumer:
        """Return a consumer, see `Queue.consume`: `for message in queue.consume():`. With `timeout_s` the loop and
        the consumer end when no message has come for so long."""
        consumer = self._queue.consume(
            prefetch=prefetch,
            no_ack=no_ack,
            exclusive=exclusive,
            consumer_tag=consumer_tag,
            offset=offset,
            arguments=arguments,
        )
        return SyncConsumer(self._loop, consumer, timeout_s, self._channel.wrap(self._queue))

    def get(self, *, no_ack: bool = False) -> SyncMessage | None:
        """Return one message, None if the queue is empty."""
        message = self._loop.run(self._queue.get(no_ack=no_ack))
        return None if message is None else self._channel.wrap(self._queue)(message, Settling(self._loop))

    def read(self, start: int = 0, end: int | None = None, *, batch: int = 1000) -> SyncRangeReader:
        """Return an iterator over a range of offsets, see `Queue.read`: `for message in queue.read(100, 200):`."""
        return SyncRangeReader(self._loop, self._queue.read(start, end, batch=batch))

    def offsets(self) -> Offsets:
        """Return the offsets at which the queue begins and ends, see `Queue.offsets`."""
        return self._loop.run(self._queue.offsets())

    def bind(self, exchange: str | SyncExchange, routing_key: str = "", *, arguments: Table | None = None) -> None:
        """Bind the queue to an exchange."""
        self._loop.run(self._queue.bind(_name(exchange), routing_key, arguments=arguments))

    def unbind(self, exchange: str | SyncExchange, routing_key: str = "", *, arguments: Table | None = None) -> None:
        """Remove a binding."""
        self._loop.run(self._queue.unbind(_name(exchange), routing_key, arguments=arguments))

    def purge(self) -> int:
        """Drop all messages that no consumer has. Return their number."""
        return self._loop.run(self._queue.purge())

    def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete the queue. Return the number of messages dropped with it."""
        return self._loop.run(self._queue.delete(if_unused=if_unused, if_empty=if_empty))


class SyncExchange:
    """An exchange, see `Exchange`."""

    def __init__(self, loop: Loop, channel: SyncChannel, exchange: Exchange) -> None:
        self._loop = loop
        self._channel = channel
        self._exchange = exchange
        self.name = exchange.name

    def publish(self, body: bytes, routing_key: str = "", *, mandatory: bool = False, **fields: Unpack[Fields]) -> None:
        """Publish to this exchange."""
        self._channel.publish(body, routing_key, exchange=self.name, mandatory=mandatory, **fields)

    def bind(self, source: str | SyncExchange, routing_key: str = "", *, arguments: Table | None = None) -> None:
        """Bind this exchange to another one, from which it gets messages."""
        self._loop.run(self._exchange.bind(_name(source), routing_key, arguments=arguments))

    def unbind(self, source: str | SyncExchange, routing_key: str = "", *, arguments: Table | None = None) -> None:
        """Remove a binding."""
        self._loop.run(self._exchange.unbind(_name(source), routing_key, arguments=arguments))

    def delete(self, *, if_unused: bool = False) -> None:
        """Delete the exchange."""
        self._loop.run(self._exchange.delete(if_unused=if_unused))


class Settling:
    """Acks and rejects on their way from the program's threads to the loop, in order."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._asked = False

    def add(self, call: Callable[[], object]) -> None:
        """Call this in the loop soon."""
        self._calls.append(call)
        if not self._asked:
            self._asked = True
            with contextlib.suppress(RuntimeError):  # the connection is closed: the broker has the message back
                self._loop.loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._asked = False
        while self._calls:
            self._calls.popleft()()


class SyncMessage:
    """A message from the broker, see `IncomingMessage` for its attributes. It is settled by any thread, once."""

    def __init__(self, incoming: IncomingMessage, settling: Settling) -> None:
        self.incoming = incoming
        self.body = incoming.body
        self._settling = settling
        self._settled = incoming.settled

    def __getattr__(self, name: str) -> Any:
        return getattr(self.incoming, name)

    def ack(self) -> None:
        """Acknowledge it. If its connection is lost meanwhile, the broker delivers it again."""
        self._settle(self.incoming.ack)

    def reject(self, *, requeue: bool = False) -> None:
        """Reject it: the broker dead-letters or drops it, or with `requeue` delivers it again."""
        incoming = self.incoming
        self._settle(lambda: incoming.reject(requeue=requeue))

    def _settle(self, call: Callable[[], object]) -> None:
        if self._settled:
            raise AlreadySettled("this message was acked or rejected before, or its consumer needs no acks")
        self._settled = True
        self._settling.add(call)

    def process(self, *, on_error: str = "reject") -> AbstractContextManager[SyncMessage]:
        """`with message.process(on_error="requeue"):`, see `IncomingMessage.process`."""
        if on_error not in ("reject", "requeue"):
            raise ValueError(f'on_error is "reject" or "requeue", not {on_error!r}')
        return self._block(on_error == "requeue")

    @contextlib.contextmanager
    def _block(self, requeue: bool) -> Iterator[SyncMessage]:
        try:
            yield self
        except BaseException as error:
            if not self._settled:
                self.reject(requeue=requeue or not isinstance(error, Exception))
            raise
        if not self._settled:
            self.ack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._settled:
            return
        if error is None:
            self.ack()
        else:
            self.reject(requeue=not isinstance(error, Exception))


class SyncMessages:
    """An iterator over messages, of which several come from the loop at a time. Any number of threads may use it."""

    def __init__(self, loop: Loop, wrap: Wrap) -> None:
        self._loop = loop
        self._wrap = wrap
        self._here: deque[IncomingMessage] = deque()
        self._settling = Settling(loop)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SyncMessage:
        while True:
            try:
                return self._wrap(self._here.popleft(), self._settling)
            except IndexError:
                pass
            try:
                self._here.extend(self._take_all())
            except StopAsyncIteration:
                raise StopIteration from None

    def _take_all(self) -> list[IncomingMessage]:
        """Wait for messages, and return those that are here. Raises StopAsyncIteration at the end."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self


class SyncConsumer(SyncMessages):
    """An iterator over the messages of a queue, see `Consumer`. `with` or `cancel` ends it."""

    def __init__(self, loop: Loop, consumer: Consumer, timeout_s: float | None, wrap: Wrap) -> None:
        super().__init__(loop, wrap)
        self._consumer: Consumer | None = consumer
        self._timeout_s = timeout_s

    def _take_all(self) -> list[IncomingMessage]:
        if self._consumer is None:
            raise StopAsyncIteration
        try:
            return self._loop.run(self._consumer.take_all(), self._timeout_s)
        except TimeoutError:
            self.cancel()
            raise StopAsyncIteration from None

    def cancel(self) -> None:
        """End it. Messages that were not taken return to the queue."""
        consumer, self._consumer = self._consumer, None
        if consumer is None or self._loop.loop.is_closed():
            return
        self._return_messages()
        self._loop.run(consumer.cancel())

    def _return_messages(self) -> None:
        while self._here:
            incoming = self._here.popleft()
            if not incoming.settled:
                self._settling.add(partial(incoming.reject, requeue=True))

    def __del__(self) -> None:
        self._return_messages()  # the consumer itself ends as its own handle goes

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.cancel()


class SyncRangeReader(SyncMessages):
    """An iterator over the messages of a range of offsets, see `RangeReader`. `close`, or the end of a `with` block, ends it early."""

    def __init__(self, loop: Loop, reader: RangeReader) -> None:
        super().__init__(loop, SyncMessage)
        self._reader = reader

    def _take_all(self) -> list[IncomingMessage]:
        return self._loop.run(self._reader.take_all())

    def close(self) -> None:
        """End the iterator. A second call does nothing."""
        self._here.clear()
        if not self._loop.loop.is_closed():
            self._loop.run(self._reader.close())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


Wrap = Callable[[IncomingMessage, Settling], SyncMessage]


class _Stream:
    """One call of `publish_many`. The messages are sent in order, in chunks of which several wait for their confirms."""

    def __init__(
        self, loop: Loop, publish_many: Callable[[Iterable[bytes | Message]], Coroutine[Any, Any, int]]
    ) -> None:
        self._loop = loop.loop
        self._publish_many = publish_many
        self._failed: list[tuple[int, Exception]] = []

    def publish(self, messages: Iterable[bytes | Message]) -> int:
        """Return the number of messages when all are confirmed. Raises ManyFailed, and what else publishing raises."""
        source = iter(messages)
        taken = confirmed = 0
        under_way: deque[Future[int]] = deque()
        before, sent = None, asyncio.Event()
        while not self._failed and (chunk := list(itertools.islice(source, CHUNK))):
            work = self._send(taken, chunk, before, sent)
            under_way.append(asyncio.run_coroutine_threadsafe(work, self._loop))
            before, sent = sent, asyncio.Event()
            taken += len(chunk)
            if len(under_way) == UNDER_WAY:
                confirmed += under_way.popleft().result()
        confirmed += sum(each.result() for each in under_way)
        if self._failed:
            raise ManyFailed(taken, sorted(self._failed, key=lambda pair: pair[0]))
        return confirmed

    async def _send(
        self, first: int, chunk: list[bytes | Message], before: asyncio.Event | None, sent: asyncio.Event
    ) -> int:
        """Publish a chunk when the one before has been sent, and return how many messages are confirmed.

        After a failure nothing more is sent, so that no message overtakes one that was left out. What has been taken from the
        iterable and is not sent is among the failures: a message that is not is taken for confirmed.
        """
        if before is not None:
            await before.wait()
        tried = 0
        try:
            if not self._failed:
                return await self._publish_many(itertools.chain(chunk, _then(sent)))
        except ManyFailed as error:
            tried = error.taken
            self._failed += [(first + index, each) for index, each in error.failed]
        finally:
            sent.set()
        unsent = PublishFailed("it was not sent, because an earlier message had failed")
        self._failed += [(first + index, unsent) for index in range(tried, len(chunk))]
        return 0


def _then(sent: asyncio.Event) -> Iterator[bytes | Message]:
    """Yield nothing. It stands behind the last message: when it is asked for more, all messages have been sent."""
    sent.set()
    yield from ()


def _name(exchange: str | SyncExchange) -> str:
    return exchange if isinstance(exchange, str) else exchange.name

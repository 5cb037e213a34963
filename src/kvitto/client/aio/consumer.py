"""Consumers: `async for message in queue.consume()`.

A `Subscription` is what the channel keeps of a consumer, and starts again after a reconnect. The `Consumer` is the
program's handle; when a program leaves the loop and drops it, the subscription ends and untaken messages return to the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Self

from kvitto.client.aio.core import ConsumerCore, IncomingMessage
from kvitto.client.aio.link import Port, answered, copy_of
from kvitto.client.errors import AMQPError, ConnectionLost, ConsumerCancelled
from kvitto.wire import methods as m
from kvitto.wire.tables import Table

if TYPE_CHECKING:
    from kvitto.client.aio.channel import Channel
    from kvitto.client.aio.queue import Queue


class Subscription:
    """A consumer as its channel knows it."""

    def __init__(
        self, queue: Queue, prefetch: int, no_ack: bool, exclusive: bool, consumer_tag: str, arguments: Table
    ) -> None:
        self.queue = queue
        self.prefetch = prefetch
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.consumer_tag = consumer_tag
        self.arguments = arguments
        self.core = ConsumerCore()
        self.core.no_ack = no_ack
        self.started = False
        """Whether the broker has accepted it once; it is started again after a reconnect then."""
        self.ended: AMQPError | None = None
        self.cancelled = False
        """Whether this program has ended it."""

    async def start(self, port: Port) -> None:
        """Ask the broker for messages. Raise ChannelClosed if it refuses."""
        self.core.messages.clear()  # of a lost connection: they come again
        last = self.core.last
        if last is not None and "x-stream-offset" in self.arguments and (offset := last.offset) is not None:
            self.arguments["x-stream-offset"] = offset + 1
        port.core.add_consumer(self.consumer_tag, self.core)
        qos = port.call(m.BasicQos(0, self.prefetch, False), m.BasicQosOk)
        request = m.BasicConsume(
            self.queue.name, self.consumer_tag, False, self.no_ack, self.exclusive, False, self.arguments
        )
        consume = port.call(request, m.BasicConsumeOk)
        try:
            await asyncio.gather(qos, consume)
        except asyncio.CancelledError:
            self.stop(port)
            raise

    def stop(self, port: Port | None) -> asyncio.Future[m.Method] | None:
        """End it now; messages that were not taken return to the queue, also those on their way."""
        if self.cancelled:
            return None
        self.cancelled = True
        self.core.wake()
        if port is None or port.shut is not None or self.ended is not None:
            self.core.messages.clear()
            return None
        future = port.call(m.BasicCancel(self.consumer_tag), m.BasicCancelOk)
        future.add_done_callback(lambda done: self._return_messages(port, done))
        return future

    def _return_messages(self, port: Port, done: asyncio.Future[m.Method]) -> None:
        if not done.cancelled():
            done.exception()  # looked at: the channel has ended, and the broker requeues by itself
        port.core.remove_consumer(self.consumer_tag)
        while (message := self.core.take()) is not None:
            if not self.no_ack:
                message.reject(requeue=True)

    def fail(self, error: AMQPError) -> None:
        """Note that the broker has ended it; messages that are here can still be taken."""
        if self.ended is None:
            self.ended = error
        self.core.wake()


class Consumer:
    """An asynchronous iterator over the messages of a queue, from `Queue.consume`.

    It starts with the first message that is asked for, or with `async with`. It ends with `cancel`, at the end of
    `async with`, and when the loop is left and the consumer is not referenced any more. Raises ConsumerCancelled if the
    broker ends it, ChannelClosed, ConnectionLost if the client does not reconnect. Several tasks may iterate over it.
    """

    def __init__(
        self,
        channel: Channel,
        queue: Queue,
        prefetch: int,
        no_ack: bool,
        exclusive: bool,
        consumer_tag: str,
        arguments: Table,
    ) -> None:
        self.channel = channel
        self._subscription = Subscription(
            queue, prefetch, no_ack, exclusive, consumer_tag or channel.connection.new_tag(), arguments
        )
        self._core = self._subscription.core
        self._started = False
        self._lock = asyncio.Lock()

    @property
    def consumer_tag(self) -> str:
        """Its name on the channel."""
        return self._subscription.consumer_tag

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> IncomingMessage:
        if self._subscription.cancelled:
            raise StopAsyncIteration
        message = self._core.take()
        if message is None:
            message = await self._wait()
        return message

    async def _wait(self) -> IncomingMessage:
        subscription, core = self._subscription, self._core
        loop = self.channel.connection.loop
        if loop.is_closed():
            self.channel.connection.loop_closed()
        if subscription.ended is not None and not core.messages:
            raise copy_of(subscription.ended)
        async with self._lock:
            if not self._started:
                await self._start()
            while True:
                if subscription.cancelled:
                    raise StopAsyncIteration
                message = core.take()
                if message is not None:
                    return message
                if subscription.ended is not None:
                    raise copy_of(subscription.ended)
                waiter = core.waiter = loop.create_future()
                await waiter

    async def take_all(self) -> list[IncomingMessage]:
        """Return all messages that are here, at least one. Raises as the iteration does, StopAsyncIteration at its end."""
        messages = [await self.__anext__()]
        while (message := self._core.take()) is not None:
            messages.append(message)
        return messages

    @property
    def waiting(self) -> int:
        """The number of messages that were received and have not been taken yet."""
        return len(self._subscription.core.messages)

    def take_now(self) -> IncomingMessage | None:
        """Return a message that is here, None if none is. A consumer that has not started has none."""
        return None if self._subscription.cancelled else self._core.take()

    async def _start(self) -> None:
        """Start it, once."""
        await self.channel.subscribe(self._subscription)
        self._started = True

    async def cancel(self) -> None:
        """End it. Messages that were not taken return to the queue; those that were taken can still be settled."""
        future = self._subscription.stop(self.channel.port_or_none())
        self.channel.unsubscribe(self._subscription)
        if future is not None:
            with contextlib.suppress(
                ConnectionLost
            ):  # with it the consumer has ended, and the broker requeues by itself
                await answered(future)

    async def __aenter__(self) -> Self:
        async with self._lock:
            if not self._started:
                await self._start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        await self.cancel()

    def __del__(self) -> None:
        if getattr(self, "_started", False) and not self._subscription.cancelled:
            self.channel.abandon(self._subscription)


def cancelled_by_broker(queue: Queue) -> ConsumerCancelled:
    """Return the error of a consumer that the broker has ended."""
    return ConsumerCancelled(
        f"the broker ended this consumer of queue {queue.name!r} (basic.cancel); was the queue deleted or moved?"
    )

"""Queues and streams of any broker as sources: consumed, and settled by acks."""

from __future__ import annotations

import asyncio

from kvitto.client.aio import Channel, Connection, Consumer, IncomingMessage, NotSupported, Queue
from kvitto.client.aio.ranges import need
from kvitto.client.errors import AMQPError, ChannelClosed, ConnectionLost
from kvitto.shovel.load import LOAD_BYTES, Load
from kvitto.wire import methods as m
from kvitto.wire.tables import Table

STREAM_PREFETCH = 2000
IDLE_S = 2.0
"""A stream from which nothing has come for so long has no more messages."""


class QueueSource:
    """Consumes a queue with acks: what was not settled when it ends comes again, flagged `redelivered`.

    If the connection is lost after an ack was sent, the broker may not have seen it, so a load may come twice.
    """

    incarnation = ""
    """Names this life of a queue of Kvitto whose messages come with their offsets, else ""."""

    def __init__(self, channel: Channel, queue: Queue, consumer: Consumer, prefetch: int) -> None:
        self._channel = channel
        self._queue = queue
        self._consumer = consumer
        self._prefetch = prefetch
        self.found = queue.message_count
        """The ready messages when the consumer started."""

    @property
    def closed(self) -> AMQPError | None:
        """Why the channel has ended, None while it is open."""
        return self._channel.closed

    def check(self) -> None:
        """Raise AMQPError if the channel has ended, or if more messages have come than were asked for: they take memory."""
        if self.closed is not None:
            raise ConnectionLost(f"the source is lost: {self.closed}")
        if self._consumer.waiting > self._prefetch:
            raise AMQPError(f"the source sends more than the {self._prefetch} messages that may be unsettled")

    @classmethod
    async def open(
        cls, connection: Connection, name: str, prefetch: int, arguments: Table | None = None
    ) -> QueueSource:
        """Start the consumer. ChannelClosed says why it is refused."""
        channel = await connection.channel()
        queue = await channel.queue(name, passive=True)
        consumer = queue.consume(prefetch=prefetch, arguments=arguments)
        await consumer.__aenter__()
        return cls(channel, queue, consumer, prefetch)

    @classmethod
    async def open_with_offsets(cls, connection: Connection, name: str, prefetch: int, arguments: Table) -> QueueSource:
        """Do the same, with an offset in each message if the queue can give it: a durable one of Kvitto."""
        try:
            await need(connection, "kvitto_offset_header", "say offsets")
            channel = await connection.channel()
            incarnation: str = (await channel.call(m.LogInspect(name), m.LogInspectOk)).incarnation
            await channel.close()
            source = await cls.open(connection, name, prefetch, {**arguments, "x-offset-header": True})
        except NotSupported:
            return await cls.open(connection, name, prefetch, arguments)
        except ChannelClosed as error:
            if error.code != 406:
                raise
            return await cls.open(connection, name, prefetch, arguments)
        source.incarnation = incarnation
        return source

    async def take(self, most: int, wait_s: float) -> Load:
        self.check()
        return Load(await take(self._consumer, most, wait_s))

    async def settle(self, load: Load) -> None:
        if not load.messages[-1].ack(multiple=True):
            raise AMQPError("the source closed the channel before the ack")

    async def left(self) -> int:
        return (await self._channel.queue(self._queue.name, passive=True)).message_count

    async def close(self) -> None:
        await self._channel.close()


class StreamSource:
    """Reads a stream of any broker from an offset on. Acks give credit only: the stream keeps its messages."""

    def __init__(self, channel: Channel, consumer: Consumer, start: int) -> None:
        self._channel = channel
        self._consumer = consumer
        self._start = start

    @classmethod
    async def open(cls, connection: Connection, name: str, start: int) -> StreamSource:
        channel = await connection.channel()
        queue = await channel.queue(name, passive=True)
        consumer = queue.consume(prefetch=STREAM_PREFETCH, offset=start)
        await consumer.__aenter__()
        return cls(channel, consumer, start)

    def check(self) -> None:
        """A stream sends whole chunks, which may be more than was asked for."""

    async def take(self, most: int, wait_s: float) -> Load:
        """RabbitMQ sends whole chunks: what is before the start is left out."""
        while True:
            got = await take(self._consumer, most, wait_s)
            kept = [message for message in got if (message.offset or 0) >= self._start]
            if kept:
                return Load(kept, (kept[-1].offset or 0) + 1)
            if not got:
                return Load([])
            got[-1].ack(multiple=True)

    async def settle(self, load: Load) -> None:
        load.messages[-1].ack(multiple=True)

    async def left(self) -> int:
        return 0

    async def close(self) -> None:
        await self._channel.close()


async def stream_end(connection: Connection, name: str) -> int:
    """Return the offset behind the last message that a stream has now, 0 if it has none. RabbitMQ tells it in no other way."""
    channel = await connection.channel()
    try:
        queue = await channel.queue(name, passive=True)
        end = 0
        async with queue.consume(prefetch=STREAM_PREFETCH, offset="last") as consumer:
            while got := await take(consumer, STREAM_PREFETCH, IDLE_S):
                end = (got[-1].offset or 0) + 1
                got[-1].ack(multiple=True)
        return end
    finally:
        await channel.close()


async def take(consumer: Consumer, most: int, wait_s: float) -> list[IncomingMessage]:
    """Return what has come, at most `most` messages and about LOAD_BYTES; none if nothing comes for `wait_s` seconds."""
    try:
        async with asyncio.timeout(wait_s):
            first = await anext(consumer)
    except TimeoutError:
        return []
    except StopAsyncIteration:
        raise AMQPError("the consumer has ended") from None
    messages, size = [first], len(first.body)
    while len(messages) < most and size < LOAD_BYTES:
        message = consumer.take_now()
        if message is None:
            break
        messages.append(message)
        size += len(message.body)
    return messages

"""Handles for queues and exchanges: the calls of a channel with the name filled in."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Literal, Unpack

from kvitto.client.aio.consumer import Consumer
from kvitto.client.aio.core import IncomingMessage
from kvitto.client.aio.message import Fields, Message
from kvitto.client.aio.ranges import Offsets, RangeReader, offsets
from kvitto.client.aio.topology import key_of
from kvitto.wire import methods as m
from kvitto.wire.tables import Table

if TYPE_CHECKING:
    from datetime import datetime

    from kvitto.client.aio.channel import Channel
    from kvitto.client.aio.groups import Group

PREFETCH = 100
REPLY_TO = "amq.rabbitmq.reply-to"
"""What a consumer of answers names as its queue."""


class Queue:
    """A queue, from `Channel.queue`. `message_count` and `consumer_count` are those of the declaration."""

    def __init__(self, channel: Channel, name: str, message_count: int, consumer_count: int) -> None:
        self.channel = channel
        self.name = name
        self.message_count = message_count
        self.consumer_count = consumer_count

    def consume(
        self,
        *,
        prefetch: int = PREFETCH,
        no_ack: bool = False,
        exclusive: bool = False,
        consumer_tag: str = "",
        offset: int | Literal["first", "last", "next"] | datetime | None = None,
        arguments: Table | None = None,
    ) -> Consumer:
        """Return a consumer: `async for message in queue.consume():`. It starts with the first message asked for.

        prefetch: how many messages may be here unsettled; 0 is no limit. no_ack: messages need no ack and may be lost.
        offset: where to begin in a stream (argument x-stream-offset). consumer_tag: "" makes a new one.
        """
        given: Table = dict(arguments or {})
        if offset is not None:
            given["x-stream-offset"] = offset
        return Consumer(self.channel, self, prefetch, no_ack, exclusive, consumer_tag, given)

    async def get(self, *, no_ack: bool = False) -> IncomingMessage | None:
        """Return one message, None if the queue is empty. Cancelled, it returns the message to the queue."""
        return await self.channel.get(self.name, no_ack=no_ack)

    def read(self, start: int = 0, end: int | None = None, *, batch: int = 1000) -> RangeReader:
        """Return an iterator over the unsettled messages with offsets from start to end - 1, which leaves them in the queue:
        `async for message in queue.read(100, 200)`. Only Kvitto has this.

        end: None, or an offset behind it, means the end of the messages that are durable when the read begins. batch: for
        how many offsets the broker is asked at a time. `message.offset` is the offset; nothing is acked. Raises
        NotSupported, ChannelClosed (403 if the queue has consumers, 404), ConnectionLost if the client does not
        reconnect, and AMQPError if the queue was deleted and declared again meanwhile.
        """
        return RangeReader(self, start, end, batch)

    def group(self, name: str) -> Group:
        """Return what reserves the queue for the readers of a group: `async with queue.group("billing") as group:`. Only Kvitto
        has this.

        Connections that name the same group share it; consumers and `get` are refused meanwhile. `async with` raises
        NotSupported, and ChannelClosed (403) if the queue has consumers, unacked messages or another group.
        """
        from kvitto.client.aio.groups import Group

        return Group(self, name)

    async def offsets(self) -> Offsets:
        """Return the offsets at which the queue begins and ends, and its incarnation. Raises NotSupported with other brokers than
        Kvitto."""
        return await offsets(self)

    async def bind(self, exchange: str | Exchange, routing_key: str = "", *, arguments: Table | None = None) -> None:
        """Bind the queue to an exchange."""
        bind = m.QueueBind(self.name, _name(exchange), routing_key, False, arguments)
        await self.channel.call(bind, m.QueueBindOk)
        self.channel.connection.topology.queue_bindings[key_of(bind)] = bind

    async def unbind(self, exchange: str | Exchange, routing_key: str = "", *, arguments: Table | None = None) -> None:
        """Remove a binding."""
        unbind = m.QueueUnbind(self.name, _name(exchange), routing_key, arguments)
        await self.channel.call(unbind, m.QueueUnbindOk)
        self.channel.connection.topology.queue_bindings.pop(key_of(unbind), None)

    async def purge(self) -> int:
        """Drop all messages that no consumer has. Return their number."""
        return (await self.channel.call(m.QueuePurge(self.name), m.QueuePurgeOk)).message_count

    async def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete the queue. Return the number of messages dropped with it."""
        answer = await self.channel.call(m.QueueDelete(self.name, if_unused, if_empty), m.QueueDeleteOk)
        self.channel.connection.topology.forget_queue(self.name)
        return answer.message_count

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"


class Exchange:
    """An exchange, from `Channel.exchange`."""

    def __init__(self, channel: Channel, name: str) -> None:
        self.channel = channel
        self.name = name

    async def publish(
        self, body: bytes, routing_key: str = "", *, mandatory: bool = False, **fields: Unpack[Fields]
    ) -> None:
        """Publish to this exchange (see `Channel.publish`)."""
        await self.channel.publish(body, routing_key, exchange=self.name, mandatory=mandatory, **fields)

    async def publish_many(
        self,
        messages: Iterable[bytes | Message] | AsyncIterable[bytes | Message],
        routing_key: str = "",
        *,
        mandatory: bool = False,
        **fields: Unpack[Fields],
    ) -> int:
        """Publish a stream to this exchange (see `Channel.publish_many`)."""
        return await self.channel.publish_many(messages, routing_key, exchange=self.name, mandatory=mandatory, **fields)

    async def bind(self, source: str | Exchange, routing_key: str = "", *, arguments: Table | None = None) -> None:
        """Bind this exchange to another one, `source`, from which it gets messages."""
        bind = m.ExchangeBind(self.name, _name(source), routing_key, False, arguments)
        await self.channel.call(bind, m.ExchangeBindOk)
        self.channel.connection.topology.exchange_bindings[key_of(bind)] = bind

    async def unbind(self, source: str | Exchange, routing_key: str = "", *, arguments: Table | None = None) -> None:
        """Remove a binding."""
        unbind = m.ExchangeUnbind(self.name, _name(source), routing_key, False, arguments)
        await self.channel.call(unbind, m.ExchangeUnbindOk)
        self.channel.connection.topology.exchange_bindings.pop(key_of(unbind), None)

    async def delete(self, *, if_unused: bool = False) -> None:
        """Delete the exchange."""
        await self.channel.call(m.ExchangeDelete(self.name, if_unused), m.ExchangeDeleteOk)
        self.channel.connection.topology.forget_exchange(self.name)

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r}>"


def _name(exchange: str | Exchange) -> str:
    return exchange.name if isinstance(exchange, Exchange) else exchange

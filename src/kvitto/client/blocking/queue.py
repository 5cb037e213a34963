"""Handles for queues and exchanges: the calls of a channel with the name filled in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Unpack

from kvitto.client.aio.message import Fields
from kvitto.client.aio.queue import PREFETCH, Exchange, Queue
from kvitto.client.aio.ranges import Offsets
from kvitto.client.blocking.groups import SyncGroup
from kvitto.client.blocking.messages import SyncConsumer, SyncMessage, SyncRangeReader
from kvitto.wire.tables import Table

if TYPE_CHECKING:
    from datetime import datetime

    from kvitto.client.blocking.channel import SyncChannel


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
        message = self._channel.run(self._queue.get(no_ack=no_ack))
        return None if message is None else self._channel.wrap(self._queue)(message, self._loop)

    def read(self, start: int = 0, end: int | None = None, *, batch: int = 1000) -> SyncRangeReader:
        """Return an iterator over a range of offsets, see `Queue.read`: `for message in queue.read(100, 200):`."""
        return SyncRangeReader(self._loop, self._queue.read(start, end, batch=batch))

    def group(self, name: str) -> SyncGroup:
        """Return what reserves the queue for a group, see `Queue.group`: `with queue.group("billing") as group:`."""
        return SyncGroup(self._loop, self._queue.group(name))

    def offsets(self) -> Offsets:
        """Return the offsets at which the queue begins and ends, see `Queue.offsets`."""
        return self._channel.run(self._queue.offsets())

    def bind(self, exchange: str | SyncExchange, routing_key: str = "", *, arguments: Table | None = None) -> None:
        """Bind the queue to an exchange."""
        self._channel.run(self._queue.bind(name_of(exchange), routing_key, arguments=arguments))

    def unbind(self, exchange: str | SyncExchange, routing_key: str = "", *, arguments: Table | None = None) -> None:
        """Remove a binding."""
        self._channel.run(self._queue.unbind(name_of(exchange), routing_key, arguments=arguments))

    def purge(self) -> int:
        """Drop all messages that no consumer has. Return their number."""
        return self._channel.run(self._queue.purge())

    def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete the queue. Return the number of messages dropped with it."""
        return self._channel.run(self._queue.delete(if_unused=if_unused, if_empty=if_empty))


class SyncExchange:
    """An exchange, see `Exchange`."""

    def __init__(self, channel: SyncChannel, exchange: Exchange) -> None:
        self._channel = channel
        self._exchange = exchange
        self.name = exchange.name

    def publish(self, body: bytes, routing_key: str = "", *, mandatory: bool = False, **fields: Unpack[Fields]) -> None:
        """Publish to this exchange."""
        self._channel.publish(body, routing_key, exchange=self.name, mandatory=mandatory, **fields)

    def bind(self, source: str | SyncExchange, routing_key: str = "", *, arguments: Table | None = None) -> None:
        """Bind this exchange to another one, from which it gets messages."""
        self._channel.run(self._exchange.bind(name_of(source), routing_key, arguments=arguments))

    def unbind(self, source: str | SyncExchange, routing_key: str = "", *, arguments: Table | None = None) -> None:
        """Remove a binding."""
        self._channel.run(self._exchange.unbind(name_of(source), routing_key, arguments=arguments))

    def delete(self, *, if_unused: bool = False) -> None:
        """Delete the exchange."""
        self._channel.run(self._exchange.delete(if_unused=if_unused))


def name_of(exchange: str | SyncExchange) -> str:
    return exchange if isinstance(exchange, str) else exchange.name

"""Reads a queue by range of offsets, without consuming it. The broker's part is its class `log` (docs/protocol-extensions.md)."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Self

from kvitto.client import disown
from kvitto.client.aio.core import ConsumerCore, IncomingMessage
from kvitto.client.aio.errors import Closed, NotSupported
from kvitto.client.aio.link import copy_of
from kvitto.client.errors import AMQPError, ChannelClosed, ConnectionLost
from kvitto.wire import methods as m

if TYPE_CHECKING:
    from kvitto.client.aio.channel import Channel
    from kvitto.client.aio.connection import Connection
    from kvitto.client.aio.queue import Queue

TAG = "range"


class Offsets(NamedTuple):
    """The offsets at which a queue begins and ends. `Queue.offsets` returns them. An offset is the number of a message, from 0."""

    incarnation: str
    """32 hexadecimal digits. A queue that is deleted and declared again gets other digits, and its offsets begin at 0 again."""
    first: int
    """The lowest offset at which a message waits."""
    next: int
    """The offset behind the last message that can be read now."""
    settled: int
    """All messages below this offset are settled."""


class RangeMessage(IncomingMessage):
    """A message that was read by its offset. It needs no ack, and stays in the queue."""

    __slots__ = ()

    @property
    def offset(self) -> int:
        """The offset of this message in its queue, from 0."""
        return self.delivery_tag - 1


class RangeReader:
    """An asynchronous iterator over the unsettled messages of a range of offsets. `Queue.read` returns it.

    It has a channel of its own, and reads one batch at a time. When the connection comes back it goes on behind the
    message that was read last. Several tasks may iterate over it.
    """

    def __init__(self, queue: Queue, start: int, end: int | None, batch: int, incarnation: str = "") -> None:
        if start < 0 or batch < 1 or (end is not None and end < 0):
            raise ValueError(f"start and end are offsets from 0, batch is at least 1: got {start}, {end}, {batch}")
        self._queue = queue.name
        self._connection = queue.channel.connection
        self._next = start
        self._end = end
        self._batch = batch
        self._here: deque[IncomingMessage] = deque()
        self._incarnation = incarnation
        self._looked = False
        """Whether the broker has told the offsets of the queue, so that the end of the range is known."""
        self._failed: AMQPError | None = None
        self._closed = False
        self._channel: Channel | None = None
        self._lock = asyncio.Lock()
        disown.own(self)

    def disown(self) -> None:
        """In a forked child: the parent handles what is here."""
        self._here.clear()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> IncomingMessage:
        while not self._here:  # another task may take what this one has read
            if not self._closed:
                self._connection.check()
            async with self._lock:
                await self._fill()
        return self._here.popleft()

    async def take_all(self) -> list[IncomingMessage]:
        """Return the messages of the batch that are left, at least one. Raise StopAsyncIteration at the end of the range."""
        messages = [await self.__anext__(), *self._here]
        self._here.clear()
        return messages

    async def _fill(self) -> None:
        """Read batches until one of them has a message."""
        while not self._here:
            if self._failed is not None:
                raise copy_of(self._failed)
            if self._closed or (self._looked and self._end is not None and self._next >= self._end):
                await self.close()
                raise StopAsyncIteration
            try:
                await self._read()
            except ConnectionLost:
                self._drop()
                if not self._connection.reconnects:
                    raise
            except BaseException:
                self._drop()
                raise

    async def _read(self) -> None:
        """Read one batch. Its messages count as read when all of them are here, so a cancelled call loses none."""
        if self._channel is None:
            await need(self._connection, "kvitto_log", "read a queue by range of offsets")
            self._channel = await self._connection.single_channel()
            await self._look(self._channel)
            return
        channel = self._channel
        port = await channel.port()
        core = ConsumerCore()
        core.no_ack = True
        port.core.new_message = _new_message
        port.core.add_consumer(TAG, core)
        assert self._end is not None
        end = min(self._next + self._batch, self._end)
        try:
            answer = await port.call(m.LogRead(self._queue, TAG, self._next, end), m.LogReadOk)
            await self._look(channel)  # a queue that was deleted meanwhile has ended the range early
        except ChannelClosed as error:
            self._failed = error
            self._here.extend(core.messages)
            return
        self._here.extend(core.messages)
        if answer.next <= self._next:
            text = f"queue {self._queue!r}: the broker ended the read at offset {answer.next}, asked for {self._next}"
            self._failed = AMQPError(f"{text} to {end}; look at Queue.offsets, and read again")
        self._next = max(self._next, answer.next)

    async def _look(self, channel: Channel) -> None:
        """Ask for the offsets of the queue, and raise an error if it is not the queue that was read before."""
        answer = await channel.call(m.LogInspect(self._queue), m.LogInspectOk)
        if self._incarnation not in ("", answer.incarnation):
            raise AMQPError(
                f"queue {self._queue!r} was deleted and declared again while it was read, up to offset {self._next};"
                " its offsets begin anew"
            )
        if not self._looked:
            self._looked = True
            self._incarnation = answer.incarnation
            self._end = answer.next if self._end is None else min(self._end, answer.next)
        self._next = max(self._next, min(answer.first, self._end or 0))

    def _drop(self) -> None:
        """Close the channel without waiting. An answer that is under way is lost with it."""
        channel, self._channel = self._channel, None
        if channel is not None:
            close_soon(channel)

    async def close(self) -> None:
        """End the iterator, and close its channel. A second call does nothing."""
        self._closed = True
        self._here.clear()
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        await self.close()

    def __del__(self) -> None:
        channel = getattr(self, "_channel", None)
        if channel is not None and not channel.connection.loop.is_closed():
            channel.connection.loop.call_soon_threadsafe(close_soon, channel)


async def offsets(queue: Queue) -> Offsets:
    """Do what `Queue.offsets` says."""
    await need(queue.channel.connection, "kvitto_log", "tell the offsets of a queue")
    answer = await queue.channel.call(m.LogInspect(queue.name), m.LogInspectOk)
    return Offsets(answer.incarnation, answer.first, answer.next, answer.settled)


async def need(connection: Connection, capability: str, what: str) -> None:
    """Raise NotSupported if the broker lacks a capability that only Kvitto has. While the client reconnects, wait for that first."""
    while not connection.connected:
        await connection.wait_ready()
    capabilities = connection.server_properties.get("capabilities")
    if not isinstance(capabilities, dict) or not capabilities.get(capability):
        named = connection.server_properties.get("product")
        product = named if isinstance(named, str) and named else "this broker"
        raise NotSupported(f"{product} cannot {what}: that is an extension of Kvitto ({capability})")


def _new_message() -> IncomingMessage:
    message: RangeMessage = RangeMessage.__new__(RangeMessage)
    return message


def close_soon(channel: Channel) -> None:
    port = channel.port_or_none()
    if port is not None and port.shut is None:
        port.close_soon()
    channel.end(Closed("the read was ended by this program"))

"""The channel, messages and RPC calls of an asyncio connection with interceptors. Without interceptors none of this is used."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Self, Unpack

from kvitto.client.aio.channel import Channel
from kvitto.client.aio.core import IncomingMessage
from kvitto.client.aio.message import Fields, Message
from kvitto.client.aio.rpc import RPC
from kvitto.client.intercept import (
    Handling,
    Interceptor,
    Streaming,
    fields_of,
    outgoing,
    publishing,
    question,
    streaming,
)

if TYPE_CHECKING:
    from kvitto.client.aio.connection import Connection
    from kvitto.client.aio.link import Port


class InterceptedChannel(Channel):
    """A channel whose publishes and messages go through the connection's interceptors."""

    def __init__(self, connection: Connection, *, confirms: bool = True) -> None:
        super().__init__(connection, confirms=confirms)
        self._interceptors = connection.interceptors

    async def publish(
        self,
        body: bytes,
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool = False,
        **fields: Unpack[Fields],
    ) -> None:
        message = outgoing(body, routing_key, exchange, fields)
        with publishing(self._interceptors, message):
            await super().publish(
                message.body, message.routing_key, exchange=message.exchange, mandatory=mandatory, **fields_of(message)
            )

    async def publish_many(
        self,
        messages: Iterable[bytes | Message] | AsyncIterable[bytes | Message],
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool = False,
        **fields: Unpack[Fields],
    ) -> int:
        with streaming(self._interceptors, exchange, routing_key, fields) as copies:
            if isinstance(messages, AsyncIterable):
                return await super().publish_many(_Copies(copies, messages), mandatory=mandatory)
            return await super().publish_many(map(copies.copy, messages), mandatory=mandatory)

    def rpc(self, *, resend: bool = False) -> RPC:
        return InterceptedRPC(self, self._interceptors, resend)

    async def get(self, queue: str, *, no_ack: bool = False) -> IncomingMessage | None:
        message = await super().get(queue, no_ack=no_ack)
        if isinstance(message, HandledMessage):
            message.queue = queue
        return message

    async def open(self, port: Port, *, again: bool = False) -> None:
        port.core.new_message = self._new_message
        await super().open(port, again=again)

    def _new_message(self) -> IncomingMessage:
        message: HandledMessage = HandledMessage.__new__(HandledMessage)
        message.owner = self
        message.queue = None
        return message

    def handling(self, message: HandledMessage, settling: AbstractContextManager[object]) -> HandledBlock:
        """Return the block of a message."""
        queue = message.queue
        if queue is None:
            subscription = self._subscriptions.get(message.consumer_tag)
            queue = "" if subscription is None else subscription.queue.name
        return HandledBlock(self._interceptors, message, queue, settling, message)


class _Copies:
    """An asynchronous iterable of what is sent instead of the messages of another one."""

    def __init__(self, copies: Streaming, messages: AsyncIterable[bytes | Message]) -> None:
        self.copies = copies
        self.messages = aiter(messages)

    def __aiter__(self) -> AsyncIterator[bytes | Message]:
        return self

    async def __anext__(self) -> Message:
        return self.copies.copy(await anext(self.messages))


class HandledMessage(IncomingMessage):
    """A message whose block the interceptors see."""

    __slots__ = ("owner", "queue", "_block")
    owner: InterceptedChannel
    queue: str | None
    _block: HandledBlock

    def process(self, *, on_error: str = "reject") -> HandledBlock:  # type: ignore[override]  # the same methods
        return self.owner.handling(self, super().process(on_error=on_error))

    def __enter__(self) -> Self:
        self._block = self.process()
        self._block.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        self._block.__exit__(kind, error, tb)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        self._block.__exit__(kind, error, tb)


class HandledBlock(Handling[HandledMessage]):
    """What `HandledMessage.process` returns, for `with` and `async with`."""

    async def __aenter__(self) -> HandledMessage:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        self.__exit__(kind, error, tb)


class InterceptedRPC(RPC):
    """RPC calls that are publishes for the interceptors."""

    def __init__(self, channel: InterceptedChannel, interceptors: tuple[Interceptor, ...], resend: bool) -> None:
        super().__init__(channel, resend=resend)
        self._interceptors = interceptors

    async def call(
        self, body: bytes, routing_key: str, *, exchange: str = "", **fields: Unpack[Fields]
    ) -> IncomingMessage:
        message = question(body, routing_key, exchange, fields)
        with publishing(self._interceptors, message):
            return await super().call(
                message.body, message.routing_key, exchange=message.exchange, **fields_of(message)
            )

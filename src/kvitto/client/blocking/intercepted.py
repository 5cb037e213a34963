"""The channel and messages of a synchronous connection with interceptors. They run in the program's threads, so that what they
set for a thread, such as the current span, is that of the code that publishes or handles."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self, Unpack

from kvitto.client.aio.channel import Channel
from kvitto.client.aio.core import IncomingMessage
from kvitto.client.aio.message import Fields, Message
from kvitto.client.aio.queue import Queue
from kvitto.client.aio.rpc import RPC
from kvitto.client.blocking.channel import SyncChannel, SyncRPC
from kvitto.client.blocking.loop import Loop
from kvitto.client.blocking.messages import SyncMessage, Wrap
from kvitto.client.blocking.outbox import Outboxes
from kvitto.client.intercept import Handling, Interceptor, fields_of, outgoing, publishing, question, streaming


class InterceptedSyncChannel(SyncChannel):
    """A channel whose publishes and messages go through the connection's interceptors."""

    def __init__(self, loop: Loop, channel: Channel, outboxes: Outboxes, interceptors: tuple[Interceptor, ...]) -> None:
        super().__init__(loop, channel, outboxes)
        self._interceptors = interceptors

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
        message = outgoing(body, routing_key, exchange, fields)
        with publishing(self._interceptors, message):
            super().publish(
                message.body,
                message.routing_key,
                exchange=message.exchange,
                mandatory=mandatory,
                timeout_s=timeout_s,
                **fields_of(message),
            )

    def publish_many(
        self,
        messages: Iterable[bytes | Message],
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool = False,
        **fields: Unpack[Fields],
    ) -> int:
        with streaming(self._interceptors, exchange, routing_key, fields) as copies:
            return super().publish_many(map(copies.copy, messages), mandatory=mandatory)

    def rpc(self, *, resend: bool = False) -> SyncRPC:
        return InterceptedSyncRPC(self, self._channel.rpc(resend=resend), self._interceptors)

    def wrap(self, queue: Queue) -> Wrap:
        interceptors = self._interceptors

        def wrap(incoming: IncomingMessage, loop: Loop) -> SyncMessage:
            return HandledSyncMessage(incoming, loop, interceptors, queue)

        return wrap


class InterceptedSyncRPC(SyncRPC):
    """RPC calls that are publishes for the interceptors."""

    def __init__(self, channel: SyncChannel, rpc: RPC, interceptors: tuple[Interceptor, ...]) -> None:
        super().__init__(channel, rpc)
        self._interceptors = interceptors

    def call(
        self,
        body: bytes,
        routing_key: str,
        *,
        exchange: str = "",
        timeout_s: float | None = None,
        **fields: Unpack[Fields],
    ) -> SyncMessage:
        message = question(body, routing_key, exchange, fields)
        with publishing(self._interceptors, message):
            return super().call(
                message.body,
                message.routing_key,
                exchange=message.exchange,
                timeout_s=timeout_s,
                **fields_of(message),
            )


class HandledSyncMessage(SyncMessage):
    """A message whose block the interceptors see."""

    def __init__(
        self, incoming: IncomingMessage, loop: Loop, interceptors: tuple[Interceptor, ...], queue: Queue
    ) -> None:
        super().__init__(incoming, loop)
        self._interceptors = interceptors
        self._queue = queue

    def process(self, *, on_error: str = "reject") -> AbstractContextManager[SyncMessage]:
        settling = super().process(on_error=on_error)
        return Handling(self._interceptors, self.incoming, self._queue.name, settling, self)

    def __enter__(self) -> Self:
        self._handled = self.process()
        self._handled.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._handled.__exit__(kind, error, tb)

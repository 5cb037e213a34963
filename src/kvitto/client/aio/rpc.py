"""Calls and answers by direct reply-to: no queue is declared, and answers come on the channel that asked."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Self, Unpack

from kvitto.client.aio.consumer import Consumer
from kvitto.client.aio.core import IncomingMessage
from kvitto.client.aio.link import copy_of
from kvitto.client.aio.message import Fields, encode, new_id
from kvitto.client.aio.queue import Queue
from kvitto.client.errors import AMQPError

if TYPE_CHECKING:
    from kvitto.client.aio.channel import Channel

REPLY_TO = "amq.rabbitmq.reply-to"


class RPC:
    """`async with channel.rpc() as rpc: answer = await rpc.call(b"question", "queue")`."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.answers = Queue(channel, REPLY_TO, 0, 0)
        """What stands for a queue of answers."""
        self._waiting: dict[str, asyncio.Future[IncomingMessage]] = {}
        self._consumer: Consumer | None = None
        self._reader: asyncio.Task[None] | None = None

    async def call(
        self, body: bytes, routing_key: str, *, exchange: str = "", **fields: Unpack[Fields]
    ) -> IncomingMessage:
        """Publish a question and return its answer. Set a limit with `asyncio.timeout`: nobody may answer.

        Raises Returned if no queue takes the question, Nacked, and ConnectionLost if the connection is lost meanwhile:
        the question may have been answered then.
        """
        if self._reader is None or self._reader.done():
            raise AMQPError(
                "calls need their block: `async with channel.rpc() as rpc:`, without asyncio `with channel.rpc() as rpc:`"
            )
        key = fields.setdefault("correlation_id", new_id())
        fields["reply_to"] = REPLY_TO
        fields.setdefault("delivery_mode", 1)
        future: asyncio.Future[IncomingMessage] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        try:
            core = await self.channel.clear()
            confirm = core.publish(exchange, routing_key, 1, encode(fields), body)
            if confirm is not None:  # the answer may come before it
                confirm.add_done_callback(partial(_confirmed, future))
            return await future
        finally:
            del self._waiting[key]

    async def _read(self, consumer: Consumer) -> None:
        try:
            async for message in consumer:
                future = self._waiting.get(message.properties.correlation_id or "")
                if future is not None and not future.done():
                    future.set_result(message)
        except AMQPError as error:
            self.lost(error)  # every call that waits has it now, and later calls find no reader

    def lost(self, error: AMQPError) -> None:
        """From the channel: answers on the connection that was lost do not come any more."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(copy_of(error))

    async def __aenter__(self) -> Self:
        self._consumer = self.answers.consume(no_ack=True, prefetch=0)
        await self._consumer.__aenter__()
        self.channel.add_rpc(self)
        self._reader = asyncio.create_task(self._read(self._consumer), name="kvitto rpc")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        assert self._consumer is not None and self._reader is not None
        self.channel.remove_rpc(self)
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._consumer.cancel()


def _confirmed(answer: asyncio.Future[IncomingMessage], confirm: asyncio.Future[None]) -> None:
    """A question that no queue has gets no answer."""
    error = None if confirm.cancelled() else confirm.exception()
    if error is not None and not answer.done():
        answer.set_exception(error)

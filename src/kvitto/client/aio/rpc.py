"""Calls and answers by direct reply-to: no queue is declared, and answers come on the channel that asked."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Self, Unpack

from kvitto.client.aio.consumer import Consumer
from kvitto.client.aio.core import ChannelCore, IncomingMessage
from kvitto.client.aio.link import copy_of
from kvitto.client.aio.message import Fields, encode, new_id
from kvitto.client.aio.queue import REPLY_TO, Queue
from kvitto.client.errors import AMQPError

if TYPE_CHECKING:
    from kvitto.client.aio.channel import Channel

log = logging.getLogger("kvitto.client")


class RPC:
    """`async with channel.rpc() as rpc: answer = await rpc.call(b"question", "queue")`."""

    def __init__(self, channel: Channel, *, resend: bool = False) -> None:
        self.channel = channel
        self.answers = Queue(channel, REPLY_TO, 0, 0)
        """What stands for a queue of answers."""
        self._resend = resend
        self._waiting: dict[str, Call] = {}
        self._consumer: Consumer | None = None
        self._reader: asyncio.Task[None] | None = None

    async def call(
        self, body: bytes, routing_key: str, *, exchange: str = "", **fields: Unpack[Fields]
    ) -> IncomingMessage:
        """Publish a question and return its answer. Set a limit with `asyncio.timeout`: nobody may answer.

        Raises Returned if no queue takes the question, Nacked, and ConnectionLost if the connection is lost meanwhile:
        the question may have been answered then. With `channel.rpc(resend=True)` it is asked again instead.
        """
        if self._reader is None or self._reader.done():
            raise AMQPError(
                "calls need their block: `async with channel.rpc() as rpc:`, without asyncio `with channel.rpc() as rpc:`"
            )
        key = fields.setdefault("correlation_id", new_id())
        if key in self._waiting:
            raise ValueError(
                f"a call with correlation_id {key!r} waits for its answer already; leave it out, or choose another"
            )
        fields["reply_to"] = REPLY_TO
        fields.setdefault("delivery_mode", 1)
        call = self._waiting[key] = Call(exchange, routing_key, encode(fields), body)
        try:
            call.ask(await self.channel.clear())
            return await call.answer
        finally:
            del self._waiting[key]
            call.forget()

    async def _read(self, consumer: Consumer) -> None:
        try:
            async for message in consumer:
                try:
                    key = message.properties.correlation_id
                except AMQPError as error:
                    log.warning("an answer was dropped: %s", error)
                    continue
                call = self._waiting.get(key or "")
                if call is not None and not call.answer.done():
                    call.answer.set_result(message)
        except AMQPError as error:
            self.lost(error)  # every call that waits has it now, and later calls find no reader

    def lost(self, error: AMQPError, *, comes_back: bool = False) -> None:
        """From the channel: answers on the connection that was lost do not come any more."""
        for call in self._waiting.values():
            call.forget()
            if call.asked and not (comes_back and self._resend) and not call.answer.done():
                call.answer.set_exception(copy_of(error))

    def again(self, core: ChannelCore) -> None:
        """Ask again what was asked on the connection that was lost. The channel calls this when there is a new one."""
        for call in self._waiting.values():
            if call.asked and not call.answer.done():
                call.ask(core)

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


class Call:
    """A question, and who waits for its answer."""

    def __init__(self, exchange: str, routing_key: str, properties: bytes, body: bytes) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        self.body = body
        self.answer: asyncio.Future[IncomingMessage] = asyncio.get_running_loop().create_future()
        self.asked = False
        self._confirm: asyncio.Future[None] | None = None

    def ask(self, core: ChannelCore) -> None:
        """Publish the question. The answer may come before the confirm."""
        self.asked = True
        self._confirm = core.publish(self.exchange, self.routing_key, 1, self.properties, self.body)
        if self._confirm is not None:
            self._confirm.add_done_callback(partial(_confirmed, self.answer))

    def forget(self) -> None:
        """Wait for the confirm no longer: the channel does not send the question again by itself then."""
        if self._confirm is not None:
            self._confirm.cancel()
            self._confirm = None


def _confirmed(answer: asyncio.Future[IncomingMessage], confirm: asyncio.Future[None]) -> None:
    """A question that no queue has gets no answer."""
    error = None if confirm.cancelled() else confirm.exception()
    if error is not None and not answer.done():
        answer.set_exception(error)

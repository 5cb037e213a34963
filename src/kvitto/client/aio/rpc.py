"""Calls and answers by direct reply-to: no queue is declared, and answers come on the channel that asked."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Self, Unpack

from kvitto.client.aio.consumer import Consumer
from kvitto.client.aio.core import ChannelCore, IncomingMessage
from kvitto.client.aio.errors import Closed
from kvitto.client.aio.link import copy_of, forget
from kvitto.client.aio.message import Fields, encode, new_id
from kvitto.client.aio.queue import REPLY_TO, Queue
from kvitto.client.errors import AMQPError

if TYPE_CHECKING:
    from kvitto.client.aio.channel import Channel

log = logging.getLogger("kvitto.client")

NEEDS_BLOCK = "calls need their block: `async with channel.rpc() as rpc:`, without asyncio `with channel.rpc() as rpc:`"


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
        self._ended: AMQPError | None = AMQPError(NEEDS_BLOCK)
        """Why no call can be made now."""

    async def call(
        self, body: bytes, routing_key: str, *, exchange: str = "", **fields: Unpack[Fields]
    ) -> IncomingMessage:
        """Publish a question and return its answer. Set a limit with `asyncio.timeout`: nobody may answer.

        Raises Returned if no queue takes the question, Nacked, and ConnectionLost if the connection is lost meanwhile:
        the question may have been answered then. With `channel.rpc(resend=True)` it is asked again instead. Raises Closed if
        the block of the caller, its channel or connection is ended by another task.
        """
        if self._ended is not None:
            raise copy_of(self._ended)
        key = fields.setdefault("correlation_id", new_id())
        if key in self._waiting:
            raise ValueError(
                f"a call with correlation_id {key!r} waits for its answer already; leave it out, or choose another"
            )
        fields["reply_to"] = REPLY_TO
        fields.setdefault("delivery_mode", 1)
        call = self._waiting[key] = Call(exchange, routing_key, encode(fields), body)
        try:
            while self.channel.port_or_none() is None and not call.answer.done():
                await self.channel.wait()
            if not call.answer.done():
                call.ask(await self.channel.clear())
            return await call.answer
        finally:
            del self._waiting[key]
            call.forget()
            if not call.answer.cancel():
                forget(call.answer)  # this call may have had its error from the channel

    async def _read(self, consumer: Consumer) -> None:
        ended: AMQPError = Closed("the channel was closed by this program")
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
            ended = error
        self._end(ended, ended)

    def _end(self, told: AMQPError, later: AMQPError) -> None:
        """Tell the calls that wait, also for a connection, that no answer comes any more, and later calls why."""
        self._ended = later
        for call in self._waiting.values():
            call.forget()
            if not call.answer.done():
                call.answer.set_exception(copy_of(told))
        self.channel.connection.wake()

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
        self.channel.rpcs.add(self)
        self._reader = asyncio.create_task(self._read(self._consumer), name="kvitto rpc")
        self._reader._log_destroy_pending = False  # type: ignore[attr-defined]  # an early closed loop is told by `check`
        self._ended = None
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        assert self._consumer is not None and self._reader is not None
        self.channel.rpcs.discard(self)
        told = Closed("the block of channel.rpc() ended before the answer came; the question may have been executed")
        self._end(self._ended or told, AMQPError(NEEDS_BLOCK))
        self._reader.cancel()
        try:
            await asyncio.gather(self._reader, return_exceptions=True)
        finally:
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

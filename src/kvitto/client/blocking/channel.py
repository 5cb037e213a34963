"""A channel for threads, and what is used like one: stages and calls."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from kvitto.client.aio.channel import Channel
from kvitto.client.aio.errors import Closed
from kvitto.client.aio.message import DEFAULT, Fields, Message, encode, reply_to
from kvitto.client.aio.queue import Queue
from kvitto.client.aio.rpc import RPC
from kvitto.client.aio.stages import Stage
from kvitto.client.blocking.loop import Loop
from kvitto.client.blocking.messages import SyncMessage, Wrap
from kvitto.client.blocking.outbox import CLOSE_TIMEOUT_S, Closing, Outbox, Outboxes
from kvitto.client.blocking.queue import SyncExchange, SyncQueue
from kvitto.client.blocking.receipt import Receipt
from kvitto.client.blocking.stream import Stream
from kvitto.client.blocking.transaction import SyncTransaction
from kvitto.wire.tables import Table

T = TypeVar("T")


class SyncChannel(Closing):
    """A channel; see `Channel` for arguments and errors. Calls take `timeout_s`, and raise TimeoutError after it.

    `close`, or the end of `with`, first sends what was published without confirms, for up to 5 s, and raises PublishFailed if
    something was not sent.
    """

    def __init__(self, loop: Loop, channel: Channel, outboxes: Outboxes) -> None:
        self._loop = loop
        self._channel = channel
        self._outbox = Outbox(loop, channel, outboxes)
        self._outboxes = outboxes

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
        """Publish a message, and return when the broker has confirmed it. On a channel without confirms it returns when
        the message is handed over; if it cannot be sent, the next publish, `flush` or `close` raises the error."""
        if self._channel.confirms:
            send = partial(self._send, body, routing_key, exchange, mandatory, fields)
            try:
                self._loop.outcome(send, timeout_s)
            except TimeoutError:
                raise TimeoutError(
                    f"the broker has not confirmed the message within {timeout_s} s; it may have it all the same"
                ) from None
            return
        properties = encode(fields) if fields else DEFAULT
        self._outbox.put((exchange, routing_key, int(mandatory), properties, body), timeout_s)

    def _send(
        self, body: bytes, routing_key: str, exchange: str, mandatory: bool, fields: Fields, receipt: Receipt[None]
    ) -> None:
        """In the loop: publish with a confirm. A task does it if the publish has to wait for something, such as a new connection.

        It also waits for all messages without confirms that were published before it on this connection.
        """
        if receipt.done():
            return
        try:
            flush = None
            if not self._outboxes.sending:
                flush = self._channel.publish_for(receipt, body, routing_key, exchange, mandatory, fields)
            if flush is not None:
                self._loop.behind(flush)
            else:
                work = self._send_later(body, routing_key, exchange, mandatory, fields)
                receipt.follow(self._loop.loop.create_task(work))
        except Exception as error:  # noqa: BLE001 - the thread that waits raises it
            receipt.set_exception(error)

    async def _send_later(self, body: bytes, routing_key: str, exchange: str, mandatory: bool, fields: Fields) -> None:
        await self._outboxes.sent()
        await self._channel.publish(body, routing_key, exchange=exchange, mandatory=mandatory, **fields)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run in the loop what the channel does, behind what was published on it."""
        if self._outbox.waiting:
            start = time.monotonic()
            try:
                self._outbox.wait(timeout_s)
            except BaseException:
                work.close()
                raise
            if timeout_s is not None:
                timeout_s = max(timeout_s - (time.monotonic() - start), 0.0)
        return self._loop.run(work, timeout_s)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything published without confirms is on its way. Raise the error if something could not be sent."""
        self._outbox.flush(timeout_s)

    def publish_many(
        self,
        messages: Iterable[bytes | Message],
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool = False,
        **fields: Unpack[Fields],
    ) -> int:
        """Publish a stream of messages, and return their number when all are confirmed; see `Channel.publish_many`.

        The iterable is read in this thread, some thousand messages ahead of the confirms.
        """

        async def publish(chunk: Iterable[bytes | Message]) -> int:
            if self._channel.confirms:
                await self._outboxes.sent()
            return await self._channel.publish_many(
                chunk, routing_key, exchange=exchange, mandatory=mandatory, **fields
            )

        if self._outbox.waiting:
            self._outbox.flush()
        return Stream(self._loop, publish).publish(messages)

    def queue(
        self,
        name: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Table | None = None,
    ) -> SyncQueue:
        """Declare a queue, see `Channel.queue`."""
        work = self._channel.queue(
            name, passive=passive, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=arguments
        )
        return SyncQueue(self, self.run(work))

    def exchange(
        self,
        name: str,
        type: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Table | None = None,
    ) -> SyncExchange:
        """Declare an exchange, see `Channel.exchange`."""
        work = self._channel.exchange(
            name,
            type,
            passive=passive,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
        )
        return SyncExchange(self, self.run(work))

    def qos(self, prefetch: int) -> None:
        """Limit the unsettled messages of all consumers of this channel together; 0 is no limit."""
        self.run(self._channel.qos(prefetch))

    def reply(self, message: SyncMessage, body: bytes, **fields: Unpack[Fields]) -> None:
        """Answer a message that has `reply_to`, see `Channel.reply`."""
        key, fields = reply_to(message.incoming, fields)
        self.publish(body, key, **fields)

    def rpc(self, *, resend: bool = False) -> SyncRPC:
        """Return a caller, see `Channel.rpc`: `with channel.rpc() as rpc: answer = rpc.call(b"question", "queue")`."""
        return SyncRPC(self, self._channel.rpc(resend=resend))

    def transaction(self) -> SyncTransaction:
        """`with channel.transaction():`, see `Channel.transaction`. Use the channel from one thread meanwhile."""
        return SyncTransaction(self)

    def stage(self, writer: str, batch: int, *, task: str = "1", commit: bool = True) -> SyncStage:
        """Return a stage, see `Channel.stage`: `with channel.stage("import", 7) as stage:`."""
        return SyncStage(self._loop, self._channel.stage(writer, batch, task=task, commit=commit))

    def commit_stages(self, writer: str, batch: int, tasks: Sequence[str], *, timeout_s: float | None = None) -> bool:
        """Commit the stages of these tasks, see `Channel.commit_stages`. After TimeoutError call it again."""
        return self.run(self._channel.commit_stages(writer, batch, tasks), timeout_s)

    def last_batch(self, writer: str) -> int | None:
        """Return the number of the last batch that this writer has committed, or None if it has committed none."""
        return self.run(self._channel.last_batch(writer))

    def claim_writer(self, writer: str, task: str) -> int | None:
        """Take a writer over for a task, see `Channel.claim_writer`."""
        return self.run(self._channel.claim_writer(writer, task))

    def forget_writer(self, writer: str) -> None:
        """Forget a writer, see `Channel.forget_writer`."""
        self.run(self._channel.forget_writer(writer))

    def wrap(self, queue: Queue) -> Wrap:
        """Return what makes a message for the program of one of this queue."""
        return SyncMessage

    def _close(self) -> Exception | None:
        if self._loop.ended:
            return None
        self._loop.check_waiting()
        try:
            with contextlib.suppress(Closed):  # the close of the connection tells what was not sent
                return self._loop.run(self._outbox.finish(CLOSE_TIMEOUT_S))
            return None
        finally:
            with contextlib.suppress(Closed, TimeoutError):  # a broker that does not read now reads it later
                self._loop.run(self._channel.close(), CLOSE_TIMEOUT_S)


class SyncStage:
    """A stage, see `Stage`. Any number of threads may publish into it."""

    def __init__(self, loop: Loop, stage: Stage) -> None:
        self._loop = loop
        self._stage = stage

    @property
    def committed(self) -> bool:
        """Whether the broker has committed this batch or a later one. If it had done so when the stage was opened, nothing is sent."""
        return self._stage.committed

    @property
    def fresh(self) -> bool | None:
        """Whether the commit of this stage has published the batch; False if an earlier commit had. It is None before the commit."""
        return self._stage.fresh

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
        """Publish into the stage, see `Stage.publish`."""
        work = self._stage.publish(body, routing_key, exchange=exchange, mandatory=mandatory, **fields)
        self._loop.run(work, timeout_s)

    def publish_many(
        self,
        messages: Iterable[bytes | Message],
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool = False,
        **fields: Unpack[Fields],
    ) -> int:
        """Publish a stream of messages into the stage, as `Stage.publish_many` does. The iterable is read in this thread, some
        thousand messages ahead of the confirms."""
        if self._stage.committed:
            return 0

        def publish(chunk: Iterable[bytes | Message]) -> Coroutine[Any, Any, int]:
            return self._stage.publish_many(chunk, routing_key, exchange=exchange, mandatory=mandatory, **fields)

        return Stream(self._loop, publish).publish(messages)

    def commit(self, *, timeout_s: float | None = None) -> bool:
        """Commit this stage, see `Stage.commit`. After TimeoutError call it again."""
        return self._loop.run(self._stage.commit(), timeout_s)

    def __enter__(self) -> Self:
        self._loop.run(self._stage.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None or not self._loop.ended:
            self._loop.run(self._stage.__aexit__(kind, error, tb))


class SyncRPC:
    """Calls and their answers, see `RPC`. Any number of threads may call at once."""

    def __init__(self, channel: SyncChannel, rpc: RPC) -> None:
        self._channel = channel
        self._loop = channel._loop
        self._rpc = rpc
        self._wrap = channel.wrap(rpc.answers)

    def call(
        self,
        body: bytes,
        routing_key: str,
        *,
        exchange: str = "",
        timeout_s: float | None = None,
        **fields: Unpack[Fields],
    ) -> SyncMessage:
        """Publish a question and return its answer. Set `timeout_s`: nobody may answer."""
        answer = self._channel.run(self._rpc.call(body, routing_key, exchange=exchange, **fields), timeout_s)
        return self._wrap(answer, self._loop)

    def __enter__(self) -> Self:
        self._loop.run(self._rpc.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if not self._loop.ended:
            self._loop.run(self._rpc.__aexit__(None, None, None))

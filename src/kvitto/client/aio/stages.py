"""Publishes batches that become visible at once, and only once. The broker's part is its class `stage` (docs/protocol-extensions.md)."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, Unpack

from kvitto.client.aio.errors import Closed, CommitUnknown, ManyFailed, Nacked, Returned
from kvitto.client.aio.message import Fields, Message
from kvitto.client.aio.ranges import need
from kvitto.client.errors import AMQPError, ConnectionLost
from kvitto.wire import methods as m

if TYPE_CHECKING:
    from kvitto.client.aio.channel import Channel

NONE_YET = (1 << 64) - 1
CAPABILITY = "kvitto_stage"
WHAT = "publish into stages"


class Stage:
    """The messages that one task adds to a batch. `Channel.stage` returns it: `async with channel.stage("import", 7) as stage:`.

    It has a channel of its own, which does not outlive its connection: what comes after a reconnect would not be in
    the stage. If it is lost, begin the batch again, which empties the stage.
    """

    def __init__(self, channel: Channel, writer: str, batch: int, task: str, commit: bool) -> None:
        if not 0 <= batch < NONE_YET:
            raise ValueError(f"a batch is a number from 0 to 2^64 - 2, not {batch}")
        check_task(task)
        self.writer = writer
        self.batch = batch
        self.task = task
        self.committed = False
        """Whether the broker has committed this batch or a later one. If it had done so when the stage was opened, nothing is sent."""
        self.fresh: bool | None = None
        """Whether the commit of this stage has published the batch; False if an earlier commit had. It is None before the commit."""
        self._outer = channel
        self._commit = commit
        self._channel: Channel | None = None
        self._under_way = 0
        self._unknown: BaseException | None = None

    async def publish(
        self,
        body: bytes,
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool = False,
        **fields: Unpack[Fields],
    ) -> None:
        """Publish into the stage, and return when the message is durable there. Arguments and errors are those of
        `Channel.publish`. Nothing is sent if the batch is committed already."""
        if not self.committed:
            channel = self._open()
            with self._noted():
                await channel.publish(body, routing_key, exchange=exchange, mandatory=mandatory, **fields)

    async def publish_many(
        self,
        messages: Iterable[bytes | Message] | AsyncIterable[bytes | Message],
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool = False,
        **fields: Unpack[Fields],
    ) -> int:
        """Publish a stream of messages into the stage, as `Channel.publish_many` does. If the batch is committed already, no message
        is taken, and 0 is returned."""
        if self.committed:
            return 0
        channel = self._open()
        with self._noted():
            return await channel.publish_many(messages, routing_key, exchange=exchange, mandatory=mandatory, **fields)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Run a publish. If it ends so that nobody knows whether the message is in the stage, remember that."""
        self._under_way += 1
        try:
            yield
        except (Nacked, Returned, ValueError, TypeError):
            raise
        except ManyFailed as error:
            self._unknown = next((each for _, each in error.failed if not isinstance(each, Nacked | Returned)), None)
            raise
        except BaseException as error:
            self._unknown = error
            raise
        finally:
            self._under_way -= 1

    def _open(self) -> Channel:
        if self._channel is None:
            raise Closed("the stage is not open: publish inside of `async with channel.stage(...) as stage:`")
        return self._channel

    async def commit(self) -> bool:
        """Commit this stage alone, and drop the writer's other stages up to this batch, as `Channel.commit_stages` does.

        Raises AMQPError, and commits nothing, if a publish is under way, or was cancelled or lost so that the stage may
        have the message or not.
        """
        if self.committed:
            self.fresh = bool(self.fresh)
            return self.fresh
        name = f"batch {self.batch} of writer {self.writer!r}"
        if self._under_way:
            raise AMQPError(f"{name} is not committed: {self._under_way} publishes into its stage are under way")
        if self._unknown is not None:
            raise AMQPError(
                f"{name} is not committed: whether its stage has all messages is unknown; begin the batch again"
            ) from self._unknown
        await self._close()  # nothing may be published behind the commit
        self.fresh = await commit_stages(self._outer, self.writer, self.batch, [self.task])
        self.committed = True
        return self.fresh

    async def __aenter__(self) -> Self:
        connection = self._outer.connection
        while True:
            await need(connection, CAPABILITY, WHAT)
            channel = self._channel = await connection.single_channel(intercepted=True)
            try:
                request = m.StageOpen(self.writer, self.batch, self.task)
                last = last_of((await channel.call(request, m.StageOpenOk)).last)
            except ConnectionLost:
                if not connection.reconnects:
                    raise
            except BaseException:
                await self._close()
                raise
            else:
                self.committed = last is not None and last >= self.batch
                return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        try:
            if error is None and self._commit:
                await self.commit()
        finally:
            await self._close()

    async def _close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


async def commit_stages(channel: Channel, writer: str, batch: int, tasks: Sequence[str]) -> bool:
    """Do what `Channel.commit_stages` says."""
    for task in tasks:
        check_task(task)
    connection = channel.connection
    request = m.StageCommit(writer, batch, "\n".join(tasks).encode())
    asked = False
    while True:
        try:
            await need(connection, CAPABILITY, WHAT)
            port = await channel.port()
            answer = port.call(request, m.StageCommitOk)
            asked = True
            return bool((await answer).fresh)
        except (ConnectionLost, Closed) as error:
            if isinstance(error, ConnectionLost) and connection.reconnects and channel.closed is None:
                continue
            if not asked:
                raise
            raise CommitUnknown(
                f"batch {batch} of writer {writer!r} may be committed or not: {error}; commit it again"
            ) from error


async def last_batch(channel: Channel, writer: str) -> int | None:
    """Do what `Channel.last_batch` says."""
    await need(channel.connection, CAPABILITY, WHAT)
    return last_of((await channel.call(m.StageLast(writer), m.StageLastOk)).last)


async def claim_writer(channel: Channel, writer: str, task: str) -> int | None:
    """Do what `Channel.claim_writer` says."""
    check_task(task)
    await need(channel.connection, CAPABILITY, WHAT)
    return last_of((await channel.call(m.StageClaim(writer, task), m.StageClaimOk)).last)


async def forget_writer(channel: Channel, writer: str) -> None:
    """Do what `Channel.forget_writer` says."""
    await need(channel.connection, CAPABILITY, WHAT)
    await channel.call(m.StageForget(writer), m.StageForgetOk)


def last_of(last: int) -> int | None:
    return None if last == NONE_YET else last


def check_task(task: str) -> None:
    if not task or "\n" in task:
        raise ValueError(f"a task is a name without newlines, not {task!r}")

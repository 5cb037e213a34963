"""One shovel: it connects, carries, and begins again after every failure, until it is stopped or has carried what it should.

Each state has a reason in words. A failure costs a pause that doubles from `reconnect-delay` on; a load that arrived ends
the doubling.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from kvitto.client.aio import Channel, Connection, NotSupported, connect
from kvitto.client.errors import AMQPError, ChannelClosed
from kvitto.shovel.load import LOAD_MAX, Dress, Load, Source, Target
from kvitto.shovel.ranges import RangeSource, group_of
from kvitto.shovel.settings import Settings, is_local, properties_of, without_password
from kvitto.shovel.sources import QueueSource
from kvitto.shovel.targets import ConfirmTarget, StageTarget
from kvitto.wire.properties import split

log = logging.getLogger("kvitto.shovel")

PAUSE_MAX_S = 60.0
FIRST_PAUSE_S = 0.1
"""The pause if `reconnect-delay` is shorter."""
POLL_S = 1.0
GRACE_S = 2.0
OPEN_S = 60.0
"""The longest time from the login to the first message. Brokers open channels, declare and register consumers in it."""
CONFIRM_S = 30.0
"""A target that has confirmed nothing for so long is named as what the shovel waits for."""
WRITER = "kvitto.shovel"


@dataclass
class Status:
    """What a shovel does. `reason` says why it does not run, or why it did not last."""

    state: str = "starting"
    reason: str = ""
    moved: int = 0
    rejected: int = 0
    """Messages that the destination has not taken after all attempts, dead-lettered at the source."""
    again: int = 0
    """The number of messages that the source had delivered before. The destination may have them twice."""
    failures: int = 0
    remaining: int | None = None
    """The messages after which the shovel ends by `src-delete-after`."""
    since: float = 0.0


T = TypeVar("T")
Tell = Callable[[Status], None]
LocalUri = Callable[[str], str]
"""Returns the URI of this broker, given one for which `is_local` is true."""


class Shovel:
    """`run` carries until it is cancelled, or returns when the shovel has done its work (`src-delete-after`)."""

    def __init__(self, vhost: str, name: str, settings: Settings, local: LocalUri, tell: Tell) -> None:
        self.vhost = vhost
        self.name = name
        self.settings = settings
        self.status = Status(since=time.time())
        self._local = local
        self._tell = tell

    async def run(self) -> None:
        pause_s = first_s = max(self.settings.reconnect_s, FIRST_PAUSE_S)
        while True:
            moved = self.status.moved
            self._say("starting", self.status.reason)
            try:
                await self._once()
                self._say("terminated", "it has carried what it should")
                return
            except (AMQPError, OSError, NotSupported, ValueError) as error:
                if was_cancelled():  # what failed is the end itself, such as an ack to a source that has died
                    raise asyncio.CancelledError from error
                self.status.failures += 1
                if self.status.moved > moved:
                    pause_s = first_s
                self._say("terminated", f"{error}")
            except Exception as error:
                if was_cancelled():
                    raise asyncio.CancelledError from error
                log.exception("shovel '%s' in vhost '%s' has met a bug", self.name, self.vhost)
                self.status.failures += 1
                self._say("terminated", f"a bug in Kvitto: {type(error).__name__}")
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))
            pause_s = min(2 * pause_s, max(PAUSE_MAX_S, first_s))

    def _say(self, state: str, reason: str = "") -> None:
        if (state, reason) != (self.status.state, self.status.reason):
            self.status.state, self.status.reason, self.status.since = state, reason, time.time()
        self._tell(self.status)

    async def _once(self) -> None:
        """Connect, and carry until something fails or all is done."""
        settings = self.settings
        async with contextlib.AsyncExitStack() as stack:
            source = await self._connect(settings.src_uris)
            stack.push_async_callback(source.close)
            if settings.webhook is not None:
                from kvitto.shovel.webhook import carry_to_webhook  # most shovels need no HTTP and no TLS in memory

                await carry_to_webhook(self, await opened(self._source(source), "the source"))
                return
            target = await self._connect(settings.dest_uris)
            stack.push_async_callback(target.close)
            await self._carry(*await opened(self._ends(source, target), "the source or the target"))

    async def _connect(self, uris: tuple[str, ...]) -> Connection:
        name = f"Shovel {self.name} in vhost {self.vhost}"
        return await connect([self._local(uri) if is_local(uri) else uri for uri in uris], name=name, reconnect=False)

    async def _ends(self, source: Connection, target: Connection) -> tuple[Source, Target]:
        """Open the source and the target, and return them."""
        settings = self.settings
        if settings.dest_queue:
            await declared(target, settings.dest_queue, settings.dest_queue_args)
        dress = self.dress()
        if settings.ack_mode != "on-commit":
            confirming = await ConfirmTarget.open(target, dress, mandatory=bool(settings.dest_queue))
            return await self._source(source), confirming
        await declared(source, settings.src_queue, settings.src_queue_args)
        own = group_of(WRITER, f"{self.vhost}\0{self.name}")
        ranges = await RangeSource.open(source, settings.src_queue, own)
        stage = await StageTarget.open(target, f"{own}/{ranges.incarnation}", dress)
        await ranges.skip(await stage.last())
        return ranges, stage

    async def _source(self, source: Connection) -> QueueSource:
        settings, webhook = self.settings, self.settings.webhook
        prefetch = settings.prefetch
        if webhook is not None:
            prefetch = min(prefetch, 2 * webhook.batch * webhook.concurrency)
        if settings.src_queue:
            await declared(source, settings.src_queue, settings.src_queue_args)
            if webhook is not None:
                return await QueueSource.open_with_offsets(
                    source, settings.src_queue, prefetch, settings.src_consumer_args
                )
            return await QueueSource.open(source, settings.src_queue, prefetch, settings.src_consumer_args)
        channel = await source.channel()
        queue = await channel.queue(exclusive=True)
        await queue.bind(settings.src_exchange, settings.src_exchange_key)
        return await QueueSource.open(source, queue.name, prefetch, settings.src_consumer_args)

    def dress(self) -> Dress:
        """Return what the settings change in each message."""
        settings = self.settings
        dress = Dress(exchange=settings.dest_exchange, routing_key=settings.dest_exchange_key)
        if settings.dest_queue:
            dress.exchange, dress.routing_key = "", settings.dest_queue
        if settings.forward_headers:
            dress.forwarded = self._forwarded()
        if settings.publish_properties:
            dress.fields = split(properties_of(settings.publish_properties).encode())
        dress.timestamps = settings.timestamp_header
        return dress

    def _forwarded(self) -> dict[str, Any]:
        settings = self.settings
        found: dict[str, Any] = {
            "shovel-type": "dynamic",
            "shovel-vhost": self.vhost,
            "shovel-name": self.name,
            "src-uri": without_password(settings.src_uris[0]),
            "dest-uri": without_password(settings.dest_uris[0]),
        }
        for key, value in (
            ("src-queue", settings.src_queue),
            ("src-exchange", settings.src_exchange),
            ("dest-queue", settings.dest_queue),
            ("dest-exchange", settings.dest_exchange or ""),
        ):
            if value:
                found[key] = value
        return found

    async def _carry(self, source: Source, target: Target) -> None:
        self.begin(source)
        self._say("running")
        while not self.done():
            load = await source.take(self.most(LOAD_MAX), POLL_S)
            if not load.messages:
                continue
            await self._put(source, target, load)

    def begin(self, source: Source) -> None:
        """Note how many messages there are to carry, in the first attempt."""
        after = self.settings.delete_after
        if after != "never" and self.status.remaining is None:
            assert isinstance(source, QueueSource)
            self.status.remaining = source.found if after == "queue-length" else after

    def most(self, count: int) -> int:
        return count if self.status.remaining is None else min(count, self.status.remaining)

    def done(self) -> bool:
        return self.status.remaining is not None and self.status.remaining <= 0

    def arrived(self, load: Load) -> None:
        """Note that the destination has a load."""
        self.arrived_count(len(load.messages), sum(message.redelivered for message in load.messages))

    def arrived_count(self, count: int, again: int = 0) -> None:
        """Note that `count` messages have arrived at the destination. The source had delivered `again` of them before."""
        status = self.status
        status.moved += count
        status.again += again
        if status.remaining is not None:
            status.remaining -= count
        self._say("running")

    def rejected(self, reason: str) -> None:
        """Note that a message was rejected at the source."""
        self.status.rejected += 1
        if self.status.remaining is not None:
            self.status.remaining -= 1
        self._say("running", f"a message was rejected: {reason}")

    def blocked(self, reason: str) -> None:
        """Note that the destination does not take messages now."""
        self._say("blocked", reason)

    async def _put(self, source: Source, target: Target, load: Load) -> None:
        """Put a load and settle it, and say why if that takes long. A shovel that is stopped meanwhile waits a moment, so that the
        load does not come again."""
        task, began_s = asyncio.ensure_future(target.put(load)), time.monotonic()
        try:
            while not (await asyncio.wait([task], timeout=POLL_S))[0]:
                source.check()
                if target.waits:
                    self.blocked(target.waits)
                elif time.monotonic() - began_s >= CONFIRM_S:
                    self.blocked(f"the target takes its time: {len(load.messages)} messages wait for its confirm")
        except asyncio.CancelledError:
            await asyncio.wait([task], timeout=GRACE_S)
            if not task.done() or task.exception() is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                raise
            await source.settle(load)
            raise
        except BaseException:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        task.result()
        await source.settle(load)
        self.arrived(load)


def was_cancelled() -> bool:
    """Return whether this task was cancelled. It has to end then, although another exception may have replaced the CancelledError."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def opened(ends: Awaitable[T], who: str) -> T:
    """Wait for the ends of a shovel, within OPEN_S: a connection with heartbeats may live for ever without an answer."""
    try:
        async with asyncio.timeout(OPEN_S):
            return await ends
    except TimeoutError:
        raise AMQPError(f"{who} has accepted the login, but not answered within {OPEN_S:g} s") from None


async def declared(connection: Connection, name: str, arguments: dict[str, Any]) -> None:
    """Declare a durable queue if there is none of this name."""
    channel: Channel = await connection.channel()
    try:
        await channel.queue(name, passive=True)
        await channel.close()
        return
    except ChannelClosed as error:
        if error.code != 404:
            raise
    channel = await connection.channel()
    await channel.queue(name, durable=True, arguments=arguments)
    await channel.close()

"""Moves the messages of each queue, and goes on after a lost connection. Counts are compared when a queue is empty."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Callable

import kvitto
from kvitto.cli.migrate.plan import TEMPORARY, Item, Plan
from kvitto.client.aio import Channel, Connection, Exchange, PublishFailed, Queue
from kvitto.client.errors import AMQPError, ChannelClosed, ConnectFailed, ConsumerCancelled
from kvitto.shovel.carry import Pace, carry
from kvitto.shovel.load import LOAD_BYTES, UNSURE_MAX, Dress, Load, Refused
from kvitto.shovel.pair import Pair, open_pair
from kvitto.shovel.ranges import RangeSource, group_of
from kvitto.shovel.sources import stream_end
from kvitto.shovel.targets import StageTarget

BACKOFF_S, BACKOFF_MAX_S = 0.2, 5.0
PATIENCE_S = 600.0
"""The time for which a broker that does not answer is asked again."""
STILL_S = 5.0
"""A queue that has messages and gives none for so long gives them to somebody else."""
ARRIVE_S = 30.0
"""The time for which the target's count may be too low: Kvitto moves what was committed in pieces."""
WRITER = "kvitto.migrate"
PREFETCH = 4 * UNSURE_MAX


class GoneOn(Exception):
    """A broker did not come back in time."""


class Mover:
    """Moves the queues of a plan one after the other, over one connection to each broker and virtual host."""

    def __init__(self, plan: Plan, pace: Pace, age_from_timestamp: bool, on_load: Callable[[Item], None]) -> None:
        self._plan = plan
        self._pace = pace
        self._age_from_timestamp = age_from_timestamp
        self._on_load = on_load
        self._connections: dict[str, tuple[Connection, Connection]] = {}
        self._worked_at = time.monotonic()

    async def run(self) -> None:
        """Move everything. What could not be moved has its reason in the item."""
        try:
            for item in self._plan.items:
                if item.moves:
                    await self._move(item)
        finally:
            await self._close()

    async def _move(self, item: Item) -> None:
        dress = Dress(
            exchange=exchange_of(item.name), default_to=item.name, age_from_timestamp=self._age_from_timestamp
        )
        self._worked_at = time.monotonic()
        attempt = 0
        while True:
            before = item.tally.moved
            try:
                await Move(item, dress, self._pace, self._on_load, self._group(item)).run(
                    *await self._connect(item.vhost)
                )
                break
            except Refused as error:
                item.problem = str(error)
                break
            except (AMQPError, OSError) as error:
                if item.tally.moved > before:
                    attempt, self._worked_at = 0, time.monotonic()
                problem = final(error)
                if problem is None and time.monotonic() - self._worked_at > PATIENCE_S:
                    problem = f"no progress for {PATIENCE_S:g} s: {error}; run the same command again"
                if problem is not None:
                    item.problem = problem
                    break
                item.tally.interrupted()
                await self._close()
                await asyncio.sleep(min(BACKOFF_S * 2**attempt, BACKOFF_MAX_S) * random.uniform(0.5, 1.0))
                attempt += 1
        if item.problem:
            item.state = "left"
            await self._close()
        explain(item, dress)

    def _group(self, item: Item) -> str:
        """Return the name under which a queue is reserved: another one for each new broker."""
        address = self._plan.target.address
        place = f"{address.host}:{address.port}/{self._plan.target_vhost(item.vhost)}"
        return group_of(WRITER, place)

    async def _connect(self, vhost: str) -> tuple[Connection, Connection]:
        if vhost not in self._connections:
            await self._close()
            source = await kvitto.connect(self._plan.source.uri_of(vhost), name="kvitto migrate", reconnect=False)
            try:
                uri = self._plan.target.uri_of(self._plan.target_vhost(vhost))
                target = await kvitto.connect(uri, name="kvitto migrate", reconnect=False)
            except BaseException:
                await source.close()
                raise
            self._connections[vhost] = source, target
        return self._connections[vhost]

    async def _close(self) -> None:
        connections, self._connections = self._connections, {}
        for pair in connections.values():
            for connection in pair:
                await connection.close()


class Move:
    """One attempt at one queue, over two connections that live."""

    def __init__(self, item: Item, dress: Dress, pace: Pace, on_load: Callable[[Item], None], group: str) -> None:
        self._group = group
        self._item = item
        self._dress = dress
        self._pace = pace
        self._on_load = on_load

    async def run(self, source: Connection, target: Connection) -> None:
        item = self._item
        if not item.stream and await self._count(source) == 0 and not await self._begun(target):
            item.state = "empty"
            return
        channel = await target.channel()
        try:
            queue = await channel.queue(item.name, passive=True)
        except ChannelClosed as error:
            raise Refused(
                f"the new broker has no such queue ({error.text}): declare it, or bring the definitions"
            ) from error
        if item.tally.moved == 0 and item.tally.interruptions == 0:
            item.before = queue.message_count
        exchange = await channel.exchange(exchange_of(item.name), "fanout", durable=True)
        await queue.bind(exchange)
        pair = await open_pair(
            source,
            target,
            item.name,
            self._dress,
            writer=WRITER,
            group=self._group,
            stream=item.stream,
            prefetch=prefetch(item),
        )
        item.once = pair.once
        item.state = "moves"
        try:
            await self._carry(source, pair)
            await self._compare(channel, exchange, pair)
        finally:
            await pair.source.close()
            await pair.target.close()
        await channel.close()

    async def _begun(self, target: Connection) -> bool:
        """Whether an earlier run has ended before its last step."""
        channel = await target.channel()
        try:
            await channel.exchange(exchange_of(self._item.name), passive=True)
        except ChannelClosed:
            return False
        await channel.close()
        return True

    async def _count(self, source: Connection) -> int:
        channel = await source.channel()
        try:
            return (await channel.queue(self._item.name, passive=True)).message_count
        finally:
            await channel.close()

    async def _carry(self, source: Connection, pair: Pair) -> None:
        item, tally = self._item, self._item.tally
        end = 0
        if item.stream:
            end = pair.source.next if isinstance(pair.source, RangeSource) else await stream_end(source, item.name)
        still_since = time.monotonic()
        while True:
            moved = tally.moved
            await carry(pair, tally, self._pace, on_load=self._loaded)
            if item.stream:
                left = end > 0 and not await self._reached(pair, end)
            else:
                left = await pair.source.left() > 0
            if not left:
                return
            if tally.moved > moved:
                still_since = time.monotonic()
            elif time.monotonic() - still_since > STILL_S:
                raise Refused("it has messages and gives none: another consumer is the active one, stop it")

    async def _reached(self, pair: Pair, end: int) -> bool:
        """Whether a stream was read up to the offset that was its end when this began."""
        target = pair.target
        last = getattr(target, "last", None)
        return last is not None and await last() >= end

    def _loaded(self, load: Load) -> None:
        self._on_load(self._item)

    async def _compare(self, channel: Channel, exchange: Exchange, pair: Pair) -> None:
        """Compare the counts, and take away what served to move."""
        item = self._item
        if isinstance(pair.target, StageTarget) and not await pair.target.arrived(ARRIVE_S):
            item.problem = (
                f"messages are committed at the new broker and not in their queue after {ARRIVE_S:g} s: is it full? They"
                f" come by exchange '{exchange.name}', which has to stay until then"
            )
            return
        queue: Queue = await channel.queue(item.name, passive=True)
        item.after, item.state = queue.message_count, "moved"
        await exchange.delete()
        if item.stream:
            item.notes.append("a stream keeps its messages at the old broker, too")
            return
        if isinstance(pair.target, StageTarget):
            await pair.target.forget()
        expected = item.before + item.tally.moved
        if queue.consumer_count:
            item.notes.append(
                f"the counts are not compared: {queue.consumer_count} consumers take messages at the new broker"
            )
        elif item.after < expected:
            item.problem = f"the new broker has {item.after} messages and should have {expected}: look at its length limits and TTLs"


def exchange_of(queue: str) -> str:
    """Return the name of the exchange that brings messages into one queue, with their routing keys and CC as they are."""
    name = TEMPORARY + queue
    return name if len(name.encode()) <= 255 else TEMPORARY + hashlib.sha256(queue.encode()).hexdigest()


def prefetch(item: Item) -> int:
    """Return a prefetch count with which the messages on their way fit into memory."""
    return PREFETCH if item.bytes_each == 0 else max(2, min(PREFETCH, 2 * LOAD_BYTES // item.bytes_each))


def final(error: Exception) -> str | None:
    """Return what to do about an error with which trying again does not help, None if it may help."""
    if isinstance(error, ConnectFailed) and error.code:
        return str(error)
    if isinstance(error, ChannelClosed):
        if error.code == 406 and "user_id" in error.text:
            return f"{error}; give the user of the new broker the tag impersonator, and run the same command again"
        return str(error)
    if isinstance(error, PublishFailed) and isinstance(error.__cause__, ChannelClosed):
        return final(error.__cause__)
    if isinstance(error, ConsumerCancelled):
        return str(error)
    return None


def explain(item: Item, dress: Dress) -> None:
    """Note what the new broker does not know of the messages."""
    if dress.counted:
        item.notes.append(f"{dress.counted} messages had been delivered before: their delivery counts begin anew")
    if dress.expiring:
        how = "was shortened by their age, if they have a timestamp" if dress.age_from_timestamp else "begins anew"
        item.notes.append(f"{dress.expiring} messages have an expiration, which {how}")

"""Moves the messages of each queue, and goes on after a lost connection. Counts are compared when a queue is empty."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import kvitto
from kvitto.base.table import counted
from kvitto.cli.migrate.plan import TEMPORARY, Item, Plan
from kvitto.cli.migrate.routes import Known
from kvitto.client.aio import Channel, Connection, Exchange, PublishFailed, Queue
from kvitto.client.errors import AMQPError, ChannelClosed, ConnectFailed, ConsumerCancelled
from kvitto.shovel.carry import Pace, carry
from kvitto.shovel.load import LOAD_BYTES, UNSURE_MAX, Dress, Load, Refused
from kvitto.shovel.marked import MarkedTarget
from kvitto.shovel.pair import Pair, open_pair
from kvitto.shovel.ranges import RangeSource, group_of
from kvitto.shovel.sources import stream_end
from kvitto.shovel.targets import StageTarget, why_blocked

BACKOFF_S, BACKOFF_MAX_S = 0.2, 5.0
PATIENCE_S = 600.0
"""The time for which a broker that does not answer is asked again."""
STILL_S = 5.0
"""A queue that has messages and gives none for so long gives them to somebody else."""
ARRIVE_S = 30.0
"""The time for which the target's count may be too low: Kvitto moves what was committed in pieces."""
END_S = 2.0
"""The longest time that the end of the connections may take."""
BLOCKED_END_S = 0.2
"""The same for a broker that blocks publishers: it reads nothing, so it does not answer."""
POLL_S = 1.0
"""The time between two looks at whether the new broker takes messages."""
BUSY = (
    "an earlier run is still connected to the new broker, which ends its connection later if it blocks publishers, or "
    "another run moves this queue"
)
WRITER = "kvitto.migrate"
PREFETCH = 4 * UNSURE_MAX


class PatienceOver(Exception):
    """A broker was away, or took no messages, for PATIENCE_S."""


@dataclass
class Wait:
    """What the command waits for, and how long it still will."""

    why: str
    left_s: float

    def __str__(self) -> str:
        return f"waits, for {self.left_s:.0f} s more at most: {self.why}"


class Mover:
    """Moves the queues of a plan one after the other, over one connection to each broker and virtual host."""

    def __init__(
        self,
        plan: Plan,
        pace: Pace,
        age_from_timestamp: bool,
        on_load: Callable[[Item], None],
        on_wait: Callable[[Item, Wait], None],
    ) -> None:
        self._plan = plan
        self._pace = pace
        self._age_from_timestamp = age_from_timestamp
        self._on_load = on_load
        self._on_wait = on_wait
        self._connections: dict[str, tuple[Connection, Connection]] = {}
        self._routes: dict[str, Known] = {}
        self._worked_at = time.monotonic()

    async def run(self) -> None:
        """Move everything. What could not be moved has its reason in the item."""
        left = [item for item in self._plan.items if item.moves]
        self._worked_at = time.monotonic()
        try:
            while left:
                await self._move(left[0])
                del left[0]
        except PatienceOver as error:
            for item in left:
                item.problem, item.state = f"{error}; run the same command again", "left"
        finally:
            await self._close()

    async def _move(self, item: Item) -> None:
        dress = Dress(exchange=exchange_of(item.name), age_from_timestamp=self._age_from_timestamp)
        attempt = 0
        while True:
            before = item.tally.moved
            try:
                source, target = await self._connect(item.vhost)
                self._direct(item, dress)
                await self._patiently(Move(item, dress, self._pace, self._on_load, self._group(item)), source, target)
                self._worked_at = time.monotonic()
                break
            except Refused as error:
                item.problem = str(error)
                break
            except (AMQPError, OSError) as error:
                if item.tally.moved > before:
                    attempt, self._worked_at = 0, time.monotonic()
                item.problem = final(error) or ""
                if item.problem:
                    break
                self._waits(item, str(error))
                item.tally.interrupted()
                await self._close()
                await asyncio.sleep(min(BACKOFF_S * 2**attempt, BACKOFF_MAX_S) * random.uniform(0.5, 1.0))
                attempt += 1
        if item.problem:
            item.state = "left"
            await self._close()
        explain(item, dress)

    async def _patiently(self, move: Move, source: Connection, target: Connection) -> None:
        """Move the messages of a queue. While the new broker takes none, say why."""
        item, start = move.item, move.item.tally.moved
        moved, refused = start, 0
        task = asyncio.ensure_future(move.run(source, target))
        try:
            while not (await asyncio.wait([task], timeout=POLL_S))[0]:
                self._direct(item, move.dress)
                why = move.waits or why_blocked(target)
                # each attempt begins with nothing refused, and with no reason to wait: that alone is no progress
                if item.tally.moved > moved or 0 < move.refused < refused or (moved > start and not why):
                    self._worked_at = time.monotonic()
                moved, refused = item.tally.moved, move.refused
                if why:
                    self._waits(item, why)
        except BaseException:
            task.cancel()
            await (
                self._close()
            )  # the task waits for answers at its end, too, which a broker that blocks publishers does not give
            await asyncio.wait([task], timeout=END_S)
            if task.done() and not task.cancelled():
                task.exception()  # asyncio would print one that nobody has asked for
            raise
        task.result()

    def _direct(self, item: Item, dress: Dress) -> None:
        """Let messages keep the exchanges that lead to their queue only, as the new broker's bindings are now."""
        dress.direct = {("", item.name)} | self._routes[item.vhost].to(item.name)

    def _waits(self, item: Item, why: str) -> None:
        """Tell the user what the command waits for. Raise PatienceOver if it has waited too long."""
        left_s = self._worked_at + PATIENCE_S - time.monotonic()
        if left_s < 0:
            raise PatienceOver(f"no progress for {PATIENCE_S:g} s: {why}")
        self._on_wait(item, Wait(why, left_s))

    def _group(self, item: Item) -> str:
        """Return the name under which a queue is reserved: another one for each new broker."""
        address = self._plan.target.address
        place = f"{address.host}:{address.port}/{self._plan.target_vhost(item.vhost)}"
        return group_of(WRITER, place)

    async def _connect(self, vhost: str) -> tuple[Connection, Connection]:
        if vhost not in self._connections:
            await self._close()
            wanted = self._plan.target_vhost(vhost)
            self._routes = {vhost: Known(self._plan.target.api, wanted)}
            await self._routes[vhost].ask()
            source = await kvitto.connect(self._plan.source.uri_of(vhost), name="kvitto migrate", reconnect=False)
            try:
                uri = self._plan.target.uri_of(wanted)
                target = await kvitto.connect(uri, name="kvitto migrate", reconnect=False)
            except BaseException:
                await end(source)
                raise
            self._connections[vhost] = source, target
        return self._connections[vhost]

    async def _close(self) -> None:
        connections, self._connections = self._connections, {}
        await asyncio.gather(*(end(each) for pair in connections.values() for each in pair))


async def end(connection: Connection) -> None:
    """Close a connection, which ends in any case."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S if connection.blocked is None else BLOCKED_END_S):
            await connection.close()


class Move:
    """One attempt at one queue, over two connections that live."""

    def __init__(self, item: Item, dress: Dress, pace: Pace, on_load: Callable[[Item], None], group: str) -> None:
        self.item = item
        self._group = group
        self._pair: Pair | None = None
        self.dress = dress
        self._pace = pace
        self._on_load = on_load

    @property
    def waits(self) -> str:
        """Why the new broker takes no messages now, "" if it does."""
        return self._pair.target.waits if self._pair is not None else ""

    @property
    def refused(self) -> int:
        """The number of messages that the new broker has refused for now."""
        return self._pair.target.refused if self._pair is not None else 0

    async def run(self, source: Connection, target: Connection) -> None:
        item = self.item
        if not item.stream and await self._count(source) == 0 and not await self._begun(target):
            item.state = "empty"
            return
        mine = await self._alone(target)
        channel = await target.channel()
        try:
            queue = await channel.queue(item.name, passive=True)
        except ChannelClosed as error:
            raise Refused(
                f"the new broker has no such queue ({error.text}): declare it, or bring the definitions"
            ) from error
        if item.before is None:
            item.before = queue.message_count
        exchange = await channel.exchange(exchange_of(item.name), "fanout", durable=True)
        await queue.bind(exchange)
        self._pair = pair = await open_pair(
            source,
            target,
            item.name,
            self.dress,
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
        await mine.delete()
        await mine.channel.close()

    async def _alone(self, target: Connection) -> Queue:
        """Wait until the new broker has ended the connection of an earlier attempt, and with it all that is still on its way: to delete
        the exchange of this queue, or to forget its writer, would lose or double what this attempt has committed.

        The queue that says so is exclusive. Raise AMQPError as long as it is another connection's.
        """
        channel = await target.channel()
        try:
            return await channel.queue(exchange_of(self.item.name), exclusive=True)
        except ChannelClosed as error:
            if error.code != 405:
                raise
            raise AMQPError(BUSY) from error

    async def _begun(self, target: Connection) -> bool:
        """Whether an earlier run has ended before its last step."""
        channel = await target.channel()
        try:
            await channel.exchange(exchange_of(self.item.name), passive=True)
        except ChannelClosed:
            return False
        await channel.close()
        return True

    async def _count(self, source: Connection) -> int:
        channel = await source.channel()
        try:
            return (await channel.queue(self.item.name, passive=True)).message_count
        finally:
            await channel.close()

    async def _carry(self, source: Connection, pair: Pair) -> None:
        item, tally = self.item, self.item.tally
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
        self._on_load(self.item)

    async def _compare(self, channel: Channel, exchange: Exchange, pair: Pair) -> None:
        """Compare the counts, and take away what served to move."""
        item = self.item
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
            if isinstance(pair.target, MarkedTarget):
                item.notes.append(
                    f"queue '{pair.target.queue}' at the new broker notes how far the stream has been read, so that a later run "
                    "brings only what is new: delete it when there will be no later run"
                )
            return
        if isinstance(pair.target, StageTarget):
            await pair.target.forget()
        expected = (item.before or 0) + item.tally.moved
        if queue.consumer_count:
            item.notes.append(
                f"the counts are not compared: {counted(queue.consumer_count, 'consumer')} may take messages at the new broker"
            )
        elif item.after < expected:
            has = counted(item.after, "message")
            item.problem = f"the new broker has {has} and should have {expected:,}: look at its length limits and TTLs"


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
        item.notes.append(f"{counted(dress.counted, 'message')} had been delivered before: delivery counts begin anew")
    if dress.expiring:
        how = "was shortened by the age, if there is a timestamp" if dress.age_from_timestamp else "begins anew"
        item.notes.append(f"{counted(dress.expiring, 'message')} with an expiration, which {how}")

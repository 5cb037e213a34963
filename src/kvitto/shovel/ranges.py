"""A queue of Kvitto as a source, read by offset and settled by range: class `log` of docs/protocol-extensions.md.

Offsets never change, so a load is the messages below an offset, whatever dies in between. With a stage as target, whose
batch has that offset as its number, each message arrives once. The queue is reserved: consumers are refused meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib

from kvitto.client.aio import Channel, Connection, IncomingMessage
from kvitto.client.aio.queue import Queue
from kvitto.client.aio.ranges import need
from kvitto.client.errors import AMQPError, ChannelClosed
from kvitto.shovel.load import LOAD_BYTES, LOAD_MAX, Load
from kvitto.wire import methods as m

FIRST_LOAD = 64
"""The offsets of the first load, whose messages may be large. Later loads grow or shrink by the size of the last one."""
LOOK_S, LOOK_MAX_S = 0.02, 0.25
"""The time after which a queue that has no more messages is looked at again. It doubles as long as none come."""


def group_of(writer: str, work: str) -> str:
    """Return the name of the group that reserves queues for some work, whose own name may be of any length."""
    return f"{writer}/{hashlib.sha256(work.encode()).hexdigest()[:16]}"


class RangeSource:
    """Reads a work queue by range for a group, and settles it. Without a group it reads a stream, which is not reserved or settled."""

    def __init__(
        self, channel: Channel, queue: Queue, attached: m.LogAttachOk | m.LogInspectOk, group: str | None
    ) -> None:
        self.incarnation: str = attached.incarnation
        """Names this life of the queue."""
        self.start: int = attached.first
        """The offset of the next load."""
        self._channel = channel
        self._queue = queue
        self.next: int = attached.next
        """The offset behind the last message, when the broker was asked last."""
        self._group = group or ""
        self._stream = group is None
        self._offsets = FIRST_LOAD
        self._look_s = LOOK_S

    @classmethod
    async def open(cls, connection: Connection, name: str, group: str | None) -> RangeSource:
        """Reserve the queue for a group; with None it is a stream, which is not reserved.

        Each attempt at the same work names the same group, since the last attempt may still be connected. Other work names other groups.
        Raise NotSupported if the broker is not Kvitto, ChannelClosed (403) if the queue is in use.
        """
        await need(connection, "kvitto_log_hold", "read a queue by range of offsets")
        channel = await connection.single_channel()
        try:
            queue = await channel.queue(name, passive=True)
            if group is None:
                return cls(channel, queue, await channel.call(m.LogInspect(name), m.LogInspectOk), None)
            return cls(channel, queue, await channel.call(m.LogAttach(name, group), m.LogAttachOk), group)
        except BaseException:
            await channel.close()
            raise

    async def skip(self, end: int) -> None:
        """Settle everything below `end`: it has arrived already."""
        if end > self.start and not self._stream:
            await self._settle(end)
        self.start = max(self.start, end)

    def check(self) -> None:
        """Nothing comes but what `take` asks for."""

    async def take(self, most: int, wait_s: float) -> Load:
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            if self.start < self.next:
                messages, end = await self._read(min(self.start + min(self._offsets, most), self.next))
                if messages:
                    return Load(messages, end)
                self.start = end
                continue
            if asyncio.get_running_loop().time() >= deadline:
                return Load([])
            looked = await self._channel.call(m.LogInspect(self._queue.name), m.LogInspectOk)
            self._same(looked.incarnation)
            self.next = looked.next
            if self.start < self.next:
                self._look_s = LOOK_S
            else:
                await asyncio.sleep(min(self._look_s, wait_s))
                self._look_s = min(2 * self._look_s, LOOK_MAX_S)

    async def _read(self, end: int) -> tuple[list[IncomingMessage], int]:
        """Return the messages below `end`, and the offset at which the next load starts."""
        name = self._queue.name
        if self._stream:
            expected = None
        else:
            held = await self._channel.call(
                m.LogHold(name, self._group, self.incarnation, self.start, end), m.LogHoldOk
            )
            expected = held.count
            if not expected:
                return [], max(end, held.end)
        messages: list[IncomingMessage] = []
        async with self._queue.read(self.start, end, batch=end - self.start) as reader:
            async for message in reader:
                messages.append(message)
        if expected is not None and len(messages) != expected:
            raise AMQPError(
                f"queue {name!r} has {expected} messages at the offsets {self.start} to {end}, and {len(messages)} came"
            )
        self._adapt(messages)
        return messages, end

    def _adapt(self, messages: list[IncomingMessage]) -> None:
        size = sum(len(message.body) for message in messages)
        if size > LOAD_BYTES:
            self._offsets = max(1, self._offsets // 2)
        elif size < LOAD_BYTES // 2:
            self._offsets = min(LOAD_MAX, self._offsets * 2)

    async def settle(self, load: Load) -> None:
        if not self._stream:
            await self._settle(load.end)
        self.start = load.end

    async def _settle(self, end: int) -> None:
        await self._channel.call(m.LogSettle(self._queue.name, self._group, self.incarnation, end), m.LogSettleOk)

    async def left(self) -> int:
        if self._stream:
            return max(0, self.next - self.start)
        count = m.LogCount(self._queue.name, self.incarnation, self.start, (1 << 63) - 1)
        return (await self._channel.call(count, m.LogCountOk)).count

    def _same(self, incarnation: str) -> None:
        if incarnation != self.incarnation:
            raise AMQPError(f"queue {self._queue.name!r} was deleted and declared again meanwhile: begin again")

    async def close(self) -> None:
        if not self._stream and self._channel.closed is None:
            try:
                await self._channel.call(m.LogDetach(self._queue.name, self._group), m.LogDetachOk)
            except ChannelClosed:
                return
        await self._channel.close()

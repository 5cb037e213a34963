"""Reserves a queue for a group of readers, which hold and settle ranges of offsets (class `log`, docs/protocol-extensions.md).

A group has a channel of its own, which comes back after a reconnect and attaches again before anything else is sent on it.
Every request may be repeated, so one that had no answer is sent again after a reconnect. `Queue.group` makes a `Group`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from kvitto.client.aio.channel import Channel
from kvitto.client.aio.errors import Closed
from kvitto.client.aio.link import Port, copy_of, forget
from kvitto.client.aio.ranges import Offsets, RangeReader, close_soon, need
from kvitto.client.errors import AMQPError, ChannelClosed, ConnectionLost
from kvitto.wire import methods as m

if TYPE_CHECKING:
    from kvitto.client.aio.queue import Queue

M = TypeVar("M", bound=m.Method)


class Held(NamedTuple):
    """What waits in a range of offsets. `Group.hold` and `Group.count` return it."""

    first: int
    """The lowest offset in the queue at which a message waits. Above the start of your range it means that messages were lost."""
    end: int
    """Where the next range starts: the lowest offset, not below the end that was asked for, at which a message waits,
    or the end of the queue."""
    messages: int
    """The number of messages that wait in the range."""


class GroupChannel(Channel):
    """The channel of a group."""

    group: Group | None = None

    async def resume(self, port: Port) -> None:
        await super().resume(port)
        if self.group is not None:
            await self.group.attach_again(port)


class Group:
    """A queue that is reserved for the readers of one group: `async with queue.group("billing") as group:`.

    All methods may be called by many tasks. They raise ChannelClosed if the broker refuses them, or refuses to reserve the
    queue again after a reconnect; AMQPError if the queue was deleted and declared again meanwhile.
    """

    def __init__(self, queue: Queue, name: str) -> None:
        if not name:
            raise ValueError("a group needs a name")
        self.queue = queue
        self.name = name
        self._connection = queue.channel.connection
        self._key = (queue.name, name)
        self._channel: GroupChannel | None = None
        self._offsets: Offsets | None = None
        self._failed: AMQPError | None = None

    @property
    def offsets(self) -> Offsets:
        """The offsets of the queue when it was reserved, last after a reconnect. `Queue.offsets` asks for those of now."""
        if self._offsets is None:
            raise Closed("the group is not attached: use it inside of `async with queue.group(...) as group:`")
        return self._offsets

    def read(self, start: int, end: int | None = None, *, batch: int = 1000) -> RangeReader:
        """Return an iterator over a range, see `Queue.read`. It raises AMQPError if the queue is not the one that was reserved."""
        return RangeReader(self.queue, start, end, batch, self.offsets.incarnation)

    async def hold(self, start: int, end: int) -> Held:
        """Keep every message below `end` for the group, and return what waits from start to end - 1.

        Such messages do not expire, no length limit drops them, and no consumer gets them, until they are settled. The
        answer is durable: a restart of the broker keeps the hold, and a day without the group ends it.
        """
        request = m.LogHold(self._key[0], self.name, self.offsets.incarnation, start, end)
        answer = await self._ask(request, m.LogHoldOk)
        return Held(answer.first, answer.end, answer.count)

    async def count(self, start: int, end: int) -> Held:
        """Return what waits from start to end - 1, and hold nothing."""
        answer = await self._ask(m.LogCount(self._key[0], self.offsets.incarnation, start, end), m.LogCountOk)
        return Held(answer.first, answer.end, answer.count)

    async def settle(self, end: int) -> int:
        """Settle every message below `end`, for good. Return the offset below which all messages are settled.

        As with acks, the last settlements may be undone by a power cut; then the messages are there again.
        """
        request = m.LogSettle(self._key[0], self.name, self.offsets.incarnation, end)
        return (await self._ask(request, m.LogSettleOk)).settled

    async def _ask(self, request: m.Method, answer: type[M]) -> M:
        """Send a request and return its answer. If the connection is lost before the answer comes, the request is sent again."""
        while True:
            if self._failed is not None:
                raise copy_of(self._failed)
            channel = self._channel
            if channel is None:
                raise Closed("the group has left the queue; attach again with `async with queue.group(...)`")
            try:
                return await channel.call(request, answer)
            except ConnectionLost:
                if not self._connection.reconnects or channel.closed is not None:
                    raise

    async def attach_again(self, port: Port) -> None:
        """Reserve the queue again, if it is still the same. The channel calls this on a new connection."""
        # It is looked at first: to attach to another queue, and to detach, would release what others hold there.
        known = self._offsets is not None
        if known and not self._note(await port.call(m.LogInspect(self._key[0]), m.LogInspectOk)):
            return
        if not self._note(await port.call(m.LogAttach(*self._key), m.LogAttachOk)):  # so it is new, and nothing is held
            port.call(m.LogDetach(*self._key), m.LogDetachOk).add_done_callback(forget)

    def _note(self, answer: m.LogAttachOk | m.LogInspectOk) -> bool:
        """Note the offsets of the queue. Return False, and fail all calls from now on, if it is not the one that was reserved."""
        if self._offsets is not None and self._offsets.incarnation != answer.incarnation:
            self._failed = AMQPError(
                f"queue {self._key[0]!r} was deleted and declared again while group {self.name!r} was away; its offsets begin"
                " anew: attach again"
            )
            return False
        self._offsets = Offsets(answer.incarnation, answer.first, answer.next, answer.settled)
        return True

    # --- beginning and end

    async def __aenter__(self) -> Self:
        if self._channel is not None:
            raise AMQPError(f"this group {self.name!r} is attached already; make another with Queue.group")
        await need(self._connection, "kvitto_log_hold", "reserve a queue for a group")
        channel = self._channel = await self._connection.own_channel(GroupChannel)
        channel.group = self
        self._offsets = self._failed = None
        groups = self._connection.groups
        groups[self._key] = groups.get(self._key, 0) + 1
        try:
            self._note(await self._ask(m.LogAttach(*self._key), m.LogAttachOk))
        except BaseException:  # it may be attached, and stays so: to detach would release what an earlier attempt holds
            close_soon(self._leave())
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        """Leave the queue. After an exception the connection stays attached, so that what is held waits for the next attempt."""
        try:
            if error is None:
                await self._detach()
        finally:
            await self._leave().close()

    async def _detach(self) -> None:
        """Give the queue back, after a wait while the client reconnects. Other handles of the group keep it.

        There is nothing to give if the queue was declared again, the broker has closed the channel, or this program the connection.
        """
        assert self._channel is not None
        while True:
            try:
                port = await self._channel.port()
                if self._failed is None and self._connection.groups[self._key] == 1:
                    await port.call(m.LogDetach(*self._key), m.LogDetachOk)
                return
            except ConnectionLost:
                if not self._connection.reconnects:
                    raise
            except (ChannelClosed, Closed):
                return

    def _leave(self) -> GroupChannel:
        channel, self._channel = self._channel, None
        assert channel is not None
        groups = self._connection.groups
        groups[self._key] -= 1
        if not groups[self._key]:
            del groups[self._key]
        return channel

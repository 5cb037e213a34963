"""The asyncio connection: it connects to one of several hosts, and again when the connection is lost.

It keeps what has to outlive one TCP connection: the channels with their consumers, and the topology. Each TCP
connection is a `link.Link`. One task at most belongs to a connection: the one that reconnects; `close` ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import random
from collections.abc import Awaitable, Callable, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypeVar

from kvitto.client import disown
from kvitto.client.aio.channel import Channel
from kvitto.client.aio.connecting import open_link
from kvitto.client.aio.errors import Closed, Returned
from kvitto.client.aio.events import (
    Blocked,
    ConnectAttemptFailed,
    Disconnected,
    Event,
    Reconnected,
    TopologyFailed,
    Unblocked,
)
from kvitto.client.aio.link import Link, Port, copy_of
from kvitto.client.aio.message import Message, new_id
from kvitto.client.aio.topology import Topology
from kvitto.client.errors import AMQPError, ChannelClosed, ConnectFailed, ConnectionLost
from kvitto.client.uri import DEFAULT_URI, Address, parse_uri
from kvitto.wire import methods as m
from kvitto.wire.tables import Table

if TYPE_CHECKING:
    from kvitto.client.intercept import Interceptor

BACKOFF_S, BACKOFF_MAX_S = 0.1, 30.0
STEADY_S = 10.0
"""A connection that lasted so long begins with short waits when it is lost."""

log = logging.getLogger("kvitto.client")


class Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)
C = TypeVar("C", bound=Channel)


class Opening(Generic[T]):
    """Something that opens: `async with opening as opened:` closes it again, `opened = await opening` does not."""

    def __init__(self, start: Callable[[], Awaitable[T]]) -> None:
        self._start = start
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._start().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._start()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._opened is not None
        await self._opened.close()


def connect(
    urls: str | Sequence[str] = DEFAULT_URI,
    *,
    name: str = "",
    reconnect: bool = True,
    on_unconfirmed: Literal["raise", "resend"] = "raise",
    on_event: Callable[[Event], object] | None = None,
    interceptors: Sequence[Interceptor] = (),
) -> Opening[Connection]:
    """Connect to an AMQP 0-9-1 broker: `async with kvitto.connect(url) as connection:`, or `connection = await ...`.

    urls: one URI, or several, of which one is used. Parameters after `?`: heartbeat (s), connection_timeout (ms),
    frame_max, cacertfile, certfile, keyfile, verify. name: shown by the broker. reconnect: whether the client connects
    again, with growing pauses, until it is closed. on_unconfirmed: what becomes of publishes whose confirm is missing
    when the connection is lost: PublishUnknown is raised, or they are sent again (each has a message_id then, so that a
    duplicate can be told). on_event: called with each `Event`. interceptors: run around each publish and each message, the
    first one outermost. Raises ConnectFailed if no host can be reached at first, ValueError for a malformed URI.
    """
    given = [urls] if isinstance(urls, str) else list(urls)
    if not given:
        raise ValueError("connect needs at least one URI")
    if on_unconfirmed not in ("raise", "resend"):
        raise ValueError(f'on_unconfirmed is "raise" or "resend", not {on_unconfirmed!r}')
    addresses = [parse_uri(uri) for uri in given]

    async def start() -> Connection:
        connection = Connection(addresses, name, reconnect, on_unconfirmed == "resend", on_event, interceptors)
        await connection.start()
        return connection

    return Opening(start)


class Connection:
    """Made by `kvitto.connect`. All methods may be called by many tasks of one event loop."""

    def __init__(
        self,
        addresses: list[Address],
        name: str,
        reconnect: bool,
        resends: bool,
        on_event: Callable[[Event], object] | None,
        interceptors: Sequence[Interceptor],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed: AMQPError | None = None
        """Why the connection has ended for good, None while it lives."""
        self.resends = resends
        self.interceptors = tuple(interceptors)
        self.topology = Topology()
        self.groups: dict[tuple[str, str], int] = {}
        """How many handles reserve a queue for a group: (queue, group) -> count. To the broker they are one reader."""
        self._addresses = addresses
        self._name = name
        self._reconnect = reconnect
        self._on_event = on_event
        self._link: Link | None = None
        self._channels: dict[Channel, None] = {}
        self._up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._attempt = 0
        self._since = 0.0
        self._tags = 0
        self._unconfirmed = 0
        self._disowned = False

    def channel(self, *, confirms: bool = True) -> Opening[Channel]:
        """Open a channel: `async with connection.channel() as channel:`, or `channel = await connection.channel()`.

        confirms: whether `publish` returns when the broker has confirmed; else when the message is on its way.
        """

        return Opening(lambda: self._open_channel(confirms, intercepted=bool(self.interceptors)))

    async def single_channel(self, *, intercepted: bool = False) -> Channel:
        """Open a channel with confirms that is not opened again after a reconnect. Kvitto's extensions need one."""
        return await self._open_channel(True, intercepted=intercepted and bool(self.interceptors), survives=False)

    async def own_channel(self, new: type[C]) -> C:
        """Open a channel of another class, which comes back after a reconnect. A group has one."""
        return await self._open(new, confirms=True, survives=True)

    async def _open_channel(self, confirms: bool, *, intercepted: bool, survives: bool = True) -> Channel:
        if intercepted:
            from kvitto.client.aio.intercepted import InterceptedChannel

            return await self._open(InterceptedChannel, confirms=confirms, survives=survives)
        return await self._open(Channel, confirms=confirms, survives=survives)

    async def _open(self, new: type[C], *, confirms: bool, survives: bool) -> C:
        while True:
            channel = new(self, confirms=confirms)
            channel.survives = survives
            while self._link is None:
                await self.wait_ready()
            port = self._link.port(channel)
            try:
                await channel.open(port)
                if channel.closed is not None:  # in the same turn: it must not be opened again
                    raise copy_of(channel.closed)
                self._channels[channel] = None
                return channel
            except ConnectionLost:
                if not self.reconnects:
                    raise
            except asyncio.CancelledError:
                port.close_soon()
                raise

    @property
    def blocked(self) -> str | None:
        """Why the broker takes no publishes now (connection.blocked), else None."""
        return self._link.blocked if self._link is not None else None

    @property
    def connected(self) -> bool:
        """Whether the connection is there now."""
        return self._link is not None

    @property
    def server_properties(self) -> Table:
        """What the broker said of itself; {} while the client reconnects."""
        return self._link.server_properties if self._link is not None else {}

    @property
    def dropped_acks(self) -> int:
        """The number of acks and rejects on this TCP connection that came after their channel had ended."""
        return self._link.core.dropped if self._link is not None else 0

    async def close(self) -> None:
        """Close in order. Calls that wait end with an exception. A second call does nothing."""
        if self.loop.is_closed():
            self.loop_closed()
        if self._disowned:
            return
        error = Closed("the connection was closed by this program")
        first, self.closed = self.closed is None, self.closed or error
        task, self._task = self._task, None
        try:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            if self._link is not None:
                await self._link.close()
        finally:  # after a close that was cancelled, too
            if first:
                self._end(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    # --- what channels use

    @property
    def reconnects(self) -> bool:
        return self._reconnect and self.closed is None

    def check(self) -> None:
        """Raise if the connection has ended for good. An event loop that was closed has told nobody."""
        if self.loop.is_closed():
            self.loop_closed()
        if self.closed is not None:
            raise copy_of(self.closed)

    async def wait_ready(self) -> None:
        """Wait while the client reconnects. Raise if it has ended."""
        self.check()
        if self._up.is_set():
            raise AMQPError("the channel was lost with an unexpected error; close the connection")
        await self._up.wait()
        if self.closed is not None:
            raise copy_of(self.closed)

    def tell(self, event: Event) -> None:
        """Tell the program what has happened. Its exception goes to the handler of the event loop."""
        log.log(logging.INFO if isinstance(event, Reconnected | Unblocked) else logging.WARNING, "%s", event)
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception as error:  # noqa: BLE001 - it is the program's, and has nobody else to go to
            self.loop.call_exception_handler({"message": "on_event of kvitto.connect raised", "exception": error})

    def wake(self) -> None:
        """Let all that waits for the connection look whether it still has to."""
        if self._link is None and self.closed is None:
            self._up.set()
            self._up.clear()

    def channel_ended(self, channel: Channel) -> None:
        self._channels.pop(channel, None)
        self.wake()

    def count_unconfirmed(self, count: int) -> None:
        """Note how many publishes had no confirm when their channel ended."""
        self._unconfirmed += count

    def new_tag(self) -> str:
        """Return a consumer tag that no other consumer of this connection has."""
        self._tags += 1
        return f"kvitto-{self._tags}"

    def identified(self, message: bytes | Message) -> Message:
        """Return the message with a `message_id`. The program's own stays as it is: it may publish it again."""
        if isinstance(message, bytes):
            return Message(message, message_id=new_id())
        if message.properties is not None and message.properties.message_id is not None:
            return message
        identified = Message(message.body, message.routing_key, exchange=message.exchange, message_id=new_id())
        if message.properties is not None:
            properties = identified.properties = copy.copy(message.properties)
            properties.message_id = new_id()
        return identified

    # --- what links call

    def link_lost(self, link: Link, error: ConnectionLost) -> None:
        if link is not self._link:
            return
        self._link = None
        self._up.clear()
        if self.closed is not None:
            return
        if not self._reconnect:
            self.closed = error
            self._end(error)
            return
        if self.loop.time() - self._since > STEADY_S:
            self._attempt = 0
        self._task = self.loop.create_task(self._come_back(), name="kvitto reconnect")
        self._task._log_destroy_pending = False  # type: ignore[attr-defined]  # a loop that is closed early is told by `check`
        self._task.add_done_callback(self._came_back)
        unconfirmed, self._unconfirmed = self._unconfirmed, 0
        self.tell(Disconnected(error, unconfirmed))

    def loop_closed(self) -> AMQPError:
        self.disown(Closed("the event loop of this connection was closed; connect again in the one that runs now"))
        assert self.closed is not None
        return copy_of(self.closed)

    def disown(self, error: Closed | None = None) -> None:
        """End without the event loop: this process was forked from the one that it belongs to, or the loop is closed."""
        self._disowned = True
        self.closed = self.closed or error or Closed(disown.forked("connection"))
        link, self._link = self._link, None
        if link is not None:
            link.disown(error)
        for channel in self._channels:
            channel.disown(self.closed)

    def link_blocked(self, reason: str | None) -> None:
        self.tell(Unblocked() if reason is None else Blocked(reason))

    # --- connecting

    async def start(self) -> None:
        """Connect for the first time."""
        disown.own(self)
        self._adopt(await self._reach(self._addresses))

    def _adopt(self, link: Link) -> None:
        self._link = link
        self._since = self.loop.time()
        self._up.set()

    async def _reach(self, addresses: Sequence[Address]) -> Link:
        """Return a link to the first host that answers."""
        failed: list[ConnectFailed] = []
        for address in addresses:
            try:
                return await open_link(address, self, self._name)
            except ConnectFailed as error:
                failed.append(error)
        if len(failed) == 1:
            raise failed[0]
        raise ConnectFailed("; ".join(str(error) for error in failed), failed[0].code)

    async def _come_back(self) -> None:
        """Connect again, and bring back what was there."""
        while True:
            if self._attempt:
                await asyncio.sleep(min(BACKOFF_S * 2**self._attempt, BACKOFF_MAX_S) * random.uniform(0.5, 1.0))
            self._attempt += 1
            try:
                link = await self._reach(random.sample(self._addresses, len(self._addresses)))
            except ConnectFailed as error:
                self.tell(ConnectAttemptFailed(error, min(BACKOFF_S * 2**self._attempt, BACKOFF_MAX_S)))
                continue
            try:
                await self._restore(link)
                if link.lost is not None:
                    raise copy_of(link.lost)
            except ConnectionLost as error:
                self.tell(ConnectAttemptFailed(error, min(BACKOFF_S * 2**self._attempt, BACKOFF_MAX_S)))
                continue
            except BaseException:
                link.fail(ConnectionLost("the client gave up restoring the connection"))
                raise
            self._adopt(link)
            self.tell(Reconnected(str(link.address)))
            return

    def _came_back(self, task: asyncio.Task[None]) -> None:
        """If the task was cancelled, or had an unexpected error, the connection ends, and everything that waits for it."""
        if task.cancelled() and self.closed is None:  # by asyncio.run at its end
            self.closed = Closed("the event loop of this connection was ended while it was reconnecting; connect again")
            self._end(self.closed)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.loop.call_exception_handler({"message": "kvitto: reconnecting failed", "exception": error})
            self.closed = self.closed or ConnectionLost(f"reconnecting failed with an unexpected error: {error!r}")
            self._end(self.closed)
        if self._task is task:
            self._task = None

    async def _restore(self, link: Link) -> None:
        """Open all channels, declare the topology, send what is to be sent again, start the consumers."""
        opened: list[tuple[Channel, Port]] = []
        for channel in list(self._channels):
            port = link.port(channel, channel.number)
            await channel.open(port, again=True)
            opened.append((channel, port))
        await self._declare(link)
        for channel, port in opened:
            if channel.closed is not None:
                port.close_soon()
                continue
            channel.attach(port)
            with contextlib.suppress(ChannelClosed):  # the channel has told its own callers
                await channel.resume(port)

    async def _declare(self, link: Link) -> None:
        """Declare the topology on a channel that is not used for anything else."""
        port: Port | None = None
        for old, request, answer in self.topology.requests():
            if port is None or port.ended is not None:
                port = link.port(_Declaring())
                await port.call(m.ChannelOpen(), m.ChannelOpenOk)
            try:
                done = await port.call(request, answer)
            except ChannelClosed as error:
                self.tell(TopologyFailed(repr(request), error))
                continue
            if old:
                self.topology.rename(old, done.queue)
        if port is not None and port.ended is None:
            await port.close()

    def _end(self, error: AMQPError) -> None:
        """The connection is closed for good."""
        self._link = None
        for channel in list(self._channels):
            channel.end(copy_of(error))
        self._up.set()


class _Declaring:
    """The owner of the channel on which the topology is declared: its only caller gets every error."""

    def port_ended(self, port: Port, error: AMQPError) -> None:
        pass

    def cancelled(self, port: Port, consumer_tag: str) -> None:
        pass

    def returned(self, returned: Returned) -> None:
        pass

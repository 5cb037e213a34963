"""The connection for threads, and what closes it at the end of the program."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from kvitto.client.aio import connection as aio
from kvitto.client.aio.channel import Channel
from kvitto.client.aio.events import Event
from kvitto.client.blocking.channel import SyncChannel
from kvitto.client.blocking.loop import Loop
from kvitto.client.blocking.outbox import Closing, Outboxes, log_unsent
from kvitto.client.uri import DEFAULT_URI

if TYPE_CHECKING:
    from kvitto.client.intercept import Interceptor

_open: set[SyncConnection] = set()
"""All that are not closed: of one that is open, a program may keep its channel only. Adding, removing and copying are atomic."""


@atexit.register
def _close_open() -> None:
    """Close what the program has left open: at its end, the client's threads stop in the middle of what they do.

    All are closed at the same time, so the limits hold for all together.
    """
    connections = list(_open)
    try:
        for connection in connections:
            connection.begin_closing()
        for connection in connections:
            connection.wait_closed()
    except KeyboardInterrupt:
        for connection in connections:
            connection.hurry()
        for connection in connections:
            connection.wait_closed()
    for connection in connections:
        log_unsent(connection.unsent)


def connect_sync(
    urls: str | Sequence[str] = DEFAULT_URI,
    *,
    name: str = "",
    reconnect: bool = True,
    on_unconfirmed: Literal["raise", "resend"] = "raise",
    on_event: Callable[[Event], object] | None = None,
    interceptors: Sequence[Interceptor] = (),
) -> SyncConnection:
    """Connect to an AMQP 0-9-1 broker, for programs without asyncio: `with kvitto.connect_sync(url) as connection:`.

    The arguments and errors are those of `kvitto.connect`. `on_event` is called in the client's thread, and interceptors run
    in the thread that publishes or handles.
    """
    opening = aio.connect(urls, name=name, reconnect=reconnect, on_unconfirmed=on_unconfirmed, on_event=on_event)

    async def start() -> aio.Connection:
        return await opening

    loop = Loop()
    try:
        return SyncConnection(loop, loop.run(start()), tuple(interceptors))
    except BaseException:
        loop.end(_nothing)
        loop.join()
        raise


async def _nothing() -> None:
    pass


class SyncConnection(Closing):
    """Made by `kvitto.connect_sync`.

    `close`, or the end of `with`, first sends what was published without confirms, for up to 5 s for all channels together,
    and raises PublishFailed if something was not sent. So does the end of the program, which logs it. In `on_event` it does
    not wait: the connection is closed soon after. A second call does nothing.
    """

    def __init__(self, loop: Loop, connection: aio.Connection, interceptors: tuple[Interceptor, ...]) -> None:
        self._loop = loop
        self._connection = connection
        self._interceptors = interceptors
        self._outboxes = Outboxes()
        self.unsent: Exception | None = None
        """After the close: the error of what was not sent."""
        _open.add(self)

    def channel(self, *, confirms: bool = True) -> SyncChannel:
        """Open a channel, see `Connection.channel`."""

        async def start() -> Channel:
            return await self._connection.channel(confirms=confirms)

        opened = self._loop.run(start())
        if not self._interceptors:
            return SyncChannel(self._loop, opened, self._outboxes)
        from kvitto.client.blocking.intercepted import InterceptedSyncChannel

        return InterceptedSyncChannel(self._loop, opened, self._outboxes, self._interceptors)

    @property
    def blocked(self) -> str | None:
        """Why the broker takes no publishes now (connection.blocked), else None."""
        return self._connection.blocked

    @property
    def connected(self) -> bool:
        """Whether the connection is there now."""
        return self._connection.connected

    def _close(self) -> Exception | None:
        try:
            first = self.begin_closing()
            self.wait_closed()
        except BaseException:  # KeyboardInterrupt, which is what the caller gets
            self.hurry()
            self.wait_closed()
            log_unsent(self.unsent)
            raise
        return self.unsent if first else None

    def begin_closing(self) -> bool:
        """Close it, and wait for nothing. Return False if it is being closed already."""
        _open.discard(self)
        return self._loop.end(partial(self._finish, alone=self._loop.inside))

    def wait_closed(self) -> None:
        """Wait until the connection is closed, except in the client's own thread, which would wait for itself."""
        if not self._loop.inside:
            self._loop.join()

    def hurry(self) -> None:
        """Close it without waiting until everything is sent."""
        self.begin_closing()
        self._loop.soon(self._outboxes.hurry)

    async def _finish(self, alone: bool) -> None:
        """Send what is left, then close, as the last work of the loop. `alone`: nobody waits for it, so the log has what was not sent."""
        try:
            await self._outboxes.finish()
        finally:
            try:
                self.unsent = await self._outboxes.give_up()
                if alone:
                    log_unsent(self.unsent)
            finally:
                await self._connection.close()

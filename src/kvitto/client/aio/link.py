"""One TCP connection of the asyncio client: handshake, frames both ways, heartbeats, answers to calls. It lives once.

`Connection` makes a `Link`, gives it a `Port` for each channel, and makes another link when this one is lost. Whatever
is wrong with the server ends in `fail`, which ends all ports: then every pending call has its exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from kvitto.base.errors import ConnectionError_
from kvitto.client import disown, handshake
from kvitto.client.aio.core import ChannelCore, ConnectionCore, IncomingMessage
from kvitto.client.aio.errors import Closed, Returned
from kvitto.client.errors import AMQPError, ChannelClosed, ConnectFailed, ConnectionLost
from kvitto.client.transport import HEARTBEAT_FRAME
from kvitto.client.uri import Address
from kvitto.wire import methods as m
from kvitto.wire.spec import FRAME_METHOD, PROTOCOL_HEADER
from kvitto.wire.tables import Table

CLOSE_TIMEOUT_S = 5.0
WRITE_HIGH = 1 << 20
"""Publishes wait while so many bytes are not taken by the operating system."""
FLUSH_BYTES = 1 << 18
ANSWERS_MAX = 10_000
"""A server that reads nothing may ask for so many answers before the connection ends: they stay in memory."""

METHOD, CONTENT, RETURN = 1, 2, 4
"""Kinds of events of `ConnectionCore`: (channel, METHOD, payload), (channel, CONTENT, method payload, message),
(channel, RETURN, method payload, Returned)."""

M = TypeVar("M", bound=m.Method)

log = logging.getLogger("kvitto.client")


class Call(NamedTuple):
    """A method that waits for its answer. `dropped` gets the answer if the caller was cancelled meanwhile."""

    request: m.Method
    answers: tuple[type[m.Method], ...]
    future: asyncio.Future[Any]
    dropped: Callable[[Any], None] | None


class Owner(Protocol):
    """What a port tells its channel."""

    def port_ended(self, port: Port, error: AMQPError) -> None:
        """The channel or its connection has ended. Called once."""

    def cancelled(self, port: Port, consumer_tag: str) -> None:
        """The broker has ended a consumer."""

    def returned(self, returned: Returned) -> None:
        """A message was returned that no publish waits for."""


class Port:
    """One channel on one link: its calls wait here for their answers, in order."""

    def __init__(self, link: Link, number: int, owner: Owner) -> None:
        self.link = link
        self.number = number
        self.owner = owner
        self.core: ChannelCore = link.core.open_channel(number, link.loop.create_future)
        self.calls: deque[Call] = deque()
        self.ended: AMQPError | None = None
        """Why the channel has ended, None before."""
        self.shut: AMQPError | None = None
        """Why nothing more may be sent: it has ended, or `channel.close` is on its way."""

    def call(
        self, request: m.Method, *answers: type[M], dropped: Callable[[Any], None] | None = None
    ) -> asyncio.Future[Any]:
        """Send a method after the acks that came before. Return the future of its answer."""
        self.check()
        future: asyncio.Future[Any] = self.link.loop.create_future()
        self.tell(request)
        self.calls.append(Call(request, answers, future, dropped))
        return future

    def tell(self, request: m.Method) -> None:
        """Send a method that has no answer."""
        payload = request.encode()
        self.core.write_acks()
        self.link.send_payload(payload, self.number)

    def close(self) -> asyncio.Future[m.Method]:
        """Close the channel in order. Nothing else is sent on it."""
        future = self.call(m.ChannelClose(200, "Goodbye"), m.ChannelCloseOk)
        self.shut = Closed("the channel was closed by this program")
        self.core.die()
        return future

    def close_soon(self) -> None:
        """Close the channel in order, and wait for nothing: that no answer comes means that it has ended, which is as good."""
        with contextlib.suppress(AMQPError):
            self.close().add_done_callback(forget)

    def check(self) -> None:
        if self.shut is not None:
            raise copy_of(self.shut)

    def take(self, event: tuple[Any, ...]) -> None:
        """Handle one event of this channel."""
        if event[1] == RETURN:
            self.owner.returned(event[3])
            return
        if event[1] == CONTENT:
            if event[2]:
                self.answer(m.decode(event[2]), event[3])
            return
        method = m.decode(event[2])
        if isinstance(method, m.ChannelClose):
            self.link.send(m.ChannelCloseOk(), self.number)
            self.end(ChannelClosed(method.reply_code, method.reply_text))
        elif isinstance(method, m.BasicCancel):
            self.owner.cancelled(self, method.consumer_tag)
            if not method.no_wait and self.shut is None:
                self.link.answers()
                self.tell(m.BasicCancelOk(method.consumer_tag))
        elif isinstance(method, m.ChannelFlow):
            if self.shut is None:
                self.link.answers()
                self.tell(m.ChannelFlowOk(method.active))
        else:
            self.answer(method, None)

    def answer(self, method: m.Method, message: IncomingMessage | None) -> None:
        """Give an answer to the first call that waits for one of its kind.

        RabbitMQ's queues send basic.cancel-ok themselves, so an answer to a later method may come before it.
        """
        call = next((call for call in self.calls if isinstance(method, call.answers)), None)
        if call is None:
            waits = f"; {self.calls[0].request.NAME} waits for its answer" if self.calls else ""
            raise ConnectionError_(505, f"the server sent {method.NAME} on channel {self.number}, unasked{waits}")
        self.calls.remove(call)
        result = method if message is None else message
        if not call.future.done():
            call.future.set_result(result)
        elif call.dropped is not None:
            call.dropped(result)
        if isinstance(method, m.ChannelCloseOk):
            self.end(Closed("the channel was closed by this program"))

    def end(self, error: AMQPError) -> None:
        """End the channel: all that waits gets the error."""
        if self.ended is not None:
            return
        self.ended = self.shut = error
        self.core.die()
        self.link.release(self)
        calls, self.calls = self.calls, deque()
        for call in calls:
            if not call.future.done():
                call.future.set_exception(copy_of(error))
        self.owner.port_ended(self, error)


class Link(asyncio.BufferedProtocol):
    """A connection to one server. `lost` is the reason why it has ended."""

    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop, owner: LinkOwner) -> None:
        self.address = address
        self.loop = loop
        self.owner = owner
        self.core = ConnectionCore(self._soon, self.flush)
        self.ports: dict[int, Port] = {}
        self.lost: ConnectionLost | None = None
        self.transport: asyncio.Transport | None = None
        self.gone: asyncio.Future[None] = loop.create_future()
        """Done when the socket is closed."""
        self.server_properties: Table = {}
        self.blocked: str | None = None
        self.paused = False
        self._unread = 0
        """The answers to the server's own methods since it has stopped reading."""
        self.channel_max = 0
        self.heartbeat_s = 0
        self.sent_at = self.received_at = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._drained: list[asyncio.Future[None]] = []
        self._methods: deque[m.Method] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closing = False
        self._view = memoryview(b"")
        self._data: bytearray | None = None

    # --- asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.transport.set_write_buffer_limits(high=WRITE_HIGH)
        disown.own(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        inp = self.core.inp
        if inp.n == inp.cap:
            inp.reserve(inp.cap)
        if inp.data is not self._data:
            self._data = inp.data
            self._view = memoryview(inp.data)
        return self._view[inp.n :]

    def buffer_updated(self, nbytes: int) -> None:
        self.received_at = self.loop.time()
        if self.lost is not None:
            return
        try:
            self.core.received(nbytes)
            self._handle_events()
        except ConnectionError_ as error:
            self.fail(ConnectionLost(f"{self.address}: {error.text}", error.code))

    def eof_received(self) -> None:
        self.fail(ConnectionLost(f"{self.address}: the server closed the connection without saying why"))

    def connection_lost(self, exc: Exception | None) -> None:
        reason = (exc.strerror if isinstance(exc, OSError) else None) or str(exc or "the connection was closed")
        self.fail(ConnectionLost(f"{self.address}: {reason}"))
        if self._timer is not None:
            self._timer.cancel()
        if not self.gone.done():
            self.gone.set_result(None)

    def pause_writing(self) -> None:
        self.paused = True
        for port in self.ports.values():
            port.core.open = False

    def resume_writing(self) -> None:
        self.paused = False
        self._unread = 0
        self._wake_drained()

    # --- sending

    def flush(self) -> None:
        """Send what this turn has collected."""
        data = self.core.take()
        if data and self.transport is not None and self.lost is None:
            self.sent_at = self.loop.time()
            self.transport.write(data)

    def _soon(self, flush: Callable[[], None]) -> None:
        try:
            self.loop.call_soon(flush)
        except RuntimeError:
            if self.loop.is_closed():
                raise self.owner.loop_closed() from None
            raise

    def send(self, method: m.Method, channel: int = 0) -> None:
        """Send a method with this turn's flush."""
        self.send_payload(method.encode(), channel)

    def send_payload(self, payload: bytes, channel: int) -> None:
        self.core.out.add(m.frame(FRAME_METHOD, channel, payload))
        self.core.schedule()

    def answers(self) -> None:
        """Note an answer to a method of the server. Raise ConnectionError_ if it asks for ever more without reading any."""
        self._unread += self.paused
        if self._unread > ANSWERS_MAX:
            raise ConnectionError_(506, f"the server asks for answers, and has not read the last {ANSWERS_MAX}")

    async def drain(self) -> None:
        """Wait until the operating system takes bytes again, or the link is lost."""
        while self.paused and self.lost is None:
            future: asyncio.Future[None] = self.loop.create_future()
            self._drained.append(future)
            await future

    def _wake_drained(self) -> None:
        drained, self._drained = self._drained, []
        for future in drained:
            if not future.done():
                future.set_result(None)

    # --- receiving

    def _handle_events(self) -> None:
        while self.core.events:
            events, self.core.events = self.core.events, []
            for event in events:
                if self.lost is not None:
                    return
                number: int = event[0]  # type: ignore[assignment]
                if number == 0:
                    if event[1] == METHOD:
                        self._take_method(m.decode(event[2]))  # type: ignore[arg-type]
                elif number in self.ports:
                    self.ports[number].take(event)

    def _take_method(self, method: m.Method) -> None:
        if isinstance(method, m.ConnectionClose):
            self.send(m.ConnectionCloseOk())
            self.flush()
            self.fail(ConnectionLost(f"{self.address}: {method.reply_text}", method.reply_code), flush=True)
        elif isinstance(method, m.ConnectionCloseOk):
            if not self._closing:
                raise ConnectionError_(505, "the server sent connection.close-ok, unasked")
            self.fail(ConnectionLost("the connection was closed by this program"), flush=True)
        elif isinstance(method, m.ConnectionBlocked):
            self.blocked = method.reason
            self.owner.link_blocked(method.reason)
        elif isinstance(method, m.ConnectionUnblocked):
            self.blocked = None
            self.owner.link_blocked(None)
        elif self._waiter is not None:
            self._methods.append(method)
            if not self._waiter.done():
                self._waiter.set_result(None)
        else:
            raise ConnectionError_(505, f"the server sent {method.NAME}, unasked")

    # --- channels

    def port(self, owner: Owner, number: int = 0) -> Port:
        """Return a port with a free number, or with this one. The caller opens the channel."""
        if self.lost is not None:
            raise copy_of(self.lost)
        if not number or number in self.ports:
            number = next((n for n in range(1, self.channel_max + 1) if n not in self.ports), 0)
        if number == 0 or number > self.channel_max:
            raise AMQPError(
                f"all {self.channel_max} channels of this connection are in use; close one or connect again"
            )
        port = self.ports[number] = Port(self, number, owner)
        return port

    def release(self, port: Port) -> None:
        self.core.close_channel(port.number)
        self.ports.pop(port.number, None)

    # --- beginning and end

    async def handshake(self, name: str) -> None:
        """Log in and open the virtual host. Raise ConnectFailed or ConnectionLost."""
        self.core.out.add(PROTOCOL_HEADER)
        start = await self._expect(m.ConnectionStart)
        self.server_properties = start.server_properties
        self.send(handshake.start_ok(self.address, start, name, "Python, asyncio"))
        tune = await self._expect(m.ConnectionTune)
        self._tune(tune)
        self.send(m.ConnectionOpen(self.address.vhost))
        await self._expect(m.ConnectionOpenOk)
        self._waiter = None
        if self.heartbeat_s:
            self._timer = self.loop.call_later(self.heartbeat_s / 2, self._beat)

    async def _expect(self, kind: type[M]) -> M:
        self.core.schedule()
        if not self._methods:
            if self.lost is not None:
                raise copy_of(self.lost)
            self._waiter = self.loop.create_future()
            await self._waiter
        method = self._methods.popleft()
        if not isinstance(method, kind):
            raise ConnectFailed(f"{self.address}: expected {kind.NAME}, the server sent {method.NAME}")
        return method

    def _tune(self, tune: m.ConnectionTune) -> None:
        agreed = handshake.tune_ok(self.address, tune)
        self.heartbeat_s, self.channel_max = agreed.heartbeat, agreed.channel_max
        frame_max = agreed.frame_max or 131072
        if frame_max < 4096:
            raise ConnectFailed(f"{self.address}: the server wants frames of {frame_max} bytes, AMQP needs 4096")
        self.core.frame_max = frame_max
        self.core.inp.reserve(min(2 * frame_max, 1 << 20))
        self.send(m.ConnectionTuneOk(self.channel_max, frame_max, self.heartbeat_s))

    def _beat(self) -> None:
        """Send a heartbeat if nothing else was sent, and end the link if the server was silent for two intervals.

        Where the loop itself stood still, the server gets time: what it has sent is not read yet.
        """
        assert self._timer is not None
        now = self.loop.time()
        late = now - self._timer.when()
        if late > self.heartbeat_s / 4:
            self.received_at += late
        if now - self.received_at > 2 * self.heartbeat_s:
            text = f"{self.address}: silent for two heartbeat intervals ({self.heartbeat_s} s)"
            self.fail(ConnectionLost(text))
            return
        if now - self.sent_at > self.heartbeat_s / 3 and not self.paused:
            self.core.out.add(HEARTBEAT_FRAME)
            self.flush()
        self._timer = self.loop.call_later(self.heartbeat_s / 2, self._beat)

    def fail(self, error: ConnectionLost, *, flush: bool = False) -> None:
        """End the link: close the socket, end all channels. With `flush` what is written is sent first. A second call
        does nothing."""
        if self.lost is not None:
            return
        self.lost = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.transport is not None and flush:
            self._timer = self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)
            self.transport.close()
        elif self.transport is not None:
            self.transport.abort()
        self._wake_drained()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(copy_of(error))
        reason = Closed("the connection was closed by this program") if self._closing else error
        for port in list(self.ports.values()):
            port.end(reason)
        self.owner.link_lost(self, error)

    def disown(self, error: Closed | None = None) -> None:
        """Leave the socket and all that waits, without a word to the event loop: it belongs to the parent process, or is closed."""
        error = error or Closed(disown.forked("connection"))
        self.lost = ConnectionLost(str(error))
        for port in self.ports.values():
            port.ended = port.shut = error
            port.core.die()
        if self.transport is not None:
            sock = self.transport.get_extra_info("socket")
            if sock is not None:
                disown.let_go(sock.fileno())

    async def close(self) -> None:
        """Close in order, at most CLOSE_TIMEOUT_S long. The socket is closed when this returns or raises."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                if self.lost is None:
                    self._closing = True
                    for port in self.ports.values():
                        port.core.write_acks()
                    self.send(m.ConnectionClose(200, "Goodbye"))
                await self._wait_gone()
        except TimeoutError:
            left = 0 if self.transport is None else self.transport.get_write_buffer_size()
            if left:
                log.warning("%s: closed with %d bytes that the server did not take in time", self.address, left)
        finally:
            self.fail(ConnectionLost("the connection was closed by this program"))
            if self.transport is not None and not self.gone.done():
                self.transport.abort()

    async def _wait_gone(self) -> None:
        if self.transport is not None:
            await asyncio.shield(self.gone)


async def answered(end: Awaitable[object]) -> None:
    """Wait for the broker's answer to a request that ends a channel or a consumer, for at most CLOSE_TIMEOUT_S.

    A broker that blocks a publisher reads nothing from its connection, and answers when it reads again, which may be never.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await end


class LinkOwner(Protocol):
    """What a link tells its connection."""

    def link_lost(self, link: Link, error: ConnectionLost) -> None:
        """The link has ended, after all its ports. Called once."""

    def loop_closed(self) -> AMQPError:
        """The event loop was closed before the link was. Return the error to be raised."""

    def link_blocked(self, reason: str | None) -> None:
        """The broker takes no publishes for this reason, or takes them again."""


def copy_of(error: AMQPError) -> AMQPError:
    """Return an exception like this one: each caller that is told gets a traceback of its own."""
    if isinstance(error, ConnectionLost):
        return ConnectionLost(error.text, error.code)
    if isinstance(error, ChannelClosed):
        return ChannelClosed(error.code, error.text)
    copied = type(error)(*error.args)
    with contextlib.suppress(AttributeError):
        copied.__cause__ = error.__cause__
    return copied


def forget(future: asyncio.Future[Any]) -> None:
    """Take the error of an answer that nobody waits for, so that asyncio does not report it."""
    if not future.cancelled():
        future.exception()

"""A synchronous AMQP 0-9-1 connection: one thread calls, waits and gets answers, and another thread sends heartbeats.

All waiting happens in `wait_until`, which both sends and receives: a publisher whose broker stops reading still
receives the confirms that the broker wants to send, so the two never wait for each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar, cast

from kvitto.base.errors import ConnectionError_
from kvitto.client import disown, handshake
from kvitto.client.channel import Channel
from kvitto.client.codec import METHOD, Scanner
from kvitto.client.errors import AMQPError, ConnectFailed, ConnectionLost
from kvitto.client.transport import WOULD_BLOCK, Transport
from kvitto.client.uri import DEFAULT_URI, Address, parse_uri
from kvitto.wire import methods as m
from kvitto.wire.spec import FRAME_METHOD, PROTOCOL_HEADER
from kvitto.wire.tables import Table

CLOSE_TIMEOUT_S = 5.0
M = TypeVar("M", bound=m.Method)


class Connection:
    """`with Connection(uri) as connection: channel = connection.channel()`.

    With `buffer_bytes` > 0 publishes are collected until there are that many bytes, or until the caller waits for
    anything or calls `flush`. This is far faster for streams of small messages. Raises ConnectFailed, later
    ConnectionLost.
    """

    def __init__(
        self,
        uri: str = DEFAULT_URI,
        *,
        name: str = "",
        buffer_bytes: int = 0,
        heartbeat_thread: bool = True,
    ) -> None:
        self.address: Address = parse_uri(uri)
        self.buffer_bytes = buffer_bytes
        self.channels: dict[int, Channel] = {}
        self.closed: ConnectionLost | None = None
        self.blocked: str | None = None
        """The reason why the server accepts no publishes now (connection.blocked), else None."""
        self.server_properties: Table = {}
        self.heartbeat_s = 0
        self.channel_max = 0
        self.frame_max = self.address.frame_max
        self.scanner = Scanner()
        self._replies: list[m.Method] = []
        self.transport = Transport(self.address)
        self.out = self.transport.out
        disown.own(self)
        try:
            self._handshake(name)
        except BaseException:
            self.transport.close()
            raise
        if self.heartbeat_s and heartbeat_thread:
            self.transport.start_heartbeats(self.heartbeat_s)

    def channel(self) -> Channel:
        """Open a new channel."""
        number = next((n for n in range(1, self.channel_max + 1) if n not in self.channels), 0)
        if number == 0:
            raise AMQPError(
                f"all {self.channel_max} channels of this connection are in use; close one or connect again"
            )
        channel = Channel(self, number, self.scanner.open(number))
        self.channels[number] = channel
        channel.call(m.ChannelOpen(), m.ChannelOpenOk)
        return channel

    def process(self, timeout_s: float | None = 0.0) -> None:
        """Send and receive what is possible, waiting up to `timeout_s` for input; run callbacks."""
        self._check()
        if not self.read():
            flushed = self.push()
            self._wait(not flushed, timeout_s)
            self.read()
        self.push()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all publishes and acks are handed to the operating system. Raise TimeoutError if it takes longer."""
        self._check()
        if self.push():
            return
        self.wait_until(lambda: self.transport.out.n == 0, timeout_s, "for the broker to take what is published")

    def wait_until(self, condition: Callable[[], bool], timeout_s: float | None, what: str) -> None:
        """Wait for `condition()`. Raise TimeoutError, which names `what` was waited for, or ConnectionLost if it can no
        longer come."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            flushed = self.push()
            if condition():
                return
            self._check()
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"{self.address}: waited {timeout_s:g} s {what}, in vain")
            self._wait(not flushed, left)
            self.read()

    def read(self) -> bool:
        """Receive the bytes that have arrived. Return False if there are none. This never waits."""
        try:
            count = self.transport.receive(self.scanner.inp)
        except OSError as error:
            self._lost(f"{self.address}: {error.strerror or error}")
            return True
        if count == WOULD_BLOCK:
            return False
        if count == 0:
            self._lost(f"{self.address}: the server closed the connection without saying why")
            return True
        try:
            self.scanner.scan(time.monotonic_ns())
        except ConnectionError_ as error:
            self._lost(f"{self.address}: {error.text}", error.code)
        if self.scanner.events:
            self.dispatch()
        return True

    def dispatch(self) -> None:
        """Handle what the scanner has left for Python: methods, returned messages, answers to gets."""
        events, self.scanner.events = self.scanner.events, []
        for event in events:
            self._dispatch(event)

    def send(self, method: m.Method, channel: int = 0) -> None:
        """Put a method into the output; it is sent with the next flush or wait."""
        self.out.add(m.frame(FRAME_METHOD, channel, method.encode()))

    def close(self) -> None:
        """Close the connection in order. If it is closed already, do nothing."""
        if self.closed is None:
            try:
                self.send(m.ConnectionClose(200, "Goodbye"))
                self.wait_until(lambda: self.closed is not None, CLOSE_TIMEOUT_S, "for the goodbye")
            except (AMQPError, TimeoutError, OSError):
                pass
        self._lost("the connection was closed by this client")

    def disown(self) -> None:
        """Call this in a forked child: from then on each call raises ConnectionLost, and nothing reaches the parent's socket."""
        self.closed = self.closed or ConnectionLost(disown.forked("connection"))
        for channel in self.channels.values():
            channel.disown()

    def fileno(self) -> int:
        """For select: when it is readable, `process` has something to do."""
        return self.transport.fileno()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def push(self) -> bool:
        """Send what the socket takes, without waiting. Return True if nothing is left.

        If the connection broke, the bytes that the server sent before are handled first, because they may name the
        reason.
        """
        try:
            return self.transport.flush()
        except OSError as error:
            while self.closed is None and self.read():
                pass
            self._lost(f"{self.address}: {error.strerror or error}")
            return True

    def _check(self) -> None:
        if self.closed is not None:
            raise ConnectionLost(self.closed.text, self.closed.code) from None

    def _wait(self, write: bool, timeout_s: float | None) -> None:
        """Wait on the socket, at most one heartbeat interval: a silence of two means that the server is gone."""
        if self.heartbeat_s:
            timeout_s = self.heartbeat_s if timeout_s is None else min(timeout_s, self.heartbeat_s)
            if time.monotonic() - self.transport.received_at > 2 * self.heartbeat_s and not self.read():
                self._lost(f"{self.address}: silent for two heartbeat intervals ({self.heartbeat_s} s)")
            self._check()
        self.transport.wait(write, timeout_s)

    def _lost(self, text: str, code: int = 0) -> None:
        if self.closed is None:
            self.closed = ConnectionLost(text, code)
        self.transport.close()

    def _dispatch(self, event: tuple[object, ...]) -> None:
        number = cast(int, event[0])
        if number != 0:
            channel = self.channels.get(number)
            if channel is not None:
                channel.take(event)
            return
        if event[1] != METHOD:
            return
        method = m.decode(cast(bytes, event[2]))
        if isinstance(method, m.ConnectionClose):
            self.send(m.ConnectionCloseOk())
            self.push()
            self._lost(f"{self.address}: {method.reply_text}", method.reply_code)
        elif isinstance(method, m.ConnectionCloseOk):
            self._lost("the connection was closed by this client")
        elif isinstance(method, m.ConnectionBlocked):
            self.blocked = method.reason
        elif isinstance(method, m.ConnectionUnblocked):
            self.blocked = None
        else:
            self._replies.append(method)

    def _handshake(self, name: str) -> None:
        """Send the header, start, tune and open. Every failure becomes a ConnectFailed with a hint."""
        try:
            self.out.add(PROTOCOL_HEADER)
            start = self._expect(m.ConnectionStart)
            self.server_properties = start.server_properties
            self.send(handshake.start_ok(self.address, start, name))
            tune = self._expect(m.ConnectionTune)
            self._tune(tune)
            self.send(m.ConnectionOpen(self.address.vhost))
            self._expect(m.ConnectionOpenOk)
        except ConnectionLost as lost:
            raise ConnectFailed(handshake.why(self.address, lost), lost.code) from None
        except TimeoutError as late:
            raise ConnectFailed(f"{late}; is it an AMQP 0-9-1 port?") from None

    def _tune(self, tune: m.ConnectionTune) -> None:
        agreed = handshake.tune_ok(self.address, tune)
        self.heartbeat_s, self.channel_max, self.frame_max = agreed.heartbeat, agreed.channel_max, agreed.frame_max
        self.scanner.frame_max = self.frame_max
        self.scanner.inp.reserve(2 * self.frame_max)
        self.send(agreed)

    def _expect(self, kind: type[M]) -> M:
        """Return the next method on channel 0, which has to be of that kind."""
        what = f"for {kind.NAME} of the server"
        self.wait_until(lambda: bool(self._replies), self.address.connect_timeout_s, what)
        reply = self._replies.pop(0)
        if not isinstance(reply, kind):
            raise ConnectFailed(f"{self.address}: expected {kind.NAME}, the server sent {reply.NAME}")
        return reply

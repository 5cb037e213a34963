"""A connection with the interface of py-amqp's, which kombu and Celery use, on the compiled codec.

Received deliveries wait in `waiting`, in the order of the wire, and `drain_events` hands them out one at a time: a call
that waits for an answer runs no callbacks of consumers. Everything else is handled when it is received.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

import amqp
from amqp.exceptions import ConnectionForced, RecoverableConnectionError, ResourceError, error_for_code
from amqp.transport import Transport as connect_socket

from kvitto.base import limits
from kvitto.base.errors import ConnectionError_
from kvitto.base.version import __version__
from kvitto.client.codec import DELIVER, EVENTS, METHOD, Scanner, put_publish, put_settle
from kvitto.client.handshake import CAPABILITIES
from kvitto.client.transport import HEARTBEAT_FRAME, WOULD_BLOCK, Transport
from kvitto.kombu.bell import Bell
from kvitto.kombu.channel import Channel
from kvitto.wire import methods as m
from kvitto.wire.spec import FRAME_METHOD
from kvitto.wire.tables import Table, encode

M = TypeVar("M", bound=m.Method)
E = TypeVar("E", bound=Exception)


class Connection:
    """One AMQP connection. Its parameters are those of `amqp.Connection`, which kombu fills from URL and options."""

    connection_errors = amqp.Connection.connection_errors
    channel_errors = amqp.Connection.channel_errors
    recoverable_connection_errors = amqp.Connection.recoverable_connection_errors
    recoverable_channel_errors = amqp.Connection.recoverable_channel_errors

    def __init__(
        self,
        host: str = "localhost:5672",
        userid: str = "guest",
        password: str = "guest",
        login_method: str | None = None,
        virtual_host: str = "/",
        locale: str = "en_US",
        client_properties: Table | None = None,
        ssl: bool | dict[str, Any] = False,
        connect_timeout: float | None = None,
        channel_max: int | None = None,
        frame_max: int | None = None,
        heartbeat: float = 0,
        on_open: Callable[[Connection], object] | None = None,
        on_blocked: Callable[[str], object] | None = None,
        on_unblocked: Callable[[], object] | None = None,
        confirm_publish: bool = False,
        read_timeout: float | None = None,
        write_timeout: float | None = None,
        socket_settings: dict[int, Any] | None = None,
        **others: Any,
    ) -> None:
        self.host = host
        self.userid = userid
        self.password = password
        self.login_method = login_method or "PLAIN"
        self.virtual_host = virtual_host
        self.locale = locale
        self.ssl = ssl
        self.connect_timeout = connect_timeout
        self.channel_max = channel_max or 65535
        self.frame_max = frame_max or limits.FRAME_MAX
        self.client_heartbeat = heartbeat or 0
        self.heartbeat: float = 0
        """The interval in seconds that was agreed with the server; 0 is none."""
        self.on_open = on_open
        self.on_blocked = on_blocked
        self.on_unblocked = on_unblocked
        self.bell: Bell | None = None
        """Of the event loop that reads from this connection; it rings while deliveries wait."""
        self.confirm_publish = confirm_publish
        self.read_timeout = read_timeout
        self.write_timeout = write_timeout
        self.socket_settings = socket_settings
        self.client: Any = None
        """The kombu Connection that made this one."""
        self.client_properties: Table = {
            "product": "Kvitto kombu transport",
            "version": __version__,
            "capabilities": dict(CAPABILITIES),
            **(client_properties or {}),
        }
        self.server_properties: Table = {}
        self.channels: dict[int, Channel] | None = {}
        self.blocked: str | None = None
        self.is_closing = False
        self.scanner = Scanner()
        self.waiting: deque[tuple[Any, ...]] = deque()
        self._replies: list[m.Method] = []
        self._transport: Transport | None = None
        self._lost = ""
        """Why the connection was lost."""
        self._failed: list[Channel] = []
        self._lock = threading.Lock()
        """For the output: threads may publish side by side."""
        self._reading = threading.Lock()
        self._pid = 0

    # --- opening and closing

    def connect(self) -> None:
        """Connect and log in. If it is connected already, do nothing. Raises OSError or an error of amqp.exceptions."""
        if self.connected:
            return
        # py-amqp's transport connects: its TLS options, socket settings and failover between addresses are the interface
        opened = connect_socket(
            self.host, connect_timeout=self.connect_timeout, ssl=self.ssl, socket_settings=self.socket_settings
        )
        opened.connect()
        sock, opened.sock = opened.sock, None  # it would close the socket when it is freed
        sock.setblocking(False)
        self._lost = ""
        self._transport = Transport(sock)
        self._pid = os.getpid()
        try:
            self._handshake()
        except BaseException:
            self.collect()
            raise
        if self.on_open is not None:
            self.on_open(self)

    def _handshake(self) -> None:
        start = self._expect(m.ConnectionStart)
        self.server_properties = start.server_properties
        self.send(m.ConnectionStartOk(self.client_properties, *self._login(start.mechanisms.split()), self.locale))
        tune = self._expect(m.ConnectionTune)
        self.channel_max = min(self.channel_max, tune.channel_max or 65535)
        self.frame_max = min(self.frame_max, tune.frame_max or self.frame_max)
        both = (tune.heartbeat, int(self.client_heartbeat))
        self.heartbeat = (min(both) or max(both)) if self.client_heartbeat else 0
        self.scanner.frame_max = self.frame_max
        self.send(m.ConnectionTuneOk(self.channel_max, self.frame_max, int(self.heartbeat)))
        self.send(m.ConnectionOpen(self.virtual_host))
        self._expect(m.ConnectionOpenOk)

    def _login(self, offered: list[bytes]) -> tuple[str, bytes]:
        """Return the mechanism and the response."""
        mechanism = self.login_method
        if mechanism.encode() not in offered:
            names = b", ".join(offered).decode(errors="replace")
            raise amqp.exceptions.ConnectionError(f"the server does not offer the login {mechanism}, only {names}")
        if mechanism == "EXTERNAL":
            return mechanism, b""
        if mechanism == "AMQPLAIN":
            return mechanism, encode({"LOGIN": self.userid, "PASSWORD": self.password})[4:]
        if mechanism == "PLAIN":
            return mechanism, f"\0{self.userid}\0{self.password}".encode()
        raise ValueError(f"login_method is PLAIN, AMQPLAIN or EXTERNAL with kvitto://, not {mechanism!r}")

    def _expect(self, kind: type[M]) -> M:
        self.wait_until(lambda: bool(self._replies), self.connect_timeout)
        reply = self._replies.pop(0)
        if not isinstance(reply, kind):
            raise amqp.exceptions.UnexpectedFrame(f"expected {kind.NAME}, the server sent {reply.NAME}")
        return reply

    @property
    def connected(self) -> bool:
        return self._transport is not None

    @property
    def transport(self) -> Transport:
        if self._transport is None:
            raise RecoverableConnectionError(f"connection already closed{self._lost}")
        return self._transport

    @property
    def sock(self) -> socket.socket:
        return self.transport.sock

    @property
    def server_capabilities(self) -> Table:
        return cast(Table, self.server_properties.get("capabilities") or {})

    def close(self) -> None:
        """Close the connection in order. If it is closed or lost, release what is left of it."""
        try:
            if self.connected:
                self.is_closing = True
                self.send(m.ConnectionClose(200, "Goodbye"))
                with contextlib.suppress(RecoverableConnectionError):  # the server may just close the socket
                    self.wait_until(lambda: self._transport is None, None)
        finally:
            self.is_closing = False
            self.collect()

    def collect(self) -> None:
        """Close the socket without a word, for example in a child that inherited it."""
        transport, self._transport = self._transport, None
        bell, self.bell = self.bell, None
        if bell is not None:
            bell.close()
        if transport is not None:
            if self._pid == os.getpid():  # other processes that inherited it keep the socket open
                with contextlib.suppress(OSError):
                    transport.flush()
                    transport.sock.shutdown(socket.SHUT_RDWR)
            transport.close()
        channels, self.channels = self.channels, None
        for channel in list((channels or {}).values()):
            channel.collect()
        self.waiting.clear()
        self._failed.clear()

    def __enter__(self) -> Connection:
        self.connect()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- channels

    def channel(self, channel_id: int | None = None, callback: Callable[[Channel], object] | None = None) -> Channel:
        """Open a channel, or return the open channel of that number."""
        if self.channels is None:
            raise RecoverableConnectionError("Connection already closed.")
        if channel_id is not None and channel_id in self.channels:
            return self.channels[channel_id]
        number = channel_id or next((n for n in range(1, self.channel_max + 1) if n not in self.channels), 0)
        if number == 0:
            raise ResourceError(f"all {self.channel_max} channels of this connection are in use", (20, 10))
        channel = Channel(self, number)
        channel.open()
        if callback is not None:
            callback(channel)
        return channel

    def register(self, channel: Channel) -> None:
        """Send what is received for this channel to it."""
        assert self.channels is not None
        self.channels[channel.channel_id] = channel
        sink = self.scanner.open(channel.channel_id)
        sink.mode = EVENTS
        channel.sink = sink

    def failed(self, channel: Channel) -> None:
        """Remember that the channel has an error that its next caller gets, or the next to drain events."""
        self._failed.append(channel)

    # --- sending

    def send(self, method: m.Method, channel: int = 0) -> None:
        """Send a method."""
        transport = self.transport
        with self._lock:
            transport.out.add(m.frame(FRAME_METHOD, channel, method.encode()))
        self.push(self.write_timeout)

    def publish(
        self,
        channel: int,
        exchange: bytes,
        routing_key: bytes,
        flags: int,
        properties: bytes,
        body: bytes,
        timeout_s: float | None,
    ) -> None:
        """Send a publish. Raise RecoverableConnectionError if the broker does not take it in time."""
        transport = self.transport
        with self._lock:
            put_publish(transport.out, channel, exchange, routing_key, flags, properties, body, self.frame_max)
        try:
            self.push(timeout_s or self.write_timeout)
        except TimeoutError:
            raise RecoverableConnectionError("basic_publish: timed out") from None

    def settle(self, channel: int, method: int, tag: int, flags: int) -> None:
        """Send an ack (80), reject (90) or nack (120). An event loop sends those of one round together."""
        transport = self.transport
        with self._lock:
            put_settle(transport.out, channel, method, tag, flags)
        if self.bell is None or self.bell.thread != threading.get_ident():
            self.push(self.write_timeout)

    def push_settlements(self) -> None:
        """Send what an event loop has settled in this round."""
        if self._transport is not None and self._transport.out.n:
            self.push(self.write_timeout)

    def push(self, timeout_s: float | None = None) -> None:
        """Send all that is in the output, and receive meanwhile, so that the two never wait for each other. Raise
        TimeoutError if the broker does not take it in time."""
        transport = self.transport
        try:
            with self._lock:
                if transport.flush():
                    return
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            while True:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError("timed out")
                transport.wait(True, left)
                self.read()
                with self._lock:
                    if transport.flush():
                        return
        except TimeoutError:
            raise
        except OSError as error:
            self.fail(error)
            raise

    # --- receiving

    def drain_events(self, timeout: float | None = None) -> None:
        """Wait for one event and handle it: a delivery, or anything else that the server sends. Raise socket.timeout if
        there is none in time (seconds; 0 does not wait, None waits for ever)."""
        self._raise_failed()
        if not self.waiting:
            self._receive(self.read_timeout if timeout is None else timeout)
            self._raise_failed()
            if not self.waiting:
                return
        event = self.waiting.popleft()
        channel = self.channels.get(event[0]) if self.channels is not None else None
        if channel is not None:
            channel.deliver(event)

    def take_waiting(self, channel: int, consumer_tag: str) -> list[tuple[Any, ...]]:
        """Remove the deliveries of a consumer that wait, and return them."""
        found = [event for event in self.waiting if event[0] == channel and event[2] == consumer_tag]
        if found:
            self.waiting = deque(event for event in self.waiting if event[0] != channel or event[2] != consumer_tag)
        return found

    def announce(self) -> None:
        """Tell the event loop of deliveries that wait."""
        if self.waiting and self.bell is not None:
            self.bell.ring()

    def wait_until(self, condition: Callable[[], bool], timeout_s: float | None) -> None:
        """Receive until the condition holds. Raise socket.timeout, or the error with which the connection was lost."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not condition():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError("timed out")
            self._receive(left)
        self.announce()

    def _receive(self, timeout_s: float | None) -> None:
        """Wait until the server has sent something, and read it. Raise socket.timeout if there is nothing in time (seconds; 0 does
        not wait, None waits for ever)."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        transport = self.transport
        while not self.read():  # a TLS socket can also be readable for what is OpenSSL's alone, such as session tickets
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError("timed out")
            self.push_settlements()
            transport.wait(False, left)

    def read(self) -> bool:
        """Receive what has arrived, and handle all of it but deliveries. Return False if nothing has, or while another
        thread does the same. This never waits."""
        if not self._reading.acquire(blocking=False):
            return False
        try:
            return self._read()
        finally:
            self._reading.release()

    def _read(self) -> bool:
        transport = self.transport
        try:
            count = transport.receive(self.scanner.inp)
        except OSError as error:
            self.fail(error)
            raise
        if count == WOULD_BLOCK:
            return False
        if count == 0:
            raise self.fail(ConnectionResetError("Server unexpectedly closed connection"))
        try:
            self.scanner.scan(0)
        except ConnectionError_ as error:
            raise self.fail(error_for_code(error.code, error.text, (0, 0), amqp.exceptions.ConnectionError)) from None
        if self.scanner.events:
            events, self.scanner.events = self.scanner.events, []
            for event in events:
                if event[1] == DELIVER:
                    self.waiting.append(event)
                else:
                    self._handle(event)
        if transport.tls and self.connected and transport.sock.pending():  # type: ignore[attr-defined]
            self._read()  # no loop would be told of bytes that are decrypted already
        return True

    def _handle(self, event: tuple[Any, ...]) -> None:
        number = event[0]
        if number != 0:
            channel = self.channels.get(number) if self.channels is not None else None
            if channel is not None:
                channel.take(event)
            return
        if event[1] != METHOD:
            return
        method = m.decode(event[2])
        if isinstance(method, m.ConnectionClose):
            with contextlib.suppress(OSError, RecoverableConnectionError):
                self.send(m.ConnectionCloseOk())
            cause = (method.class_id, method.method_id)
            error = error_for_code(method.reply_code, method.reply_text, cause, amqp.exceptions.ConnectionError)
            raise self.fail(error)
        if isinstance(method, m.ConnectionCloseOk):
            self.collect()
        elif isinstance(method, m.ConnectionBlocked):
            self.blocked = method.reason
            if self.on_blocked is not None:
                self.on_blocked(method.reason)
        elif isinstance(method, m.ConnectionUnblocked):
            self.blocked = None
            if self.on_unblocked is not None:
                self.on_unblocked()
        else:
            self._replies.append(method)

    def fail(self, error: E) -> E:
        """Close the socket, because the connection is lost, and return the error."""
        self._lost = f" ({error})"
        self.collect()
        return error

    def _raise_failed(self) -> None:
        while self._failed:
            self._failed.pop(0).raise_error()

    # --- heartbeats

    def send_heartbeat(self) -> None:
        with self._lock:
            self.transport.out.add(HEARTBEAT_FRAME)
        self.push(self.write_timeout)

    def heartbeat_tick(self, rate: float = 2) -> None:
        """Send a heartbeat if nothing was sent for an interval divided by `rate`. Raise ConnectionForced if the server
        has been silent for two intervals. Call this more often than `rate` times in an interval."""
        if not self.heartbeat:
            return
        transport = self.transport
        now = time.monotonic()
        if now > transport.sent_at + self.heartbeat / (rate if rate > 0 else 2):
            self.send_heartbeat()
        if now > transport.received_at + 2 * self.heartbeat and not self.read():
            raise ConnectionForced("Too many heartbeats missed")

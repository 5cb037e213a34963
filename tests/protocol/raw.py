"""An AMQP client that hides nothing: it sends the bytes it is told to and shows every frame that comes back."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any, Self, TypeVar

from kvitto.wire import methods as m
from kvitto.wire.methods import Method, decode, frame
from kvitto.wire.properties import Properties
from kvitto.wire.spec import FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD, PROTOCOL_HEADER

M = TypeVar("M", bound=Method)

TIMEOUT_S = 20.0
FILLER = 99
"""The channel that `put_in` uses."""
NO_PROPERTIES = b"\0\0"
ALL_CAPABILITIES = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}


class Message:
    """A delivered, fetched or returned message with the method that brought it."""

    def __init__(self, method: Method, properties: Properties, body: bytes) -> None:
        self.method: Any = method
        self.properties = properties
        self.body = body

    @property
    def headers(self) -> dict[str, Any]:
        return dict(self.properties.headers or {})


class Raw:
    """One socket. Without `login` not even the protocol header has been sent."""

    def __init__(self, port: int, *, login: bool = True, **tuning: Any) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._input = self.socket.makefile("rb")
        self.frame_max = 131072
        if login:
            self.login(**tuning)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()

    # -- out -------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def put(self, channel: int, *methods: Method) -> None:
        self.send(b"".join(frame(FRAME_METHOD, channel, method.encode()) for method in methods))

    def publish(
        self,
        channel: int,
        exchange: str,
        key: str,
        body: bytes = b"",
        *,
        mandatory: bool = False,
        immediate: bool = False,
        **properties: Any,
    ) -> None:
        method = m.BasicPublish(exchange, key, mandatory, immediate)
        self.send(content(channel, method, Properties(**properties).encode(), body, self.frame_max))

    def drop(self) -> None:
        """Close the socket without a word."""
        self._input.close()
        self.socket.close()

    def reset(self) -> None:
        """Close the socket so that the peer gets a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.drop()

    # -- in --------------------------------------------------------------------------------------------------

    def frame(self) -> tuple[int, int, bytes] | None:
        """Type, channel and payload of the next frame, None at the end of the stream."""
        head = self._input.read(7)
        if len(head) < 7:
            assert not head, f"the stream ends inside a frame: {head!r}"
            return None
        size = int.from_bytes(head[3:7], "big")
        rest = self._input.read(size + 1)
        assert len(rest) == size + 1 and rest[-1] == FRAME_END
        assert size + 8 <= self.frame_max, "a frame larger than frame_max"
        return head[0], int.from_bytes(head[1:3], "big"), rest[:-1]

    def next(self) -> tuple[int, int, bytes]:
        """The next frame that is no heartbeat."""
        while (found := self.frame()) is not None:
            if found[0] != FRAME_HEARTBEAT:
                return found
        raise AssertionError("the broker closed the socket")

    def method(self) -> tuple[int, Method]:
        """Channel and method of the next frame, which must be a method frame."""
        kind, channel, payload = self.next()
        assert kind == FRAME_METHOD, f"frame of type {kind} instead of a method"
        return channel, decode(payload)

    def expect(self, wanted: type[M]) -> M:
        """The next method, which must be `wanted`."""
        _, method = self.method()
        assert isinstance(method, wanted), f"{method!r} instead of {wanted.NAME}"
        return method

    def message(self, wanted: type[Method] = m.BasicDeliver) -> Message:
        """The next method, which must be `wanted`, with its content."""
        method = self.expect(wanted)
        kind, channel, header = self.next()
        assert kind == FRAME_HEADER
        size, body = int.from_bytes(header[4:12], "big"), bytearray()
        while len(body) < size:
            kind, number, payload = self.next()
            assert (kind, number) == (FRAME_BODY, channel) and payload
            body += payload
        assert len(body) == size
        return Message(method, Properties.decode(header[12:]), bytes(body))

    def ended(self) -> bool:
        """Whether the broker says nothing more and ends the stream."""
        try:
            while (found := self.frame()) is not None:
                assert found[0] == FRAME_HEARTBEAT, f"another frame: {found}"
        except ConnectionResetError:
            pass
        return True

    def call(self, channel: int, method: Method, wanted: type[M]) -> M:
        self.put(channel, method)
        return self.expect(wanted)

    # -- conversations ---------------------------------------------------------------------------------------

    def login(
        self,
        *,
        frame_max: int = 131072,
        channel_max: int = 2047,
        heartbeat: int = 0,
        vhost: str = "/",
        user: str = "guest",
        password: str = "guest",
        capabilities: dict[str, bool] | None = None,
    ) -> None:
        self.send(PROTOCOL_HEADER)
        self.expect(m.ConnectionStart)
        able = ALL_CAPABILITIES if capabilities is None else capabilities
        response = f"\0{user}\0{password}".encode()
        self.call(0, m.ConnectionStartOk({"capabilities": dict(able)}, "PLAIN", response, "en_US"), m.ConnectionTune)
        self.put(0, m.ConnectionTuneOk(channel_max, frame_max, heartbeat))
        self.call(0, m.ConnectionOpen(vhost), m.ConnectionOpenOk)
        self.frame_max = frame_max or 131072

    def channel(self, number: int = 1, *, confirm: bool = False) -> int:
        self.call(number, m.ChannelOpen(), m.ChannelOpenOk)
        if confirm:
            self.call(number, m.ConfirmSelect(), m.ConfirmSelectOk)
        return number

    def declare(self, name: str = "", channel: int = 1, **options: Any) -> str:
        return self.call(channel, m.QueueDeclare(name, **options), m.QueueDeclareOk).queue

    def count(self, queue: str, channel: int = 1) -> int:
        """Ready messages of a queue."""
        return self.call(channel, m.QueueDeclare(queue, passive=True), m.QueueDeclareOk).message_count

    def get(self, queue: str, channel: int = 1, *, no_ack: bool = False) -> Message | None:
        self.put(channel, m.BasicGet(queue, no_ack))
        kind, number, payload = self.next()
        method = decode(payload)
        if isinstance(method, m.BasicGetEmpty):
            return None
        assert isinstance(method, m.BasicGetOk), method
        _, _, header = self.next()
        size, body = int.from_bytes(header[4:12], "big"), bytearray()
        while len(body) < size:
            body += self.next()[2]
        assert kind == FRAME_METHOD and number == channel
        return Message(method, Properties.decode(header[12:]), bytes(body))

    def put_in(self, queue: str, *bodies: bytes, **properties: Any) -> None:
        """Publish to a queue and wait until all is in it, on a channel of its own."""
        channel = self.channel(FILLER, confirm=True)
        for body in bodies:
            self.publish(channel, "", queue, body, **properties)
        while bodies and self.expect(m.BasicAck).delivery_tag < len(bodies):
            pass
        self.call(channel, m.ChannelClose(200, "done"), m.ChannelCloseOk)

    def drain(self, queue: str, channel: int = 1) -> list[bytes]:
        bodies = []
        while (found := self.get(queue, channel, no_ack=True)) is not None:
            bodies.append(found.body)
        return bodies

    def consume(self, queue: str, channel: int = 1, **options: Any) -> str:
        return self.call(channel, m.BasicConsume(queue, **options), m.BasicConsumeOk).consumer_tag

    def channel_error(self, code: int, channel: int = 1) -> m.ChannelClose:
        """The next method must close the channel with this code; it is answered."""
        number, method = self.method()
        assert isinstance(method, m.ChannelClose) and number == channel, method
        assert method.reply_code == code, method
        self.put(channel, m.ChannelCloseOk())
        return method

    def connection_error(self, code: int) -> m.ConnectionClose:
        """The next method must close the connection with this code; it is answered, and the stream ends."""
        method = self.expect(m.ConnectionClose)
        assert method.reply_code == code, method
        self.put(0, m.ConnectionCloseOk())
        assert self.ended()
        return method


def content(channel: int, method: Method, properties: bytes, body: bytes, frame_max: int = 131072) -> bytes:
    """Method, header and body frames of one message."""
    header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + properties
    step = frame_max - 8
    parts = [frame(FRAME_METHOD, channel, method.encode()), frame(FRAME_HEADER, channel, header)]
    parts += [frame(FRAME_BODY, channel, body[at : at + step]) for at in range(0, len(body), step)]
    return b"".join(parts)

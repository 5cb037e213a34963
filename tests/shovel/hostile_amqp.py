"""A server that speaks AMQP as far as a test wants, and then does what a broker never does. Each connection has a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from kvitto.wire import methods as m
from kvitto.wire.methods import Method
from kvitto.wire.spec import FRAME_METHOD

Part = Callable[["Peer"], None]


class Peer:
    """The server's side of one connection."""

    def __init__(self, sock: socket.socket, stop: threading.Event) -> None:
        self.sock = sock
        self.stop = stop
        self._input = b""

    def read(self, n: int) -> bytes:
        """Return exactly n bytes. Raise ConnectionError at the end."""
        while len(self._input) < n:
            data = self.sock.recv(1 << 16)
            if not data:
                raise ConnectionError("the client has gone")
            self._input += data
        data, self._input = self._input[:n], self._input[n:]
        return data

    def frame(self) -> tuple[int, int, bytes]:
        head = self.read(7)
        size = int.from_bytes(head[3:], "big")
        return head[0], int.from_bytes(head[1:3], "big"), self.read(size + 1)[:-1]

    def method(self) -> tuple[int, Method]:
        """Return (channel, the next method), and pass over contents and heartbeats."""
        while True:
            kind, channel, payload = self.frame()
            if kind == FRAME_METHOD:
                return channel, m.decode(payload)

    def send(self, method: Method, channel: int = 0) -> None:
        self.sock.sendall(m.frame(FRAME_METHOD, channel, method.encode()))

    def log_in(self, tune: m.ConnectionTune | None = None) -> None:
        self.read(8)
        self.send(m.ConnectionStart(0, 9, {"capabilities": {}}, b"PLAIN", b"en_US"))
        self.method()
        self.send(tune or m.ConnectionTune(2047, 131072, 0))
        self.method()
        self.method()
        self.send(m.ConnectionOpenOk())

    def answer_until(self, kind: type[Method]) -> tuple[int, Method]:
        """Answer what a shovel asks before it publishes. Return (channel, the first method of this kind), which is not answered."""
        while True:
            channel, method = self.method()
            if isinstance(method, kind):
                return channel, method
            found = ANSWERS.get(type(method))
            if found is not None and (answer := found(method)) is not None:
                self.send(answer, channel)

    def wait(self) -> None:
        """Read until the client or the test ends."""
        while not self.stop.is_set():
            self.method()


ANSWERS: dict[type[Method], Callable[..., Method | None]] = {
    m.ChannelOpen: lambda _: m.ChannelOpenOk(),
    m.ChannelClose: lambda _: m.ChannelCloseOk(),
    m.ConfirmSelect: lambda asked: None if asked.no_wait else m.ConfirmSelectOk(),
    m.QueueDeclare: lambda asked: m.QueueDeclareOk(asked.queue, 0, 0),
    m.BasicQos: lambda _: m.BasicQosOk(),
    m.BasicConsume: lambda asked: m.BasicConsumeOk(asked.consumer_tag),
    m.ConnectionClose: lambda _: m.ConnectionCloseOk(),
}


@contextmanager
def amqp(part: Part) -> Iterator[str]:
    """A server that plays this part to each client. Yields its URI."""
    listening = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()
    socks: list[socket.socket] = []

    def serve(sock: socket.socket) -> None:
        with sock, suppress(OSError, ValueError):
            part(Peer(sock, stop))

    def accept() -> None:
        while True:
            try:
                sock, _ = listening.accept()
            except OSError:
                return
            socks.append(sock)
            threading.Thread(target=serve, args=(sock,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"amqp://guest:guest@127.0.0.1:{listening.getsockname()[1]}"
    finally:
        stop.set()
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for sock in socks:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        thread.join()

"""A peer that sends whatever it is told, never waits for one answer before it sends the next, and counts what comes back."""

from __future__ import annotations

import json
import select
import socket
import struct
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.overload import handshake
from kvitto.wire import methods as m
from kvitto.wire.methods import frame
from kvitto.wire.properties import Properties
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD

WAIT_S = 120.0
"""As long as a peer waits for an answer before a row counts as stuck."""
FRAME_PAYLOAD = 131_072 - 8
READ = 1 << 18
_HEAD = struct.Struct(">BHII")


class Stuck(Exception):
    """What a row waits for does not come; the text says what it was."""


class Refused(Exception):
    """The broker has closed the channel or the connection."""


def method(channel: int, value: m.Method) -> bytes:
    return frame(FRAME_METHOD, channel, value.encode())


def message(body: bytes, key: str, exchange: str = "", channel: int = 1, **properties: Any) -> bytes:
    """All frames of one publish."""
    header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + Properties(**properties).encode()
    parts = [
        method(channel, m.BasicPublish(exchange, key)),
        frame(FRAME_HEADER, channel, header),
    ]
    parts += [frame(FRAME_BODY, channel, body[at : at + FRAME_PAYLOAD]) for at in range(0, len(body), FRAME_PAYLOAD)]
    return b"".join(parts)


class Peer:
    """One connection, channel 1 open (`opened=False`: not even the handshake)."""

    def __init__(self, port: int, vhost: str = "/", user: str = "guest", opened: bool = True) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.sock.setblocking(False)
        self.counts: Counter[int] = Counter()
        """Methods that have come, by `key_of`."""
        self.depth = 0
        """Messages in the queue that was declared last, as the answer said."""
        self.closes: list[str] = []
        """What the broker gave as reasons when it closed a channel or the connection."""
        self.ended = False
        self._rest = b""
        self._waited: Counter[int] = Counter()
        if opened:
            self.send(handshake(vhost, user))
            self.wait(m.ChannelOpenOk)

    def close(self) -> None:
        """Without a word, as a peer that has been killed."""
        self.sock.close()

    # -- out -------------------------------------------------------------------------------------------------

    def send(self, data: bytes | bytearray) -> None:
        """All of it, taking in meanwhile what the broker sends."""
        view = memoryview(data)
        until = time.monotonic() + WAIT_S
        while view.nbytes and not self.ended:
            ready = self._poll(select.POLLIN | select.POLLOUT, WAIT_S)
            if ready & ~select.POLLOUT:
                self.read()
            if ready & select.POLLOUT and not self.ended:
                try:
                    view = view[self.sock.send(view[: 1 << 20]) :]
                    until = time.monotonic() + WAIT_S
                except BlockingIOError:
                    continue
                except OSError:
                    self._end()
            if time.monotonic() > until:
                raise Stuck("the broker takes no input")

    def say(self, *values: m.Method, channel: int = 1) -> None:
        """Methods without waiting for what they are answered."""
        self.send(b"".join(method(channel, value) for value in values))

    def all(self, values: Iterable[m.Method], answer: type[m.Method], channel: int = 1) -> None:
        """Many methods behind each other, then all their answers."""
        values = list(values)
        for at in range(0, len(values), 1000):
            self.say(*values[at : at + 1000], channel=channel)
        self.wait(answer, len(values))

    def ask(self, value: m.Method, answer: type[m.Method], channel: int = 1) -> None:
        self.all([value], answer, channel)

    def queue(self, name: str, arguments: dict[str, Any] | None = None, durable: bool = True) -> None:
        self.queues([name], arguments, durable)

    def queues(self, names: Sequence[str], arguments: dict[str, Any] | None = None, durable: bool = True) -> None:
        declares = [m.QueueDeclare(name, durable=durable, arguments=arguments or {}) for name in names]
        self.all(declares, m.QueueDeclareOk)

    def fill(self, name: str, count: int, body: bytes = b"x", exchange: str = "", **properties: Any) -> None:
        """So many messages, confirmed."""
        if not self.had(m.ConfirmSelectOk):
            self.ask(m.ConfirmSelect(), m.ConfirmSelectOk)
        one = message(body, name, exchange, **properties)
        burst = one * min(count, max(1, (1 << 20) // len(one)))
        left = count
        while left > 0:
            now = min(left, len(burst) // len(one))
            self.send(memoryview(burst)[: now * len(one)].tobytes())
            left -= now
        self.settled(self._published + count)
        self._published += count

    _published = 0
    _confirmed = 0

    def settled(self, sequence: int) -> None:
        """Until the publish of that number is confirmed."""
        self._until(lambda: self._confirmed >= sequence, f"the confirm of publish {sequence}")

    # -- in --------------------------------------------------------------------------------------------------

    def wait(self, kind: type[m.Method], count: int = 1) -> None:
        """Until so many more of that method have come than have been waited for."""
        key = key_of(kind)
        self._waited[key] += count
        self._until(lambda: self.counts[key] >= self._waited[key], f"{self._waited[key]} times {kind.NAME}")

    def had(self, kind: type[m.Method]) -> int:
        """How many of that method have come so far."""
        return self.counts[key_of(kind)]

    def ready(self, name: str) -> int:
        """Messages of a queue that can be delivered."""
        self.ask(m.QueueDeclare(name, passive=True), m.QueueDeclareOk)
        return self.depth

    def wait_closed(self) -> None:
        """Until the broker has ended the channel or the connection, or said that it will."""
        until = time.monotonic() + WAIT_S
        while not self.closes and not self.ended:
            if time.monotonic() > until:
                raise Stuck("the broker does not close the connection")
            self._read_some()

    def _until(self, condition: Any, what: str) -> None:
        seen, until = sum(self.counts.values()), time.monotonic() + WAIT_S
        while not condition():
            if self.closes or self.ended:
                raise Refused(f"{what} does not come: {self.closes or 'the connection has ended'}")
            if sum(self.counts.values()) != seen:
                seen, until = sum(self.counts.values()), time.monotonic() + WAIT_S
            if time.monotonic() > until:
                raise Stuck(f"{what} does not come within {WAIT_S:g} s")
            self._read_some()

    def _read_some(self) -> None:
        if self._poll(select.POLLIN, 1.0):
            self.read()

    def _poll(self, events: int, within_s: float) -> int:
        """What the socket is ready for; select itself knows only the first 1,024 descriptors."""
        poll = select.poll()
        poll.register(self.sock, events)
        return sum(ready for _, ready in poll.poll(within_s * 1000))

    def read(self) -> None:
        try:
            data = self.sock.recv(READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        data = self._rest + data
        at, end, head = 0, len(data), _HEAD.unpack_from
        counts = self.counts
        while at + _HEAD.size <= end:
            kind, _, size, key = head(data, at)
            if at + size + 8 > end:
                break
            if kind == 1:
                counts[key] += 1
                if key in NOTED:
                    self._note(key, data[at + 7 : at + 7 + size])
            at += size + 8
        self._rest = data[at:]

    def _note(self, key: int, payload: bytes) -> None:
        value = m.decode(payload)
        if isinstance(value, m.BasicAck):
            self._confirmed = max(self._confirmed, value.delivery_tag)
        elif isinstance(value, m.QueueDeclareOk):
            self.depth = value.message_count
        elif isinstance(value, m.ChannelClose | m.ConnectionClose):
            self.closes.append(value.reply_text)
        else:
            self.closes.append("a publish was refused with basic.nack")

    def _end(self) -> None:
        self.ended = True


def key_of(kind: type[m.Method]) -> int:
    return kind.CLASS_ID << 16 | kind.METHOD_ID


NOTED = {key_of(kind) for kind in (m.BasicAck, m.BasicNack, m.ChannelClose, m.ConnectionClose, m.QueueDeclareOk)}


def http(port: int, verb: str, path: str, body: Any = None, user: str = "guest") -> tuple[int, bytes]:
    """One request to the management API (a path below /api, or one from the root): status and answer."""
    path = path if path.startswith("/") else f"/api/{path}"
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, method=verb)
    request.add_header("Authorization", "Basic " + b64encode(f"{user}:{user}".encode()).decode())
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()

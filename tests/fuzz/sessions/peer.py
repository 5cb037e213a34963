"""A connection in the world: its transport, as the server's is, and the client behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvitto.protocol.connection import Connection
from kvitto.protocol.states import RUNNING
from kvitto.wire.buf import Buf
from kvitto.wire.spec import FRAME_END, PROTOCOL_HEADER
from tests.fuzz.sessions.client import Client

if TYPE_CHECKING:
    from tests.fuzz.sessions.world import StoryRun

HIGH_WATER = 4096
"""Bytes that a socket that takes none keeps before it says so."""


class Peer:
    def __init__(self, world: StoryRun, slot: int, loopback: bool = True) -> None:
        self.world = world
        self.client = Client(world.oracle, slot)
        self.input: list[bytes] = []
        self.reading = True
        self.once_more = False
        self.closed = False
        self.aborted = False
        self.taking = True
        self.unsent: list[tuple[memoryview, bytes]] = []
        """What the socket has not taken: the bytes where they were given, and as they were."""
        self.written = bytearray()
        self.connection = Connection(world.harness.hub, self, f"test:{slot}", loopback)

    # -- what a connection asks of its transport -----------------------------------------------------------------

    def send(self, buf: Buf) -> bool:
        return self.write(buf.view())

    def write(self, data: memoryview) -> bool:
        if self.closed:
            return True
        if self.taking:
            self.written += data
            return True
        self.unsent.append((data, bytes(data)))
        if sum(len(copy) for _, copy in self.unsent) > HIGH_WATER:
            self.connection.writable(False)
        return False

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause(self) -> None:
        self.reading, self.once_more = False, True

    def resume(self) -> None:
        self.reading = True

    # -- what happens to it --------------------------------------------------------------------------------------

    def take(self) -> None:
        """Read what has come, as far as the connection wants it; the first read after a pause still arrives."""
        while self.input and not self.closed and (self.reading or self.once_more):
            self.once_more = self.once_more and self.reading
            data, c = self.input.pop(0), self.connection
            box = Buf(len(c.rest) + len(data))  # not a byte more: what reads behind it is seen
            box.add(c.rest)
            box.add(data)
            c.receive(box, box.n)

    def choke(self, taking: bool) -> None:
        """The socket takes no more, or does again."""
        self.taking = taking
        if taking and not self.closed:
            for view, copy in self.unsent:
                assert bytes(view) == copy, "bytes that wait for the socket were changed"
                self.written += copy
            self.unsent.clear()
            self.connection.writable(True)
            self.client.late = True
            self.look()
            self.client.late = False

    def look(self) -> None:
        """Tell the client what has arrived."""
        data, at = self.written, 0
        if data.startswith(PROTOCOL_HEADER):
            at = len(PROTOCOL_HEADER)
        while at + 7 <= len(data):
            end = at + 8 + int.from_bytes(data[at + 3 : at + 7], "big")
            if end > len(data):
                break
            assert data[end - 1] == FRAME_END, "a frame without its end was written"
            most = self.connection.frame_max
            assert end - at <= most or self.connection.state < RUNNING, (
                f"a frame of {end - at} bytes, frame_max is {most}"
            )
            kind, number, payload = (
                data[at],
                int.from_bytes(data[at + 1 : at + 3], "big"),
                bytes(data[at + 7 : end - 1]),
            )
            at = end
            self.client.heard(kind, number, payload)
        del data[:at]

"""The real protocol, broker and store without sockets: bytes in, bytes out, turns and syncs by hand."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kvitto.base.errors import StoreError
from kvitto.base.limits import DEFAULTS, Limits
from kvitto.broker.broker import Broker
from kvitto.protocol.connection import Connection
from kvitto.protocol.hub import Hub
from kvitto.store.commit import Commit
from kvitto.store.segment import Segment
from kvitto.store.store import Store
from kvitto.wire import methods as m
from kvitto.wire.buf import Buf
from kvitto.wire.methods import Method, decode, frame
from kvitto.wire.spec import FRAME_END, FRAME_METHOD, PROTOCOL_HEADER
from tests.support.clock import ManualClock
from tests.support.simdisk import SimDisk

Frame = tuple[int, int, bytes]
NO_TIME_S = 1e-300
"""A turn of this length is out of time when it begins."""
BLOCKED: dict[str, Any] = {"connection.blocked": True}
"""The capability of a client that wants to be told of alarms."""


class Wire:
    """A transport that takes everything, and the connection on it."""

    def __init__(self, harness: ProtocolHarness) -> None:
        self.harness = harness
        self.written = bytearray()
        self.read = 0
        self.reading = True
        self.closed = False
        self.aborted = False
        self.connection = Connection(harness.hub, self, "test:1", True)

    # -- what a connection asks of its transport -------------------------------------------------------------

    def send(self, buf: Buf) -> bool:
        return self.write(buf.view())

    def write(self, data: memoryview) -> bool:
        if not self.closed:
            self.written += data
        return True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause(self) -> None:
        self.reading = False

    def resume(self) -> None:
        self.reading = True

    # -- what the peer does ----------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """As the server does: what was left over comes first. The turn is the caller's."""
        while self.connection.yielded:
            self.harness.turn()
        assert self.reading, "the server would not have read this yet"
        if self.closed:
            return
        box = Buf(0)
        box.add(self.connection.rest)
        box.add(data)
        self.connection.receive(box, box.n)

    def put(self, channel: int, *methods: Method) -> None:
        self.feed(b"".join(frame(FRAME_METHOD, channel, method.encode()) for method in methods))

    def frames(self) -> list[Frame]:
        """Whole frames written since the last call."""
        found, at = [], self.read
        data = self.written
        while at < len(data):
            size = int.from_bytes(data[at + 3 : at + 7], "big")
            end = at + size + 8
            assert end <= len(data) and data[end - 1] == FRAME_END, "half a frame was written"
            found.append((data[at], int.from_bytes(data[at + 1 : at + 3], "big"), bytes(data[at + 7 : end - 1])))
            at = end
        self.read = at
        return found

    def methods(self) -> list[Method]:
        """Methods written since the last call; other frames are left out."""
        return [decode(payload) for kind, _, payload in self.frames() if kind == FRAME_METHOD]

    def login(self, user: str = "guest", frame_max: int = 131072, **client: Any) -> None:
        """Get as far as an open channel 1; every user's password is its name."""
        self.feed(PROTOCOL_HEADER)
        self.put(0, m.ConnectionStartOk({"capabilities": dict(client)}, "PLAIN", f"\0{user}\0{user}".encode(), "en_US"))
        self.put(0, m.ConnectionTuneOk(2047, frame_max, 0))
        self.put(0, m.ConnectionOpen("/"))
        self.put(1, m.ChannelOpen())
        self.harness.settle_down()
        self.frames()


class ProtocolHarness:
    """Hub, broker and store on a simulated disk."""

    turn_s = 0.0
    """The time of a turn. Without a limit what a turn does depends on no clock of the machine; with NO_TIME_S it does the least."""

    def __init__(
        self,
        disk: SimDisk | None = None,
        clock: ManualClock | None = None,
        limits: Limits = DEFAULTS,
        counted: dict[str, Segment] | None = None,
    ) -> None:
        self.limits = limits
        self.disk = disk or SimDisk()
        self.clock = clock or ManualClock()
        self.store = Store(self.disk, self.clock, counted=counted)
        try:
            self._start()
        except StoreError as error:
            self.fail(error)
            raise

    def _start(self) -> None:
        self.store.open()
        self.broker = Broker(self.store, self.clock, self.limits)
        self.broker.turn_s = self.turn_s
        self.hub = Hub(self.broker)
        self.broker.start()
        self.broker.users.cost = 4  # nothing here is about how slow a hash is

    def fail(self, error: Exception) -> None:
        """What the server does when the disk has failed, up to its end."""
        self.store.fail(error)
        with suppress(StoreError):
            self.store.shut()

    def wire(self, *, login: bool = True) -> Wire:
        wire = Wire(self)
        if login:
            wire.login()
        return wire

    def turn(self) -> None:
        self.hub.turn()

    def sync(self) -> None:
        """One group commit of what somebody waits for, and the turn behind it. Raises what the disk raised (C8)."""
        job = self.store.begin_sync(everything=False)
        job.run()
        self.end_sync(job)
        self.turn()

    def end_sync(self, job: Commit) -> None:
        self.store.end_sync(job)
        if self.store.failed is not None:
            raise self.store.failed

    def settle_down(self) -> None:
        """Turn and sync until nobody waits and nothing is left for the next turn."""
        self.turn()
        for _ in range(1000):
            if self.store.commits.waiting:
                self.sync()
            elif self.hub.unfinished():
                self.turn()
            else:
                return
        raise AssertionError("somebody waits for ever")

"""A broker with a tap on one simulated disk, and a follower on another, joined by a wire that loses nothing."""

from __future__ import annotations

from typing import Any

from kvitto.cluster.follower import Follower
from kvitto.cluster.link import Leader, Link
from kvitto.cluster.records import Kind, Record
from kvitto.cluster.ring import RING_BYTES, Ring
from kvitto.cluster.state import begin_history
from kvitto.cluster.tapping import TapDisk
from kvitto.store import paths
from tests.support.clock import ManualClock
from tests.support.harness import BrokerHarness
from tests.support.simdisk import SimDisk

KEY = b"0123456789abcdef"


class Leading(BrokerHarness):
    """A broker whose disk has a tap. `inner` is the simulated disk below it."""

    def __init__(self, inner: SimDisk | None = None, ring_bytes: int = RING_BYTES) -> None:
        self.inner = inner or SimDisk()
        self.ring = Ring(ring_bytes)
        self.tapped = TapDisk(self.inner, self.ring)
        super().__init__(self.tapped, ManualClock())  # type: ignore[arg-type]
        self.store.commits.begun = lambda commit: self.tapped.sync_point(commit.files, commit.dirs)
        self.leader = Leader(self.tapped, self.ring, KEY)
        self.leader.history = begin_history(self.tapped)


class Pair:
    def __init__(self, leading: Leading | None = None, disk: SimDisk | None = None) -> None:
        self.leading = leading or Leading()
        self.disk = disk or SimDisk(1000)
        self.told: list[str] = []
        self.begin()

    def begin(self, key: bytes = KEY) -> None:
        """The follower's process starts."""
        self.follower = Follower(self.disk, self.leading.clock, key, "leader", self.told.append)
        self.connect()

    def connect(self) -> None:
        self.link = Link(self.leading.leader, "follower")
        self.leading.leader.links = [self.link]
        self.answers = self.follower.begin()

    def rest(self) -> None:
        """The leader has nothing to do for a while, and says so."""
        self.leading.ring.put(Kind.TIME, 0, 0, ())
        self.pump()

    def pump(self) -> None:
        """Until both have nothing to say. Here records need not wait for a sync point."""
        self.leading.ring.told = self.leading.ring.next
        while True:
            self.link.take(self.answers)
            self.answers = b""
            data = b"".join(self.link.pieces())
            if not data and not self.link.wants:
                return
            for answer in self.follower.feed(data):
                self.answers += answer

    @property
    def theirs(self) -> dict[str, bytes]:
        """The files of the leader, without room that is reserved."""
        return shared(self.leading.inner, self.leading.tapped)

    @property
    def own(self) -> dict[str, bytes]:
        return shared(self.disk)


def shared(disk: SimDisk, tapped: TapDisk | None = None) -> dict[str, bytes]:
    found: dict[str, Any] = {path: content for path, content in disk.files().items() if not paths.is_local(path)}
    if tapped is not None:
        lengths = {path: node.length for path, node in tapped.tree.files()}
        found = {path: content[: lengths[path]] for path, content in found.items()}
    return found


def plain(record: tuple[bytes, bytes, int]) -> Record:
    """A record of a ring, without its checksum."""
    head, payload, _ = record
    kind, file, position = head[0], int.from_bytes(head[4:8], "little"), int.from_bytes(head[8:16], "little")
    return Record(kind, file, position, payload)

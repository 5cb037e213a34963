"""Runs with a warm standby that follows over a bad network: it is at every moment what a crash of the leader could have left.

The leader is a real broker on a disk with a tap, the follower a real one on another simulated disk, and between them are bytes that come in
pieces, late, damaged, or not at all. Whenever the follower comes to a place of the stream where it is known what the leader's client had
been told, its disk is promoted as it is, and as a power cut would leave it, and a broker starts on it.

In half of the runs the leader confirms only what the follower has synced (`Gate`). Then the follower is promoted at any moment, and has
all that the client has been told until then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from random import Random
from typing import Any

import pytest

from kvitto.base.errors import StoreFull
from kvitto.cluster import follower as followers
from kvitto.cluster import link as links
from kvitto.cluster import ring as rings
from kvitto.cluster.follower import Follower
from kvitto.cluster.gate import Count, Gate
from kvitto.cluster.handshake import Refused
from kvitto.cluster.link import Behind, Leader, Link
from kvitto.cluster.promotion import promote
from kvitto.cluster.records import Kind, Record, StreamError
from kvitto.cluster.ring import Ring
from kvitto.cluster.state import begin_history, read_following
from kvitto.cluster.tapping import TapDisk
from kvitto.store import paths
from kvitto.store.commit import Commit
from tests.protocol.sansio import ProtocolHarness
from tests.sim.cuts import Shown, play
from tests.sim.ledger import Ledger
from tests.sim.result import Result, finding
from tests.sim.world import SeededIds, SimulatedRun, begin, check_sound, check_start, small_world
from tests.support.clock import ManualClock
from tests.support.harness import BrokerHarness
from tests.support.simdisk import SimDisk

KEY = b"0123456789abcdef"
RINGS = (2_000, 20_000, 1 << 26)
TELLS = (0, 1 << 18)
"""With 0 each record is sent at once, as where much is written between two sync points."""
"""Bytes of the ring: a follower soon falls out of the first one."""
SNAPSHOTS_MAX = 200
LOSSES = 0.2
"""How often the leader is lost at a step, if every snapshot is looked at."""
CRASHES = 0.03
"""How often the follower fails at a step while files are compared, the most delicate time."""


class LeaderDisk(TapDisk):
    """What tests ask of the disk is asked of the simulated one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Leading(ProtocolHarness):
    """A broker with followers."""

    def __init__(self, disk: SimDisk, clock: ManualClock, standby: Standby) -> None:
        self.ring = Ring(standby.rng.choice(RINGS), tell=standby.rng.choice(TELLS))
        self.tapped = LeaderDisk(disk, self.ring)
        self.standby = standby
        super().__init__(self.tapped, clock)  # type: ignore[arg-type]
        self.leader = Leader(self.tapped, self.ring, KEY)
        self.leader.session = standby.new_session()
        self.leader.history = begin_history(self.tapped)
        standby.leader, standby.link = self.leader, None
        if standby.gated:
            standby.catch_up_at_rest()
            commits = self.store.commits
            standby.gate = Gate(self.ring, Count(1), commits.allow)
            commits.allow(commits.syncs)

    def _start(self) -> None:
        self.standby.gate = None
        self.store.commits.begun = self.begun
        super()._start()

    def begun(self, commit: Commit) -> None:
        before = self.ring.next
        self.tapped.sync_point(commit.files, commit.dirs)
        if self.standby.gate is not None:
            self.standby.gate.begun(commit.number, before)

    def settle_down(self) -> None:
        super().settle_down()
        while self.standby.gate is not None and (self.store.commits.behind or not self.standby.caught_up()):
            self.standby.catch_up_at_rest()
            super().settle_down()

    def end_sync(self, job: Commit) -> None:
        super().end_sync(job)
        self.standby.step()

    def turn(self) -> None:
        self.standby.step()
        super().turn()


class WatchedFollower(Follower):
    standby: Standby

    def _take(self, record: Record) -> Iterator[bytes]:
        copying = self.copying
        yield from super()._take(record)
        if copying and not self.copying:
            self.standby.check_what_is_left()
        self.standby.passed()


class Standby:
    """The follower, its disk, and the network between it and the leader."""

    def __init__(self, world: StandbyRun, result: Result, part: float) -> None:
        self.world = world
        self.result = result
        self.part = part
        self.rng = Random(f"{world.seed} standby")
        self.rng_of_pushes = Random(f"{world.seed} pushes")
        self.gated = Random(f"{world.seed} gate").random() < 0.5
        self.gate: Gate | None = None
        """Which commits the leader may announce, None as long as it waits for nobody."""
        self.disk = SimDisk(1000)
        self.disk.linking = True
        self.leader: Leader | None = None
        self.link: Link | None = None
        self.follower: WatchedFollower
        self.snapshots: dict[tuple[str, int], tuple[Ledger, ManualClock]] = {}
        self._to_follower = bytearray()
        self._to_leader = bytearray()
        self._damaged = False
        self._sessions = 0
        self.begin()

    def new_session(self) -> str:
        self._sessions += 1
        return f"run {self._sessions}"

    def begin(self) -> None:
        """The process of the follower starts."""
        with SeededIds.others(self.rng):
            self.follower = WatchedFollower(self.disk, self.world.clock, KEY, "leader", lambda line: None)
        self.follower.standby = self
        self.link = None

    # -- the network -----------------------------------------------------------------------------------------

    def step(self) -> None:
        """Something happens to the connection, or to the follower."""
        if self.leader is None or not self.world.up:
            return
        choice = self.rng.random()
        with finding(
            self.result, f"operation {self.world.disk.operations}, place {self.follower.place} of the follower"
        ):
            if choice < 0.4:
                self.some(self.rng.randint(1, 8))
            elif choice < 0.5:
                self.catch_up()
            elif choice < 0.53:
                self.cut()
            elif choice < 0.56:
                self.crash()
            elif choice < 0.58:
                self.flip()
            elif choice < 0.6:
                self.disk.full = True
                self.some(4)
                self.disk.full = False
            elif choice < 0.6 + LOSSES * self.part:
                self.lose()
        if self.result.findings:
            raise Shown

    def lose(self) -> None:
        """The leader is lost now. If it waits for its follower, that one has all that has been told."""
        if self.gate is not None and self.follower.following.complete:
            self.result.notes["losses"] += 1
            self.check(self.world.ledger, self.world.clock)

    def cut(self) -> None:
        """The connection breaks. What was on its way is lost, from any byte on."""
        self.link = None
        self._to_follower.clear()
        self._to_leader.clear()
        self._damaged = False

    def crash(self) -> None:
        """The follower's process is killed, or its power fails."""
        self.result.notes["crashes of the follower"] += 1
        self.result.notes["crashes while files are compared"] += self.follower.copying
        self.cut()
        power = self.rng.random() < 0.6
        self.disk = self.disk.crash(self.rng, hostile=self.rng.random() < 0.5) if power else self.disk.kill()
        with SeededIds.others(self.rng):
            self.check_what_is_left()
        self.begin()

    def check_what_is_left(self) -> None:
        """What says that it is complete starts, whatever is in it. What does not cannot be promoted."""
        image = self.disk.copy().kill()
        following = read_following(image)
        if following is not None and following.complete:
            promote(image)
            check_sound(image.seen())
            begin(image, self.world.clock)
            return
        try:
            promote(image)
        except Refused:
            return
        raise AssertionError("a directory that is not complete has been promoted")

    def flip(self) -> None:
        """A bit changes on its way."""
        self.pump()
        if self._to_follower:
            at = self.rng.randrange(len(self._to_follower))
            self._to_follower[at] ^= 1 << self.rng.randrange(8)
            self._damaged = True
            self.some(2)

    def some(self, count: int) -> None:
        for _ in range(count):
            self.pump()
            if self.follower.copying and self.rng.random() < CRASHES:
                self.crash()
                return
            self.deliver(self.rng.choice((1, 30, 100, 1000, 1 << 20)))

    def catch_up(self) -> None:
        crashes = self.rng.randint(0, 2)
        for _ in range(10_000):
            if self.caught_up():
                compare(self.leader, self.disk)
                return
            assert self.leader is not None
            ring = self.leader.ring
            if ring.told < ring.next:
                ring.put(Kind.TIME, 0, 0, ())  # the leader is idle, and says so
            self.pump()
            if crashes and self.follower.copying and self.rng.random() < CRASHES:
                crashes -= 1
                self.crash()
                continue
            if self._damaged and not self._to_follower and not self._to_leader:
                self.cut()  # it waits for the rest of a record whose length was damaged; after a while it gives up
            self.deliver(1 << 20)
        raise AssertionError("the follower never catches up")

    def catch_up_at_rest(self) -> None:
        """The leader has nothing to do for a while, and says so. The follower syncs everything."""
        assert self.leader is not None
        self.leader.ring.put(Kind.TIME, 0, 0, ())
        self.catch_up()

    def caught_up(self) -> bool:
        assert self.leader is not None
        follower = self.follower
        return (
            follower.session == self.leader.session and follower.place == self.leader.ring.next and not self._to_leader
        )

    def pump(self) -> None:
        """The leader sends what it has."""
        assert self.leader is not None
        with SeededIds.others(self.rng):
            if self.link is None:
                self.cut()
                self.link = Link(self.leader, "follower")
                self.leader.links = [self.link]
                self.leader.ring.on_put = self.push
                self._to_leader += self.follower.begin()
            try:
                self._to_follower += b"".join(self.link.pieces())
                if (ahead := self.link.read_ahead()) is not None:
                    ahead.run()  # until the next step the file may change
            except Behind:
                self.result.notes["too far behind"] += 1
                self.cut()

    def push(self) -> None:
        """The leader sends records in the middle of an operation of its disk."""
        if self.link is not None and self.rng_of_pushes.random() < 0.5:
            with suppress(Behind):  # `pump` finds out
                self._to_follower += b"".join(self.link.at_once())

    def deliver(self, size: int) -> None:
        """So many bytes arrive, on both sides."""
        data, self._to_follower = bytes(self._to_follower[:size]), self._to_follower[size:]
        with SeededIds.others(self.rng):
            try:
                for answer in self.follower.feed(data):
                    self._to_leader += answer
            except (StreamError, Refused) as error:
                assert self._damaged, f"nothing has been damaged: {error}"
                self.result.notes["damage refused"] += 1
                self.cut()
                return
            except StoreFull:
                assert self.disk.full
                self.result.notes["full disks"] += 1
                self.cut()
                return
            back, self._to_leader = bytes(self._to_leader[:size]), self._to_leader[size:]
            if self.link is not None:
                try:
                    self.link.take(back)
                except (Refused, StreamError):
                    assert self._damaged, "the leader refuses what nothing has damaged"
                    self.cut()
                    return
                if back and self.gate is not None:
                    self.gate.look(self.leader.links)

    # -- what must hold --------------------------------------------------------------------------------------

    def look(self) -> None:
        """Remember what the client knows at this place of the stream. The operation that the disk is at is none of its records yet."""
        world = self.world
        if self.leader is None or not world.up or self.rng.random() >= self.part:
            return
        key = self.leader.session, self.leader.ring.next
        self.snapshots[key] = deepcopy(world.ledger), ManualClock(world.clock.wall_ms, world.clock.seconds)
        if len(self.snapshots) > SNAPSHOTS_MAX:
            del self.snapshots[next(iter(self.snapshots))]
        if self.caught_up():
            self.check(*self.snapshots[key])

    def passed(self) -> None:
        """The follower has come to a place."""
        found = self.snapshots.get((self.follower.session, self.follower.place))
        if found is not None:
            self.check(*found)

    def check(self, ledger: Ledger, clock: ManualClock) -> None:
        """Promote copies of the follower's disk. A broker starts on each, with all that a client had been told."""
        assert self.follower.following.complete
        rng = Random(f"{self.world.seed} {self.follower.session} {self.follower.place}")
        images = [self.disk.copy().kill(), self.disk.survivor(rng, hostile=rng.random() < 0.5)]
        for image, how in zip(images, ("kill", "power cut"), strict=True):
            self.result.tried += 1
            with finding(self.result, f"promoted at place {self.follower.place} after a {how}"), SeededIds.others(rng):
                image.free, image.full = 1 << 40, False
                promote(image)
                check_start(image, clock, ledger)
        if self.result.findings:
            raise Shown


def compare(leader: Leader | None, disk: SimDisk) -> None:
    """Byte for byte the same, but for room that is reserved at the leader."""
    assert leader is not None
    tree = leader.disk.tree
    theirs = {path: content for path, content in leader.disk.inner.files().items() if not paths.is_local(path)}  # type: ignore[attr-defined]
    own = {path: content for path, content in disk.files().items() if not paths.is_local(path)}
    assert set(own) == set(theirs), f"names: {sorted(set(own) ^ set(theirs))}"
    for path, content in theirs.items():
        node = tree.get(path)
        assert node is not None
        assert own[path] == content[: node.length], f"{path} is another one"
        assert not content[node.length :].strip(b"\0"), f"{path} has bytes that the tap was not told of"


class StandbyRun(SimulatedRun):
    """After some ends the standby is promoted, and the leader of before follows it."""

    harness: Leading
    standby: Standby

    def open_harness(self) -> ProtocolHarness:
        self.standby.cut()
        return Leading(self.disk, self.clock, self.standby)

    def end(self, kind: str) -> None:
        standby = self.standby
        if kind == "order":
            self.actor.rest()
            standby.gate = None
            self.harness.store.commits.allow(None)  # as the server does once its clients are gone
        self.swaps = kind != "order" and self.rng.random() < 0.5
        if self.swaps and standby.gate is not None and standby.follower.following.complete and self.rng.random() < 0.7:
            standby.result.notes["promotions at once"] += 1
        elif self.swaps:
            self.actor.rest()
            with finding(self.standby.result, "before a promotion"):
                self.standby.catch_up()
            if self.standby.result.findings:
                raise Shown
        super().end(kind)

    def found_after(self, old: SimDisk, kind: str) -> SimDisk:
        found, standby = super().found_after(old, kind), self.standby
        if not self.swaps:
            return found
        standby.result.notes["promotions"] += 1
        new = standby.disk.crash(self.rng) if kind == "power" else standby.disk.kill()
        promote(new)
        if self.rng.random() < 0.5:
            with SeededIds.others(standby.rng):
                go_on_alone(found, self.clock)
            found = found.kill()
        standby.disk = found
        found.watch, found.trace, found.linking = None, None, True
        found.fail_at, found.fail_read_at = {}, {}
        standby.begin()
        return new


def go_on_alone(disk: SimDisk, clock: ManualClock) -> None:
    """A leader that does not know that it has been replaced confirms messages that the new one does not have."""
    harness = BrokerHarness(disk, ManualClock(clock.wall_ms, clock.seconds))
    for name, queue in list(harness.broker.vhosts["/"].queues.items()):
        if not queue.stream and queue.durable:
            harness.publish(name, b"of the old leader")
    harness.declare("of the old leader")
    harness.settle_down()


@contextmanager
def small_pieces(seed: int) -> Iterator[None]:
    """All is cut into pieces that a run has several of."""
    rng, patch = Random(f"{seed} pieces"), pytest.MonkeyPatch()
    chunk = rng.choice((300, 1000, 1 << 20))
    patch.setattr(links, "CHUNK_BYTES", chunk)
    patch.setattr(followers, "CHUNK_BYTES", chunk)
    patch.setattr(rings, "PAYLOAD_BYTES_MAX", rng.choice((200, 1000, 1 << 20)))
    patch.setattr(links, "STEP_RECORDS", rng.choice((1, 5, 400)))
    patch.setattr(links, "NAMES_AT_ONCE", rng.choice((1, 3, 400)))
    patch.setattr(followers, "OPEN_MAX", rng.choice((2, 200)))
    try:
        yield
    finally:
        patch.undo()


def standby(seed: int, part: float = 1.0) -> Result:
    """The leader is lost at any operation, the follower at any record: it starts, and has all that had been told when it was there."""
    result = Result(seed)
    with small_world(seed), small_pieces(seed):
        world = StandbyRun(seed)
        world.standby = Standby(world, result, part)
        world.disk.watch = world.standby.look
        play(world, result)
        if not result.findings:
            with finding(result, "the end"):
                world.standby.catch_up()
    return result

"""Runs with a replica that lags behind: what a peer has been told is there, too, and every prefix of the leader's operations starts.

Nothing of Kvitto sends anything to anybody yet. The replica stands for any follower that applies what a `Disk` does in the order in which
it is done, and syncs what a commit syncs when it comes to the place where the commit began (`GroupCommit.begun`), which may be before the
leader has synced it. The second stage of the commit waits for that (`GroupCommit.allow`).
"""

from __future__ import annotations

from bisect import bisect_right
from random import Random

from kvitto.store.commit import Commit
from tests.protocol.sansio import ProtocolHarness
from tests.sim.cuts import Shown, play
from tests.sim.result import Result, finding
from tests.sim.world import (
    Begun,
    SeededIds,
    SimulatedRun,
    begin,
    check_begun,
    check_sound,
    check_start,
    digest,
    small_world,
)
from tests.support.clock import ManualClock
from tests.support.recording import RecordingDisk, Replica
from tests.support.simdisk import SimDisk


class Lagging(ProtocolHarness):
    """A broker that may announce a commit once its replica has all that the commit's sync had covered."""

    def __init__(self, disk: RecordingDisk, clock: ManualClock, replica: Replica, rng: Random) -> None:
        self.rng = rng
        self.replica = replica
        self.leader = disk
        self.marks: list[int] = []
        """How many operations had been recorded when each commit since the start began, with the sync of the replica."""
        super().__init__(disk, clock)
        self.catch_up()
        commits = self.store.commits
        self.before = commits.syncs
        commits.allow(self.before)
        commits.begun = self.begun

    def begun(self, commit: Commit) -> None:
        self.leader.record_sync(commit.files, commit.dirs)
        self.marks.append(len(self.leader.recorded))

    def end_sync(self, job: Commit) -> None:
        super().end_sync(job)
        self.lag()

    def turn(self) -> None:
        self.lag()
        super().turn()

    def lag(self) -> None:
        """The replica applies some operations, or all, or none. Before that, look at what a loss would do now."""
        if self.leader.watch is not None:
            self.leader.watch()
        behind = len(self.leader.recorded) - self.replica.applied
        self.apply(self.rng.choice((0, 0, self.rng.randint(0, behind), behind)))

    def catch_up(self) -> None:
        self.apply(len(self.leader.recorded) - self.replica.applied)

    def apply(self, count: int) -> None:
        self.replica.apply(self.replica.applied + count)
        if self.marks:
            self.store.commits.allow(self.before + bisect_right(self.marks, self.replica.applied))

    def settle_down(self) -> None:
        super().settle_down()
        while self.store.commits.behind:
            self.catch_up()
            super().settle_down()


class ReplicatedRun(SimulatedRun):
    """Each end is followed by a start of the leader, or of its replica."""

    harness: Lagging
    disk: RecordingDisk

    def __init__(self, seed: int) -> None:
        super().__init__(seed, RecordingDisk())
        self.lags = Random(f"{seed} lags")

    def open_harness(self) -> ProtocolHarness:
        return Lagging(self.disk, self.clock, Replica(self.disk, self.disk.copy()), self.lags)

    def found_after(self, old: SimDisk, kind: str) -> SimDisk:
        found = super().found_after(old, kind)
        if kind != "order" and self.rng.random() < 0.6:
            found = lost(self.harness, self.rng)
        return RecordingDisk.of(found)


def lost(harness: Lagging, rng: Random) -> SimDisk:
    """The disk of a replica from which a broker starts when the leader is lost: it has at least all that has been announced."""
    replica = harness.replica.copy()
    recorded = len(harness.leader.recorded)
    replica.apply(rng.choice((replica.applied, recorded, rng.randint(replica.applied, recorded))))
    disk = replica.disk
    disk._boot += 1  # another machine
    return disk.crash(rng, hostile=rng.random() < 0.5) if rng.random() < 0.5 else disk.kill()


class Losses:
    """The leader is lost at an operation; the run itself goes on."""

    def __init__(self, world: ReplicatedRun, result: Result, part: float) -> None:
        self.world = world
        self.result = result
        self.part = part
        self._choice = Random(f"{world.seed} losses")
        self._seen: set[tuple[int, int]] = set()

    def look(self) -> None:
        if self._choice.random() >= self.part or not self.world.up:
            return
        world = self.world
        rng = Random(f"{world.seed} {world.disk.operations}")
        found = lost(world.harness, rng)
        state = digest(found), len(world.ledger.queues)
        with finding(self.result, f"operation {world.disk.operations}, of the replica {world.harness.replica.applied}"):
            self.result.tried += 1
            self.result.notes["states"] += state not in self._seen
            self._seen.add(state)
            with SeededIds.others(rng):
                check_start(found, world.clock, world.ledger)
        if self.result.findings:
            raise Shown


class Prefixes:
    """Each prefix of what the disk has recorded is replayed on another disk, and a broker starts from that; the run itself goes on."""

    def __init__(self, world: SimulatedRun, result: Result, part: float) -> None:
        self.world = world
        self.result = result
        self.part = part
        self._choice = Random(f"{world.seed} prefixes")
        self._begun: dict[tuple[int, str, int, float], Begun] = {}
        """What the starts of this run have come to, by what they found. Each prefix is held against what a client knew by then."""
        self.replica = self._follow()

    def _follow(self) -> Replica:
        assert isinstance(self.world.disk, RecordingDisk)
        return Replica(self.world.disk, self.world.disk.copy())

    def look(self) -> None:
        """The operation that the disk is at has not been recorded yet: the prefix ends before it."""
        leader = self.world.disk
        assert isinstance(leader, RecordingDisk)
        if self.replica.leader is not leader:
            self.replica = self._follow()
        if self._choice.random() >= self.part:
            return
        self.replica.apply(len(leader.recorded))
        rng = Random(f"{self.world.seed} {leader.operations}")
        found = self.replica.disk.seen()
        found._boot += rng.randrange(2)  # on the same machine, or on another one
        with finding(self.result, f"operation {leader.operations}"):
            self.result.tried += 1
            with SeededIds.others(rng):
                check_begun(self._begin(found), self.world.ledger)
        if self.result.findings:
            raise Shown

    def _begin(self, found: SimDisk) -> Begun:
        """Start from a prefix that leaves this, or return what the same has come to before: a sync, for example, changes no byte."""
        clock = self.world.clock
        state = digest(found), found.boot_id(), clock.wall_ms, clock.seconds
        begun = self._begun.get(state)
        if begun is None:
            self.result.notes["starts"] += 1
            check_sound(found.seen())
            begun = self._begun[state] = begin(found, clock)
        return begun

    def compare(self) -> None:
        """What was recorded is all that has happened."""
        leader = self.replica.leader
        self.replica.apply(len(leader.recorded))
        assert self.replica.disk.files() == leader.files(), "something has changed that was not recorded"


class RecordedRun(SimulatedRun):
    """A broker whose disk records all that it does; so does the disk of the next one."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, RecordingDisk())
        self.prefixes: Prefixes

    def found_after(self, old: SimDisk, kind: str) -> SimDisk:
        self.prefixes.compare()
        return RecordingDisk.of(super().found_after(old, kind))


def prefix(seed: int, part: float = 1.0) -> Result:
    """All that changes the directory is one order of operations, and a broker starts from each prefix of it."""
    result = Result(seed)
    with small_world(seed):
        world = RecordedRun(seed)
        world.prefixes = Prefixes(world, result, part)
        world.disk.watch = world.prefixes.look
        play(world, result)
        if not result.findings:
            with finding(result, "the end"):
                world.prefixes.compare()
    return result


def replica(seed: int, part: float = 1.0) -> Result:
    """The leader is lost at each operation: a replica that has synced what was announced starts, and nothing that was told is lost."""
    result = Result(seed)
    with small_world(seed):
        world = ReplicatedRun(seed)
        world.disk.watch = Losses(world, result, part).look
        play(world, result)
    return result

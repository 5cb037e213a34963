"""Runs of which backups are taken: each is what the directory was at the cut, however the life went on while it was taken.

The cut is made between two turns, or around a sync, as a request to a broker is. The files are then linked and copied one by one, while the
client goes on. A linked file is the same one on both disks, so a later change of it would show.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest

from kvitto.base.errors import StoreError
from kvitto.broker.administration import backups
from kvitto.store import cut, store, taking
from kvitto.store.commit import Commit
from kvitto.store.store import Store, how_it_ended
from kvitto.store.taking import Taking
from tests.protocol.sansio import ProtocolHarness
from tests.sim.cuts import Shown, play
from tests.sim.ledger import short
from tests.sim.result import Result, finding
from tests.sim.world import SeededIds, SimulatedRun, begin, check_begun, check_sound, small_world
from tests.support.backups import SimMover
from tests.support.clock import ManualClock
from tests.support.harness import BrokerHarness
from tests.support.simdisk import PowerCut, SimDisk


class BackedUp(ProtocolHarness):
    """A broker that is looked at between its turns and syncs."""

    def __init__(self, disk: SimDisk, clock: ManualClock, world: BackedUpRun) -> None:
        self.world = world
        super().__init__(disk, clock)

    def turn(self) -> None:
        self.world.look(self)
        super().turn()
        self.world.look(self)

    def end_sync(self, job: Commit) -> None:
        self.world.look(self)
        super().end_sync(job)
        self.world.look(self)


class OneBackup:
    """A backup that is being taken, and what it has to come to."""

    def __init__(self, world: BackedUpRun, harness: BackedUp, rng: Random) -> None:
        self.world = world
        self.harness = harness
        self.rng = rng
        self.before = harness.disk.seen()
        """What a process that is killed at the cut leaves."""
        self.ledger = copy.deepcopy(world.ledger)
        self.clock = ManualClock(world.clock.wall_ms, world.clock.seconds)
        self.owes_flags = bool(harness.store.owed_flags)
        self.cut = harness.broker.backups.begin()
        self.target = SimDisk(2)
        self.linked = 0
        self.steps = self._steps()

    def _steps(self) -> Iterator[object]:
        while not self.cut.ready:
            assert not self.cut.failure, self.cut.failure
            yield 0
        mover = SimMover(self.harness.disk, self.target, self.rng.random() < 0.7)
        taking = Taking(self.harness.disk, self.cut.directory, self.target, mover)
        taking.begin()
        yield from taking.plan()
        for step in taking.steps():
            if self.rng.random() < 0.1:
                self.refused(self.target.survivor(self.rng, hostile=self.rng.random() < 0.5))
            yield step
        assert self.harness.broker.backups.running is self.cut and not self.cut.failure, self.cut.failure
        self.refused(self.target.seen())
        taking.complete()
        self.linked = taking.linked
        self.harness.broker.backups.end()

    def refused(self, disk: SimDisk) -> None:
        """No broker starts in what is not complete."""
        with pytest.raises(StoreError, match="never completed"):
            Store(disk, self.clock).open()

    def judge(self) -> None:
        """It starts, as often as that is tried, and is what the broker's own directory was at the cut."""
        assert self.target.certain, "not all of the backup is durable"
        check_sound(self.target.seen())
        # If the broker had written all flags that it owed, but they were not durable at the cut, its own directory still says that every
        # message has to be flagged.
        flags_all = how_it_ended(self.before).owes_flags and not self.owes_flags
        found = begin(self.target.seen(), self.clock)
        check_begun(found, self.ledger)
        wanted = begin(self.before, self.clock)
        names = {key: name for key, (name, _, _) in found.queues.items()}
        assert names == {key: name for key, (name, _, _) in wanted.queues.items()}, "other queues"
        assert found.ends == wanted.ends, "other offsets"
        for key, (name, next_, announced_end) in found.queues.items():
            # what the start of the directory applies from the journal may be in the files of the backup, as a cut waits for writes
            assert announced_end >= min(wanted.queues[key][2], next_), f"{name}: less is durable than in the directory"
        assert found.found.keys() == wanted.found.keys()
        for name, messages in found.found.items():
            at_the_cut = wanted.found[name]
            if self.ledger.queue(name).stream:  # without segments that only wait to be unlinked
                at_the_cut = at_the_cut[len(at_the_cut) - len(messages) :]
            if flags_all:  # the ledger has been asked which have to be
                messages, at_the_cut = unflagged(messages), unflagged(at_the_cut)
            assert messages == at_the_cut, f"{name}: at the cut it had {texts(at_the_cut)}, and has {texts(messages)}"
        for name, outcomes in found.archives.items():
            assert outcomes.items() <= wanted.archives[name].items(), f"{name}: the archive has something else"
        self._cut_short()

    def _cut_short(self) -> None:
        """The first start is killed, or the power goes."""
        whole, disk = self.target.seen(), self.target.seen()
        self._start(whole)
        disk.cut_at = self.rng.randint(1, whole.operations)
        with suppress(PowerCut):
            self._start(disk)
        again = disk.kill() if self.rng.random() < 0.5 else disk.crash(self.rng, hostile=self.rng.random() < 0.5)
        check_sound(again.seen())
        check_begun(begin(again, self.clock), self.ledger)

    def _start(self, disk: SimDisk) -> None:
        BrokerHarness(disk, ManualClock(self.clock.wall_ms, self.clock.seconds))


def unflagged(messages: list[tuple[bytes, bool]]) -> list[tuple[bytes, bool]]:
    return [(body, False) for body, _ in messages]


def texts(messages: list[tuple[bytes, bool]]) -> str:
    return short(body.rstrip(b".") + b" again" * flagged for body, flagged in messages)


class BackedUpRun(SimulatedRun):
    def __init__(self, seed: int, result: Result, part: float) -> None:
        super().__init__(seed)
        self.disk.linking = True
        self.result = result
        self.part = part
        self.running: OneBackup | None = None
        self._choice = Random(f"{seed} backups")
        self._last: tuple[int, int] | None = None

    def open_harness(self) -> ProtocolHarness:
        return BackedUp(self.disk, self.clock, self)

    def look(self, harness: BackedUp) -> None:
        """Begin a backup, or go on with it."""
        if not self.up or harness is not self.harness or harness.store.failed is not None:
            return
        if self.running is None:
            if self._choice.random() < 0.1 * self.part and not harness.store.definitions.unwritten:
                with finding(self.result, f"operation {self.disk.operations}: the cut"):
                    self.running = OneBackup(self, harness, self._choice)
            return
        where = f"operation {self.disk.operations}"
        with finding(self.result, where), SeededIds.others(self._choice):
            for _ in range(self._choice.choice((0, 0, 0, 1, 1, 3, 10))):
                try:
                    next(self.running.steps)
                except StopIteration:
                    self._judge()
                    break
        if self.result.findings:
            raise Shown

    def _judge(self) -> None:
        done, self.running = self.running, None
        assert done is not None
        self.result.tried += 1
        self.result.notes["linked"] += done.linked
        self.result.notes["staged"] += len([n for n in done.harness.disk.listdir(done.cut.directory) if ".0" in n])
        done.judge()

    def end(self, kind: str) -> None:
        super().end(kind)
        if self.running is not None:  # nobody keeps the rest of the files any more
            self.result.notes["cut short by an end"] += 1
            self.running = None


def backup(seed: int, part: float = 1.0) -> Result:
    """A backup of a broker that goes on is what its directory was at the cut; one that is not complete is refused."""
    result = Result(seed)
    rng, patch = Random(f"{seed} pieces"), pytest.MonkeyPatch()
    patch.setattr(cut, "PIECE", rng.choice((1, 1, 10, 400)))
    patch.setattr(taking, "SYNC_BYTES", rng.choice((100, 1000, 4 << 20)))
    patch.setattr(backups, "BACKUP_SILENCE_MS", 1 << 40)
    patch.setattr(store, "NOTED_PER_TURN", rng.choice((1, 1, 8)))
    try:
        with small_world(seed):
            play(BackedUpRun(seed, result, part), result)
    finally:
        patch.undo()
    return result

"""Runs in which the power goes, or a write ends half-way."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from tests.sim.result import Result, finding
from tests.sim.world import Found, SeededIds, SimulatedRun, check_start, digest, small_world
from tests.support.simdisk import PowerCut, SimDisk


class Shown(BaseException):
    """The run has shown what is wrong; it ends here."""


def power(seed: int, part: float = 1.0, about: str = "") -> Result:
    """Power loss or a kill at every operation: nothing confirmed is lost or half, every state starts (P2, C2, A9, A11, T4, X4, D2, D3)."""
    result = Result(seed)
    with small_world(seed):
        world = SimulatedRun(seed, about=about)
        world.disk.watch = Cuts(world, result, part).look
        play(world, result)
    return result


def tx(seed: int, part: float = 1.0) -> Result:
    """The same while hardly anything but transactions happens."""
    return power(seed, part, "transactions")


def consumers(seed: int, part: float = 1.0) -> Result:
    """The same with a single active consumer and deliveries that may not take long (Q, A16)."""
    return power(seed, part, "consumers")


def policies(seed: int, part: float = 1.0) -> Result:
    """The same while policies come and go, and definitions are imported (D2)."""
    return power(seed, part, "policies")


def torn(seed: int, part: float = 1.0) -> Result:
    """Some writes end at each of their bytes: what was whole before is there, and nothing else (D3)."""
    result = Result(seed)
    with small_world(seed):
        world = SimulatedRun(seed)
        world.disk.watch = Tears(world, result, part).look
        play(world, result)
    return result


def play(world: SimulatedRun, result: Result) -> None:
    with finding(result, "the run itself"), suppress(Shown):
        world.play()


class Cuts:
    """The process is killed at an operation, or the power goes, in several ways; the run itself goes on."""

    WAYS = 6
    AGAIN = 0.1
    """Of the starts are cut short themselves."""
    STARTS = 2
    """At most so many in a row."""

    def __init__(self, world: SimulatedRun, result: Result, part: float) -> None:
        self.world = world
        self.result = result
        self.part = part
        self._choice = Random(f"{world.seed} cuts")

    def look(self) -> None:
        if self._choice.random() >= self.part:
            return
        disk, seen = self.world.disk, set()
        for way in range(self.WAYS):
            rng = Random(f"{self.world.seed} {disk.operations} {way}")
            found = disk.survivor(rng, hostile=way % 2 == 1) if way else disk.copy().kill()
            state = digest(found), found.boot_id()
            if state not in seen:
                seen.add(state)
                with finding(self.result, f"operation {disk.operations}, way {way}"):
                    self._try(found, rng)
        if self.result.findings:
            raise Shown

    def _try(self, found: SimDisk, rng: Random) -> None:
        again = found.copy() if rng.random() < self.AGAIN else None
        with SeededIds.others(rng):
            self._check(found)
            if again is not None:
                for _ in range(rng.randint(1, self.STARTS)):
                    again = self._cut_short(again, rng)
                self._check(again)

    def _check(self, found: SimDisk) -> None:
        self.result.tried += 1
        check_start(found, self.world.clock, self.world.ledger)

    def _cut_short(self, disk: SimDisk, rng: Random) -> SimDisk:
        """The power goes again, or the process is killed, at any operation of the start."""
        whole = disk.copy()
        self.world.begin(whole)
        disk.cut_at = rng.randint(1, whole.operations)
        with suppress(PowerCut):
            self.world.begin(disk)
        killed = rng.random() < 0.3
        self.result.notes[f"starts {'killed' if killed else 'cut short'}"] += 1
        return disk.kill() if killed else disk.crash(rng, hostile=rng.random() < 0.5)


class Tears:
    """The last write has not come to its end."""

    WRITES = 6
    """Of a run and kind of file."""

    def __init__(self, world: SimulatedRun, result: Result, part: float) -> None:
        self.world = world
        self.result = result
        self.part = part
        self._choice = Random(f"{world.seed} tears")
        self._left = dict.fromkeys((".log", ".ack", ".jnl", "definitions.log"), self.WRITES)

    def look(self) -> None:
        written, self.world.disk.written = self.world.disk.written, None
        if written is None:
            return
        path, inode = written
        kind = "definitions.log" if path.startswith("definitions.log") else path[-4:]
        if not self._left.get(kind) or self._choice.random() > 0.05 or not inode.pending[-1].data:
            return
        self._left[kind] -= 1
        self.world.disk.written = written
        self.result.notes[f"writes to {'*' * (len(kind) == 4)}{kind}"] += 1
        self._tear(path, inode.pending[-1].data)
        self.world.disk.written = None
        if self.result.findings:
            raise Shown

    def _tear(self, path: str, data: bytes) -> None:
        disk = self.world.disk
        rng = Random(f"{self.world.seed} {disk.operations}")
        before = {cut: self._start(disk.torn(0, cut=cut), rng) for cut in (False, True)}
        for n in range(1, len(data)):
            if self._choice.random() < self.part:
                cut = rng.random() < 0.5
                with finding(
                    self.result, f"operation {disk.operations}, {path}, {n} of {len(data)} bytes, power cut: {cut}"
                ):
                    self.result.tried += 1
                    found = disk.torn(n, cut=cut)
                    if not any(data[n:]) and digest(found) == digest(disk.torn(len(data), cut=cut)):
                        continue  # zeros that were there already: the write is whole
                    now = self._start(found, rng)
                    assert now == before[cut], "not what was whole before"

    def _start(self, disk: SimDisk, rng: Random) -> Found:
        with SeededIds.others(rng):
            return check_start(disk, self.world.clock, self.world.ledger)

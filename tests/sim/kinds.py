"""The kinds of bad days: what is done to a run, and what must hold afterwards (docs/simulation.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from tests.sim.world import Dice, World, check_state, digest, small_world
from tests.support.simdisk import PowerCut, SimDisk


@dataclass
class Result:
    """What a run has shown: how many states or failures were tried, what was wrong with any, and what else is to be told."""

    seed: int
    tried: int = 0
    findings: list[str] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)


class Found(Exception):
    """The run has shown what is wrong; it ends here."""


Run = Callable[[int, float], Result]
"""From a seed, and the part of what could be tried that is to be tried (1: all of it)."""


def power(seed: int, part: float = 1.0, transactions: bool = False) -> Result:
    """Power loss at every operation: nothing confirmed is lost, nothing is half, every state starts (P2, C2, A9, A11, T4, X4, D2, D3)."""
    result = Result(seed)
    with small_world(seed):
        world = World(seed, transactions=transactions)
        cuts = Cuts(world, result, part)
        world.disk.watch = cuts.look
        play(world, result)
    return result


def tx(seed: int, part: float = 1.0) -> Result:
    """The same while hardly anything but transactions happens."""
    return power(seed, part, transactions=True)


KINDS: dict[str, Run] = {"power": power, "tx": tx}


def play(world: World, result: Result) -> None:
    try:
        world.play()
    except Found:
        pass
    except (Exception, PowerCut) as error:  # noqa: BLE001 - whatever it is, it is a finding
        result.findings.append(f"operation {world.disk.operations}: {type(error).__name__}: {error}")


class Cuts:
    """The power goes at an operation, in several ways; the run itself goes on."""

    WAYS = 5
    AGAIN = 0.1
    """Of the starts are cut short themselves."""

    def __init__(self, world: World, result: Result, part: float) -> None:
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
            found = disk.survivor(rng, hostile=way % 2 == 1)
            state = digest(found)
            if state not in seen:
                seen.add(state)
                self._try(found, rng, f"operation {disk.operations}, way {way}")

    def _try(self, found: SimDisk, rng: Random, where: str) -> None:
        again = found.copy() if rng.random() < self.AGAIN else None
        try:
            with Dice.others(rng):
                self._check(found)
                if again is not None:
                    self._check(self.cut_short(again, rng))
        except (Exception, PowerCut) as error:
            self.result.findings.append(f"{where}: {type(error).__name__}: {error}")
            raise Found from error

    def _check(self, found: SimDisk) -> None:
        self.result.tried += 1
        check_state(found, self.world.clock, self.world.ledger)

    def cut_short(self, disk: SimDisk, rng: Random) -> SimDisk:
        """The power goes again, in the start or just after it."""
        disk.cut_at = rng.randint(1, 60)
        with suppress(PowerCut):
            self.world.begin(disk)
        return disk.crash(rng, hostile=rng.random() < 0.5)

"""Which fault comes when: all of it follows from the seed, nothing from the course of the run."""

from __future__ import annotations

import random
from dataclasses import dataclass

KILL, STOP, CUT, HALF_OPEN, RESTART, KILL_START = FAULTS = ("kill", "stop", "cut", "half-open", "restart", "kill-start")
DEFAULT = (KILL, KILL, KILL, KILL_START)
"""Drawn evenly: one kill in four is followed by kills in the starts."""
LIFE_S = 0.6
"""Load before each fault, at most, and half as long on average."""
FROZEN_S = (0.5, 3.0)
MUTED_S = (2.5, 5.0)
"""Longer than two heartbeats: somebody notices, as a rule."""
HEARTBEAT_S = 1
SHARE = 0.5
"""Of the connections that a cut or a half-open fault takes."""
STARTS = 3
"""Most starts in a row that are killed."""
AT_FILES = 0.75
"""Of the killed starts are aimed at what comes after the first file was opened."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One cycle: load for `after_s`, then this."""

    cycle: int
    kind: str
    after_s: float
    lasts_s: float
    """How long a stopped broker stands, or connections stay half-open."""
    reset: bool
    """A cut is a reset, or a plain close."""
    from_client: bool
    """A half-open connection drops what clients say, or what the broker says."""
    seed: int
    """For the choice of connections, and of the moments in a start."""

    def killed_starts(self) -> list[tuple[float, bool]]:
        """Which part of a start is let through, and whether of the whole start or of what follows its first open file."""
        rng = random.Random(self.seed)
        return [(rng.random(), rng.random() < AT_FILES) for _ in range(rng.randint(1, STARTS))]


def fault(seed: int, cycle: int, kinds: tuple[str, ...], gap_s: float = 0.0) -> Fault:
    """The fault of one cycle; with `gap_s` there is load for about so long before it."""
    rng = random.Random(f"{seed}/{cycle}")
    kind = rng.choice(kinds)
    least, most = MUTED_S if kind == HALF_OPEN else FROZEN_S
    after_s = rng.uniform(0.5, 1.5) * gap_s if gap_s else rng.uniform(0.0, LIFE_S)
    lasts_s = rng.uniform(least, most)
    return Fault(cycle, kind, after_s, lasts_s, rng.random() < 0.5, rng.random() < 0.5, rng.getrandbits(32))

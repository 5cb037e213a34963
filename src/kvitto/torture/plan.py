"""Which fault comes when: all of it follows from the seed, nothing from the course of the run."""

from __future__ import annotations

import random
from dataclasses import dataclass

KILL, STOP, CUT, HALF_OPEN, RESTART = FAULTS = ("kill", "stop", "cut", "half-open", "restart")
LIFE_S = 0.6
"""Load before each fault, at most, and half as long on average."""
FROZEN_S = (0.5, 3.0)
MUTED_S = (2.5, 5.0)
"""Longer than two heartbeats: somebody notices, as a rule."""
HEARTBEAT_S = 1
SHARE = 0.5
"""Of the connections that a cut or a half-open fault takes."""


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
    """For the choice of connections."""

    def connections(self) -> random.Random:
        return random.Random(self.seed)


def fault(seed: int, cycle: int, kinds: tuple[str, ...], gap_s: float = 0.0) -> Fault:
    """The fault of one cycle; with `gap_s` there is load for about so long before it."""
    rng = random.Random(f"{seed}/{cycle}")
    kind = rng.choice(kinds)
    least, most = MUTED_S if kind == HALF_OPEN else FROZEN_S
    after_s = rng.uniform(0.5, 1.5) * gap_s if gap_s else rng.uniform(0.0, LIFE_S)
    lasts_s = rng.uniform(least, most)
    return Fault(cycle, kind, after_s, lasts_s, rng.random() < 0.5, rng.random() < 0.5, rng.getrandbits(32))

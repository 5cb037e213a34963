"""The plan of faults: all of it follows from the seed, nothing from the course of the run."""

from __future__ import annotations

import random
from dataclasses import dataclass

KILL, STOP, CUT, HALF_OPEN, RESTART, KILL_START = FAULTS = ("kill", "stop", "cut", "half-open", "restart", "kill-start")
FOLLOWER_KILL, FOLLOWER_STOP, ALL_KILL, ETCD_STOP = OF_NODES = (
    "follower-kill",
    "follower-stop",
    "all-kill",
    "etcd-stop",
)
"""Faults of a cluster."""
DEFAULT = (KILL, KILL, KILL, KILL_START)
"""Each kind is drawn with the same chance: one kill in four is followed by kills of the next starts."""
LIFE_S = 0.6
"""The maximum time of load before each fault; the mean is half of it."""
DEFAULT_OF_NODES = (KILL, KILL, KILL, STOP, RESTART, *OF_NODES)
"""A leader that stands still for long is replaced, and one that does so for a moment is not."""
FROZEN_S = (0.5, 3.0)
FROZEN_OF_NODES_S = (0.5, 10.0)
MUTED_S = (2.5, 5.0)
"""Longer than two heartbeats, so that usually one side notices."""
HEARTBEAT_S = 1
SHARE = 0.5
"""The share of the connections that a cut or a half-open fault hits."""
STARTS = 3
"""The maximum number of starts in a row that are killed."""
AT_FILES = 0.75
"""The share of the killed starts that are killed after the first file was opened."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One cycle: load for `after_s`, then this fault."""

    cycle: int
    kind: str
    after_s: float
    lasts_s: float
    """How long a frozen broker stands still, or connections stay half-open."""
    reset: bool
    """Whether a cut is a reset, or a plain close."""
    from_client: bool
    """Whether a half-open connection drops the data of clients, or of the broker."""
    seed: int
    """For the choice of connections, and of the moments in a start."""

    def killed_starts(self) -> list[tuple[float, bool]]:
        """Return the part of a start after which it is killed, and whether it is a part of the whole start or of the
        time after its first open file."""
        rng = random.Random(self.seed)
        return [(rng.random(), rng.random() < AT_FILES) for _ in range(rng.randint(1, STARTS))]


def fault(seed: int, cycle: int, kinds: tuple[str, ...], gap_s: float = 0.0, nodes: bool = False) -> Fault:
    """Return the fault of one cycle. With `gap_s` there is load for about this time before it. `nodes`: whether a cluster is tortured."""
    rng = random.Random(f"{seed}/{cycle}")
    kind = rng.choice(kinds)
    least, most = MUTED_S if kind == HALF_OPEN else FROZEN_OF_NODES_S if nodes else FROZEN_S
    after_s = rng.uniform(0.5, 1.5) * gap_s if gap_s else rng.uniform(0.0, LIFE_S)
    lasts_s = rng.uniform(least, most)
    return Fault(cycle, kind, after_s, lasts_s, rng.random() < 0.5, rng.random() < 0.5, rng.getrandbits(32))

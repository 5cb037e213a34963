"""The plan of faults: all of it follows from the seed, nothing from the course of the run."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

KILL, STOP, CUT, HALF_OPEN, RESTART, KILL_START = FAULTS = ("kill", "stop", "cut", "half-open", "restart", "kill-start")
FOLLOWER_KILL, FOLLOWER_STOP, ALL_KILL = OF_PROCESSES = ("follower-kill", "follower-stop", "all-kill")
ETCD_STOP, ETCD_KILL, ETCD_WIPE, ETCD_RESTORE, ETCD_ROLLBACK = OF_ETCD = (
    "etcd-stop",
    "etcd-kill",
    "etcd-wipe",
    "etcd-restore",
    "etcd-rollback",
)
OF_LINKS = (
    CUT_FOLLOWERS,
    CUT_ETCD,
    CUT_NODES,
    ETCD_CUT,
    FOLLOWER_CUT,
    LEADER_MUTE,
    LEADER_DEAF,
    SLOW,
) = (
    "cut-followers",
    "cut-etcd",
    "cut-nodes",
    "etcd-cut",
    "follower-cut",
    "leader-mute",
    "leader-deaf",
    "slow",
)
"""Faults of the network between nodes."""
OF_DISKS = LEADER_FULL, FOLLOWER_FULL = ("leader-full", "follower-full")
OF_NODES = (*OF_PROCESSES, *OF_ETCD, *OF_LINKS, *OF_DISKS)
"""Faults of a cluster."""
OF_RABBITMQ = (*OF_PROCESSES, CUT_FOLLOWERS, FOLLOWER_CUT, LEADER_MUTE, LEADER_DEAF, SLOW)
"""Those that a cluster without an etcd can have."""
SHORT = (KILL, FOLLOWER_KILL, ALL_KILL, RESTART)
"""Faults that may hit a cluster of Kvitto while another one lasts."""
LASTING = (STOP, FOLLOWER_STOP, ETCD_STOP, ETCD_KILL, *OF_LINKS, *OF_DISKS)
"""Those that they may hit. When etcd was lost operators act by rules of their own, and nothing else happens."""
MEANWHILE = 3
"""The maximum number of short faults while another one lasts; the mean is half of it."""
DEFAULT = (KILL, KILL, KILL, KILL_START)
"""Each kind is drawn with the same chance: one kill in four is followed by kills of the next starts."""
LIFE_S = 0.6
"""The maximum time of load before each fault; the mean is half of it."""
FROZEN_S = (0.5, 3.0)
MUTED_S = (2.5, 5.0)
"""Longer than two heartbeats, so that usually one side notices."""
FROZEN_OF_NODES_S, APART_S, FULL_S = (0.5, 30.0), (0.5, 15.0), (0.5, 8.0)
"""A leader that stands still for long, or is apart from the others, is replaced, and one for which it is a moment is not."""
HEARTBEAT_S = 1
SHARE = 0.5
"""The share of the connections that a cut or a half-open fault hits."""
STARTS = 3
"""The maximum number of starts in a row that are killed."""
AT_FILES = 0.75
"""The share of the killed starts that are killed after the first file was opened."""


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """A short fault that hits while another one lasts."""

    kind: str
    at: float
    """The part of the other fault's time after which it hits."""
    at_once: bool
    """Whether the nodes that it has ended start again at once, or only when the next fault hits or the lasting one is over."""
    seed: int
    """For the choice of the node."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One cycle: load for `after_s`, then this fault."""

    cycle: int
    kind: str
    after_s: float
    lasts_s: float
    """How long a frozen broker stands still, connections stay half-open, links are cut or a disk is full."""
    reset: bool
    """Whether a cut is a reset, or a plain close. Of nodes: whether the fault is the harder one of two kinds."""
    from_client: bool
    """Whether a half-open connection drops the data of clients, or of the broker."""
    seed: int
    """For the choice of connections, and of the moments in a start."""
    meanwhile: tuple[Meanwhile, ...] = ()
    """What hits while it lasts, in this order."""

    def within(self, most: int) -> Fault:
        """Return this fault with fewer others, so that there are at most `most` faults together."""
        return replace(self, meanwhile=self.meanwhile[: most - 1])

    def killed_starts(self) -> list[tuple[float, bool]]:
        """Return the part of a start after which it is killed, and whether it is a part of the whole start or of the
        time after its first open file."""
        rng = random.Random(self.seed)
        return [(rng.random(), rng.random() < AT_FILES) for _ in range(rng.randint(1, STARTS))]


def default_of_nodes(others: tuple[str, ...]) -> tuple[str, ...]:
    """Return the faults of a cluster: those of the leader's process, and these others."""
    return (KILL, KILL, KILL, STOP, RESTART, *others)


def fault(
    seed: int, cycle: int, kinds: tuple[str, ...], gap_s: float = 0.0, nodes: bool = False, overlap: bool = False
) -> Fault:
    """Return the fault of one cycle.

    `gap_s`: about how long the load runs before it; with 0 it is up to LIFE_S. `nodes`: whether a cluster is tortured.
    `overlap`: whether the short ones of these kinds also hit while another fault lasts."""
    rng = random.Random(f"{seed}/{cycle}")
    kind = rng.choice(kinds)
    after_s = rng.uniform(0.5, 1.5) * gap_s if gap_s else rng.uniform(0.0, LIFE_S)
    if nodes and kind != HALF_OPEN:
        least, most = APART_S if kind in OF_LINKS else FULL_S if kind in OF_DISKS else FROZEN_OF_NODES_S
        lasts_s = least + (most - least) * rng.random() ** 2  # most are short
    else:
        lasts_s = rng.uniform(*(MUTED_S if kind == HALF_OPEN else FROZEN_S))
    drawn = Fault(cycle, kind, after_s, lasts_s, rng.random() < 0.5, rng.random() < 0.5, rng.getrandbits(32))
    short = [kind for kind in kinds if kind in SHORT]
    if not (overlap and short and kind in LASTING):
        return drawn
    parts = sorted(rng.random() for _ in range(rng.randint(0, MEANWHILE)))
    others = (Meanwhile(rng.choice(short), at, rng.random() < 0.5, rng.getrandbits(32)) for at in parts)
    return replace(drawn, meanwhile=tuple(others))

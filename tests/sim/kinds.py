"""The kinds of bad days: what is done to a run, and what must hold afterwards (docs/simulation.md)."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.backups import backup
from tests.sim.clusters import cluster
from tests.sim.cuts import consumers, policies, power, torn, tx
from tests.sim.faults import eio, enospc
from tests.sim.flips import bitflip
from tests.sim.replicas import prefix, replica
from tests.sim.result import Result
from tests.sim.standbys import standby

KINDS: dict[str, Callable[..., Result]] = {
    "power": power,
    "tx": tx,
    "consumers": consumers,
    "policies": policies,
    "torn": torn,
    "bitflip": bitflip,
    "eio": eio,
    "enospc": enospc,
    "prefix": prefix,
    "replica": replica,
    "backup": backup,
    "standby": standby,
    "cluster": cluster,
}
"""From a seed, and the part that is to be tried of what could be (1.0: all)."""

"""Which queues a run of the simulation has, and their names."""

from __future__ import annotations

from random import Random

from kvitto.wire.properties import Properties
from tests.sim.lateness import SLOW, TIMEOUT_MS
from tests.sim.setup import RULED
from tests.sim.singles import SINGLE

WRITER = "w"
"""Of stages."""
FANOUT = "amq.fanout"
Plan = dict[str, dict[str, object]]
"""Queue -> its arguments."""

PLAIN_QUEUES = ("a", "b", "c")
DEAD = "dead"
TO_DEAD: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
TEMPORARY = "temporary"
PROBE = "probe"
POSTPONING = "postponing"
"""An exchange that delays; what it has delayed comes to the queue DUE."""
POSTPONED = "postponed"
"""What waits there, as if it were a queue: the oracle takes it for one whose messages become dead letters in DUE."""
DUE = "due"
COMPARING = "comparing"
"""An exchange that deduplicates; what has passed it comes to the queue PASSED."""
PASSING = "passing"
"""What is on its way through it, as if that were a queue: the oracle takes it for one whose messages become dead letters in PASSED."""
PASSED = "passed"
HIDDEN = {POSTPONED: DUE, PASSING: PASSED}
"""What is as if it were a queue, and where its messages come to."""
DELAYS_MS = (1, 300, 1100, 4000, 60_000)
SIZES = (12, 60, 60, 300, 1700)
ONCE = "once"
"""A queue with deduplication: the key of a message is its body."""

FAVOURITES = ("kept", "log", ONCE)
"""Queues whose files do more than those of others; if one is there, it sometimes has most of what happens."""


def plan(rng: Random, about: str = "") -> Plan:
    """Which queues a run has. `about`: "transactions" (plain ones and one with dead letters only), "consumers" (who is served, and how long
    a delivery may take), "policies" (and definitions that are imported), or anything.
    """
    queues: Plan = {name: {} for name in (DEAD, *PLAIN_QUEUES)}
    queues["work"] = dict(TO_DEAD)
    if about == "transactions":
        return queues
    if rng.random() < 0.5:
        queues["work"]["x-delivery-limit"] = rng.choice((0, 1, 2))
    others: Plan = {
        "brief": {"x-message-ttl": 3000},
        "short": {"x-max-length": rng.choice((1, 4))},
        "strict": {"x-max-length": 4, "x-overflow": "reject-publish"},
        "ranked": {"x-max-priority": 4},
        "later": {"x-retry-delay-min": 500, "x-retry-delay-max": 2000},
        "kept": {"x-archive": True},
        ONCE: {"x-message-deduplication": True, "x-cache-size": 1000},
        "log": {"x-queue-type": "stream", "x-max-length": 12, "x-stream-max-segment-size-bytes": 700},
    }
    favourite = rng.choice(("", *FAVOURITES))
    for name in sorted({*rng.sample(sorted(others), rng.randint(1, 3)), *filter(None, [favourite])}):
        queues[name] = others[name]
        if name in ("brief", "short", "kept", ONCE) and rng.random() < 0.6:
            queues[name] |= TO_DEAD
    for name, arguments in ((SINGLE, {"x-single-active-consumer": True}), (SLOW, {"x-consumer-timeout": TIMEOUT_MS})):
        if about == "consumers" or rng.random() < 0.3:
            queues[name] = dict(arguments)
            if rng.random() < 0.3:
                queues[name] |= {**TO_DEAD, "x-delivery-limit": rng.choice((1, 3))}
    if SINGLE in queues and rng.random() < 0.3:
        queues[SINGLE]["x-consumer-timeout"] = TIMEOUT_MS
    if about == "policies" or rng.random() < 0.4:
        queues[RULED] = {}
    if rng.random() < 0.4:
        queues[DUE] = {}
    if ONCE in queues and "x-dead-letter-exchange" not in queues[ONCE]:
        queues[PASSED] = {}
    return queues


def keyed(body: bytes) -> bytes:
    """The properties of a message in `ONCE` or `PASSED`."""
    return Properties(headers={"x-deduplication-header": body}).encode()

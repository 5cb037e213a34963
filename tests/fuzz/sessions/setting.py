"""Where a story takes place: small files, portions of work and limits, as its seed says, and a handler for what the broker logs."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from random import Random

import pytest

from kvitto.base.limits import DEFAULTS
from tests.sim.world import small_world

SMALL: dict[str, dict[str, tuple[object, ...]]] = {
    "kvitto.broker.queues.later_writes": {"NEW_FILES_PER_COMMIT": (1, 2, 32), "LOAD_PER_COMMIT": (1, 10, 256)},
    "kvitto.broker.state": {"CHANGES_OF_ONE": (0, 1, 32)},
    "kvitto.broker.queues.leaving": {"LEAVING_PER_TURN": (1, 1, 3, 10_000)},
    "kvitto.broker.queues.retries": {"RETRIES_PER_TURN": (1, 3, 10_000)},
    "kvitto.broker.transfers.deadletter": {
        "LETTERS_PER_TURN": (2, 500),
        "SLICE": (2, 100),
        "IN_FLIGHT_BYTES": (2000, 32 << 20),
    },
    "kvitto.broker.transfers.stages": {"MOVED_PER_TURN": (2, 100)},
    "kvitto.broker.transfers.parked": {"SLICE": (2, 100)},
    "kvitto.broker.jobs": {"PIECES_PER_TURN": (1, 4)},
    "kvitto.broker.timers": {"RUN_MAX": (1, 500)},
    "kvitto.protocol.replies": {"REPLIES_MAX": (3000, 8 << 20)},
    "kvitto.protocol.connection": {
        "INPUT_PAUSE": (3000, 8 << 20),
        "KEPT_BYTES": (0, 4 << 20),
        "METHOD_COST": (20, 20, 3000),
    },
}
"""How much is done or kept at once: small, so that a small story goes beyond it."""
LIMITS = {
    "unacked_max": (2, 5),
    "consumers_max": (2, 4),
    "exchanges_max": (8,),
    "bindings_max": (3,),
    "body_max": (300, 9000),
    "unfinished_max": (400, 9000),
    "tx_max": (1000, 5000),
    "transactions_max": (1500, 9000),
    "buffered_max": (2000, 20000),
    "copies_max": (1, 3),
    "route_steps_max": (1, 10),
    "routing_steps_max": (2, 20),
}


class Catcher(logging.Handler):
    """Keeps what the broker logs of mistakes of its own."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []
        self.limits = DEFAULTS
        """The limits that the broker of the story has."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.CRITICAL or "internal error" in record.msg:
            self.found.append(logging.Formatter().format(record))


@contextmanager
def setting(seed: int) -> Iterator[Catcher]:
    """Small files, small pieces of work, ids that the seed decides; for some seeds small limits. What is logged of mistakes is kept."""
    rng, patch, catcher = Random(f"{seed} setting"), pytest.MonkeyPatch(), Catcher()
    with ExitStack() as stack:
        stack.enter_context(small_world(seed))
        stack.callback(patch.undo)
        patch.setattr(logging.getLogger("kvitto"), "handlers", [catcher])
        for module, values in SMALL.items():
            for name, choices in values.items():
                value = rng.choice(choices)
                with suppress(ImportError, AttributeError):  # another checkout may not have it
                    patch.setattr(importlib.import_module(module), name, value)
        for name in rng.sample(sorted(LIMITS), rng.choice((0, 0, 1, 2))):
            catcher.limits = replace(catcher.limits, **{name: rng.choice(LIMITS[name])})
        yield catcher

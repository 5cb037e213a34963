"""Imports the file of `--definitions` at each start, before anybody can connect. `Server.start` calls it."""

from __future__ import annotations

import logging
from pathlib import Path

from kvitto.base.config import ConfigError
from kvitto.broker.administration.definitions.document import Document, Malformed
from kvitto.broker.administration.definitions.plan import Plan
from kvitto.broker.broker import Broker

log = logging.getLogger("kvitto")

SHOWN = 20
"""The most refused items that the error names."""


def load(broker: Broker, path: Path) -> None:
    """Import all definitions of the file, durably. Raises ConfigError if one of them cannot be taken; then nothing was changed."""
    try:
        body = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read --definitions {path}: {error.strerror or error}") from error
    plan = Plan(broker, Document(body))
    try:
        for _ in plan.read():
            pass
    except Malformed as error:
        raise ConfigError(f"--definitions {path}: {error}") from None
    if not plan.refusals:
        for _ in plan.apply():
            broker.turn()
        broker.sync_all()
    if plan.refusals:
        lines = [f"  {refusal}" for refusal in plan.refused[:SHOWN]]
        if plan.refusals > SHOWN:
            lines.append(f"  and {plan.refusals - SHOWN} more")
        of = plan.taken + plan.refusals
        raise ConfigError("\n".join((f"--definitions {path}: {plan.refusals} of {of} cannot be taken:", *lines)))
    log.info("%s: %d definitions are there", path, plan.taken)
    for what in plan.inert:
        log.warning("%s: %s is accepted without effect", path, what)

"""Arguments that other brokers honour and this one does not.

They are harmless to ignore: they are accepted, and the log names each one once.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Iterable

log = logging.getLogger("kvitto.broker")

HONOURED_OF_CONSUMERS = (
    "x-priority",
    "x-consumer-timeout",
    "x-offset-header",
    "x-stream-offset",
    "x-stream-automatic-offset-tracking",
)
MIRRORING = (
    "ha-mode",
    "ha-params",
    "ha-sync-mode",
    "ha-sync-batch-size",
    "ha-promote-on-shutdown",
    "ha-promote-on-failure",
)
POLICY = (
    "max-in-memory-length",
    "max-in-memory-bytes",
    "queue-version",
    "queue-mode",
    "queue-leader-locator",
    "queue-master-locator",
    "initial-cluster-size",
    "target-group-size",
    "member-placement-tag",
    "dead-letter-strategy",
    "consumer-disconnected-timeout",
    "stream-max-segment-size-bytes",
    "stream-filter-size-bytes",
    "federation-upstream",
    "federation-upstream-set",
    "federation-upstream-pattern",
    "shards-per-node",
    "routing-key",
    "selector-fields",
    "selector-field-max-bytes",
    *MIRRORING,
)
"""Settings of policies of RabbitMQ, its plugins and LavinMQ that have no meaning here, or describe what Kvitto always does."""
OPERATOR_POLICY = ("max-in-memory-length", "max-in-memory-bytes", "queue-version", "target-group-size", *MIRRORING)
CLOSE = 0.85
"""How alike a name must be to be called misspelt, where names of other brokers' settings are usual."""
NAMED_MAX = 1000
"""The most names that are remembered and logged. They come from peers, so there must be a limit."""
AT_ONCE = 10
"""The most names of one thing that are logged, because looking for a similar name takes a tenth of a millisecond."""


class Notices:
    """Logs once for each argument that it has no effect."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def without_effect(self, thing: str, names: Iterable[str], honoured: Collection[str] = ()) -> None:
        left = min(AT_ONCE, NAMED_MAX - len(self._named))
        for name in names:
            if left > 0 and name not in honoured and name not in self._named:
                left -= 1
                self._named.add(name)
                alike = difflib.get_close_matches(name, honoured, 1, CLOSE)
                hint = f" (is it {alike[0]!r}?)" if alike else ""
                log.warning("%s: %r is accepted without effect%s; this is said once", thing, name, hint)

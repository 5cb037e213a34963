"""The clock of the load generator. `clock.pxd` has the C version, which makes no Python object; change both together."""

from __future__ import annotations

import time


def now_ns() -> int:
    """Return the time of `time.monotonic_ns`."""
    return time.monotonic_ns()

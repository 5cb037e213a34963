"""The machine's clocks, for code that reads them in each turn or for each event.

`ticks.pxd` holds a C twin of each function, which makes no Python object. A change to one form needs the same change to the other.
"""

from __future__ import annotations

import time


def now_ns() -> int:
    """Return the time of `time.monotonic_ns`, in nanoseconds."""
    return time.monotonic_ns()


def seconds() -> float:
    """Return the time of `time.monotonic`, in seconds. It is the time of asyncio's loop."""
    return time.monotonic()


def wall_ms() -> int:
    """Return the wall clock in milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return the time of `time.monotonic_ns`, in whole milliseconds."""
    return time.monotonic_ns() // 1_000_000

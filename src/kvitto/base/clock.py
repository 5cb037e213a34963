"""Time as an argument: all code below the server reads it from a `Clock`, so that tests can set it."""

import time
from typing import Protocol


class Clock(Protocol):
    """The two times a broker needs."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970 UTC. It is for stored times, and may jump."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds since an arbitrary start, never set back: for durations and deadlines."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970 UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return milliseconds since an arbitrary start."""
        return time.monotonic_ns() // 1_000_000

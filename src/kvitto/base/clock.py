"""Time as an argument: everything below the server reads it from a `Clock`, so that tests can set it."""

import time
from typing import Protocol


class Clock(Protocol):
    """The two times a broker needs."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970 UTC: for stored times; may jump."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds from an arbitrary start that nobody sets: for durations and deadlines."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970 UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds from an arbitrary start."""
        return time.monotonic_ns() // 1_000_000

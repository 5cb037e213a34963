"""Time as an argument: all code below the server reads it from a `Clock`, so that tests can set it."""

from __future__ import annotations

from kvitto.base import ticks


class Clock:
    """The two times a broker needs."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970 UTC. It is for stored times, and may jump."""
        raise NotImplementedError

    def monotonic_ms(self) -> int:
        """Return milliseconds since an arbitrary start, never set back: for durations and deadlines."""
        raise NotImplementedError

    def monotonic_us(self) -> int:
        """Return the same time in microseconds."""
        return self.monotonic_ms() * 1000


class SystemClock(Clock):
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970 UTC."""
        return ticks.wall_ms()

    def monotonic_ms(self) -> int:
        """Return milliseconds since an arbitrary start."""
        return ticks.monotonic_ms()

    def monotonic_us(self) -> int:
        """Return microseconds since the same start."""
        return ticks.now_ns() // 1000

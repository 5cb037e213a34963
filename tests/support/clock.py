"""A clock that tests set by hand; a `kvitto.base.clock.Clock`."""

from dataclasses import dataclass

from kvitto.base.clock import Clock


@dataclass
class ManualClock(Clock):
    """Both times move together by `advance`; `set` moves the wall clock alone, as its owner or NTP may."""

    wall_ms: int = 1_700_000_000_000
    seconds: float = 1000.0

    def now_ms(self) -> int:
        """Wall clock in milliseconds."""
        return self.wall_ms

    def monotonic_ms(self) -> int:
        """Milliseconds."""
        return round(self.seconds * 1000)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds
        self.wall_ms += round(seconds * 1000)

    def set(self, seconds: float) -> None:
        """Set the wall clock forward, or back where `seconds` is negative."""
        self.wall_ms += round(seconds * 1000)

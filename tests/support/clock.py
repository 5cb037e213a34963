"""A clock that tests set by hand; it satisfies `kvitto.base.clock.Clock`."""

from dataclasses import dataclass


@dataclass
class ManualClock:
    """Both times move together, and only by `advance`."""

    wall_ms: int = 1_700_000_000_000
    seconds: float = 1000.0

    def now_ms(self) -> int:
        """Wall clock in milliseconds."""
        return self.wall_ms

    def monotonic(self) -> float:
        """Seconds."""
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds
        self.wall_ms += round(seconds * 1000)

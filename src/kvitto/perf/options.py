"""What a run of the load generator does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Options:
    """What a run does; see `kvitto perf throughput --help`. 0 means off or no limit."""

    uri: str
    publishers: int = 1
    consumers: int = 1
    size: int = 16
    max_unconfirmed: int = 0
    ack_every: int = 0
    publish_tx: int = 0
    ack_tx: int = 0
    queue: str = "perf-test"
    exchange: str = ""
    routing_key: str = ""
    prefetch: int = 0
    persistent: bool = False
    seconds: float = 0.0
    publish_count: int = 0
    consume_count: int = 0
    rate: float = 0.0
    latency: bool = False
    broker_pid: int = 0
    """A process on this machine whose CPU time is reported, too."""


@dataclass(slots=True)
class Quota:
    """The number of messages that all publishers together may still publish; None means no limit."""

    left: int | None

    def take(self, wanted: int) -> int:
        """Return at most `wanted`, and reduce the rest by it."""
        if self.left is None:
            return wanted
        granted = min(wanted, self.left)
        self.left -= granted
        return granted

"""Disk and memory watermarks: past them publishers are blocked, and consumers and acks go on, until the alarm ends
(D4). `Server` calls it."""

from __future__ import annotations

from collections.abc import Callable

from kvitto.base import process
from kvitto.base.config import Config
from kvitto.base.limits import MIB, SEGMENT_BYTES

DISK_CLEAR = 10
MEMORY_CLEAR = 20
CLEAR_MAX = SEGMENT_BYTES
"""Hysteresis: an alarm ends when the value is better than the limit by a share of it, at most by this many bytes. Else
the alarm would begin and end with each message."""

Block = Callable[[str | None, str], None]


def amount(size: int) -> str:
    """Format a number of bytes for a person."""
    return f"{size // MIB} MiB" if size >= MIB else f"{size} bytes"


class Watermarks:
    """Call `look` once a second. It calls `block` for "disk" and "memory" with a reason, or with none when the alarm ends."""

    def __init__(
        self,
        config: Config,
        block: Block,
        free_bytes: Callable[[], int],
        resident_bytes: Callable[[], int] = process.resident_bytes,
    ) -> None:
        self._disk_limit = config.disk_free_limit
        self._memory_limit = config.memory_limit
        self._block = block
        self._free_bytes = free_bytes
        self._resident_bytes = resident_bytes
        self.disk_low = False
        self.memory_low = False

    def look(self) -> None:
        free, limit = self._free_bytes(), self._disk_limit
        self.disk_low = free < limit + (min(limit // DISK_CLEAR, CLEAR_MAX) if self.disk_low else 0)
        text = (
            f"low on disk: {amount(free)} free, less than --disk-free-limit of {amount(limit)};"
            " make room, or consume, purge or delete queues"
        )
        self._block(text if self.disk_low else None, "disk")

        used, limit = self._resident_bytes(), self._memory_limit
        self.memory_low = used > limit - (min(limit // MEMORY_CLEAR, CLEAR_MAX) if self.memory_low else 0)
        text = (
            f"low on memory: {amount(used)} in use, more than --memory-limit of {amount(limit)};"
            " end open transactions and consumers that ack nothing, or raise it"
        )
        self._block(text if self.memory_low else None, "memory")
        if self.memory_low:
            process.give_back_memory()  # memory that is free inside the process counts as used otherwise, and the alarm would stay

"""What one sync costs on the disk under the brokers: every figure with confirms is quoted beside it."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

RECORD = bytes(512)
"""What is appended before each sync: about what one small batch of a log is."""


def fdatasync_us(directory: Path, count: int) -> float:
    """Median microseconds of append + fdatasync on a growing file, as a broker's log does it."""
    spans = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(count):
            started = time.perf_counter()
            file.write(RECORD)
            os.fdatasync(file.fileno())
            spans.append(time.perf_counter() - started)
    return statistics.median(spans) * 1e6

"""What a broker uses over time: resident memory, open files and disk; and whether its memory grows."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
BLOCKS = 30
"""Samples are averaged in this many blocks before the regression, because neighbours depend on each other."""
LEAST_S = 300.0
"""For a shorter time there is no result, because a process that has just started grows."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The use at one moment, summed over the broker's processes."""

    at_s: float
    life: int
    """The number of the broker's start."""
    rss_bytes: int
    files: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class Slope:
    """Bytes per hour by linear regression, with its standard error."""

    bytes_per_h: float
    error: float

    @property
    def grows(self) -> bool:
        """Whether it is more than noise: above zero by more than three standard errors."""
        return self.bytes_per_h > 3 * self.error


def sample(pids: Sequence[int], data: Path, life: int, started_s: float) -> Sample | None:
    """Return a sample, or None if the broker is not running."""
    rss = files = 0
    try:
        for pid in pids:
            rss += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
            files += len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    return Sample(time.monotonic() - started_s, life, rss, files, disk_bytes(data)) if pids else None


def disk_bytes(directory: Path) -> int:
    """Return the blocks of all files below the directory."""
    total = 0
    for where, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(where, name)).st_blocks * 512
            except OSError:
                continue  # removed meanwhile
    return total


def slope(samples: Sequence[Sample]) -> Slope | None:
    """Return the slope of the resident memory in the longest life of the broker, without its first tenth; None if there
    are too few samples."""
    if not samples:
        return None
    lives: dict[int, list[Sample]] = {}
    for each in samples:
        lives.setdefault(each.life, []).append(each)
    longest = max(lives.values(), key=len)
    if longest[-1].at_s - longest[0].at_s < LEAST_S:
        return None
    points = blocks([(each.at_s, float(each.rss_bytes)) for each in longest[len(longest) // 10 :]])
    return regression(points) if len(points) >= BLOCKS else None


def blocks(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the means over BLOCKS runs of about the same length."""
    size = max(1, len(points) // BLOCKS)
    parts = [points[k : k + size] for k in range(0, len(points) - size + 1, size)]
    return [(sum(x for x, _ in part) / size, sum(y for _, y in part) / size) for part in parts]


def regression(points: Sequence[tuple[float, float]]) -> Slope:
    """Return the least-squares line over (seconds, bytes); the standard error is that of the slope."""
    n = len(points)
    mean_x, mean_y = (sum(values) / n for values in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if n < 3 or spread == 0:
        return Slope(0.0, math.inf)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - rise * (x - mean_x)) ** 2 for x, y in points)
    return Slope(rise * 3600, math.sqrt(rest / (n - 2) / spread) * 3600)

"""The size of a batch and its partitions: arithmetic without a connection."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

Range = tuple[str, int, int]
"""(queue, first offset, offset after the last)."""

PARTITION_OFFSETS_MIN = 20_000
"""A smaller task costs more than it reads; only option minPartitions makes smaller ones."""


def parallelism(wanted: int) -> tuple[int, int]:
    """Return the number of partitions and the smallest size for `split`; `wanted` is option minPartitions, 0 if it is not given."""
    # the driver's Python process does not know Spark's default parallelism; its cores are the best estimate
    return wanted or os.cpu_count() or 1, 1 if wanted else PARTITION_OFFSETS_MIN


def fit_bytes(most: int, most_bytes: int, mean_size: float) -> int:
    """Return `most` offsets (0 = no limit), or fewer if messages of that size would have more than `most_bytes` (0 = no limit)."""
    if not most_bytes:
        return most
    fit = max(1, int(most_bytes / max(1.0, mean_size)))
    return min(most, fit) if most else fit


def limit_offsets(starts: Mapping[str, int], ends: Mapping[str, int], most: int) -> dict[str, int]:
    """Return ends with which at most about `most` offsets are read, shared by the queues in proportion to their waiting
    messages.

    Each queue with waiting messages moves by at least one offset, so that none waits for ever.
    """
    waiting = {queue: ends[queue] - starts[queue] for queue in ends}
    total = sum(waiting.values())
    if total <= most:
        return dict(ends)
    return {
        queue: starts[queue] + min(count, max(1, most * count // total)) if count > 0 else ends[queue]
        for queue, count in waiting.items()
    }


def split(ranges: Sequence[Range], partitions: int, smallest: int) -> list[Range]:
    """Cut into about `partitions` ranges of equal size, none smaller than `smallest`, at least one per queue."""
    total = sum(end - start for _, start, end in ranges)
    if total == 0:
        return []
    size = max(-(-total // max(partitions, 1)), smallest, 1)
    pieces: list[Range] = []
    for queue, start, end in ranges:
        count = -(-(end - start) // size)
        for k in range(count):
            # borders by proportion: pieces differ by one offset at most
            first = start + (end - start) * k // count
            last = start + (end - start) * (k + 1) // count
            pieces.append((queue, first, last))
    return pieces

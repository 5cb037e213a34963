"""Chooses the segments of a read, and assigns them to tasks, from names, sizes and headers alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from kvitto.format.layouts import FILE_HEAD, SEGMENT_MAGIC
from kvitto.spark.archive.files import Queue, Segment
from kvitto.spark.archive.settlements import read_entries

PARTITION_BYTES: Final = 32 << 20
"""Small segments share a task up to this size; a full segment is a task of its own."""
CLOCK_MS: Final = 600_000
"""How far the clock of a broker's machine may have been set back between two segments without hiding messages from a
read by time."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a read: names (None means any), and times in ms, [start, end)."""

    vhosts: frozenset[str] | None
    queues: frozenset[str] | None
    ids: frozenset[str] | None
    start_ms: int
    end_ms: int

    def take(self, queue: Queue) -> bool:
        """Return whether messages of this queue may be within the bounds."""
        pairs = ((self.vhosts, queue.vhost), (self.queues, queue.name), (self.ids, queue.id))
        return all(names is None or name in names for names, name in pairs)


def choose(segments: Sequence[Segment], bounds: Bounds, by_publishing: bool) -> list[Segment]:
    """Return the segments that may have something within the bounds. `by_publishing`: times are of messages, not of settlements."""
    chosen = [each for each in segments if bounds.take(each.queue)]
    if bounds.start_ms <= 0 and bounds.end_ms >= 1 << 62:
        return chosen
    kept: list[Segment] = []
    for _, group in groupby(chosen, key=lambda each: each.queue.id):
        row = list(group)
        created = [created_ms(each) for each in row]
        for each, begins, ends in zip(row, created, [*created[1:], None], strict=True):
            late = begins is not None and begins - CLOCK_MS >= bounds.end_ms
            early = by_publishing and ends is not None and ends + CLOCK_MS < bounds.start_ms
            if not late and not early:
                kept.append(each)
    return kept


def created_ms(segment: Segment) -> int | None:
    """Return the time when the segment was begun, from its header; None if that cannot be read."""
    head = _read(segment.paths(".log"), FILE_HEAD.size)
    whole = len(head) == FILE_HEAD.size and head.startswith(SEGMENT_MAGIC)
    return FILE_HEAD.read(head).created_ms if whole else None


def marks(segments: Sequence[Segment]) -> dict[str, int]:
    """Return the delivered mark by queue id. It is in the settlement log of any of the queue's live segments."""
    found: dict[str, int] = {}
    for each in segments:
        if not each.archived:
            paths = each.paths(".ack")
            mark = read_entries(_read(paths), paths[0], whole=False, ignore_damage=True).mark
            found[each.queue.id] = max(found.get(each.queue.id, 0), mark)
    return found


def together(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Yield the tasks: a large segment each, or several small ones."""
    group: list[Segment] = []
    size = 0
    for each in segments:
        if group and size + each.size > PARTITION_BYTES:
            yield group
            group, size = [], 0
        group.append(each)
        size += each.size
    if group:
        yield group


def _read(paths: Sequence[str], size: int = -1) -> bytes:
    """Return the beginning of the first of these files that exists; nothing if none does."""
    for path in paths:
        try:
            with open(path, "rb", buffering=0 if size >= 0 else -1) as file:
                return file.read(size) or b""
        except FileNotFoundError:
            continue
    return b""

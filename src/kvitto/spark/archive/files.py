"""Finds the segments in a data directory (archive/ and queues/) or in an archive directory.

The broker may be running. It links a segment into the archive before it unlinks the live one, so the live ones are
listed first: then every segment is seen, and of two copies the archived one is used (docs/formats.md, Archive).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvitto.spark.errors import SourceError

ARCHIVE: Final = "archive"
QUEUES: Final = "queues"
NAMES: Final = "queue.json"
_ID: Final = re.compile(r"[0-9a-f]{32}")
_SEGMENT: Final = re.compile(r"(\d{20})\.log")


class ArchiveError(SourceError):
    """The given path is not an archive, or a file in it is damaged."""


@dataclass(frozen=True, slots=True)
class Queue:
    """One incarnation of a queue, as its queue.json names it."""

    vhost: str
    name: str
    id: str


@dataclass(frozen=True, slots=True)
class Segment:
    """The messages of a queue from offset `base` on. `places`: the directory it is in, and the one to which it may move."""

    queue: Queue
    base: int
    size: int
    places: tuple[str, ...]
    archived: bool

    def paths(self, suffix: str) -> list[str]:
        """Return the possible paths of its `.log` or `.ack`, in the order to try."""
        return [os.path.join(place, f"{self.base:020d}{suffix}") for place in self.places]


def find(path: Path) -> list[Segment]:
    """Return all segments of queues that have an archive, by queue and offset. Raise ArchiveError if `path` has none."""
    if not path.is_dir():
        raise ArchiveError(f"there is no directory {path}: give a broker's data directory or an archive directory")
    live: Path | None = None
    archives = path
    if (path / QUEUES).is_dir() or (path / ARCHIVE).is_dir():
        live, archives = path / QUEUES, path / ARCHIVE
    elif not _ids(path):
        raise ArchiveError(
            f"{path} is neither a broker's data directory (with queues/ or archive/ in it) nor an archive"
            " (with directories of queues, named with 32 hex digits)"
        )
    found: dict[tuple[str, int], Segment] = {}
    for name in _ids(live) if live else ():
        assert live is not None
        found |= {(name, each.base): each for each in _of_queue(live / name, archives / name)}
    for name in _ids(archives):
        found |= {(name, each.base): each for each in _of_queue(archives / name, None)}
    return sorted(found.values(), key=lambda each: (each.queue.vhost, each.queue.name, each.queue.id, each.base))


def _ids(directory: Path) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if _ID.fullmatch(name)]
    except FileNotFoundError:
        return []


def _of_queue(directory: Path, archive: Path | None) -> Iterator[Segment]:
    """Yield the segments in one queue's directory; none of a live one without queue.json, because that queue has no archive."""
    try:
        bases = [int(match[1]) for name in os.listdir(directory) if (match := _SEGMENT.fullmatch(name))]
    except FileNotFoundError:  # the queue or its archive has been deleted
        return
    queue = _read_queue(directory / NAMES)
    if queue is None:
        if bases and archive is None:
            raise ArchiveError(f"{directory} has segments but no {NAMES}, which says whose they are (docs/formats.md)")
        return
    places = (str(directory),) if archive is None else (str(directory), str(archive))
    for base in bases:
        try:
            size = os.stat(directory / f"{base:020d}.log").st_size
        except FileNotFoundError:  # moved into the archive, which is listed next, or unlinked from it
            continue
        yield Segment(queue, base, size, places, archive is None)


def _read_queue(path: Path) -> Queue | None:
    try:
        fields = json.loads(path.read_bytes())
        return Queue(str(fields["vhost"]), str(fields["queue"]), str(fields["id"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{path} is damaged ({error!r}); it names vhost, queue and id (docs/formats.md)") from None

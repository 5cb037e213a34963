"""The archive of one queue: segments whose messages are all settled, each with its settlement log (docs/formats.md, Archive).

A segment moves in three steps, and each is durable before the next begins: its files are synced, its settlement log is linked into the
archive, and then the segment itself is. So a segment in the archive has all its settlements, and it leaves the queue's directory only
once the archive has it durably. A start repeats a move that a crash has cut short. The queue's log calls this for each segment, and the
broker from time to time to remove old ones. An archive outlives its queue.
"""

from __future__ import annotations

import json
import logging
from bisect import insort
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from kvitto.base.errors import StoreFull
from kvitto.base.limits import SEGMENT_BYTES
from kvitto.store import paths, settlements
from kvitto.store import segment as segfile
from kvitto.store.inventory import ARCHIVED, UNKNOWN

if TYPE_CHECKING:
    from kvitto.store.inventory import Entry
    from kvitto.store.log import Log
    from kvitto.store.segment import Segment
    from kvitto.store.store import Store

TRIMMED_AT_ONCE = 100
"""One call unlinks at most this many segments, because the loop waits for it."""

log = logging.getLogger("kvitto.store")


@dataclass(order=True)
class Kept:
    """A segment in the archive.

    `size`: the bytes of both files, 0 if nothing limits the archive's bytes. `settled_ms`: the time of its newest settlement, -1 until it
    has been read.
    """

    base: int
    size: int = field(compare=False)
    settled_ms: int = field(default=-1, compare=False)
    slot: int = field(default=-1, compare=False)
    """The number of its slot in the inventory, -1 without one."""


def same(found: bytes, about: bytes) -> bool:
    """Whether two texts are the same JSON document, however it is formatted."""
    try:
        return bool(json.loads(found) == json.loads(about))
    except ValueError:
        return False


class Archive:
    def __init__(self, store: Store, queue_id: str, about: bytes, max_age_ms: int = -1, max_bytes: int = -1) -> None:
        self.store = store
        self.queue_id = queue_id
        self.about = about
        """The content of queue.json."""
        self.max_age_ms = max_age_ms
        self.max_bytes = max_bytes
        self.directory = paths.archive_dir(queue_id)
        self.kept: list[Kept] = []
        self.found: set[int] = set()
        """The base offsets of which a start has found a file in the archive."""
        self.held_up = False
        """There was no room on the disk: no segment is moved until the broker clears this."""
        self._coming: set[Segment] = set()
        self._find()
        store.archives[self] = None

    def _find(self) -> None:
        disk, names = self.store.disk, self.store.disk.listdir(self.directory)
        segments = {paths.base_of(n) for n in names if n.endswith(paths.SEGMENT_SUFFIX)}
        logs = {paths.base_of(n) for n in names if n.endswith(paths.SETTLEMENTS_SUFFIX)}
        known = self.store.inventory.claim(ARCHIVED, self.queue_id)
        self.kept = [self._found(base, known.get(base)) for base in sorted(segments)]
        for base in sorted(known.keys() - segments):
            self.store.alarm(
                f"{paths.segment(self.directory, base)} is missing: the archive does not have its messages any more"
            )
            self.store.drop_slot(known[base].slot)
        self.found = segments | logs
        for base in logs - segments:  # the segment was removed from the archive, or has not arrived yet
            if not disk.exists(paths.segment(paths.queue_dir(self.queue_id, True), base)):
                disk.unlink(paths.settlements(self.directory, base))
        for name in names:
            if name.endswith(paths.copying("")):
                disk.unlink(f"{self.directory}/{name}")
        if names:
            with suppress(StoreFull):  # the next segment tries again
                self._describe(self.directory)
            if not self.store.ending.in_order and disk.exists(paths.about(self.directory)):
                file = disk.open(paths.about(self.directory))
                file.sync()  # a killed process may have written it without a sync
                file.close()

    def _found(self, base: int, entry: Entry | None) -> Kept:
        path = paths.settlements(self.directory, base)
        if entry is not None and not self.store.disk.exists(path):
            self.store.alarm(f"{path} is missing: what became of the messages of its segment is not known")
        kept = Kept(base, self._size(base), slot=-1 if entry is None else entry.slot)
        if not self.store.disk.exists(paths.segment(paths.queue_dir(self.queue_id, True), base)):
            self._enter(kept)  # otherwise a sync may not have covered its names yet
        return kept

    def _enter(self, kept: Kept) -> None:
        """Both files are durable in the archive: enter them in the inventory, so that a start notices if they are missing."""
        if kept.slot >= 0:
            return
        with suppress(StoreFull):
            slot = self.store.inventory.take()
            self.store.inventory.put(slot, (ARCHIVED, self.queue_id, kept.base), UNKNOWN)
            kept.slot = slot
            self.store.commits.wrote_file(self.store.inventory.file)

    def _size(self, base: int) -> int:
        """The bytes of a segment's files, 0 if nothing limits the archive's bytes."""
        size = 0
        if self.max_bytes < 0:
            return size
        for path in (paths.segment(self.directory, base), paths.settlements(self.directory, base)):
            if self.store.disk.exists(path):  # users may take files out of an archive
                file = self.store.disk.open(path)
                size += file.size()
                file.close()
        return size

    def _describe(self, directory: str) -> None:
        """Write queue.json. Raises an alarm if the file that was there is damaged, as `kvitto check` would say."""
        path, disk = paths.about(directory), self.store.disk
        found = disk.read_file(path) if disk.exists(path) else None
        if found == self.about:
            return
        missed = directory == self.directory and bool(self.kept)  # it is written before the first segment is moved
        if found is None:
            why = "is missing" if missed else ""
        elif self.store.ending.power_cut and not missed and (b"\0" in found or not found.endswith(b"\n")):
            why = ""  # a power cut may have torn it
        else:
            why = "" if same(found, self.about) else "did not say which queue this is"
        if why:
            self.store.alarm(f"{path} {why}: it is written anew")
        self.store.put_file(path, self.about)

    def announce(self, directory: str) -> None:
        """Put queue.json into the queue's own directory, so that a reader of its live segments knows the queue's name."""
        try:
            if not self.store.disk.exists(directory):
                self.store.make_dir(directory, True)
            self._describe(directory)
        except StoreFull as error:  # it is tried again
            log.warning("%s", error)

    # -- in --------------------------------------------------------------------------------------------------

    def has(self, log_: Log, segment: Segment) -> bool:
        """Whether the archive has a segment durably. If not, begin to move it, and call `log_.drop_settled` once it has."""
        if not segment.archived and segment not in self._coming and not self.held_up:
            self._coming.add(segment)
            self.store.commits.when_clean(segment, partial(self._take_settlements, log_, segment))
        return segment.archived

    def _take_settlements(self, log_: Log, segment: Segment) -> None:
        segment.linked = True
        try:
            if not self.store.disk.exists(self.directory):
                self.store.disk.makedirs(self.directory)
                self.store.commits.renamed("")
                self.store.commits.renamed(paths.ARCHIVE)
            self._describe(self.directory)
            path, name = (paths.settlements(directory, segment.base) for directory in (log_.directory, self.directory))
            self.store.link(log_, path, name, partial(self._take_messages, log_, segment))
        except StoreFull as error:
            self._put_off(segment, error)

    def _take_messages(self, log_: Log, segment: Segment) -> None:
        try:
            if not self.store.disk.exists(paths.settlements(self.directory, segment.base)):
                raise StoreFull(f"there is no room for a copy in {self.directory}")
            path, name = (paths.segment(directory, segment.base) for directory in (log_.directory, self.directory))
            self.store.link(log_, path, name, partial(self._arrived, log_, segment))
        except StoreFull as error:
            self._put_off(segment, error)

    def _arrived(self, log_: Log, segment: Segment) -> None:
        if not self.store.disk.exists(paths.segment(self.directory, segment.base)):
            self._put_off(segment, StoreFull(f"there is no room for a copy in {self.directory}"))
            return
        self._coming.discard(segment)
        segment.archived = True
        self._note()
        if all(kept.base != segment.base for kept in self.kept):
            insort(self.kept, Kept(segment.base, self._size(segment.base)))
        self._enter(next(kept for kept in self.kept if kept.base == segment.base))
        log_.drop_settled()
        self.trim()

    def _put_off(self, segment: Segment, error: StoreFull) -> None:
        """Leave the segment in its queue; a later call begins the move again."""
        self._coming.discard(segment)
        if not self.held_up:
            self.held_up = True
            log.warning("%s: segments that are settled stay in the directory of their queue", error)

    # -- out -------------------------------------------------------------------------------------------------

    def trim(self) -> bool:
        """Unlink some of the oldest segments while a limit is exceeded. Returns whether there may be more.

        A settlement log is unlinked once its segment is durably gone.
        """
        left = sum(kept.size for kept in self.kept)
        for kept in self.kept[:TRIMMED_AT_ONCE]:
            if not (0 <= self.max_bytes < left or self._is_old(kept)):
                return False
            try:
                self.store.drop_slot(kept.slot)
            except StoreFull:
                return True
            left -= kept.size
            self._note()
            self.kept.remove(kept)
            remove = partial(self.store.removals.add, SEGMENT_BYTES, partial(self._remove, kept.base))
            self.store.commits.when_synced(remove)
        return bool(self.kept)

    def _remove(self, base: int) -> None:
        """Unlink a segment that the inventory has durably forgotten."""
        self.store.unlink(self.directory, paths.segment(self.directory, base))
        self.store.commits.unlink_later(self.directory, paths.settlements(self.directory, base))

    def remove(self) -> bool:
        """Remove the archive of a deleted queue, queue.json last. Returns False while a file of its segments is left."""
        names = self.store.disk.listdir(self.directory)
        if any(name.endswith((paths.SEGMENT_SUFFIX, paths.SETTLEMENTS_SUFFIX)) for name in names):
            return False
        self._note()
        self.store.archives.pop(self, None)
        self.store.disk.rmtree(self.directory)
        self.store.commits.renamed(paths.ARCHIVE)
        return True

    def _note(self) -> None:
        """Have a backup note what is kept, because that is about to change (store/cut.py)."""
        if self.store.cut is not None:
            self.store.cut.keep_archive(self)

    def _is_old(self, kept: Kept) -> bool:
        if self.max_age_ms < 0:
            return False
        if kept.settled_ms < 0:
            path = paths.settlements(self.directory, kept.base)
            data = self.store.disk.read_file(path) if self.store.disk.exists(path) else b""
            kept.settled_ms = settlements.newest_ms(data, segfile.HEADER) or segfile.created_ms(data)
        return kept.settled_ms + self.max_age_ms <= self.store.clock.now_ms()

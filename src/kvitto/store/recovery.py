"""The start of one log: it reads the segments and settlement logs, and takes note of what is missing or damaged.

Called once for each queue. It restores these invariants: `next` is above every offset that was ever used or announced, the delivered mark
is in a settlement log that stays, and all that has been read is durable. `judge.py` gives the verdicts, which this module carries out;
docs/formats.md (Recovery) has the rules.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from kvitto.base.errors import StoreFull
from kvitto.format.layouts import FILE_HEAD, SETTLEMENTS_MAGIC, bytes_of
from kvitto.store import judge, paths, settlements
from kvitto.store import segment as segfile
from kvitto.store.inventory import SEGMENT, Entry
from kvitto.store.judge import End, Header, SegmentHeader, Settled
from kvitto.store.segment import Segment

if TYPE_CHECKING:
    from kvitto.store.log import Log

_AGAIN = "what it had settled comes again, flagged"

log = logging.getLogger("kvitto.store")


class Recovered:
    """What a queue needs to know of its log after a start."""

    def __init__(self) -> None:
        self.cursor = 0
        self.requeued: list[tuple[int, int]] = []
        self.ready = 0
        self.ready_bytes = 0
        self.redeliveries: dict[int, int] = {}
        self.flagged_below = 0


class Recovery:
    """One start of one log. The time grows with the number of segments, not of messages."""

    def __init__(self, log_: Log) -> None:
        self.log = log_
        self.store = log_.store
        self._found = Recovered()
        self._known: dict[int, Entry] = {}
        """What the inventory has of the queue's segments, by base."""
        self._replays: dict[int, settlements.Replay] = {}
        """What the settlement logs say, by base."""
        self._headers: dict[int, Settled] = {}
        """What the headers of the settlement logs are, by base."""
        self._names: frozenset[str] = frozenset()
        """The names of the files in the queue's directory when the start began."""
        self._is_followed = False
        """Whether one of the segments that have been read says that it had been synced. The last one is read first."""

    def run(self) -> Recovered:
        """Read what is on disk. The order of the steps matters, because each of them uses what those before it have found."""
        log_ = self.log
        if log_.durable:
            self._known = self.store.inventory.claim(SEGMENT, log_.queue_id)
        names = self.store.disk.listdir(log_.directory)
        self._tell_kept(names)
        self._miss_settlements(names)
        if Settled.FOREIGN in self._headers.values():  # these have been renamed
            names = self.store.disk.listdir(log_.directory)
        self._names = frozenset(names)
        acks = {paths.base_of(name) for name in names if name.endswith(paths.SETTLEMENTS_SUFFIX)}
        bases = sorted(paths.base_of(name) for name in names if name.endswith(paths.SEGMENT_SUFFIX))
        found: list[Segment] = []
        for base in reversed(bases):  # what a later segment says counts for those before it
            segment = self._read(base, self._known.get(base))
            if segment is not None:
                found.append(segment)
        for segment in reversed(found):
            self._add(segment)
        self._miss_segments(bases)
        told = self._replay_all(acks)
        orphans = acks - {segment.base for segment in log_.segments}
        for orphan in orphans:
            self._orphan(orphan)
        self._raise_mark(told)
        self._count()
        self._end_last(told)
        # what is written next says that all before it is durable, but a killed process may not have synced it
        self._sync_found()
        self._save_mark()
        self._sync_noted()
        self._flag()
        with suppress(StoreFull):
            # a segment has to say which offset is next before the settlement logs are unlinked that said so
            self._tell_next()
            for orphan in orphans:
                self.store.disk.unlink(paths.settlements(log_.directory, orphan))
        log_.reader.lost.clear()
        if log_.durable:
            self._enter_found()
        log_.announced(log_.synced_end)
        log_.drop_settled()
        return self._found

    def _tell_kept(self, names: list[str]) -> None:
        """Log what an earlier start has set aside: it may have been killed before its alarm."""
        kept = [name for name in names if paths.QUARANTINE_SUFFIX in name and not name.endswith(paths.copying(""))]
        if kept:
            more = f" and {len(kept) - 1} more" if kept[1:] else ""
            log.warning(
                "%s/%s%s: an earlier start has found damage and kept this; remove it when you have taken note",
                self.log.directory,
                kept[0],
                more,
            )

    def _replay_all(self, acks: set[int]) -> int:
        """Read the settlement logs of the segments. Returns the end of the offsets that any file mentions."""
        log_ = self.log
        for segment in log_.segments:
            if segment.base in acks:
                replay = self._replays[segment.base] = self._replay(segment, self._known.get(segment.base))
                self._found.flagged_below = max(self._found.flagged_below, replay.flagged_below)
                if replay.mark > log_.delivered_mark:
                    log_.delivered_mark, log_.mark_segment = replay.mark, segment
        ends = [segment.end for segment in log_.segments]
        told = max([0, log_.delivered_mark, *ends, *(replay.highest + 1 for replay in self._replays.values())])
        log_.next = max(log_.next, told)
        return told

    def _raise_mark(self, told: int) -> None:
        """Raise the delivered mark above offsets that were settled but never written, and above those that are lost."""
        log_ = self.log
        if log_.next > told:  # offsets that were never written, or are lost, have to lie below the cursor
            log_.delivered_mark, log_.mark_segment = log_.next, None
        for segment in log_.segments:
            if segment.settled and segment.end > log_.delivered_mark:
                # A message is never written if it was delivered and settled at once. First deliveries are in order, so all before it
                # had been delivered.
                raised = max([log_.delivered_mark] + [start + count for start, count in segment.batch_gaps()])
                if raised > log_.delivered_mark:
                    log_.delivered_mark, log_.mark_segment = raised, None

    def _end_last(self, told: int) -> None:
        """Let the last segment go on at the end of the offsets that any file mentions."""
        if self.log.segments and not self.log.segments[-1].full:
            last = self.log.segments[-1]
            last.settled += told - last.end
            last.end = last.synced_end = told

    def _save_mark(self) -> None:
        """Write the delivered mark again if no settlement log that stays has it: its segment is gone, or it was derived from gaps."""
        log_ = self.log
        if log_.mark_segment is None and log_.segments and log_.delivered_mark > log_.segments[0].base:
            rest = [segment for segment in log_.segments if not segment.linked]
            with suppress(StoreFull):
                if rest and log_.delivered_mark > rest[0].base:
                    log_.keep_mark(rest)

    def _flag(self) -> None:
        """Flag all messages if the last delivered mark may be lost: any of them may have been delivered, or settled.

        That goes for messages below the delivered mark as well: in a queue with priorities messages that were never delivered lie below it.
        The settlement logs are told of it behind the start, so that later starts flag them too.
        """
        if self.store.ending.in_doubt or self._lacks_settlements():
            self._found.flagged_below = self.log.next
            self.store.owed_flags[self.log] = self.log.next

    def _miss_segments(self, bases: list[int]) -> None:
        """Raise an alarm for each segment that is in the inventory and not in the directory. An empty `.bad` keeps the memory of it."""
        known = self._known
        self.log.next = max([self.log.next, *(entry.end for entry in known.values())])
        for base in sorted(known.keys() - set(bases)):
            entry, path = known[base], paths.segment(self.log.directory, base)
            if not self.store.disk.exists(paths.quarantine(self.log.directory, base)):
                if entry.end > base:
                    lost = f"what waited of offsets {base} to {entry.end - 1} is lost"
                else:
                    lost = "no message was in it"
                self.store.remember(self.log.directory, paths.quarantine(self.log.directory, base))
                self.store.alarm(f"{path} is missing: {lost}; the rest of the queue is served")
            self.store.drop_slot(entry.slot)

    def _miss_settlements(self, names: list[str]) -> None:
        """Raise an alarm for each settlement log that is missing or another segment's: what it had settled comes again, flagged."""
        for base, entry in self._known.items():
            path = paths.settlements(self.log.directory, base)
            if not entry.acks_size or not self.store.disk.exists(paths.segment(self.log.directory, base)):
                continue
            if path.rpartition("/")[2] not in names:
                self.store.remember(self.log.directory, paths.quarantined_settlements(self.log.directory, base))
                self.store.alarm(f"{path} is missing: {_AGAIN}")
        for name in names:
            base = paths.base_of(name)
            if name.endswith(paths.SETTLEMENTS_SUFFIX) and base >= 0:
                self._judge_settlements(base)

    def _judge_settlements(self, base: int) -> None:
        """Judge the header of a settlement log, and rename the file if it names another queue or offset."""
        path = paths.settlements(self.log.directory, base)
        file = self.store.disk.open(path)
        head, size = file.read_at(0, segfile.HEADER), file.size()
        file.close()
        known = self._known.get(base)
        what, whose = judge.settlements_header(head, size, self.log.queue_id, base, self.store.ending, known)
        self._headers[base] = what
        if what is Settled.FOREIGN:
            kept = self.store.put_aside(
                self.log.directory, path, paths.quarantined_settlements(self.log.directory, base)
            )
            self.store.alarm(f"{path}: its header says that it is {whose}. The file is now {kept}; {_AGAIN}")

    def _lacks_settlements(self) -> bool:
        """Whether a settlement log is damaged or missing. Any of them may have had the mark, which goes for all segments."""
        return any(replay.damaged for replay in self._replays.values()) or any(
            entry.acks_size and base not in self._replays for base, entry in self._known.items()
        )

    def _enter_found(self) -> None:
        """Enter the segments that the inventory does not know: they were new when the broker ended, or about to be unlinked."""
        for segment in self.log.segments:
            if segment.slot < 0 and segment.durable:
                self.store.enter(self.log, segment)

    def _tell_next(self) -> None:
        """Make a segment that begins at `next` if the files that tell of used offsets are not to stay (damage, an orphan)."""
        if self.log.next > (self.log.segments[-1].end if self.log.segments else 0):
            fresh = self.log.create(self.log.next)
            assert fresh.file is not None
            if self.store.syncing:
                fresh.file.sync()
                self.store.disk.sync_dir(self.log.directory)
            fresh.durable = fresh.size

    def _sync_found(self) -> None:
        """Sync what a killed process has left, since each block that follows says that all before it is durable."""
        if self.store.ending.in_order or self.store.ending.synced or not self.store.syncing or not self.log.durable:
            return
        for segment in self.log.segments:
            if segment.file is not None:  # the footer of a sealed segment may not have been synced
                segment.file.sync()
            if segment.acks is not None:
                segment.acks.sync()
        self.store.disk.sync_dir(self.log.directory)

    def _sync_noted(self) -> None:
        """Sync what this start has written to the settlement logs itself."""
        if self.store.ending.in_order or not self.store.syncing or not self.log.durable:
            return
        made = False
        for segment in self.log.segments:
            if segment.acks is not None and segment.acks_size > segment.acks_durable:
                segment.acks.sync()
                made = made or not segment.acks_durable
        if made:
            self.store.disk.sync_dir(self.log.directory)

    def _read(self, base: int, entry: Entry | None) -> Segment | None:
        """Read a segment as far as a start has to. Returns None if nothing is served from it."""
        path = paths.segment(self.log.directory, base)
        bad = paths.quarantine(self.log.directory, base).rpartition("/")[2]
        owed = paths.copying(bad) in self._names and bad not in self._names
        file = self.store.disk.open(path)
        size = file.size()
        counted = None if owed else self._counted(path, size, entry)
        segment = counted or Segment(base)
        segment.file = file
        segment.slot = -1 if entry is None else entry.slot
        segment.linked = self.log.archive is not None and base in self.log.archive.found
        if counted is not None:
            segment.durable, segment.synced_end = segment.size, segment.end
            self._is_followed = True
            return segment
        found = judge.segment_header(segment.file.read_at, size, self.log.queue_id, base, self.store.ending, entry)
        segment.salt = found.salt
        segment.created_ms = found.created_ms
        if found.what in (Header.FOREIGN, Header.UNREADABLE, Header.NEVER):
            segment.file.close()
            self.log.next = max(self.log.next, found.end)
            self._refuse_segment(segment, found, entry, bool(size))
            return None
        if found.what is Header.DAMAGED:
            if found.promised:
                self.log.quarantine(segment, "the segment's header is damaged")
            if not segment.evidence:
                self.log.write_header(segment)
        elif found.what is Header.SALT and not segment.linked:
            # without this copy the next damage to the header could cost the segment
            log.warning("%s: the copy of the salt in the header was damaged, and is written again", path)
            segment.file.write_at(FILE_HEAD.at["salt_again"], [bytes_of(segment.salt)])
        if owed:
            self.log.quarantine(segment, "damage had been found in it")
        if segment.read_footer():
            self._is_followed = True
        else:
            self._scan(segment, owed, entry)
        return segment

    def _counted(self, path: str, size: int, entry: Entry | None) -> Segment | None:
        """Return a segment of `size` bytes of which nothing need be read, not even its header: as a follower this process has verified and
        synced all of it.
        """
        counted = self.store.counted.pop(path, None)
        if counted is None or counted.size != size or (entry is not None and entry.size > size):
            return None
        return counted

    def _add(self, segment: Segment) -> None:
        """Let a segment be the last one of the log."""
        if self.log.segments:
            last = self.log.segments[-1]
            last.settled += segment.base - last.end
            last.end = segment.base
            if not last.full:
                self.log.fill(last)
        self.log.segments.append(segment)
        self.log.journal = max(self.log.journal, segment.journal)
        self.log.found(segment)

    def _refuse_segment(self, segment: Segment, found: SegmentHeader, entry: Entry | None, filled: bool) -> None:
        """Rename or remove a segment from which nothing is served, and have the inventory forget it."""
        path, base, end = paths.segment(self.log.directory, segment.base), segment.base, found.end
        if found.what is Header.NEVER:
            self.store.disk.unlink(path)
            return
        if found.what is Header.FOREIGN:
            why = f"its header says that it is {found.whose}"
        else:
            why = "the segment's header is damaged" if filled else "it is empty"
        kept = self.store.set_aside(self.log.directory, base)
        if entry is not None:
            self.store.drop_slot(entry.slot)
        lost = f"offsets {base} to {end - 1} cannot be read" if end > base else "no message was in it"
        self.store.alarm(f"{path}: {why}, {lost}; the file is now {kept}, the rest of the queue is served")

    def _scan(self, segment: Segment, owed: bool, entry: Entry | None) -> None:
        assert segment.file is not None
        data = segment.file.read_at(0, segment.file.size())
        found = judge.segment_end(segment, data, self.store.ending, owed, entry, self._is_followed)
        self._is_followed = self._is_followed or judge.says_synced(segment, data)
        if found.words:
            self.log.quarantine(segment, found.words)
        elif found.what is End.FOOTER:
            log.warning("%s: its footer was damaged, and is cut off", segment.file.path)
        if len(data) > segment.size and not segment.evidence:
            segment.file.truncate(segment.size)
        segment.durable, segment.synced_end = segment.size, segment.end
        segment.full = segment.evidence  # without a copy nothing may be written over its damaged end
        self.store.commits.wrote(self.log, segment)

    def _orphan(self, base: int) -> None:
        """Read a settlement log whose segment is gone. Only its offsets and mark matter; it is unlinked once other files have them."""
        replay = self._replays[base] = settlements.Replay(base, 0)
        data, known = self.store.disk.read_file(paths.settlements(self.log.directory, base)), self._known.get(base)
        replay.run(data, segfile.HEADER, self.store.ending.power_cut, known.acks_size if known else 0)
        replay.damaged = judge.settlements_are_damaged(replay, len(data), self.store.ending)
        if replay.mark > self.log.delivered_mark:
            self.log.delivered_mark, self.log.mark_segment = replay.mark, None
        self.log.next = max(self.log.next, replay.mark, replay.highest + 1)

    def _replay(self, segment: Segment, entry: Entry | None) -> settlements.Replay:
        path = paths.settlements(self.log.directory, segment.base)
        data = self.store.disk.read_file(path)
        replay = self._blank(segment)
        replay.run(data, segfile.HEADER, self.store.ending.power_cut, entry.acks_size if entry else 0)
        replay.damaged = judge.settlements_are_damaged(replay, len(data), self.store.ending)
        if replay.damaged:
            self.store.alarm(f"{path}: settlements are damaged; messages that were settled come again, flagged")
        segment.acks = self.store.disk.open(path)
        segment.acks_size = segment.acks_durable = max(replay.end, segfile.HEADER)
        if self._headers[segment.base] is not Settled.FINE:
            if self._headers[segment.base] is Settled.DAMAGED:
                log.warning("%s: its header was damaged, and is written again", path)
            head = segfile.header(SETTLEMENTS_MAGIC, self.log.queue_id, segment.base, self.store.clock.now_ms())
            segment.acks.write_at(0, [head])
        if len(data) > segment.acks_size:
            segment.acks.truncate(segment.acks_size)
        if not self.store.ending.synced:
            self.store.commits.settled(self.log, segment)
        return replay

    @staticmethod
    def _blank(segment: Segment) -> settlements.Replay:
        """Return a replay in which nothing is settled. Offsets that were never written have no bit, since there may be any number."""
        gaps = segment.batch_gaps() if segment.settled else ()
        return settlements.Replay(segment.base, segment.end - segment.base, gaps)

    def _count(self) -> None:
        """Count the unsettled messages. Those below the delivered mark come again, flagged; those above were never delivered."""
        found = self._found
        first = self.log.segments[0].base if self.log.segments else self.log.next
        found.cursor = self.log.delivered_mark = max(self.log.delivered_mark, first)
        for segment in self.log.segments:
            replay = self._replays.get(segment.base)
            if replay is None and segment.base >= self.log.delivered_mark:
                found.ready += segment.end - segment.base - segment.settled
                found.ready_bytes += segment.body_bytes
                continue
            replay = replay or self._blank(segment)
            segment.settled = replay.settled + segment.end - segment.base - replay.span
            found.ready += replay.span - replay.settled
            for start, count in replay.unsettled():
                found.ready_bytes += (
                    segment.body_bytes if count == segment.count else self.log.reader.body_bytes(start, count)
                )
                below = min(start + count, self.log.delivered_mark) - start
                if below > 0:
                    found.requeued.append((start, below))
            for offset, deliveries in replay.redeliveries.items():
                if not replay.is_settled(offset):  # settled, or lost to damage
                    found.redeliveries[offset] = deliveries

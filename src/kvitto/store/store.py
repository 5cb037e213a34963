"""The data directory of a broker: how it is opened and left, its definitions, journal and inventory, and what happens behind a sync.

The store never syncs by itself in the loop. `begin_sync` hands out a `Commit`; whoever drives the store has it synced and gives it back to
`end_sync`, which is the one place that says what may happen behind a sync, and in which order. Logs, journal and archives write files and
report to `commits` what is dirty. A failed sync is final (C8): the store refuses to begin another one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from kvitto.base.clock import Clock
from kvitto.base.errors import StoreError, StoreFull, SyncError, UnknownFormat
from kvitto.store import inventory, paths
from kvitto.store.commit import Commit, GroupCommit
from kvitto.store.copies import Copies, copy_now
from kvitto.store.definitions import Definitions
from kvitto.store.disk import Disk, replace_small, write_small
from kvitto.store.inventory import DEFINITIONS, NOBODY, ORPHAN, SEGMENT, Inventory
from kvitto.store.journal import Journal
from kvitto.store.judge import Ending
from kvitto.store.line import Defined, owned
from kvitto.store.log import Log
from kvitto.store.removals import SMALL_FILE, Removals
from kvitto.store.room import ROOM_KEPT, Room
from kvitto.store.segment import HEADER, Segment

if TYPE_CHECKING:
    from kvitto.store.archive import Archive
    from kvitto.store.cut import Cut

FORMAT = b"kvitto 2\n"
WITHOUT_INVENTORY = b"kvitto 1\n"
"""The format before this one, which had no inventory: a start makes one of what it finds."""
IN_ORDER = b"in order"
"""The content of `boot` before the first owner. Any content of this length means an end in order: cutting a file takes no room."""
OF_BACKUP = b"backup\n"
"""The content of `boot` in a backup of a running broker."""
UPGRADING = b"upgrading"
"""In `boot`: the directory was left in order, and its first start with an inventory has not ended yet."""
OWES_FLAGS = b"flags"
"""In `boot`: it is not yet noted everywhere which messages may have been delivered before the last power cut or damage."""
UNKNOWN_BOOT = b"unknown"
"""Written over a boot id or its beginning: no boot id begins like this."""
log = logging.getLogger("kvitto.store")
NOTED_PER_TURN = 8
"""A turn tells the settlement logs of this many queues which messages may have been delivered."""
SPARE_BYTES = 1 << 20
"""The emergency reserve: a file that is emptied when the disk is full, so that settlements can be written and segments removed."""


def raise_it(_log: Log, error: Exception) -> None:
    """Raise the error: without a broker nobody can take a queue out of service."""
    raise error


def format_of(disk: Disk) -> bytes:
    return disk.read_file(paths.FORMAT) if disk.exists(paths.FORMAT) else b""


def is_new(disk: Disk, text: bytes) -> bool:
    """Whether a first start ended early in this directory, before the broker had promised anything to a client.

    `text`: the content of `format`, b"" without one. It may be complete, since the first start may not have synced it.
    """
    torn = FORMAT.startswith(text) or b"\0" in text
    return torn and not disk.exists(paths.DEFINITIONS) and not disk.listdir(paths.QUEUES)


def refuse_foreign(disk: Disk) -> None:
    """Raise StoreError if the directory has files that are not a broker's: later nobody could tell which are whose."""
    names = disk.listdir("")
    refuse_incomplete(disk)
    if paths.FORMAT in names or paths.DEFINITIONS in names:
        return
    for name in names:  # an interrupted first start leaves some of the broker's own files
        if name.removesuffix(paths.copying("")) not in paths.ROOT and name != paths.NOBODYS:
            where = getattr(disk, "root", "the data directory")
            text = f"{where} is no data directory of Kvitto's and not empty, it holds {name!r}"
            raise StoreError(f"{text}: choose an empty directory, or one that is not there yet")


def refuse_inside(disk: Disk) -> None:
    """Raise StoreError if the directory lies inside a data directory, whose broker may remove it or stumble over it."""
    root = getattr(disk, "root", None)
    above = "/" if root is None else os.path.dirname(os.path.realpath(root))
    while above != os.path.dirname(above):
        if all(os.path.isfile(os.path.join(above, name)) for name in (paths.FORMAT, paths.LOCK)):
            text = f"{root} lies inside {above}, which is a data directory of Kvitto's: choose a place outside of it"
            raise StoreError(text)
        above = os.path.dirname(above)


def refuse_following(disk: Disk) -> None:
    """Raise StoreError if the directory follows a leader: what a broker wrote would not be the leader's."""
    if disk.exists(paths.FOLLOWS):
        where = getattr(disk, "root", "the directory")
        text = f"{where} follows another broker (it has the file {paths.FOLLOWS})"
        raise StoreError(f"{text}: go on with `kvitto serve --follow`, or end that with `kvitto promote {where}`")


def refuse_incomplete(disk: Disk) -> None:
    """Raise StoreError if the directory is a backup that is not complete."""
    if disk.exists(paths.INCOMPLETE):
        where = getattr(disk, "root", "the directory")
        text = f"{where} is a backup that was never completed (it has the file {paths.INCOMPLETE})"
        raise StoreError(f"{text}: remove it, and take another one with `kvitto backup`")


def how_it_ended(disk: Disk) -> Ending:
    """Find out how the last owner left the directory. If no file tells, assume a power cut."""
    text = disk.read_file(paths.BOOT) if disk.exists(paths.BOOT) else b""
    if len(text) == len(IN_ORDER) or (not text and format_of(disk) != FORMAT):
        return Ending(True, False)
    if text.startswith(OF_BACKUP):
        return Ending(False, False, of_backup=True, owes_flags=OWES_FLAGS in text)
    left = text.split()
    power_cut = not left or left[0] != disk.boot_id().encode()
    return Ending(False, power_cut, owes_flags=OWES_FLAGS in left, upgrading=UPGRADING in left)


def boot_fault(disk: Disk) -> str:
    """Return what is wrong with `boot`, "" if nothing is."""
    if format_of(disk) != FORMAT or (disk.exists(paths.BOOT) and disk.read_file(paths.BOOT)):
        return ""
    return "it is missing, or empty: how the last broker ended is not known"


def has_messages(disk: Disk, directory: str) -> bool:
    """Whether there may be messages in the directory of a queue."""
    for name in disk.listdir(directory):
        if name.endswith(paths.SEGMENT_SUFFIX):
            file = disk.open(f"{directory}/{name}")
            size = file.size()
            file.close()
            if size > HEADER:
                return True
    return False


def nobody_else(_text: str) -> None:
    """There is no other copy."""


class Store:
    def __init__(
        self, disk: Disk, clock: Clock, *, sync: bool = True, counted: dict[str, Segment] | None = None
    ) -> None:
        """`counted`: the segments whose batches this process has verified and counted as a follower, by path. The whole directory is synced
        then. None: this process has not been a follower.
        """
        self.disk = disk
        self.clock = clock
        self.room = Room(disk)
        self.alarms: list[str] = []
        self.damages: list[str] = []
        """Those of the alarms that are about damage."""
        self.on_damage: Callable[[str], None] = nobody_else
        """Called with each alarm about damage. A cluster has other copies."""
        self.failed: Exception | None = None
        self.commits = GroupCommit(disk, sync)
        self.removals = Removals(disk)
        self.copies = Copies(disk, self.commits)
        self.blocked_drops: dict[Log, None] = {}
        self.on_fault: Callable[[Log, Exception], None] = raise_it
        """Called if work for one queue's files fails behind a sync: the broker takes that queue out of service, or raises."""
        self.ended_in_order = False
        """Whether `shut` has left the directory in order."""
        self.faulty = False
        """Whether a queue is out of service. What it held in memory is not written, so the directory is not left in order."""
        self._lock: object | None = None
        self.leaving: dict[Log, None] = {}
        """The logs of deleted queues that have an archive, until all their settled segments are there."""
        self._undefined: list[tuple[Callable[[], None], bool]] = []
        self.pressed = False
        """Whether so much is unsynced that large batches have to wait until the next sync begins (server/pacing.py)."""
        self.ending = Ending(True, False)
        """How the last owner left the directory."""
        self.counted = counted if counted is not None else {}
        """What a start has not taken yet of these segments."""
        self._has_followed = counted is not None
        self.owed_flags: dict[Log, int] = {}
        """The logs whose files do not say yet that the messages below this offset may have been delivered. Until they do `boot` says it for
        all logs."""
        self._boot_owes_flags = self._flags_noted = False
        """Whether `boot` says that, and whether all files said it when the latest full sync began."""
        self.inventory = Inventory(disk)
        self.upgrading = False
        """Whether the directory has the format before this one. The end of the start changes that."""
        self._defined = (-1, 0)
        """The slot of the definitions in the inventory, and how many bytes it says are synced."""
        self._written_out = 0
        """What `journal.written_out` was when the latest full sync began: once that is complete, so much is durable in the queues."""
        self._may_compact = False
        """Whether a compaction may have lines left to write. It has none if this is false."""
        self._naming = False
        """Whether a compaction has renamed the new definitions log, and no sync has made the name durable yet."""
        self.orphans: dict[str, int] = {}
        """The directories with messages of queues that are not defined, with their slots in the inventory."""
        self.logs: dict[Log, None] = {}
        """The logs of all durable queues, stages included, and of deleted ones that still move to their archive."""
        self.archives: dict[Archive, None] = {}
        self.cut: Cut | None = None
        """The backup that is being taken. Whatever changes a log or an archive has it note that one first."""
        self.definitions: Definitions
        self.journal: Journal

    # -- life ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Lock the directory, check its format, and read how the last owner left it. The broker opens the queues' logs."""
        disk = self.disk
        refuse_inside(disk)
        disk.makedirs("")
        refuse_foreign(disk)
        self._lock = disk.lock(paths.LOCK)
        refuse_following(disk)
        self.ending = replace(how_it_ended(disk), synced=self._has_followed)
        if disk.exists(paths.SPARE) and disk.free_bytes() < SPARE_BYTES:
            self._spare(False)
        fault = boot_fault(disk)
        self._check_format()
        for path in (paths.QUEUES, paths.JOURNALS):
            disk.makedirs(path)
        disk.rmtree(paths.TRANSIENT)
        disk.rmtree(paths.STAGING)
        disk.sync_dir("")
        # A killed process may have made directories without a sync. The inventory will say of the files in them that they are durable.
        if not self.ending.in_order and not self.ending.synced:
            disk.sync_dir(paths.QUEUES)
        if not self.ending.in_order and disk.exists(paths.ARCHIVE):
            disk.sync_dir(paths.ARCHIVE)
        if fault:
            self.alarm(f"{paths.BOOT}: {fault}. Everything that waits is flagged, as after a power cut", damage=False)
        if not self.upgrading:
            for text in self.inventory.load(self.ending.in_order, self.ending.power_cut):
                self.alarm(f"{text}. It is made anew from the files that are there")
        self.definitions = Definitions(disk)
        self.journal = Journal(self)

    def load_definitions(self) -> Defined:
        """Return what is defined. If this raises StoreError, the directory is as it was before."""
        known = self.inventory.claim(DEFINITIONS).get(0)
        if known is not None and not self.disk.exists(paths.DEFINITIONS):
            raise StoreError(
                f"{paths.DEFINITIONS} is missing: restore the file from a backup, or have `kvitto salvage` make a directory of the messages"
            )
        found = self.definitions.load(self.ending.in_order, self._keep_orphans, known.size if known else 0)
        if self.ending.in_order:
            # From here on this start may append to files, so that their ends may be torn.
            self._write_boot(UPGRADING if self.upgrading else b"")
        elif self.ending.of_backup:
            # If this start is cut short, what the journal brings may be torn, and the settlement logs do not say yet which messages may
            # have been delivered.
            self._write_boot(OWES_FLAGS if self.ending.owes_flags else b"")
        if self.upgrading:
            self.inventory.create()
        self.inventory.open()
        self._defined = (known.slot, known.size) if known else (self.inventory.take(), 0)
        self._enter_definitions()
        return found

    def started(self) -> None:
        """Forget how the last owner ended, since all that the start has found and concluded is durable now."""
        if not self.ending.in_order and self.syncing:
            self.disk.sync_dir(paths.QUEUES)
        self.inventory.forget_unclaimed()
        self.inventory.file.sync()
        self.counted = {}
        if self.upgrading:  # first: until the inventory counts, `boot` has to say that it does not
            replace_small(self.disk, paths.FORMAT, FORMAT)
            self.upgrading = False
        self._boot_owes_flags = bool(self.owed_flags)
        self._write_boot(OWES_FLAGS if self.owed_flags else b"")
        self.make_room(False)

    def _write_boot(self, state: bytes = b"") -> None:
        """Say that this process owns the directory. It is not in order from here on until `shut`."""
        replace_small(self.disk, paths.BOOT, self._boot(state))

    def _boot(self, state: bytes = b"") -> bytes:
        return (self.disk.boot_id() or "unknown").encode().ljust(len(IN_ORDER)) + b" " + state

    def _forget_owed_flags(self) -> None:
        """Have `boot` no longer say that flags are owed, which the next sync makes durable.

        The file is cut, because a power cut leaves either length of it. A new file under its name could be found empty.
        """
        file = self.disk.open(paths.BOOT)
        file.truncate(len(self._boot()))
        self._boot_owes_flags = False
        self.commits.wrote_file(file)
        self.commits.when_synced(lambda: self.commits.close(file))

    def fail(self, error: Exception) -> None:
        """Note an error that ends the broker: the directory will not be left in order."""
        self.failed = self.failed or error
        if isinstance(error, SyncError):
            self.assume_power_cut()

    def assume_power_cut(self) -> None:
        """Have the next start assume a power cut: a sync has failed, and the kernel may have dropped what it could not write.

        This is not synced, because after a real power cut the boot id says the same. It is written over the boot id, because a power cut
        could leave a new file empty.
        """
        with suppress(StoreError):
            file = self.disk.open(paths.BOOT, create=True)
            file.write_at(0, [UNKNOWN_BOOT])
            file.close()

    def boot_of_backup(self) -> bytes:
        """Return the content of `boot` in a backup of what there is now."""
        return OF_BACKUP + (OWES_FLAGS if self.owed_flags else b"")

    def _check_format(self) -> None:
        found = format_of(self.disk)
        if is_new(self.disk, found):
            self._begin(found)
        elif found == WITHOUT_INVENTORY:
            self.upgrading = True
        elif not found:
            raise StoreError(
                f"the file {paths.FORMAT} of the data directory is missing or empty, although there are others: restore it"
                " from a backup, or have `kvitto salvage` make a directory of what can be read"
            )
        elif found != FORMAT:
            raise UnknownFormat(
                f"the data directory has format {found.decode(errors='replace').strip()!r}, this Kvitto reads {FORMAT.decode().strip()!r}"
            )

    def _end_in_order(self) -> None:
        self.inventory.write_owed()
        self.inventory.file.sync()
        file = self.disk.open(paths.BOOT)
        file.truncate(len(IN_ORDER))
        file.sync()
        file.close()

    def _begin(self, found: bytes) -> None:
        """Make a new directory, of which nobody has been promised anything. The format comes last: it says that the rest is there."""
        if found != FORMAT:
            replace_small(self.disk, paths.BOOT, IN_ORDER)
            self.inventory.create()
            self.disk.sync_dir("")
        write_small(self.disk, paths.FORMAT, FORMAT)

    def shut(self) -> None:
        """Mark the directory as left in order, behind the last sync, and release it."""
        if self.failed is None and getattr(self, "definitions", None) is not None:  # None: it was never opened
            self.definitions.abandon_compaction()
        if self.failed is None and self.inventory.is_open:  # else the directory may be another broker's
            self.disk.keeper = None
            self.disk.rmtree(paths.STAGING)
        in_order = self.failed is None and not self.commits.dirty and not self.faulty and not self.owed_flags
        if in_order and self.inventory.is_open:
            self._end_in_order()
            self.ended_in_order = True
        self.disk.close()
        close = getattr(self._lock, "close", None)
        if close is not None:
            close()

    # -- what logs tell --------------------------------------------------------------------------------------

    def make_dir(self, path: str, durable: bool) -> None:
        self.disk.makedirs(path)
        if durable:
            self.commits.renamed(paths.QUEUES)

    def dropped(self, segment: Segment) -> None:
        """Close the files of a segment that is removed, and leave them out of further syncs."""
        with suppress(StoreFull):  # only the segment of a deleted queue gets here without room, and nobody misses it
            self.forget_entry(segment)
        self.commits.dropped(segment)
        segment.gone = True
        if not segment.leases:
            self.commits.close(segment.file)
        self.commits.close(segment.acks)

    def lease_ended(self, segment: Segment) -> None:
        """Note that a reader does not need a segment any more. If the segment has been removed, the last reader closes its file."""
        if segment.gone and not segment.leases:
            self.commits.close(segment.file)

    def going(self, segment: Segment) -> None:
        """Like `dropped`, for a segment whose names stay until a sync has ended: that sync has to cover the settlements."""
        self.commits.sync_settlements(segment)
        self.dropped(segment)

    def forget_entry(self, segment: Segment) -> None:
        """Free the entry of a segment. Only when that is durable may the segment be unlinked: a start would miss it."""
        if segment.slot >= 0:
            self.drop_slot(segment.slot)
            segment.slot = -1

    def drop_slot(self, slot: int) -> None:
        if self.inventory.drop(slot):
            self.commits.wrote_file(self.inventory.file)

    def enter(self, log_: Log, segment: Segment) -> bool:
        """Enter how much of a segment is durable. Returns whether the inventory did not name it before."""
        try:
            if segment.slot < 0:
                segment.slot = self.inventory.take()
            elif self.inventory.grown(segment.slot, segment.durable, segment.acks_durable, segment.synced_end):
                return False
            sizes = segment.durable, segment.acks_durable, segment.synced_end
            return self.inventory.put(segment.slot, (SEGMENT, log_.queue_id, segment.base), sizes)
        except StoreFull as error:  # the next sync of this segment tries it again
            log.warning("%s", error)
            return False

    def forget_queue(self, queue_id: str) -> None:
        """Free the entries of a queue's segments, whose files may be removed at any time."""
        for entry in self.inventory.claim(SEGMENT, queue_id).values():
            self.drop_slot(entry.slot)

    def has_work(self) -> bool:
        """Whether there is something for `work` to do. This is asked several times in each turn, and nearly always there is nothing."""
        if not (self.removals.waiting or self.copies.waiting or self.owed_flags or self._may_compact):
            return False
        self._may_compact = self.compacting
        return self.removals.may_go_on or bool(self.copies.waiting) or self._may_compact or self.may_note

    def work(self) -> None:
        """Do what one turn may of the work that nobody waits for: unlink files, copy segments, rewrite definitions."""
        if self.removals.may_go_on:
            self.removals.some()
        if self.copies.waiting:
            self._copy_some()
        if self.compacting:
            self.compact_some()
        if self.may_note:
            self._note_doubts(NOTED_PER_TURN)

    @property
    def may_note(self) -> bool:
        """Whether there are files that have to say which messages may have been delivered, and room for that."""
        return bool(self.owed_flags) and not self.room.short

    def _note_doubts(self, most: int) -> None:
        """Have the files of so many logs say which messages may have been delivered. Without room a later turn goes on."""
        for log_, below in list(islice(self.owed_flags.items(), most)):
            self._for_log(log_, partial(self._note_doubt, log_, below))
            if self.room.short:
                return
            self.owed_flags.pop(log_, None)

    def _note_doubt(self, log_: Log, below: int) -> None:
        try:
            log_.note_doubt(below)
        except StoreFull as error:
            log.warning("%s", error)
            self.room.short = True  # until `make_room` finds that there is enough again

    def finish_work(self) -> None:
        """Unlink, copy and note all that is left, because no further turn follows."""
        self._note_doubts(len(self.owed_flags))
        self.removals.all()
        while self.copies.waiting:
            self._copy_some()

    def _copy_some(self) -> None:
        # a copy of a queue that is out of service gets its step too: that is how it is given up
        self._walled(self.copies.waiting[0][0], self.copies.step)

    def unlink(self, directory: str, path: str) -> None:
        """Unlink a file of `directory` if it is still there, and have the next sync make that durable."""
        if self.disk.exists(path):  # the queue may have been deleted meanwhile
            self.disk.unlink(path)
            self.commits.renamed(directory)

    def link(self, log_: Log, path: str, name: str, done: Callable[[], None]) -> None:
        """Give a file a second name, then call `done`. The name is durable then, or it is missing because there was no room for a copy.

        Where a file can have one name only, a copy is made.
        """
        if self.disk.exists(name) or self.disk.link(path, name):
            self.commits.renamed(name.rpartition("/")[0])
            self.commits.when_synced(done)
        else:
            self.copies.add(log_, path, name, done)

    def put_file(self, path: str, content: bytes) -> None:
        """Write a small file, of which every reader sees all or nothing. The next sync makes it durable.

        A power cut before that may leave its name without its content. Whoever reads the file after a power cut has to expect that.
        """
        file = self.disk.open(path + ".new", create=True)
        try:
            file.truncate(0)
            file.write_at(0, [content])
        except StoreFull:
            file.close()
            raise
        self.disk.rename(path + ".new", path)
        self.commits.renamed(path.rpartition("/")[0])
        self.commits.wrote_file(file)
        self.commits.when_synced(lambda: self.commits.close(file))

    def forget(self, log_: Log) -> None:
        self.commits.forget(log_)
        self.blocked_drops.pop(log_, None)
        self.owed_flags.pop(log_, None)
        self.leaving.pop(log_, None)
        self.logs.pop(log_, None)

    def alarm(self, text: str, damage: bool = True) -> None:
        """Tell operators. `damage`: files of the data directory are not what they should be; another copy of them may be good."""
        if text not in self.alarms:
            self.alarms.append(text)
            log.error(text)
            if damage:
                self.damages.append(text)
                self.on_damage(text)

    def quarantine(self, log_: Log, segment: Segment, why: str) -> None:
        """Keep a copy of a damaged segment, and raise an alarm. Without room for a copy the segment itself is kept (`segment.evidence`)."""
        assert segment.file is not None
        log_.damaged = True
        path = paths.quarantine(log_.directory, segment.base)
        segment.evidence = not self.disk.exists(path) and not copy_now(self.disk, segment.file, path)
        where = (
            f"there is no room for a copy, it will be kept as {path}" if segment.evidence else f"a copy is in {path}"
        )
        self.alarm(f"{paths.segment(log_.directory, segment.base)}: {why}; {where}, the rest of the queue is served")

    def _keep_orphans(self, said: Defined) -> None:
        """Mark the directories that hold messages of a queue that no line of the definitions tells of: its line may be lost.

        `said`: all that the lines have ever defined.
        """
        known = {found for kind, _, value in said for found in owned(kind, value)}
        for name in self.disk.listdir(paths.QUEUES):
            directory = paths.queue_dir(name, True)
            if name in known or not paths.is_queue_id(name) or self.disk.exists(paths.orphan(directory)):
                continue
            if has_messages(self.disk, directory):
                write_small(self.disk, paths.orphan(directory), b"")
                self.disk.sync_dir(directory)

    def drop_orphan(self, name: str) -> None:
        """Remove the directory of a queue that is not defined, or raise an alarm if it is an orphan."""
        directory = paths.queue_dir(name, True)
        if self.is_orphan(name):
            self._keep_orphan(name, directory)
            self.alarm(
                f"{directory} holds messages of a queue that is not defined: the end of {paths.DEFINITIONS} could not be read. If one of "
                "your queues is missing, docs/reliability.md says how to get its messages back; if none is, remove the directory"
            )
        else:
            self.remove_queue(directory)

    def is_orphan(self, queue_id: str) -> bool:
        """Whether the directory of a queue that is not defined has to stay: it holds messages, and its definition may be lost."""
        for entry in self.inventory.claim(ORPHAN, queue_id).values():
            self.orphans[queue_id] = entry.slot
        return queue_id in self.orphans or self.disk.exists(paths.orphan(paths.queue_dir(queue_id, True)))

    def _keep_orphan(self, queue_id: str, directory: str) -> None:
        if not self.disk.exists(paths.orphan(directory)):
            write_small(self.disk, paths.orphan(directory), b"")
            self.disk.sync_dir(directory)
        if queue_id not in self.orphans:
            slot = self.orphans[queue_id] = self.inventory.take()
            self.inventory.put(slot, (ORPHAN, queue_id, 0), inventory.UNKNOWN)
        for entry in self.inventory.claim(SEGMENT, queue_id).values():
            path = paths.segment(directory, entry.number)
            if not self.disk.exists(path):
                self.alarm(f"{path} is missing: it held messages of a queue that is not defined, and they are lost")
                self.inventory.drop(entry.slot)

    def remove_queue(self, directory: str) -> None:
        self.disk.rmtree(directory)
        self.commits.renamed(paths.QUEUES)

    def set_aside(self, directory: str, base: int) -> str:
        """Rename a damaged segment of which there is no copy, so that its queue has it no more. Returns the new name."""
        first = paths.quarantine(directory, base)
        name = self.put_aside(directory, paths.segment(directory, base), first)
        if self.disk.exists(paths.copying(first)):
            self.disk.unlink(paths.copying(first))
        return name

    def put_aside(self, directory: str, path: str, name: str) -> str:
        """Rename a file to `name`, or to `name` with a number if that is taken. Returns the new name."""
        first, more = name, 1
        while self.disk.exists(name):
            name, more = f"{first}.{more}", more + 1
        self.disk.rename(path, name)
        self.commits.renamed(directory)
        return name

    def remember(self, directory: str, path: str) -> None:
        """Make an empty file for one that is missing, so that `kvitto check` tells of it until an operator removes it."""
        self.disk.makedirs(directory)
        self.disk.open(path, create=True).close()
        self.disk.sync_dir(directory)  # this has to be durable before the inventory forgets what is missing
        self.disk.sync_dir(paths.QUEUES)

    @property
    def journal_needed(self) -> int:
        """A start may replay records of the journal from this sequence on."""
        return self.journal.oldest

    # -- room on the disk -------------------------------------------------------------------------------------

    @property
    def syncing(self) -> bool:
        """Whether the store syncs its files at all."""
        return self.commits.syncing

    @property
    def short(self) -> bool:
        """Whether there is little room on the disk."""
        return self.room.short

    def make_room(self, short: bool) -> None:
        """Adapt to the free room. Called each second while there is little (`short`), and once when there is enough again."""
        self.room.short = self.commits.in_haste = short
        free = self.disk.free_bytes()
        if short and free < SPARE_BYTES:
            self._spare(False)
        elif free > ROOM_KEPT:
            self._spare(True)

    def _spare(self, keep: bool) -> None:
        with suppress(StoreFull):
            file = self.disk.open(paths.SPARE, create=True)
            if keep:
                file.reserve(0, SPARE_BYTES)
            else:
                file.truncate(0)
            file.close()

    # -- the end of a sync --------------------------------------------------------------------------------------

    def when_defined(self, callback: Callable[[], None], *, announced: bool) -> None:
        """Call back once the definitions made so far are durable; if there is no room for them, once they have been written.

        `announced`: whether the callback tells a peer, so that it waits for the second stage of their commit.
        """
        if self.definitions.unwritten:
            self._undefined.append((callback, announced))
        elif announced:
            self.commits.when_announced(callback, False)
        else:
            self.commits.when_synced(callback)

    def write_definitions(self) -> None:
        """Write the definitions that had no room. Raises StoreFull if there still is none."""
        self.definitions.flush()
        self.commits.wrote_file(self.definitions.file)
        waiting, self._undefined = self._undefined, []
        for callback, announced in waiting:
            self.when_defined(callback, announced=announced)

    def begin_sync(self, everything: bool, most: int = 0) -> Commit:
        """Make a commit of what somebody waits for. With `everything` it also has what nobody waits for, such as settlements (A11), of
        which a commit has at most `most` logs if that is not 0 (`GroupCommit.begin`).
        """
        assert self.failed is None
        definitions = self.definitions
        commit = self.commits.begin(everything, most)
        if commit.others:
            if definitions.dirty and definitions.file in commit.files:
                commit.defined = definitions.file.end
            commit.journal_written = self.journal.written
        compaction = definitions.compaction
        if compaction is not None and compaction.complete:
            if compaction.file not in commit.files:  # lines that go to both files do not note that this one has changed
                commit.files.append(compaction.file)
            commit.compacted = compaction.file.end
        commit.named = self._naming
        if commit.begins:
            self._written_out = self.journal.written_out
            self._flags_noted = not self.owed_flags
        if commit.completes:
            commit.journal_applied = self._written_out
            commit.notes_flags = self._boot_owes_flags and self._flags_noted
        if not self.syncing:
            commit.files, commit.dirs, commit.defined = [], [], 0
        self.commits.begun(commit)
        return commit

    def end_sync(self, commit: Commit) -> None:
        """Handle a commit that has been synced: note what is durable, do what has waited for that, and announce the commit if it may be.

        This is stage one of a commit, and at its end stage two (ADR 20). The order of the steps matters.
        """
        commits = self.commits
        commits.end(commit)
        # Nothing that this sync had to cover is certain: nobody is told anything, for good (C8).
        if commit.error is not None:
            self.failed = commit.error
            self.assume_power_cut()
            return
        # The facts come first, because each later step writes files that repeat them: a footer, an entry of the inventory, the `durable`
        # of the next batch.
        fresh, changed, grown = self._note_synced(commit)
        # A segment that is settled stays until a later one is durable, since the next offset is known from the last one.
        for log_ in grown:
            self._for_log(log_, log_.drop_settled)
        # The inventory says how much of each file is durable, so it is written behind the sync.
        if self.inventory.owed:
            with suppress(StoreFull):
                self.inventory.write_owed()
        if commit.defined or commit.named or commit.compacted:
            self._definitions_synced(commit)
        for segment, log_ in changed.items():
            if segment.durable and segment in log_.segments:
                fresh |= self.enter(log_, segment)
        # A footer says that all before it has been synced.
        for log_, segment in commit.seals:
            self._for_log(log_, partial(self._seal, log_, segment))
        # The names that had to go before these are durably gone.
        for directory, path in commit.unlinks:
            self.removals.add(SMALL_FILE, partial(self.unlink, directory, path))
        # What the journal's records have brought to the queues is durable there, so their files may go.
        if commit.journal_applied:
            self.journal.retire(commit.journal_applied)
        # All settlement logs say durably which messages may have been delivered. So `boot` need not say it any more.
        if commit.notes_flags:
            self._forget_owed_flags()
        if fresh:
            # A start takes a file that is missing for one that never was, unless the inventory names it. So the first commit of a file
            # promises nothing before the next sync, which has the inventory.
            commits.wrote_file(self.inventory.file)
            commits.put_off(commit)
        commits.call_back(commit)
        # Callbacks may have written to segments that were clean, so these are looked at behind them.
        commits.call_for_clean()
        # A compaction marks the definitions as unknown in the inventory: last, since it is a change that the next sync has to cover.
        if commit.others and self.definitions.bloated and not self.leaving:
            self._begin_compaction()
        # Stage two. Peers come last, and what they do next belongs to the next commit.
        commits.announce(commit)

    def _note_synced(self, commit: Commit) -> tuple[bool, dict[Segment, Log], dict[Log, None]]:
        """Note how much of each file is durable.

        Returns whether a file of the journal is new to the inventory, the segments of which more is durable, and the logs of those of
        which nothing was before.
        """
        # if the journal has grown since the last commit, its file is among these
        new = commit.others and self.syncing and self.journal.durable_to(commit.journal_written)
        changed: dict[Segment, Log] = {}
        grown: dict[Log, None] = {}
        for log_, segment, size in commit.acks:
            segment.acks_durable = size
            changed[segment] = log_
        for log_, segment, size, end in commit.segments:
            if not segment.durable and len(log_.segments) > 1:
                grown[log_] = None
            segment.durable, segment.synced_end = size, end
            changed[segment] = log_
        return new, changed, grown

    def _for_log(self, log_: Log, work: Callable[[], None]) -> None:
        """Do something for one queue's files, unless it is out of service."""
        if not log_.out_of_service:
            self._walled(log_, work)

    def _walled(self, log_: Log, work: Callable[[], None]) -> None:
        """Do something for one queue's files. If that fails, the work for the other queues goes on."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the wall around each queue
            self.on_fault(log_, error)

    def _enter_definitions(self) -> None:
        if self.definitions.compaction is not None or self._naming:
            return  # a start may find the old file, or the new one, which is shorter
        slot, size = self._defined
        durable = self.definitions.file.durable
        if durable != size:
            with suppress(StoreFull):
                self.inventory.put(slot, (DEFINITIONS, NOBODY, 0), (durable, 0, 0))
                self._defined = slot, durable

    def _definitions_synced(self, commit: Commit) -> None:
        """Note what this sync has made durable of the definitions log, and of the new log of a compaction."""
        if commit.named:
            self._naming = False
        if commit.defined:
            self.definitions.synced(commit.defined)
        if commit.defined or commit.named:
            self._enter_definitions()
        if commit.compacted and self.definitions.compaction is not None and not self.leaving:
            self._replace_definitions(commit.compacted)

    def _begin_compaction(self) -> None:
        """Begin to rewrite the definitions log. `compact_some` writes some lines in each turn."""
        self._may_compact = True
        try:
            self.definitions.begin_compaction()
            self.inventory.put(self._defined[0], (DEFINITIONS, NOBODY, 0), inventory.UNKNOWN)
            self.inventory.write_owed()
            self._defined = self._defined[0], 0
        except StoreFull as error:
            log.warning("%s; the definitions stay as they are", error)
            self.definitions.abandon_compaction()
            return
        # this has to be durable before the new file, which is shorter, gets its name
        self.commits.wrote_file(self.inventory.file)

    @property
    def compacting(self) -> bool:
        """Whether a compaction has lines left to write."""
        return self.definitions.compaction is not None and not self.definitions.compaction.complete

    def compact_some(self) -> None:
        """Write some lines of the new definitions log. Once all are written, the next sync makes them durable."""
        compaction = self.definitions.compaction
        assert compaction is not None
        try:
            compaction.step()
        except StoreFull as error:
            log.warning("%s; the definitions stay as they are", error)
            self.definitions.abandon_compaction()
        except StoreError as error:
            self.fail(error)
            raise
        if compaction.complete:
            self.commits.wrote_file(compaction.file)
            # what the log says of deleted queues is needed until their directories are durably gone
            self.commits.renamed(paths.QUEUES)
            self.commits.when_synced(lambda: None)

    def _replace_definitions(self, durable: int) -> None:
        """Replace the definitions log by the new one, which has durably all that the old one had when this sync began.

        What has been defined since then waits for the next sync, which makes the new name durable, too.
        """
        self.commits.forget_file(self.definitions.file)
        self.definitions.replace(durable)
        self._naming = True
        self.commits.renamed("")
        self.commits.wrote_file(self.definitions.file)

    def compact_definitions(self) -> None:
        """Rewrite the definitions log at once. No sync of the old file may be running.

        What the log says of deleted queues is needed until their directories are durably gone, so these are synced first.
        """
        if self.leaving:
            return
        self.disk.sync_dir(paths.QUEUES)
        old, slot = self.definitions.file, self._defined[0]
        try:
            self.inventory.put(slot, (DEFINITIONS, NOBODY, 0), inventory.UNKNOWN)
            self.inventory.write_owed()
            self.inventory.file.sync()  # the new file may be shorter
            self._defined = slot, 0
            self.definitions.compact()
        except StoreFull as error:
            log.warning("%s; the definitions stay as they are", error)
        else:
            self.commits.forget_file(old)
        self._enter_definitions()

    def _seal(self, log_: Log, segment: Segment) -> None:
        if segment not in log_.segments or segment.file is None:
            return
        try:
            segment.write_footer()
            self.commits.wrote(log_, segment)
        except StoreFull:  # without a footer the next start reads the segment instead
            log.warning("no room for the footer of %s", segment.file.path)

    def journal_retired(self) -> None:
        blocked, self.blocked_drops = self.blocked_drops, {}
        for log_ in blocked:
            self._for_log(log_, log_.drop_settled)

"""The data directory: which files are dirty, what a sync covers, and start-up.

The store never syncs by itself in the loop. `begin_sync` hands out a `SyncJob`; whoever drives the store runs it (the
server in its sync thread, a test inline) and reports back with `end_sync`. What is written while a job runs belongs to the next.
A failed job is final (semantics C8): the store refuses to begin another one.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial

from kvitto.base.clock import Clock
from kvitto.base.errors import StoreError, StoreFull, SyncError
from kvitto.store import inventory, paths
from kvitto.store.definitions import Defined, Definitions
from kvitto.store.disk import Disk, File
from kvitto.store.inventory import DEFINITIONS, NOBODY, ORPHAN, SEGMENT, Inventory
from kvitto.store.journal import Journal
from kvitto.store.log import Log
from kvitto.store.segment import HEADER, Segment

FORMAT = b"kvitto 2\n"
WITHOUT_INVENTORY = b"kvitto 1\n"
"""The format before this one: a start makes the inventory of what it finds."""
IN_ORDER = b"in order"
"""What `boot` says before the first owner. In order is whatever has this length: cutting a file takes no room on the disk."""
STARTING = b"starting"
UNKNOWN_BOOT = b"unknown"
"""In place of a boot id, or of its beginning: differs from every one."""
log = logging.getLogger("kvitto.store")
SMALL_FILES = 2
SMALL_BYTES = 64 << 10
DIRS_AT_ONCE = 48
"""At most this many directories are open at a time to be synced, because the limits on descriptors leave little room for them."""
ROOM_KEPT = 16 << 20
"""Bytes that messages leave free on the disk: where they have no room, settlements and definitions still do, and make some (D4)."""
SPARE_BYTES = 1 << 20
"""Bytes kept in a file of their own and given up when others have taken the last ones: for what frees space again."""
ROOM_STEP = 16 << 20
"""After so many bytes of messages the disk is asked again."""
REMOVED_PER_TURN = 64 << 20
"""How many bytes of files are unlinked in one turn: a file system needs some milliseconds to free so many."""
FREEING = 4
"""No file is unlinked while the bytes of more than this many removed files have not been freed."""
FILE_COST = 256 << 10
"""Unlinking even an empty file takes about as long as freeing this many bytes, so they are added to the size of each file."""
DIRECTORY_COST = 2 << 20
"""The same cost for a directory, which is removed together with the small files in it."""
SMALL_FILE = 1
"""The size to give for a file that is not large, because 0 stands for a directory."""


class SyncJob:
    """One group commit.

    `run` uses nothing but files, so another thread may call it. `server/syncer.py` syncs the descriptors of `waves` instead where it can.
    """

    def __init__(self, disk: Disk, files: list[File], dirs: list[str]) -> None:
        self.disk = disk
        self.files = files
        self.dirs = dirs
        self.segments: list[tuple[Log, Segment, int, int]] = []
        self.acks: list[tuple[Log, Segment, int]] = []
        self.seals: list[tuple[Log, Segment]] = []
        self.unlinks: list[tuple[str, str]] = []
        self.copies: list[tuple[str, str]] = []
        self.callbacks: list[Callable[[], None]] = []
        self.unhurried: list[Callable[[], None]] = []
        """Callbacks that were no reason for this sync."""
        self.journal_applied = 0
        self.journal_written = (0, 0)
        self.defined = 0
        """The length of the definitions log that this job makes durable, 0 if the log is not part of the job."""
        self.compacted = 0
        """The length of the new definitions log that this job makes durable, 0 if no compaction is complete."""
        self.named = False
        """Whether the job makes the name of the definitions log durable."""
        self._paths: dict[int, str] = {}
        self.size = 0
        """Bytes of messages."""
        self.seconds = 0.0
        """How long it took, if whoever ran it says so."""
        self.error: Exception | None = None

    @property
    def small(self) -> bool:
        """Few files, few bytes: the disk is done with them in the time of one write."""
        if len(self.files) > SMALL_FILES or self.dirs:
            return False
        waiting = 0
        for _, part, size, _ in self.segments:
            waiting += size - part.durable + part.ahead
        for _, part, size in self.acks:
            waiting += size - part.acks_durable
        return waiting <= SMALL_BYTES

    def run(self) -> None:
        """Sync all files and directories, and make the copies. An error is kept in `error`."""
        try:
            for file in self.files:
                file.sync()
            for path, name in self.copies:
                file = self.disk.open(path)
                copied(self.disk, file, name)
                file.close()
            for path in self.dirs:
                self.disk.sync_dir(path)
        except Exception as error:  # noqa: BLE001 - top of the sync thread: reported by end_sync
            self.error = error

    @property
    def apart(self) -> bool:
        """Whether the job can only be done by `run`, because a copy has to be made or a file has no descriptor."""
        return bool(self.copies) or any(file.fileno() < 0 for file in self.files)

    def waves(self) -> Generator[list[int], None, None]:
        """Yield lists of descriptors: all of one list are synced before the next list is asked for.

        The descriptor of a directory is inverted, and is closed when the next list is asked for. A caller that stops early has to close
        the generator. Raises SyncError if a directory cannot be opened.
        """
        self._paths = {file.fileno(): file.path for file in self.files}
        left = deque(self.dirs)
        while left or self._paths:
            opened: list[int] = []
            try:
                while left and len(opened) < DIRS_AT_ONCE:
                    try:
                        fd = self.disk.open_dir(left[0])
                    except SyncError:
                        if not opened:
                            raise
                        break  # perhaps there is a descriptor for it when these are closed
                    if fd >= 0:
                        opened.append(fd)
                        self._paths[~fd] = left[0]
                    left.popleft()
                if self._paths:
                    yield list(self._paths)
            finally:
                for fd in opened:
                    with suppress(OSError):
                        os.close(fd)
            self._paths = {}

    def failed(self, descriptor: int, code: int) -> None:
        """Note that the sync of a descriptor has failed with this errno."""
        error = OSError(code, os.strerror(code))
        self.error = self.error or SyncError(f"cannot sync {self._paths[descriptor]}: {error}")


def raise_it(_log: Log, error: Exception) -> None:
    """Without a broker there is nobody who could do without a queue."""
    raise error


def copied(disk: Disk, file: File, path: str) -> bool:
    """Make a durable copy; False if there is no room. The copy's first name says to a later start that there is to be one."""
    name, directory = paths.copying(path), path.rpartition("/")[0]
    try:
        copy = disk.open(name, create=True)
        copy.truncate(0)
        disk.sync_dir(directory)
        size = file.size()
        if disk.free_bytes() - ROOM_KEPT < size:
            copy.close()
            return False
        try:
            copy.write_at(0, [file.read_at(0, size)])
            copy.sync()
        except StoreFull:
            copy.truncate(0)
            raise
        finally:
            copy.close()
    except StoreFull:
        return False
    disk.rename(name, path)
    disk.sync_dir(directory)
    return True


def format_of(disk: Disk) -> bytes:
    return disk.read_file(paths.FORMAT) if disk.exists(paths.FORMAT) else b""


def refuse_foreign(disk: Disk) -> None:
    """Raise StoreError if the directory has files that are not a broker's, since both would be hard to tell apart later."""
    names = disk.listdir("")
    if paths.FORMAT in names or paths.DEFINITIONS in names:
        return
    for name in names:  # an interrupted first start leaves some of the broker's own files
        if name.removesuffix(paths.copying("")) not in paths.ROOT and name != paths.NOBODYS:
            where = getattr(disk, "root", "the data directory")
            text = f"{where} is no data directory of Kvitto's and not empty, it holds {name!r}"
            raise StoreError(f"{text}: choose an empty directory, or one that is not there yet")


def how_it_ended(disk: Disk) -> tuple[bool, bool, bool]:
    """How the last owner left the directory: (in order, intact, doubt), as `Store` has them. Where nothing tells: as after a power cut."""
    text = disk.read_file(paths.BOOT) if disk.exists(paths.BOOT) else b""
    if len(text) == len(IN_ORDER) or (not text and format_of(disk) != FORMAT):
        return True, True, False
    left = text.split()
    return False, STARTING in left, not left or left[0] != disk.boot_id().encode()


def boot_fault(disk: Disk) -> str:
    """What is wrong with `boot`; "": nothing."""
    if format_of(disk) != FORMAT or (disk.exists(paths.BOOT) and disk.read_file(paths.BOOT)):
        return ""
    return "it is missing, or empty: how the last broker ended is not known"


class Store:
    def __init__(self, disk: Disk, clock: Clock, *, sync: bool = True) -> None:
        self.disk = disk
        self.clock = clock
        self.syncing = sync
        self.alarms: list[str] = []
        self.failed: Exception | None = None
        self.blocked_drops: dict[Log, None] = {}
        self.syncs = 0
        self.short = False
        """There is little room on the disk: what is settled goes at once, however little it is."""
        self.on_fault: Callable[[Log, Exception], None] = raise_it
        """Work for one queue's files has failed behind a sync: the broker takes that queue out of service, or raises."""
        self.faulty = False
        """A queue is out of service: what it held in memory is not written, so the directory is not left in order."""
        self._room = 0
        self._lock: object | None = None
        self._job: SyncJob | None = None
        self._segments: dict[Segment, Log] = {}
        self._acks: dict[Segment, Log] = {}
        self._dirs: dict[str, None] = {}
        self._others: dict[File, None] = {}
        self._seals: list[tuple[Log, Segment]] = []
        self._unlinks: list[tuple[str, str]] = []
        self._copies: list[tuple[str, str]] = []
        self._clean: dict[Segment, Callable[[], None]] = {}
        self.leaving: dict[Log, None] = {}
        """Of deleted queues that have an archive, until all that is settled is in there."""
        self._closing: list[File] = []
        self.removals: deque[tuple[int, Callable[[], None]]] = deque()
        """Files that are unlinked in later turns, in order: their bytes, and what unlinks them. The size of a directory is 0."""
        self._removed = 0
        """Bytes of files that have been unlinked since the last turn with removals."""
        self._callbacks: list[Callable[[], None]] = []
        self._unhurried: list[Callable[[], None]] = []
        """Callbacks that wait for the next sync and do not hasten it."""
        self._undefined: list[Callable[[], None]] = []
        self._messages_wanted = False
        self.unsynced = 0
        """Bytes of messages that no sync has begun for."""
        self.pressed = False
        """Whether so much is unsynced that large batches have to wait until the next sync begins (server/pacing.py)."""
        self.doubt = False
        """The last owner did not stop in order, and the machine has been started since: its page cache is gone."""
        self.in_order = True
        self.intact = True
        """In order, or only starts that were cut short have been there since: a segment's end that is torn is damaged."""
        self.inventory = Inventory(disk)
        self.upgrading = False
        """The directory has the format before this one until the start has come to its end."""
        self._defined = (-1, 0)
        """Where the inventory has the definitions, and with how many bytes."""
        self._naming = False
        """A compaction has ended, and no sync has made the name of the new definitions log durable yet."""
        self._orphans: dict[str, int] = {}
        self.definitions: Definitions
        self.journal: Journal

    # -- life ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the directory: lock, format, and the two small logs. Queues are opened by `open_log`."""
        disk = self.disk
        disk.makedirs("")
        refuse_foreign(disk)
        self._lock = disk.lock(paths.LOCK)
        self.in_order, self.intact, self.doubt = how_it_ended(disk)
        if disk.exists(paths.SPARE) and disk.free_bytes() < SPARE_BYTES:
            self._spare(False)
        fault = boot_fault(disk)
        self._check_format()
        for path in (paths.QUEUES, paths.JOURNALS):
            disk.makedirs(path)
        disk.rmtree(paths.TRANSIENT)
        disk.sync_dir("")
        if not self.in_order and disk.exists(
            paths.ARCHIVE
        ):  # a killed process may have made one that no sync has covered
            disk.sync_dir(paths.ARCHIVE)
        if fault:
            self.alarm(f"{paths.BOOT}: {fault}. Everything that waits is flagged, as after a power cut")
        if not self.upgrading:
            for text in self.inventory.load(self.in_order, self.doubt):
                self.alarm(f"{text}. It is made anew of what is there")
        self.definitions = Definitions(disk)
        self.journal = Journal(self)

    def load_definitions(self) -> Defined:
        """What is defined. A start that is refused here leaves the directory as it was."""
        known = self.inventory.claim(DEFINITIONS).get(0)
        if known is not None and not self.disk.exists(paths.DEFINITIONS):
            raise StoreError(
                f"{paths.DEFINITIONS} is missing: restore the file from a backup, or have `kvitto salvage` make a directory of the messages"
            )
        found = self.definitions.load(self.in_order, self._keep_orphans, known.size if known else 0)
        if self.in_order:
            self._write_boot(STARTING)
        if self.upgrading:
            self.inventory.create()
        self.inventory.open()
        self._defined = (known.slot, known.size) if known else (self.inventory.take(), 0)
        self._enter_definitions()
        return found

    def started(self) -> None:
        """All that a start has found, doubt included, is durable again: forget how the last owner ended."""
        if not self.in_order and self.syncing:
            self.disk.sync_dir(paths.QUEUES)
        self.inventory.forget_unclaimed()
        self.inventory.file.sync()
        self._write_boot()
        if self.upgrading:
            self._replace_small(paths.FORMAT, FORMAT)
            self.upgrading = False
        self.make_room(False)

    def _write_boot(self, state: bytes = b"") -> None:
        """From here on the directory is not in order until `shut`."""
        self._replace_small(paths.BOOT, (self.disk.boot_id() or "unknown").encode().ljust(len(IN_ORDER)) + b" " + state)

    def _replace_small(self, path: str, content: bytes) -> None:
        """Half of it would say something else."""
        self._write_small(path + ".new", content)
        self.disk.rename(path + ".new", path)
        self.disk.sync_dir("")

    def fail(self, error: Exception) -> None:
        """Whoever drives the store has to give up: the directory is not left in order, whatever else is done."""
        self.failed = self.failed or error
        if isinstance(error, SyncError):
            self.distrust()

    def distrust(self) -> None:
        """A sync has failed, and the kernel may have dropped what it could not write: to the next start that is a power cut.

        Not synced: after a real power cut the boot id says the same. So it is written over the id; a new file might be found empty then.
        """
        with suppress(StoreError):
            file = self.disk.open(paths.BOOT, create=True)
            file.write_at(0, [UNKNOWN_BOOT])
            file.close()

    def _write_small(self, path: str, content: bytes) -> None:
        file = self.disk.open(path, create=True)
        file.truncate(0)
        if content:
            file.write_at(0, [content])
        file.sync()
        file.close()

    def _check_format(self) -> None:
        found = format_of(self.disk)
        torn = FORMAT.startswith(found) or b"\0" in found  # or there was none, or it is whole, and not synced
        if torn and not self.disk.exists(paths.DEFINITIONS) and not self.disk.listdir(paths.QUEUES):
            self._begin(found)
        elif found == WITHOUT_INVENTORY:
            self.upgrading = True
        elif not found:
            raise StoreError(
                f"the file {paths.FORMAT} of the data directory is missing or empty, although there are others: restore it"
                " from a backup, or have `kvitto salvage` make a directory of what can be read"
            )
        elif found != FORMAT:
            raise StoreError(
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
        """A directory of which nobody has been promised anything. Its format says that the rest is there."""
        if found != FORMAT:
            self._replace_small(paths.BOOT, IN_ORDER)
            self.inventory.create()
            self.disk.sync_dir("")
        self._write_small(paths.FORMAT, FORMAT)

    def close(self, file: File | None) -> None:
        """Close a file, after the running sync if that has it."""
        if file is None:
            return
        self._others.pop(file, None)
        if self._job is not None and file in self._job.files:
            self._closing.append(file)
        else:
            file.close()

    def shut(self) -> None:
        """After the last sync: mark the directory as left in order."""
        if self.failed is None and hasattr(self, "definitions"):
            self.definitions.abandon_compaction()
        if self.failed is None and not self.dirty and not self.faulty and self.inventory.is_open:
            self._end_in_order()
        self.disk.close()
        close = getattr(self._lock, "close", None)
        if close is not None:
            close()

    # -- what logs tell --------------------------------------------------------------------------------------

    def make_dir(self, path: str, durable: bool) -> None:
        self.disk.makedirs(path)
        if durable:
            self._dirs[paths.QUEUES] = None

    def renamed(self, directory: str) -> None:
        """A name was made or removed in `directory`."""
        self._dirs[directory] = None

    def wrote(self, log_: Log, part: Segment, size: int = 0) -> None:
        """`size`: bytes of messages."""
        self._segments[part] = log_
        self.unsynced += size

    def settled(self, log_: Log, part: Segment) -> None:
        self._acks[part] = log_

    def wrote_file(self, file: File) -> None:
        """A file that is no queue's (journal, definitions) has new bytes."""
        self._others[file] = None

    def dropped(self, part: Segment) -> None:
        """A segment goes: close its files, and sync them no more."""
        with suppress(StoreFull):  # of a queue that is deleted: it need not be told
            self.forget_entry(part)
        self._segments.pop(part, None)
        self._acks.pop(part, None)
        self._clean.pop(part, None)
        part.gone = True
        if not part.leases:
            self.close(part.file)
        self.close(part.acks)

    def lease_ended(self, part: Segment) -> None:
        """Somebody has read what he needs of a segment; if it has been dropped meanwhile, its file is closed with the last one."""
        if part.gone and not part.leases:
            self.close(part.file)

    def going(self, part: Segment) -> None:
        """The same where its names stay until a sync has ended: that has to cover what settled it."""
        if part in self._acks and part.acks is not None:
            acks, part.acks = part.acks, None
            self._others[acks] = None
            self.after_a_sync(lambda: self.close(acks))
        self.dropped(part)

    def forget_entry(self, part: Segment) -> None:
        """Before a segment is unlinked the inventory has to forget it durably: else it would be missed."""
        if part.slot >= 0:
            self.drop_slot(part.slot)
            part.slot = -1

    def drop_slot(self, slot: int) -> None:
        if self.inventory.drop(slot):
            self._others[self.inventory.file] = None

    def enter(self, log_: Log, part: Segment) -> bool:
        """Have the inventory say how much of a segment is durable; True if it knew nothing of it before."""
        try:
            if part.slot < 0:
                part.slot = self.inventory.take()
            sizes = part.durable, part.acks_durable, part.durable_end
            return self.inventory.put(part.slot, (SEGMENT, log_.queue_id, part.base), sizes)
        except StoreFull as error:  # the next sync of this segment tries again
            log.warning("%s", error)
            return False

    def forget_queue(self, queue_id: str) -> None:
        """What is there of it may go at any time."""
        for entry in self.inventory.claim(SEGMENT, queue_id).values():
            self.drop_slot(entry.slot)

    def seal_when_durable(self, log_: Log, part: Segment) -> None:
        self._seals.append((log_, part))
        self._segments[part] = log_

    def remove(self, size: int, unlink: Callable[[], None]) -> None:
        """Call `unlink`, which frees `size` bytes: at once if little has been freed since the last turn, else in a later turn.

        What is left when the process is killed, a start removes.
        """
        self.removals.append((size, unlink))
        if len(self.removals) == 1:
            self._remove_while_cheap()

    @property
    def has_work(self) -> bool:
        """Whether there is something for `work` to do. Asked several times in each turn, and nearly always there is nothing."""
        if not self.removals and self.definitions.compaction is None:
            return False
        return self.may_remove or self.compacting

    def work(self) -> None:
        """Do what one turn may of the work that nobody waits for: unlink files, rewrite definitions."""
        if self.may_remove:
            self.remove_some()
        if self.compacting:
            self.compact_some()

    def remove_some(self) -> None:
        """Unlink as many files as one turn may, beside those that have been unlinked since the last turn."""
        much, self._removed = self._removed >= REMOVED_PER_TURN, 0
        if not much:
            self._remove_while_cheap()

    @property
    def may_remove(self) -> bool:
        """Whether the next of the removals need not wait until the bytes of others are free.

        A directory waits for all of them: the kernel spins to remove one while files that were in it are being freed.
        """
        return bool(self.removals) and self.disk.freeing <= (FREEING if self.removals[0][0] else 0)

    def _remove_while_cheap(self) -> None:
        while self._removed < REMOVED_PER_TURN and self.may_remove:
            size, unlink = self.removals.popleft()
            self._removed += size + FILE_COST if size else DIRECTORY_COST
            unlink()

    def remove_all(self) -> None:
        """Unlink all files at once: there is no further turn."""
        while self.removals:
            self.remove_some()

    def unlink_later(self, directory: str, path: str) -> None:
        """Unlink `path` once the names removed from `directory` so far are durably gone."""
        self._dirs[directory] = None
        self._unlinks.append((directory, path))

    def unlink(self, directory: str, path: str) -> None:
        """Unlink a file of `directory` if it is still there, and have the next sync make that durable."""
        if self.disk.exists(path):  # the queue may have been deleted meanwhile
            self.disk.unlink(path)
            self.renamed(directory)

    def when_clean(self, part: Segment, callback: Callable[[], None]) -> None:
        """Call back once all that is in the files of a segment is durable, footer and settlements too."""
        self._clean[part] = callback

    def link(self, path: str, name: str) -> None:
        """Have a file under a second name too; where that cannot be, the next sync makes a copy, if there is room."""
        if not self.disk.exists(name) and not self.disk.link(path, name):
            self._copies.append((path, name))
        self._dirs[name.rpartition("/")[0]] = None

    def put_file(self, path: str, content: bytes) -> None:
        """Write a small file that is whole for whoever reads it; durable after the next sync."""
        file = self.disk.open(path + ".new", create=True)
        try:
            file.truncate(0)
            file.write_at(0, [content])
        except StoreFull:
            file.close()
            raise
        self.disk.rename(path + ".new", path)
        self._dirs[path.rpartition("/")[0]] = None
        self.wrote_file(file)
        self.when_durable(lambda: self.close(file), messages=False)

    def forget(self, log_: Log) -> None:
        self._seals = [s for s in self._seals if s[0] is not log_]
        self._unlinks = [u for u in self._unlinks if u[0] != log_.directory]
        self._dirs.pop(log_.directory, None)
        self.blocked_drops.pop(log_, None)
        self.leaving.pop(log_, None)

    def alarm(self, text: str) -> None:
        if text not in self.alarms:
            self.alarms.append(text)
            log.error(text)

    def quarantine(self, log_: Log, part: Segment, why: str) -> None:
        """Keep a copy of a damaged segment as it is, and say so. Without room for one the segment itself is kept: `part.evidence`."""
        assert part.file is not None
        log_.damaged = True
        path = paths.quarantine(log_.directory, part.base)
        part.evidence = not self.disk.exists(path) and not copied(self.disk, part.file, path)
        where = f"there is no room for a copy, it will be kept as {path}" if part.evidence else f"a copy is in {path}"
        self.alarm(f"{paths.segment(log_.directory, part.base)}: {why}; {where}, the rest of the queue is served")

    def _keep_orphans(self, said: Defined) -> None:
        """Lines of the definitions are missing, or may be: directories with messages of a queue of which no other line tells are kept."""
        known = {value["id"] for kind, _, value in said if kind in ("queue", "stage")}
        for name in self.disk.listdir(paths.QUEUES):
            directory = paths.queue_dir(name, True)
            if name in known or self.disk.exists(paths.orphan(directory)):
                continue
            if any(self._has_messages(f"{directory}/{n}") for n in self.disk.listdir(directory)):
                if not said:
                    raise StoreError(
                        f"{self.definitions.file.path} says nothing, although {directory} holds messages: restore the file from a backup, "
                        "or have `kvitto salvage` make a directory of the messages"
                    )
                self._write_small(paths.orphan(directory), b"")
                self.disk.sync_dir(directory)

    def _has_messages(self, path: str) -> bool:
        if not path.endswith(paths.SEGMENT_SUFFIX):
            return False
        file = self.disk.open(path)
        size = file.size()
        file.close()
        return size > HEADER

    def drop_orphan(self, name: str) -> None:
        """The directory of a queue that is not defined."""
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
        """The directory holds messages of a queue that is not defined, and stays."""
        for entry in self.inventory.claim(ORPHAN, queue_id).values():
            self._orphans[queue_id] = entry.slot
        return queue_id in self._orphans or self.disk.exists(paths.orphan(paths.queue_dir(queue_id, True)))

    def _keep_orphan(self, queue_id: str, directory: str) -> None:
        if not self.disk.exists(paths.orphan(directory)):
            self._write_small(paths.orphan(directory), b"")
            self.disk.sync_dir(directory)
        if queue_id not in self._orphans:
            slot = self._orphans[queue_id] = self.inventory.take()
            self.inventory.put(slot, (ORPHAN, queue_id, 0), inventory.UNKNOWN)
        for entry in self.inventory.claim(SEGMENT, queue_id).values():
            path = paths.segment(directory, entry.number)
            if not self.disk.exists(path):
                self.alarm(f"{path} is missing: its messages, of a queue that is not defined, cannot be got back")
                self.inventory.drop(entry.slot)

    def remove_queue(self, directory: str) -> None:
        self.disk.rmtree(directory)
        self._dirs[paths.QUEUES] = None

    def set_aside(self, directory: str, base: int) -> str:
        """A damaged segment of which there is no copy leaves its queue under another name. Gives that."""
        first = paths.quarantine(directory, base)
        name = self.put_aside(directory, paths.segment(directory, base), first)
        if self.disk.exists(paths.copying(first)):
            self.disk.unlink(paths.copying(first))
        return name

    def put_aside(self, directory: str, path: str, name: str) -> str:
        """Give a file another name, or one like it if that is taken. Gives that."""
        first, more = name, 1
        while self.disk.exists(name):
            name, more = f"{first}.{more}", more + 1
        self.disk.rename(path, name)
        self._dirs[directory] = None
        return name

    def remember(self, directory: str, path: str) -> None:
        """An empty file for one that is missing, so that `kvitto check` tells of it until somebody has removed it."""
        self.disk.makedirs(directory)
        self.disk.open(path, create=True).close()
        self.disk.sync_dir(directory)  # before the inventory may forget what is missing
        self.disk.sync_dir(paths.QUEUES)

    @property
    def journal_needed(self) -> int:
        """Journal records from this sequence on may be replayed after a crash."""
        return self.journal.oldest

    # -- group commit ----------------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        return bool(
            self._segments
            or self._others
            or self._acks
            or self._dirs
            or self._callbacks
            or self._unhurried
            or self._clean
        )

    @property
    def waiting(self) -> bool:
        """Somebody waits for the next sync."""
        return bool(self._callbacks)

    @property
    def busy(self) -> bool:
        return self._job is not None

    def when_durable(self, callback: Callable[[], None], *, messages: bool = True) -> None:
        """Call back once all that has been written so far is durable; without `messages` only journal and definitions are meant."""
        self._callbacks.append(callback)
        self._messages_wanted |= messages

    def after_a_sync(self, callback: Callable[[], None]) -> None:
        """Call back after the next sync that covers journal, definitions and inventory as they are now.

        The sync is not hastened, unless there is little room on the disk.
        """
        if self.short:
            self.when_durable(callback, messages=False)
        else:
            self._unhurried.append(callback)

    def take_room(self, size: int, path: str) -> None:
        """Before `size` bytes of messages are written to `path`. StoreFull if too little would be left."""
        if size > self._room:
            self._room = min(self.disk.free_bytes() - ROOM_KEPT, max(ROOM_STEP, size))
            if size > self._room:
                left = f"{ROOM_KEPT >> 20} MiB must stay free for what frees space"
                raise StoreFull(f"cannot write messages to {path}: {left} (free some on this file system)")
        self._room -= size

    def make_room(self, short: bool) -> None:
        """Once a second while there is little room, and when there is enough again."""
        self.short = short
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

    def when_defined(self, callback: Callable[[], None]) -> None:
        """Call back once the definitions made so far are durable, if there is no room for them: once they have been written."""
        if self.definitions.unwritten:
            self._undefined.append(callback)
        else:
            self.when_durable(callback, messages=False)

    def write_definitions(self) -> None:
        """Those that had no room. StoreFull if there still is none."""
        self.definitions.flush()
        self.wrote_file(self.definitions.file)
        waiting, self._undefined = self._undefined, []
        for callback in waiting:
            self.when_durable(callback, messages=False)

    def begin_sync(self, *, everything: bool) -> SyncJob:
        """What somebody waits for, as a job; with `everything` also what nobody waits for: settlements are written behind (A11)."""
        assert self._job is None and self.failed is None
        files, dirs = list(self._others), list(self._dirs)
        job = self._job = SyncJob(self.disk, files, dirs)
        if self.definitions.dirty and self.definitions.file in self._others:
            job.defined = self.definitions.file.end
        compaction = self.definitions.compaction
        if compaction is not None and compaction.complete:
            if compaction.file not in self._others:  # lines that go to both files do not note that this one has changed
                files.append(compaction.file)
            job.compacted = compaction.file.end
        job.named = self._naming
        self._others, self._dirs = {}, {}
        if everything or self._messages_wanted:
            files += [part.file for part in self._segments if part.file is not None]
            job.segments = [(log_, part, part.size, part.end) for part, log_ in self._segments.items()]
            job.seals, self._seals = self._seals, []
            self._segments = {}
            self._messages_wanted = False
            job.size, self.unsynced = self.unsynced, 0
        if everything:
            files += [part.acks for part in self._acks if part.acks is not None]
            job.acks = [(log_, part, part.acks_size) for part, log_ in self._acks.items()]
            job.journal_applied = self.journal.written_out
            self._acks = {}
        job.unlinks, self._unlinks = self._unlinks, []
        job.copies, self._copies = self._copies, []
        job.callbacks, self._callbacks = self._callbacks, []
        job.unhurried, self._unhurried = self._unhurried, []
        job.journal_written = self.journal.written
        if not self.syncing:
            job.files, job.dirs, job.defined = [], [], 0
        return job

    def end_sync(self, job: SyncJob) -> None:
        """The job has run: pass on what is durable now. After an error: remember it, tell nobody anything."""
        assert job is self._job
        self._job = None
        for file in self._closing:
            file.close()
        self._closing.clear()
        if job.error is not None:
            self.failed = job.error
            self.distrust()
            return
        self.syncs += 1
        entered = False
        if self.syncing:
            entered = self.journal.durable_to(job.journal_written)
        changed: dict[Segment, Log] = {}
        for log_, part, size in job.acks:
            part.acks_durable = size
            changed[part] = log_
        for log_, part, size, end in job.segments:
            fresh = not part.durable
            part.durable, part.durable_end = size, end
            changed[part] = log_
            if fresh and len(log_.segments) > 1:
                self._for_log(log_, log_.drop_settled)
        if self.inventory.owed:
            with suppress(StoreFull):
                self.inventory.write_owed()
        self._definitions_synced(job)
        for part, log_ in changed.items():
            if part.durable and part in log_.segments:
                entered |= self.enter(log_, part)
        for log_, part in job.seals:
            self._for_log(log_, partial(self._seal, log_, part))
        for directory, path in job.unlinks:
            self.remove(SMALL_FILE, partial(self.unlink, directory, path))
        if job.journal_applied:
            self.journal.retire(job.journal_applied)
        if entered:  # a segment counts once the inventory would miss it
            self._others[self.inventory.file] = None
            self._callbacks[:0] = job.callbacks
            self._unhurried[:0] = job.unhurried
        else:
            for callback in (*job.callbacks, *job.unhurried):
                callback()
        if self._clean:
            self._call_for_clean()
        if self.definitions.bloated and not self.leaving:
            self._begin_compaction()

    def _call_for_clean(self) -> None:
        """Call back for the segments in whose files all is durable now (`when_clean`)."""
        for part in [p for p in self._clean if p not in self._segments and p not in self._acks]:
            if part in self._clean:  # the one before may have dropped it
                self._clean.pop(part)()

    def _for_log(self, log_: Log, work: Callable[[], None]) -> None:
        """Do something for one queue's files; if that fails, the others' work goes on."""
        if log_.out_of_service:
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the wall around each queue
            self.on_fault(log_, error)

    def _enter_definitions(self) -> None:
        if self.definitions.compaction is not None or self._naming:
            return  # a start may find the old file or the new one, which is shorter
        slot, size = self._defined
        durable = self.definitions.file.durable
        if durable != size:
            with suppress(StoreFull):
                self.inventory.put(slot, (DEFINITIONS, NOBODY, 0), (durable, 0, 0))
                self._defined = slot, durable

    def _definitions_synced(self, job: SyncJob) -> None:
        """Note what this sync has made durable of the definitions log, and of the new log of a compaction."""
        if job.named:
            self._naming = False
        if job.defined:
            self.definitions.synced(job.defined)
        if job.defined or job.named:
            self._enter_definitions()
        if job.compacted and self.definitions.compaction is not None and not self.leaving:
            self._replace_definitions(job.compacted)

    def _begin_compaction(self) -> None:
        """Begin to rewrite the definitions log. `compact_some` writes some lines in each turn."""
        try:
            self.definitions.begin_compaction()
            self.inventory.put(self._defined[0], (DEFINITIONS, NOBODY, 0), inventory.UNKNOWN)
            self.inventory.write_owed()
            self._defined = self._defined[0], 0
        except StoreFull as error:
            log.warning("%s; the definitions stay as they are", error)
            self.definitions.abandon_compaction()
            return
        # it has to be durable before the new file, which is shorter, gets its name
        self._others[self.inventory.file] = None

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
            self._others[compaction.file] = None
            # what the log says of deleted queues is needed until their directories are durably gone
            self._dirs[paths.QUEUES] = None
            self.when_durable(lambda: None, messages=False)

    def _replace_definitions(self, durable: int) -> None:
        """Replace the definitions log by the new one, which has durably all that the old one had when this sync began.

        What has been defined since then waits for the next sync, which makes the new name durable, too.
        """
        self._others.pop(self.definitions.file, None)
        self.definitions.replace(durable)
        self._naming = True
        self._dirs[""] = None
        self._others[self.definitions.file] = None

    def compact_definitions(self) -> None:
        """While no sync has the old file. What the log says of deleted queues is needed until their directories are durably gone."""
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
            self._others.pop(old, None)
        self._enter_definitions()

    def _seal(self, log_: Log, part: Segment) -> None:
        if part not in log_.segments or part.file is None:
            return
        try:
            part.write_footer()
            self.wrote(log_, part)
        except StoreFull:  # without a footer the next start reads the segment instead
            log.warning("no room for the footer of %s", part.file.path)

    def journal_retired(self) -> None:
        blocked, self.blocked_drops = self.blocked_drops, {}
        for log_ in blocked:
            self._for_log(log_, log_.drop_settled)

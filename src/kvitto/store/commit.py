"""The group commit: what is dirty, what one sync covers, and who is called behind it.

A commit has two stages (docs/adr/0020-a-commit-has-two-stages.md). The first ends when its files are synced on this machine: the store
notes what is durable, and goes on with its own work (`when_synced`). The second ends when the commit may be announced: peers are told
(`when_announced`). Without replicas the second stage follows the first in the same call.

Nothing runs by itself: `Store.begin_sync` hands out a `Commit`, whoever drives the store has it synced (the server in its sync thread, a
test in place), and `Store.end_sync` takes it back. What is written while a commit is synced belongs to the next one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from kvitto.base.errors import SyncError
from kvitto.store.disk import Disk, File

if TYPE_CHECKING:
    from kvitto.store.log import Log
    from kvitto.store.segment import Segment

SMALL_FILES = 2
SMALL_BYTES = 64 << 10
DIRS_AT_ONCE = 48
"""At most this many directories are open at a time to be synced, because the limits on descriptors leave little room for them."""

Callbacks = list[Callable[[], None]]
NOTHING: tuple[()] = ()
"""A commit shares this instead of making an empty list for each thing that it does not have, which is most of them."""


class Commit:
    """One group commit: what its sync covers, and who is called behind it.

    `run` uses nothing but files, so another thread may call it. `server/syncer.py` syncs the descriptors of `waves` instead where it can.
    """

    def __init__(self, disk: Disk, files: list[File], dirs: list[str]) -> None:
        self.disk = disk
        self.files = files
        self.dirs = dirs
        self.segments: list[tuple[Log, Segment, int, int]] = []
        """Each segment that this commit syncs, with its size, and the offset behind the last message in it."""
        self.acks: Sequence[tuple[Log, Segment, int]] = NOTHING
        """Each segment whose settlement log this commit syncs, with the size of that log."""
        self.seals: Sequence[tuple[Log, Segment]] = NOTHING
        self.unlinks: Sequence[tuple[str, str]] = NOTHING
        self.hurried: Sequence[Callable[[], None]] = NOTHING
        """What stage one calls for those who have asked for this sync."""
        self.unhurried: Sequence[Callable[[], None]] = NOTHING
        """What stage one calls for those who have only waited for a sync."""
        self.announcements: Sequence[Callable[[], None]] = NOTHING
        """What stage two calls."""
        self.begins = self.completes = False
        """Whether a full sync begins with this commit, and whether one ends with it, perhaps the same."""
        self.put_off = False
        """Whether its callbacks wait for the next commit, which makes durable what they need besides."""
        self.earlier: Commit | None = None
        """The commit before, if its callbacks have waited for this one."""
        self.others = bool(files)
        """Whether the commit syncs files that belong to no queue: journal, definitions, inventory."""
        self.notes_flags = False
        """Whether all settlement logs say durably, behind this commit, which messages may have been delivered before this start."""
        self.journal_applied = 0
        self.journal_written = (0, 0)
        self.defined = 0
        """The length of the definitions log that this commit makes durable, 0 if the log is not part of it."""
        self.compacted = 0
        """The length of the new definitions log that this commit makes durable, 0 if no compaction is complete."""
        self.named = False
        """Whether the commit makes the name of the definitions log durable."""
        self.number = 0
        """Commits are numbered from 1 in the order in which they begin."""
        self._paths: dict[int, str] = {}
        self.size = 0
        """The bytes of messages that this commit syncs."""
        self.seconds = 0.0
        """The time that the sync has taken; whoever runs it sets this."""
        self.error: Exception | None = None

    def is_small(self) -> bool:
        """Whether there are so few files and bytes that the disk syncs them in about the time of one write."""
        if len(self.files) > SMALL_FILES or self.dirs:
            return False
        waiting = 0
        for _, segment, size, _ in self.segments:
            waiting += size - segment.durable + segment.ahead
        for _, segment, size in self.acks:
            waiting += size - segment.acks_durable
        return waiting <= SMALL_BYTES

    def run(self) -> None:
        """Sync all files and directories. If that raises an error, keep it in `error`."""
        try:
            for file in self.files:
                file.sync()
            for path in self.dirs:
                self.disk.sync_dir(path)
        except Exception as error:  # noqa: BLE001 - top of the sync thread: reported by end_sync
            self.error = error

    @property
    def apart(self) -> bool:
        """Whether only `run` can sync this commit, because one of its files has no descriptor. Only files of tests have none."""
        self._paths = {file.fileno(): file.path for file in self.files}
        return -1 in self._paths

    def waves(self) -> Generator[list[int], None, None]:
        """Yield lists of descriptors: all of one list are synced before the next list is asked for.

        The descriptor of a directory is inverted, and is closed when the next list is asked for. A caller that stops early has to close
        the generator. Raises SyncError if a directory cannot be opened.
        """
        self._paths = self._paths or {file.fileno(): file.path for file in self.files}
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


class GroupCommit:
    """Keeps what has been written since the last commit began, the commit that is being synced, and those that wait to be announced."""

    def __init__(self, disk: Disk, syncing: bool = True) -> None:
        self._disk = disk
        self.syncing = syncing
        """Whether files are synced at all."""
        self.begun: Callable[[Commit], None] = nobody
        """Called with each commit before its sync, and before anything is written that it does not cover. A replica has to sync the same
        at this place in the order of operations; then `allow` may name the commit."""
        self.running: Commit | None = None
        """The commit that is being synced."""
        self.syncs = 0
        """The number of commits whose sync has ended."""
        self.allowed: int | None = None
        """The number of the last commit that may be announced (`allow`). It is None without replicas: each commit may be announced then."""
        self.unsynced = 0
        """The bytes of messages that have been written since the last commit of messages began."""
        self.awaited = 0
        """How many batches have confirms that wait for the next commit (`when_confirmed`), apart from those that were put off to it."""
        self.urgent = False
        """Whether anything else waits for the next commit. Then its sync may not wait for other publishers (server/gathering.py)."""
        self.in_haste = False
        """Whether there is little room on the disk. Callbacks of `after_a_sync` free some, so they ask for a sync of their own then."""
        self._segments: dict[Segment, Log] = {}
        self._acks: dict[Segment, Log] = {}
        self.rest: dict[Segment, Log] = {}
        """The segments whose settlement logs the full sync under way has still to cover."""
        self._named: dict[Segment, str] = {}
        """The segments whose settlement log has a name that is not durable yet, with the directory of the queue."""
        self._dirs: dict[str, None] = {}
        self._files: dict[File, None] = {}
        self._seals: list[tuple[Log, Segment]] = []
        self._unlinks: list[tuple[str, str]] = []
        self._clean: dict[Segment, Callable[[], None]] = {}
        self._closing: list[File] = []
        self._hurried: Callbacks = []
        self._unhurried: Callbacks = []
        self._announcements: Callbacks = []
        self._put_off: Commit | None = None
        self.messages_wanted = False
        """Whether somebody waits for the next sync and for messages in it."""
        self.new_files = 0
        """How many segments were made since the last commit of messages began."""
        self.new_before = 0
        """How many of the segments in the last commit were new."""
        self.load = self.load_before = 0
        """The load that `LaterWrites` has let in since then, and what of it the last commit had (broker/queues/later_writes.py)."""
        self.waiting = False
        """Whether somebody waits for the next sync. It is asked several times in each turn."""
        self._unannounced: deque[Commit] = deque()

    # -- what is dirty -----------------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        """Whether a commit that begins now has anything to sync, or anybody to call."""
        return bool(
            self._segments
            or self._files
            or self._acks
            or self.rest
            or self._dirs
            or self._hurried
            or self._announcements
            or self._unhurried
            or self._clean
            or self._put_off is not None
        )

    @property
    def busy(self) -> bool:
        """Whether a commit is being synced."""
        return self.running is not None

    @property
    def behind(self) -> bool:
        """Whether a commit that has been synced waits to be announced. Only with replicas one ever does."""
        return bool(self._unannounced)

    def wrote(self, log: Log, segment: Segment, size: int = 0) -> None:
        """Note that a segment has new bytes, of which `size` belong to messages."""
        self._segments[segment] = log
        self.unsynced += size

    def settled(self, log: Log, segment: Segment) -> None:
        """Note that the settlement log of a segment has new bytes. Nobody waits for them: only a full sync has them (A11)."""
        self._acks[segment] = log

    def made_settlements(self, log: Log, segment: Segment) -> None:
        """Note that a segment has a settlement log now. Its name becomes durable together with what is in it."""
        self._named[segment] = log.directory

    def wrote_file(self, file: File) -> None:
        """Note that a file that belongs to no queue (journal, definitions, inventory) has new bytes."""
        self._files[file] = None

    def forget_file(self, file: File) -> None:
        """Leave a file out of the next commit."""
        self._files.pop(file, None)

    def renamed(self, directory: str) -> None:
        """Note that a name was made or removed in `directory`."""
        self._dirs[directory] = None

    def seal_when_synced(self, log: Log, segment: Segment) -> None:
        """Give a segment its footer once all batches in it are durable. Nothing more is written to it."""
        self._seals.append((log, segment))
        self._segments[segment] = log

    def unlink_later(self, directory: str, path: str) -> None:
        """Unlink `path` once the names removed from `directory` so far are durably gone."""
        self._dirs[directory] = None
        self._unlinks.append((directory, path))

    def close(self, file: File | None) -> None:
        """Close a file. If a running sync has it, close it when that has ended."""
        if file is None:
            return
        self._files.pop(file, None)
        if self.running is not None and file in self.running.files:
            self._closing.append(file)
        else:
            file.close()

    def sync_settlements(self, segment: Segment) -> None:
        """Have the next commit sync the settlement log of a segment that is about to be removed, and close the log behind that."""
        if (segment in self._acks or segment in self.rest) and segment.acks is not None:
            acks, segment.acks = segment.acks, None
            self._files[acks] = None
            if segment in self._named:
                self._dirs[self._named.pop(segment)] = None
            self.after_a_sync(lambda: self.close(acks))

    def dropped(self, segment: Segment) -> None:
        """Leave the files of a segment that is removed out of the next commits."""
        self._segments.pop(segment, None)
        self._acks.pop(segment, None)
        self.rest.pop(segment, None)
        self._named.pop(segment, None)
        self._clean.pop(segment, None)

    def forget(self, log: Log) -> None:
        """Leave out what the next commits were to do in the directory of a queue that is removed."""
        self._seals = [seal for seal in self._seals if seal[0] is not log]
        self._unlinks = [unlink for unlink in self._unlinks if unlink[0] != log.directory]
        self._dirs.pop(log.directory, None)

    # -- who is called -----------------------------------------------------------------------------------------

    def when_synced(self, callback: Callable[[], None], messages: bool = False) -> None:
        """Call back once what has been written so far is durable on this machine. Whoever tells a peer something calls `when_announced`.

        That covers journal, definitions and inventory. It covers messages only if `messages` is true.
        """
        self._hurried.append(callback)
        self.waiting = self.urgent = True
        self.messages_wanted |= messages

    def after_a_sync(self, callback: Callable[[], None]) -> None:
        """Call back like `when_synced`, but do not ask for a sync, unless there is little room on the disk."""
        if self.in_haste:
            self.when_synced(callback)
        else:
            self._unhurried.append(callback)

    def when_announced(self, callback: Callable[[], None], messages: bool = True) -> None:
        """Call back once peers may be told that what has been written so far is durable. It covers messages only if `messages` is true."""
        self._announcements.append(callback)
        self.waiting = self.urgent = True
        self.messages_wanted |= messages

    def when_confirmed(self, callback: Callable[[], None], count: int) -> None:
        """Call back as `when_announced` does. This is for confirms, whose sync may wait a moment for other publishers.

        `count`: how many batches they are for. A batch is what a channel has published at one moment.
        """
        self._announcements.append(callback)
        self.waiting = self.messages_wanted = True
        self.awaited += count

    def when_clean(self, segment: Segment, callback: Callable[[], None]) -> None:
        """Call back once all that is in the files of a segment is durable, footer and settlements too."""
        self._clean[segment] = callback

    # -- the two stages ----------------------------------------------------------------------------------------

    def begin(self, everything: bool, most: int = 0) -> Commit:
        """Make a commit of what somebody waits for. With `everything` it also has the messages for which nobody waits, and begins a full
        sync, which covers all settlement logs that are dirty now.

        `most`: how many settlement logs it has at most of the full sync under way; the following commits have the others. 0: all of them
        if `everything`, else none.
        """
        assert self.running is None
        commit = self.running = Commit(
            self._disk, list(self._files) if self._files else [], list(self._dirs) if self._dirs else []
        )
        commit.number = self.syncs + 1
        self.waiting = self.urgent = False
        self.awaited = 0
        self.new_before = self.load_before = 0
        self._files.clear()
        self._dirs.clear()
        if everything or self.messages_wanted:
            for segment, log in self._segments.items():
                if segment.file is not None:
                    commit.files.append(segment.file)
                commit.segments.append((log, segment, segment.size, segment.end))
            self._segments.clear()
            if self._seals:
                commit.seals, self._seals = self._seals, []
            self.messages_wanted = False
            commit.size, self.unsynced = self.unsynced, 0
            self.new_before, self.new_files = self.new_files, 0
            self.load_before, self.load = self.load, 0
        if everything and not (most and self.rest):
            self.rest.update(self._acks)
            self._acks.clear()
            commit.begins = True
        if everything or most:
            if self.rest:
                self._take_settlements(commit, most or len(self.rest))
            commit.completes = not self.rest
        if self._unlinks:
            commit.unlinks, self._unlinks = self._unlinks, []
        if self._hurried:
            commit.hurried, self._hurried = self._hurried, []
        if self._unhurried:
            commit.unhurried, self._unhurried = self._unhurried, []
        if self._announcements:
            commit.announcements, self._announcements = self._announcements, []
        commit.earlier, self._put_off = self._put_off, None
        return commit

    def _take_settlements(self, commit: Commit, most: int) -> None:
        """Have a commit sync so many settlement logs of the full sync."""
        taken = list(islice(self.rest.items(), most))
        for segment, _ in taken:
            del self.rest[segment]
            if segment.acks is not None:
                commit.files.append(segment.acks)
            if segment in self._named:
                commit.dirs.append(self._named.pop(segment))
        commit.acks = [(log, segment, segment.acks_size) for segment, log in taken]

    def end(self, commit: Commit) -> None:
        """Note that the sync of a commit has ended, and close the files that have waited for that."""
        assert commit is self.running
        self.running = None
        for file in self._closing:
            file.close()
        self._closing.clear()
        if commit.error is None:
            self.syncs += 1

    def put_off(self, commit: Commit) -> None:
        """Have the next commit call back for this one, since the callbacks need something that is not synced yet.

        It does so even if its own callbacks are put off in turn: else, while each commit has new files, nobody would ever be called.
        """
        commit.put_off = True
        self._put_off = commit
        if commit.hurried or commit.announcements:
            self.waiting = self.urgent = True

    def call_back(self, commit: Commit) -> None:
        """End stage one: call what was passed to `when_synced`, then what was passed to `after_a_sync`, each in order."""
        if commit.earlier is not None:
            _call_back(commit.earlier)
        if not commit.put_off:
            _call_back(commit)

    def call_for_clean(self) -> None:
        """Call back for the segments in whose files all is durable now (`when_clean`)."""
        if not self._clean:
            return
        for segment in [
            segment
            for segment in self._clean
            if segment not in self._segments and segment not in self._acks and segment not in self.rest
        ]:
            if segment in self._clean:  # the one before may have dropped it
                self._clean.pop(segment)()

    def announce(self, commit: Commit) -> None:
        """Announce a commit whose stage one is complete as soon as that is allowed, and not before the commits that ended before it."""
        if self.allowed is not None and not _has_news(commit):
            return  # without this, commits of acks would be gathered as long as no replica is there
        self._unannounced.append(commit)
        self.allow(self.allowed)

    def allow(self, number: int | None) -> None:
        """Announce the commits up to this number, since replicas have synced what these cover. None: there are no replicas any more.

        The sync on this machine may not have ended yet: then the commit is announced when it has.
        """
        self.allowed = number
        while self._unannounced and (number is None or self._unannounced[0].number <= number):
            _tell(self._unannounced.popleft())


def nobody(_commit: Commit) -> None:
    """There are no replicas."""


def _call_back(commit: Commit) -> None:
    for callback in commit.hurried:
        callback()
    for callback in commit.unhurried:
        callback()


def _has_news(commit: Commit) -> bool:
    """Whether peers are told anything once the commit is announced. One whose callbacks are put off is announced with the next one."""
    return commit.earlier is not None or (not commit.put_off and bool(commit.segments or commit.announcements))


def _tell(commit: Commit) -> None:
    if commit.earlier is not None:
        _announce(commit.earlier)
        commit.earlier = None
    if not commit.put_off:
        _announce(commit)


def _announce(commit: Commit) -> None:
    """Announce a commit. A sync covers all unsynced bytes of a log, so each offset below the end of its last segment is durable."""
    for log, _, _, end in commit.segments:
        log.announced(end)
    for callback in commit.announcements:
        callback()

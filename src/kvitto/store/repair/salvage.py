"""Makes a new data directory of all that can be read of another one, which is only read. Called by `kvitto salvage`.

Undamaged files are copied byte for byte. Of damaged ones the readable batches, blocks, records, lines and slots are copied, with the same
salt and offsets, so that order, properties, settlements and delivered marks stay the same. Lost offsets become gaps, as if they had never
been written; a start takes all messages before a gap for delivered. The new directory says how the last owner of the old one ended, so that
the next start treats torn tails, transactions and possible deliveries as a start of the old one would.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from kvitto.base.clock import Clock
from kvitto.base.errors import StoreError
from kvitto.format.layouts import SEGMENT_MAGIC, SETTLEMENTS_MAGIC
from kvitto.format.settlement import IN_DOUBT, RANGE_SETTLED
from kvitto.store import paths, segment, settlements
from kvitto.store.definitions import Definitions
from kvitto.store.disk import Disk, File
from kvitto.store.judge import batches
from kvitto.store.line import Defined
from kvitto.store.repair.examine import Part
from kvitto.store.repair.survey import INITIALISED, Folder, Survey
from kvitto.store.segment import HEADER, Segment
from kvitto.store.settlements import Settlements
from kvitto.store.store import UNKNOWN_BOOT, WITHOUT_INVENTORY, refuse_inside
from kvitto.wire import tables

NOT_FINISHED = b"salvage not finished\n"
"""The format of a directory that is not complete yet: no broker starts there."""
COPY_BYTES = 4 << 20
IN_VHOSTS = ("policy", "operator_policy", "exchange", "queue", "binding", "stage", "writer")
"""Kinds of definitions whose virtual host has to be there; the first part of their keys is its name."""


class Salvage:
    """One salvage. `made`: the names of the queues whose definitions were lost and made anew, by directory."""

    def __init__(self, found: Survey, target: Disk, clock: Clock) -> None:
        self.found = found
        self.source = found.disk
        self.target = target
        self.clock = clock
        self.made: dict[str, str] = {}
        self.notes: list[str] = []

    def run(self) -> None:
        """Do it. Raises StoreError or StoreFull; then the target is not complete, and no broker starts there."""
        refuse_inside(self.target)
        self.target.makedirs("")
        self._write(paths.FORMAT, NOT_FINISHED)
        self.target.sync_dir("")
        for path in (paths.QUEUES, paths.JOURNALS):
            self.target.makedirs(path)
        self._define()
        for folder in self.found.queues:
            if folder.defined[0] or folder.orphan or folder.about:
                self._folder(folder)
        for folder in self.found.archives:
            self._folder(folder)
        for path, journal in self.found.journals.items():
            self._copy(path, [(at, until) for at, until, _ in journal.records])
        for path in (paths.QUEUES, paths.ARCHIVE, paths.JOURNALS):
            self.target.sync_dir(path)
        self._write(paths.BOOT, self._boot())
        self._write(paths.FORMAT, WITHOUT_INVENTORY)  # the first start makes an inventory
        self.target.sync_dir("")

    def _boot(self) -> bytes:
        """Return the content of `boot`. If it is not known how the last owner ended, it says that there was a power cut."""
        if self.found.journal_gap:
            return UNKNOWN_BOOT  # otherwise a start would be refused for the records that are missing
        if self.found.ending.in_order:
            return b""
        text = self.source.read_file(paths.BOOT) if self.source.exists(paths.BOOT) else b""
        return text if text.strip() and self.found.boot_intact else UNKNOWN_BOOT

    # -- definitions -----------------------------------------------------------------------------------------

    def _define(self) -> None:
        log = Definitions(self.target)
        log.load()
        initialised = [d for d in self.found.definitions if d[0] == INITIALISED]
        rest: Defined = [d for d in self.found.definitions if d[0] != INITIALISED]
        for kind, key, value in [*rest, *self._anew(rest)]:
            log.put(kind, key, value)
        if any(kind == "user" for kind, _, _ in rest):
            for kind, key, value in initialised:
                log.put(kind, key, value)
        elif rest:
            self.notes.append("no user can be read: the next start defines guest, and vhost /")
        log.flush()
        log.file.sync()
        log.close()

    def _anew(self, known: Defined) -> Defined:
        """Return definitions in place of lost ones: of queues that have messages, and of virtual hosts that others are in."""
        names = {key for kind, key, _ in known if kind == "queue"}
        fresh: Defined = []
        for folder in self.found.queues:
            if folder.orphan:
                key, value = self._name(folder, names)
                names.add(key)
                fresh.append(("queue", key, value))
                self.made[folder.path] = f"{key[1]} in {key[0]}"
        vhosts = {key[0] for kind, key, _ in known if kind == "vhost"}
        used = {key[0] for kind, key, _ in [*known, *fresh] if kind in IN_VHOSTS}
        return [*(("vhost", (name,), dict[str, Any]()) for name in sorted(used - vhosts)), *fresh]

    @staticmethod
    def _name(folder: Folder, names: set[tuple[str, ...]]) -> tuple[tuple[str, str], dict[str, Any]]:
        """Return the name and the value of a definition for a queue that has none: from `queue.json`, or as a new name."""
        about, arguments = folder.says, dict[str, Any]()
        if about:
            arguments = about["arguments"]
        elif folder.stream:
            arguments = {"x-queue-type": "stream"}
        key = (about["vhost"], about["queue"]) if about else ("/", f"salvaged.{folder.queue_id}")
        if key in names:
            key = (key[0], f"salvaged.{folder.queue_id}")
        value = {
            "id": folder.queue_id,
            "auto_delete": False,
            "arguments": tables.encode(arguments).hex() if arguments else "",
        }
        return key, value

    # -- queues ----------------------------------------------------------------------------------------------

    def _folder(self, folder: Folder) -> None:
        self.target.makedirs(folder.path)
        end = 0
        for part, last in zip(folder.parts, [*[False] * (len(folder.parts) - 1), True], strict=False):
            end = max(end, self._part(folder, part, last))
        if folder.next > end and not folder.archived:
            self._empty(folder, folder.next)  # the files that mention these offsets are not copied
        if folder.slots:
            file = self.target.open(paths.offsets(folder.path), create=True)
            for at, slot in folder.slots:
                file.write_at(at, [slot])
            finish(file)
        about = folder.about
        if folder.archived and not about:
            unknown = {"vhost": "/", "queue": f"salvaged.{folder.queue_id}", "id": folder.queue_id, "arguments": {}}
            about = json.dumps(self.found.right_about(folder) or unknown).encode() + b"\n"
        if about:
            self._write(paths.about(folder.path), about)
        self.target.sync_dir(folder.path)

    def _empty(self, folder: Folder, base: int) -> None:
        part = Segment(base)
        part.salt = secrets.randbits(64)
        file = self.target.open(paths.segment(folder.path, base), create=True)
        file.write_at(0, [segment.header(SEGMENT_MAGIC, folder.queue_id, base, self.clock.now_ms(), part.salt)])
        finish(file)

    def _part(self, folder: Folder, part: Part, last: bool) -> int:
        """Copy a segment and its settlement log. Returns the end of the offsets in the segment."""
        if not part.readable and not folder.stream:
            return 0
        end = part.segment.end
        if part.intact and part.readable:
            self._copy(part.path, [(0, part.segment.size if not part.segment.sealed else -1)])
        else:
            end = self._rewrite(folder, part, last)
        acks = paths.settlements(part.directory, part.base)
        untold = self._untold(folder, part)
        # a lost block may have had the delivered mark, which goes for all segments of a queue
        flagged = not all(each.acks_intact for each in ([part] if folder.archived else folder.parts))
        if untold or flagged:
            self._settlements(folder, part, untold, flagged)
        elif part.acks is not None and part.acks.good:
            self._copy(acks, [(0, HEADER), *part.acks.good])
        return end

    @staticmethod
    def _untold(folder: Folder, part: Part) -> list[tuple[int, int]]:
        """Return runs (start, count) of archived offsets whose settlements cannot be read. They were settled; how is not known."""
        if not folder.archived or not part.counts()[0]:
            return []
        return (part.acks or part.blank()).unsettled()

    def _settlements(self, folder: Folder, part: Part, untold: list[tuple[int, int]], flagged: bool) -> None:
        """Write the readable blocks, and another one. It settles `untold`, and with `flagged` the messages that are left are flagged."""
        path = paths.settlements(part.directory, part.base)
        head = segment.header(SETTLEMENTS_MAGIC, folder.queue_id, part.base, self.clock.now_ms())
        file = self.target.open(path, create=True)
        size = file.write_at(0, [head])
        if part.acks is not None:
            data = self.source.read_file(path) if part.acks.good else b""
            for at, until in part.acks.good:
                size += file.write_at(size, [data[at:until]])
        more = Settlements()
        for start, count in untold:
            more.add(start, count, RANGE_SETTLED, 0)
        if flagged and part.end > part.base:
            more.add(part.end - 1, 1, IN_DOUBT, 0)
        if more.entries.n:
            mark = part.acks.mark if part.acks is not None else 0
            file.write_at(size, settlements.block(more.entries, self.clock.now_ms(), mark, 0))
        finish(file)

    def _rewrite(self, folder: Folder, part: Part, last: bool) -> int:
        """Copy the readable batches of a damaged segment into a new file. Returns the end of its offsets."""
        fresh = Segment(part.base)
        fresh.salt = part.segment.salt if part.readable else secrets.randbits(64)
        fresh.file = self.target.open(part.path, create=True)
        created = part.created_ms or self.clock.now_ms()
        fresh.file.write_at(0, [segment.header(SEGMENT_MAGIC, folder.queue_id, part.base, created, fresh.salt)])
        if part.readable:
            file = self.source.open(part.path)
            data = file.read_at(0, part.segment.size)
            file.close()
            for at, head, until in batches(data, part.segment.size, fresh.salt, part.base):
                if head is not None:
                    fresh.file.write_at(fresh.size, [memoryview(data)[at:until]])
                    fresh.note(head.first, head.count, head.body_len, head.journal, fresh.size)
                    fresh.size += until - at
        if part.segment.sealed or not last or part.end > fresh.end:
            fresh.end = max(fresh.end, part.end)
            fresh.file.sync()
            fresh.write_footer()
        finish(fresh.file)
        return fresh.end

    # -- files -----------------------------------------------------------------------------------------------

    def _write(self, path: str, content: bytes) -> None:
        file = self.target.open(path, create=True)
        file.truncate(0)
        file.write_at(0, [content])
        finish(file)

    def _copy(self, path: str, ranges: list[tuple[int, int]]) -> None:
        """Copy ranges (begin, end) of a file, one behind the other. An end of -1 is that of the file."""
        old, new = self.source.open(path), self.target.open(path, create=True)
        size = 0
        for at, until in ranges:
            end = old.size() if until < 0 else until
            while at < end:
                data = old.read_at(at, min(COPY_BYTES, end - at))
                if not data:
                    raise StoreError(f"{path} has become shorter while it was read: does a broker run there?")
                size += new.write_at(size, [data])
                at += len(data)
        old.close()
        finish(new)


def finish(file: File) -> None:
    file.sync()
    file.close()

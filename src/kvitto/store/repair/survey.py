"""Reads a whole data directory and finds all that is damaged. It changes nothing.

`kvitto check` prints the result, and `salvage.py` makes another directory from it. The verdicts are those of a start (`store/judge.py`), so
a torn tail that a start would cut off is no damage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

from kvitto.base.errors import StoreError
from kvitto.store import inventory, judge, paths
from kvitto.store.disk import Disk
from kvitto.store.inventory import ARCHIVED, DEFINITIONS, JOURNAL, NOBODY, OFFSETS, ORPHAN, SEGMENT, Entry
from kvitto.store.judge import Ending, JournalFile, Lines, Records
from kvitto.store.line import Defined, Key, owned
from kvitto.store.record import Record
from kvitto.store.repair import examine
from kvitto.store.repair.examine import Blocks, Finding, Hole, Part
from kvitto.store.segment import HEADER
from kvitto.store.store import (
    FORMAT,
    WITHOUT_INVENTORY,
    boot_fault,
    format_of,
    has_messages,
    how_it_ended,
    is_new,
    refuse_incomplete,
)
from kvitto.wire import tables

INITIALISED = "initialised"
_ID = re.compile(r"[0-9a-f]{32}")
_VERSION = re.compile(rb"kvitto (\d+)\n")


@dataclass
class Folder:
    """The directory of a queue or of an archive. `defined`: (kind, key) of its definition, "" as kind if there is none.

    `orphan`: it has messages, and no definition, not even a deleted one, tells of it. `next`: above every offset that its files mention.
    `waiting`: how many messages the journal has for it that are not in its segments yet.
    """

    path: str
    queue_id: str
    defined: tuple[str, Key] = ("", ())
    orphan: bool = False
    stream: bool = False
    about: bytes = b""
    parts: list[Part] = field(default_factory=list)
    slots: list[tuple[int, bytes]] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    next: int = 0
    waiting: int = 0

    @property
    def archived(self) -> bool:
        return self.path.startswith(f"{paths.ARCHIVE}/")

    @property
    def says(self) -> dict[str, Any]:
        """The content of `queue.json`, {} without one."""
        return dict(json.loads(self.about)) if self.about else {}

    @property
    def journal(self) -> int:
        """The last record of the journal that it has applied."""
        return max((part.segment.journal for part in self.parts), default=0)

    def counts(self) -> tuple[int, int, int]:
        """Count messages: (those that wait, those that are settled and still stored, those that cannot be read)."""
        ready, settled, damaged = (
            sum(column) for column in zip((0, 0, 0), *(p.counts() for p in self.parts), strict=True)
        )
        return ready + self.waiting, settled, damaged


def _missing(base: int, entry: Entry) -> str:
    if entry.kind == ARCHIVED:
        return "it is missing: the archive does not have its messages any more"
    if entry.end > base:
        return f"it is missing, and with it what waited of offsets {base} to {entry.end - 1}"
    return "it is missing; no message is known to have been in it"


class Survey:
    """`findings`: the damage. `notes`: what is worth knowing and no damage. Raises StoreError if the directory cannot be read at all."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.definitions: Defined = []
        self.definitions_intact = True
        self.boot_intact = True
        self.journal_gap = False
        """Records are missing between two files."""
        self.queues: list[Folder] = []
        self.archives: list[Folder] = []
        self.journals: dict[str, JournalFile] = {}
        """The files of the journal, by path."""
        self._said: set[str] = set()
        """The ids of queues that the definitions have or once had."""
        self._deleted: set[str] = set()
        """The ids of queues that the definitions once had and have no more."""
        self._may_lack = False
        """Lines of the definitions may be missing."""
        self._known: dict[tuple[int, str], dict[int, Entry]] = {}
        refuse_incomplete(disk)
        self._check_format()
        self.old = format_of(disk) == WITHOUT_INVENTORY
        self.ending = self._ending()
        self._check_root()
        self._read_inventory()
        self._read_definitions()
        owners = {found: (kind, key) for kind, key, value in self.definitions for found in owned(kind, value)}
        self._deleted = self._said - owners.keys() if self.definitions_intact else set()
        for queue_id in self._ids(paths.QUEUES, [*owners, *self._ids_of(ORPHAN)]):
            folder = self._folder(paths.queue_dir(queue_id, True), queue_id, self.ending)
            folder.defined = owners.get(queue_id, ("", ()))
            self._find_owner(folder)
            self.queues.append(folder)
        for queue_id in self._ids(paths.ARCHIVE, self._ids_of(ARCHIVED)):
            folder = self._folder(paths.archive_dir(queue_id), queue_id, examine.ARCHIVED)
            folder.defined = owners.get(queue_id, ("", ()))
            self._check_archive(folder)
            self.archives.append(folder)
        for folder in (*self.queues, *self.archives):
            self._check_about(folder)
        self._read_journal()

    def damage(self, path: str, text: str, at: int | None = None) -> None:
        self.findings.append(Finding(path, text, at))

    # -- small files -----------------------------------------------------------------------------------------

    def _check_format(self) -> None:
        if not self.disk.exists(paths.FORMAT):
            if is_new(self.disk, b""):
                raise StoreError("this is no data directory: it has no file `format`")
            self.damage(paths.FORMAT, "it is missing; no broker starts here")
            return
        text = self.disk.read_file(paths.FORMAT)
        version = _VERSION.fullmatch(text)
        if version is not None and text not in (FORMAT, WITHOUT_INVENTORY):
            raise StoreError(
                f"the data directory has format {text.decode().strip()!r}, this Kvitto reads {FORMAT.decode().strip()!r}"
            )
        if text not in (FORMAT, WITHOUT_INVENTORY) and not is_new(self.disk, text):
            self.damage(paths.FORMAT, f"it says {text[:40]!r}, not {FORMAT!r}; no broker starts here", 0)

    def _ending(self) -> Ending:
        """Find out how the last owner ended. If `boot` does not tell, assume a power cut, so that torn ends are no damage."""
        if fault := boot_fault(self.disk):
            self.boot_intact = False
            self.damage(paths.BOOT, fault, 0 if self.disk.exists(paths.BOOT) else None)
        return how_it_ended(self.disk)

    def _read_inventory(self) -> None:
        if format_of(self.disk) != FORMAT:
            return
        if not self.disk.exists(paths.INVENTORY):
            self.damage(paths.INVENTORY, "it is missing: which files there should be is not known")
            return
        found = inventory.read(self.disk.read_file(paths.INVENTORY), self.ending.in_order, self.ending.power_cut)
        for text, at in found.damage:
            self.damage(paths.INVENTORY, text, at)
        for entry in found.entries:
            self._known.setdefault((entry.kind, entry.queue_id), {}).setdefault(entry.number, entry)

    def _entries(self, kind: int, queue_id: str = NOBODY) -> dict[int, Entry]:
        return self._known.get((kind, queue_id), {})

    def _ids_of(self, kind: int) -> list[str]:
        return [queue_id for known, queue_id in self._known if known == kind]

    def _check_root(self) -> None:
        for name in self.disk.listdir(""):
            if name not in paths.ROOT:
                self._stray(name)

    def _stray(self, path: str) -> None:
        if path.endswith(paths.copying("")):
            self.notes.append(f"{path} was cut short; it means nothing")
        else:
            self.notes.append(f"{path} is no file of Kvitto's")

    def _ids(self, directory: str, more: Iterable[str]) -> Iterable[str]:
        """Yield the ids of the queues that have a directory here, and those of `more` of which the inventory has files."""
        names = self.disk.listdir(directory)
        kind = ARCHIVED if directory == paths.ARCHIVE else SEGMENT
        gone = {
            q
            for q in more
            if q not in names and (self._entries(kind, q) or (kind == SEGMENT and self._entries(OFFSETS, q)))
        }
        for name in [*names, *sorted(gone)]:
            if _ID.fullmatch(name):
                yield name
            else:
                self._stray(f"{directory}/{name}")

    def _read_definitions(self) -> None:
        path, known = paths.DEFINITIONS, self._entries(DEFINITIONS).get(0)
        has_queues = bool(self.disk.listdir(paths.QUEUES))
        is_missing = not self.disk.exists(path)
        data = b"" if is_missing else self.disk.read_file(path)
        found = judge.definitions_log(data, path, self.ending.in_order, known.size if known else 0, has_queues)
        self.definitions_intact = found.what in (Lines.FINE, Lines.TORN) and not (is_missing and known is not None)
        self._may_lack = found.may_lack or not self.definitions_intact
        if is_missing:
            if not self.definitions_intact:
                self.damage(path, "it is missing: no queue, user or binding is defined")
            return
        if found.synced > len(data):
            self.damage(path, f"it ends here, although it had been synced up to byte {found.synced}", len(data))
        if found.what is Lines.DAMAGED:
            for at, after, change in found.lines:
                if change is None:
                    self.damage(path, f"a line of {after - at} bytes is damaged; no broker starts here", at)
        if found.what is Lines.SILENT:
            self.damage(path, "it says nothing: no queue, user or binding is defined", 0)
        readable = found.lines if found.what is Lines.DAMAGED else [line for line in found.lines if line[0] < found.end]
        for _, _, change in readable:
            if change is not None and change["op"] == "put":
                self._said.update(owned(change["kind"], change["value"]))
        defined = judge.defined_by(readable)
        self.definitions = [(kind, key, value) for (kind, key), value in defined.items()]
        self._settle_going(path)
        if self.definitions and (INITIALISED, ()) not in defined and found.what is Lines.FINE:
            self.notes.append(f"{path}: the first start was cut short; the next one defines / and guest")

    def _settle_going(self, path: str) -> None:
        """Leave out what is being deleted, as the next start does.

        If lines of the log are damaged it stays for good, because one of them may say that there is a new thing of that name.
        """
        if not self.definitions_intact:
            for _, _, value in self.definitions:
                value.pop(judge.DELETING, None)
            return
        self.definitions, gone = judge.split_going(self.definitions)
        for thing in judge.going(gone):
            self.notes.append(f"{path}: {thing} was being deleted; the next start deletes what is left of it")

    # -- queues ----------------------------------------------------------------------------------------------

    def _folder(self, path: str, queue_id: str, ending: Ending) -> Folder:
        folder = Folder(path, queue_id)
        names = self.disk.listdir(path)
        known = self._entries(ARCHIVED if folder.archived else SEGMENT, queue_id)
        bases = sorted(paths.base_of(n) for n in names if n.endswith(paths.SEGMENT_SUFFIX) and paths.base_of(n) >= 0)
        folder.next = max([folder.next, *bases])
        after, is_followed, damages = None, False, list[list[Finding]]()
        for base in reversed(bases):  # what a later segment says counts for those before it
            bad = paths.copying(paths.quarantine("", base)).strip("/")
            owed = bad in names and bad.removesuffix(paths.copying("")) not in names
            part, found = examine.examine(
                self.disk, path, queue_id, base, ending, owed, after, known.get(base), is_followed
            )
            damages.append(found)
            if part.readable or found:
                folder.parts.append(part)
            after, is_followed = base, is_followed or part.synced
        folder.parts.reverse()
        self.findings += chain.from_iterable(reversed(damages))
        if folder.archived or queue_id not in self._deleted:  # the files of a deleted queue are removed one by one
            self._miss(folder, known, names)
        for part in folder.parts:
            folder.next = max(folder.next, part.end)
            if paths.settlements("", part.base).strip("/") in names:
                self.findings += examine.settle(self.disk, part, queue_id, ending, known.get(part.base))
                assert part.acks is not None
                folder.next = max(folder.next, part.acks.highest + 1, part.acks.mark)
        for name in names:
            self._other(folder, name, bases, ending)
        return folder

    def _miss(self, folder: Folder, known: dict[int, Entry], names: list[str]) -> None:
        """Find the files that the inventory has and the directory has not."""
        for base, entry in sorted(known.items()):
            log, acks = paths.segment("", base).strip("/"), paths.settlements("", base).strip("/")
            folder.next = max(folder.next, entry.end)
            if log not in names and paths.quarantine("", base).strip("/") not in names:
                self.damage(f"{folder.path}/{log}", _missing(base, entry))
            elif log in names and acks not in names and (entry.acks_size or folder.archived):
                for part in folder.parts:
                    if part.base == base:
                        part.acks_intact = False
                if not folder.archived:
                    self.damage(f"{folder.path}/{acks}", "it is missing: what it had settled comes again, flagged")
        if not folder.archived and self._entries(OFFSETS, folder.queue_id) and "offsets" not in names:
            self.damage(paths.offsets(folder.path), "it is missing: the stream's named consumers start over")

    def _other(self, folder: Folder, name: str, bases: list[int], ending: Ending) -> None:
        path, base = f"{folder.path}/{name}", paths.base_of(name)
        if name.endswith(paths.SEGMENT_SUFFIX) and base >= 0:
            return
        if name.endswith(paths.SETTLEMENTS_SUFFIX) and base >= 0:
            if base not in bases:
                self._alone(folder, path, base, ending)
        elif paths.QUARANTINE_SUFFIX in name and base >= 0:
            if not name.endswith(paths.copying("")):
                folder.copies.append(path)
                self.damage(path, "the copy of a segment in which damage was found; what could be read of it is served")
        elif name == "offsets":
            folder.stream = True
            self._read_offsets(folder, path, ending)
        elif name == "queue.json":
            folder.about = self._read_about(path, folder.queue_id)
        elif name == "orphan":
            folder.orphan = True
        elif name == "offsets" + paths.QUARANTINE_SUFFIX:
            self.damage(path, "a start has found the file missing: the stream's named consumers have started over")
        else:
            self._stray(path)

    def _alone(self, folder: Folder, path: str, base: int, ending: Ending) -> None:
        replay = Blocks(base, 0)
        replay.run(self.disk.read_file(path), HEADER, ending.power_cut)
        folder.next = max(folder.next, replay.highest + 1, replay.mark)
        if folder.archived and self.disk.exists(paths.segment(paths.queue_dir(folder.queue_id, True), base)):
            return  # its settlement log is linked first
        if self.ending.in_order and (self.old or not self.disk.exists(paths.INVENTORY)):
            self.damage(path, "its segment is missing")  # otherwise the inventory tells
        else:
            self.notes.append(f"{path}: its segment is gone; the next start removes it")

    def _read_offsets(self, folder: Folder, path: str, ending: Ending) -> None:
        data, known = self.disk.read_file(path), self._entries(OFFSETS, folder.queue_id).get(0)
        for pair in judge.offsets(data, folder.queue_id, ending, known, self.old):
            folder.slots += pair.readable
            if pair.is_damaged:
                self.damage(path, pair.what.value, pair.position)
        if known is not None and len(data) < known.size:
            self.damage(
                path, f"it ends here, and had {known.size} bytes: named consumers of the stream start over", len(data)
            )

    def _read_about(self, path: str, queue_id: str) -> bytes:
        text = self.disk.read_file(path)
        try:
            about = json.loads(text)
            names = [about["id"], about["queue"], about["vhost"]]
            if (
                text.endswith(b"\n")
                and names[0] == queue_id
                and all(isinstance(n, str) for n in names)
                and isinstance(about["arguments"], dict)
            ):
                return text
        except (ValueError, KeyError, TypeError):
            pass
        if self.ending.power_cut and (b"\0" in text or not text.endswith(b"\n")):
            self.notes.append(f"{path} was cut short; the next start writes it again")
        else:
            self.damage(path, "it does not say which queue this is", 0)
        return b""

    def _find_owner(self, folder: Folder) -> None:
        unknown = folder.queue_id not in self._said and has_messages(self.disk, folder.path)
        folder.orphan |= bool(self._entries(ORPHAN, folder.queue_id))
        if folder.defined[0]:
            folder.orphan = False
            self._check_stream(folder)
        elif folder.orphan or (unknown and (self.ending.in_order or not self.definitions_intact)):
            folder.orphan = True
            self.damage(folder.path, "it holds messages of a queue that is not defined")
        elif unknown and self._may_lack:
            folder.orphan = True
            self.notes.append(
                f"{folder.path} holds messages of a queue that is not defined: its line may have been torn off"
            )
        else:
            self.notes.append(f"{folder.path} is of a queue that was deleted; the next start removes it")

    def _check_stream(self, folder: Folder) -> None:
        """Find gaps between the segments of a stream: retention removes the oldest ones only."""
        value = next(v for kind, key, v in self.definitions if (kind, key) == folder.defined)
        arguments = value.get("arguments", "")
        folder.stream |= bool(arguments) and tables.decode(bytes.fromhex(arguments)).get("x-queue-type") == "stream"
        if folder.stream and not folder.copies:
            for i, (part, after) in enumerate(pairwise(folder.parts), start=1):
                if self.ending.power_cut and not any(later.synced for later in folder.parts[i:]):
                    break  # a power cut may have taken an unsynced segment and left a later one
                if part.end < after.base and part.readable:
                    hole = Hole(part.segment.size, part.segment.size, part.end, after.base)
                    part.holes.append(hole)
                    part.intact = False
                    text = f"offsets {hole.first} to {hole.end - 1} should come next, and are in no segment"
                    self.findings.append(Finding(part.path, text, None, (hole.first, hole.end)))

        if folder.stream and folder.parts and folder.parts[-1].end < folder.next:  # the segments at its end are missing
            last = folder.parts[-1]
            last.holes.append(Hole(last.segment.size, last.segment.size, last.end, folder.next))
            last.intact = False

    def right_about(self, folder: Folder) -> dict[str, Any]:
        """Return what `queue.json` should say by the definitions, {} if they say nothing."""
        kind, key = folder.defined
        if kind != "queue":
            return {}
        packed = next(v for k, n, v in self.definitions if (k, n) == folder.defined)["arguments"]
        arguments = tables.decode(bytes.fromhex(packed)) if packed else {}
        about = {"vhost": key[0], "queue": key[1], "id": folder.queue_id, "arguments": arguments}
        return dict(json.loads(json.dumps(about, default=str)))

    def _check_about(self, folder: Folder) -> None:
        """Compare `queue.json`, which has no checksum, with the definitions."""
        right = self.right_about(folder)
        if right and folder.about and folder.says != right:
            self.damage(paths.about(folder.path), "it does not say what the definitions say", 0)
            folder.about = b""

    def _check_archive(self, folder: Folder) -> None:
        """Find archived segments without all of their settlements."""
        if folder.parts and not folder.about and not self._has_finding(folder.path):
            self.damage(paths.about(folder.path), "it is missing: whose archive this is is not known")
        for part in folder.parts:
            ready, _, _ = part.counts()
            if part.acks is None:
                self.damage(
                    paths.settlements(folder.path, part.base),
                    "it is missing: what became of these messages is not known",
                )
            elif ready and part.acks_intact and part.intact:
                self.damage(paths.settlements(folder.path, part.base), f"{ready} archived messages are not settled")

    def _has_finding(self, under: str) -> bool:
        return any(finding.path.startswith(under) for finding in self.findings)

    # -- journal ---------------------------------------------------------------------------------------------

    def _read_journal(self) -> None:
        by_id = {folder.queue_id: folder for folder in self.queues}
        applied = {folder.queue_id: folder.journal for folder in self.queues}
        floor = max((folder.journal for folder in self.queues if folder.defined[0]), default=0)
        names = self.disk.listdir(paths.JOURNALS)
        numbers = {known[0] for known in map(paths.journal_of, names) if known is not None}
        for number in sorted(self._entries(JOURNAL).keys() - numbers):
            what = (
                "it had been applied" if self.ending.in_order else "transactions and dead letters may be lost with it"
            )
            self.damage(f"{paths.JOURNALS}/{number:016d}", f"it is missing: {what}")
        for name in sorted(names, key=lambda n: (paths.journal_of(n) or (0, 0), n)):
            known = paths.journal_of(name)
            if known is None:
                self._stray(f"{paths.JOURNALS}/{name}")
                continue
            journal = self._journal_file(name, *known)
            self._compare_journals(journal, floor)
            self.journals[f"{paths.JOURNALS}/{name}"] = journal
            for _, _, record in journal.records:
                self._apply(record, by_id, applied)

    def _compare_journals(self, journal: JournalFile, floor: int) -> None:
        """Find out whether records are missing between two files: they are numbered without gaps."""
        path, before = next(((p, j) for p, j in reversed(self.journals.items()) if j.records), ("", None))
        if before is None or not journal.records:
            return
        last, first = before.records[-1][2].sequence, journal.records[0][2].sequence
        if judge.records_are_missing(last, first, floor, self.ending):
            self.journal_gap = True
            text = "transactions or dead letters at its end cannot be read; no broker starts here"
            self.damage(path, text, before.end)

    def _journal_file(self, name: str, number: int, salt: int) -> JournalFile:
        path, known = f"{paths.JOURNALS}/{name}", self._entries(JOURNAL).get(number)
        journal = judge.journal_file(self.disk.read_file(path), salt, self.ending, known)
        for at, until in journal.holes:
            text = f"{until - at} bytes of transactions or dead letters cannot be read; no broker starts here"
            self.damage(path, text, at)
        if self.ending.in_order and journal.tail:
            text = f"{journal.tail} bytes at its end cannot be read; it had been applied in full"
            self.damage(path, text, journal.end)
        elif journal.what is not Records.FINE and not journal.holes:
            assert known is not None
            what = "what it held had been applied" if journal.what is Records.APPLIED else "no broker starts here"
            text = f"it cannot be read, although it had been synced up to byte {known.size}; {what}"
            self.damage(path, text, journal.end)
        return journal

    @staticmethod
    def _apply(record: Record, by_id: dict[str, Folder], applied: dict[str, int]) -> None:
        for settled in record.settles:
            folder = by_id.get(settled.queue_id)
            for part in folder.parts if folder is not None else ():
                part.acks = part.acks or part.blank()
                part.acks.settle(settled.offset, settled.count)
        counts = [(a.queue_id, 1) for a in record.appends] + [(r.queue_id, r.batch.count) for r in record.runs]
        for queue_id, count in counts:
            if queue_id in by_id and record.sequence > applied[queue_id]:
                by_id[queue_id].waiting += count

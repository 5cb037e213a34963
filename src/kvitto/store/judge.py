"""What the files of a data directory are worth: the one judge of damage, for a start, for `kvitto check` and for `kvitto salvage`.

It goes by the bytes, by how the last owner ended, and by what the inventory knows (docs/formats.md). It reads and changes nothing itself:
a start carries out its verdicts, `check` reports them, and `salvage` copies what they call readable. Called once for each file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from kvitto.format.layouts import (
    BATCH,
    BATCH_MAGIC,
    FOOTER,
    FOOTER_MAGIC,
    GAP_MAX,
    PREFIX,
    RECORD_MAGIC,
    RESYNC_BYTES,
    SEGMENT_MAGIC,
    SETTLEMENTS_MAGIC,
    u32,
)
from kvitto.store import slot
from kvitto.store.batch import BatchHeader
from kvitto.store.line import Defined, Key, Line, lines
from kvitto.store.record import Record
from kvitto.store.segment import (
    HEADER,
    DamagedSegment,
    Segment,
    created_ms,
    find_batch,
    footer_length,
    footer_position,
    foreign,
    header_is_valid,
    salts,
    valid_at,
)

if TYPE_CHECKING:
    from kvitto.store.inventory import Entry
    from kvitto.store.settlements import Replay
    from kvitto.store.slot import Kept

Read = Callable[[int, int], bytes]
"""Reads bytes of a file. The arguments are position and count."""


@dataclass(frozen=True)
class Ending:
    """How the last owner left the directory.

    `in_order`: it had stopped in order. `power_cut`: the machine has been started since, so that unsynced writes may be lost.
    """

    in_order: bool
    power_cut: bool
    of_backup: bool = False
    """The directory is a backup that no broker has started on. All its files are complete, as they were while a broker ran."""
    owes_flags: bool = False
    """After the last power cut or damage not all settlement logs had been told which messages may have been delivered."""
    upgrading: bool = False
    """The directory has no inventory, and since it was left in order there were only starts that were to make one. Nothing but the end of
    each file tells whether it is whole, so a torn end is damage, although it may be what such a start was writing."""
    synced: bool = False
    """All files in the directory are synced, because this process has been a follower until now, and has synced them itself."""

    @property
    def in_doubt(self) -> bool:
        """Whether any message that waits may have been delivered, whatever the settlement logs say."""
        return self.power_cut or self.owes_flags


class Header(Enum):
    """What the header of a segment is."""

    FINE = "fine"
    SALT = "the copy of the salt is damaged"
    FOREIGN = "of another queue or another place"
    DAMAGED = "damaged, but the salt is known: its messages can be read"
    UNREADABLE = "damaged, and without the salt no message can be told from what is in one"
    NEVER = "there never was a whole one: nobody has been promised anything that is in the file"


@dataclass(frozen=True)
class SegmentHeader:
    """A verdict on a header. `salt` is right if messages can be read. `end` is above every offset that may have been in the file."""

    what: Header
    salt: int = 0
    end: int = 0
    whose: str = ""
    """The queue and the offset that a foreign header names, as part of a message for people."""
    created_ms: int = 0
    """When the segment was made, if the header can be read."""
    promised: bool = True
    """Whether somebody may have been promised what is in the file."""


def segment_header(
    read: Read, size: int, queue_id: str, base: int, ending: Ending, known: Entry | None
) -> SegmentHeader:
    """Judge the header of the segment of this queue that begins at offset `base`."""
    head = read(0, HEADER)
    end = max(base, known.end if known else 0)
    if whose := foreign(head, SEGMENT_MAGIC, queue_id, base):
        return SegmentHeader(Header.FOREIGN, end=end, whose=whose, created_ms=created_ms(head))
    salt, copy = salts(head)
    if header_is_valid(head, SEGMENT_MAGIC):
        what = Header.FINE if salt == copy else Header.SALT
        return SegmentHeader(what, salt, end, created_ms=created_ms(head))
    claimed, synced = claims(read, base)
    # If a power cut before the first sync took the header, nothing in the file had been promised to anybody.
    promised = (size > HEADER and (synced or not ending.power_cut)) or known is not None
    # Zeros are no salt: a peer could have put a batch into a message's body that verifies with them.
    data = read(0, size)
    for found in filter(None, (salt, copy)):
        if find_batch(data, HEADER, found)[0] >= 0:
            return SegmentHeader(Header.DAMAGED, found, end, promised=promised)
    if promised:
        return SegmentHeader(Header.UNREADABLE, end=max(end, claimed))
    return SegmentHeader(Header.NEVER, end=base, promised=False)


def claims(read: Read, base: int) -> tuple[int, bool]:
    """Read what the batches say without verifying them: (end of their offsets, whether any of them had been synced)."""
    at, end, durable = HEADER, base, False
    while True:
        data = read(at, BATCH.size)
        head = BatchHeader(data, 0)
        if not head.length or not end <= head.first <= end + GAP_MAX:
            return end, durable or data.startswith(FOOTER_MAGIC)
        at, end, durable = at + head.length, head.end, durable or head.durable > 0


class End(Enum):
    """What follows the last whole batch of a segment."""

    FINE = "nothing, or a tail that a crash has torn, and that nobody was promised"
    FOOTER = "a footer that is damaged: all messages can be read"
    DAMAGED = "damage before later valid data, or the end of what had been synced"


@dataclass(frozen=True)
class SegmentEnd:
    """A verdict on the batches of a segment and on what follows them."""

    what: End
    words: str = ""
    """What is wrong with the batches or behind them, as a part of a message for people; "" if nothing is."""
    is_cut: bool = False
    """Batches are missing behind the last one that verifies, and they had been written completely."""


def segment_end(
    segment: Segment, data: bytes, ending: Ending, owed: bool, known: Entry | None, is_followed: bool
) -> SegmentEnd:
    """Count what is in a segment without a valid footer from its batches, and judge what follows the last one.

    `data`: the whole file. `owed`: a start has found damage in it before, and had no room for a copy. `is_followed`: a later segment of
    the queue says that it had been synced (`says_synced`). A commit syncs all segments of a queue or none, so all batches of this one had
    been synced too, and none of them is torn. The footer may be, since it is written behind that sync.
    """
    synced, words = known.size if known else 0, ""
    was_complete = ending.in_order or ending.of_backup or ending.upgrading or owed
    try:
        segment.scan(data, was_complete, ending.power_cut and not is_followed, synced)
    except DamagedSegment as damage:
        words = str(damage)
    rest = data[segment.size :]
    is_whole = footer_position(rest) == segment.size
    if is_whole or rest.startswith(FOOTER_MAGIC):
        is_torn = not is_whole and len(rest) < max(footer_length(rest), FOOTER.size)
        if words or (any(rest) and not ending.power_cut and not is_torn):
            return SegmentEnd(End.FOOTER, words)
    is_torn_batch = is_followed and rest.startswith(BATCH_MAGIC)
    if not words and not is_torn_batch:
        return SegmentEnd(End.FINE)
    is_cut = segment.size < synced or (was_complete and bool(rest)) or is_torn_batch
    return SegmentEnd(End.DAMAGED, words or "its end is damaged, although it had been synced", is_cut)


def says_synced(segment: Segment, data: bytes) -> bool:
    """Whether a segment that `segment_end` has judged says that it had been synced: one of its batches was written after that."""
    return any(
        head is not None and head.durable > 0 for _, head, _ in batches(data, segment.size, segment.salt, segment.base)
    )


def batches(data: bytes, size: int, salt: int, base: int) -> Iterator[tuple[int, BatchHeader | None, int]]:
    """Yield (position, header, end) of each readable batch before `size`, in order; for what lies between them the header is None."""
    at, end = HEADER, base
    while at < size:
        head = BatchHeader(data, at)
        if valid_at(data, at, head, salt) and head.first >= end and at + head.length <= size:
            yield at, head, at + head.length
            at, end = at + head.length, head.end
            continue
        until = at
        while True:
            until, _ = find_batch(data, until + 1, salt)
            if until < 0 or until >= size or end <= BatchHeader(data, until).first <= end + GAP_MAX:
                break
        until = size if until < 0 else min(until, size)
        yield at, None, until
        at = until


class Settled(Enum):
    """What the header of a settlement log is."""

    FINE = "fine"
    FOREIGN = "of another queue or another place"
    DAMAGED = "damaged: what the log says can be read"
    NEVER = "it was never whole: nothing that it says was promised"


def settlements_header(
    head: bytes, size: int, queue_id: str, base: int, ending: Ending, known: Entry | None
) -> tuple[Settled, str]:
    """Judge the header of a settlement log of `size` bytes. Returns the verdict, and the place that a foreign header names."""
    if whose := foreign(head, SETTLEMENTS_MAGIC, queue_id, base):
        return Settled.FOREIGN, whose
    salt, copy = salts(head)
    if header_is_valid(head, SETTLEMENTS_MAGIC) and (salt == copy or ending.power_cut):
        return Settled.FINE, ""
    synced = known is not None and known.acks_size > 0
    if (ending.in_order and size) or (size >= HEADER and not ending.power_cut) or synced:
        return Settled.DAMAGED, ""
    return Settled.NEVER, ""


def settlements_are_damaged(replay: Replay, size: int, ending: Ending) -> bool:
    """Whether a settlement log of `size` bytes has lost blocks. `replay` has read those that are left."""
    return replay.damaged or (ending.in_order and size > max(replay.end, HEADER))


# -- the journal -----------------------------------------------------------------------------------------------


class Records(Enum):
    """What a file of the journal is worth."""

    FINE = "all records that anybody was promised can be read; what follows them is a torn tail"
    APPLIED = "bytes cannot be read, but what they held had been applied, since the broker had ended in order"
    DAMAGED = "records that had been synced cannot be read, and may not have been applied: no broker starts"


@dataclass
class JournalFile:
    """A verdict on a file of the journal."""

    what: Records = Records.FINE
    records: list[tuple[int, int, Record]] = field(default_factory=list)
    """(begin, end, record) of all records that can be read, in order, including those behind damage."""
    holes: list[tuple[int, int]] = field(default_factory=list)
    """(begin, end) of damage before later records."""
    end: int = 0
    """Where the last readable record ends."""
    tail: int = 0
    """How many bytes follow `end`, up to the last that is not zero."""


def journal_file(data: bytes, salt: int, ending: Ending, known: Entry | None) -> JournalFile:
    """Judge a file of the journal. `salt`: from its name."""
    found = JournalFile()
    while True:
        decoded = Record.decode(data, found.end, salt)
        if decoded is not None:
            found.records.append((found.end, decoded[1], decoded[0]))
            found.end = decoded[1]
            continue
        later = _later_record(data, found.end, salt, ending.power_cut)
        if later < 0:
            break
        found.holes.append((found.end, later))
        found.end = later
    found.tail = max(len(data.rstrip(b"\0")) - found.end, 0)
    if found.holes:
        found.what = Records.DAMAGED
    elif known is not None and found.end < known.size:
        found.what = Records.APPLIED if ending.in_order else Records.DAMAGED
    elif ending.in_order and found.tail:
        found.what = Records.APPLIED
    return found


def _later_record(data: bytes, position: int, salt: int, power_cut: bool) -> int:
    """Where the first record behind `position` begins, if what is between them is damage and no torn tail; else -1.

    It is damage if a later record says that `position` had been synced, or if there was no power cut.
    """
    at, first, left = position, -1, RESYNC_BYTES
    while (at := data.find(RECORD_MAGIC, at + 1)) >= 0 and left > 0:
        left -= min(u32(data, at + PREFIX.at["length"]), len(data) - at)
        decoded = Record.decode(data, at, salt)
        if decoded is not None:
            first = at if first < 0 else first
            if decoded[0].durable > position or not power_cut:
                return first
    return -1


def records_are_missing(last: int, first: int, floor: int, ending: Ending) -> bool:
    """Whether there were records between two files of the journal: they were at the end of the first one, and no broker starts.

    `last`: the last sequence in the files before. `first`: the first one in the next file. `floor`: the highest that a queue has applied.
    """
    return first > max(last, floor) + 1 and not ending.power_cut


# -- the definitions -------------------------------------------------------------------------------------------


class Lines(Enum):
    """What the definitions log is worth."""

    FINE = "every line can be read"
    TORN = "the lines at its end that cannot be read had never been synced: nobody was promised them"
    DAMAGED = "lines that had been synced cannot be read: no broker starts"
    SILENT = "it defines nothing, although there are directories of queues: no broker starts"


@dataclass
class DefinitionsLog:
    """A verdict on the definitions log."""

    what: Lines
    lines: list[Line]
    """All lines, including those behind damage."""
    end: int
    """Where the first line begins that cannot be read: a start goes on from here."""
    synced: int
    """How many bytes are known to have been synced."""
    said: Defined
    """All that the lines before `end` have ever defined, including what a later line deleted."""
    may_lack: bool
    """Lines may be missing that had been synced, so a queue that no line tells of may have been defined once."""


def definitions_log(data: bytes, path: str, in_order: bool, known: int, has_queues: bool) -> DefinitionsLog:
    """Judge the definitions log, b"" if it is missing.

    `known`: so many bytes had been synced. `has_queues`: there are directories of queues.

    Raises StoreError, which names `path`, for a line that verifies and that this version does not understand.
    """
    found = list(lines(data, path))
    synced = max([known, *(change["durable"] for _, _, change in found if change is not None)])
    end = next((at for at, _, change in found if change is None), len(data))
    said = [
        (change["kind"], tuple(change["key"]), change["value"])
        for at, _, change in found
        if change is not None and at < end and change["op"] == "put"
    ]
    if end < synced or (in_order and end < len(data)):
        what = Lines.DAMAGED
    elif not said and has_queues:
        what = Lines.SILENT
    else:
        what = Lines.TORN if end < len(data) else Lines.FINE
    return DefinitionsLog(what, found, end, synced, said, end < len(data) or in_order)


def defined_by(some: Iterable[Line]) -> dict[tuple[str, Key], Any]:
    """Return the definitions that these lines leave, in the order in which each was first put. Unreadable lines are skipped."""
    entries: dict[tuple[str, Key], Any] = {}
    for _, _, change in some:
        if change is not None:
            entry = (change["kind"], tuple(change["key"]))
            if change["op"] == "put":
                entries[entry] = change["value"]
            else:
                entries.pop(entry, None)
    return entries


IN_VHOSTS = (
    "vhost",
    "permission",
    "topic_permission",
    "parameter",
    "policy",
    "operator_policy",
    "exchange",
    "queue",
    "binding",
    "stage",
    "writer",
    "fault",
)
"""The kinds of definitions that belong to a virtual host. The first part of their keys is its name."""
DELETING = "deleting"
"""The field of the value of a virtual host, queue or exchange that says that its deletion has begun."""


def split_going(defined: Defined) -> tuple[Defined, Defined]:
    """Return the definitions that stay, and those that the next start deletes, in the order in which it deletes them.

    The latter are virtual hosts, queues and exchanges whose deletion has begun, with all that belongs to them. They themselves come last,
    so that a start that is cut short leaves the rest to the one after it.
    """
    marked = {(kind, key) for kind, key, value in defined if value.get(DELETING)}
    if not marked:
        return defined, []
    stay: Defined = []
    gone: Defined = []
    for each in defined:
        (gone if _goes(each[0], each[1], marked) else stay).append(each)
    return stay, sorted(gone, key=lambda each: (each[:2] in marked, each[0] == "vhost"))


def _goes(kind: str, key: Key, marked: set[tuple[str, Key]]) -> bool:
    """Whether a definition is marked, or belongs to something that is."""
    if (kind, key) in marked or (kind in IN_VHOSTS and ("vhost", key[:1]) in marked):
        return True
    if kind != "binding":
        return False
    vhost, source, kind_of_dest, dest = key[:4]
    return ("exchange", (vhost, source)) in marked or (kind_of_dest, (vhost, dest)) in marked


def going(gone: Defined) -> list[str]:
    """Return what was being deleted, as words for people, of the definitions that the next start deletes."""
    return [
        f"vhost '{key[0]}'" if kind == "vhost" else f"{kind} '{key[1]}' in vhost '{key[0]}'"
        for kind, key, value in gone
        if value.get(DELETING)
    ]


# -- a stream's offsets ----------------------------------------------------------------------------------------


class Slots(Enum):
    """What the two slots of a consumer tag are worth. The values are messages for people."""

    FINE = ""
    TORN = "a slot that was being written is torn; the other one has what was there before, or nothing was promised"
    OLDER = "how far a named consumer has read cannot be read: it falls back to what was written before"
    LOST = "how far a named consumer has read cannot be read: it starts over"


@dataclass
class Pair:
    """A verdict on the two slots of a consumer tag."""

    number: int
    what: Slots
    newest: tuple[str, Kept] | None
    """The tag and what is known of it; None if neither slot can be read, or both are empty."""
    readable: list[tuple[int, bytes]]
    """(position, content) of the slots that can be read."""

    @property
    def is_damaged(self) -> bool:
        """Whether something that had been promised cannot be read."""
        return self.what in (Slots.OLDER, Slots.LOST)

    @property
    def position(self) -> int:
        """Where the first of the two is in the file."""
        return 2 * slot.SLOT * self.number


def offsets(data: bytes, queue_id: str, ending: Ending, known: Entry | None, old: bool) -> list[Pair]:
    """Judge the `offsets` of a stream. `old`: the directory has the format before this one, whose checksums have no seed."""
    size, seed = 2 * slot.SLOT, slot.seed_of(queue_id)
    pairs = []
    for number in range(-(-len(data) // size)):
        slots = slot.slots_of(data, number)
        found = [slot.entry(number, content, seed, old) for content in slots]
        valid = [entry for entry in found if entry is not None]
        bad = [k for k in (0, 1) if any(slots[k]) and found[k] is None]
        # Each slot counts by itself: the second one of a tag may be new while the first one has been synced.
        synced = (known.size if known else 0) // slot.SLOT
        was_synced = ending.in_order or any(2 * number + k < synced for k in bad)
        if not bad:
            what = Slots.FINE
        elif (ending.power_cut or not was_synced) and (valid or not all(map(any, slots))):
            what = Slots.TORN
        else:
            what = Slots.OLDER if valid else Slots.LOST
        readable = [(size * number + slot.SLOT * k, slots[k]) for k in (0, 1) if found[k] is not None]
        newest = max(valid, key=lambda entry: entry[1].sequence, default=None)
        pairs.append(Pair(number, what, newest, readable))
    return pairs

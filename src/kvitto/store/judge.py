"""What a segment and its settlement log are worth: the one judge of damage, for a start, for `kvitto check` and for `kvitto salvage`.

It goes by the bytes, by how the last owner ended, and by what the inventory knows (docs/formats.md, Recovery). It changes nothing: a start
carries out what it says, and `check` tells it. Called once for each file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from kvitto.format.layouts import BATCH
from kvitto.store.batch import BatchHeader
from kvitto.store.segment import (
    ACK_MAGIC,
    FOOTER_FIXED,
    FOOTER_MAGIC,
    GAP_MAX,
    HEADER,
    MAGIC,
    DamagedSegment,
    Segment,
    created_ms,
    find_batch,
    foreign,
    header_is_valid,
    salts,
)

if TYPE_CHECKING:
    from kvitto.store.inventory import Entry
    from kvitto.store.settlements import Replay

Read = Callable[[int, int], bytes]
"""Reads bytes of a file: position, count."""


@dataclass(frozen=True)
class Ending:
    """How the last owner left the directory.

    `in_order`: it had come to its end. `intact`: it had, or only starts that were cut short have been there since: an end that is torn is
    damage then. `doubt`: the machine has been started since, and its page cache is gone.
    """

    in_order: bool
    intact: bool
    doubt: bool


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
    """A verdict on a header. `salt` is right if messages can be read. `end` is above each offset in the file that anything tells of."""

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
    if whose := foreign(head, MAGIC, queue_id, base):
        return SegmentHeader(Header.FOREIGN, end=end, whose=whose, created_ms=created_ms(head))
    salt, copy = salts(head)
    if header_is_valid(head, MAGIC):
        what = Header.FINE if salt == copy else Header.SALT
        return SegmentHeader(what, salt, end, created_ms=created_ms(head))
    claimed, synced = claims(read, base)
    # If a power cut before the first sync took the header, nothing in the file had been promised to anybody.
    promised = (size > HEADER and (synced or not ending.doubt)) or known is not None
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


def segment_end(part: Segment, data: bytes, ending: Ending, owed: bool, known: Entry | None) -> tuple[End, str]:
    """Count what is in a segment without a valid footer from its batches, and judge what follows the last one.

    `data`: the whole file. `owed`: a start has found damage in it before, and had no room for a copy. Returns the verdict, and in words
    what is wrong with the batches or behind them, "" if nothing is.
    """
    synced, words = known.size if known else 0, ""
    try:
        part.scan(data, ending.intact or owed, ending.doubt, synced)
    except DamagedSegment as damage:
        words = str(damage)
    rest = data[part.size :]
    is_whole = int.from_bytes(rest[-8:], "little") == part.size
    if is_whole or rest.startswith(FOOTER_MAGIC):
        is_torn = not is_whole and len(rest) < max(int.from_bytes(rest[8:12], "little"), FOOTER_FIXED)
        if words or (any(rest) and not ending.doubt and not is_torn):
            return End.FOOTER, words
    return (End.DAMAGED, words) if words else (End.FINE, "")


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
    if whose := foreign(head, ACK_MAGIC, queue_id, base):
        return Settled.FOREIGN, whose
    salt, copy = salts(head)
    if header_is_valid(head, ACK_MAGIC) and (salt == copy or ending.doubt):
        return Settled.FINE, ""
    synced = known is not None and known.acks_size > 0
    if (ending.in_order and size) or (size >= HEADER and not ending.doubt) or synced:
        return Settled.DAMAGED, ""
    return Settled.NEVER, ""


def settlements_are_damaged(replay: Replay, size: int, ending: Ending) -> bool:
    """Whether a settlement log of `size` bytes has lost blocks. `replay` has read those that are left."""
    return replay.damaged or (ending.in_order and size > max(replay.end, HEADER))

"""One segment with its settlement log, read from end to end: what is whole, what is not, and what each message came to.

Judges as a start would (docs/formats.md, Recovery), and reads more than it: every batch, also of sealed segments. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvitto.store import paths, segment
from kvitto.store.batch import BatchHeader
from kvitto.store.disk import Disk
from kvitto.store.inventory import Entry
from kvitto.store.segment import (
    FOOTER_FIXED,
    FOOTER_MAGIC,
    GAP_MAX,
    HEADER,
    DamagedSegment,
    Segment,
    find_batch,
    valid_at,
)
from kvitto.store.settlements import Replay

NEAR = 1 << 20
"""Offsets that a batch which cannot be verified is believed to leave out."""


@dataclass(frozen=True)
class Ending:
    """How the last owner left the directory, as `Store` has it."""

    in_order: bool
    intact: bool
    doubt: bool


SETTLED = Ending(True, True, False)
"""What is in an archive was whole and durable before it came there, however the owner has ended."""


@dataclass(frozen=True)
class Finding:
    """Damage at a place: `at` the byte of the file, `offsets` first and end of the messages that it costs; None: not known."""

    path: str
    text: str
    at: int | None = None
    offsets: tuple[int, int] | None = None

    def __str__(self) -> str:
        where = self.path if self.at is None else f"{self.path}, byte {self.at}"
        return f"{where}: {self.text}"


@dataclass
class Hole:
    """Bytes of a segment that no batch can be read from, and the offsets that are not in any other; `more`: or later ones."""

    at: int
    until: int
    first: int
    end: int
    more: bool = False


class Blocks(Replay):
    """Remembers where in the settlement log the valid blocks are: `good`, as (begin, end) in bytes."""

    def __init__(self, base: int, span: int, gaps: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__(base, span, gaps)
        self.good: list[tuple[int, int]] = []

    def _apply(self, data: bytes, at: int, length: int) -> None:
        if self.good and self.good[-1][1] == at:
            self.good[-1] = (self.good[-1][0], at + length)
        else:
            self.good.append((at, at + length))
        super()._apply(data, at, length)


@dataclass
class Part:
    """A segment. `readable`: its salt is known. `intact`: its bytes are as they were written, but for a torn tail.

    `stored`: runs (start, count) of offsets that are in whole batches. `synced`: something in it says that it had been. `tail`: bytes
    behind the last batch that are not zeros.
    """

    directory: str
    base: int
    segment: Segment
    readable: bool = True
    intact: bool = True
    acks_intact: bool = True
    synced: bool = False
    created_ms: int = 0
    tail: int = 0
    stored: list[tuple[int, int]] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    acks: Blocks | None = None

    @property
    def path(self) -> str:
        return paths.segment(self.directory, self.base)

    @property
    def end(self) -> int:
        """Above every offset that was in it, as far as is known."""
        return max([self.segment.end] + [hole.end for hole in self.holes])

    def blank(self) -> Blocks:
        """Nothing in it is settled; what is in no batch and not lost is not counted."""
        known = sorted([*self.stored, *((hole.first, hole.end - hole.first) for hole in self.holes)])
        gaps, at = [], self.base
        for start, count in (*known, (self.end, 0)):
            if start > at:
                gaps.append((at, start - at))
            at = max(at, start + count)
        return Blocks(self.base, self.end - self.base, gaps)

    def books(self) -> tuple[int, int, int]:
        """(ready, settled, damaged): messages that wait, that are settled and still here, and that cannot be read."""
        waiting = (self.acks or self.blank()).unsettled()
        ready = overlap(waiting, self.stored)
        damaged = overlap(waiting, [(hole.first, hole.end - hole.first) for hole in self.holes])
        return ready, sum(count for _, count in self.stored) - ready, damaged


def overlap(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> int:
    """How many offsets are in both of two ordered lists of runs."""
    total, i, k = 0, 0, 0
    while i < len(a) and k < len(b):
        end_a, end_b = a[i][0] + a[i][1], b[k][0] + b[k][1]
        total += max(0, min(end_a, end_b) - max(a[i][0], b[k][0]))
        if end_a <= end_b:
            i += 1
        else:
            k += 1
    return total


def examine(
    disk: Disk,
    directory: str,
    queue_id: str,
    base: int,
    ending: Ending,
    owed: bool,
    after: int | None,
    known: Entry | None,
) -> tuple[Part, list[Finding]]:
    """Read a segment. `owed`: damage had been found in it before, and there is no copy yet.
    `after`: where the next segment begins. `known`: what the inventory says.
    """
    part = Part(directory, base, Segment(base))
    found: list[Finding] = []
    file = part.segment.file = disk.open(part.path)
    try:
        data = file.read_at(0, file.size())
        found += _header(part, data, queue_id, ending, after, known)
        if part.readable:
            found += _messages(part, data, ending, owed, after, known.size if known else 0)
    finally:
        file.close()
        part.segment.file = None
    return part, found


def _header(
    part: Part, data: bytes, queue_id: str, ending: Ending, after: int | None, known: Entry | None
) -> list[Finding]:
    head = data[:HEADER]
    part.created_ms = segment.created_ms(head)
    if whose := segment.foreign(head, segment.MAGIC, queue_id, part.base):
        return [_foreign(part, data, whose, known, after)]
    if segment.header_is_valid(data, segment.MAGIC):
        part.segment.salt = segment.salts(head)[0]
        return _name(part, part.path, head, queue_id, ending.doubt)
    end, synced = part.segment.claims()
    part.intact, part.created_ms = False, 0
    for salt in segment.salts(head):
        if find_batch(data, HEADER, salt)[0] >= 0:
            part.segment.salt = salt
            break
    else:
        part.readable = False
    promised = (len(data) > HEADER and (synced or not ending.doubt)) or known is not None
    if not promised and not (data and ending.in_order):
        return []  # a start that was cut short, or a full disk
    if part.readable:
        return [Finding(part.path, "the segment's header is damaged; its messages can be read", 0)]
    end = max(end, known.end if known else 0) if after is None else after
    part.holes.append(Hole(HEADER, len(data), part.base, end))
    if not data:
        return [
            Finding(
                part.path, f"it is empty: what waited of offsets {part.base} to {end - 1} is lost", 0, (part.base, end)
            )
        ]
    text = (
        f"the segment's header is damaged, and without it offsets {part.base} to {end - 1}, as they say, cannot be read"
    )
    return [Finding(part.path, text, 0, (part.base, end))]


def _foreign(part: Part, data: bytes, whose: str, known: Entry | None, after: int | None) -> Finding:
    """A file that lies in another place than it was written to: nothing of it is this queue's."""
    part.readable = part.intact = False
    end = max(part.base, known.end if known else 0) if after is None else after
    part.holes.append(Hole(HEADER, len(data), part.base, end))
    return Finding(part.path, f"its header says that it is {whose}", 16, (part.base, end))


def _name(part: Part, path: str, head: bytes, queue_id: str, doubt: bool) -> list[Finding]:
    """A file that lies in another place than it was written to, and what the header's checksum does not cover."""
    owner, base = head[16:32].hex(), int.from_bytes(head[32:40], "little")
    first, copy = segment.salts(head)
    if (owner, base, first) == (queue_id, part.base, copy):
        return []
    part.intact = False
    if first != copy:  # a header that had never been synced may be torn there
        return (
            [] if doubt else [Finding(path, "the copy of the salt in its header is damaged; all else can be read", 64)]
        )
    return [Finding(path, f"its header says that it is {base:020d} of queue {owner}", 16)]


def _messages(part: Part, data: bytes, ending: Ending, owed: bool, after: int | None, known: int) -> list[Finding]:
    own = part.segment
    found: list[Finding] = []
    sealed = own.read_footer()
    damaged = False
    if not sealed:
        try:
            own.scan(ending.intact or owed, ending.doubt, known)
        except DamagedSegment:
            damaged = True
    _walk(part, data)
    part.synced |= sealed
    rest = data[own.size :] if not sealed else b""
    part.tail = len(rest.rstrip(b"\0"))
    is_whole = int.from_bytes(rest[-8:], "little") == own.size
    is_footer = is_whole or rest.startswith(FOOTER_MAGIC)
    is_torn = is_footer and not is_whole and len(rest) < max(int.from_bytes(rest[8:12], "little"), FOOTER_FIXED)
    if is_footer and (damaged or (part.tail and not ending.doubt and not is_torn)):
        part.intact, part.tail = False, 0
        found.append(Finding(part.path, "its footer is damaged; its messages can be read", own.size))
    elif damaged and (own.size < known or (rest and (ending.intact or owed))):
        lose_tail(part, data, after)
    for hole in part.holes:
        found.append(Finding(part.path, _lost(hole), hole.at, (hole.first, hole.end)))
    if sealed and not part.holes:
        stored = sum(count for _, count in part.stored)
        if stored != own.count:
            found.append(Finding(part.path, f"its footer counts {own.count} messages, its batches {stored}"))
            part.intact = False
    if owed:
        found.append(Finding(part.path, "a start has found damage in it, and had no room for a copy"))
    return found


def _lost(hole: Hole) -> str:
    text = f"{hole.until - hole.at} bytes cannot be read"
    if hole.end == hole.first:
        return f"{text}, how many messages is not known"
    text += f", and with them offsets {hole.first} to {hole.end - 1}"
    return f"{text}, or more" if hole.more else text


def lose_tail(part: Part, data: bytes, after: int | None) -> Hole:
    """What follows the last batch that verifies was there once, and cannot be read. `after`: where the next segment begins."""
    own = part.segment
    first = end = own.end
    at = own.size
    while (head := BatchHeader(data, at)).length:
        near = end <= head.first <= end + NEAR
        at, end = at + head.length, (head.first if near else end) + head.count
    end = end if after is None else max(after, first)
    part.holes.append(Hole(own.size, own.size + max(part.tail, 1), first, end, after is None))
    part.intact = False
    return part.holes[-1]


def _walk(part: Part, data: bytes) -> None:
    """Fill `stored` and `holes` from the batches up to where the segment ends."""
    end = part.base
    for at, head, until in batches(data, part.segment.size, part.segment.salt, part.base):
        if head is None:
            part.intact = False
            part.holes.append(Hole(at, until, end, end))
            continue
        part.synced |= head.durable > 0
        if part.holes and part.holes[-1].until == at:
            part.holes[-1].end = head.first
        if part.stored and sum(part.stored[-1]) == head.first:
            part.stored[-1] = (part.stored[-1][0], part.stored[-1][1] + head.count)
        else:
            part.stored.append((head.first, head.count))
        end = head.end
    if part.holes and part.holes[-1].until == part.segment.size:
        part.holes[-1].end = part.segment.end


def batches(data: bytes, size: int, salt: int, base: int) -> Iterator[tuple[int, BatchHeader | None, int]]:
    """(position, header, end) of every whole batch before `size` in order, and with None as header what lies between them."""
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


def settle(disk: Disk, part: Part, queue_id: str, ending: Ending, known: Entry | None) -> list[Finding]:
    """Read a segment's settlement log into `part.acks`."""
    path = paths.settlements(part.directory, part.base)
    data = disk.read_file(path)
    replay = part.acks = part.blank()
    acks_size = known.acks_size if known else 0
    found: list[Finding] = []
    if whose := segment.foreign(data[:HEADER], segment.ACK_MAGIC, queue_id, part.base):
        part.acks_intact = False
        return [Finding(path, f"its header says that it is {whose}: what its own had settled comes again, flagged", 16)]
    replay.run(data, HEADER, ending.doubt, acks_size)
    if not segment.header_is_valid(data, segment.ACK_MAGIC):
        if (ending.in_order and data) or (len(data) >= HEADER and not ending.doubt) or acks_size:
            found.append(Finding(path, "the settlement log's header is damaged; what it says can be read", 0))
        part.acks_intact = False
    else:
        intact, part.intact = part.intact, True
        found += _name(part, path, data[:HEADER], queue_id, ending.doubt)
        part.acks_intact, part.intact = part.intact, intact
    if replay.damaged or (ending.in_order and len(data) > max(replay.end, HEADER)):
        part.acks_intact = False
        if max(replay.end, HEADER) < acks_size and len(data) <= max(replay.end, HEADER):
            found.append(
                Finding(
                    path,
                    f"it ends here, and had {acks_size} bytes: what it had settled comes again, flagged",
                    len(data),
                )
            )
        for at, until in gaps(
            replay.good, len(data) if ending.in_order or max(replay.end, HEADER) < acks_size else replay.end
        ):
            text = f"{until - at} bytes of settlements cannot be read: what they had settled comes again, flagged"
            found.append(Finding(path, text, at))
    return found


def gaps(good: list[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """What lies between the good ranges of a file whose header is over, up to `end`."""
    edges = [HEADER, *(edge for pair in good for edge in pair), end]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]

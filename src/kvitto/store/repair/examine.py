"""Reads one segment and its settlement log completely: what can be read, what is damaged, and which messages are settled.

The verdicts are those of a start (`store/judge.py`), but it reads more than a start: every batch, also those of sealed segments. It changes
nothing. Called by `survey.py` for each segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvitto.store import judge, paths
from kvitto.store.batch import BatchHeader
from kvitto.store.disk import Disk
from kvitto.store.inventory import Entry
from kvitto.store.judge import End, Ending, Header, SegmentEnd, Settled
from kvitto.store.segment import HEADER, Segment
from kvitto.store.settlements import Replay

NEAR = 1 << 20
"""An unverified batch is believed to begin at most this many offsets behind the one before it."""


ARCHIVED = Ending(True, False)
"""Files in an archive were complete and durable before they came there, however the owner ended."""


@dataclass(frozen=True)
class Finding:
    """A damage. `at`: the byte of the file. `offsets`: the first and the end of the messages that it costs. None: not known."""

    path: str
    text: str
    at: int | None = None
    offsets: tuple[int, int] | None = None

    def __str__(self) -> str:
        where = self.path if self.at is None else f"{self.path}, byte {self.at}"
        return f"{where}: {self.text}"


@dataclass
class Hole:
    """Bytes at..until of a segment that hold no readable batch, and the offsets first..end that are lost with them.

    `more`: later offsets may be lost too.
    """

    at: int
    until: int
    first: int
    end: int
    more: bool = False


class Blocks(Replay):
    """A replay that also remembers where the valid blocks are: `good`, as (begin, end) in bytes."""

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
    """What has been found out about a segment. `readable`: its salt is known. `intact`: nothing is damaged; its tail may be torn.

    `stored`: runs (start, count) of the offsets in readable batches. `synced`: something in the file says that it had been synced.
    `tail`: how many bytes follow the last batch, up to the last that is not zero.
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
        """The end of the offsets that were in it, as far as is known."""
        return max([self.segment.end] + [hole.end for hole in self.holes])

    def blank(self) -> Blocks:
        """Return a replay in which nothing is settled. It leaves out offsets that are neither stored nor lost."""
        known = sorted([*self.stored, *((hole.first, hole.end - hole.first) for hole in self.holes)])
        gaps, at = [], self.base
        for start, count in (*known, (self.end, 0)):
            if start > at:
                gaps.append((at, start - at))
            at = max(at, start + count)
        return Blocks(self.base, self.end - self.base, gaps)

    def counts(self) -> tuple[int, int, int]:
        """Count messages: (those that wait, those that are settled and still stored, those that cannot be read)."""
        waiting = (self.acks or self.blank()).unsettled()
        ready = overlap(waiting, self.stored)
        damaged = overlap(waiting, [(hole.first, hole.end - hole.first) for hole in self.holes])
        return ready, sum(count for _, count in self.stored) - ready, damaged


def overlap(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> int:
    """Return how many offsets are in both of two ordered lists of runs (start, count)."""
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
    is_followed: bool,
) -> tuple[Part, list[Finding]]:
    """Read a segment. Returns what is in it, and the damage.

    `owed`: a start has found damage in it and had no room for a copy. `after`: the offset at which the next segment begins. `known`: what
    the inventory says of it. `is_followed`: a later segment says that it had been synced.
    """
    part = Part(directory, base, Segment(base))
    found: list[Finding] = []
    file = part.segment.file = disk.open(part.path)
    try:
        data = file.read_at(0, file.size())
        found += _header(part, data, queue_id, ending, after, known)
        if part.readable:
            found += _messages(part, data, ending, owed, after, known, is_followed)
    finally:
        file.close()
        part.segment.file = None
    return part, found


def _header(
    part: Part, data: bytes, queue_id: str, ending: Ending, after: int | None, known: Entry | None
) -> list[Finding]:
    verdict = judge.segment_header(lambda at, n: data[at : at + n], len(data), queue_id, part.base, ending, known)
    what, end = verdict.what, verdict.end if after is None else after
    part.segment.salt = verdict.salt
    part.created_ms = verdict.created_ms
    part.intact = what is Header.FINE
    if what is Header.FINE:
        return []
    if what is Header.SALT:  # a power cut may have torn a header that had never been synced
        text = "the copy of the salt in its header is damaged; all else can be read"
        return [] if ending.power_cut else [Finding(part.path, text, 64)]
    if what is Header.DAMAGED:
        text = "the segment's header is damaged; its messages can be read"
        return [Finding(part.path, text, 0)] if verdict.promised else []
    part.readable = False
    if what is Header.NEVER:
        return []  # a crash or a full disk has interrupted its making
    part.holes.append(Hole(HEADER, len(data), part.base, end))
    if what is Header.FOREIGN:  # nothing in it belongs to this queue
        return [Finding(part.path, f"its header says that it is {verdict.whose}", 16, (part.base, end))]
    lost = f"offsets {part.base} to {end - 1}"
    if data:
        text = f"the segment's header is damaged, and without it {lost}, as they say, cannot be read"
    else:
        text = f"it is empty: what waited of {lost} is lost"
    return [Finding(part.path, text, 0, (part.base, end))]


def _messages(
    part: Part, data: bytes, ending: Ending, owed: bool, after: int | None, known: Entry | None, is_followed: bool
) -> list[Finding]:
    own = part.segment
    found: list[Finding] = []
    sealed = own.read_footer()
    verdict = SegmentEnd(End.FINE) if sealed else judge.segment_end(own, data, ending, owed, known, is_followed)
    _walk(part, data)
    part.synced = sealed or judge.says_synced(own, data)
    rest = b"" if sealed else data[own.size :]
    part.tail = len(rest.rstrip(b"\0"))
    if verdict.what is End.FOOTER:
        part.intact, part.tail = False, 0
        found.append(Finding(part.path, "its footer is damaged; its messages can be read", own.size))
    elif verdict.is_cut:
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
    """Note as a hole that the batches behind the last readable one are lost. `after`: the offset at which the next segment begins."""
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
    """Fill `stored` and `holes` from the batches before the end of the segment."""
    end = part.base
    for at, head, until in judge.batches(data, part.segment.size, part.segment.salt, part.base):
        if head is None:
            part.intact = False
            part.holes.append(Hole(at, until, end, end))
            continue
        if part.holes and part.holes[-1].until == at:
            part.holes[-1].end = head.first
        if part.stored and sum(part.stored[-1]) == head.first:
            part.stored[-1] = (part.stored[-1][0], part.stored[-1][1] + head.count)
        else:
            part.stored.append((head.first, head.count))
        end = head.end
    if part.holes and part.holes[-1].until == part.segment.size:
        part.holes[-1].end = part.segment.end


def settle(disk: Disk, part: Part, queue_id: str, ending: Ending, known: Entry | None) -> list[Finding]:
    """Read a segment's settlement log into `part.acks`."""
    path = paths.settlements(part.directory, part.base)
    data = disk.read_file(path)
    replay = part.acks = part.blank()
    acks_size = known.acks_size if known else 0
    found: list[Finding] = []
    what, whose = judge.settlements_header(data[:HEADER], len(data), queue_id, part.base, ending, known)
    part.acks_intact = what is Settled.FINE
    if what is Settled.FOREIGN:
        return [Finding(path, f"its header says that it is {whose}: what its own had settled comes again, flagged", 16)]
    if what is Settled.DAMAGED:
        found.append(Finding(path, "the settlement log's header is damaged; what it says can be read", 0))
    replay.run(data, HEADER, ending.power_cut, acks_size)
    if judge.settlements_are_damaged(replay, len(data), ending):
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
    """Return what lies between the good ranges of a file, from the end of its header up to `end`."""
    edges = [HEADER, *(edge for pair in good for edge in pair), end]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]

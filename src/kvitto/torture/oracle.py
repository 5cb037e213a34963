"""The oracle of the harness, and its journal: it records all promises and all deliveries, and finds the contradictions.

A message is (flow, number). Its body begins with (flow, session of the publisher, number). The numbers of a flow
increase by one and are never used twice. Marks are a byte per number, and on the consumers' side a byte per number and
queue; one thread writes each array. Wrong deliveries are counted at once. Missing ones are found by `judge`, while no
client is active. Clients of `load.py` call the rest, `run.py` calls `judge`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import lt, sub
from pathlib import Path
from struct import Struct

from kvitto.client import Batch

HEAD = Struct(">IIQ")
WORDS = Struct(">QQ")
"""The same bytes as two numbers: (flow, session) and number."""
FLOW_SHIFT, SESSION_MASK = 32, (1 << 32) - 1
LONG_EVERY, LONG_BYTES = 64, 5_000
HUGE_EVERY, HUGE_BYTES = 4096, 200_000
"""Most bodies have HEAD only; some need more than one page, few more than one frame."""
PATTERN = bytes(range(251)) * (HUGE_BYTES // 251 + 1)

CONFIRMED, REFUSED, NEVER = 1, 2, 4
"""Marks of a publish: acked; nacked; rolled back (or its transaction was given up before the commit)."""
SEEN, ACKED, SAFE, REJECTED, REQUEUED = 1, 2, 4, 8, 16
"""Marks of a copy in a queue: delivered; ack or reject sent; known to be stored by the broker; it was a reject; requeued once."""
KEPT_BY = 1 << 14
"""Numbers are written to the journal, and synced, in runs of this length before the first of them is published."""
SAMPLES = 10_000
"""The maximum number of ids that are stored for each kind of finding."""

Message = tuple[int, int]
"""(flow, number)."""
Item = tuple[int, int, int]
"""A delivery: (delivery tag, flow, number)."""


def padding(number: int) -> int:
    """Return the bytes behind the head of that message's body."""
    if number % HUGE_EVERY == HUGE_EVERY - 1:
        return HUGE_BYTES
    return LONG_BYTES if number % LONG_EVERY == LONG_EVERY - 1 else 0


def body(flow: int, session: int, number: int) -> bytes:
    return HEAD.pack(flow, session, number) + PATTERN[: padding(number)]


class Journal:
    """A text file of promises, one line each: what happened, to which flow or queue, which numbers.

    `intend` is synced before a number is used. The other lines are evidence: they are written at once, and synced with
    the next `intend`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, text: str, *, sync: bool = False) -> None:
        with self._lock:
            if self._fd >= 0:
                os.write(self._fd, text.encode())
                if sync:
                    os.fdatasync(self._fd)

    def close(self) -> None:
        with self._lock:
            os.fdatasync(self._fd)
            os.close(self._fd)
            self._fd = -1


class Findings:
    """The number of findings of each kind, with the first ids."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.samples: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def add(self, kind: str, what: str, count: int = 1) -> None:
        with self._lock:
            self.counts[kind] = self.counts.get(kind, 0) + count
            kept = self.samples.setdefault(kind, [])
            if len(kept) < SAMPLES:
                kept.append(what)

    def __getitem__(self, kind: str) -> int:
        return self.counts.get(kind, 0)

    def write(self, path: Path, kinds: Iterable[str]) -> None:
        """Write one line for each id."""
        lines = [f"{kind}: {text}\n" for kind in kinds for text in self.samples.get(kind, ())]
        path.write_text("".join(lines))


class Terms:
    """Which node has confirmed what, to notice two nodes that both confirm.

    A node that leads no more closes its connections. So if another node confirms a message that was published after a connection was
    made, this connection's node has been deposed, and may confirm nothing that is published afterwards. Only what is published to a node
    that says that it leads counts: one that follows passes its clients on, and it is the leader that confirms then.
    """

    def __init__(self, leads: Callable[[str], bool] = lambda node: True) -> None:
        """`leads` returns whether a node says that it leads."""
        self.leads = leads
        self._proofs: dict[str, float] = {}
        """For each node when the last message was published that it has confirmed."""
        self._lock = threading.Lock()

    def confirmed(self, node: str, published_at: float) -> None:
        with self._lock:
            self._proofs[node] = max(published_at, self._proofs.get(node, 0.0))

    def deposed(self, node: str, since: float) -> bool:
        """Return whether another node is known to have led after that time."""
        with self._lock:
            return any(at > since for other, at in self._proofs.items() if other != node)


class Flow:
    """A sequence of numbered messages. `routes`: message n goes to one of them in turn: (exchange, its queues)."""

    def __init__(
        self, number: int, name: str, routes: Sequence[tuple[str, tuple[str, ...]]], group: int, journal: Journal
    ) -> None:
        self.number = number
        self.name = name
        self.routes = tuple(routes)
        self.group = group
        """This many consecutive messages are one transaction; 1 means none."""
        self.next = 0
        self.session = 0
        self.marks = bytearray()
        self.judged = 0
        self.confirmed = 0
        self._intended = 0
        self._journal = journal

    def take(self, count: int) -> int:
        """Return the first of `count` new numbers, after the journal has them."""
        first = self.next
        while first + count > self._intended:
            self._journal.write(f"intend {self.name} {self._intended} {self._intended + KEPT_BY}\n", sync=True)
            self._intended += KEPT_BY
        self.marks += bytes(count)
        self.next = first + count
        return first

    def mark(self, first: int, end: int, mark: int) -> None:
        """Mark the numbers first..end-1 as confirmed, refused or given up."""
        self.marks[first:end] = bytes((mark,)) * (end - first)
        if mark == CONFIRMED:
            self.confirmed += end - first
        self._journal.write(f"{PUBLISH_WORDS[mark]} {self.name} {first} {end}\n")


PUBLISH_WORDS = {CONFIRMED: "confirmed", REFUSED: "refused", NEVER: "never"}


class Ledger:
    """The copies in one queue: which were delivered to its consumers and what the consumers did. For one thread at a time."""

    def __init__(self, queue: str, oracle: Oracle, *, ordered: bool = True) -> None:
        self.queue = queue
        self.oracle = oracle
        self.ordered = ordered
        """Whether messages arrive in the order of their publishing. Dead letters do not."""
        self.marks = [bytearray() for _ in oracle.flows]
        self.deliveries = 0
        self.first_deliveries = 0
        self.unread = 0
        """How many messages may be flagged although they were never seen: those that were sent and that no client has read."""

    def deliver(self, batch: Batch, last: dict[int, int]) -> list[Item]:
        """Record a batch. `last` belongs to the consuming channel: the last number by (flow, publisher's session)."""
        heads = self._heads(batch)
        flags = batch.flags.view()
        items: list[Item] = [
            (tag, key >> FLOW_SHIFT, n) for tag, (key, n) in zip(batch.delivery_tags(), heads, strict=True)
        ]
        if any(flags) or not self._all_new(heads, last):
            whole = self.oracle.whole_order
            for k, (key, number) in enumerate(heads):
                if not self._one(key, number, flags[k], last, key >> FLOW_SHIFT if whole else key):
                    items[k] = (items[k][0], -1, 0)
        self.deliveries += len(items)
        return items

    def _all_new(self, heads: list[tuple[int, int]], last: dict[int, int]) -> bool:
        """Record the messages if all are delivered for the first time and in order, as nearly always. Return False if not."""
        numbers: dict[int, list[int]] = {}
        for key, number in heads:
            numbers.setdefault(key, []).append(number)
        for key, of in numbers.items():
            flow = key >> FLOW_SHIFT
            line = flow if self.oracle.whole_order else key
            if flow >= len(self.marks) or of[-1] >= self.oracle.flows[flow].next or not all(map(lt, of, of[1:])):
                return False
            if self.ordered and of[0] <= last.get(line, -1):
                return False
            self._reach(flow, of[-1])
            if any(map(self.marks[flow].__getitem__, of)):
                return False
        if self.oracle.whole_order and len({key >> FLOW_SHIFT for key in numbers}) < len(numbers):
            return False
        for key, of in numbers.items():
            set_marks(self.marks[key >> FLOW_SHIFT], of, SEEN)
            last[key >> FLOW_SHIFT if self.oracle.whole_order else key] = of[-1]
        self.first_deliveries += len(heads)
        return True

    def _one(self, key: int, number: int, again: int, last: dict[int, int], line: int) -> bool:
        """Record one delivery. Return False if there is no such message."""
        flow = key >> FLOW_SHIFT
        if flow >= len(self.marks) or number >= self.oracle.flows[flow].next:
            self.oracle.findings.add("invented", f"{self.queue}: flow {flow} number {number} was never published")
            return False
        self._reach(flow, number)
        mark = self.marks[flow][number]
        if mark:
            self._again(flow, number, mark, bool(again))
        else:
            self.marks[flow][number] = SEEN
            self.first_deliveries += 1
            if again:
                self._flagged(flow, number)
        if self.ordered and (not again or self.oracle.whole_order) and not mark & REQUEUED:
            if number <= last.get(line, -1):
                self.oracle.findings.add("order", f"{self._name(flow, number)} after {last[line]}")
            last[line] = number
        return True

    def _reach(self, flow: int, number: int) -> None:
        """Extend the marks up to that number, which has been taken."""
        marks = self.marks[flow]
        if number >= len(marks):
            marks += bytes(self.oracle.flows[flow].next - len(marks))

    def _heads(self, batch: Batch) -> list[tuple[int, int]]:
        """Return (flow and session, number) of each body, after checking the whole body."""
        ends = batch.bodies.ends.view().cast("I").tolist()
        sizes = list(map(sub, ends[1:], ends))
        if not sizes or min(sizes) < HEAD.size:
            texts = batch.bodies.tolist()
            for text in texts:
                self.oracle.findings.add("damaged", f"{self.queue}: one of {len(text)} bytes {text[:40].hex()}")
            return [WORDS.unpack_from(text.ljust(HEAD.size, b"\xff")) for text in texts]
        data = batch.bodies.data.tobytes()
        heads = list(map(WORDS.unpack_from, repeat(data), ends[:-1]))
        for k, size in enumerate(sizes):
            if size != HEAD.size or heads[k][1] % LONG_EVERY == LONG_EVERY - 1:
                key, number = heads[k]
                text = data[ends[k] : ends[k + 1]]
                if text != body(key >> FLOW_SHIFT, key & SESSION_MASK, number):
                    self.oracle.findings.add("damaged", f"{self.queue}: one of {size} bytes {text[:40].hex()}")
        return heads

    def _again(self, flow: int, number: int, mark: int, flagged: bool) -> None:
        """Record a copy that was delivered before."""
        findings, name = self.oracle.findings, self._name(flow, number)
        if mark & REJECTED and self.queue == self.oracle.dead[0] and self.oracle.is_dead(flow, number):
            findings.add("half dead letters", name)
        if mark & SAFE:
            findings.add("settled, came back", name)
        elif mark & ACKED:
            findings.add("acked, came back", name)
        if not flagged:
            findings.add("doubled, not flagged", name)
        elif mark & REQUEUED and not mark & ACKED:
            findings.add("requeued, came back", name)
        else:
            findings.add("doubled, flagged", name)

    def _flagged(self, flow: int, number: int) -> None:
        """Record a copy that is flagged as delivered before, but was not seen."""
        self.oracle.findings.add("flagged, never seen", self._name(flow, number))
        self.unread -= 1
        if self.unread < 0:
            self.oracle.findings.add("flagged, never delivered", self._name(flow, number))

    def settle(self, items: Iterable[Item], mark: int) -> None:
        """Mark messages as acked or rejected, or as stored."""
        numbers: dict[int, list[int]] = {}
        for _, flow, number in items:
            if flow >= 0:
                numbers.setdefault(flow, []).append(number)
        for flow, of in numbers.items():
            set_marks(self.marks[flow], of, mark)
        word = SETTLE_WORDS[mark]
        lines = [f"{word} {self.queue} {self.oracle.flows[flow].name} {runs(of)}\n" for flow, of in numbers.items()]
        self.oracle.journal.write("".join(lines))

    def has(self, flow: int, mark: int, first: int, end: int, step: int = 1) -> int:
        """Return a bit string as a number: 8 bits for each of these numbers, of which the lowest is set if the mark is."""
        marks = self.marks[flow]
        if len(marks) < end:
            marks += bytes(end - len(marks))
        return bits_of(marks[first:end:step], mark)

    def _name(self, flow: int, number: int) -> str:
        return f"{self.queue}: {self.oracle.flows[flow].name} {number}"


SETTLE_WORDS = {ACKED: "acked", ACKED | REJECTED: "rejected", SAFE: "safe", REQUEUED: "requeued"}


class Oracle:
    """Flows, ledgers and findings of a run."""

    def __init__(self, journal: Journal, dead: tuple[str, str, str]) -> None:
        self.journal = journal
        self.flows: list[Flow] = []
        self.ledgers: dict[str, Ledger] = {}
        self.findings = Findings()
        self.dead = dead
        """Messages that are rejected from the first queue go to the second, from which transactions move them to the third."""
        self.terms: Terms | None = None
        """Set if one node alone may confirm at a time."""
        self.whole_order = False
        """Whether the order also includes redelivered messages, and all sessions of a publisher. It does in Kvitto, if
        the broker knows of each end of a connection before the next one begins."""
        self.groups = 0
        """The number of transactions that were checked."""

    def flow(self, name: str, routes: Sequence[tuple[str, tuple[str, ...]]], group: int = 1) -> Flow:
        """Add a flow. All flows are made before the first ledger."""
        self.flows.append(Flow(len(self.flows), name, routes, group, self.journal))
        return self.flows[-1]

    def ledger(self, queue: str, *, ordered: bool = True) -> Ledger:
        self.ledgers[queue] = Ledger(queue, self, ordered=ordered)
        return self.ledgers[queue]

    def is_dead(self, flow: int, number: int) -> bool:
        """Return whether the message has been seen as a dead letter."""
        marks = self.ledgers[self.dead[1]].marks[flow]
        return number < len(marks) and bool(marks[number] & SEEN)

    @property
    def published(self) -> int:
        return sum(flow.next for flow in self.flows)

    @property
    def confirmed(self) -> int:
        return sum(flow.confirmed for flow in self.flows)

    @property
    def delivered(self) -> int:
        return sum(ledger.deliveries for ledger in self.ledgers.values())

    def judge(self) -> list[str]:
        """Return what is missing, and transactions that are done by half, since the last `close_chapter`, as texts."""
        return [*self._lost(), *self._lost_dead(), *self._halves()]

    def close_chapter(self) -> None:
        """Make findings of all that is still missing. Later judgements are about later messages, except for dead letters."""
        lost, halves = [*self._lost(), *self._lost_dead()], [*self._halves(), *self._undead()]
        for kind, found in (("lost", lost), ("half transactions", halves), ("invented", self._not_rejected())):
            for text in found:
                self.findings.add(kind, text)
        for flow in self.flows:
            if flow.group > 1:
                self.groups += (flow.next - flow.judged) // flow.group
            flow.judged = flow.next

    def _lost(self) -> list[str]:
        found: list[str] = []
        for flow in self.flows:
            step = len(flow.routes)
            for turn, (_, queues) in enumerate(flow.routes):
                first = flow.judged + (turn - flow.judged) % step
                owed = bits_of(flow.marks[first : flow.next : step], CONFIRMED)
                for queue in queues:
                    seen = self.ledgers[queue].has(flow.number, SEEN, first, flow.next, step)
                    found += [f"{queue}: {flow.name} {first + k * step}" for k in ones(owed & ~seen)]
        return found

    def _undead(self) -> list[str]:
        """Find messages that were rolled back and arrived all the same."""
        found: list[str] = []
        for flow in self.flows:
            never = bits_of(flow.marks[flow.judged : flow.next], NEVER)
            for queue, ledger in self.ledgers.items():
                seen = ledger.has(flow.number, SEEN, flow.judged, flow.next)
                found += [f"{queue}: {flow.name} {flow.judged + k} was rolled back" for k in ones(never & seen)]
        return found

    def _not_rejected(self) -> list[str]:
        """Find dead letters of messages that were not rejected."""
        source, dead = (self.ledgers[queue] for queue in self.dead[:2])
        found: list[str] = []
        for flow in self.flows:
            first, end, k = flow.judged, flow.next, flow.number
            wrong = dead.has(k, SEEN, first, end) & ~source.has(k, REJECTED, first, end)
            found += [f"{dead.queue}: {flow.name} {first + n} was not rejected" for n in ones(wrong)]
        return found

    def _lost_dead(self) -> list[str]:
        """Find missing dead letters: each rejected message must be one, and each that was acked in a transaction must
        have been moved."""
        source, dead, moved = (self.ledgers[queue] for queue in self.dead)
        found: list[str] = []
        for flow in self.flows:
            first, end, k = flow.judged, flow.next, flow.number
            rejected = source.has(k, REJECTED, first, end)
            safe = source.has(k, SAFE, first, end)
            there = dead.has(k, SEEN, first, end)
            found += [f"{dead.queue}: {flow.name} {first + n}" for n in ones(rejected & safe & ~there)]
            taken = dead.has(k, SAFE, first, end) & ~moved.has(k, SEEN, first, end)
            found += [f"{moved.queue}: {flow.name} {first + n}" for n in ones(taken)]
        return found

    def _halves(self) -> list[str]:
        """Find transactions of which some copies have been seen and not all (T4)."""
        found: list[str] = []
        for flow in self.flows:
            if flow.group == 1:
                continue
            for start in range(flow.judged, flow.next, flow.group):
                wanted = seen = 0
                for number in range(start, min(start + flow.group, flow.next)):
                    for queue in flow.routes[number % len(flow.routes)][1]:
                        marks = self.ledgers[queue].marks[flow.number]
                        wanted += 1
                        seen += number < len(marks) and marks[number] & SEEN
                if seen not in (0, wanted):
                    found.append(f"{flow.name} {start}: {seen} of {wanted} copies")
        return found


def bits_of(marks: bytes | bytearray, mark: int) -> int:
    """Return the marks as a number with a byte for each, 1 where `mark` is set."""
    table = bytes(bool(value & mark) for value in range(256))
    return int.from_bytes(marks.translate(table), "little")


def ones(number: int) -> list[int]:
    """Return the positions of the bytes that are 1."""
    if not number:
        return []
    text = number.to_bytes((number.bit_length() + 7) // 8, "little")
    return [k for k, byte in enumerate(text) if byte]


def consecutive(numbers: list[int]) -> bool:
    """Return whether each number is one more than the one before it."""
    return numbers[-1] - numbers[0] + 1 == len(numbers) and all(map(lt, numbers, numbers[1:]))


def set_marks(marks: bytearray, numbers: list[int], mark: int) -> None:
    """Add a mark to these numbers."""
    first = marks[numbers[0]]
    part = slice(numbers[0], numbers[-1] + 1)
    if consecutive(numbers) and marks[part].count(first) == len(numbers):
        marks[part] = bytes((first | mark,)) * len(numbers)
        return
    for number in numbers:
        marks[number] |= mark


def runs(numbers: list[int]) -> str:
    """Return the numbers as text: 7 8 9 12 -> "7-9 12"."""
    if consecutive(numbers):
        return f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
    parts: list[str] = []
    start = end = numbers[0]
    for number in [*numbers[1:], -2]:
        if number == end + 1:
            end = number
            continue
        parts.append(f"{start}-{end}" if end > start else str(start))
        start = end = number
    return " ".join(parts)

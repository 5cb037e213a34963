"""Dead-lettering: the x-death headers (X1-X3) and the atomic move (X4).

Dead messages are gathered here as ranges. Each turn moves a limited number of messages and bytes, and serves the queues in rotation.
Messages of durable queues become journal records, which are written, synced and then applied, so that after any crash a message is in
its source or in its targets. Other messages are moved at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from kvitto.base.errors import ConnectionError_
from kvitto.base.limits import PROPERTIES_MAX
from kvitto.base.turn_part import TurnPart
from kvitto.broker import walls
from kvitto.broker.queues.leaving import AFTER_DELIVERY
from kvitto.broker.routing.index import PIECE_STEPS
from kvitto.broker.transfers.parked import DISK, NOBODY, Obstacle
from kvitto.broker.transfers.reservation import Reservation
from kvitto.format.entry import DEAD
from kvitto.format.settlement import DEAD_LETTERED, DROPPED, EXPIRED, REJECTED
from kvitto.store.batch import Stored
from kvitto.store.record import Append, Record, Settle
from kvitto.wire import tables
from kvitto.wire.buf import Buf
from kvitto.wire.properties import Properties, edit_headers, join, split

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker, Direct
    from kvitto.broker.queues.queue import Queue
    from kvitto.broker.queues.work_queue import WorkQueue

LETTERS_PER_TURN = 50
"""The most dead letters of one turn, about 5 ms of work. After kill -9, rejects that waited for a later turn are redelivered."""
STEPS_PER_TURN = 10_000
"""The most steps of routing in one turn, for all letters together."""
PROPERTIES_FREE = 1024
"""Each byte of a letter's properties beyond these counts as one step: a table of many headers takes long to decode and to encode."""
SLICE = 25
"""The most letters of one queue before the next queue is served."""
RECORD_BYTES = 4 << 20
IN_FLIGHT_BYTES = 32 << 20
"""The most bytes of letters in records that wait for their sync. Beyond that the other letters wait in their queues."""
REFUSED_PIECE = 500
ADDRESS_COST, TARGET_COST = 50, 25
"""The cost of dead-lettering one refused message, in units of about a microsecond."""
LETTER_MAX = 2 << 30
"""The most bytes of all copies of one letter, which are in one record. A letter that would need more is not moved."""
COPY = 64
"""An upper bound of what a copy takes in a record beside its own bytes."""
WITHOUT_EXCHANGE = {"rejected": REJECTED, "expired": EXPIRED}
OUR_HEADERS = (
    "x-death",
    *(f"x-{which}-death-{what}" for which in ("first", "last") for what in ("reason", "queue", "exchange")),
)
"""Headers that only the broker writes. Values from a client are not trusted (X3), and the first death replaces them."""


READING = "its body is being read"
"""The steps of a letter yield this value while they hold a part of a large body in memory."""

Address = tuple[bytes, bytes, "list[Queue] | None", int, int]
"""Key, properties, queues, time to live in ms (-1: none) and flags of a letter. The queues are None if it is to be dropped: for a cycle
without a rejection in it (X3), or a delayed message that no queue takes."""
Addressing = Generator[bool, None, Address]


class Addressed(NamedTuple):
    """A letter with its body, ready to be moved. `targets` are the queues, as in `Address`."""

    key: bytes
    props: bytes
    body: bytes | Buf
    targets: list[Queue] | None
    ttl_ms: int
    flags: int


class Letter:
    """A message that is being dead-lettered, and the steps that find its queues."""

    def __init__(self, offset: int, reason: str, steps: Generator[object, None, Addressed | None]) -> None:
        self.offset = offset
        self.reason = reason
        self.steps = steps
        self.step: object = None
        """The value that the latest step has yielded."""
        self.addressed: Addressed | None = None

    @property
    def is_large(self) -> bool:
        """Whether its body is too large to be copied. Such a letter is a batch of its own in each queue, and needs a record of its own."""
        return self.addressed is not None and isinstance(self.addressed[2], Buf)


class Parcel:
    """The moves of one record, the messages for transient queues, which need no record, and the source of each letter."""

    def __init__(self) -> None:
        self.record = Record()
        self.direct: list[Direct] = []
        self.letters: list[tuple[WorkQueue, int, str]] = []
        self.room = Reservation()
        self.size = 0

    def put(self, queue: WorkQueue, offset: int, letter: Addressed, targets: list[Queue]) -> None:
        key, props, body, _, ttl_ms, flags = letter
        appends = [Append(t.log.queue_id, key, props, body, ttl_ms, flags) for t in targets if t.log.durable]
        direct = [(t, key, props, body, ttl_ms, flags) for t in targets if not t.log.durable]
        settles = [Settle(queue.log.queue_id, offset, 1, DEAD_LETTERED)]
        # all that may raise comes before this: an exception must not leave half a move in the record
        self.record.appends += appends
        self.direct += direct
        self.record.settles += settles
        for target in targets:
            self.room.keep(target, 1, len(body))
        self.size += weight(key, props, body) * len(targets)

    def apply(self, broker: Broker) -> None:
        """Give the messages to their queues, once the record is durable."""
        self.room.give_back()
        broker.apply(self.record, self.direct)


class DeadLetters(walls.Routine, TurnPart):
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.waiting: dict[WorkQueue, deque[tuple[int, int, str]]] = {}
        """By queue, the ranges that wait, as (first offset, count, reason)."""
        self.in_flight = 0
        self._addressing: dict[WorkQueue, Letter] = {}
        """Letters that take more than one turn to be read or to be routed."""
        self._reading: WorkQueue | None = None
        """The queue whose letter has a part of a large body in memory. It is served first, so that there is at most one such body."""
        self._letters = 0
        self._bytes = 0
        self._steps = 0
        self._turn = -1
        """The number of the turn to which these three budgets belong."""
        self._left = False
        """Whether letters were left when this ran last."""
        self._refused = False
        """Whether consumers have refused messages since then."""
        self._by_time = False
        """Whether the letters of this turn are limited by time. They are not if consumers have just refused messages, because P5 says how
        many letters are moved at once then."""

    def add(self, queue: WorkQueue, offset: int, count: int, reason: str) -> None:
        if reason in AFTER_DELIVERY:
            self._refused = True
        line = self.waiting.setdefault(queue, deque())
        if line and line[-1][2] == reason and line[-1][0] + line[-1][1] == offset:
            first, before, _ = line.pop()
            offset, count = first, before + count
        line.append((offset, count, reason))
        queue.mark_dirty()

    @property
    def held_up(self) -> bool:
        """Whether no letter can be sent before a sync is done."""
        return self.in_flight >= IN_FLIGHT_BYTES

    def run(self) -> None:
        """Move letters, within the limits of this turn and of what may wait for a sync."""
        if self._turn != self.broker.turns:
            self._turn = self.broker.turns
            self._letters, self._bytes, self._steps = LETTERS_PER_TURN, IN_FLIGHT_BYTES, STEPS_PER_TURN
            self._by_time = self._left
        if self._refused:
            self._refused = self._by_time = False
        parcel = Parcel()
        while self.waiting and self._may_send(parcel):
            queue = self._reading if self._reading in self.waiting else next(iter(self.waiting))
            self._reading = None
            for _ in range(SLICE):
                line = self.waiting[queue]
                if queue.deleted or not self._may_send(parcel):
                    break
                letter = self._addressing.pop(queue, None) or walls.run(queue, self._next, queue, line)
                if letter is None:
                    break
                done = walls.run(queue, self._advance, letter)
                if done is False:
                    self._addressing[queue] = letter
                    self._reading = queue if letter.step is READING else None
                if not done:
                    break
                alone = letter.is_large
                if alone and parcel.letters:
                    self._write(parcel)
                    parcel = Parcel()
                self._bytes -= walls.run(queue, self._send, parcel, queue, letter) or 0
                if parcel.letters and (alone or parcel.size > RECORD_BYTES):
                    self._write(parcel)
                    parcel = Parcel()
            line = self.waiting.pop(queue)
            if queue.deleted:
                self._addressing.pop(queue, None)
            elif line or queue in self._addressing:
                self.waiting[queue] = line  # at the end of the rotation
        if parcel.letters:
            self._write(parcel)
        self._left = bool(self.waiting)

    def _may_send(self, parcel: Parcel) -> bool:
        left = self._letters > 0 and self._bytes > 0 and self._steps > 0
        if self._by_time and self._letters < LETTERS_PER_TURN and self.broker.out_of_time():
            return False
        return left and self.in_flight + parcel.size < IN_FLIGHT_BYTES

    def _next(self, queue: WorkQueue, line: deque[tuple[int, int, str]]) -> Letter | None:
        """Return the first letter of a line that is still to be moved."""
        while line and self._letters > 0:
            offset, n, reason = line.popleft()
            if n > 1:
                line.appendleft((offset + 1, n - 1, reason))
            self._letters -= 1
            if queue.forwards_to is None:  # it came from a policy that was deleted
                queue.moved(offset, reason, WITHOUT_EXCHANGE.get(reason, DROPPED))
                continue
            return Letter(offset, reason, self.letter_steps(queue, offset, reason))
        return None

    def _advance(self, letter: Letter) -> bool:
        """Continue to read the letter and to look for its queues. Returns True when that is done."""
        while self._steps > 0:
            try:
                letter.step = next(letter.steps)
            except StopIteration as end:
                letter.addressed = end.value
                return True
            self._steps -= PIECE_STEPS
        return False

    def _send(self, parcel: Parcel, queue: WorkQueue, letter: Letter) -> int:
        """Put one letter into the parcel. Returns its size in bytes."""
        offset, reason = letter.offset, letter.reason
        if letter.addressed is None:  # it cannot be read, or its queue has no dead-letter exchange any more
            gone = queue.forwards_to is None
            queue.moved(offset, reason, WITHOUT_EXCHANGE.get(reason, DROPPED) if gone else DROPPED)
            return 0
        key, props, body, targets, ttl_ms, flags = letter.addressed
        self._steps -= max(len(props) - PROPERTIES_FREE, 0)
        if targets is None:
            queue.moved(offset, reason, DROPPED)
        elif (obstacle := self._obstacle(targets, key, props, body)) is not None:
            self.broker.parking.park(queue, offset, reason, obstacle)
        elif queue.log.durable:
            parcel.put(queue, offset, letter.addressed, targets)
            parcel.letters.append((queue, offset, reason))
        else:
            for target in targets:
                walls.run(target, target.append_bytes, key, props, body, ttl_ms, flags)
            queue.moved(offset, reason)
        return weight(key, props, body) * max(len(targets or ()), 1)

    @staticmethod
    def _obstacle(targets: list[Queue], key: bytes, props: bytes, body: bytes | Buf) -> Obstacle | None:
        """Return what prevents the move of the letter, or None if it can be moved."""
        if not targets or weight(key, props, body) * len(targets) > LETTER_MAX:
            return NOBODY
        # a target that raises an error here is an obstacle, too
        return next(
            (
                t
                for t in targets
                if t.fault is not None or t.deleted or (t.rejects and walls.run(t, t.is_full, len(body)) is not False)
            ),
            None,
        )

    def refused(self, queue: Queue, key: bytes, props: bytes, body: bytes | Buf) -> Iterator[int]:
        """Move a message that the queue refused to its dead-letter exchange (reject-publish-dlx), if it has one.

        Works in pieces. Each yields its cost, in units of about a microsecond.
        """
        if queue.settings.overflow != "reject-publish-dlx" or queue.settings.dead_letter_exchange is None:
            return
        steps = self.address_steps(queue, "maxlen", (key, props, 0))
        cost = ADDRESS_COST
        while True:
            try:
                next(steps)
                yield REFUSED_PIECE
            except StopIteration as end:
                new_key, new_props, targets, _, _ = end.value
                break
        for target in targets or ():
            if target.fault is None and not target.deleted:
                walls.run(target, target.append_bytes, new_key, new_props, body, -1, DEAD)
            cost += TARGET_COST + (0 if isinstance(body, Buf) else len(body) >> 11)
            if cost >= REFUSED_PIECE:
                yield cost
                cost = 0
        yield cost

    def _write(self, parcel: Parcel) -> None:
        self.in_flight += parcel.size

        def apply() -> None:
            self.in_flight -= parcel.size
            parcel.apply(self.broker)
            for queue, offset, reason in parcel.letters:
                if not queue.deleted:
                    walls.run(queue, queue.moved, offset, reason)

        def full() -> None:
            self.in_flight -= parcel.size
            parcel.room.give_back()
            for queue, offset, reason in parcel.letters:
                if not queue.deleted:
                    self.broker.parking.park(queue, offset, reason, DISK)

        self.broker.records.write(parcel.record, apply, full)

    def letter_steps(self, queue: WorkQueue, offset: int, reason: str) -> Generator[object, None, Addressed | None]:
        """Make a letter of the message at this offset: a dead letter, or a delayed message that is due.

        Returns None if it cannot be read, or if its queue has no dead-letter exchange any more. It works in pieces, because a batch may
        have to be checked, a route to be searched for, and a body to be read.
        """
        message = yield from queue.read_steps(offset)
        if message is None:
            return None
        key, props, body, flags = message
        while queue.forwards_to is not None:  # a policy may have been deleted meanwhile
            address = yield from queue.address_steps(reason, (key, props, flags))
            to_key, to_props, targets, ttl_ms, to_flags = address
            if not isinstance(body, Stored):
                return Addressed(to_key, to_props, body, targets, ttl_ms, to_flags)
            if not targets:
                return Addressed(to_key, to_props, b"", targets, ttl_ms, to_flags)
            steps = body.take()
            while isinstance(body, Stored):
                try:
                    next(steps)
                except StopIteration as end:
                    body = end.value  # reading took a while, so the letter is routed once more
                else:
                    yield READING
                    if queue.deleted:
                        return None
        return None

    def address_steps(self, queue: Queue, reason: str, message: tuple[bytes, bytes, int]) -> Addressing:
        """Find the key, the properties and the queues of the dead letter that a message (key, props, flags) becomes."""
        key, props, flags = message
        exchange, routing_key = split_key(key)
        fields, properties = read_properties(props)
        headers: dict[str, Any] = dict(properties.headers or {})
        if not flags & DEAD:
            for name in OUR_HEADERS:
                headers.pop(name, None)
        routing_keys = [routing_key, *strings(headers.get("CC"))]
        deaths = deaths_of(headers)
        ours = self._note_death(queue, reason, headers, deaths, (exchange, routing_keys, properties.expiration))
        headers |= ours
        to_exchange = queue.settings.dead_letter_exchange or ""
        to_key = queue.settings.dead_letter_routing_key
        keys = [to_key] if to_key is not None else routing_keys
        if to_key is not None:
            headers.pop("CC", None)
        properties.headers, properties.expiration = (
            headers,
            None,
        )  # the letter is routed by its own CC and BCC, not by those of the message
        targets = yield from queue.vhost.target_steps(to_exchange, keys, properties)
        if reason != "rejected":
            kept = [t for t in targets if not is_cycle(t.name, deaths)]
            if targets and not kept:
                return key, props, None, -1, DEAD
            targets = kept
        fields.pop("expiration", None)
        edit_headers(fields, ours, () if to_key is None else ("CC",))
        new_key, new_props = tables.encode_shortstr(to_exchange) + tables.encode_shortstr(keys[0]), join(fields)
        if len(new_props) > PROPERTIES_MAX:  # no consumer could take the letter, and it would block those behind it
            targets = []
        return new_key, new_props, targets, -1, DEAD

    def _note_death(
        self,
        queue: Queue,
        reason: str,
        headers: dict[str, Any],
        deaths: list[dict[str, Any]],
        published: tuple[str, list[str], str | None],
    ) -> dict[str, Any]:
        """Put this death in front of x-death (X2). Returns all of OUR_HEADERS. `published`: exchange, routing keys, expiration."""
        exchange, routing_keys, expiration = published
        old = next((d for d in deaths if d["queue"] == queue.name and d["reason"] == reason), None)
        if old is not None:
            deaths.remove(old)
            old["count"] += 1
        else:
            old = {
                "count": 1,
                "reason": reason,
                "queue": queue.name,
                "time": tables.Timestamp(self.broker.now_ms // 1000),
                "exchange": exchange,
                "routing-keys": routing_keys,
            }
            if expiration is not None:
                old["original-expiration"] = expiration
        old["count"] = tables.Long(old["count"])
        deaths.insert(0, old)
        ours: dict[str, Any] = {"x-death": deaths}
        for name, value in (("reason", reason), ("queue", queue.name), ("exchange", exchange)):
            ours[f"x-first-death-{name}"] = headers.get(f"x-first-death-{name}", value)
            ours[f"x-last-death-{name}"] = value
        return ours


def read_properties(props: bytes) -> tuple[dict[str, bytes], Properties]:
    """Return stored properties, split and decoded. Malformed ones count as empty."""
    try:
        return split(props), Properties.decode(props)
    except ConnectionError_:
        return {}, Properties()


def is_cycle(queue: str, deaths: list[dict[str, Any]]) -> bool:
    """Whether the message would return to a queue in which it has died before, without a rejection since then (X3)."""
    for death in deaths:
        if death["reason"] == "rejected":
            return False
        if death["queue"] == queue:
            return True
    return False


def deaths_of(headers: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the well-formed entries of x-death."""
    value = headers.get("x-death")
    if not isinstance(value, list):
        return []
    return [
        d | {"count": tables.Long(d["count"])}
        for d in value
        if isinstance(d, dict)
        and isinstance(d.get("count"), int)
        and isinstance(d.get("queue"), str)
        and isinstance(d.get("reason"), str)
    ]


def weight(key: bytes, props: bytes, body: bytes | Buf) -> int:
    """Return how many bytes one copy of a letter takes in a record."""
    return COPY + len(key) + len(props) + len(body)


def split_key(key: bytes) -> tuple[str, str]:
    """Return the exchange and the routing key, from both as short strings."""
    exchange, at = tables.read_shortstr(key, 0)
    return exchange, tables.read_shortstr(key, at)[0]


def strings(value: object) -> list[str]:
    """Return the strings of a CC or BCC header."""
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []

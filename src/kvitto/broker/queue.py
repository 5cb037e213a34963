"""A queue: what is ready, who gets it, and what has been settled. docs/ARCHITECTURE.md, "A queue", has the picture.

The data plane (`append`, `pump`, `settle`, `requeue`) is compiled and costs nothing per message but the copy; the rare
events (redelivery, expiry, overflow, dead-letter) are plain calls. A queue does not touch the disk but in `flush`, once per turn.

Invariants: every offset below `cursor` is settled, unacked, moving, parked, held or in `requeued`; every one from `cursor` on is ready;
an offset that is never written lies below the cursor, so ready = next - cursor + requeued. Offsets from `tail_first` on are in
`tail`, not yet written; those from `unwritten_from` to there are in the batches of `backlog`, and while there are any nothing is delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import StoreFull
from kvitto.broker import priorities, purging, sizes
from kvitto.broker.arguments import QUORUM_PRIORITY_MAX
from kvitto.broker.consumer import Consumer
from kvitto.broker.delays import Delays
from kvitto.broker.deliveries import Deliveries
from kvitto.broker.hold import Hold
from kvitto.broker.parked import Parked
from kvitto.broker.ranges import RangeSet
from kvitto.broker.ranks import Ranks
from kvitto.broker.rota import Rota, consumer_index, insert_consumer
from kvitto.format import entry
from kvitto.format.entry import TTL_MAX
from kvitto.store import pieces
from kvitto.store.batch import Batch, Body
from kvitto.store.log import Log
from kvitto.store.reading import Window
from kvitto.store.settlements import (
    ACKED,
    DEAD_LETTERED,
    DROPPED,
    EXPIRED,
    PURGED,
    RANGE_SETTLED,
    REDELIVERED,
    REJECTED,
    Settlements,
)
from kvitto.wire.buf import Buf
from kvitto.wire.properties import priority_of

if TYPE_CHECKING:
    from kvitto.broker.arguments import QueueSettings
    from kvitto.broker.broker import Broker
    from kvitto.broker.parked import Obstacle
    from kvitto.broker.policies import Policy
    from kvitto.broker.vhost import VHost

TAIL_BYTES = 1 << 20
ADOPTED = 128 << 10
"""A batch with at least this many bytes is adopted as the tail instead of being copied."""
AFTER_DELIVERY = ("rejected", "delivery_limit")
"""Reasons to dead-letter that only a message can have that has been delivered."""
LEAVING_PER_TURN = 10_000
"""Messages, and KiB of their bodies, that may leave a queue in one turn because they have expired or failed too often."""
AGAIN_LEAVES = 15
"""The cost of a message that had come back: as much as this many messages that leave side by side."""
AGAIN_COST = 120
"""Of a message that is delivered again, as `Broker.allowance` counts."""
RETRY_COST = 50
"""Of a message that comes back and is looked at, in units of 0.1 us."""
RETRIES_PER_TURN = 300
"""Delayed messages that come back in one turn."""
RETRIES_PER_PIECE = 150
EVER_MS = 1 << 62

_TAIL_BYTES = TAIL_BYTES  # C variables when compiled
_ACKED = ACKED
_AGAIN_COST = AGAIN_COST
_HAS_PRIORITY = 8  # in the first byte of the property flags


class Queue:
    stream = False

    def __init__(
        self,
        broker: Broker,
        vhost: VHost,
        name: str,
        log: Log,
        settings: QueueSettings,
        arguments: dict[str, Any],
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
    ) -> None:
        self.broker = broker
        self.vhost = vhost
        self.name = name
        self.log = log
        self.arguments = arguments
        self.policy: Policy | None = None
        self.operator_policy: Policy | None = None
        self.durable = durable
        self.exclusive = exclusive
        self.owner: Any = None
        self.auto_delete = auto_delete
        self.deleted = False
        self.fault: str | None = None
        """Why it is out of service (broker/faults.py); it counts as deleted then."""
        self.serving: Consumer | None = None
        """The consumer whose code runs: what it raises is its own."""
        self.consumers: list[Consumer] = []
        self.serials = 0
        self.rota: Rota | None = None
        """Where there are several consumers and all of them are served."""
        self.burst = 0
        self.single = settings.single_active_consumer
        self.had_consumer = False
        self.group: str | None = None
        self.group_holders: list[object] = []
        self.hold: Hold | None = None
        self.used_ms = broker.timers.now_ms

        self.cursor = self.next = 0
        self.ready = 0
        self.ready_bytes = self.estimates = 0
        """The bytes of the ready messages, and how many times they were estimated since they were last exact (broker/sizes.py)."""
        self.unacked = 0
        self.doubt = 0
        self.ranked = settings.max_priority > 0
        self.prioritises = settings.prioritises
        self.archived = settings.archive
        self.requeued = Ranks(self._rank) if self.ranked else RangeSet()
        self.requeued_ready = False
        self.redeliveries = Deliveries()
        self.moving = self.coming = self.coming_bytes = 0
        self.parked = Parked()
        self.delays = Delays(settings.retry_min_ms, settings.retry_max_ms)
        self.may_expire = False

        self.tail: Batch | None = None
        self.tail_first = 0
        self.tail_settled = 0
        self.backlog: deque[Batch] = deque()
        """Batches that wait to be written before the tail; the first of them may be in the file in part."""
        self.front: Batch | None = None
        self.settlements = Settlements()
        self._ahead, self._behind, self._outline = Window(), Window(), Window(outline=True)
        self.dirty = self.shown = self.late = False
        self.returning = 0
        self.patient = self.checking = self.held_back = False
        """The next message is large: it is read and checked in pieces before anybody gets it, and a caller may wait for that."""

        self.expiry_timer = -1
        self.leaving = 0
        self.leaving_turn = -1

        self.published = self.delivered = self.redelivered = self.acked = 0
        self._set(settings)

    def _set(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.ttl_ms = settings.ttl_ms
        self.max_length = settings.max_length
        self.max_bytes = settings.max_bytes
        self.rejects = settings.overflow != "drop-head"
        self.limited = settings.max_length >= 0 or settings.max_bytes >= 0
        self.delivery_limit = settings.delivery_limit
        looked_at = self.ranked or settings.retry_min_ms >= 0 or settings.delivery_limit >= 0
        self.return_cost = RETRY_COST if looked_at else 0
        self.consumer_timeout_ms = settings.consumer_timeout_ms
        self.may_expire = self.may_expire or settings.ttl_ms >= 0
        self.delays.least_ms, self.delays.most_ms = settings.retry_min_ms, settings.retry_max_ms
        self.delays.linear = settings.retry_linear

    def take_settings(self, settings: QueueSettings) -> None:
        """Policies have changed: what waits keeps its time to live, limits hold for all of it from the next turn on."""
        if settings.dead_letters_to != self.settings.dead_letters_to:
            self.parked.reroute()
        self._set(settings)
        for c in self.consumers:
            c.settings_changed()
        self.used_ms = self.broker.timers.now_ms
        self.broker.expire_unused(self)
        if self.estimates and self.max_bytes >= 0:
            self.broker.jobs.start(sizes.recount(self), owner=self)
        self.mark_dirty()

    # -- append ----------------------------------------------------------------------------------------------

    def append(self, key_p, key, key_len, props_p, props, props_len, body_p, body, body_len, ttl_ms, flags):  # type: ignore[no-untyped-def]
        """Add a message at the end; 0 if the queue refuses it (x-overflow), else 1. ttl_ms < 0: none of its own."""
        if self.limited and self.rejects and self.is_full(body_len):
            return 0
        if self.prioritises and props_len > 2 and props_p[props] & _HAS_PRIORITY:
            self.prioritise(bytes(props_p[props : props + props_len]))
        t = self.tail
        if t is None:
            t = self.open_tail()
        if self.ttl_ms >= 0 and (ttl_ms < 0 or ttl_ms > self.ttl_ms):
            ttl_ms = self.ttl_ms
        if ttl_ms >= 0:
            self.may_expire = True
            if t.time_ms != self.broker.now_ms:  # the tail was opened by an earlier read, or before the disk was full
                ttl_ms = max(0, min(ttl_ms + self.clock_of(t) - t.time_ms, TTL_MAX))
        t.add(key_p, key, key_len, props_p, props, props_len, body_p, body, body_len, ttl_ms, flags)
        self.next += 1
        self.ready += 1
        self.ready_bytes += body_len
        self.published += 1
        if not self.dirty:
            self.mark_dirty()
        if self.limited:
            self.enforce_limits()
        if t.index.n + t.meta.n + t.body.n > _TAIL_BYTES and body_len <= _TAIL_BYTES and not self.broker.applying:
            self.turn()
        return 1

    def prioritise(self, props: bytes) -> None:
        """A message comes that has a priority among its properties; the first one above 0 gives the queue priorities."""
        if priority_of(props) > 0:
            priorities.begin(self)

    def append_bytes(self, key: bytes, props: bytes, body: bytes | Buf, ttl_ms: int, flags: int) -> int:
        """`append` for callers that have bytes objects, or a large body in a buffer."""
        if isinstance(body, Buf):
            return self.append_whole(key, props, body, ttl_ms, flags)
        whole = body
        return self.append(key, 0, len(key), props, 0, len(props), whole, 0, len(whole), ttl_ms, flags)  # type: ignore[no-any-return]

    def append_whole(self, key: bytes, props: bytes, body: Buf, ttl_ms: int, flags: int) -> int:
        """`append` for a large body, which is not copied: nobody may change it any more."""
        if self.limited and self.rejects and self.is_full(body.n):
            return 0
        if self.prioritises and len(props) > 2 and props[0] & _HAS_PRIORITY:
            self.prioritise(props)
        self._close_tail()
        t = self.open_tail()
        if self.ttl_ms >= 0 and (ttl_ms < 0 or ttl_ms > self.ttl_ms):
            ttl_ms = self.ttl_ms
        self.may_expire = self.may_expire or ttl_ms >= 0
        t.add_whole(key, props, body, ttl_ms, flags)
        self.next += 1
        self.ready += 1
        self.ready_bytes += body.n
        self.published += 1
        self._close_tail()
        self.mark_dirty()
        if self.limited:
            self.enforce_limits()
        return 1

    def append_run(self, b):  # type: ignore[no-untyped-def]
        """Add all messages of another batch."""
        for k in range(b.count):
            e = b.index_at + entry.SIZE * k
            message = entry.read(b.index.p, e)
            m = b.meta_at + message.meta
            key_len = message.key_len
            props_len = message.props_len
            body = b.body_at + message.body
            body_len = message.body_len
            ttl_ms = entry.ttl_ms(b.index.p, e)
            flags = entry.flags(b.index.p, e) & ~entry.EXPIRES
            self.append(b.meta.p, m, key_len, b.meta.p, m + key_len, props_len, b.body.p, body, body_len, ttl_ms, flags)

    def adopt_run(self, b):  # type: ignore[no-untyped-def]
        """As `append_run` where there is no tail yet: a large batch becomes the tail, and its messages are not copied."""
        for k in range(b.count):
            e = entry.SIZE * k
            if self.prioritises:
                message = entry.read(b.index.p, e)
                m = message.meta + message.key_len
                if message.props_len > 2 and b.meta.p[m] & _HAS_PRIORITY:
                    self.prioritise(bytes(b.meta.p[m : m + message.props_len]))
            ttl_ms = entry.ttl_ms(b.index.p, e)
            if self.ttl_ms >= 0 and (ttl_ms < 0 or ttl_ms > self.ttl_ms):
                ttl_ms = self.ttl_ms
                entry.put_flags(b.index.p, e, ttl_ms, entry.flags(b.index.p, e))
            self.may_expire = self.may_expire or ttl_ms >= 0
        b.first = self.next
        b.time_ms = self.broker.now_ms
        self.tail = b
        self.tail_first = self.next
        self.tail_settled = 0
        self.next += b.count
        self.ready += b.count
        self.ready_bytes += b.body.n
        self.published += b.count
        self.mark_dirty()
        if self.limited:
            self.enforce_limits()

    def append_journaled(
        self, key: bytes, props: bytes, body: bytes | Buf, ttl_ms: int, flags: int, sequence: int
    ) -> None:
        """Add a message of a journal record. If its body is a Buf, the record has no other message for this queue."""
        if isinstance(body, Buf):
            self._journaled(0, self.append_whole, key, props, body, ttl_ms, flags)
            if self.backlog:
                self.backlog[len(self.backlog) - 1].journal = sequence
        else:
            self._journaled(sequence, self.append_bytes, key, props, body, ttl_ms, flags)

    def append_journaled_run(self, batch: Batch, sequence: int) -> None:
        """Add all messages of a batch of a journal record; it may become part of this queue."""
        if batch.size() > ADOPTED and not self.stream:
            if self.tail is not None:
                self.broker.flush(self)
            if self.deleted:
                return
            if self.tail is None:
                self._journaled(sequence, self.adopt_run, batch)
                return
        self._journaled(sequence, self.append_run, batch)

    def _journaled(self, sequence: int, append: Callable[..., Any], *what: object) -> None:
        """Limits that refuse were asked before the record was written. Those that drop are for the end of a replay."""
        rejects, self.rejects = self.rejects, False
        limited, self.limited = self.limited, self.limited and not rejects and not self.broker.replaying
        append(*what)
        self.rejects, self.limited = rejects, limited
        if self.tail is not None and sequence:
            self.tail.journal = sequence

    def open_tail(self) -> Batch:
        t = self.broker.take_batch()
        t.start(self.next, self.broker.now_ms)
        self.tail = t
        self.tail_first = self.next
        self.tail_settled = 0
        return t

    def _close_tail(self) -> None:
        """Put the tail behind the batches that wait to be written. Nothing is delivered until they are."""
        tail = self.tail
        if tail is None:
            return
        if not self.backlog:
            self.broker.slow[self] = None
            self._hold_back(not self.broker.full)
        self.backlog.append(tail)
        self.tail = None
        self.tail_first = self.next
        self.tail_settled = 0

    def _hold_back(self, yes: bool) -> None:
        """Whether deliveries wait for the backlog to be written. They do not wait on a full disk, as acks may make room."""
        if yes and not self.held_back:
            self.begin_return()
        elif self.held_back and not yes:
            self.end_return()
        self.held_back = yes

    def _go_on_full(self) -> None:
        """There is no room for the backlog: deliveries go on, but they alone are no reason to try the write again."""
        self.held_back = False
        self.returning -= 1
        self.broker.pump_later(self)

    @property
    def unwritten_from(self) -> int:
        """The first offset whose message is not in the files yet."""
        return self.backlog[0].first if self.backlog else self.tail_first

    def mark_dirty(self) -> None:
        """Have the next turn look at this queue."""
        if not self.dirty and not self.deleted:
            self.dirty = True
            self.broker.dirty.append(self)

    def show(self) -> None:
        """Something has been delivered: that is to be in the files before it is on its way to a peer (A9)."""
        self.shown = True
        self.broker.unmarked[self] = None

    def turn(self) -> None:
        """The tail is large enough for a write of its own."""
        self.pump()
        self.broker.flush(self)

    # -- limits ----------------------------------------------------------------------------------------------

    def is_full(self, body_len: int) -> bool:
        """Whether one more message would exceed a limit, after consumers took what they can."""
        if not self._over(1, body_len):
            return False
        self._pump_early()
        return self._over(1, body_len)

    def refuses(self, more: int, more_bytes: int) -> bool:
        """Whether a transaction's messages would exceed a limit."""
        self._pump_early()
        return self._over(more, more_bytes)

    def _pump_early(self) -> None:
        """Before the turn; see `Broker.unmarked`."""
        self.broker.unmarked[self] = None
        self.pump()

    def _over(self, more: int, more_bytes: int) -> bool:
        """Whether a limit is exceeded by so many messages and bytes more, or fewer, than there are."""
        return (0 <= self.max_length < self.ready + len(self.delays) + self.coming + more) or (
            not self.estimates
            and 0 <= self.max_bytes < self.ready_bytes + self.delays.bytes + self.coming_bytes + more_bytes
        )

    def enforce_limits(self) -> None:
        """drop-head: drop the oldest ready messages until the limits hold."""
        if self.rejects or not self._over(0, 0):
            return
        self.pump()
        many = self._over(-LEAVING_PER_TURN, -(LEAVING_PER_TURN << 10))  # a policy has made the limit smaller
        while self.ready and self._over(0, 0) and not self.checking:
            # a consumer may take what is behind an expired head, in the next turn: only then is it known how many are too many
            if (many or self._head_has_expired()) and not self._may_leave():
                return
            self.patient = True
            self._leave_head("maxlen", DROPPED)
            self.patient = False

    # -- deliver ---------------------------------------------------------------------------------------------

    def contain(self, error: Exception) -> None:
        """Work of this queue has failed: it is out of service until a restart."""
        self.broker.faults.take_out(self, error)

    def pump(self) -> None:
        """Deliver ready messages while a consumer has credit. One that fails loses its connection; the queue goes on."""
        if self.ready <= 0 or self.late or self.returning:
            return
        while True:
            try:
                self.deliver_ready()
                return
            except Exception as error:
                c = self.serving
                if c is None and self.rota is not None:
                    c = self.rota.asking
                if c is None:
                    raise
                self.serving = None
                self.patient = False
                c.undo()
                self.remove_consumer(c)
                self.broker.faults.consumer_failed(c, error)

    def deliver_ready(self) -> None:
        """What `pump` does, without the wall around consumers."""
        left = self.broker.allowance
        self.patient = True
        while self.ready > 0:
            if left <= 0:
                self.broker.pump_later(self)
                break
            c = self.pick()
            if c is None:
                break
            if self.ranked:
                self.admit()
            if self.requeued_ready:
                left -= _AGAIN_COST
                if not self.deliver_requeued(c):
                    break
                continue
            w = self.window()
            if w is None:
                if self.checking:
                    break
                continue
            i = self.cursor - w.first
            n = w.count - i
            if n > self.burst:
                n = self.burst
            if self.may_expire and w is not self.tail:
                n = w.live_run(i, n, self.clock_of(w))
                if n == 0:
                    if not self._leave_expired():
                        break
                    continue
            if n > left:
                n = left
            self.serving = c
            if self.cursor < self.doubt:
                k = c.deliver(w, i, 1, 1)
            else:
                k = c.deliver(w, i, n, 0)
            self.serving = None
            if k:
                left -= k + (self.took(c, w, i, k) >> 10)
            else:
                self.turn_away(c)
        self.patient = False
        self.broker.allowance = left

    def took(self, c, w, i, k):  # type: ignore[no-untyped-def]
        """k messages from index i of window w on have gone to c. Returns the bytes of their bodies."""
        unacked = self.given(c, k)
        offset = self.cursor
        self.cursor = offset + k
        self.ready -= k
        size = w.body_bytes(i, k)
        self.ready_bytes -= size
        self.delivered += k
        if not self.shown:
            self.show()
        if not unacked:
            self.settle(offset, k, _ACKED)
        elif not self.dirty:
            self.mark_dirty()
        return size

    def given(self, c, k):  # type: ignore[no-untyped-def]
        """Count k messages that have just been delivered to consumer c. Returns whether they are unacked now.

        Nothing may raise between the delivery and this call. The channel already has an entry for each of them, and it forgets a
        consumer whose count of unacked messages is 0: an ack would then find no consumer.
        """
        if c.no_ack and not c.lent:
            return False
        self.unacked += k
        if c.lent:
            c.lent = False
        else:
            c.unacked += k
        return True

    def turn_away(self, c: Consumer) -> None:
        """The properties of the message at the head do not fit into its frames: that consumer ends, the message waits for another.

        Also in a queue that deletes itself: it stays, since the message is in it.
        """
        self.remove_consumer(c)
        self.serving = c
        c.turned_away()
        self.serving = None

    def pick(self):  # type: ignore[no-untyped-def]
        """The consumer whose turn it is, None if none has credit; `burst` says how many messages it may get at once."""
        rota = self.rota
        if rota is not None:
            c = rota.next()  # type: ignore[no-untyped-call]
            self.burst = rota.burst
            return c
        if not self.consumers:
            return None
        c = self.consumers[0]  # alone, or the single active one
        self.serving = c
        self.burst = c.credit()
        self.serving = None
        return c if self.burst > 0 else None

    def resume(self, c: Consumer) -> None:
        """A consumer may have credit again."""
        if c.idle:
            c.idle = False
            if self.rota is not None and c.serial:
                self.rota.put(c)
        self.mark_dirty()

    def window(self):  # type: ignore[no-untyped-def]
        """The batch that holds the message at the cursor; None if what was there is lost."""
        f = self.front
        if f is not None and f.first <= self.cursor and self.cursor < f.first + f.count:
            return f
        t = self.tail
        if t is not None and self.cursor >= t.first:
            return t
        return self.load_front()

    def load_front(self) -> Batch | None:
        self._release_front()
        for b in self.backlog:
            if b.first <= self.cursor < b.first + b.count:
                return b
        self._ahead.patient = self.patient
        self.front = self._load_at_cursor(self._ahead)
        return self.front

    def _load_at_cursor(self, window: Window) -> Batch | None:
        """The batch in the files that holds the message at the cursor; None if what was there is lost, or has to be checked first."""
        found = self.log.reader.load(window, self.cursor)
        self._write_off_lost()
        if window.waits is not None:
            self._check(window)
            return None
        if found and self.cursor >= window.batch.first:
            return window.batch
        self.cursor = window.batch.first if found else self.unwritten_from
        self.ready = self.next - self.cursor + self.requeued.count
        return window.batch if found else None

    def _check(self, window: Window) -> None:
        """Read in pieces what the window waits for. Nothing is delivered meanwhile."""
        waits, window.waits = window.waits, None
        if not self.checking and waits is not None:
            self.checking = True
            self.begin_return()
            self.broker.jobs.start(self._check_steps(*waits), self._checked, self)

    def _check_steps(self, *what: Any) -> Iterator[None]:
        for step in self.log.reader.check_steps(*what):
            if self.deleted:
                return
            yield step

    def _checked(self) -> None:
        self.checking = False
        self.end_return()

    def _release_front(self) -> None:
        if self.front is not None and self.front is not self._ahead.batch:
            self.broker.give_batch(self.front)
        self.front = None

    def _write_off_lost(self) -> None:
        """Damage was stepped over: those messages are out of the queue, the alarm has been raised by the store."""
        for start, count in self.log.reader.lost:
            for offset, n in self.requeued.remove(start, count):
                self.settle(offset, n, DROPPED)
                self.ready -= n
            if self.hold is not None:
                self.hold.lose(start, count)
            n = start + count - self.cursor
            if start <= self.cursor and n > 0:  # what lies further ahead is found again when the cursor comes there
                self.settle(self.cursor, n, DROPPED)
                self.ready -= n
                self.cursor += n
        self.requeued_ready = self.requeued.count > 0
        self.log.reader.lost.clear()

    def _forget_unreadable(self, offset: int) -> None:
        if self.requeued.discard(offset):
            self.requeued_ready = self.requeued.count > 0
            self.ready -= 1
            self.settle(offset, 1, DROPPED)

    def admit(self) -> None:
        """With x-max-priority: sort what has arrived by priority. Then nothing is left from the cursor on.

        A large batch is not checked for that, but when its messages are read.
        """
        most, ranks = self._priority_max(), self.requeued
        assert isinstance(ranks, Ranks)
        while self.cursor < self.next:
            found = self._in_memory(self.cursor)
            w = self._load_at_cursor(self._outline) if found is None else found[0]
            if w is not None:
                i, count = self.cursor - w.first, w.count
                while i < count:
                    rank, start = min(w.priority_of(i), most), i
                    i += 1
                    while i < count and min(w.priority_of(i), most) == rank:
                        i += 1
                    ranks.put(rank, w.first + start, i - start)
                self.cursor = w.first + count
                self.requeued_ready = True

    def _rank(self, offset: int) -> int:
        found = self._find_outline(offset)
        return 0 if found is None else min(found[0].priority_of(found[1]), self._priority_max())

    def _priority_max(self) -> int:
        return self.settings.max_priority if self.settings.max_priority > 0 else QUORUM_PRIORITY_MAX

    def _earlier(self, offset: int) -> int:
        """How often a message that is in `requeued` was delivered before."""
        return self.redeliveries.of(offset, 0 if self.ranked and offset >= self.doubt else 1)

    def deliver_requeued(self, c: Consumer) -> bool:
        """Deliver the first of the messages that came back, with its number of earlier deliveries (A8), or have it leave.

        False if that has to wait for the next turn.
        """
        offset = self.requeued.first()
        found = self._find(offset)
        if found is None:
            if self.checking:
                return False
            self._forget_unreadable(offset)
            return True
        key, props, body, _ = found[0].parts(found[1])
        if self.may_expire and self._expired(offset):
            return self._leave_expired()
        if 0 <= self.delivery_limit < self.redeliveries.of(offset, 0):  # it was unacked when the broker went down
            if not self._may_leave():
                return False
            self._leave_head("delivery_limit", DROPPED)
            return True
        count = self._earlier(offset)
        if count:
            counted = self.broker.with_delivery_count(props, count)
            self.serving = c
            if c.takes(len(counted)):
                props = counted
            elif not c.takes(len(props)):
                self.turn_away(c)
                return True
            c.deliver_again(key, props, body, offset)
            unacked = self.given(c, 1)
            self.serving = None
            self.redelivered += 1
        else:
            self.serving = c
            taken = c.deliver(found[0], found[1], 1, 0)
            self.serving = None
            if not taken:
                self.turn_away(c)
                return True
            unacked = self.given(c, 1)
        self._pop_requeued()
        self.ready_bytes -= len(body)
        self.delivered += 1
        if not self.shown:
            self.show()
        if not unacked:
            self.settle(offset, 1, ACKED)
        else:
            self.redeliveries.note(offset, count + 1)
            self.settlements.add(offset, 1, REDELIVERED, count + 1)
            self.mark_dirty()
        return True

    def _pop_requeued(self) -> int:
        offset = self.requeued.pop_first()
        self.requeued_ready = self.requeued.count > 0
        self.ready -= 1
        return offset

    def get(self, c: Consumer) -> bool:
        """Deliver one ready message to c, whatever its credit, after consumers took what they can and what is too much has left.

        False if there is none, or none in this turn: then some are `ready`.
        """
        self.used_ms = self.broker.timers.now_ms
        self.broker.unmarked[self] = None
        if self.consumers:
            self.pump()
        if self.limited:
            self.enforce_limits()
        if self.late or self.returning:
            return False
        before = self.delivered
        self.patient = True
        while self.ready > 0 and self.delivered == before and not self.checking:
            if self.ranked:
                self.admit()
            if self.requeued_ready:
                if not self.deliver_requeued(c):
                    break
                continue
            w = self.window()
            if w is None:
                continue
            i = self.cursor - w.first
            if self.may_expire and not w.live_run(i, 1, self.clock_of(w)):
                if not self._leave_expired():
                    break
                continue
            self.serving = c
            taken = c.deliver(w, i, 1, 1 if self.cursor < self.doubt else 0)
            self.serving = None
            if taken:
                self.took(c, w, i, 1)
            else:
                self.turn_away(c)
        self.patient = False
        return self.delivered > before

    # -- settle ----------------------------------------------------------------------------------------------

    def settle(self, offset, n, outcome, deliveries=0):  # type: ignore[no-untyped-def]
        """n messages from `offset` on are out of the queue. `deliveries`: as docs/formats.md has it for a settlement."""
        if self.deleted:
            return
        self.settlements.add(offset, n, outcome, deliveries)
        end = offset + n
        if end > self.tail_first:
            self.tail_settled += end - (offset if offset > self.tail_first else self.tail_first)
        if outcome == _ACKED:
            self.acked += n
        if self.redeliveries.pages:
            self.redeliveries.forget(offset, end)
        if not self.dirty:
            self.mark_dirty()

    def ack(self, offset, n, c=None):  # type: ignore[no-untyped-def]
        """n unacked messages were acknowledged, by c if it was a consumer."""
        self.unacked -= n
        self.settle(offset, n, _ACKED)

    def reject(self, offset: int, n: int, _c: Consumer | None = None) -> None:
        """n unacked messages were rejected for good: dead-lettered, or dropped (A7)."""
        self.unacked -= n
        if self.deleted:
            return
        if self.settings.dead_letter_exchange is None:
            self.settle(offset, n, REJECTED)
        else:
            self.dead_letter(offset, n, "rejected", REJECTED, 1)

    def retry(self, offset: int, n: int, body_bytes: int, how: str = "returned") -> None:
        """A consumer could not do with n unacked messages: they come back, later if the queue delays them (A15).

        `how`: "failed" by basic.reject, "returned" by basic.nack; `x-delayed-retry-type` may name one of them.
        """
        if self.settings.retry_min_ms < 0 or self.deleted or self.settings.retry_of not in ("all", how):
            self.requeue(offset, n, body_bytes)
            return
        for o in range(offset, offset + n):
            self.requeue(o, 1, 0, True)
        self._wake_retries()

    def _delay(self, offset: int) -> None:
        found = self._find_outline(offset)
        if found is None:
            self.settle(offset, 1, DROPPED)
        else:
            size = found[0].body_bytes(found[1], 1)
            self.delays.add(self.broker.timers.now_ms, offset, size, self.redeliveries.of(offset, 1))

    def _wake_retries(self) -> None:
        if len(self.delays):  # not before the next turn, whatever is due already
            timers = self.broker.timers
            timers.after(max(self.delays.next_ms - timers.now_ms, 1), self._retries_due)

    def _retries_due(self) -> None:
        for offset, size in self.delays.take(self.broker.timers.now_ms, RETRIES_PER_TURN):
            self._back(offset, 1, size)
        self._wake_retries()

    def end_delays(self) -> Iterator[None]:
        """Make all delayed messages due now, in pieces."""
        while len(self.delays):
            for offset, size in self.delays.take(EVER_MS, RETRIES_PER_PIECE):
                self._back(offset, 1, size)
            yield

    def requeue(self, offset: int, n: int, body_bytes: int, later: bool = False) -> None:
        """n unacked messages come back to their original position (A5)."""
        self.unacked -= n
        if self.deleted:
            return
        if self.delivery_limit >= 0:
            over = {o for o in range(offset, offset + n) if self.redeliveries.of(o, 1) > self.delivery_limit}
            if over:
                for o in range(offset, offset + n):
                    found = self._find_outline(o)
                    if found is None:
                        self.settle(o, 1, DROPPED)
                    elif o in over:
                        self.dead_letter(o, 1, "delivery_limit", DROPPED, self.redeliveries.of(o, 1))
                    else:
                        self._back(o, 1, found[0].body_bytes(found[1], 1))
                return
        if later:
            self._delay(offset)
        else:
            self._back(offset, n, body_bytes)

    def begin_return(self) -> None:
        """Messages come back piece by piece: until the last one is there nothing is delivered."""
        self.returning += 1

    def end_return(self) -> None:
        self.returning -= 1
        self.mark_dirty()

    def _back(self, offset: int, n: int, body_bytes: int) -> None:
        self.requeued.add(offset, n)
        self.requeued_ready = True
        self.ready += n
        self.ready_bytes += body_bytes
        self.mark_dirty()

    # -- rare events -----------------------------------------------------------------------------------------

    def read(self, offset: int) -> tuple[bytes, bytes, bytes, int] | None:
        """(key, props, body, flags) of any message that is still stored; None if it is lost to damage: then settle it."""
        found = self._find(offset)
        return found[0].message(found[1]) if found else None

    def read_steps(self, offset: int) -> Generator[None, None, tuple[bytes, bytes, Body, int] | None]:
        """Do what `read` does in pieces: a large batch is checked slice by slice. A large body is returned without being copied or read."""
        found = self._in_memory(offset)
        if found is None:
            window = self._behind
            loaded = yield from self.log.reader.load_steps(window, offset)
            self._write_off_lost()
            if not loaded or not window.holds(offset):
                return None
            found = window.batch, offset - window.batch.first
        return found[0].parts(found[1])

    def _in_memory(self, offset: int) -> tuple[Batch, int] | None:
        for b in (self.tail, self.front, self._behind.batch, *self.backlog):
            if b is not None and b.first <= offset < b.first + b.count:
                return b, offset - b.first
        return None

    def _find(self, offset: int) -> tuple[Batch, int] | None:
        found = self._in_memory(offset)
        if found is None:
            self._behind.patient = self.patient
            found = self._load_behind(self._behind, offset)
        return found

    def _find_outline(self, offset: int) -> tuple[Batch, int] | None:
        """Find a message as `_find` does, for callers that do not need its body: a large batch is not checked."""
        return self._in_memory(offset) or self._load_behind(self._outline, offset)

    def _load_behind(self, window: Window, offset: int) -> tuple[Batch, int] | None:
        if not window.holds(offset):
            found = self.log.reader.load(window, offset)
            self._write_off_lost()
            if window.waits is not None:
                self._check(window)
                return None
            if not found or not window.holds(offset):
                return None
        return window.batch, offset - window.batch.first

    def _expired(self, offset: int) -> bool:
        found = self._find_outline(offset)
        return found is not None and 0 <= found[0].expires_at(found[1]) <= self.clock_of(found[0])

    def _head_has_expired(self) -> bool:
        if not self.may_expire:
            return False
        self.patient = True
        found = self._head()
        self.patient = False
        return found is not None and 0 <= found[0].expires_at(found[1]) <= self.clock_of(found[0])

    def _leave_head(self, reason: str, outcome: int, most: int = 1) -> None:
        """The first ready message expires or gives way, with those right behind it up to `most`: dead-letter or drop them."""
        found = self._head()
        if found is None:
            return
        w, i = found
        offset = w.first + i
        deliveries = 0
        if self.requeued_ready:
            n = 1
            deliveries = self._earlier(offset)
            self._pop_requeued()
            self.leaving -= AGAIN_LEAVES
        else:
            n = most
            self.cursor += n
            self.ready -= n
        size = w.body_bytes(i, n)
        self.ready_bytes -= size
        self.leaving -= n + (size >> 10)
        self.dead_letter(offset, n, reason, outcome, deliveries)

    def _may_leave(self) -> bool:
        """Whether messages may still leave in this turn; if not, the next one goes on."""
        if self.leaving_turn != self.broker.turns:
            self.leaving_turn, self.leaving = self.broker.turns, LEAVING_PER_TURN
        if self.leaving <= 0:
            self._wake_in(0)
        return self.leaving > 0

    def _leave_expired(self) -> bool:
        """The first ready message has expired: it leaves, and so do those right behind it. False if it has to wait for the next turn."""
        if not self._may_leave():
            return False
        n = 1
        if not self.requeued_ready:
            w = self.window()
            if w is not None:
                i = self.cursor - w.first
                most, now_ms = min(w.count - i, self.leaving), self.clock_of(w)
                while n < most and 0 <= w.expires_at(i + n) <= now_ms:
                    n += 1
        self._leave_head("expired", EXPIRED, n)
        return True

    def dead_letter(self, offset: int, n: int, reason: str, outcome: int, deliveries: int = 0) -> None:
        """Move n messages that are out of reach of consumers to the dead-letter exchange, or settle them with `outcome`."""
        if self.settings.dead_letter_exchange is None:
            self.settle(offset, n, outcome, deliveries)
            return
        if deliveries and reason not in AFTER_DELIVERY:
            self.redeliveries.note(offset, self.redeliveries.of(offset, deliveries))
        self.moving += n
        self.broker.dead_letters.add(self, offset, n, reason)

    def moved(self, offset: int, reason: str, outcome: int = DEAD_LETTERED) -> None:
        """The dead-letter move of `offset` is done (or it was a cycle, and the message is dropped)."""
        self.moving -= 1
        self.settle(offset, 1, outcome, self.redeliveries.of(offset, int(reason in AFTER_DELIVERY)))

    def park(self, offset: int, reason: str, obstacle: Obstacle) -> None:
        """The dead-letter target is missing or full: the message stays, out of reach (X4)."""
        self.moving -= 1
        self.parked.add(offset, reason, obstacle, self.vhost.epoch.value)

    def expire(self) -> None:
        """Drop or dead-letter the messages at the head that have expired (only the head is looked at, like both peers)."""
        while self.ready > 0:
            self.patient = True  # a large message is checked in pieces before it may expire
            found = self._head()
            self.patient = False
            if self.checking:
                return
            if found is None:
                continue
            at = found[0].expires_at(found[1])
            left = at - self.clock_of(found[0])
            if at < 0 or left > 0:
                if at >= 0:
                    self._wake_in(left)
                return
            if not self._leave_expired():
                return

    def _wake_in(self, ms: int) -> None:
        """Have the turn so many milliseconds from now look at this queue."""
        at = self.broker.timers.now_ms + ms
        if self.expiry_timer < 0 or at < self.expiry_timer:
            self.expiry_timer = at
            self.broker.timers.after(ms, self._expiry_due)

    def clock_of(self, b):  # type: ignore[no-untyped-def]
        """The time to compare with when the messages of a batch expire.

        A batch from the future was written before the wall clock was set back: its messages live from that moment on.
        """
        now_ms = self.broker.now_ms
        return now_ms if b.time_ms <= now_ms else now_ms + b.time_ms - self.broker.set_back_ms

    def _head(self) -> tuple[Batch, int] | None:
        """Where the first ready message is; None if it was lost to damage, then there is another first one."""
        if self.ranked:
            self.admit()
        if self.requeued_ready:
            offset = self.requeued.first()
            found = self._find(offset)
            if found is None and not self.checking:
                self._forget_unreadable(offset)
            return found
        w = self.window()
        return None if w is None else (w, self.cursor - w.first)

    def _expiry_due(self) -> None:
        self.expiry_timer = -1
        self.mark_dirty()

    def purge(self) -> int:
        """Do all of `purging` at once. Returns how many messages were ready or held."""
        count, steps = self.purging()
        for _ in steps:
            pass
        return count

    def purging(self) -> tuple[int, Iterator[None]]:
        """Remove all ready and delayed messages. Returns how many were ready or held, and the steps that settle them."""
        count = self.ready + self.held
        again = 0 if self.ranked else 1
        taken: list[tuple[Iterable[tuple[int, int]], int]] = []
        if self.hold is not None:
            taken += ((self.hold.fresh, 0), (self.hold.again, again))
            self.hold = None
        delayed, free = self.delays.take_all()
        taken += ((delayed, 1), (self.requeued, again))
        self.requeued = Ranks(self._rank) if self.ranked else RangeSet()
        self.requeued_ready = False
        counts, self.redeliveries = self.redeliveries, Deliveries()  # nobody has had what is settled here
        self._clear_ready(self.next, PURGED)
        self.redeliveries = counts
        self.ready = 0
        self.ready_bytes = self.estimates = 0
        taken += ((kind.offsets, int(reason in AFTER_DELIVERY)) for (reason, _), kind in self.parked.kinds.items())
        self.parked.clear()
        return count, chain(purging.settled(self, taken), free)

    def _clear_ready(self, end: int, outcome: int) -> None:
        if end > self.cursor:
            self.settle(self.cursor, end - self.cursor, outcome)
            self.cursor = end
            self._release_front()

    def settle_until(self, end: int) -> None:
        """Settle every ready message below `end` for the group that reads this queue by range; again is harmless."""
        end = min(end, self.next)
        if self.hold is not None:
            self.hold.settle_below(end)
            if not self.hold.count:
                self.hold = None
        self.take_bytes_below(end)
        for start, n in self.requeued.remove_below(end):
            self.settle(start, n, RANGE_SETTLED, 0 if self.ranked else 1)
            self.ready -= n
        self.requeued_ready = self.requeued.count > 0
        if end > self.cursor:
            self.ready -= end - self.cursor
            self._clear_ready(end, RANGE_SETTLED)
        if not self.ready:
            self.ready_bytes = self.estimates = 0

    def take_bytes_below(self, end: int) -> None:
        """Take the bodies of the ready messages below `end` out of `ready_bytes`."""
        if end >= self.next:
            return
        if self.max_bytes < 0:  # nothing hangs on it: an estimate
            self.estimates += 1
            gone = self.requeued.count_in(0, end) + max(end - self.cursor, 0)
            self.ready_bytes -= self.ready_bytes * gone // max(self.ready, 1)
            return
        below = takewhile(lambda run: run[0] < end, self.requeued.after(0))
        ranges = [(s, min(n, end - s)) for s, n in below]
        ranges += [(self.cursor, end - self.cursor)] if end > self.cursor else []
        window = Window()  # the same batch may hold many of them
        for start, n in ranges:
            written = min(n, max(self.unwritten_from - start, 0))
            self.ready_bytes -= self.log.reader.body_bytes(start, written, window)
            for b in (*self.backlog, self.tail):
                if b is not None:
                    first = max(start + written, b.first)
                    self.ready_bytes -= b.body_bytes(first - b.first, min(start + n, b.first + b.count) - first)
        self._write_off_lost()

    # -- turn ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the messages and settlements of this turn. Raises StoreFull or StoreError; then it may be called again.

        A large batch is written in slices, one in each call. The queue stays dirty until the whole batch is in the file.
        """
        delivered, self.shown = self.shown, False
        if self.may_expire and not self.broker.replaying:
            self.expire()
        if self.limited and not self.broker.replaying:
            self.enforce_limits()
        if self.ranked:
            self.admit()  # while it is in memory
        tail = self.tail
        if self.backlog or (tail is not None and tail.size() > pieces.WHOLE_BYTES):
            self._close_tail()
            self._hold_back(True)
            try:
                self._write_backlog(delivered)
            except StoreFull:
                self._go_on_full()
                self._settle_written()
                raise
            if self.backlog:
                self._settle_written()
                if self not in self.broker.pressed:
                    self.mark_dirty()
                return
            tail = None
        if tail is not None:
            if self.tail_settled == tail.count and not tail.journal and not self.archived:
                self.settlements.cut(tail.first)
                self.log.skip(tail.first, tail.count)
            else:
                try:
                    self.log.write(tail)
                except StoreFull:
                    self._settle_written()
                    raise
            self.tail = None
            self.tail_first = self.next
            self.tail_settled = 0
            self._written(tail)
        mark = self.cursor if self.hold is None else self.hold.mark(self.cursor)
        if self.settlements.entries.n or (mark > self.log.mark and self.messages > self.next - mark):
            self.log.settle(self.settlements, mark)
            self.settlements.clear()
        if self.ready == 0:
            self.ready_bytes = self.estimates = 0  # what was lost to damage is in it still
            if self._ahead.segment is not None:
                self._release_front()
                self._ahead.release()
        if not self.requeued_ready and self._behind.segment is not None:
            self._behind.release()
        if self._outline.segment is not None:
            self._outline.release()

    def _write_backlog(self, delivered: bool) -> None:
        """Write a slice of the first large batch, and the batches before it. `delivered`: there may be deliveries since the last flush."""
        left = pieces.SLICE_BYTES
        while self.backlog and left > 0:
            batch = self.backlog[0]
            # what is on its way to a peer must not be in memory alone (A9)
            shown = delivered and batch.first < self.cursor
            if not self.log.is_writing and (batch.size() <= pieces.WHOLE_BYTES or shown):
                self.log.write(batch)
                left -= batch.size()
            elif self.broker.store.pressed:
                self.broker.pressed[self] = None
                return
            else:
                left -= self.log.write_some(batch, left)
                if self.log.is_writing:
                    return
            self.backlog.popleft()
            self._written(batch)
        if not self.backlog:
            self.broker.slow.pop(self, None)
            self._hold_back(False)

    def _written(self, batch: Batch) -> None:
        """A batch has been written. It stays in memory if it is the next to be delivered and there is a consumer."""
        if self.front is None and batch.first <= self.cursor < batch.first + batch.count and self.consumers:
            self.front = batch
        else:
            self.broker.give_batch(batch)

    def _settle_written(self) -> None:
        """Not all is written, yet; what is settled of the messages before it is, and makes room where there is none (D4).

        So is how far they have been delivered: that is on its way to a peer (A9).
        """
        later = self.settlements.split(self.unwritten_from)
        mark = min(self.cursor if self.hold is None else self.hold.mark(self.cursor), self.unwritten_from)
        try:
            if self.settlements.entries.n or (mark > self.log.mark and self.messages > self.next - mark):
                self.log.settle(self.settlements, mark)
                self.settlements.clear()
        finally:
            self.settlements.join(later)

    # -- consumers -------------------------------------------------------------------------------------------

    def add_consumer(self, c: Consumer) -> None:
        consumers = self.consumers
        self.serials += 1
        c.serial = self.serials
        insert_consumer(consumers, c, int(self.single and len(consumers) > 0))  # the active one stays, whoever comes
        if self.rota is not None:
            self.rota.put(c)
        elif len(consumers) > 1 and not self.single:
            self.rota = Rota()
            for each in consumers:
                self.rota.put(each)
        self.had_consumer = True
        self.mark_dirty()

    def remove_consumer(self, c: Consumer) -> None:
        if not c.serial:
            return
        del self.consumers[consumer_index(self.consumers, c)]
        self._gone(c)
        if len(self.consumers) == 1 and self.rota is not None:
            last = self.consumers[0]
            self.rota.drop(last)
            last.idle = False
            self.rota = None
        self.used_ms = self.broker.timers.now_ms

    def _gone(self, c: Consumer) -> None:
        if self.rota is not None:
            self.rota.drop(c)
        c.serial, c.idle = 0, False

    def take_consumers(self) -> list[Consumer]:
        """The queue goes: those who are to hear of it."""
        consumers, self.consumers = self.consumers, []
        self.rota = None  # as a whole: that is cheaper than to drop one after the other
        for c in consumers:
            c.line = c.before = c.after = None
            self._gone(c)
        return consumers

    @property
    def single_active(self) -> Consumer | None:
        """With x-single-active-consumer: the consumer that is served, the others wait for its end."""
        return self.consumers[0] if self.single and self.consumers else None

    @property
    def messages(self) -> int:
        """Ready, unacked, held, those on their way to a dead-letter queue, and those that wait to be tried again."""
        return self.ready + self.unacked + self.held + self.moving + len(self.parked) + len(self.delays)

    @property
    def held(self) -> int:
        """Messages that are held for the group that reads this queue by range."""
        return 0 if self.hold is None else self.hold.count

    def recover(self) -> None:
        """Take the books from what is on disk."""
        found = self.log.recover()
        self.cursor, self.next = found.cursor, self.log.next
        self.tail_first = self.next
        self.ready = found.ready
        self.ready_bytes = found.ready_bytes
        self.redeliveries = Deliveries(found.redeliveries.items())
        for start, count in found.requeued:
            self.requeued.add(start, count)
        self.requeued_ready = self.requeued.count > 0
        self.doubt = found.doubt
        if self.ready:
            self.may_expire = True  # not yet: the journal may know better where they are

    def release_windows(self) -> None:
        """Give back what was read at the start."""
        self._release_front()
        self._ahead.release()
        self._behind.release()
        self._outline.release()

    def settle_recovered(self, offset: int, count: int, outcome: int) -> None:
        """A journal record of before the start settles these; those that are settled already are passed over."""
        for o in range(offset, min(offset + count, self.next)):
            deliveries = 0 if o >= self.cursor else self._earlier(o)
            if o >= self.cursor:
                if o > self.cursor:
                    self.requeued.add(self.cursor, o - self.cursor)
                self.cursor = o + 1
            elif not self.requeued.discard(o):
                continue
            message = self.read(o)
            self.ready -= 1
            self.ready_bytes -= len(message[2]) if message else 0
            self.settle(o, 1, outcome, deliveries)
        self.requeued_ready = self.requeued.count > 0

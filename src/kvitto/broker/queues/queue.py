"""What all queues have in common, whether their messages are consumed (`WorkQueue`) or read (`Stream`).

A queue appends messages, writes them once per turn in `flush`, and has a list of consumers. The two kinds decide which consumer gets a
message and when it leaves. The data plane (`append`) is compiled, and its only cost per message is the copy.

Invariants: the messages from `tail.first` on are only in memory, in the open batch. While closed batches wait to be written, nothing is
delivered. A queue writes to the disk only in `flush`, and reads only what it has written.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvitto.broker.queues.consumer import Consumer
from kvitto.broker.queues.ranges import RangeSet
from kvitto.broker.queues.rota import consumer_index, insert_consumer
from kvitto.broker.queues.tail import Tail
from kvitto.format import entry
from kvitto.format.entry import TTL_MAX
from kvitto.store import pieces
from kvitto.store.batch import Batch, Body
from kvitto.store.log import Log
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.broker.administration.arguments import QueueSettings
    from kvitto.broker.administration.policies import Policy
    from kvitto.broker.queues.hold import Hold
    from kvitto.broker.queues.hosts import Turns
    from kvitto.broker.vhost import VHost

TAIL_BYTES = 1 << 20
ADOPTED = 128 << 10
"""A batch with at least this many bytes is adopted as the open batch instead of being copied."""

NONE = RangeSet()
"""An empty set, which must not be changed."""

_TAIL_BYTES = TAIL_BYTES  # C variables when compiled
_HAS_PRIORITY = 8  # in the first byte of the property flags


@dataclass(frozen=True)
class Declaration:
    """The declared properties and arguments. An exclusive queue belongs to a connection and is deleted with it."""

    name: str
    arguments: dict[str, Any]
    durable: bool
    exclusive: bool = False
    auto_delete: bool = False


class Queue:
    stream = False
    """Whether messages are read by offset and stay in the queue."""
    routes_later = False
    """Whether its messages are routed once more, so that they keep the header BCC until then."""
    adopts = True
    """Whether a large batch of a journal record may become a batch of this queue as it is."""

    def __init__(self, broker: Turns, vhost: VHost, log: Log, settings: QueueSettings, declared: Declaration) -> None:
        self.broker = broker
        self.vhost = vhost
        self.name = declared.name
        self.log = log
        self.arguments = declared.arguments
        self.policy: Policy | None = None
        self.operator_policy: Policy | None = None
        self.durable = declared.durable
        self.exclusive = declared.exclusive
        self.owner: Any = None
        """The connection that an exclusive queue belongs to."""
        self.auto_delete = declared.auto_delete
        self.archived = settings.archive
        self.deleted = False
        self.fault: str | None = None
        """The reason why the queue is out of service (broker/faults.py). It then counts as deleted."""

        self.consumers: list[Consumer] = []
        self.serials = 0
        self.single = settings.single_active_consumer
        self.had_consumer = False
        self.serving: Consumer | None = None
        """The consumer whose code is running, and which is to blame if that raises an exception."""
        self.group: str | None = None
        self.group_holders: list[object] = []
        self.hold: Hold | None = None
        """The messages that are held for the group that reads this queue by range. A stream holds none."""
        self.used_ms = broker.timers.now_ms

        self.tail = Tail()
        self.ready_bytes = 0
        """The bytes of the bodies of the ready messages, or an estimate (broker/queues/sizes.py)."""
        self.unacked = self.unacked_bytes = 0
        """The unacked messages, and the bytes of their bodies if it is a work queue."""
        self.may_expire = False
        """Whether a message may have a time to live."""
        self.prioritises = settings.prioritises
        """Whether the first message with a priority gives the queue priorities (broker/queues/priorities.py)."""
        self.ttl_ms = -1
        self.limited = self.rejects = False
        """Whether there is a limit of messages or bytes, and whether a message that would exceed it is refused."""
        self.consumer_timeout_ms = -1
        self.return_cost = 0
        """The cost of one message that comes back, in units of 0.1 us."""

        self.dirty = False
        """Whether the next turn handles this queue."""
        self.late = False
        """Whether the next turn continues to deliver."""
        self.shown = False
        """Whether there are deliveries whose delivered mark is not in the files yet (A9)."""
        self.returning = 0
        """The number of reasons why nothing is delivered for now. Each of them ends with `end_return`."""
        self.held_back = False
        """Whether one of them is that closed batches are being written, or that the queue waits for a commit."""
        self.has_files = self.waits_for_commit = self.yields = False
        """Whether the log is known to have files, whether the queue waits for a commit with room for it (later_writes.py), and whether
        others are written first, because what has changed it last had changed many queues before.
        """
        self.checking = False
        """Whether one of them is that a large batch is being checked in pieces."""

        self.published = self.delivered = self.redelivered = self.acked = 0
        self.delivered_auto = self.gets = self.gets_auto = self.gets_empty = 0
        """Deliveries that needed no ack, and calls of basic.get: with acks, without, and those that found nothing."""
        self._set(settings)

    def _set(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.writes_all = settings.archive or settings.deduplication is not None
        """Whether a batch is written although all its messages are settled already."""
        self.ttl_ms = settings.ttl_ms
        self.consumer_timeout_ms = settings.consumer_timeout_ms
        self.may_expire = self.may_expire or settings.ttl_ms >= 0

    def take_settings(self, settings: QueueSettings) -> None:
        """Take the settings of changed policies. Messages that wait keep their time to live. New limits apply from the next turn on."""
        self._set(settings)
        for c in self.consumers:
            c.settings_changed()
        self.used_ms = self.broker.timers.now_ms
        self.broker.expire_unused(self)
        self.mark_dirty()

    def definition(self) -> dict[str, Any]:
        """What a start needs to restore this queue, without what is in the key of the definition."""
        return {"id": self.log.queue_id, "auto_delete": self.auto_delete, "arguments": self.arguments}

    def restore(self, definition: dict[str, Any]) -> None:
        """Restore from a stored `definition` what the constructor has not taken."""

    # -- counts ----------------------------------------------------------------------------------------------

    @property
    def next(self) -> int:
        """The offset that the next message gets."""
        return self.tail.next

    @property
    def ready(self) -> int:
        """The number of messages that can be delivered now."""
        raise NotImplementedError

    @property
    def cursor(self) -> int:
        """The offset from which on every message is ready and was never delivered."""
        raise NotImplementedError

    @property
    def out_of_order(self) -> list[tuple[RangeSet, bool]]:
        """Sets of messages below the cursor that are ready or held, and whether those of each set were delivered before."""
        return []

    @property
    def delayed(self) -> RangeSet:
        """Messages that wait for a delayed retry."""
        return NONE

    @property
    def held(self) -> int:
        """Messages that are held for the group that reads this queue by range."""
        return 0 if self.hold is None else self.hold.count

    @property
    def dead_lettering(self) -> int:
        """The number of messages that are being dead-lettered, or parked until a queue can take them."""
        return 0

    @property
    def messages(self) -> int:
        """All messages that are not settled."""
        return self.ready + self.unacked + self.held + self.dead_lettering

    @property
    def unwritten_from(self) -> int:
        """The first offset whose message is not in the files yet."""
        return self.tail.unwritten_from

    @property
    def unwritten_bytes(self) -> int:
        """The bytes of these messages."""
        return sum(batch.size() for batch in self.tail.batches)

    @property
    def own_bytes(self) -> int:
        """The bytes that they take in memory."""
        return sum(batch.own_bytes() for batch in self.tail.batches)

    # -- append ----------------------------------------------------------------------------------------------

    def append(self, key_p, key, key_len, props_p, props, props_len, body_p, body, body_len, ttl_ms, flags):  # type: ignore[no-untyped-def]
        """Append a message. Returns 0 if the queue refuses it (x-overflow), else 1. ttl_ms < 0: it has no time to live of its own."""
        if self.limited and self.rejects and self.is_full(body_len):
            return 0
        if self.prioritises and props_len > 2 and props_p[props] & _HAS_PRIORITY:
            self.prioritise(bytes(props_p[props : props + props_len]))
        t = self.tail.batch
        if t is None:
            t = self.open_tail()
        if self.ttl_ms >= 0 and (ttl_ms < 0 or ttl_ms > self.ttl_ms):
            ttl_ms = self.ttl_ms
        if ttl_ms >= 0:
            self.may_expire = True
            if t.time_ms != self.broker.now_ms:  # the batch was opened by an earlier read, or before the disk was full
                ttl_ms = max(0, min(ttl_ms + self.clock_of(t) - t.time_ms, TTL_MAX))
        t.add(key_p, key, key_len, props_p, props, props_len, body_p, body, body_len, ttl_ms, flags)
        self.tail.next += 1
        self.ready_bytes += body_len
        self.published += 1
        if not self.dirty or self.yields:
            self.mark_dirty()
        if self.limited:
            self.enforce_limits()
        if t.index.n + t.meta.n + t.body.n > _TAIL_BYTES and body_len <= _TAIL_BYTES and not self.broker.applying:
            self.write_early()
        return 1

    def kept_ms(self, props: bytes, ttl_ms: int) -> int:
        """Return with which time to live this queue stores a message that has `ttl_ms`. Whoever makes a batch for it has to ask."""
        return ttl_ms

    def prioritise(self, props: bytes) -> None:
        """Called before a message with a priority in its properties is appended."""

    def append_bytes(self, key: bytes, props: bytes, body: bytes | Buf, ttl_ms: int, flags: int) -> int:
        """Do the work of `append` for callers that have bytes objects, or a large body in a buffer."""
        if isinstance(body, Buf):
            return self.append_whole(key, props, body, ttl_ms, flags)
        whole = body
        return self.append(key, 0, len(key), props, 0, len(props), whole, 0, len(whole), ttl_ms, flags)  # type: ignore[no-any-return]

    def append_whole(self, key: bytes, props: bytes, body: Buf, ttl_ms: int, flags: int) -> int:
        """Append a message with a large body, which is not copied and must not be changed any more."""
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
        self.tail.next += 1
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
        """Do the work of `append_run` if no batch is open. A large batch becomes the open one, so its messages are not copied."""
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
        b.first = self.tail.next
        b.time_ms = self.broker.now_ms
        b.opened_us = self.broker.now_us
        self.tail.open(b)
        self.tail.next += b.count
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
            if self.tail.closed:
                self.tail.closed[len(self.tail.closed) - 1].journal = sequence
        else:
            self._journaled(sequence, self.append_bytes, key, props, body, ttl_ms, flags)

    def append_journaled_run(self, batch: Batch, sequence: int) -> None:
        """Add all messages of a batch of a journal record; it may become part of this queue."""
        if batch.size() > ADOPTED and self.adopts:
            if self.tail.batch is not None:
                self.broker.flush(self)
            if self.deleted:
                return
            if self.tail.batch is None:
                self._journaled(sequence, self.adopt_run, batch)
                return
        self._journaled(sequence, self.append_run, batch)

    def _journaled(self, sequence: int, append: Callable[..., Any], *what: object) -> None:
        """Append without checking limits: those that refuse were checked before the record was written, and during a replay those that
        drop apply only at its end.
        """
        rejects, self.rejects = self.rejects, False
        limited, self.limited = self.limited, self.limited and not rejects and not self.broker.replaying
        append(*what)
        self.rejects, self.limited = rejects, limited
        if self.tail.batch is not None and sequence:
            self.tail.batch.journal = sequence

    def clock_of(self, b):  # type: ignore[no-untyped-def]
        """Return the time from which the times to live of a batch's messages count.

        A batch with a time in the future was written before the wall clock was set back. Its messages count from that moment.
        """
        now_ms = self.broker.now_ms
        return now_ms if b.time_ms <= now_ms else now_ms + b.time_ms - self.broker.set_back_ms

    def is_full(self, body_len: int) -> bool:
        """Whether one more message would exceed a limit."""
        return False

    def refuses(self, more: int, more_bytes: int) -> bool:
        """Whether so many messages together would exceed a limit."""
        return False

    def enforce_limits(self) -> None:
        """Drop the oldest ready messages until the limits hold."""

    # -- turn ------------------------------------------------------------------------------------------------

    def mark_dirty(self) -> None:
        """Have the next turn look at this queue."""
        if self.dirty:
            if self.yields and self.broker.changes_left > 0:  # this source has not changed many queues
                self.broker.changes_left -= 1
                self.yields = False
        elif not self.deleted:
            self.dirty = True
            self.broker.changes_left -= 1
            self.yields = self.broker.changes_left < 0
            self.broker.dirty.append(self)

    def hurry(self) -> None:
        """Have the next turn write it although it waits for a commit with others."""
        self.mark_dirty()
        self.yields = False

    def show(self) -> None:
        """Note a delivery. Its delivered mark must be in the files before it is sent to the peer (A9)."""
        self.shown = True
        self.broker.unmarked[self] = None

    def write_early(self) -> None:
        """Write the open batch before the end of the turn, because it is large enough for a write of its own."""
        self.pump()
        self.broker.flush(self)

    def flush(self) -> None:
        """Write the messages and settlements of this turn. Raises StoreFull or StoreError. Then nothing is lost, and a repeat is possible.

        A large batch is written in slices, one in each call. The queue stays dirty until the whole batch is in the file.
        """
        raise NotImplementedError

    def open_tail(self) -> Batch:
        """Open a batch for the messages that come."""
        t = self.broker.take_batch()
        t.start(self.tail.next, self.broker.now_ms, self.broker.now_us)
        self.tail.open(t)
        return t

    def _close_tail(self) -> None:
        """Close the open batch. Nothing is delivered until all closed batches are written."""
        if self.tail.batch is None:
            return
        if not self.tail.closed:
            self.broker.slow[self] = None
            self._hold_back(not self.broker.full)
        self.tail.close()

    def lets_others_first(self) -> bool:
        """Return whether messages that a wide source has brought wait for a commit with room for them. If so, nothing is delivered."""
        if self.shown or self.has_settlements() or self.log.is_writing:
            return False
        self.has_files = self.has_files or bool(self.log.segments)
        if not self.broker.later_writes.lets_others_first(self):
            return False
        self._hold_back(True)
        return True

    def has_settlements(self) -> bool:
        """Whether the next write has settlements."""
        return False

    def waits_no_more(self) -> None:
        """Deliver what has waited for a commit. The caller then writes it."""
        was, self.dirty = self.dirty, True  # the turn need not look at it once more
        if not self.tail.closed:
            self._hold_back(False)
        self.dirty = was
        self.pump()

    def _must_wait(self, delivered: int) -> bool:
        """Return whether the first write has to wait. Messages below the offset `delivered` may be on their way to a peer."""
        if self.log.segments:
            self.has_files = True
            return False
        if not self.broker.later_writes.must_wait(self, delivered):
            return False
        self._hold_back(True)
        return True

    def _is_slow(self) -> bool:
        """Return whether the write takes more than one step. The open batch is closed then."""
        tail = self.tail.batch
        if not self.tail.closed and (tail is None or tail.size() <= pieces.WHOLE_BYTES):
            return False
        self._close_tail()
        return True

    def _write_closed(self, delivered: int) -> None:
        """Write a slice of the first large batch, and the batches before it. Messages below the offset `delivered` may be on their way to
        a peer, so they must not be only in memory (A9).
        """
        closed = self.tail.closed
        left = pieces.SLICE_BYTES
        while closed and left > 0:
            batch = closed[0]
            if not self._may_write(batch):
                return
            if not self.log.is_writing and (batch.size() <= pieces.WHOLE_BYTES or batch.first < delivered):
                self.log.write(batch)
                left -= batch.size()
            elif self.broker.store.pressed:
                self.broker.pressed[self] = None
                return
            else:
                left -= self.log.write_some(batch, left)
                if self.log.is_writing:
                    return
            closed.popleft()
            self._written(batch)
        if not closed:
            self.broker.slow.pop(self, None)
            self._hold_back(False)

    def _may_write(self, batch: Batch) -> bool:
        """Whether a closed batch may be written now. If not, the queue is `pressed`, and becomes dirty when it may."""
        return True

    def _written(self, batch: Batch) -> None:
        """Called when a batch has been written."""
        raise NotImplementedError

    def _hold_back(self, yes: bool) -> None:
        """Whether deliveries wait for the closed batches to be written. They do not wait on a full disk, as acks may make room."""
        if yes and not self.held_back:
            self.begin_return()
        elif self.held_back and not yes:
            self.end_return()
        self.held_back = yes

    def _go_on_full(self) -> None:
        """Continue deliveries although the disk has no room for the closed batches. A delivery alone does not retry the write."""
        self.held_back = False
        self.returning -= 1
        self.broker.pump_later(self)

    def begin_return(self) -> None:
        """Stop deliveries while messages come back in pieces, until the last one is back."""
        self.returning += 1

    def end_return(self) -> None:
        self.returning -= 1
        self.mark_dirty()

    # -- deliver ---------------------------------------------------------------------------------------------

    def contain(self, error: Exception) -> None:
        """Take the queue out of service until a restart, because its work has failed."""
        self.broker.faults.take_out(self, error)

    def pump(self) -> None:
        """Deliver while a consumer has credit. A consumer that fails loses its connection; the queue goes on."""
        if self.late or self.returning:
            return
        while True:
            try:
                self.deliver_ready()
                return
            except Exception as error:
                c = self._asked()
                if c is None:
                    raise
                self.serving = None
                c.undo()
                self.remove_consumer(c)
                self.broker.faults.consumer_failed(c, error)

    def deliver_ready(self) -> None:
        """Do the work of `pump`. An exception of a consumer reaches the caller."""
        raise NotImplementedError

    def _asked(self) -> Consumer | None:
        """The consumer whose code has just run."""
        return self.serving

    def end_consumer(self, c: Consumer) -> None:
        """End a consumer because the properties of the next message do not fit into its frames. The message waits for another consumer.

        An auto-delete queue is not deleted by this, because the message is in it.
        """
        self.remove_consumer(c)
        self.serving = c
        c.message_does_not_fit()
        self.serving = None

    def resume(self, c: Consumer) -> None:
        """A consumer may have credit again."""
        self.mark_dirty()

    def get(self, c: Consumer) -> bool:
        """Deliver one ready message to c, whatever its credit. Returns False if there is none, or, if some are `ready`, none in this turn.

        Raises ConnectionError_ 540 if the queue has no such operation.
        """
        raise NotImplementedError

    def check(self, steps: Iterator[None]) -> None:
        """Check a large batch in pieces. Until that is done nothing is delivered."""
        if not self.checking:
            self.checking = True
            self.begin_return()
            self.broker.jobs.start(self._check_steps(steps), self._checked, self)

    def _check_steps(self, steps: Iterator[None]) -> Iterator[None]:
        for step in steps:
            if self.deleted:
                return
            yield step

    def _checked(self) -> None:
        self.checking = False
        self.end_return()

    # -- consumers -------------------------------------------------------------------------------------------

    def add_consumer(self, c: Consumer) -> None:
        self.serials += 1
        c.serial = self.serials
        active = int(
            self.single and len(self.consumers) > 0
        )  # the active consumer stays, even if one with a higher priority comes
        insert_consumer(self.consumers, c, active)
        self.had_consumer = True
        self.mark_dirty()

    def remove_consumer(self, c: Consumer) -> None:
        """Remove a consumer, unless it was removed already."""
        if not c.serial:
            return
        del self.consumers[consumer_index(self.consumers, c)]
        self._gone(c)
        self.used_ms = self.broker.timers.now_ms

    def _gone(self, c: Consumer) -> None:
        c.serial, c.idle = 0, False

    def take_consumers(self) -> list[Consumer]:
        """Remove and return all consumers of a queue that is deleted. The caller cancels them."""
        consumers, self.consumers = self.consumers, []
        for c in consumers:
            c.line = c.before = c.after = None
            self._gone(c)
        return consumers

    @property
    def single_active(self) -> Consumer | None:
        """The active consumer, with x-single-active-consumer. The others wait until it ends."""
        return self.consumers[0] if self.single and self.consumers else None

    # -- deliveries end --------------------------------------------------------------------------------------

    def ack(self, offset, n, c=None):  # type: ignore[no-untyped-def]
        """Settle n unacked messages that were acknowledged, by `c` if it was a consumer."""
        raise NotImplementedError

    def reject(self, offset: int, n: int, c: Consumer | None = None) -> None:
        """Settle n unacked messages that were rejected for good (A7)."""
        raise NotImplementedError

    def requeue(self, offset: int, n: int, body_bytes: int, later: bool = False) -> None:
        """Return n unacked messages to their original positions (A5)."""
        raise NotImplementedError

    def retry(self, offset: int, n: int, body_bytes: int, how: str = "returned") -> None:
        """Return n unacked messages that a consumer has failed to process. They come back later if the queue delays them (A15).

        `how`: "failed" by basic.reject, "returned" by basic.nack; `x-delayed-retry-type` may name one of them.
        """
        raise NotImplementedError

    # -- operations ------------------------------------------------------------------------------------------

    def purge(self) -> int:
        """Do all of `purging` at once. Returns how many messages were ready or held."""
        count, steps = self.purging()
        for _ in steps:
            pass
        return count

    def purging(self) -> tuple[int, Iterator[None]]:
        """Remove all ready and delayed messages. Returns how many were ready or held, and the steps that settle them.

        Raises ConnectionError_ 540 if the queue has no such operation.
        """
        raise NotImplementedError

    def settle_until(self, end: int) -> None:
        """Settle every ready message below `end` for the group that reads this queue by range. Repeating the call is harmless.

        Raises ChannelError 406 if nothing in the queue is ever settled.
        """
        raise NotImplementedError

    def read_steps(self, offset: int) -> Generator[None, None, tuple[bytes, bytes, Body, int] | None]:
        """Read (key, props, body, flags) of a message in pieces. None if it is lost to damage."""
        raise NotImplementedError

    def expire(self) -> None:
        """Have messages leave that have expired."""

    # -- start and end ---------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Take the queue's state from what is on disk."""
        raise NotImplementedError

    def settle_recovered(self, offset: int, count: int, outcome: int) -> None:
        """Settle messages for a journal record that is replayed. Those that are settled already are ignored."""

    def flag_from(self, offset: int) -> None:
        """Flag the messages from `offset` on, since they may have been delivered before the start (A9)."""

    def flag_all(self) -> None:
        """Flag all messages that wait in the order of arrival, since they may have been delivered before the start (A9)."""

    def release_windows(self) -> None:
        """Release the batches that were read at the start."""

    def cancel_timers(self) -> None:
        """Cancel all timers, because the queue is deleted."""

"""A work queue: each message goes to one consumer, and stays until it is settled. docs/ARCHITECTURE.md, "A queue", has a diagram.

This class delivers (`pump`, `get`) and settles (`settle`). `Backlog` has the messages that wait. `Leaving` (limits, expiry, dead
letters) and `Retries` (delays) handle rare events that no consumer causes. The data plane is compiled.

Invariant: a message that is neither in the backlog nor settled is counted as unacked, held, moving, parked or delayed.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import StoreFull
from kvitto.broker.administration.arguments import QUORUM_PRIORITY_MAX
from kvitto.broker.queues import priorities, purging, sizes
from kvitto.broker.queues.backlog import Backlog
from kvitto.broker.queues.consumer import Consumer
from kvitto.broker.queues.deliveries import Deliveries
from kvitto.broker.queues.hold import Hold
from kvitto.broker.queues.leaving import AFTER_DELIVERY, Leaving
from kvitto.broker.queues.queue import Declaration, Queue
from kvitto.broker.queues.ranges import RangeSet
from kvitto.broker.queues.retries import Retries
from kvitto.broker.queues.rota import Rota
from kvitto.broker.transfers.parked import Parked
from kvitto.format.settlement import (
    ACKED,
    DEAD_LETTERED,
    DROPPED,
    IN_DOUBT,
    PURGED,
    RANGE_SETTLED,
    REDELIVERED,
    REJECTED,
)
from kvitto.store.batch import Batch, Body
from kvitto.store.log import Log
from kvitto.store.settlements import Settlements
from kvitto.wire.properties import priority_of

if TYPE_CHECKING:
    from kvitto.broker.administration.arguments import QueueSettings
    from kvitto.broker.queues.hosts import Turns
    from kvitto.broker.transfers.deadletter import Addressing
    from kvitto.broker.transfers.parked import Obstacle
    from kvitto.broker.vhost import VHost

AGAIN_COST = 120
"""The cost of a message that is delivered again, as `Broker.allowance` counts."""
RETRY_COST = 50
"""The cost of a message that comes back and is looked at, in units of 0.1 us."""

_ACKED = ACKED  # C variables when compiled
_AGAIN_COST = AGAIN_COST


class WorkQueue(Queue):
    def __init__(self, broker: Turns, vhost: VHost, log: Log, settings: QueueSettings, declared: Declaration) -> None:
        super().__init__(broker, vhost, log, settings, declared)
        self.backlog = Backlog(log, self.tail, self, broker, settings.max_priority > 0)
        self.leaving = Leaving(self)
        self.retries = Retries(self)
        self.parked = Parked()
        self.moving = 0
        """The number of messages that are being dead-lettered."""
        self.coming = self.coming_bytes = 0
        """Messages, and bytes, for which the journal has reserved room here (broker/transfers/reservation.py)."""
        self.settlements = Settlements()
        """The settlements of this turn."""
        self.estimates = 0
        """How many times `ready_bytes` was estimated since it was last exact (broker/queues/sizes.py)."""
        self.rota: Rota | None = None
        """The rotation of the consumers, None if at most one of them is served."""
        self.burst = 0
        self._apply(settings)

    def _apply(self, settings: QueueSettings) -> None:
        """Take those settings that only a work queue has."""
        self.max_length = settings.max_length
        self.max_bytes = settings.max_bytes
        self.rejects = settings.overflow != "drop-head"
        self.limited = settings.max_length >= 0 or settings.max_bytes >= 0
        self.delivery_limit = settings.delivery_limit
        looked_at = self.backlog.ranked or settings.retry_min_ms >= 0 or settings.delivery_limit >= 0
        self.return_cost = RETRY_COST if looked_at else 0
        self.backlog.priority_max = settings.max_priority if settings.max_priority > 0 else QUORUM_PRIORITY_MAX
        self.retries.take_settings(settings)

    def take_settings(self, settings: QueueSettings) -> None:
        if settings.dead_letters_to != self.settings.dead_letters_to:
            self.parked.reroute()
        self._apply(settings)
        super().take_settings(settings)
        if self.estimates and self.max_bytes >= 0:
            self.broker.jobs.start(sizes.recount(self), owner=self)

    def definition(self) -> dict[str, Any]:
        value = super().definition()
        if self.hold is not None:
            value["hold"] = self.hold.end
        if self.backlog.ranked and self.settings.prioritises:
            value[priorities.PRIORITISED] = True
        return value

    def restore(self, definition: dict[str, Any]) -> None:
        if "hold" in definition:
            self.hold = Hold(self, definition["hold"])
        if definition.get(priorities.PRIORITISED):
            priorities.resume(self)

    def prioritise(self, props: bytes) -> None:
        """The first message with a priority above 0 gives the queue priorities."""
        if priority_of(props) > 0:
            priorities.begin(self)

    # -- counts ----------------------------------------------------------------------------------------------

    @property
    def cursor(self) -> int:
        return self.backlog.cursor

    @property
    def ready(self) -> int:
        return self.backlog.ready()  # type: ignore[no-any-return]

    @property
    def out_of_order(self) -> list[tuple[RangeSet, bool]]:
        found = [(self.backlog.requeued, True)]
        if self.hold is not None:
            found += [(self.hold.fresh, False), (self.hold.again, True)]
        return found

    @property
    def delayed(self) -> RangeSet:
        return self.retries.delays.offsets

    @property
    def dead_lettering(self) -> int:
        return self.moving + len(self.parked)

    @property
    def messages(self) -> int:
        """Ready, unacked, held, those on their way to a dead-letter queue, and those that wait to be tried again."""
        return self.ready + self.unacked + self.held + self.dead_lettering + len(self.retries.delays)

    # -- limits ----------------------------------------------------------------------------------------------

    def is_full(self, body_len: int) -> bool:
        """Whether one more message would exceed a limit, after consumers took what they can."""
        if not self.over(1, body_len):
            return False
        self._pump_early()
        return self.over(1, body_len)

    def refuses(self, more: int, more_bytes: int) -> bool:
        """Whether a transaction's messages would exceed a limit, after consumers took what they can."""
        self._pump_early()
        return self.over(more, more_bytes)

    def _pump_early(self) -> None:
        """Deliver before the turn. `Broker.unmarked` says what that needs."""
        self.broker.unmarked[self] = None
        self.pump()

    def counted(self) -> int:
        """Return the number of messages that count for `x-max-length`: those that are ready, wait for a retry, or are on their way."""
        return self.backlog.ready() + len(self.retries.delays) + self.coming  # type: ignore[no-any-return]

    def over(self, more: int, more_bytes: int) -> bool:
        """Whether a limit would be exceeded with `more` messages and `more_bytes` bytes in addition. Both may be negative."""
        return (0 <= self.max_length < self.counted() + more) or (
            not self.estimates
            and 0 <= self.max_bytes < self.ready_bytes + self.retries.delays.bytes + self.coming_bytes + more_bytes
        )

    def enforce_limits(self) -> None:
        """drop-head: drop the oldest ready messages until the limits hold."""
        if not self.rejects and self.over(0, 0):
            self.pump()
            self.leaving.enforce_limits()

    # -- deliver ---------------------------------------------------------------------------------------------

    def _asked(self) -> Consumer | None:
        return self.rota.asking if self.serving is None and self.rota is not None else self.serving

    def deliver_ready(self) -> None:
        backlog = self.backlog
        if not backlog.any_ready():
            return
        left = self.broker.allowance
        latencies = self.broker.latencies
        run = first = waited_us = 0  # runs of one batch are timed together: with many consumers they are short
        while backlog.any_ready():
            # messages that had come back take most time; at least one goes on in each turn
            if left <= 0 or (backlog.requeued.count and left < self.broker.allowance and self.broker.out_of_time()):
                self.broker.pump_later(self)
                break
            c = self.pick()
            if c is None:
                break
            if backlog.ranked:
                backlog.admit()
            if backlog.requeued.count:
                left -= _AGAIN_COST
                if not self.deliver_requeued(c):
                    break
                continue
            w = backlog.window()
            if w is None:
                if self.checking:
                    break
                continue
            i = backlog.cursor - w.first
            n = w.count - i
            if n > self.burst:
                n = self.burst
            if self.may_expire and w is not self.tail.batch:
                n = w.live_run(i, n, self.clock_of(w))
                if n == 0:
                    if not self.leaving.leave_expired():
                        break
                    continue
            if n > left:
                n = left
            if run == 0 or w.first != first:
                if run:
                    latencies.deliver.add(waited_us, run)
                else:
                    latencies.now_us = self.broker.clock.monotonic_us()
                waited_us = self.waited(w)
                first = w.first
                run = 0
            self.serving = c
            if backlog.cursor < backlog.flagged_below:
                k = c.deliver(w, i, 1, 1)
            else:
                k = c.deliver(w, i, n, 0)
            self.serving = None
            if k:
                run += k
                left -= k + (self.took(c, w, i, k) >> 10)
            else:
                self.end_consumer(c)
        self.broker.allowance = left
        if run:
            latencies.deliver.add(waited_us, run)

    def waited(self, w):  # type: ignore[no-untyped-def]
        """Return how long the messages of batch w have been in the queue, in us. What was read from a file has only its wall clock."""
        if w.opened_us:
            return self.broker.latencies.now_us - w.opened_us
        return (self.broker.now_ms - w.time_ms) * 1000

    def took(self, c, w, i, k):  # type: ignore[no-untyped-def]
        """k messages from index i of window w on have gone to c. Returns the bytes of their bodies."""
        unacked = self.given(c, k)
        offset = self.backlog.cursor
        self.backlog.cursor = offset + k
        size = w.body_bytes(i, k)
        self.ready_bytes -= size
        self.delivered += k
        if not self.shown:
            self.show()
        if not unacked:
            self.settle(offset, k, _ACKED)
        else:
            self.unacked_bytes += size
            if not self.dirty:
                self.mark_dirty()
        return size

    def given(self, c, k):  # type: ignore[no-untyped-def]
        """Count k messages that have just been delivered to consumer c. Returns whether they are unacked now.

        Nothing may raise between the delivery and this call. The channel already has an entry for each of them, and it forgets a
        consumer whose count of unacked messages is 0: an ack would then find no consumer.
        """
        if c.no_ack:
            self.delivered_auto += k
            if not c.lent:
                return False
        self.unacked += k
        if c.lent:
            c.lent = False
        else:
            c.unacked += k
        return True

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

    def deliver_requeued(self, c: Consumer) -> bool:
        """Deliver the first of the messages that came back, with its number of earlier deliveries (A8), or have it leave.

        False if that has to wait for the next turn.
        """
        backlog = self.backlog
        offset = backlog.requeued.first()
        found = backlog.find(offset, True)
        if found is None:
            if self.checking:
                return False
            backlog.forget_unreadable(offset)
            return True
        key, props, body, _ = found[0].parts(found[1])
        if self.may_expire and self.leaving.has_expired(offset):
            return self.leaving.leave_expired()
        if 0 <= self.delivery_limit < backlog.redeliveries.of(offset, 0):  # it was unacked when the broker went down
            return self.leaving.leave_undelivered()
        count = backlog.earlier(offset)
        if count:
            counted = self.broker.with_delivery_count(props, count)
            self.serving = c
            if c.takes(len(counted)):
                props = counted
            elif not c.takes(len(props)):
                self.end_consumer(c)
                return True
            c.deliver_again(key, props, body, offset)
            unacked = self.given(c, 1)
            self.serving = None
            self.redelivered += 1
        else:
            self.broker.latencies.now_us = self.broker.clock.monotonic_us()
            self.serving = c
            taken = c.deliver(found[0], found[1], 1, 0)
            self.serving = None
            if not taken:
                self.end_consumer(c)
                return True
            unacked = self.given(c, 1)
            if c.counted:
                self.broker.latencies.deliver.add(self.waited(found[0]), 1)
        backlog.requeued.pop_first()
        self.ready_bytes -= len(body)
        self.delivered += 1
        if not self.shown:
            self.show()
        if not unacked:
            self.settle(offset, 1, ACKED)
        else:
            self.unacked_bytes += len(body)
            backlog.redeliveries.note(offset, count + 1)
            self.settlements.add(offset, 1, REDELIVERED, count + 1)
            self.mark_dirty()
        return True

    def get(self, c: Consumer) -> bool:
        """Deliver one ready message to c, after consumers have taken what they can and the limits were applied."""
        self.used_ms = self.broker.timers.now_ms
        self.broker.unmarked[self] = None
        if self.consumers:
            self.pump()
        if self.limited:
            self.enforce_limits()
        if self.late or self.returning:
            if self.waits_for_commit:
                self.hurry()
            return False
        backlog = self.backlog
        before = self.delivered
        while backlog.any_ready() and self.delivered == before and not self.checking:
            if backlog.ranked:
                backlog.admit()
            if backlog.requeued.count:
                if not self.deliver_requeued(c):
                    break
                continue
            w = backlog.window()
            if w is None:
                continue
            i = backlog.cursor - w.first
            if self.may_expire and not w.live_run(i, 1, self.clock_of(w)):
                if not self.leaving.leave_expired():
                    break
                continue
            self.serving = c
            taken = c.deliver(w, i, 1, 1 if backlog.cursor < backlog.flagged_below else 0)
            self.serving = None
            if taken:
                self.took(c, w, i, 1)
            else:
                self.end_consumer(c)
        return self.delivered > before

    # -- consumers -------------------------------------------------------------------------------------------

    def add_consumer(self, c: Consumer) -> None:
        super().add_consumer(c)
        if self.rota is not None:
            self.rota.put(c)
        elif len(self.consumers) > 1 and not self.single:
            self.rota = Rota()
            for each in self.consumers:
                self.rota.put(each)

    def remove_consumer(self, c: Consumer) -> None:
        super().remove_consumer(c)
        if len(self.consumers) == 1 and self.rota is not None:
            last = self.consumers[0]
            self.rota.drop(last)
            last.idle = False
            self.rota = None

    def _gone(self, c: Consumer) -> None:
        if self.rota is not None:
            self.rota.drop(c)
        super()._gone(c)

    def take_consumers(self) -> list[Consumer]:
        self.rota = None  # cheaper than dropping one consumer after the other
        return super().take_consumers()

    def resume(self, c: Consumer) -> None:
        """A consumer may have credit again."""
        if c.idle:
            c.idle = False
            if self.rota is not None and c.serial:
                self.rota.put(c)
        self.mark_dirty()

    # -- settle ----------------------------------------------------------------------------------------------

    def settle(self, offset, n, outcome, deliveries=0):  # type: ignore[no-untyped-def]
        """Settle n messages from `offset` on. `deliveries` is the field of a settlement in docs/formats.md."""
        if self.deleted:
            return
        self.settlements.add(offset, n, outcome, deliveries)
        end = offset + n
        tail = self.tail
        if end > tail.first:
            tail.settled += end - (offset if offset > tail.first else tail.first)
        if outcome == _ACKED:
            self.acked += n
        if self.backlog.redeliveries.pages:
            self.backlog.redeliveries.forget(offset, end)
        if not self.dirty:
            self.mark_dirty()

    def ack(self, offset, n, c=None):  # type: ignore[no-untyped-def]
        self.unacked -= n
        self.settle(offset, n, _ACKED)

    def reject(self, offset: int, n: int, c: Consumer | None = None) -> None:
        """Dead-letter or drop n unacked messages that were rejected for good (A7)."""
        self.unacked -= n
        if self.deleted:
            return
        if self.settings.dead_letter_exchange is None:
            self.settle(offset, n, REJECTED)
        else:
            self.dead_letter(offset, n, "rejected", REJECTED, 1)

    def retry(self, offset: int, n: int, body_bytes: int, how: str = "returned") -> None:
        if self.deleted or not self.retries.delays_those(how):
            self.requeue(offset, n, body_bytes)
            return
        for o in range(offset, offset + n):
            self.requeue(o, 1, 0, True)
        self.retries.wake()

    def requeue(self, offset: int, n: int, body_bytes: int, later: bool = False) -> None:
        self.unacked -= n
        if self.deleted:
            return
        if self.delivery_limit >= 0:
            counts = self.backlog.redeliveries
            over = {o for o in range(offset, offset + n) if counts.of(o, 1) > self.delivery_limit}
            if over:
                for o in range(offset, offset + n):
                    found = self.backlog.find_outline(o)
                    if found is None:
                        self.settle(o, 1, DROPPED)
                    elif o in over:
                        self.dead_letter(o, 1, "delivery_limit", DROPPED, counts.of(o, 1))
                    else:
                        self.put_back(o, 1, found[0].body_bytes(found[1], 1))
                return
        if later:
            self.retries.delay(offset)
        else:
            self.put_back(offset, n, body_bytes)

    def put_back(self, offset: int, n: int, body_bytes: int) -> None:
        """Make n messages ready again."""
        self.backlog.requeued.add(offset, n)
        self.ready_bytes += body_bytes
        self.mark_dirty()

    def may_come_back(self) -> int:
        """Return how many messages that are due the queue can take back now, at most."""
        return sys.maxsize

    def comes_back(self, offset: int, size: int) -> None:
        """A message of `size` bytes that has waited is due."""
        self.put_back(offset, 1, size)

    # -- dead letters ----------------------------------------------------------------------------------------

    @property
    def forwards_to(self) -> str | None:
        """The exchange that gets the messages which leave the queue. None if they are dropped."""
        return self.settings.dead_letter_exchange

    def address_steps(self, reason: str, message: tuple[bytes, bytes, int]) -> Addressing:
        """Find the key, the properties and the queues for a message (key, props, flags) that leaves for that exchange."""
        return self.broker.dead_letters.address_steps(self, reason, message)

    def dead_letter(self, offset: int, n: int, reason: str, outcome: int, deliveries: int = 0) -> None:
        """Move n messages that have left the backlog to the dead-letter exchange, or settle them with `outcome`."""
        if self.settings.dead_letter_exchange is None:
            self.settle(offset, n, outcome, deliveries)
            return
        if deliveries and reason not in AFTER_DELIVERY:
            counts = self.backlog.redeliveries
            counts.note(offset, counts.of(offset, deliveries))
        self.moving += n
        self.broker.dead_letters.add(self, offset, n, reason)

    def moved(self, offset: int, reason: str, outcome: int = DEAD_LETTERED) -> None:
        """Settle a message whose dead-letter move is done, or which is dropped because of a cycle."""
        self.moving -= 1
        self.settle(offset, 1, outcome, self.backlog.redeliveries.of(offset, int(reason in AFTER_DELIVERY)))

    def park(self, offset: int, reason: str, obstacle: Obstacle) -> None:
        """Park a message whose dead-letter target is missing or full (X4)."""
        self.moving -= 1
        self.parked.add(offset, reason, obstacle, self.vhost.epoch.value)

    # -- operations ------------------------------------------------------------------------------------------

    def read(self, offset: int) -> tuple[bytes, bytes, bytes, int] | None:
        """Return (key, props, body, flags) of any stored message, or None if it is lost to damage. The caller then settles it."""
        found = self.backlog.find(offset, False)
        return found[0].message(found[1]) if found else None

    def read_steps(self, offset: int) -> Generator[None, None, tuple[bytes, bytes, Body, int] | None]:
        return self.backlog.read_steps(offset)

    def expire(self) -> None:
        """Drop or dead-letter the messages at the head that have expired (only the head is looked at, like both peers)."""
        self.leaving.expire()

    def purging(self) -> tuple[int, Iterator[None]]:
        count = self.ready + self.held
        backlog = self.backlog
        again = 0 if backlog.ranked else 1
        taken: list[tuple[Iterable[tuple[int, int]], int]] = []
        if self.hold is not None:
            taken += ((self.hold.fresh, 0), (self.hold.again, again))
            self.hold = None
        delayed, free = self.retries.delays.take_all()
        taken += ((delayed, 1), (backlog.take_requeued(), again))
        counts, backlog.redeliveries = backlog.redeliveries, Deliveries()  # nobody has had what is settled here
        self._clear_ready(self.tail.next, PURGED)
        backlog.redeliveries = counts
        self.ready_bytes = self.estimates = 0
        taken += ((kind.offsets, int(reason in AFTER_DELIVERY)) for (reason, _), kind in self.parked.kinds.items())
        self.parked.clear()
        return count, chain(purging.settled(self, taken), free)

    def _clear_ready(self, end: int, outcome: int) -> None:
        """Settle what is ready in the order of arrival below `end`."""
        cursor = self.backlog.cursor
        if end > cursor:
            self.settle(cursor, end - cursor, outcome)
            self.backlog.skip_to(end)

    def settle_until(self, end: int) -> None:
        end = min(end, self.tail.next)
        if self.hold is not None:
            self.hold.settle_below(end)
            if not self.hold.count:
                self.hold = None
        sizes.take_below(self, end)
        deliveries = 0 if self.backlog.ranked else 1
        for start, n in self.backlog.requeued.remove_below(end):
            self.settle(start, n, RANGE_SETTLED, deliveries)
        self._clear_ready(end, RANGE_SETTLED)
        if not self.ready:
            self.ready_bytes = self.estimates = 0

    def lose_held(self, start: int, count: int) -> None:
        """Drop held messages that are lost to damage."""
        if self.hold is not None:
            self.hold.lose(start, count)

    # -- turn ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        shown, self.shown = self.shown, False
        try:
            self._flush(self.backlog.cursor if shown else 0)
        except StoreFull:
            # `Broker.write_marks` tries once more before anything is sent: a part may fit, or there is room again
            self.shown = self.shown or shown
            raise

    def _flush(self, delivered):  # type: ignore[no-untyped-def]
        """Do the work of `flush`. Messages below the offset `delivered` may be on their way to a peer."""
        if not self.broker.replaying:
            if self.may_expire:
                self.expire()
            if self.limited:
                self.enforce_limits()
        if not self.has_files and not self.has_settlements() and self._must_wait(delivered):
            return
        if self.backlog.ranked:
            self.backlog.admit()  # before the write, while the messages are in memory
        if self._is_slow():
            self._hold_back(True)
            try:
                self._write_closed(delivered)
            except StoreFull:
                self._go_on_full()
                self._settle_written()
                raise
            if self.tail.closed:
                self._settle_written()
                if self not in self.broker.pressed:
                    self.mark_dirty()
                return
        elif self.tail.batch is not None:
            self._write_open(self.tail.batch)
        if self.held_back:
            self._hold_back(False)
        self._write_settlements(self.tail.next)
        if not self.backlog.any_ready():
            self.ready_bytes = self.estimates = 0  # it still counted messages that were lost to damage
        self.backlog.release_unused()

    def has_settlements(self) -> bool:
        return self.settlements.entries.n > 0

    def _write_open(self, batch: Batch) -> None:
        """Write the open batch, unless all of it is settled already."""
        if self.tail.settled == batch.count and not batch.journal and not self.writes_all:
            self.settlements.cut(batch.first)
            self.log.skip(batch.first, batch.count)
        else:
            log = self.log
            try:
                log.write(batch)
            except StoreFull:
                if self.held_back:
                    self._go_on_full()
                self._settle_written()
                raise
        self.tail.end()
        self._written(batch)

    def _written(self, batch: Batch) -> None:
        """Called when a batch has been written. It stays in memory if it is the next one to be delivered and there is a consumer."""
        self.broker.latencies.note_sizes(batch)
        self.backlog.keep_front(batch, len(self.consumers) > 0)

    def _write_settlements(self, end: int) -> None:
        """Write settlements, and the delivered mark for messages below `end`, whose deliveries are on their way to a peer (A9)."""
        mark = self.backlog.cursor
        if self.hold is not None:
            mark = self.hold.mark(mark)
        if mark > end:
            mark = end
        log = self.log
        if self.settlements.entries.n or (mark > log.delivered_mark and self._any_below(mark)):
            log.settle(self.settlements, mark)
            self.settlements.clear()

    def _any_below(self, mark: int) -> bool:
        """Whether a message below the mark is not settled. Nearly always one is unacked, so the cheap comparison comes first."""
        above = self.tail.next - mark
        return self.unacked + self.backlog.ready() > above or self.messages > above

    def _settle_written(self) -> None:
        """Write the settlements of messages that are in the files, although newer messages are not. On a full disk that makes room (D4)."""
        later = self.settlements.split(self.tail.unwritten_from)
        try:
            self._write_settlements(self.tail.unwritten_from)
        finally:
            self.settlements.join(later)

    # -- start and end ---------------------------------------------------------------------------------------

    def recover(self) -> None:
        found = self.log.recover()
        self.tail.start_at(self.log.next)
        self.backlog.recover(found)
        self.ready_bytes = found.ready_bytes
        if found.ready:
            self.may_expire = True  # checked later, because the journal may still settle or move messages

    def release_windows(self) -> None:
        self.backlog.release()

    def settle_recovered(self, offset: int, count: int, outcome: int) -> None:
        for o in range(offset, min(offset + count, self.tail.next)):
            deliveries = self.backlog.take(o)
            if deliveries is None:
                continue
            message = self.read(o)
            self.ready_bytes -= len(message[2]) if message else 0
            self.settle(o, 1, outcome, deliveries)

    def flag_from(self, offset: int) -> None:
        end = self.tail.next
        if end > offset:
            self.settlements.add(offset, end - offset, IN_DOUBT, 0)
            self.backlog.flagged_below = end

    def flag_all(self) -> None:
        backlog = self.backlog
        first = backlog.cursor
        if backlog.requeued.count:  # with priorities these are all messages, and none of them counts as delivered
            first = min(first, backlog.requeued.lowest())
        self.flag_from(first)

    def cancel_timers(self) -> None:
        self.leaving.cancel()
        self.retries.cancel()

"""The hidden queue of an exchange that delays (broker/routing/delayed.py): messages wait in it until they are due.

A message is stored like any other, so it is confirmed and survives a crash like any other. Its time to live in the log is its delay. When
that is over, one record of the journal moves it to the queues that the exchange finds then, as a dead letter is moved.
No client sees this queue, it has no consumers, and no message is ever ready: the turn in which a message comes, or a job after a start,
puts it among those that wait (`Retries`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import ChannelError
from kvitto.base.limits import PROPERTIES_MAX
from kvitto.broker import walls
from kvitto.broker.administration.admission import expiration_ms
from kvitto.broker.administration.arguments import QueueSettings
from kvitto.broker.queues.queue import Declaration
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.broker.routing import delayed
from kvitto.broker.transfers.deadletter import split_key, strings
from kvitto.format.entry import EXPIRES
from kvitto.format.settlement import DEAD_LETTERED, DROPPED, PURGED
from kvitto.store.record import Record, Settle
from kvitto.wire.buf import Buf
from kvitto.wire.properties import Properties, edit_headers, join, split

if TYPE_CHECKING:
    from kvitto.broker.queues.hosts import Turns
    from kvitto.broker.queues.queue import Queue
    from kvitto.broker.routing.exchange import Exchange
    from kvitto.broker.transfers.deadletter import Addressing
    from kvitto.broker.transfers.parked import Obstacle
    from kvitto.broker.vhost import VHost
    from kvitto.store.batch import Batch
    from kvitto.store.log import Log

Done = Callable[[bool], None]
"""Is told whether the message has left."""
DUE = "due"
"""The reason for which a message leaves this queue. No header ever says it."""
MOVING_MAX = 500
"""While so many messages are on their way to their queues, further ones that are due wait."""
FOUND_MAX = 1000
"""The most messages that one search returns, since whoever asks does something with all of them at once."""
AT_ONCE = 1000
"""So many new messages are put among those that wait at once; more of them in a job."""
PIECE = 300
"""The messages that one piece of a job looks at. They take about half a millisecond."""
BATCH_COST, DECODE_COST, DECODE_SHIFT = 20, 5, 4
"""Reading a batch, or decoding properties, costs as much as looking at this many messages; and one more for each 2 ** 4 bytes of them."""


def delay_of(props: bytes) -> int:
    """Return how many ms a message with these encoded properties has to wait."""
    return delayed.delay_ms(Properties.decode(props).headers)


class DelayQueue(WorkQueue):
    routes_later = True

    def __init__(self, broker: Turns, vhost: VHost, log: Log, exchange: Exchange) -> None:
        name = f"delayed messages of exchange '{exchange.name}'"
        super().__init__(broker, vhost, log, QueueSettings(), Declaration(name, {}, durable=exchange.durable))
        self.exchange = exchange
        self._looking = False
        """Whether a job puts messages among those that wait."""
        self._watched: dict[int, tuple[str, list[Done]]] = {}
        """By offset, the message id of a message whose end somebody waits for, and their callbacks."""
        self.ending: dict[str, set[int]] = {}
        """The offsets of `_watched` by message id."""

    @property
    def forwards_to(self) -> str | None:
        return self.exchange.name

    @property
    def waiting(self) -> int:
        """The number of messages that are not due yet, or could not be moved yet."""
        return self.messages

    # -- messages come ---------------------------------------------------------------------------------------

    def append_bytes(self, key: bytes, props: bytes, body: bytes | Buf, ttl_ms: int, flags: int) -> int:
        """Append a message. Its own time to live begins when it is due, so only the delay counts here."""
        if isinstance(body, Buf):
            return self.append_whole(key, props, body, ttl_ms, flags)
        return super().append_bytes(key, props, body, delay_of(props), flags)

    def append_whole(self, key: bytes, props: bytes, body: Buf, ttl_ms: int, flags: int) -> int:
        return super().append_whole(key, props, body, delay_of(props), flags)

    def kept_ms(self, props: bytes, ttl_ms: int) -> int:
        return delay_of(props)

    def flush(self) -> None:
        if not self._looking and not self.broker.replaying:
            self._look()
        super().flush()

    def expire(self) -> None:
        """Nothing leaves because it is the first one: `Retries` says what is due."""

    def _look(self) -> None:
        """Put the messages that have come among those that wait: those in memory at once, many others in a job."""
        backlog = self.backlog
        if backlog.requeued.count or backlog.cursor < self.tail.first:
            self._start_looking()
        elif self.tail.batch is not None:
            n = self.tail.next - backlog.cursor
            if n > AT_ONCE:  # they are of one transaction
                self._start_looking()
            else:
                self._take(self.tail.batch, backlog.cursor - self.tail.first, n)
                backlog.cursor = self.tail.next
        self.retries.wake()

    def _start_looking(self) -> None:
        self._looking = True
        self.broker.jobs.start(self._look_steps(), self._looked, self)

    def _looked(self) -> None:
        self._looking = False
        self.mark_dirty()

    def _look_steps(self) -> Iterator[None]:
        """Look at the messages that are ready after a start or behind large batches. Some may be due, and others come meanwhile."""
        backlog, left = self.backlog, PIECE
        while not self.deleted and backlog.any_ready():
            if backlog.requeued.count:
                offset, n = backlog.requeued.first_run()
                found = backlog.find_outline(offset)
                if found is None:  # it is lost to damage
                    backlog.forget_unreadable(offset)
                    n = 1
                else:
                    n = min(n, found[0].count - found[1], left)
                    backlog.requeued.remove(offset, n)
                    self._take(*found, n)
            else:
                w = backlog.outline_at_cursor()
                n = 0
                if w is not None:
                    i = backlog.cursor - w.first
                    n = min(w.count - i, left)
                    backlog.cursor += n
                    self._take(w, i, n)
            left -= n + BATCH_COST
            if left <= 0:
                left = PIECE
                self.retries.wake()
                yield

    def _take(self, w: Batch, i: int, n: int) -> None:
        """Put n messages from index i of a batch on among those that wait. They have left the backlog."""
        clock_ms, now_ms = self.clock_of(w), self.broker.timers.now_ms  # type: ignore[no-untyped-call]
        for k in range(i, i + n):
            size = w.body_len(k)
            self.ready_bytes -= min(size, self.ready_bytes)
            self.retries.delays.add(now_ms + max(w.expires_at(k) - clock_ms, 0), w.first + k, size)

    # -- messages leave --------------------------------------------------------------------------------------

    def may_come_back(self) -> int:
        return max(MOVING_MAX - self.moving, 0)

    def comes_back(self, offset: int, size: int) -> None:
        self.moving += 1
        self.broker.dead_letters.add(self, offset, 1, DUE)

    def address_steps(self, _reason: str, message: tuple[bytes, bytes, int]) -> Addressing:
        """Find the queues of a message (key, props, flags) that is due, as the exchange would if it were published now.

        As with RabbitMQ, its consumers see the header x-delay negated, and a message that no queue takes is dropped.
        """
        key, props, flags = message
        fields, properties = split(props), Properties.decode(props)
        headers: dict[str, Any] = dict(properties.headers or {})
        keys = [split_key(key)[1], *strings(headers.get("CC")), *strings(headers.pop("BCC", None))]
        headers[delayed.HEADER] = -delayed.delay_ms(headers)
        properties.headers = headers
        targets: list[Queue] = yield from self.vhost.target_steps(self.exchange.name, keys, properties, self.exchange)
        edit_headers(fields, {delayed.HEADER: headers[delayed.HEADER]}, ("BCC",))
        new_props = join(fields)
        if not targets:
            return key, props, None, -1, flags
        if len(new_props) > PROPERTIES_MAX:  # x-delay had a shorter type, and there is no room for another one
            fields = split(props)
            edit_headers(fields, {}, ("BCC",))
            new_props = join(fields)
        try:
            ttl_ms = expiration_ms(properties.expiration)
        except ChannelError:  # it was published by a transaction of an older version, or came as a dead letter
            ttl_ms = -1
        return key, new_props, targets, ttl_ms, flags & ~EXPIRES

    def moved(self, offset: int, reason: str, outcome: int = DEAD_LETTERED) -> None:
        # whoever waits is told once it is durable, and no record of a move has made it so
        if outcome == DROPPED and offset in self._watched and self.log.durable:
            self._drop(offset, outcome)
        else:
            self._left(offset, outcome)

    def _left(self, offset: int, outcome: int) -> None:
        super().moved(offset, DUE, outcome)
        self._tell(offset, True)

    def park(self, offset: int, reason: str, obstacle: Obstacle) -> None:
        super().park(offset, reason, obstacle)
        self._tell(offset, False)

    def cancel_timers(self) -> None:
        super().cancel_timers()
        for offset in list(self._watched):
            self._tell(offset, False)

    # -- one message -----------------------------------------------------------------------------------------

    def run_now(self, offset: int, size: int, message_id: str, done: Done) -> bool:
        """Send a message that waits to its queues now. Returns False if it does not wait.

        `done` is called once it has left, or is parked.
        """
        if not self.retries.delays.remove(offset, size):
            return False
        self._watch(offset, message_id, done)
        self.comes_back(offset, size)
        return True

    def drop(self, offset: int, size: int, message_id: str, done: Done) -> bool:
        """Drop a message that waits. `done` is called once that is durable. Returns False if it does not wait."""
        if not self.retries.delays.remove(offset, size):
            return False
        self._watch(offset, message_id, done)
        self.moving += 1
        if self.log.durable:
            self._drop(offset, PURGED)
        else:
            self._left(offset, PURGED)
        return True

    def _drop(self, offset: int, outcome: int) -> None:
        """Settle a message durably, by a record. Without room for one it waits again."""

        def applied() -> None:
            if not self.deleted:
                walls.run(self, self._left, offset, outcome)

        def full() -> None:
            self.moving -= 1
            found = self.backlog.find_outline(offset)
            if found is not None:
                self._take(*found, 1)
                self.retries.wake()
            self._tell(offset, False)

        record = Record(settles=[Settle(self.log.queue_id, offset, 1, outcome)])
        self.vhost.broker.records.write(record, applied, walls.guarded(self, full))

    def join(self, message_id: str, done: Done) -> int:
        """Wait too for the messages with this id that `run_now` or `drop` has begun to end. Returns how many these are."""
        offsets = self.ending.get(message_id, ())
        for offset in offsets:
            self._watched[offset][1].append(done)
        return len(offsets)

    def _watch(self, offset: int, message_id: str, done: Done) -> None:
        self._watched[offset] = message_id, [done]
        self.ending.setdefault(message_id, set()).add(offset)

    def _tell(self, offset: int, gone: bool) -> None:
        if offset not in self._watched:
            return
        message_id, told = self._watched.pop(offset)
        ending = self.ending[message_id]
        ending.discard(offset)
        if not ending:
            del self.ending[message_id]
        for done in told:
            done(gone)

    def find_steps(self, message_id: str) -> Generator[bool, None, list[tuple[int, int]]]:
        """Find waiting messages with this message id, at most FOUND_MAX of them, as (offset, size of the body).

        All that wait are looked at, in pieces.
        """
        wanted, found, left = message_id.encode("utf-8", "surrogateescape"), list[tuple[int, int]](), PIECE
        at = 0
        while (
            not self.deleted
            and len(found) < FOUND_MAX
            and (run := next(self.retries.delays.offsets.after(at), None)) is not None
        ):
            start, count = max(run[0], at), run[0] + run[1] - max(run[0], at)
            outline = self.backlog.find_outline(start)
            if outline is None:
                at, left = start + 1, left - 1
            else:
                w, i = outline
                left -= BATCH_COST
                for k in range(i, i + min(count, w.count - i)):
                    props, at, left = w.key_and_props(k)[1], w.first + k + 1, left - 1
                    if wanted in props:
                        left -= DECODE_COST + (len(props) >> DECODE_SHIFT)
                        if Properties.decode(props).message_id == message_id:
                            found.append((w.first + k, w.body_len(k)))
                    if left <= 0 or len(found) >= FOUND_MAX:
                        break
            if left <= 0:
                left = PIECE
                yield True
        return found

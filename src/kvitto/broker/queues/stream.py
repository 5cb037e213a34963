"""A stream: a queue whose messages are read by offset and stay (docs/protocol-extensions.md, Streams).

It is written like any queue. Each consumer has its own progress and gets durable messages, from memory at the tail and else from the
log. Acks give it credit, and advance the stored offset of a consumer with a tag of its own. Messages leave by retention.

Invariants: `cursor` is the first offset that is kept, ready = next - cursor, nothing is ever unacked, requeued or settled.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import NOT_IMPLEMENTED, PRECONDITION_FAILED, ChannelError, ConnectionError_, StoreFull
from kvitto.base.limits import SEGMENT_BYTES
from kvitto.broker import walls
from kvitto.broker.administration.argument_reader import age_ms
from kvitto.broker.administration.equivalence import describe
from kvitto.broker.queues.filters import BATCH_STEPS, CHUNK_STEPS, SLICE, Filter, InvalidFilter, filter_of
from kvitto.broker.queues.queue import Declaration, Queue
from kvitto.broker.queues.ranges import RangeSet
from kvitto.store.reading import Window
from kvitto.store.stream import Retention, StreamLog
from kvitto.wire.tables import Timestamp

if TYPE_CHECKING:
    from kvitto.broker.administration.arguments import QueueSettings
    from kvitto.broker.broker import Broker
    from kvitto.broker.queues.consumer import Consumer
    from kvitto.broker.vhost import VHost
    from kvitto.store.batch import Batch
    from kvitto.store.store import Store

OFFSET = "x-stream-offset"
TRACKING = "x-stream-automatic-offset-tracking"
RECENT_BYTES = 4 << 20
"""Bytes of batches that stay in memory for the consumers at the tail."""
RECENT_BATCHES = 256
"""The most such batches."""
WINDOWS_BYTES = 16 << 20
"""Bytes that stay in memory for the consumers that read behind the tail and wait for credit."""
SAVE_MS = 500
"""The longest time after which the acked offsets of consumers are written."""
AGE_CHECK_MS = 1000
"""The least time between two looks at the age of the oldest segment."""


class Progress:
    """How far a consumer has come. `next`: the offset that it gets next. `tag` is None if no offset of it is stored. Otherwise all below
    `acked` is acked, and `beyond`, too. Messages that do not match `filter` count as acked.
    """

    __slots__ = ("acked", "beyond", "filter", "next", "tag", "window")

    def __init__(self, start: int, tag: str | None, wanted: Filter | None = None) -> None:
        self.filter = wanted
        self.next = start
        self.tag = tag
        self.acked = start
        self.beyond = RangeSet()
        self.window = Window()

    def skip(self, end: int) -> None:
        """The offsets up to `end` hold nothing for this consumer."""
        if self.tag is not None:
            self.ack(self.next, end - self.next)
        self.next = end

    def ack(self, offset: int, n: int) -> None:
        if offset != self.acked:
            self.beyond.add(offset, n)
            return
        self.acked += n
        for start, count in self.beyond:
            if start == self.acked:
                self.acked += count
            break
        self.beyond.remove_below(self.acked)


class Stream(Queue):
    stream = True
    adopts = False
    log: StreamLog

    def __init__(
        self, broker: Broker, vhost: VHost, log: StreamLog, settings: QueueSettings, declared: Declaration
    ) -> None:
        super().__init__(broker, vhost, log, settings, declared)
        log.on_drop = self._head_gone
        self._recent: deque[tuple[Batch, int]] = deque()
        self._recent_bytes = 0
        self._windows: dict[Window, int] = {}
        self._unfinished: deque[Consumer] = deque()
        """Consumers with a filter that have not looked at all messages yet, in the order in which they go on."""
        self._awaiting = False
        self._saving = False
        self._watching_age = False

    @property
    def cursor(self) -> int:
        """The first offset that is kept."""
        return self.log.first

    @property
    def ready(self) -> int:
        """How many messages are kept."""
        return self.tail.next - self.log.first

    def take_settings(self, settings: QueueSettings) -> None:
        super().take_settings(settings)
        self.log.retention = retention(settings)
        self.log.drop_settled()
        self._watching_age = False  # it may be due earlier

    # -- consumers -------------------------------------------------------------------------------------------

    def start_reading(self, tag: str, named: bool, arguments: dict[str, Any]) -> Progress:
        """Return where a consumer begins. `named`: the client has chosen its tag. Raises ChannelError 406 that names a wrong argument."""
        tracking = arguments.get(TRACKING, False)
        if not isinstance(tracking, bool):
            raise self._invalid(TRACKING, f"expected a boolean, got {tracking!r}")
        given = arguments.get(OFFSET)
        try:
            wanted = filter_of(arguments)
        except InvalidFilter as error:
            raise self._invalid(error.name, error.why) from None
        start = self._start(given)
        if not named or not (tracking or given is None):
            return Progress(start, None, wanted)
        remembered = self.log.offsets.get(tag)
        if remembered is not None:
            start = max(self.cursor, min(remembered, self.next))
        return Progress(start, tag, wanted)

    def _start(self, given: Any) -> int:
        if given is None or given == "next":
            return self.next
        if given == "first":
            return self.cursor
        if given == "last":
            return max(self.next - 1, self.cursor)
        time_ms = -1
        if isinstance(given, str):
            time_ms = max(self.broker.now_ms - age_ms(given), 0) if age_ms(given) >= 0 else -1
        elif isinstance(given, datetime):
            time_ms = int(given.timestamp()) * 1000
        elif isinstance(given, Timestamp):
            time_ms = given * 1000
        elif isinstance(given, int) and not isinstance(given, bool) and given >= 0:
            return max(self.cursor, given)  # an offset in the future is waited for, as with RabbitMQ
        if time_ms < 0:
            text = f"expected first, last, next, an offset, a timestamp or an interval like 1h, got {given!r}"
            raise self._invalid(OFFSET, text)
        return self.log.offset_at(time_ms)

    def _invalid(self, name: str, why: str) -> ChannelError:
        return ChannelError(PRECONDITION_FAILED, f"invalid arg '{name}' for {self._described}: {why}")

    @property
    def _described(self) -> str:
        return describe("queue", self.name, self.vhost.name)

    def add_consumer(self, c: Consumer) -> None:
        progress = c.progress
        assert progress is not None
        if progress.tag is not None and self.log.offsets.get(progress.tag) is None:
            self._remember(progress)
        super().add_consumer(c)

    def remove_consumer(self, c: Consumer) -> None:
        super().remove_consumer(c)
        if c.progress is not None:
            self._release(c.progress.window)

    def ack(self, offset: int, n: int, c: Consumer | None = None) -> None:
        self.acked += n
        self._done(offset, n, c)

    def reject(self, offset: int, n: int, c: Consumer | None = None) -> None:
        """Advance the stored offset of the consumer, like an ack."""
        self._done(offset, n, c)

    def requeue(self, offset: int, n: int, body_bytes: int, later: bool = False) -> None:
        """The messages stay where they are; a consumer whose offset is remembered gets them again when it comes back."""

    def retry(self, offset: int, n: int, body_bytes: int, how: str = "returned") -> None:
        """The messages stay where they are: a stream delays nothing."""

    def _done(self, offset: int, n: int, c: Consumer | None) -> None:
        if c is not None and c.progress is not None and c.progress.tag is not None and not self.deleted:
            c.progress.ack(offset, n)
            self._remember(c.progress)

    def _remember(self, progress: Progress) -> None:
        assert progress.tag is not None
        self.log.offsets.put(progress.tag, progress.acked)
        if not self._saving:
            self._saving = True
            self.broker.timers.after(SAVE_MS, self._save)

    def _save(self) -> None:
        self._saving = False
        if self.deleted:
            return
        self.log.offsets.write()
        if self.log.offsets.changed:  # the disk had no room
            self._saving = True
            self.broker.timers.after(SAVE_MS, self._save)

    # -- deliver ---------------------------------------------------------------------------------------------

    def deliver_ready(self) -> None:
        """Deliver what is durable to every consumer that has credit: first to those without a filter, since they skip nothing."""
        if not self.consumers or not self.ready:
            return
        end = self.log.announced_end
        filtered = []
        for c in list(self.consumers):
            assert c.progress is not None
            if c.progress.filter is None:
                self._feed(c, end)
            elif c.progress.next < end:
                filtered.append(c)
        if filtered:
            self._feed_filtered(filtered, end)

    def _feed_filtered(self, consumers: list[Consumer], end: int) -> None:
        """Serve the consumers with a filter in rotation, within the steps of this turn. The next turn goes on with the rest."""
        left = self.broker.filtering.share(self.broker.turns)
        waiting = self._unfinished
        began = set(waiting)
        waiting.extend(c for c in consumers if c not in began)
        for _ in range(len(waiting)):
            c = waiting.popleft()
            if c.serial:
                waiting.append(c)
        while waiting and left > 0:
            c = waiting.popleft()
            if c.serial:
                steps, more = self._feed_some(c, end)
                left -= steps
                if more:
                    waiting.append(c)
        if waiting:
            self.broker.pump_later(self)

    def _feed_some(self, c: Consumer, end: int) -> tuple[int, bool]:
        """Serve a consumer with a filter for SLICE steps. Returns how many it took, and whether it could go on at once."""
        progress = c.progress
        assert progress is not None and progress.filter is not None
        acked, left, opened = progress.acked, SLICE, -1
        while progress.next < end and left > 0:
            self.serving = c
            most = c.credit()
            self.serving = None
            if most <= 0:
                break
            place = progress.window.position
            batch = self._batch(progress)
            if batch is not None and batch.first != opened:
                opened = batch.first
                left -= BATCH_STEPS if progress.window.position == place else CHUNK_STEPS
            if progress.window.waits is not None:
                self._check_window(progress)
                break
            if batch is None or batch.first > progress.next:
                progress.skip(end if batch is None else min(batch.first, end))
                continue
            i = progress.next - batch.first
            skipped, n, steps = progress.filter.next_run(
                batch, i, min(batch.count, end - batch.first), most, max(left, 1)
            )
            left -= steps
            if skipped:
                progress.skip(progress.next + skipped)
            if n and not self._deliver(c, batch, i + skipped, n):
                break
        self.broker.filtering.spend(SLICE - left)
        if progress.tag is not None and progress.acked > acked:
            self._remember(progress)
        if progress.window.segment is not None:
            if progress.next < end and c.serial:
                self._keep(progress.window)
            else:
                self._release(progress.window)
        return SLICE - left, left <= 0 and progress.next < end

    def _check_window(self, progress: Progress) -> None:
        """Have the large batch checked that this consumer has come to."""
        waits, progress.window.waits = progress.window.waits, None
        assert waits is not None
        self.check(self.log.reader.check_steps(*waits))

    def _deliver(self, c: Consumer, batch: Batch, i: int, n: int) -> bool:
        """Deliver up to `n` messages. Returns False if the first one does not fit into the consumer's frames, which ends the consumer."""
        progress = c.progress
        assert progress is not None
        self.serving = c
        k = c.deliver(batch, i, n, 0)
        self.serving = None
        if not k:
            self.end_consumer(c)
            return False
        progress.next += k
        c.unacked += k
        self.delivered += k
        return True

    def _feed(self, c: Consumer, end: int) -> None:
        progress = c.progress
        assert progress is not None
        begin = progress.next
        while progress.next < end:
            self.serving = c
            most = c.credit()
            self.serving = None
            if most <= 0:
                if progress.next > begin and progress.window.segment is not None:
                    self._keep(progress.window)
                return
            batch = self._batch(progress)
            if progress.window.waits is not None:
                self._check_window(progress)
                return
            if batch is None or batch.first > progress.next:
                progress.skip(end if batch is None else min(batch.first, end))
                continue
            i = progress.next - batch.first
            if not self._deliver(c, batch, i, min(most, batch.count - i, end - progress.next)):
                return
        if progress.window.segment is not None:
            self._release(progress.window)

    def _keep(self, window: Window) -> None:
        """Keep the window of a consumer that waits for credit in memory, and drop the windows that were unused for longest."""
        windows = self._windows
        windows.pop(window, None)
        windows[window] = window.chunk.cap
        over = sum(windows.values()) - WINDOWS_BYTES
        for oldest, size in list(windows.items()):
            if over <= 0:
                return
            over -= size
            self._release(oldest)

    def _release(self, window: Window) -> None:
        self._windows.pop(window, None)
        window.release()

    def _batch(self, progress: Progress) -> Batch | None:
        """The batch with the message that this consumer gets next, the one behind it if there is a gap, None if there is none."""
        at, batch = progress.next, progress.window.batch
        if batch.first <= at < batch.first + batch.count:
            return batch
        if self._recent and at >= self._recent[0][0].first:
            recent = self._recent[bisect_right(self._recent, at, key=lambda kept: kept[0].first) - 1][0]
            if at < recent.first + recent.count:
                return recent
        progress.window.patient = True
        found = self.log.reader.load(progress.window, at)
        self.log.reader.lost.clear()  # the alarm has been raised by the store
        return progress.window.batch if found else None

    # -- turn ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what this turn has brought. Raises StoreFull or StoreError; then nothing is forgotten, and it may be called again."""
        tail = self.tail.batch
        if not self.has_files and self._must_wait(0):
            return
        if self._is_slow():
            if not self.log.is_writing:
                self.tail.closed[0].time_ms = self.broker.now_ms
            self._hold_back(True)
            try:
                self._write_closed(0)
            except StoreFull:
                self._go_on_full()
                raise
            if self.tail.closed and self not in self.broker.pressed:
                self.mark_dirty()
        elif tail is not None:
            # The time of the write, not that of the first message: a consumer that starts from a time must not miss messages of this batch.
            tail.time_ms = self.broker.now_ms
            self.log.write(tail)
            self.tail.end()
            self._written(tail)
        if self.held_back and not self.tail.closed:
            self._hold_back(False)
        end = self.log.announced_end
        wanted = [c.progress.next for c in self.consumers if c.progress is not None]
        self._drop_recent(wanted, end)
        if tail is not None and end == self.log.next and wanted:
            self.mark_dirty()  # no sync has to come first, so these messages may be delivered at once
        elif end < self.log.next and not self._awaiting and any(p >= end for p in wanted):
            self._awaiting = True
            self.broker.store.commits.when_announced(walls.guarded(self, self._arrived))
        self._watch_age()

    def _written(self, batch: Batch) -> None:
        self.broker.latencies.note_sizes(batch)
        self._recent.append((batch, batch.size()))
        self._recent_bytes += batch.size()
        if self.tail.closed:
            self.tail.closed[0].time_ms = self.broker.now_ms

    def _arrived(self) -> None:
        """Deliver messages that have become durable."""
        self._awaiting = False
        self.mark_dirty()

    def _drop_recent(self, wanted: list[int], end: int) -> None:
        """Drop recent batches, except those that the consumers at the tail have still to read."""
        recent = self._recent
        if recent:
            tail = min(end, recent[0][0].first)
            lowest = min((p for p in wanted if p >= tail), default=self.next)
        while recent:
            batch, size = recent[0]
            few = self._recent_bytes <= RECENT_BYTES and len(recent) <= RECENT_BATCHES
            if few and lowest < batch.first + batch.count:
                return
            recent.popleft()
            self._recent_bytes -= size
            self.broker.give_batch(batch)

    def _watch_age(self) -> None:
        if not self._watching_age and (due := self.log.age_due) is not None:
            self._watching_age = True
            self.broker.timers.after(max(due - self.broker.now_ms, AGE_CHECK_MS), self._age_due)

    def _age_due(self) -> None:
        self._watching_age = False
        if not self.deleted:
            self.log.drop_settled()
            self.mark_dirty()

    def _head_gone(self) -> None:
        """Retention has taken the oldest segment."""
        self.ready_bytes = sum(part.body_bytes for part in self.log.segments)
        self.ready_bytes += sum(batch.body.n for batch in self.tail.batches)

    def recover(self) -> None:
        self.log.recover()
        self.tail.start_at(self.log.next)
        self._head_gone()

    def release_windows(self) -> None:
        self.log.drop_settled()  # what the journal has held back

    # -- what a stream does not do ---------------------------------------------------------------------------

    def get(self, c: Consumer) -> bool:
        raise ConnectionError_(NOT_IMPLEMENTED, f"basic.get not supported by stream queues {self._described}")

    def purging(self) -> tuple[int, Iterator[None]]:
        raise ConnectionError_(NOT_IMPLEMENTED, f"queue.purge not supported by stream queues {self._described}")

    def settle_until(self, end: int) -> None:
        raise ChannelError(PRECONDITION_FAILED, f"{self._described} is a stream: nothing in it is settled")


def check_stream(name: str, vhost: str, durable: bool, exclusive: bool, auto_delete: bool) -> None:
    """Raises ChannelError 406 for what a stream cannot be."""
    thing = describe("queue", name, vhost)
    for wrong, what in ((auto_delete, "auto-delete"), (exclusive, "exclusive-owner"), (not durable, "non-durable")):
        if wrong:
            raise ChannelError(PRECONDITION_FAILED, f"invalid property '{what}' for {thing}")
    if not name:
        raise ChannelError(PRECONDITION_FAILED, "Cannot declare a server-named queue for type stream: give it a name")


def retention(settings: QueueSettings) -> Retention:
    return Retention(settings.max_length, settings.max_bytes, settings.max_age_ms)


def stream_log(store: Store, queue_id: str, settings: QueueSettings) -> StreamLog:
    return StreamLog(
        store, queue_id, retention(settings), settings.segment_bytes if settings.segment_bytes > 0 else SEGMENT_BYTES
    )

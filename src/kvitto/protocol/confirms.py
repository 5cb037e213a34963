"""Publisher confirms: the messages that each channel has published, and when they may be acknowledged (C2, C3, C4).

A message goes through three stages: it is in memory, it is in the files once its queue has been written, and it may be announced
once the sync after that is done. Channels wait here for the second and the third stage. Confirms of one channel stay in order.
The hub calls `note_published` before a turn of the broker, and `answer` after it and after each sync.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kvitto.broker import walls
from kvitto.broker.broker import Broker
from kvitto.broker.routing.route import Route
from kvitto.broker.turning import Targets

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue
    from kvitto.protocol.channel import Channel

Waiting = tuple["list[Queue]", Callable[[], None], "Callable[[Queue], None]"]
"""(queues to be written, callback once that is durable, callback if one of them goes out of service before)."""


class Published:
    """What a channel has published at one moment: its last number, whether that must be durable, and its routes."""

    changes: int
    channel: Channel
    arrived_us: int
    """The monotonic clock when the input with these messages was read."""
    sequence: int
    count: int
    """The number of these messages."""
    unsynced: bool
    route: Route | None
    """The last route; `used` has the others."""
    used: list[Route] | None

    def note(self, changes: int, channel: Channel, arrived_us: int) -> None:
        """Note what the channel has published since the last time. This is no constructor, which would make objects of the numbers."""
        self.changes = changes
        self.channel = channel
        self.arrived_us = arrived_us
        self.sequence = channel.sequence
        self.count = channel.sequence - channel.noted if channel.sequence > channel.noted else 0
        channel.noted = channel.sequence
        self.unsynced = channel.unsynced
        self.route = channel.route
        self.used = None
        if channel.used:
            self.used, channel.used = channel.used, []
        channel.touched = channel.unsynced = False

    @property
    def routes(self) -> list[Route]:
        used = self.used or []
        return used if self.route is None else [*used, self.route]


class Covered:
    """Published messages that are in the files, and wait for the next sync. It is called when that sync has ended."""

    def __init__(self, confirms: Confirms) -> None:
        self.confirms = confirms
        self.published: list[Published] = []

    def __call__(self) -> None:
        self.confirms.synced(self.published)


class Late:
    """Confirms of a channel, or a call of `when_written`, that wait until slow queues have written what they had at one moment."""

    def __init__(self, targets: Targets, published: Published | None = None) -> None:
        self.targets = targets
        self.published = published


class Confirms:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.touched: list[Channel] = []
        """Channels that have published since the last `note_published`. Each channel has this list, which is never replaced."""
        self.received = 0
        """Messages that were published with confirms."""
        self.answered = 0
        """Messages that have been acknowledged to their publishers."""
        self._durable: dict[Channel, int] = {}
        """By channel, the number of its last message that a sync has covered."""
        self._published: list[Published] = []
        """Published messages, in order. They are in the files when as many changes are written as `changes` says."""
        self._unwritten: list[Waiting] = []
        self._waiting: deque[tuple[int, list[Waiting]]] = deque()
        """Calls of `when_written`, each with the changes that must be written for them."""
        self._late: dict[Channel, Late] = {}
        """Channels that wait for slow queues, or for queues that wait for a commit."""
        self._late_waiting: list[tuple[Late, Waiting]] = []

    def when_written(self, queues: list[Queue], done: Callable[[], None], lost: Callable[[Queue], None]) -> None:
        """Call `done` when the messages that this turn has appended to these queues are durable. A full disk delays that.

        If one of them goes out of service before it is written, `lost` gets it instead.
        """
        self._unwritten.append((queues, done, lost))

    def note_published(self) -> None:
        """Note what has been published. It is in the files once all queues that are dirty now have been written."""
        if not self.touched and not self._unwritten:
            return
        changes = self.broker.changes
        for channel in self.touched:
            published = Published()
            published.note(changes, channel, self.broker.now_us)
            self._published.append(published)
            self.received += published.count
        self.touched.clear()
        if self._unwritten:
            self._waiting.append((changes, self._unwritten))
            self._unwritten = []

    def answer(self) -> None:
        """Acknowledge published messages, at once or after the next sync (C2, C3, C4)."""
        if self._durable:
            safe, self._durable = self._durable, {}
            for channel, sequence in safe.items():
                self._answer(channel, sequence)
        if self.broker.faults.fresh:
            self._refuse_lost()
        if self.broker.unwritten:
            return
        if not self._published and not self._waiting and not self._late and not self._late_waiting:
            return
        covered = Covered(self)
        if self._late or self._late_waiting:
            self._look_late(covered)
        broker = self.broker
        count = 0
        while count < len(self._published):
            published = self._published[count]
            if published.changes > broker.written:
                break
            count += 1
        for published in self._take(count):
            if not (broker.slow or self._late or broker.later_writes.waiting) or not self._is_late(published):
                self._written(published, covered)
        if self._waiting:
            self._answer_written()
        if covered.published:
            broker.store.commits.when_confirmed(covered, len(covered.published))

    def _take(self, count: int) -> list[Published]:
        """Take out the first ones of what has been published."""
        published = self._published
        if count == len(published):
            self._published = []
            return published
        taken = published[:count]
        del published[:count]
        return taken

    def _written(self, published: Published, covered: Covered) -> None:
        """Handle published messages that are in the files: their channel waits for the next sync, or is answered."""
        channel = published.channel
        if published.unsynced or channel.in_flight:
            channel.in_flight += 1
            covered.published.append(published)
        else:
            self._answer(channel, published.sequence)
            self._note_wait(published, self.broker.clock.monotonic_us())

    def _answer_written(self) -> None:
        """Handle the calls of `when_written` whose queues are in the files: they wait for the next sync, or for slow queues."""
        while self._waiting and self._waiting[0][0] <= self.broker.written:
            for wanted in self._waiting.popleft()[1]:
                targets = self._targets([wanted[0]])
                if targets:
                    self._late_waiting.append((Late(targets), wanted))
                else:
                    self.broker.store.commits.when_announced(wanted[1])

    def _is_late(self, published: Published) -> bool:
        """Move what has to wait for slow queues to `_late`, and all of channels that are in it: confirms stay in order.

        Returns whether it was moved.
        """
        targets = self._targets([route.queues for route in published.routes])
        before = self._late.get(published.channel)
        if before is not None:
            assert before.published is not None
            targets = before.targets | targets
            published.unsynced = published.unsynced or before.published.unsynced
            published.count += before.published.count
            published.arrived_us = before.published.arrived_us
        if targets:
            self._late[published.channel] = Late(targets, published)
        return bool(targets)

    def _targets(self, routed: list[list[Queue]]) -> Targets:
        """Return the queues that have counted as written before they were, out of lists of queues, with their ends."""
        slow = self.broker.slow
        # a queue that waits for a commit may have been written although it has a place in the line
        return self.broker.targets(
            q for queues in routed for q in queues if q in slow or (q.waits_for_commit and q.unwritten_from < q.next)
        )

    def _look_late(self, covered: Covered) -> None:
        """Handle the confirms that no longer wait for slow queues."""
        reached = self.broker.reached
        for channel, late in [item for item in self._late.items() if reached(item[1].targets)]:
            del self._late[channel]
            assert late.published is not None
            self._written(late.published, covered)
        for item in [item for item in self._late_waiting if reached(item[0].targets)]:
            self._late_waiting.remove(item)
            self.broker.store.commits.when_announced(item[1][1])

    def _refuse_lost(self) -> None:
        """Refuse to confirm messages that queues had not written when they went out of service."""
        lost, self.broker.faults.fresh = self.broker.faults.fresh, []
        self.note_published()
        refused: dict[Channel, Queue] = {}
        for published in self._published:
            routes = published.routes
            gone = next((queue for queue in lost if any(queue in route.queues for route in routes)), None)
            if gone is not None:
                refused.setdefault(published.channel, gone)
        for _, waiting in self._waiting:
            for entry in waiting[:]:
                queues, _, tell = entry
                gone = next((queue for queue in queues if queue in lost), None)
                if gone is not None:
                    waiting.remove(entry)
                    tell(gone)
        for channel, late in list(self._late.items()):
            gone = next((queue for queue in lost if queue in late.targets), None)
            if gone is not None:
                del self._late[channel]
                refused.setdefault(channel, gone)
        for item in self._late_waiting[:]:
            gone = next((queue for queue in lost if queue in item[0].targets), None)
            if gone is not None:
                self._late_waiting.remove(item)
                item[1][2](gone)
        for channel, queue in refused.items():
            channel.contain(walls.out_of_service(queue))

    def synced(self, covered: list[Published]) -> None:
        """Note the last message of each channel that a sync has covered. One ack may answer several turns of a channel."""
        now_us = self.broker.clock.monotonic_us()
        for published in covered:
            channel = published.channel
            channel.in_flight -= 1
            self._durable[channel] = published.sequence
            self._note_wait(published, now_us)

    def _note_wait(self, published: Published, now_us: int) -> None:
        """Note how long these messages have waited for their confirm."""
        if published.count and not published.channel.closing:
            self.broker.latencies.confirm.add(now_us - published.arrived_us, published.count)

    def _answer(self, channel: Channel, sequence: int) -> None:
        before = channel.confirmed
        try:
            channel.confirm_to(sequence)
        except Exception as error:  # noqa: BLE001 - the wall around this channel
            channel.contain(error)
        self.answered += channel.confirmed - before

    def unconfirmed(self) -> Iterator[Channel]:
        """Yield each channel that waits for confirms of messages which may not be in the files yet. A channel may come several times."""
        yield from self.touched
        for published in self._published:
            yield published.channel
        yield from self._late

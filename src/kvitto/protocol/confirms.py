"""Publisher confirms: the messages that each channel has published, and when they may be acknowledged (C2, C3, C4).

A message goes through three stages: it is in memory, it is in the files once its queue has been written, and it may be announced
once the sync after that is done. Channels wait here for the second and the third stage. Confirms of one channel stay in order.
The hub calls `note_published` before a turn of the broker, and `answer` after it and after each sync.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
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
    """The channels that have published at one moment: each with its last number, whether that must be durable, and its routes."""

    def __init__(self, changes: int, waiting: list[Waiting]) -> None:
        self.changes = changes
        self.channels: list[tuple[Channel, int, bool, list[Route]]] = []
        self.waiting = waiting


class Late:
    """Confirms of a channel, or a call of `when_written`, that wait until slow queues have written what they had at one moment."""

    def __init__(self, targets: Targets, sequence: int = 0, unsynced: bool = False) -> None:
        self.targets = targets
        self.sequence = sequence
        self.unsynced = unsynced


class Confirms:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.touched: list[Channel] = []
        """Channels that have published since the last `note_published`."""
        self.answered = 0
        """Messages that have been acknowledged to their publishers."""
        self._durable: dict[Channel, int] = {}
        """By channel, the number of its last message that a sync has covered."""
        self._published: deque[Published] = deque()
        """Published messages, in order. They are in the files when as many changes are written as `changes` says."""
        self._unwritten: list[Waiting] = []
        self._late: dict[Channel, Late] = {}
        """Channels that wait for slow queues."""
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
        published = Published(self.broker.changes, self._unwritten)
        for channel in self.touched:
            routes = channel.used if channel.route is None else [*channel.used, channel.route]
            published.channels.append((channel, channel.sequence, channel.unsynced, routes))
            channel.touched = channel.unsynced = False
            channel.used = []
        self._published.append(published)
        self.touched, self._unwritten = [], []

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
        if not self._published and not self._late and not self._late_waiting:
            return
        waiting: list[tuple[Channel, int]] = []
        if self._late or self._late_waiting:
            self._look_late(waiting)
        while self._published and self._published[0].changes <= self.broker.written:
            published = self._published.popleft()
            if self.broker.slow or self._late:
                self._part_late(published)
            for channel, sequence, unsynced, _ in published.channels:
                self._written(channel, sequence, unsynced, waiting)
            for _, done, _ in published.waiting:
                self.broker.store.commits.when_announced(done)
        if waiting:
            self.broker.store.commits.when_announced(partial(self._synced, waiting))

    def _written(self, channel: Channel, sequence: int, unsynced: bool, waiting: list[tuple[Channel, int]]) -> None:
        """Handle a channel whose published messages are in the files: it waits for the next sync, or is answered."""
        if unsynced or channel.in_flight:
            channel.in_flight += 1
            waiting.append((channel, sequence))
        else:
            self._answer(channel, sequence)

    def _part_late(self, published: Published) -> None:
        """Move entries that have to wait for slow queues to `_late`, and all entries of channels that are in it: confirms stay in order."""
        slow, broker = self.broker.slow, self.broker
        left = []
        for entry in published.channels:
            channel, sequence, unsynced, routes = entry
            targets = broker.targets(q for q in slow if any(q in route.queues for route in routes))
            before = self._late.get(channel)
            if before is not None:
                targets, unsynced = before.targets | targets, unsynced or before.unsynced
            if targets:
                self._late[channel] = Late(targets, sequence, unsynced)
            else:
                left.append(entry)
        published.channels = left
        kept = []
        for wanted in published.waiting:
            targets = broker.targets(q for q in slow if q in wanted[0])
            if targets:
                self._late_waiting.append((Late(targets), wanted))
            else:
                kept.append(wanted)
        published.waiting = kept

    def _look_late(self, waiting: list[tuple[Channel, int]]) -> None:
        """Handle the confirms that no longer wait for slow queues."""
        reached = self.broker.reached
        for channel, late in [item for item in self._late.items() if reached(item[1].targets)]:
            del self._late[channel]
            self._written(channel, late.sequence, late.unsynced, waiting)
        for item in [item for item in self._late_waiting if reached(item[0].targets)]:
            self._late_waiting.remove(item)
            self.broker.store.commits.when_announced(item[1][1])

    def _refuse_lost(self) -> None:
        """Refuse to confirm messages that queues had not written when they went out of service."""
        lost, self.broker.faults.fresh = self.broker.faults.fresh, []
        self.note_published()
        refused: dict[Channel, Queue] = {}
        for published in self._published:
            for channel, _, _, routes in published.channels:
                gone = next((queue for queue in lost if any(queue in route.queues for route in routes)), None)
                if gone is not None:
                    refused.setdefault(channel, gone)
            for entry in published.waiting[:]:
                queues, _, tell = entry
                gone = next((queue for queue in queues if queue in lost), None)
                if gone is not None:
                    published.waiting.remove(entry)
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

    def _synced(self, waiting: list[tuple[Channel, int]]) -> None:
        """Note the last message of each channel that a sync has covered. One ack may answer several turns of a channel."""
        for channel, sequence in waiting:
            channel.in_flight -= 1
            self._durable[channel] = sequence

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
            for channel, _, _, _ in published.channels:
                yield channel
        yield from self._late

"""What all connections share: the end of a turn, confirms, direct reply-to, and blocking publishers.

The server calls `turn` once after it has fed the sockets that were readable, and `flush` after a sync has ended.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kvitto.base import limits
from kvitto.base.limits import MIB, SHORTSTR_MAX
from kvitto.broker import walls
from kvitto.broker.broker import Broker, Targets
from kvitto.broker.route import Route
from kvitto.protocol.crowd import Crowd
from kvitto.protocol.holding import Holding
from kvitto.protocol.timeouts import Timeouts
from kvitto.store.commit import ROOM_KEPT
from kvitto.wire.buf import Buf
from kvitto.wire.methods import BasicDeliver

if TYPE_CHECKING:
    from kvitto.broker.auth import Attempt, User
    from kvitto.broker.queue import Queue
    from kvitto.protocol.channel import Channel
    from kvitto.protocol.connection import Connection
    from kvitto.protocol.output import Output

log = logging.getLogger("kvitto.amqp")

REPLY_PREFIX = "amq.rabbitmq.reply-to."
REPLIES_MAX = 8 << 20
"""Bytes waiting for a socket that takes none, above which direct replies to it are unroutable: they have no queue to wait in."""


WRITE_COST = 3000
"""What a turn may write, in units of about a microsecond."""
INPUT_COST = 3000
"""What a turn may spend on input that was left over, in the same units."""
ROUNDS = 3
"""A turn delivers so many times more to connections whose sockets have just taken a full output.

A turn takes half a MiB of input from each publisher. As deliveries the same messages often have more bytes, so a consumer with one
output of half a MiB in each turn would fall behind a single publisher.
"""
Waiting = tuple["list[Queue]", Callable[[], None], "Callable[[Queue], None]"]
"""Queues that are to be written, whom to call once that is durable, and whom if one of them goes out of service before."""

LogIn = Callable[["Attempt", Callable[["User | None"], None]], None]
"""Checks an attempt outside the loop and gives the user, or None, to the second, in the loop."""


def no_room(free: int) -> str:
    """Why publishers are blocked when a write was refused with so many bytes free."""
    return (
        f"low on disk: no room for messages with {free / MIB:.1f} MiB free, {ROOM_KEPT // MIB} MiB are kept free for acks"
        " and definitions; make room, or consume, purge or delete queues"
    )


class Published:
    """What channels have published at one moment: channel, its last number, whether that is to be durable, and the routes it took."""

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


class Hub:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.connections: dict[Connection, None] = {}
        self.outputs: list[Output] = []
        self.touched: list[Channel] = []
        self.timeouts = Timeouts(broker)
        self._durable: dict[Channel, int] = {}
        self._published: deque[Published] = deque()
        """What has been published, by the number of `Broker.changes` that have to be written before it is in the files."""
        self._unwritten: list[Waiting] = []
        self._late: dict[Channel, Late] = {}
        self._late_waiting: list[tuple[Late, Waiting]] = []
        self._crowds: deque[tuple[Connection, Crowd]] = deque()
        """Consumers for which there is room again, and whose they are."""
        self._yielded: deque[Connection] = deque()
        """Connections whose input goes on in the next turn."""
        self.alarms: dict[str, str] = {}
        """Why publishers are blocked: "disk", "room" (a write was refused) or "memory" -> a sentence."""
        self.schedule: Callable[[], None] = lambda: None
        self.log_in: LogIn | None = None
        """For passwords that have not been seen yet, whose check takes long; None: in place."""
        self.beats: Callable[[Connection], None] = lambda _: None
        """Have `Connection.beat` called for this one, which has agreed to heartbeats."""
        self._repliers: dict[str, Channel] = {}
        self._addresses: dict[Channel, str] = {}
        self.connections_made = 0
        self.connections_closed = 0
        self.channels_made = 0
        self.channels = 0
        """Open ones, of all connections."""
        self.max_channels = limits.CHANNEL_MAX
        self.holding = Holding(broker, self.connections)
        self.unroutable = 0
        self.answered = 0
        broker.on_full = self._full

    def turn(self) -> None:
        """Go on with what the last turn has left, deliver and write what has come in, note who waits for which sync, flush outputs.

        While the turn has time left, connections whose sockets have taken a full output get more.
        """
        broker = self.broker
        if self._yielded:
            self._go_on()
        if broker.jobs.waiting:
            walls.run(broker.jobs, broker.jobs.run)
        if self._crowds:
            self._serve_crowds()
        if self.touched or self._unwritten:
            self.note_published()
        broker.turn(WRITE_COST)
        self.confirm()
        self.flush()
        if self._crowds:
            self._serve_rounds()
        if self.unfinished:
            self.schedule()

    def _serve_rounds(self) -> None:
        """Serve consumers that wait for room, with what this turn has not used of its allowance.

        The allowance of the next turn is for all queues, so nothing is taken from it.
        """
        broker = self.broker
        renewed, broker.allowance = broker.allowance, broker.left
        for _ in range(ROUNDS):
            if not self._crowds or broker.allowance <= 0:
                break
            self._serve_crowds()
            self.flush()
        broker.allowance = renewed

    def _go_on(self) -> None:
        """Handle the input that the last turns have left, as much as fits into this one; publishers wait while the broker is behind."""
        cost = 0
        for _ in range(len(self._yielded)):
            if cost >= INPUT_COST:
                return
            connection = self._yielded.popleft()
            if connection.publisher and self.broker.behind:
                self._yielded.append(connection)
                continue
            cost += walls.run(connection, connection.go_on) or 0

    @property
    def unfinished(self) -> bool:
        """Whether there is work left for the next turn."""
        return bool(self._yielded or self._crowds or self.broker.unfinished)

    def go_on_later(self, connection: Connection) -> None:
        """Its input has used up the budget of this turn."""
        self._yielded.append(connection)
        self.schedule()

    def serve_later(self, owner: Connection, crowd: Crowd) -> None:
        """There is room again for those that wait for it."""
        if not crowd.due:
            crowd.due = True
            self._crowds.append((owner, crowd))
            self.schedule()

    def _serve_crowds(self) -> None:
        for _ in range(len(self._crowds)):
            if self.broker.allowance <= 0:
                return
            owner, crowd = self._crowds.popleft()
            if walls.run(owner, crowd.serve) is False:
                self._crowds.append((owner, crowd))

    def after_sync(self) -> None:
        """Answer who has waited; a whole turn only if that has moved anything."""
        if self.broker.idle:
            self.confirm()
            self.flush()
        else:
            self.turn()

    def when_written(self, queues: list[Queue], done: Callable[[], None], lost: Callable[[Queue], None]) -> None:
        """Call `done` once what has been appended to these queues in this turn is durable; a full disk puts that off.

        If one of them goes out of service before it is written, `lost` gets it instead.
        """
        self._unwritten.append((queues, done, lost))

    def confirm(self) -> None:
        """Channels that have published: acknowledge at once, or once the next sync is done (C2, C3, C4)."""
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
            self.broker.store.commits.when_announced(lambda: self._synced(waiting))

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
        """Handle those who no longer have to wait for slow queues."""
        reached = self.broker.reached
        for channel, late in [item for item in self._late.items() if reached(item[1].targets)]:
            del self._late[channel]
            self._written(channel, late.sequence, late.unsynced, waiting)
        for item in [item for item in self._late_waiting if reached(item[0].targets)]:
            self._late_waiting.remove(item)
            self.broker.store.commits.when_announced(item[1][1])

    def note_published(self) -> None:
        """What has been published until now is in the files once all the queues are written that are dirty now."""
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

    def _refuse_lost(self) -> None:
        """Queues have gone out of service with what they had not written: who waits for a confirm of that gets none."""
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
        """One sync may cover several turns of a channel: they get one ack."""
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

    def flush(self) -> None:
        outputs, self.outputs = self.outputs, []
        for output in outputs:
            output.dirty = False
            owner = output.owner
            if owner is not None:
                try:
                    owner.flush()
                except Exception as error:  # noqa: BLE001 - the wall around this connection
                    owner.contain(error)

    # -- blocking --------------------------------------------------------------------------------------------

    @property
    def blocked(self) -> str | None:
        """Why publishers wait, as connection.blocked says it."""
        return "; ".join(self.alarms.values())[:SHORTSTR_MAX] or None

    def _full(self, full: bool) -> None:
        self.block(no_room(self.broker.store.disk.free_bytes()) if full else None, "room")
        if full:
            # one that publishes message by message says nothing more before it has heard of this one
            for channel in self._unconfirmed():
                channel.connection.tell_blocked()

    def _unconfirmed(self) -> Iterator[Channel]:
        """Channels that wait for confirms of what is not known to be in the files; one may come several times."""
        yield from self.touched
        for published in self._published:
            for channel, _, _, _ in published.channels:
                yield channel
        yield from self._late

    def block(self, reason: str | None, alarm: str = "disk") -> None:
        """Publishers wait (D4) while an alarm has a reason (ASCII); those that can take it are told."""
        if (reason is None) == (alarm not in self.alarms):
            return
        before = self.blocked
        if reason is None:
            was = self.alarms.pop(alarm).partition(":")[0]
            if not any(text.startswith(was) for text in self.alarms.values()):
                log.info("no longer %s", was)
        else:
            self.alarms[alarm] = reason
            log.warning("publishers are blocked: %s", reason)
        now = self.blocked
        if (before is None) == (now is None):
            return
        if now is None:
            log.info("publishers may go on")
        for connection in list(self.connections):
            connection.set_blocked(now is not None)

    # -- direct reply-to -------------------------------------------------------------------------------------

    def reply_address(self, channel: Channel) -> str:
        """A reply queue's name that leads to this channel's consumer of direct reply-to."""
        name = self._addresses.get(channel)
        if name is None:
            name = self._addresses[channel] = REPLY_PREFIX + secrets.token_urlsafe(24)
            self._repliers[name] = channel
        return name

    def is_reply_address(self, name: str) -> bool:
        return name in self._repliers

    def deliver_reply(self, route: Route, props: bytes, body: bytes | Buf) -> bool:
        """Hand a message for a direct reply-to name to the channel that waits for it."""
        channel = None if route.exchange else self._repliers.get(route.routing_key)
        if (
            channel is None
            or channel.closing
            or channel.reply_tag is None
            or channel.output.backlog() > REPLIES_MAX
            or len(props) > channel.output.properties_max
        ):
            self.unroutable += 1
            return False
        tag, channel.next_tag = channel.next_tag, channel.next_tag + 1
        method = BasicDeliver(channel.reply_tag, tag, False, "", route.routing_key)
        channel.output.put_method(channel.number, method.encode())
        channel.output.put_content_bytes(channel.number, props, body)
        return True

    def forget_channel(self, channel: Channel) -> None:
        name = self._addresses.pop(channel, None)
        if name is not None:
            del self._repliers[name]

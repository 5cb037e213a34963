"""What all connections share: their turn, and one object each for confirms, alarms, direct reply-to, timeouts and memory.

Whoever drives the hub (`Driver`: the server with its loop) calls `turn` once after it has fed the sockets that were readable, and
`after_sync` when a sync has ended. The hub itself knows no loop and no socket.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kvitto.base import limits
from kvitto.broker import walls
from kvitto.broker.broker import Broker
from kvitto.protocol.alarms import Alarms, no_room
from kvitto.protocol.buffered import Buffered
from kvitto.protocol.confirms import Confirms
from kvitto.protocol.crowd import Crowd
from kvitto.protocol.driver import Driver
from kvitto.protocol.replies import Replies
from kvitto.protocol.timeouts import Timeouts

if TYPE_CHECKING:
    from kvitto.protocol.connection import Connection
    from kvitto.protocol.output import Output

WRITE_COST = 3000
"""What a turn may write, in units of about a microsecond."""
INPUT_COST = 3000
"""What a turn may spend on input that was left over, in the same units."""
PUT_OFF_MAX = 2
"""At most this many turns in a row leave jobs, and input that goes on, to the next turn."""
ROUNDS = 3
"""How many more times a turn delivers to connections whose sockets have just taken a full output.

A turn takes half a MiB of input from each publisher. As deliveries the same messages often have more bytes, so a consumer with one
output of half a MiB in each turn would fall behind a single publisher.
"""


class Hub:
    def __init__(self, broker: Broker, driver: Driver | None = None, max_channels: int = limits.CHANNEL_MAX) -> None:
        self.broker = broker
        self.driver = Driver() if driver is None else driver
        self.max_channels = max_channels
        """The most channels of one connection."""
        self.connections: dict[Connection, None] = {}
        self.outputs: list[Output] = []
        self.timeouts = Timeouts(broker)
        self.confirms = Confirms(broker)
        self.alarms = Alarms(self.connections)
        self.replies = Replies()
        self._crowds: deque[tuple[Connection, Crowd]] = deque()
        """Groups of consumers for which there is room again, each with the connection that owns it."""
        self._yielded: deque[Connection] = deque()
        """Connections whose input goes on in the next turn."""
        self._is_long = False
        """Whether jobs, and input that goes on, used up their time when they ran last."""
        self._put_off = 0
        """How many turns in a row have left them to the next one. A turn does so if somebody waits, because answers come behind them."""
        self.connections_made = 0
        self.connections_closed = 0
        self.channels_made = 0
        self.channels = 0
        """The number of open channels of all connections."""
        self.buffered = Buffered(broker, self.connections)
        broker.on_full = self._full

    def turn(self) -> None:
        """Finish the work of the last turn, deliver and write new messages, note which channels wait for which sync, and flush outputs.

        While the turn has time left, connections whose sockets have taken a full output get more.
        """
        broker = self.broker
        if not broker.ends_at:
            broker.begin_time()  # else timers, or the end of a sync, have begun it
        puts_off = self._is_long and broker.somebody_waits and self._put_off < PUT_OFF_MAX
        self._put_off = self._put_off + 1 if puts_off else 0
        broker.somebody_waits = False
        if not puts_off and (broker.jobs.waiting or self._yielded):
            if broker.jobs.waiting:
                broker.changes_left = 0  # they are long work
                walls.run(broker.jobs, broker.jobs.run)
            if self._yielded:
                self._go_on()
            self._is_long = broker.out_of_time()
        if self._crowds:
            self._serve_crowds()
        self.confirms.note_published()
        broker.begin_time()  # much input leaves no less time to write it
        broker.turn(WRITE_COST)
        self.confirms.answer()
        self.flush()
        if self._crowds:
            self._serve_rounds()
        broker.end_time()
        if self.unfinished():
            self.driver.schedule()

    def _serve_rounds(self) -> None:
        """Serve consumers that wait for room, with the rest of the allowance of this turn.

        The allowance of the next turn is for all queues, so nothing is taken from it.
        """
        broker = self.broker
        renewed, broker.allowance = broker.allowance, broker.left
        for _ in range(ROUNDS):
            if not self._crowds or broker.allowance <= 0 or broker.out_of_time():
                break
            self._serve_crowds()
            self.flush()
        broker.allowance = renewed

    def _go_on(self) -> None:
        """Handle input that earlier turns have left, as much as fits into this turn. Publishers wait while the broker is behind."""
        cost = 0
        for _ in range(len(self._yielded)):
            if cost >= INPUT_COST:
                return
            connection = self._yielded.popleft()
            if connection.publisher and self.broker.behind:
                self._yielded.append(connection)
                continue
            cost += walls.run(connection, connection.go_on) or 0
            if self.broker.out_of_time():
                return

    def unfinished(self) -> bool:
        """Whether there is work left for the next turn."""
        return bool(self._yielded or self._crowds or self.broker.unfinished())

    def go_on_later(self, connection: Connection) -> None:
        """Handle the rest of its input in the next turn, because it has used up its budget of this one."""
        self._yielded.append(connection)
        self.driver.schedule()

    def serve_later(self, owner: Connection, crowd: Crowd) -> None:
        """Serve the consumers of `crowd` soon, because there is room for them again."""
        if not crowd.due:
            crowd.due = True
            self._crowds.append((owner, crowd))
            self.driver.schedule()

    def _serve_crowds(self) -> None:
        for _ in range(len(self._crowds)):
            if self.broker.allowance <= 0:
                return
            owner, crowd = self._crowds.popleft()
            if walls.run(owner, crowd.serve) is False:
                self._crowds.append((owner, crowd))
            if self.broker.out_of_time():
                return

    def after_sync(self) -> None:
        """Send the answers that waited for the sync. Run a whole turn only if that has changed anything."""
        if self.broker.idle():
            self.confirms.answer()
            self.flush()
        else:
            self.turn()

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

    def _full(self, full: bool) -> None:
        """Set or clear the alarm "room": the disk has refused a write, or has space again."""
        self.alarms.block(no_room(self.broker.store.disk.free_bytes()) if full else None, "room")
        if full:
            # one that publishes message by message says nothing more before it has heard of this one
            for channel in self.confirms.unconfirmed():
                channel.connection.tell_blocked()

"""What the queues, channels and connections of a broker see of its turn. `Turning` runs the turns.

What holds everywhere: a queue that has changed is in `dirty` until a turn has written it. `changes` counts these changes, so whoever
has to wait until something is in the files notes `changes` and waits until `written` has reached it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kvitto.base import ticks
from kvitto.base.clock import Clock
from kvitto.base.limits import CHANGES_OF_ONE
from kvitto.broker.latencies import Latencies
from kvitto.broker.queues.later_writes import LaterWrites
from kvitto.broker.timers import Timers
from kvitto.store.batch import Batch
from kvitto.store.store import Store

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue

POOL_MAX = 64
"""At most this many batches are kept to be used again."""
POOL_LARGE = 4
"""So many of them keep their large buffers; the others give them back."""
ALLOWANCE = 20_000
"""The most that all deliveries of one turn may cost, in units of 0.1 us of compiled work: one for each message and each KiB of it."""


class TurnState:
    """The base of the broker. It only collects queues and calls none, so that the type of a queue may name it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.now_ms = clock.now_ms()
        self.set_back_ms = self.now_ms
        """The wall clock when it was last set back, or at the start. A batch with a later time was stored before that moment."""
        self.now_us = clock.monotonic_us()
        """The monotonic clock when input was last read, or at the last turn, in microseconds."""
        self.timers = Timers(self.now_us // 1000, self.out_of_time)
        self.latencies = Latencies()
        self.dirty: deque[Queue] = deque()
        """Queues that have changed, in the order of their changes, until a turn has delivered and written their messages."""
        self.changes_each = self.changes_left = CHANGES_OF_ONE
        """How many queues one source of changes may put into `dirty` before further ones yield to others, and the rest of that."""
        self.written = 0
        """How many of them turns have written. A change made when `changes` was n is in the files once `written` is n."""
        self.turns = 0
        self.allowance = ALLOWANCE
        """The rest of what deliveries may cost in this turn."""
        self.left = 0
        """The part of its allowance that the last turn has not used."""
        self.late: deque[Queue] = deque()
        """Queues that go on delivering in the next turn."""
        self.unwritten: dict[Queue, None] = {}
        self.pressed: dict[Queue, None] = {}
        """Queues whose large batches wait until the disk has caught up. Each of them is also in `slow`."""
        self.slow: dict[Queue, None] = {}
        """Queues with batches that take several turns to be written. They count as `written`, although newer messages of theirs are
        in no file yet."""
        self.later_writes = LaterWrites(store.commits)
        """Queues that wait for a commit with room for them. They count as `written` too."""
        self.unmarked: dict[Queue, None] = {}
        """Queues that may have delivered since they were written. Their files do not have the delivered mark for that yet (A9)."""
        self.full = False
        self.replaying = False
        """True while the journal is replayed. A later record may settle any message, so until then none expires or is dropped."""
        self.clock_is_read = False
        """Whether input has read the clock since the last turn. The next turn does not read it again then."""
        self.behind = False
        """Whether so many bytes wait to be written (BEHIND_BYTES) that publishers have to wait."""

        self._pool: list[Batch] = []

        self.turn_s = 0.0
        """After how many seconds new input and each half of a turn leave what they can leave to the next turn. The server sets it;
        with 0.0 they never do.
        """
        self.ends_at = 0.0
        """When that is, as `ticks.seconds` counts; 0.0 outside of these and without a limit."""

        self.somebody_waits = False
        """Whether peers wait for the next turn more than usual: a sync has ended since the last turn, so that they can be answered, or the
        input of one connection has taken long, so that the others have waited already."""

    def begin_time(self) -> None:
        """Let a time begin: that of new input, that of timers and the work that was left over, or that of writing."""
        if self.turn_s > 0.0:
            self.ends_at = ticks.seconds() + self.turn_s

    def end_time(self) -> None:
        """The input or the turn is over. What happens outside of these is not limited by time."""
        self.ends_at = 0.0

    def out_of_time(self) -> bool:
        """Whether this input or half of a turn has taken so long that it leaves what it can leave to the next turn.

        The costs that limit work are estimates, for a machine that is as quick as usual. Where it is slower for a moment, as virtual
        machines are, this limits it. Whoever asks has done at least one step before, so that everything goes on.
        """
        return self.ends_at > 0.0 and ticks.seconds() >= self.ends_at

    def read_clock(self) -> None:
        """Read the clock once before input is handled: a message's time to live begins when it comes, not with the last turn.

        With that a source of changes begins. So it does with each turn, each record of the journal, and input that goes on.
        """
        self.changes_left = self.changes_each
        now_ms = self.clock.now_ms()
        if now_ms < self.now_ms:
            self.set_back_ms = now_ms
        self.now_ms = now_ms
        self.now_us = self.clock.monotonic_us()
        self.timers.now_ms = self.now_us // 1000

    def take_batch(self) -> Batch:
        """Return a batch for new messages. What is in it is anybody's: `Batch.start` begins it."""
        return self._pool.pop() if self._pool else Batch()

    def give_batch(self, batch: Batch) -> None:
        """Keep a batch that nobody reads any more, to be used again."""
        if len(self._pool) < POOL_MAX:
            if len(self._pool) >= POOL_LARGE or batch.shared:
                batch.release()
            self._pool.append(batch)

    @property
    def changes(self) -> int:
        """How many times a queue was put into `dirty` since the start."""
        return self.written + len(self.dirty)

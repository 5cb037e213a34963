"""The interface through which a queue uses its broker. A queue uses nothing else of `Broker`."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kvitto.base.clock import Clock
    from kvitto.broker.faults import Faults
    from kvitto.broker.jobs import Jobs
    from kvitto.broker.latencies import Latencies
    from kvitto.broker.queues.budget import Budget
    from kvitto.broker.queues.later_writes import LaterWrites
    from kvitto.broker.queues.queue import Queue
    from kvitto.broker.timers import Timers
    from kvitto.broker.transfers.deadletter import DeadLetters
    from kvitto.store.batch import Batch
    from kvitto.store.store import Store


class Turns(Protocol):
    """The broker as a queue sees it: the current turn, and the lists of work for the next turn."""

    now_ms: int
    """The wall clock when input was last read, or at the last turn."""
    now_us: int
    """The monotonic clock at the same moment, in microseconds."""
    set_back_ms: int
    turns: int
    """The number of the current turn."""
    allowance: int
    """The rest of what deliveries may cost in this turn, in units of 0.1 us. Queues subtract from it."""
    applying: bool
    """Whether a record of the journal is being applied. A write must not split it."""
    replaying: bool
    full: bool
    """Whether the disk is full."""
    dirty: deque[Queue]
    """Queues that the next turn handles."""
    unmarked: dict[Queue, None]
    """Queues that may have delivered since they were written."""
    unwritten: dict[Queue, None]
    """Queues that a full disk has refused to write."""
    slow: dict[Queue, None]
    """Queues with batches that take several turns to be written."""
    pressed: dict[Queue, None]
    """The queues of `slow` that wait until the disk has caught up."""
    changes_left: int
    later_writes: LaterWrites

    store: Store
    clock: Clock
    timers: Timers
    latencies: Latencies
    jobs: Jobs
    faults: Faults
    dead_letters: DeadLetters
    filtering: Budget
    """What the filters of streams' consumers may cost in this turn."""
    waking: Budget
    """How many messages that have waited may come back in this turn because they are due."""
    forgetting: Budget
    """How many keys of deduplication may be forgotten in this turn because their time is over."""

    def take_batch(self) -> Batch:
        """An empty batch, which may have large buffers."""
        ...

    def give_batch(self, batch: Batch) -> None:
        """Take back a batch that nobody needs any more."""
        ...

    def flush(self, queue: Queue) -> bool:
        """Write the queue's messages now. Returns False if the disk is full."""
        ...

    def out_of_time(self) -> bool:
        """Whether this turn leaves what it can leave to the next one."""
        ...

    def pump_later(self, queue: Queue) -> None:
        """Let the queue go on delivering in the next turn."""
        ...

    def expire_unused(self, queue: Queue) -> None:
        """Set the timer for the expiry of the queue itself (x-expires)."""
        ...

    def with_delivery_count(self, props: bytes, count: int) -> bytes:
        """Return stored properties with the header x-delivery-count (A8)."""
        ...

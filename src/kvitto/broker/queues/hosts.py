"""What a queue needs of its broker. `Broker` has more, and a queue uses none of it: how queues and turns meet can be read here."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kvitto.broker.faults import Faults
    from kvitto.broker.jobs import Jobs
    from kvitto.broker.queues.queue import Queue
    from kvitto.broker.timers import Timers
    from kvitto.broker.transfers.deadletter import DeadLetters
    from kvitto.store.batch import Batch
    from kvitto.store.store import Store


class Turns(Protocol):
    """The broker of a queue: the turn that it is in, and the lists from which the next turn takes its work."""

    now_ms: int
    """The wall clock, as the last read of input or the last turn has seen it."""
    set_back_ms: int
    turns: int
    """The number of the current turn."""
    allowance: int
    """What deliveries of this turn may still cost, in units of 0.1 us. Queues take from it."""
    applying: bool
    """A record of the journal is being applied: it must not be cut in two by a write."""
    replaying: bool
    full: bool
    """The disk is full."""
    dirty: deque[Queue]
    """Queues that the next turn looks at."""
    unmarked: dict[Queue, None]
    """Queues that may have delivered since they were written."""
    unwritten: dict[Queue, None]
    """Queues that a full disk has refused to write."""
    slow: dict[Queue, None]
    """Queues with batches that take several turns to be written."""
    pressed: dict[Queue, None]
    """Those of them that wait until the disk has caught up."""

    store: Store
    timers: Timers
    jobs: Jobs
    faults: Faults
    dead_letters: DeadLetters

    def take_batch(self) -> Batch:
        """An empty batch, which may have large buffers."""
        ...

    def give_batch(self, batch: Batch) -> None:
        """Take back a batch that nobody needs any more."""
        ...

    def flush(self, queue: Queue) -> bool:
        """Write what the queue has now. False if the disk is full."""
        ...

    def pump_later(self, queue: Queue) -> None:
        """Let the queue go on delivering in the next turn."""
        ...

    def expire_unused(self, queue: Queue) -> None:
        """Look when the queue itself expires (x-expires)."""
        ...

    def with_delivery_count(self, props: bytes, count: int) -> bytes:
        """Stored properties with x-delivery-count among the headers (A8)."""
        ...

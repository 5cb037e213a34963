"""What a queue delivers to. The protocol's consumers derive from this; the queue knows no more of them.

`deliver` encodes messages of a batch for the peer; both methods are called once per run of messages and are virtual calls in
the compiled form. ACK and the constants below it say how a consumer settles what it was given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue
    from kvitto.broker.queues.rota import Line
    from kvitto.broker.queues.stream import Place
    from kvitto.store.batch import Batch, Body


ACK = 0
REJECT = 1
REQUEUE = 2
"""It comes back at once: by basic.recover, or since its channel has ended."""
RETRY = 4
"""It comes back by basic.nack: later, if the queue delays such messages (A15)."""
FAILED = 6
"""It comes back by basic.reject, which says that the message is to blame: later, if the queue delays such messages (A15)."""


class Consumer:
    def __init__(
        self, queue: Queue, tag: str, no_ack: bool, exclusive: bool, priority: int, arguments: dict[str, Any]
    ) -> None:
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority = priority
        self.arguments = arguments
        self.unacked = 0
        self.delivered = 0
        self.active = True
        self.counted = True
        """Whether what it holds counts towards a prefetch."""
        self.timeout_ms: int = arguments.get("x-consumer-timeout", -1)
        """How long it may hold a delivery, 0 for as long as it likes; -1: what its queue says."""
        self.place: Place | None = None
        self.lent = False
        """What it was given last will be settled by whoever sends it, although it is not to be acknowledged."""
        self.serial = 0
        """Which one of its queue's consumers it is, in the order in which they came."""
        self.idle = False
        """It had no credit when its turn came: `Queue.resume` says that it may have some."""
        self.line: Line | None = None
        self.before: Consumer | None = None
        self.after: Consumer | None = None

    def credit(self) -> int:
        """How many messages may be delivered now."""
        raise NotImplementedError

    def deliver(self, batch: Batch, i: int, n: int, redelivered: int) -> int:
        """Deliver up to n messages from index i on; return how many: 0 only if the peer does not take the first one's properties."""
        raise NotImplementedError

    def deliver_again(self, key: bytes, props: bytes, body: Body, offset: int) -> None:
        """Deliver one message with properties that the queue has changed; always redelivered."""
        raise NotImplementedError

    def takes(self, props_len: int) -> bool:
        """Whether so many bytes of properties fit into a frame of the peer."""
        return True

    def message_does_not_fit(self) -> None:
        """It has not taken what is at the head of the queue, and gets nothing more; or ChannelError says so."""
        raise NotImplementedError

    def waits_no_more(self) -> None:
        """It is cancelled: it has no place among those that wait for room."""

    def settings_changed(self) -> None:
        """Policies have given the queue other settings."""

    def undo(self) -> None:
        """A call of `deliver` or `deliver_again` has raised: forget what it had encoded and noted."""

    def contain(self, error: Exception) -> None:
        """It could not take a delivery: end what it belongs to."""
        raise error

    def queue_gone(self) -> None:
        """The queue was deleted: the consumer is cancelled by the broker."""

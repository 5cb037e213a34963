"""The interface of consumers that a queue delivers to. The protocol's consumers derive from it.

`deliver` encodes messages of a batch for the peer. `credit` and `deliver` are called once per run of messages, and are virtual
calls in the compiled form. ACK and the constants below it say how a consumer settles its deliveries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue
    from kvitto.broker.queues.rota import Line
    from kvitto.broker.queues.stream import Progress
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
        """Whether its unacked deliveries count towards a prefetch."""
        self.timeout_ms: int = arguments.get("x-consumer-timeout", -1)
        """How long it may hold a delivery. 0 stands for no limit, and -1 for the limit of its queue."""
        self.progress: Progress | None = None
        self.lent = False
        """Whether its last delivery, which needs no ack, is settled by the code that sends it, and not by the queue."""
        self.serial = 0
        """Its number in the order in which the queue's consumers were added."""
        self.idle = False
        """Whether it had no credit when its turn came. `Queue.resume` ends that."""
        self.line: Line | None = None
        self.before: Consumer | None = None
        self.after: Consumer | None = None

    def credit(self) -> int:
        """Return how many messages may be delivered now."""
        raise NotImplementedError

    def deliver(self, batch: Batch, i: int, n: int, redelivered: int) -> int:
        """Deliver up to n messages from index i on. Returns how many: 0 only if the first one's properties do not fit the peer's frames."""
        raise NotImplementedError

    def deliver_again(self, key: bytes, props: bytes, body: Body, offset: int) -> None:
        """Deliver one message with properties that the queue has changed. It is always flagged as redelivered."""
        raise NotImplementedError

    def takes(self, props_len: int) -> bool:
        """Whether `props_len` bytes of properties fit into a frame of the peer."""
        return True

    def message_does_not_fit(self) -> None:
        """Called if the first message of the queue does not fit into its frames. Ends the consumer, or raises ChannelError."""
        raise NotImplementedError

    def waits_no_more(self) -> None:
        """Leave the consumers that wait for room, after a cancel."""

    def settings_changed(self) -> None:
        """Called when policies have given the queue other settings."""

    def keep_timeout(self) -> None:
        """It gets no more messages: those that it holds keep their timeout, whatever policies give to the queue from now on."""
        if self.timeout_ms < 0:
            self.timeout_ms = max(self.queue.consumer_timeout_ms, 0)

    def undo(self) -> None:
        """Undo what `deliver` or `deliver_again` had encoded and noted before it raised an exception."""

    def contain(self, error: Exception) -> None:
        """End the owner of the consumer, after an error in a delivery."""
        raise error

    def queue_gone(self) -> None:
        """Cancel the consumer, because the queue was deleted."""

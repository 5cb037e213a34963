"""Where the messages of one (exchange, routing key) go; a vhost caches routes until a binding changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue


class Route:
    """`dynamic`: properties decide, so the queues are found per message. `durable`: a durable queue is among them.

    `out_of_service`: a queue that belongs to the route and takes nothing, so a publish is not confirmed.
    `refused`: it has no queues now, since all that it has nack what comes during an alarm.
    """

    def __init__(self, exchange: str, routing_key: str, queues: list[Queue], dynamic: bool) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.queues = queues
        self.first: Any = queues[0] if queues else None
        """The first of the queues. Compiled code knows its type, and need not ask for each message."""
        self.count = len(queues)
        self.dynamic = dynamic
        self.refused = False
        self.out_of_service: Queue | None = None
        self.durable = any(q.log.durable for q in queues)

    @property
    def nacks_on_alarm(self) -> bool:
        """x-on-alarm: all its queues say nack."""
        return self.count > 0 and not self.dynamic and all(q.settings.nacks_on_alarm for q in self.queues)


class Epoch:
    """Counts the changes of what routes and permissions depend on; who has cached a route compares."""

    def __init__(self) -> None:
        self.value = 0

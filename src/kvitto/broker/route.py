"""Where the messages of one (exchange, routing key) go; a vhost caches routes until a binding changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvitto.broker.queue import Queue


class Route:
    """`dynamic`: headers decide, so the queues are found per message. `durable`: a durable queue is among them."""

    def __init__(self, exchange: str, routing_key: str, queues: list[Queue], dynamic: bool) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.queues = queues
        self.count = len(queues)
        self.dynamic = dynamic
        self.durable = any(q.log.durable for q in queues)


class Epoch:
    """Counts the changes of what routes and permissions depend on; who has cached a route compares."""

    def __init__(self) -> None:
        self.value = 0

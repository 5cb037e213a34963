"""Where the messages of one (exchange, routing key) go; a vhost caches routes until a binding changes. `Traffic` counts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue


class Traffic:
    """Counts since the start of what was published to an exchange, in a virtual host, or to the broker. `whole` has those of the
    next larger of these.

    A channel adds what it has published when its route changes, when it ends, and when somebody asks: nothing is counted here for
    each message. `routed` counts a message once for each of its queues.
    """

    def __init__(self, whole: Traffic | None = None) -> None:
        self.whole = whole
        self.published = 0
        self.routed = 0
        self.confirmed = 0
        self.returned = 0
        self.dropped = 0

    def add(self, published: int, routed: int) -> None:
        """Count published messages."""
        self.published += published
        self.routed += routed
        if self.whole is not None:
            self.whole.add(published, routed)

    def confirm(self, count: int) -> None:
        """Count messages that were confirmed to their publisher."""
        self.confirmed += count
        if self.whole is not None:
            self.whole.confirm(count)

    def miss(self, returned: bool) -> None:
        """Count a message that reached no queue: it was returned to its publisher, or dropped."""
        self.returned += returned
        self.dropped += not returned
        if self.whole is not None:
            self.whole.miss(returned)


class Route:
    """`dynamic`: the properties decide, so the queues are found for each message. `durable`: one of the queues is durable.

    `out_of_service`: a queue of the route that takes no messages, so a publish is not confirmed.
    `refused`: the route has no queues during an alarm, because each of its queues has x-on-alarm and nacks publishes.
    """

    def __init__(
        self, exchange: str, routing_key: str, queues: list[Queue], dynamic: bool, traffic: Traffic | None = None
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.queues = queues
        self.first: Any = queues[0] if queues else None
        """The first of the queues. Compiled code knows its type and need not check it for each message."""
        self.count = len(queues)
        self.dynamic = dynamic
        self.refused = False
        self.out_of_service: Queue | None = None
        self.durable = any(q.log.durable for q in queues)
        self.traffic = Traffic() if traffic is None else traffic
        """The counts of the exchange."""

    @property
    def nacks_on_alarm(self) -> bool:
        """Whether all its queues say nack in x-on-alarm."""
        return self.count > 0 and not self.dynamic and all(q.settings.nacks_on_alarm for q in self.queues)


class Epoch:
    """Counts changes that routes and permissions depend on. Whoever caches a route compares the count to see if it is stale."""

    def __init__(self) -> None:
        self.value = 0

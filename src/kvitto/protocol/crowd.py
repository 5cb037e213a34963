"""Consumers that wait for room that they share: under a channel's global prefetch, or in a connection's output buffer.

Who has waited longest is served first, so that one queue with many messages does not starve the others (A10). When there is room
again, the hub has them served at the begin of the next turn, no more of them than there is room for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvitto.broker import walls

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.protocol.delivery import ChannelConsumer

SERVING_COST = 10
"""Of a consumer that takes nothing, as `Broker.allowance` counts."""


class Crowd:
    def __init__(self, broker: Broker, has_room: Callable[[], bool]) -> None:
        self.first: ChannelConsumer | None = None
        self.serving: ChannelConsumer | None = None
        """The consumer that is being served. Others of its queue wait meanwhile, even if they come before it in the queue's rota."""
        self.due = False
        """The hub knows that there is room."""
        self._broker = broker
        self._has_room = has_room
        self._waiting: OrderedDict[ChannelConsumer, int] = OrderedDict()
        """How much each had been delivered when it began to wait."""

    def join(self, c: ChannelConsumer) -> None:
        """It has to wait. If it was its turn and it has got something, it is behind the others now."""
        waiting = self._waiting
        if c not in waiting:
            waiting[c] = c.delivered
        elif c is self.first and c.delivered > waiting[c]:
            waiting[c] = c.delivered
            waiting.move_to_end(c)
        self.first = next(iter(waiting))

    def leave(self, c: ChannelConsumer) -> None:
        """It is cancelled, or has been served."""
        self._waiting.pop(c, None)
        self.first = next(iter(self._waiting), None)

    def clear(self) -> None:
        self._waiting.clear()
        self.first = None

    def serve(self) -> bool:
        """Deliver to those who have waited longest, while there is room. False if the broker has no time for all of them in this turn."""
        while self.first is not None and self._has_room():
            if self._broker.allowance <= 0:
                return False
            self._broker.allowance -= SERVING_COST
            c = self.first
            self.leave(c)
            self.serving = c
            try:
                c.queue.resume(c)
                walls.run(c.queue, c.queue.pump)
            finally:
                self.serving = None
        self.due = False
        return True

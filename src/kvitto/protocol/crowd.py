"""Consumers that wait for a shared limit: a channel's global prefetch, or the space in a connection's output buffer.

The consumer that has waited longest is served first, so that one queue with many messages does not starve the others (A10). When
there is room again, the hub serves them at the start of the next turn, as far as there is room.
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
        """Whether the hub knows that there is room."""
        self._broker = broker
        self._has_room = has_room
        self._waiting: OrderedDict[ChannelConsumer, int] = OrderedDict()
        """How much each had been delivered when it began to wait."""

    def join(self, c: ChannelConsumer) -> None:
        """Add a consumer that has to wait. If it was being served and has got a message, it moves behind the others."""
        waiting = self._waiting
        if c not in waiting:
            waiting[c] = c.delivered
        elif c is self.first and c.delivered > waiting[c]:
            waiting[c] = c.delivered
            waiting.move_to_end(c)
        self.first = next(iter(waiting))

    def leave(self, c: ChannelConsumer) -> None:
        """Remove a consumer that is cancelled or has been served."""
        self._waiting.pop(c, None)
        self.first = next(iter(self._waiting), None)

    def clear(self) -> None:
        self._waiting.clear()
        self.first = None

    def serve(self) -> bool:
        """Deliver to the longest waiting consumers while there is room. Returns False if this turn has no time for all of them."""
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

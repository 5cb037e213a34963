"""Exchange types `x-random` and `x-local-random`: each message goes to one of the destinations, chosen by chance.

Each binding has the same chance, so a destination with two bindings gets twice as many messages. With RabbitMQ the second type prefers
the queues of its own node; here all queues are.
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker.routing.index import Arguments, Dest, Index


class RandomIndex(Index):
    """The bindings of an exchange, in any order."""

    description = "Routes to one destination by chance"
    needs_properties = True
    first_key_only = True

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self._bound: list[Dest] = []
        self._places: dict[Dest, set[int]] = {}
        self._random = Random().random

    def add(self, _routing_key: str, dest: Dest, _hashed: object) -> None:
        self._places.setdefault(dest, set()).add(len(self._bound))
        self._bound.append(dest)

    def remove(self, _routing_key: str, dest: Dest, _digest: object) -> None:
        """Remove one place of the destination. The last place of all moves there."""
        at, end = self._places[dest].pop(), len(self._bound) - 1
        last = self._bound.pop()
        if at != end:
            self._bound[at] = last
            self._places[last].remove(end)
            self._places[last].add(at)
        if not self._places[dest]:
            del self._places[dest]

    def route(self, _routing_key: str, _properties: object) -> Collection[Dest]:
        count = len(self._bound)
        return (self._bound[int(self._random() * count)],) if count else ()


class LocalRandomIndex(RandomIndex):
    description = "Routes to one destination of this node by chance"

    def check_binding(self, routing_key: str, _arguments: Arguments) -> None:
        if routing_key:
            raise ChannelError(PRECONDITION_FAILED, f"Non empty binding '{routing_key}' key not permitted")

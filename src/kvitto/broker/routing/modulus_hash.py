"""Exchange type `x-modulus-hash`: each message goes to one destination, by the hash of its routing key modulo their number.

The placement depends on the names of the destinations only, so it is the same after a restart. With a further destination nearly all keys
move, which suits a fixed number of queues. Keys and arguments of bindings have no meaning.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection

import xxhash

from kvitto.broker.routing.index import Arguments, Dest, Index, name_of


class ModulusHashIndex(Index):
    """The destinations of a modulus hash exchange, ordered by name. As with RabbitMQ, each counts once for each of its bindings."""

    description = "Routes to one destination by the hash of the routing key modulo their number"
    first_key_only = True

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self._dests: list[Dest] = []

    def add(self, _routing_key: str, dest: Dest, _hashed: object) -> None:
        self._dests.insert(self._behind(dest), dest)

    def remove(self, _routing_key: str, dest: Dest, _digest: object) -> None:
        del self._dests[self._behind(dest) - 1]

    def _behind(self, dest: Dest) -> int:
        """Return the index behind the last entry of a destination, or the index at which its first one belongs."""
        return bisect_right(self._dests, name_of(dest), key=name_of)

    def route(self, routing_key: str, _properties: object) -> Collection[Dest]:
        if not self._dests:
            return ()
        lot = xxhash.xxh3_64_intdigest(routing_key.encode("utf-8", "surrogateescape"))
        return (self._dests[lot % len(self._dests)],)

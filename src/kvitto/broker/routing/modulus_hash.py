"""Exchange type `x-modulus-hash`: each message goes to one destination, by the hash of its routing key modulo their number.

The placement depends on the names of the destinations only, so it is the same after a restart. With a further destination nearly all keys
move, which suits a fixed number of queues. Keys and arguments of bindings have no meaning.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection

import xxhash

from kvitto.broker.routing.index import Arguments, Dest, Index, name_of


class ModulusHashIndex(Index):
    """The destinations of a modulus hash exchange, ordered by name: each once for each of its bindings, as with RabbitMQ."""

    description = "Routes to one destination by the hash of the routing key modulo their number"
    first_key_only = True

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self._names: list[str] = []
        self._dests: list[Dest] = []

    def add(self, _routing_key: str, dest: Dest, _arguments: object) -> None:
        at = bisect_left(self._names, name_of(dest))
        self._names.insert(at, name_of(dest))
        self._dests.insert(at, dest)

    def remove(self, _routing_key: str, dest: Dest, _arguments: object) -> None:
        at = bisect_left(self._names, name_of(dest))
        del self._names[at], self._dests[at]

    def route(self, routing_key: str, _properties: object) -> Collection[Dest]:
        if not self._dests:
            return ()
        lot = xxhash.xxh3_64_intdigest(routing_key.encode("utf-8", "surrogateescape"))
        return (self._dests[lot % len(self._dests)],)

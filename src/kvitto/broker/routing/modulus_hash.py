"""Exchange type `x-modulus-hash`: each message goes to one destination, by the hash of its routing key modulo their number.

The placement depends on the names of the destinations only, so it is the same after a restart. With a further destination nearly all keys
move, which suits a fixed number of queues. Keys and arguments of bindings have no meaning.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection
from itertools import accumulate

import xxhash

from kvitto.broker.routing.index import Arguments, Dest, Index, name_of


class ModulusHashIndex(Index):
    """The destinations of a modulus hash exchange, ordered by name: each counts once for each of its bindings, as with RabbitMQ."""

    description = "Routes to one destination by the hash of the routing key modulo their number"
    first_key_only = True

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self._names: list[str] = []
        self._dests: list[Dest] = []
        self._counts: list[int] = []
        """How many bindings each destination has."""
        self._ends: list[int] = []
        """How many bindings each destination and those before it have together; empty until a message has to be routed."""

    def add(self, _routing_key: str, dest: Dest, _arguments: object) -> None:
        at = bisect_left(self._names, name_of(dest))
        if self._names[at : at + 1] == [name_of(dest)]:
            self._counts[at] += 1
        else:
            self._names.insert(at, name_of(dest))
            self._dests.insert(at, dest)
            self._counts.insert(at, 1)
        self._ends = []

    def remove(self, _routing_key: str, dest: Dest, _arguments: object) -> None:
        at = bisect_left(self._names, name_of(dest))
        self._counts[at] -= 1
        if not self._counts[at]:
            del self._names[at], self._dests[at], self._counts[at]
        self._ends = []

    def route(self, routing_key: str, _properties: object) -> Collection[Dest]:
        if not self._dests:
            return ()
        if not self._ends:
            self._ends = list(accumulate(self._counts))
        lot = xxhash.xxh3_64_intdigest(routing_key.encode("utf-8", "surrogateescape"))
        return (self._dests[bisect_right(self._ends, lot % self._ends[-1])],)

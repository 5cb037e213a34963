"""Exchange type `x-consistent-hash`: each message goes to one destination, by a hash of its routing key, a header or a property.

Weighted rendezvous hashing (docs/adr/0025): each destination draws a lot for each hashed value, and the best lot wins. A lot depends on
the name of the destination, its weight and the value alone. So the placement is the same after a restart and in whatever order the
bindings were made, and a new binding only takes values away from the others. Memory and time grow with the number of bindings, not with
their weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Generator
from datetime import datetime
from itertools import islice, repeat

import xxhash

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker.administration.equivalence import type_name
from kvitto.broker.routing.canonical import canonical
from kvitto.broker.routing.headers import Hashed
from kvitto.broker.routing.index import PIECE_STEPS, Arguments, Dest, Index, name_of
from kvitto.wire.properties import Properties
from kvitto.wire.tables import Value

WEIGHT_MAX = 10_000
"""The largest weight of a binding, as with RabbitMQ."""
HEADER, PROPERTY, HASH_ON = "hash-header", "hash-property", "x-hash-on"
"""RabbitMQ's arguments, and LavinMQ's name for the first one."""
PROPERTIES = ("correlation_id", "message_id", "timestamp")
KNOWN_MAX, KNOWN_BYTES_MAX = 4096, 256
"""The most values of headers or properties whose destination is remembered, and the longest of them."""
FEW = 32
"""Up to so many destinations a search costs less than it does to remember its result."""
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
LOTS = 1 << 64
LOT_MIN = 1 << 11
"""Smaller lots count as this one, since a float cannot tell 1 - u from 1 below it, and the logarithm of 0 is an error."""


def hashed(value: Value) -> bytes:
    """Return the bytes of a header or property that are hashed. Values that are equal for a headers exchange give the same bytes."""
    match value:
        case None:
            return b""
        case str():
            return value.encode("utf-8", "surrogateescape")
        case bytes():
            return value
        case int() if not isinstance(value, bool):
            return b"%d" % value
        case float() if value.is_integer():
            return b"%d" % int(value)
        case datetime():
            return b"%d" % int(value.timestamp())
    return canonical(value)


class ConsistentHashIndex(Index):
    """The bindings of a consistent hash exchange. If a destination has several bindings, the weight of the first one counts."""

    description = "Routes to one destination by consistent hashing"
    arguments = (HEADER, PROPERTY, HASH_ON)
    first_key_only = True

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self._header = arguments.get(HEADER, arguments.get(HASH_ON))
        self._property = arguments.get(PROPERTY)
        self.needs_properties = self._header is not None or self._property is not None
        self._bound: dict[Dest, dict[tuple[str, bytes], None]] = {}
        """By destination, the keys and arguments of its bindings, in the order in which they were made."""
        self._dests: list[Dest] = []
        self._weights: list[float] = []
        self._seeds: list[int] = []
        """By destination, the number that tells its lots from those of others."""
        self._places: dict[Dest, int] = {}
        self._known: dict[bytes, Dest] = {}
        """Destinations that were found, until a binding changes."""

    @classmethod
    def check_exchange(cls, thing: str, arguments: Arguments) -> None:
        for name in cls.arguments:
            value = arguments.get(name)
            if value is not None and not isinstance(value, str):
                text = f"invalid type '{type_name(value)}' for arg '{name}' in {thing}"
                raise ChannelError(PRECONDITION_FAILED, text)
        header, hash_on, asked = (arguments.get(name) for name in (HEADER, HASH_ON, PROPERTY))
        if asked is not None and (header is not None or hash_on is not None):
            raise ChannelError(PRECONDITION_FAILED, "hash-header and hash-property are mutually exclusive")
        if asked is not None and asked not in PROPERTIES:
            raise ChannelError(PRECONDITION_FAILED, f"Unsupported property: {asked!s}")
        if header is not None and hash_on is not None and header != hash_on:
            raise ChannelError(PRECONDITION_FAILED, f"'{HEADER}' and '{HASH_ON}' of {thing} name different headers")

    def check_binding(self, routing_key: str, _arguments: Arguments) -> None:
        if not _INTEGER.fullmatch(routing_key):
            said = f'<<"{routing_key}">>' if routing_key else "<<>>"  # as RabbitMQ shows it
            raise ChannelError(PRECONDITION_FAILED, f"The binding key must be an integer: {said}")
        digits = routing_key.lstrip("+-0")
        if routing_key.startswith("-") or not digits:
            raise ChannelError(PRECONDITION_FAILED, "The binding key must be greater than 0")
        if len(digits) > len(str(WEIGHT_MAX)) or int(digits) > WEIGHT_MAX:
            raise ChannelError(PRECONDITION_FAILED, f"The binding key must not exceed {WEIGHT_MAX}")

    def add(self, routing_key: str, dest: Dest, hashed: Hashed) -> None:
        bound = self._bound.setdefault(dest, {})
        bound[routing_key, hashed.digest] = None
        if len(bound) > 1:
            return
        self._places[dest] = len(self._dests)
        self._dests.append(dest)
        self._weights.append(float(routing_key))
        self._seeds.append(xxhash.xxh3_64_intdigest(name_of(dest).encode("utf-8", "surrogateescape")))
        self._changed()

    def remove(self, routing_key: str, dest: Dest, digest: bytes) -> None:
        bound, at = self._bound[dest], self._places[dest]
        del bound[routing_key, digest]
        if bound:
            self._weights[at] = float(next(iter(bound))[0])
        else:
            del self._bound[dest], self._places[dest]
            last, weight, seed = self._dests.pop(), self._weights.pop(), self._seeds.pop()
            if last is not dest:
                self._dests[at], self._weights[at], self._seeds[at] = last, weight, seed
                self._places[last] = at
        self._changed()

    def _changed(self) -> None:
        self.steps = len(self._dests)
        self._known = {}

    def _value(self, routing_key: str, properties: Properties) -> bytes:
        """Return what is hashed of a message. A header or property that it lacks counts as empty."""
        if self._header is not None:
            return hashed((properties.headers or {}).get(str(self._header)))
        if self._property is not None:
            value = getattr(properties, str(self._property))
            return b"" if value is None else str(value).encode("utf-8", "surrogateescape")
        return routing_key.encode("utf-8", "surrogateescape")

    def search(self, routing_key: str, properties: Properties) -> Generator[bool, None, Collection[Dest]]:
        count = self.cost = len(self._dests)
        if count <= 1:
            return tuple(self._dests)
        value = self._value(routing_key, properties)
        known = self._known
        won = known.get(value)
        if won is not None:
            self.cost = 0
            return (won,)
        first = math.inf
        seeds, weights, dests = self._seeds, self._weights, self._dests
        if count > PIECE_STEPS:  # a copy, since bindings may change during the pauses
            seeds, weights, dests = seeds[:], weights[:], dests[:]
        lots = zip(map(xxhash.xxh3_64_intdigest, repeat(value), seeds), weights, dests, strict=True)
        for start in range(0, count, PIECE_STEPS):
            if start:
                yield True
            for lot, weight, dest in islice(lots, PIECE_STEPS):
                # With u = lot / LOTS, which is even in (0, 1), -ln(u) / weight is the time until the first event of a process with this
                # rate. The first one of all wins. 1 - u is not above -ln(u) and costs less.
                if LOTS - lot < first * weight:
                    time = -math.log1p((max(lot, LOT_MIN) + 0.5 - LOTS) / LOTS) * LOTS / weight
                    if time < first:
                        first, won = time, dest
        if self.needs_properties and count > FEW and len(value) <= KNOWN_BYTES_MAX and known is self._known:
            if len(known) >= KNOWN_MAX:
                self._known = known = {}
            known[value] = won
        return (won,)

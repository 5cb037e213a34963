"""Matching of message headers against the arguments of bindings, for headers exchanges.

With the argument `x-match: all` (the default) all other arguments must be equal to headers of the message, with `any` at
least one of them. Both ignore arguments whose name begins with `x-`; `all-with-x` and `any-with-x` compare these, too. An
argument without a value (void) only requires that the header exists. If there is nothing to compare, `all` matches and
`any` does not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Hashable, Mapping
from datetime import datetime
from decimal import Decimal
from hashlib import blake2b
from operator import itemgetter
from sys import intern

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker.routing.index import PIECE_STEPS, Arguments, Dest, Index
from kvitto.wire.properties import Properties
from kvitto.wire.tables import Value

MODES = ("all", "any", "all-with-x", "any-with-x")


def comparable(value: Value) -> Hashable:
    """Return a hashable value in place of `value`. Two such values are equal where RabbitMQ treats the originals as equal.

    Numbers are equal by value (1 and 1.0), a text equals its bytes, a time equals its seconds, and True is not 1. NaN equals
    NaN, because a binding that has it among its arguments must be found again.
    """
    match value:
        case bool():
            return (bool, value)
        case float() if math.isnan(value):
            return (float, "nan")
        case bytes():
            return value.decode("utf-8", "surrogateescape")
        case datetime():
            return int(value.timestamp())
        case Decimal():
            return (Decimal, value.as_tuple())
        case list():
            return (list, tuple(comparable(v) for v in value))
        case dict():
            return (dict, frozenset((k, comparable(v)) for k, v in value.items()))
    return value


def identity(arguments: Mapping[str, Value]) -> bytes:
    """Return a digest that is equal for equal arguments. A digest is short: a binding may have a thousand arguments."""
    if not arguments:
        return b""
    values = sorted((name, canonical(value)) for name, value in arguments.items())
    return blake2b(repr(values).encode("utf-8", "surrogateescape"), digest_size=16).digest()


def canonical(value: Value) -> str:
    """Return a text that is equal for values that RabbitMQ treats as equal."""
    return repr(_ordered(comparable(value)))


def _ordered(value: Hashable) -> object:
    """Convert a comparable value so that equal values have equal texts.

    No part is a text of its own: each level would escape the quotes of the level below, and double its length.
    """
    match value:
        case bool():
            return value
        case float() if value.is_integer():
            return int(value)
        case (kind, frozenset() as items):
            return (kind, sorted(((name, _ordered(item)) for name, item in items), key=itemgetter(0)))
        case (kind, tuple() as items) if kind is list:
            return (kind, [_ordered(item) for item in items])
    return value


class Pattern:
    """The arguments of a binding in a form that is fast to match."""

    __slots__ = ("any", "dests", "names", "values")

    def __init__(self, arguments: Mapping[str, Value]) -> None:
        mode = str(arguments.get("x-match", "all"))
        with_x = mode.endswith("-with-x")
        self.any = mode.startswith("any")
        names = [name for name in arguments if name != "x-match" and (with_x or not name.startswith("x-"))]
        self.names = tuple(intern(name) for name in names)
        self.values = tuple(None if arguments[name] is None else comparable(arguments[name]) for name in names)
        self.dests: dict[Dest, int] = {}

    def matches(self, headers: Mapping[str, Hashable]) -> bool:
        """Whether the headers of a message match. `headers` holds comparable values."""
        wanted = zip(self.names, self.values, strict=True)
        hits = (name in headers and (value is None or headers[name] == value) for name, value in wanted)
        return any(hits) if self.any else all(hits)


class HeadersIndex(Index):
    """The bindings of a headers exchange. Bindings with equal arguments share one match."""

    description = "Routes by headers of the message"
    needs_properties = True

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self._patterns: dict[bytes, Pattern] = {}

    def check_binding(self, _routing_key: str, arguments: Arguments) -> None:
        """Raises ChannelError 406 for a binding with an unknown `x-match`. Without the argument, `all` applies."""
        if "x-match" not in arguments:
            return
        mode = arguments["x-match"]
        if not isinstance(mode, str):
            text = f"Invalid x-match field type (value {mode!r}); expected longstr"
            raise ChannelError(PRECONDITION_FAILED, text)
        if mode not in MODES:
            text = f"Invalid x-match field value {mode}; expected all, any, all-with-x, or any-with-x"
            raise ChannelError(PRECONDITION_FAILED, text)

    def add(self, _routing_key: str, dest: Dest, arguments: Arguments) -> None:
        key = identity(arguments)
        pattern = self._patterns.get(key)
        if pattern is None:
            pattern = self._patterns[key] = Pattern(arguments)
            self.steps += 1 + len(pattern.names)
        pattern.dests[dest] = pattern.dests.get(dest, 0) + 1

    def remove(self, _routing_key: str, dest: Dest, arguments: Arguments) -> None:
        key = identity(arguments)
        pattern = self._patterns[key]
        dests = pattern.dests
        dests[dest] -= 1
        if not dests[dest]:
            del dests[dest]
        if not dests:
            del self._patterns[key]
            self.steps -= 1 + len(pattern.names)

    def search(self, _routing_key: str, properties: Properties) -> Generator[bool, None, Collection[Dest]]:
        values = {name: comparable(value) for name, value in (properties.headers or {}).items()}
        matched: dict[Dest, None] = {}
        cost, left = len(values), PIECE_STEPS
        for pattern in tuple(self._patterns.values()) if self.steps > PIECE_STEPS else self._patterns.values():
            if pattern.matches(values):
                matched.update(dict.fromkeys(pattern.dests))
            cost += 1 + len(pattern.names)
            left -= 1 + len(pattern.names)
            if left < 0:  # happens only in the copy of the patterns: these may change while the search pauses
                left = PIECE_STEPS
                yield True
        self.cost = cost
        return matched

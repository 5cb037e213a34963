"""Matching of message headers against the arguments of bindings, for headers exchanges.

`x-match` says how: `all` (also without the argument) or `any` of the other arguments must be equal; these two skip
arguments whose name begins with `x-`, while `all-with-x` and `any-with-x` heed them. An argument without a value
(void) asks only that the header is there. Without anything to compare, `all` matches and `any` does not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker.topic import Dest
from kvitto.wire.tables import Value

MODES = ("all", "any", "all-with-x", "any-with-x")


def comparable(value: Value) -> Hashable:
    """A hashable stand-in: equal where RabbitMQ calls the values equal.

    Numbers are equal by value (1 and 1.0), text equals the same bytes, a time its seconds; True is not 1. NaN equals NaN:
    a binding that has it among its arguments must be found again.
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


class Pattern:
    """The arguments of a binding, ready to match."""

    __slots__ = ("any", "dests", "wanted")

    def __init__(self, arguments: Mapping[str, Value]) -> None:
        mode = str(arguments.get("x-match", "all"))
        with_x = mode.endswith("-with-x")
        self.any = mode.startswith("any")
        self.wanted = [
            (name, None if value is None else comparable(value))
            for name, value in arguments.items()
            if name != "x-match" and (with_x or not name.startswith("x-"))
        ]
        self.dests: dict[Dest, int] = {}

    def matches(self, headers: Mapping[str, Hashable]) -> bool:
        """`headers` holds comparable values."""
        hits = (name in headers and (want is None or headers[name] == want) for name, want in self.wanted)
        return any(hits) if self.any else all(hits)


class HeadersIndex:
    """Bindings of a headers exchange; those with equal arguments are matched once."""

    def __init__(self) -> None:
        self._patterns: dict[Hashable, Pattern] = {}
        self.steps = 0

    def add(self, _routing_key: str, dest: Dest, arguments: dict[str, Value]) -> None:
        key = comparable(arguments)
        pattern = self._patterns.get(key)
        if pattern is None:
            pattern = self._patterns[key] = Pattern(arguments)
            self.steps += 1 + len(pattern.wanted)
        pattern.dests[dest] = pattern.dests.get(dest, 0) + 1

    def remove(self, _routing_key: str, dest: Dest, arguments: dict[str, Value]) -> None:
        key = comparable(arguments)
        pattern = self._patterns[key]
        dests = pattern.dests
        dests[dest] -= 1
        if not dests[dest]:
            del dests[dest]
        if not dests:
            del self._patterns[key]
            self.steps -= 1 + len(pattern.wanted)

    def route(self, _routing_key: str, headers: Mapping[str, Value] | None) -> Collection[Dest]:
        values = {name: comparable(value) for name, value in (headers or {}).items()}
        matched: dict[Dest, None] = {}
        for pattern in self._patterns.values():
            if pattern.matches(values):
                matched.update(dict.fromkeys(pattern.dests))
        return matched


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse (406) a binding whose `x-match` says nothing known; without one it means `all`."""
    if "x-match" not in arguments:
        return
    mode = arguments["x-match"]
    if not isinstance(mode, str):
        text = f"Invalid x-match field type (value {mode!r}); expected longstr"
        raise ChannelError(PRECONDITION_FAILED, text)
    if mode not in MODES:
        text = f"Invalid x-match field value {mode}; expected all, any, all-with-x, or any-with-x"
        raise ChannelError(PRECONDITION_FAILED, text)

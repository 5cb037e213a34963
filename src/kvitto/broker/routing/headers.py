"""Matching of message headers against the arguments of bindings, for headers exchanges.

With the argument `x-match: all` (the default) all other arguments must be equal to headers of the message, with `any` at
least one of them. Both ignore arguments whose name begins with `x-`; `all-with-x` and `any-with-x` compare these, too. An
argument without a value (void) only requires that the header exists. If there is nothing to compare, `all` matches and
`any` does not.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from hashlib import blake2b
from sys import intern

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker.routing.canonical import canonical
from kvitto.broker.routing.index import PIECE_STEPS, Arguments, Dest, Index
from kvitto.wire.properties import Properties

MODES = ("all", "any", "all-with-x", "any-with-x")


class Hashed:
    """The arguments of a binding that is made, which are read once for this: 128 KiB of them take a millisecond or two.

    `values` are their canonical values, by name, and `digest` is equal for equal arguments. Only the digest is kept for long, since a
    binding may have a thousand arguments.
    """

    __slots__ = ("arguments", "digest", "values")

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.values = {name: canonical(value) for name, value in arguments.items()}
        self.digest = blake2b(canonical(self.values), digest_size=16).digest() if arguments else b""


NOTHING_HASHED = Hashed({})
"""What most bindings have."""


def identity(arguments: Arguments) -> bytes:
    """Return a digest that is equal for equal arguments."""
    return Hashed(arguments).digest if arguments else b""


class Pattern:
    """The arguments of a binding in a form that is fast to match."""

    __slots__ = ("any", "dests", "names", "values")

    def __init__(self, hashed: Hashed) -> None:
        arguments = hashed.arguments
        mode = str(arguments.get("x-match", "all"))
        with_x = mode.endswith("-with-x")
        self.any = mode.startswith("any")
        names = [name for name in arguments if name != "x-match" and (with_x or not name.startswith("x-"))]
        self.names = tuple(intern(name) for name in names)
        self.values = tuple(None if arguments[name] is None else hashed.values[name] for name in names)
        self.dests: dict[Dest, int] = {}

    def matches(self, headers: Mapping[str, bytes]) -> bool:
        """Whether the headers of a message match. `headers` holds canonical values."""
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

    def add(self, _routing_key: str, dest: Dest, hashed: Hashed) -> None:
        pattern = self._patterns.get(hashed.digest)
        if pattern is None:
            pattern = self._patterns[hashed.digest] = Pattern(hashed)
            self.steps += 1 + len(pattern.names)
        pattern.dests[dest] = pattern.dests.get(dest, 0) + 1

    def remove(self, _routing_key: str, dest: Dest, digest: bytes) -> None:
        pattern = self._patterns[digest]
        dests = pattern.dests
        dests[dest] -= 1
        if not dests[dest]:
            del dests[dest]
        if not dests:
            del self._patterns[digest]
            self.steps -= 1 + len(pattern.names)

    def search(self, _routing_key: str, properties: Properties) -> Generator[bool, None, Collection[Dest]]:
        values = {name: canonical(value) for name, value in (properties.headers or {}).items()}
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

"""What an exchange type is: an index of the bindings of one exchange, which finds who gets a message.

A new type is a subclass of `Index` in a file of its own, and one line in `exchange.TYPES`. The type checks the arguments of its
exchanges and of their bindings itself, and says what of a message it needs. `Exchange` calls it for declarations and bindings, and
`walking.walk` for messages, whoever has published them: AMQP and HTTP, transactions, stages and dead letters. A start makes each
index anew from the definitions of the exchange and its bindings, so an index may depend on nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from typing import Any, ClassVar, TypeVar

from kvitto.wire.properties import Properties
from kvitto.wire.tables import Value

Dest = Any
"""Where a binding leads: a queue or an exchange, hashed by identity."""
Arguments = Mapping[str, Value]
T = TypeVar("T")
PIECE_STEPS = 3000
"""Steps of routing in one piece: about 0.5 ms."""


def at_once(steps: Generator[bool, None, T]) -> T:
    """The result of steps that are taken without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class Index:
    """The bindings of one exchange. Each `add` is taken back by one `remove` with the same arguments, unless the exchange is deleted.

    A type implements `route`, or `search` if a look may take long.
    """

    arguments: ClassVar[tuple[str, ...]] = ()
    """The arguments of an exchange that mean something to this type. Two declarations are the same only if these are equal."""
    needs_properties = False
    """Whether properties of a message, its headers included, decide where it goes. If not, the exchange and the routing key do so
    alone, and what was found for them may be remembered."""
    steps = 0
    """How much there may be to look at for one message, beside what is found at once; `route_steps_max` limits it."""
    cost = 0
    """How much there was to look at for the last message."""

    def __init__(self, arguments: Arguments) -> None:
        """`arguments`: those of the exchange, which `check_exchange` has let through."""

    @classmethod
    def check_exchange(cls, thing: str, arguments: Arguments, /) -> None:
        """Raise ChannelError 406 for arguments of an exchange that this type cannot use. `thing`: the exchange as errors name it."""

    def check_binding(self, routing_key: str, arguments: Arguments, /) -> None:
        """Raise ChannelError 406 for a binding that this type cannot use."""

    def add(self, routing_key: str, dest: Dest, arguments: Arguments, /) -> None:
        """Add a binding that `check_binding` has let through."""
        raise NotImplementedError

    def remove(self, routing_key: str, dest: Dest, arguments: Arguments, /) -> None:
        """Remove a binding that was added."""
        raise NotImplementedError

    def route(self, routing_key: str, properties: Properties, /) -> Collection[Dest]:
        """Find each destination once. The result may be a view: it must not be kept.

        `properties` are empty where they are not known, which is so only if the result is not used because of `needs_properties`.
        """
        return at_once(self.search(routing_key, properties))

    def search(self, routing_key: str, properties: Properties, /) -> Generator[bool, None, Collection[Dest]]:
        """Do the same in pieces, between which there may be changes: for an index with many `steps`."""
        yield from ()
        return self.route(routing_key, properties)

"""The interface of an exchange type: an index of the bindings of one exchange, which finds the destinations of a message.

A new type is a subclass of `Index` in a file of its own, and one line in `exchange.TYPES`. The type checks the arguments of its
exchanges and of their bindings itself, and says whether it needs the properties of a message. `Exchange` calls it for declarations
and bindings, and `walking.walk` for messages from all sources: AMQP, HTTP, transactions, stages and dead letters. A start makes
each index anew from the definitions of the exchange and its bindings, so an index may depend on nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from kvitto.wire.properties import Properties
from kvitto.wire.tables import Value

if TYPE_CHECKING:
    from kvitto.broker.routing.headers import Hashed

Dest = Any
"""Where a binding leads: a queue or an exchange, hashed by identity."""
Arguments = Mapping[str, Value]
T = TypeVar("T")
PIECE_STEPS = 3000
"""The number of routing steps in one piece. They take about 0.5 ms."""


def name_of(dest: Dest) -> str:
    """Return a text that is different for each destination in a virtual host, and the same after a restart."""
    return f"{getattr(dest, 'kind', 'queue')} {dest.name}"


def at_once(steps: Generator[bool, None, T]) -> T:
    """Run the steps without a pause and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class Index:
    """The bindings of one exchange. One `remove` with the digest of the arguments undoes one `add`.

    A type implements `route`, or `search` if finding the destinations may take long.
    """

    arguments: ClassVar[tuple[str, ...]] = ()
    """The arguments of an exchange that this type uses. Two declarations are the same only if these are equal."""
    description: ClassVar[str] = ""
    """What the type does, in one sentence for the management API."""
    needs_properties = False
    """Whether the properties of a message, its headers included, or chance decide where it goes. If not, the route depends on the
    exchange and the routing key alone, and may be cached."""
    first_key_only = False
    """Whether a message is routed once, by its routing key, also if it has further keys in CC and BCC."""
    steps = 0
    """The most steps that the search for one message may take, without what a lookup finds at once. `route_steps_max` limits it."""
    cost = 0
    """The number of steps that the last search took."""

    def __init__(self, arguments: Arguments) -> None:
        """`arguments` are those of the exchange. `check_exchange` has accepted them."""

    @classmethod
    def check_exchange(cls, thing: str, arguments: Arguments, /) -> None:
        """Raise ChannelError 406 for arguments of an exchange that this type cannot use. `thing` names the exchange in errors."""

    def check_binding(self, routing_key: str, arguments: Arguments, /) -> None:
        """Raise ChannelError 406 for a binding that this type cannot use."""

    def add(self, routing_key: str, dest: Dest, hashed: Hashed, /) -> None:
        """Add a binding that `check_binding` has accepted. `hashed` are its arguments and their digest."""
        raise NotImplementedError

    def remove(self, routing_key: str, dest: Dest, digest: bytes, /) -> None:
        """Remove a binding that was added. `digest` is that of its arguments."""
        raise NotImplementedError

    def route(self, routing_key: str, properties: Properties, /) -> Collection[Dest]:
        """Find each destination once. The result may be a view: it must not be kept.

        `properties` are empty if they are not known. The caller then ignores the result if `needs_properties` is set.
        """
        return at_once(self.search(routing_key, properties))

    def search(self, routing_key: str, properties: Properties, /) -> Generator[bool, None, Collection[Dest]]:
        """Do the work of `route` in pieces, for an index with many `steps`. Bindings may change between two pieces."""
        yield from ()
        return self.route(routing_key, properties)

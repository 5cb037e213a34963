"""Exchanges find the queues that a message goes to, from its routing key or its headers.

An exchange holds its bindings twice: by destination, for listing and removing, and in the index of its type
(`index.py`), for routing. `walking.py` walks from exchange to exchange. Nothing here knows about storage or permissions;
`vhost.py` owns the exchanges, caches the routes, and drops the cache when a binding changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker.administration.argument_reader import InvalidArgument
from kvitto.broker.administration.arguments import DEDUPLICATION, DEDUPLICATION_ARGUMENTS
from kvitto.broker.administration.equivalence import check_arguments, check_field, describe, type_name
from kvitto.broker.routing import deduplicated, delayed
from kvitto.broker.routing.consistent_hash import ConsistentHashIndex
from kvitto.broker.routing.delayed import DelayedIndex
from kvitto.broker.routing.headers import NOTHING_HASHED, Hashed, HeadersIndex, identity
from kvitto.broker.routing.index import Arguments, Dest, Index
from kvitto.broker.routing.modulus_hash import ModulusHashIndex
from kvitto.broker.routing.random_choice import LocalRandomIndex, RandomIndex
from kvitto.broker.routing.recent_history import RecentHistoryIndex
from kvitto.broker.routing.route import Traffic
from kvitto.broker.routing.topic import TopicIndex
from kvitto.wire.properties import Properties
from kvitto.wire.tables import Value

if TYPE_CHECKING:
    from kvitto.broker.administration.policies import Policy
    from kvitto.broker.queues.delay_queue import DelayQueue
    from kvitto.broker.queues.passage import Passage

ALTERNATE = "alternate-exchange"
ALTERNATES = (ALTERNATE, "x-alternate-exchange")
"""RabbitMQ's argument and LavinMQ's second name for it."""


def alternate_of(arguments: Arguments) -> str | None:
    """Return the alternate exchange that the arguments of an exchange name, or None."""
    return next((name for key in ALTERNATES if isinstance(name := arguments.get(key), str)), None)


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """A binding of a queue or an exchange to an exchange. Bindings that differ only in their arguments are different ones."""

    source: Exchange
    dest: Dest
    routing_key: str
    arguments: dict[str, Value]


class DirectIndex(Index):
    """Finds the bindings whose key is equal to the routing key."""

    description = "Routes by the routing key, which is equal to the key of the binding"

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self._keys: dict[str, dict[Dest, int]] = {}

    def add(self, routing_key: str, dest: Dest, _hashed: object) -> None:
        dests = self._keys.setdefault(routing_key, {})
        dests[dest] = dests.get(dest, 0) + 1

    def remove(self, routing_key: str, dest: Dest, _digest: object) -> None:
        dests = self._keys[routing_key]
        dests[dest] -= 1
        if not dests[dest]:
            del dests[dest]
        if not dests:
            del self._keys[routing_key]

    def route(self, routing_key: str, _properties: object) -> Collection[Dest]:
        return self._keys.get(routing_key, ())


class FanoutIndex(DirectIndex):
    """Finds all bindings: a direct exchange that ignores the key."""

    description = "Routes to all destinations"

    def add(self, _routing_key: str, dest: Dest, hashed: object) -> None:
        super().add("", dest, hashed)

    def remove(self, _routing_key: str, dest: Dest, digest: object) -> None:
        super().remove("", dest, digest)

    def route(self, _routing_key: str, properties: object) -> Collection[Dest]:
        return super().route("", properties)


class DeduplicatingIndex(FanoutIndex):
    """The type x-message-deduplication. What compares the messages is the passage of the exchange (queues/passage.py)."""

    description = "Drops messages whose deduplication key is known, and routes the others to all destinations"


class DelayedMessageIndex(DelayedIndex):
    """The type x-delayed-message: the argument x-delayed-type names the type that routes."""

    description = "Delays messages with the header x-delay, and routes them by the type in x-delayed-type"
    arguments = (delayed.DELAYED_TYPE,)

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(TYPES[str(arguments[delayed.DELAYED_TYPE])](arguments))

    @classmethod
    def check_exchange(cls, thing: str, arguments: Arguments, /) -> None:
        """Raises ChannelError 406 unless x-delayed-type is another type, and what that type requires holds."""
        inner = arguments.get(delayed.DELAYED_TYPE)
        if not isinstance(inner, str) or inner not in TYPES or inner == delayed.DELAYED_MESSAGE:
            text = f"Invalid argument, '{delayed.DELAYED_TYPE}' must be an existing exchange type"
            raise ChannelError(PRECONDITION_FAILED, f"{text}, in {thing}")
        TYPES[inner].check_exchange(thing, arguments)


TYPES: dict[str, type[Index]] = {
    "direct": DirectIndex,
    "fanout": FanoutIndex,
    "topic": TopicIndex,
    "headers": HeadersIndex,
    "x-consistent-hash": ConsistentHashIndex,
    "x-local-random": LocalRandomIndex,
    "x-modulus-hash": ModulusHashIndex,
    "x-random": RandomIndex,
    delayed.DELAYED_MESSAGE: DelayedMessageIndex,
    deduplicated.TYPE: DeduplicatingIndex,
    "x-recent-history": RecentHistoryIndex,
}
"""All exchange types, by the name that a declaration gives."""


class Exchange:
    """The default exchange is a direct one named "" to which every queue is bound by its name.

    Raises KeyError for a `type` that is not in TYPES, so `check_declare` must be called before.
    """

    kind: ClassVar[str] = "exchange"
    """What kind of destination it is. A queue has no such attribute."""
    deleted = False
    """Whether it was deleted, like a queue's."""

    def __init__(
        self,
        name: str,
        type: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, Value] | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.name = name
        self.type = type
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments: dict[str, Value] = arguments or {}
        self.traffic = Traffic() if traffic is None else traffic
        self.policy: Policy | None = None
        self.index = TYPES[type](self.arguments)
        self.delays = False
        """Whether messages with the header x-delay wait before they are routed."""
        self.waiting: DelayQueue | None = None
        """The queue of messages that wait, if the exchange delays or has delayed (administration/delaying.py)."""
        self.passage: Passage | None = None
        """The hidden queue by which messages come to the exchange, if it deduplicates (administration/passing.py)."""
        self.take_policy(None)
        self._bindings: dict[Dest, dict[tuple[str, bytes], Binding]] = {}

    def take_policy(self, policy: Policy | None) -> None:
        """Use the alternate exchange of a policy, unless the arguments name one, and find out whether the exchange delays.

        The caller then calls `delaying.follow`.
        """
        self.policy = policy
        said = {} if policy is None else policy.definition
        asked = self.arguments.get(delayed.DELAYED_EXCHANGE, said.get(delayed.POLICY_KEY))
        self.delays = self.declared_to_delay or asked is True
        alternate = alternate_of(self.arguments)
        self.alternate: str | None = alternate_of(said) if alternate is None else alternate

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r} {self.type}>"

    @property
    def declared_to_delay(self) -> bool:
        """Whether the exchange delays by its type or arguments, whatever its policy says."""
        return self.type == delayed.DELAYED_MESSAGE or self.arguments.get(delayed.DELAYED_EXCHANGE) is True

    @property
    def unused(self) -> bool:
        """Whether the exchange has no bindings."""
        return not self._bindings

    def bind(self, dest: Dest, routing_key: str, arguments: dict[str, Value]) -> bool:
        """Add a binding. Returns False if it exists already. Raises ChannelError 406 for arguments that the type cannot use."""
        self.index.check_binding(routing_key, arguments)
        own = self._bindings.setdefault(dest, {})
        hashed = Hashed(arguments) if arguments else NOTHING_HASHED
        key = (routing_key, hashed.digest)
        if key in own:
            return False
        own[key] = Binding(self, dest, routing_key, arguments)
        self.index.add(routing_key, dest, hashed)
        return True

    def has(self, dest: Dest, routing_key: str, digest: bytes) -> bool:
        """Whether there is a binding with arguments of this digest."""
        own = self._bindings.get(dest)
        return own is not None and (routing_key, digest) in own

    @property
    def steps(self) -> int:
        return self.index.steps

    def check_steps(self, most: int) -> None:
        """Raises ChannelError 406 if routing one message may take more than `most` steps."""
        if self.steps > most:
            text = (
                f"routing at exchange '{self.name}' could take more than {most} steps for one message: "
                "bind fewer headers, or patterns with fewer words behind wildcards"
            )
            raise ChannelError(PRECONDITION_FAILED, text, limit="routing")

    def unbind(self, dest: Dest, routing_key: str, arguments: dict[str, Value]) -> Binding | None:
        """Remove the binding and return it as it was made. Returns None if there is no such binding."""
        own = self._bindings.get(dest, {})
        digest = identity(arguments)
        binding = own.pop((routing_key, digest), None)
        if binding is None:
            return None
        if not own:
            del self._bindings[dest]
        self.index.remove(routing_key, dest, digest)
        return binding

    def last_dest(self) -> Dest | None:
        """Return the destination that was bound last, or None if there is none."""
        return next(reversed(self._bindings), None)

    def pop(self, dest: Dest) -> Binding:
        """Remove the last binding to `dest`. There must be one."""
        own = self._bindings[dest]
        (_, digest), binding = own.popitem()
        if not own:
            del self._bindings[dest]
        self.index.remove(binding.routing_key, dest, digest)
        return binding

    def leads_to(self, dest: Dest) -> bool:
        """Whether there is a binding to `dest`."""
        return dest in self._bindings

    def bindings_to(self, dest: Dest) -> Iterator[Binding]:
        yield from list(self._bindings.get(dest, {}).values())

    def bindings(self) -> Iterator[Binding]:
        """Yield all bindings, in the order of the destinations' first bindings. Bindings may change meanwhile."""
        for own in list(self._bindings.values()):
            yield from list(own.values())

    def route(self, routing_key: str, properties: Properties) -> Collection[Dest]:
        """Return each matching destination once. The result is valid only until the next change of a binding."""
        return self.index.route(routing_key, properties)


def check_declare(name: str, vhost: str, type: str, arguments: Arguments) -> None:
    """Raises ChannelError 406 for an unknown type, an alternate exchange that is not a name, or arguments that the type cannot use."""
    thing = describe("exchange", name, vhost)
    if type not in TYPES:
        raise ChannelError(PRECONDITION_FAILED, f"invalid exchange type '{type}'")
    for name in ALTERNATES:
        if name in arguments and not isinstance(arguments[name], str):
            got = type_name(arguments[name])
            raise ChannelError(PRECONDITION_FAILED, f"invalid type '{got}' for arg '{name}' in {thing}")
    if len({arguments[name] for name in ALTERNATES if name in arguments}) > 1:
        raise ChannelError(
            PRECONDITION_FAILED, f"the arguments {' and '.join(ALTERNATES)} of {thing} name two exchanges"
        )
    if not isinstance(arguments.get(delayed.DELAYED_EXCHANGE, False), bool):
        got = type_name(arguments[delayed.DELAYED_EXCHANGE])
        raise ChannelError(PRECONDITION_FAILED, f"invalid type '{got}' for arg '{delayed.DELAYED_EXCHANGE}' in {thing}")
    TYPES[type].check_exchange(thing, arguments)


def check_deduplication(name: str, vhost: str, type: str, arguments: Arguments) -> None:
    """Raises ChannelError 406 if a new exchange of this type cannot have its arguments for deduplication.

    An exchange that an older version has stored may have them without effect.
    """
    try:
        deduplicated.deduplication_of(type, arguments)
    except InvalidArgument as error:
        text = f"invalid arg '{error.name}' for {describe('exchange', name, vhost)}: {error.why}"
        raise ChannelError(PRECONDITION_FAILED, text) from None


def check_equivalent(
    exchange: Exchange, vhost: str, type: str, durable: bool, auto_delete: bool, internal: bool, arguments: Arguments
) -> None:
    """Raises ChannelError 406 unless the exchange could have been declared like this (D1)."""
    thing = describe("exchange", exchange.name, vhost)
    there: Arguments = exchange.arguments
    asked = arguments
    if exchange.type != type and delayed.DELAYED_MESSAGE in (exchange.type, type):
        there, asked = delayed.spelt_alike(exchange.type, there), delayed.spelt_alike(type, asked)
        check_arguments(thing, (delayed.DELAYED_TYPE,), there, asked)
    else:
        check_field(thing, "type", exchange.type, type)
    check_field(thing, "durable", exchange.durable, durable)
    check_field(thing, "auto_delete", exchange.auto_delete, auto_delete)
    check_field(thing, "internal", exchange.internal, internal)
    check_arguments(thing, (ALTERNATE,), _with_one_name(exchange.arguments), _with_one_name(arguments))
    check_arguments(thing, (delayed.DELAYED_EXCHANGE, *used_arguments(type, arguments)), there, asked)
    compared = (DEDUPLICATION,) if exchange.passage is None else DEDUPLICATION_ARGUMENTS
    check_arguments(thing, compared, exchange.arguments, arguments)


def _with_one_name(arguments: Arguments) -> dict[str, Value]:
    """Return the alternate exchange alone, under RabbitMQ's name for it."""
    alternate = alternate_of(arguments)
    return {} if alternate is None else {ALTERNATE: alternate}


def used_arguments(type: str, arguments: Arguments) -> tuple[str, ...]:
    """Return the names of the arguments that this type of exchange uses. `check_declare` has accepted the declaration."""
    own = TYPES[type].arguments
    return (*own, *TYPES[str(arguments[delayed.DELAYED_TYPE])].arguments) if type == delayed.DELAYED_MESSAGE else own


def honoured_arguments(type: str, arguments: Arguments) -> tuple[str, ...]:
    """Return the names of all arguments that have an effect on an exchange of this type."""
    own = (*ALTERNATES, delayed.DELAYED_EXCHANGE, *used_arguments(type, arguments))
    return (*own, *DEDUPLICATION_ARGUMENTS) if type == deduplicated.TYPE or arguments.get(DEDUPLICATION) else own

"""What there will be once a document is imported: the broker's objects, with those of the document that were found good.

Items are checked against it, so that nothing has to be changed to find out whether the whole document can be taken. A virtual host
that does not exist yet is an object of its own here, which the broker does not know.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import ProtocolError
from kvitto.broker.administration.definitions.fields import Refused
from kvitto.broker.routing.exchange import TYPES, Exchange
from kvitto.broker.routing.headers import Hashed, HeadersIndex
from kvitto.broker.routing.index import Index
from kvitto.broker.routing.topic import TopicIndex
from kvitto.broker.vhost import VHost
from kvitto.broker.vhost_settings import VHostSettings

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.queues.queue import Queue

INERT_MAX = 1000
FREED = 500
"""Entries that are freed in one step."""
PARTS = 256
UNUSED_BITS = 40
"""The lower bits of a hash choose the place within a set: keys of one part must not all have the same ones."""


@dataclass(slots=True, eq=False)
class PlannedQueue:
    name: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]


class PlannedExchange:
    """`of` is the exchange: an existing one, or one that belongs to no virtual host.

    New bindings are put into an index of their own, to find out what the exchange would need for a message with them.
    """

    def __init__(self, of: Exchange) -> None:
        self.of = of
        self._more: Index | None = None
        self._added: list[tuple[str, object, bytes]] = []

    def add(self, key: str, dest: object, hashed: Hashed, steps_max: int) -> None:
        """Raises ChannelError 406 or Refused if the exchange cannot have this binding."""
        self.of.index.check_binding(key, hashed.arguments)
        if not isinstance(self.of.index, TopicIndex | HeadersIndex):
            return  # the others find their bindings at once, however many there are
        if self._more is None:
            self._more = TYPES[self.of.type](self.of.arguments)
        self._more.add(key, dest, hashed)
        self._added.append((key, dest, hashed.digest))
        if self.of.steps + self._more.steps > steps_max:
            self.forget()
            raise Refused(
                f"routing at exchange '{self.of.name}' could take more than {steps_max} steps for one message"
            )

    def forget(self) -> bool:
        """Take back the last new binding. Returns False if there is none."""
        if not self._added:
            return False
        assert self._more is not None
        self._more.remove(*self._added.pop())
        return True


class Keys:
    """A set in parts: one of 100,000 keys that outgrows its table moves all of them at once, which takes some milliseconds."""

    def __init__(self) -> None:
        self.parts: list[set[tuple[Any, ...]]] = [set() for _ in range(PARTS)]

    def _part(self, key: tuple[Any, ...]) -> set[tuple[Any, ...]]:
        return self.parts[(hash(key) >> UNUSED_BITS) % PARTS]

    def add(self, key: tuple[Any, ...]) -> None:
        self._part(key).add(key)

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        return key in self._part(key)


class World:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.vhosts: dict[str, VHost] = {v.name: v for v in broker.vhosts.values() if not v.deleting}
        self.settings: dict[str, VHostSettings] = {}
        self.users: set[str] = {user.name for user in broker.users}
        self.exchanges: dict[tuple[str, str], PlannedExchange] = {}
        self.queues: dict[tuple[str, str], PlannedQueue] = {}
        self.bindings: dict[str, int] = {}
        """By virtual host, the number of new bindings."""
        self.seen = Keys()
        """The keys of bindings, and of other items that may be in the document only once."""
        self.new_exchanges: dict[str, int] = {}
        self.policy_costs: dict[str, int] = {}
        """By virtual host, what the search for policies will cost more."""
        self.inert: dict[str, None] = {}
        """What is taken and has no effect here, as words for people."""

    def add_vhost(self, name: str, settings: VHostSettings) -> None:
        self.settings[name] = settings
        if name not in self.vhosts:
            self.vhosts[name] = VHost(self.broker, name, settings)

    def note_inert(self, what: str, names: Iterable[str], honoured: Collection[str]) -> None:
        for name in names:
            if name not in honoured and len(self.inert) < INERT_MAX:
                self.inert[f"{what} {name!r}"] = None

    def vhost(self, name: str) -> VHost:
        found = self.vhosts.get(name)
        if found is None:
            raise Refused(f"there is no vhost '{name}'")
        return found

    def settings_of(self, vhost: VHost) -> VHostSettings:
        return self.settings.get(vhost.name, vhost.settings)

    def user(self, name: str) -> str:
        if name not in self.users:
            raise Refused(f"there is no user '{name}'")
        return name

    def once(self, *key: Any) -> None:
        """Raises Refused if an item of the document with this key has been taken already."""
        if key in self.seen:
            raise Refused("the document has it twice")
        self.seen.add(key)

    def exchange(self, vhost: VHost, name: str) -> PlannedExchange:
        """Return an exchange that exists or is planned. Raises Refused."""
        found = self.exchanges.get((vhost.name, name))
        if found is None:
            existing = vhost.exchanges.get(name)
            if existing is None or existing in vhost.going:
                raise Refused(f"there is no exchange '{name}' in vhost '{vhost.name}'")
            found = self.exchanges[vhost.name, name] = PlannedExchange(existing)
        return found

    def queue(self, vhost: VHost, name: str) -> PlannedQueue | Queue:
        """Return a queue that exists or is planned. Raises Refused, also for an exclusive one."""
        planned = self.queues.get((vhost.name, name))
        if planned is not None:
            return planned
        existing = vhost.queues.get(name)
        if existing is None or existing in vhost.going:
            raise Refused(f"there is no queue '{name}' in vhost '{vhost.name}'")
        if existing.exclusive:
            raise Refused(f"queue '{name}' in vhost '{vhost.name}' is exclusive to a connection")
        return existing

    def bind(self, vhost: VHost, source: str, dest: object, key: str, arguments: dict[str, Any]) -> bool:
        """Plan a binding. Returns False if it exists already. Raises Refused, ChannelError 406."""
        exchange = self.exchange(vhost, source)
        target = dest.of if isinstance(dest, PlannedExchange) else dest
        hashed = Hashed(arguments)
        planned = (vhost.name, source, target, key, hashed.digest)
        if planned in self.seen:
            return False
        if exchange.of.has(target, key, hashed.digest):
            return False
        allowed = self.broker.limits
        count = self.bindings.get(vhost.name, 0) + 1
        if vhost.bindings + count > allowed.bindings_max:
            raise Refused(f"vhost '{vhost.name}' has {allowed.bindings_max} bindings with those before it, the limit")
        exchange.add(key, target, hashed, allowed.route_steps_max)
        self.seen.add(planned)
        self.bindings[vhost.name] = count
        return True

    def empty(self) -> Iterator[None]:
        """Free everything, in pieces: at once that takes long."""
        for exchange in self.exchanges.values():
            for count in itertools.count():
                if not exchange.forget():
                    break
                if count % FREED == FREED - 1:
                    yield
        held: tuple[Any, ...] = (self.exchanges, self.queues, self.users, *self.seen.parts)
        left = FREED
        for some in held:
            while some:
                some.popitem() if isinstance(some, dict) else some.pop()
                left -= 1
                if not left:
                    left = FREED
                    yield


def reason_of(error: ProtocolError | ValueError) -> str:
    """Return why an item cannot be taken, as AMQP would have told a client."""
    return error.text if isinstance(error, ProtocolError) else str(error)

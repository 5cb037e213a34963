"""A virtual host: its exchanges, queues and bindings, and the route cache.

AMQP, HTTP and the start all declare, bind and delete through `VHost`. It adds durable objects to the definitions; the caller
waits for the sync before it answers (D2).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Generator, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, RESOURCE_LOCKED, ChannelError, StoreError
from kvitto.broker import walls
from kvitto.broker.administration import delaying, histories, passing, policies, policing, removal
from kvitto.broker.administration.arguments import EQUIVALENCE_ARGUMENTS, queue_settings, read_settings, usable
from kvitto.broker.administration.equivalence import check_arguments, check_field, describe
from kvitto.broker.administration.policies import Policy
from kvitto.broker.administration.queue_types import TYPE, type_of, with_default
from kvitto.broker.administration.removal import Steps
from kvitto.broker.counts import Counts
from kvitto.broker.jobs import Cost
from kvitto.broker.queues import hold
from kvitto.broker.queues.consumer import Consumer
from kvitto.broker.queues.deduplicating import DeduplicatingQueue
from kvitto.broker.queues.queue import Declaration, Queue
from kvitto.broker.queues.stream import Stream, check_stream, stream_log
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.broker.routing import exchange as exchanges
from kvitto.broker.routing.exchange import Binding, Exchange
from kvitto.broker.routing.index import at_once
from kvitto.broker.routing.route import Epoch, Route, Traffic
from kvitto.broker.routing.walking import NOTHING_SAID, walk
from kvitto.broker.transfers.deadletter import split_key, strings
from kvitto.broker.vhost_settings import VHostSettings
from kvitto.store.judge import DELETING
from kvitto.wire.properties import Properties

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker

log = logging.getLogger("kvitto.broker")

TRACE = "amq.rabbitmq.trace"
"""The exchange to which RabbitMQ copies messages while tracing is on. Programs bind queues to it; Kvitto publishes nothing to it."""
PREDECLARED = (
    ("", "direct"),
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
    ("amq.topic", "topic"),
    (TRACE, "topic"),
)
POLICY, OPERATOR_POLICY = "policy", "operator_policy"
"""The kinds of these objects in the definitions."""
FORGET_AT_ONCE = 1000
"""The most routes that are freed at once. More of them are freed in pieces."""
RouteSteps = Generator[bool, None, Route]
NOTHING: dict[Exchange, None] = {}
FINISH_PIECES = 4
"""The most pieces of a deletion that run at once because its name is to be used again."""
ROUTES_MAX = 200_000
"""The most cached routes, where each queue in a route counts as one more."""


def route_to(exchange: str, routing_key: str, found: list[Queue], dynamic: bool, traffic: Traffic) -> Route:
    """Return the route to these queues. It leaves out queues that are out of service, and names one of them in `out_of_service`."""
    fault = next((queue for queue in found if queue.fault is not None), None)
    taking = found if fault is None else [q for q in found if q.fault is None]
    route = Route(exchange, routing_key, taking, dynamic, traffic)
    route.out_of_service = fault
    return route


def empty(routes: dict[bytes, Route]) -> Iterator[None]:
    """Free routes that are no longer used, in pieces."""
    while routes:
        for _ in range(min(FORGET_AT_ONCE, len(routes))):
            routes.popitem()
        yield


GENERATED = "amq.gen-"
"""What a generated name begins with."""


def generated_name() -> str:
    """Return the name of a queue that is declared without one."""
    return GENERATED + secrets.token_urlsafe(16)


class VHost:
    def __init__(self, broker: Broker, name: str, settings: VHostSettings | None = None) -> None:
        self.broker = broker
        self.name = name
        self.settings = settings or VHostSettings()
        self.traffic = Traffic(broker.traffic)
        self.gone = Counts()
        """The counts of deleted queues."""
        self.exchanges: dict[str, Exchange] = {
            n: Exchange(n, kind, internal=n == TRACE, traffic=Traffic(self.traffic)) for n, kind in PREDECLARED
        }
        self.policies: dict[str, Policy] = {}
        self.operator_policies: dict[str, Policy] = {}
        self.queues: dict[str, Queue] = {}
        self.epoch = Epoch()
        self._routes: dict[bytes, Route] = {}
        self._remembered = 0
        self.search_cost = 0
        """The number of steps that the last search for a route took."""
        self.bindings = 0
        """The number of bindings, without those of the default exchange."""
        self.deleting = False
        self.going: dict[Queue | Exchange, Steps | None] = {}
        """Queues and exchanges that are being deleted, with the steps that do it, or None if these have not begun."""
        self.senders = histories.Senders(self)
        self._sources: dict[Queue | Exchange, dict[Exchange, None]] = {}
        """By destination, the exchanges with a binding to it, without the default exchange."""

    @property
    def default_queue_type(self) -> str:
        """The type of a queue that is declared without `x-queue-type`."""
        return self.settings.default_queue_type

    def clear_policies(self) -> None:
        for kind, found in ((POLICY, self.policies), (OPERATOR_POLICY, self.operator_policies)):
            for name in list(found):
                self.clear_policy(kind, name)

    # -- policies --------------------------------------------------------------------------------------------

    def set_policy(self, kind: str, policy: Policy) -> None:
        """Run `policing.set_policy` without a pause."""
        removal.at_once(policing.set_policy(self, kind, policy))

    def restore_policy(self, kind: str, name: str, value: dict[str, Any]) -> None:
        """Take a policy from the definitions at the start, before there are queues."""
        try:
            found = policies.policy(name, value, kind == OPERATOR_POLICY, stored=True)
        except policies.InvalidPolicy as error:
            log.error("policy %r of vhost %r is passed over: %s", name, self.name, error)
            return
        self.policies_by_name(kind)[name] = found
        what = f"{kind.replace('_', ' ')} {name!r} of vhost {self.name!r}"
        self.broker.find_inert(kind, (self.name, name), what, (found.pattern,))

    def clear_policy(self, kind: str, name: str) -> None:
        """Run `policing.clear_policy` without a pause."""
        removal.at_once(policing.clear_policy(self, kind, name))

    def policies_by_name(self, kind: str) -> dict[str, Policy]:
        return self.policies if kind == POLICY else self.operator_policies

    def policies_of(self, name: str, arguments: dict[str, Any]) -> tuple[Policy | None, Policy | None]:
        """Return the policy and the operator policy that apply to a queue."""
        kinds = policies.queue_kinds(arguments)
        of_users = policies.first_that_fits(self.policies.values(), kinds, name)
        return of_users, policies.first_that_fits(self.operator_policies.values(), kinds, name)

    def policy_of_exchange(self, name: str) -> Policy | None:
        if name == "":  # no policy applies to the default exchange
            return None
        return policies.first_that_fits(self.policies.values(), policies.EXCHANGE_KINDS, name)

    # -- routing ---------------------------------------------------------------------------------------------

    def route(self, key: bytes) -> Route:
        """Return the route of an exchange and a routing key. `key` is both as short strings. Raises ChannelError 404."""
        return self._routes.get(key) or at_once(self.route_steps(key))

    def remembered(self, key: bytes) -> Route | None:
        """Return the route if it is cached, else None."""
        return self._routes.get(key)

    def route_steps(self, key: bytes) -> RouteSteps:
        """Do the work of `route` in pieces."""
        name, routing_key = split_key(key)
        epoch = self.epoch.value
        exchange = self.exchange(name)
        found = yield from walk(
            exchange, (routing_key,), NOTHING_SAID, self.exchanges.get, self.broker.limits.routing_steps_max
        )
        self.search_cost = found.cost
        route = route_to(name, routing_key, found.queues, found.dynamic, exchange.traffic)
        if epoch == self.epoch.value:
            self._remember(key, route)
        return route

    def _remember(self, key: bytes, route: Route) -> None:
        self._remembered += 1 + route.count
        if self._remembered > ROUTES_MAX:
            self._forget_routes()
            self._remembered = 1 + route.count
        self._routes[key] = route

    def _forget_routes(self) -> None:
        routes, self._routes = self._routes, {}
        self._remembered = 0
        if len(routes) > FORGET_AT_ONCE:
            self.broker.jobs.start(empty(routes), owner=self)

    def route_message(self, name: str, routing_key: str, properties: Properties) -> Route:
        """Return the route of one message whose properties matter, for an exchange on the way (`Route.dynamic`) or for CC or BCC."""
        return at_once(self.message_route_steps(name, routing_key, properties))

    def message_route_steps(self, name: str, routing_key: str, properties: Properties) -> RouteSteps:
        """Do the work of `route_message` in pieces."""
        headers = properties.headers or {}
        keys = (routing_key, *strings(headers.get("CC")), *strings(headers.get("BCC")))
        exchange = self.exchange(name)
        found = yield from walk(exchange, keys, properties, self.exchanges.get, self.broker.limits.routing_steps_max)
        self.search_cost = found.cost
        if not found.histories:
            return route_to(name, routing_key, found.queues, True, exchange.traffic)
        if not found.queues:
            return histories.Unseen(name, routing_key, found.histories, True, exchange.traffic)
        return route_to(name, routing_key, found.queues + found.histories, True, exchange.traffic)

    def target_steps(
        self, name: str, keys: list[str], properties: Properties, leaving: Exchange | None = None
    ) -> Generator[bool, None, list[Queue]]:
        """Find the queues of a message that the broker moves, without a limit of steps. There are none if the exchange does not exist.

        `leaving`: the exchange whose hidden queue the message leaves.
        """
        exchange = self.exchanges.get(name)
        if exchange is None:
            return []
        found = yield from walk(exchange, keys, properties, self.exchanges.get, None, leaving)
        self.search_cost = found.cost
        return found.queues + found.histories if found.queues else []

    def changed(self) -> None:
        """Drop all cached routes, because a binding, queue or exchange has changed."""
        if self._routes:
            self._forget_routes()
        self.epoch.value += 1

    # -- exchanges -------------------------------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange:
        found = self.exchanges.get(name)
        if found is None:
            raise ChannelError(NOT_FOUND, f"no {describe('exchange', name, self.name)}")
        return found

    def declare_exchange(
        self, name: str, kind: str, durable: bool, auto_delete: bool, internal: bool, arguments: dict[str, Any]
    ) -> Exchange:
        found = self.exchanges.get(name)
        if found is not None and found in self.going:
            self._finish_going(found, "exchange")
            found = None
        if found is not None:
            exchanges.check_declare(name, self.name, kind, arguments)
            exchanges.check_equivalent(found, self.name, kind, durable, auto_delete, internal, arguments)
            return found
        self._refuse_reserved("exchange", name)
        exchanges.check_declare(name, self.name, kind, arguments)
        if len(self.exchanges) >= self.broker.limits.exchanges_max and not self.broker.restoring:
            text = f"cannot declare exchange '{name}': vhost '{self.name}' has {self.broker.limits.exchanges_max}, the limit"
            raise ChannelError(PRECONDITION_FAILED, text, limit="exchanges")
        if not self.broker.restoring:
            exchanges.check_deduplication(name, self.name, kind, arguments)
            honoured = exchanges.honoured_arguments(kind, arguments)
            self.broker.notices.without_effect(describe("exchange", name, self.name), arguments, honoured)
        made = self.exchanges[name] = Exchange(
            name,
            kind,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
            traffic=Traffic(self.traffic),
        )
        made.take_policy(self.policy_of_exchange(name))
        try:
            delaying.check(self, made)
            passing.check(self, made)
            histories.attach(self, made)
        except ChannelError:
            del self.exchanges[name]
            raise
        self.changed()
        passing.follow(self, made)
        if not delaying.follow(self, made):
            self.define_exchange(made)
        return made

    def define_exchange(self, exchange: Exchange) -> None:
        """Write the definition of the exchange, if it is durable."""
        if exchange.durable:
            hidden = {"waiting": exchange.waiting, "passage": exchange.passage}
            value = {
                "type": exchange.type,
                "auto_delete": exchange.auto_delete,
                "internal": exchange.internal,
                "arguments": exchange.arguments,
                **{name: queue.log.queue_id for name, queue in hidden.items() if queue is not None},
                **self._mark_of(exchange),
            }
            self.broker.define("exchange", (self.name, exchange.name), value)

    def delete_exchange(self, name: str, if_unused: bool = False) -> None:
        """Run `exchange_deletion` without a pause."""
        removal.at_once(self.exchange_deletion(name, if_unused))

    def exchange_deletion(self, name: str, if_unused: bool = False) -> Steps:
        """Return the steps that delete an exchange. An unknown one is no error. Raises ChannelError 403 for a predeclared one, and 406."""
        if name == "" or name.startswith("amq."):
            raise ChannelError(ACCESS_REFUSED, f"operation not permitted on {self._default_or(name)}")
        found = self.exchanges.get(name)
        if found is None:
            return iter(())
        if if_unused and not found.unused:
            raise ChannelError(PRECONDITION_FAILED, f"{describe('exchange', name, self.name)} in use")
        return removal.delete_exchange(self, found, Cost())

    def _default_or(self, name: str) -> str:
        return "the default exchange" if name == "" else describe("exchange", name, self.name)

    def _refuse_reserved(self, kind: str, name: str) -> None:
        if name.startswith("amq."):
            text = f"{kind} name '{name}' contains reserved prefix 'amq.*'"
            raise ChannelError(ACCESS_REFUSED, text)

    # -- bindings --------------------------------------------------------------------------------------------

    def bind(self, source: str, dest: Queue | Exchange, routing_key: str, arguments: dict[str, Any]) -> int:
        """Add a binding, if it is a new one. Returns the cost of what is sent to the destination at once, in microseconds."""
        exchange = self.exchange(source)
        if self.going:
            self._refuse_going(exchange, dest)
        if exchange.bind(dest, routing_key, arguments):
            self.bindings += 1
            if not self.broker.restoring:
                try:
                    self._check_bindings()
                    exchange.check_steps(self.broker.limits.route_steps_max)
                except ChannelError:
                    exchange.unbind(dest, routing_key, arguments)
                    self.bindings -= 1
                    raise
            self._sources.setdefault(dest, {})[exchange] = None
            self.changed()
            if exchange.durable and self.is_durable(dest):
                self.broker.define("binding", self._binding_key(exchange, dest, routing_key, arguments), {})
            return histories.send(self, exchange, dest)
        return 0

    def _refuse_going(self, *things: Queue | Exchange) -> None:
        for thing in things:
            if thing in self.going:
                kind = "exchange" if isinstance(thing, Exchange) else "queue"
                raise ChannelError(NOT_FOUND, f"no {describe(kind, thing.name, self.name)}")

    def _check_bindings(self) -> None:
        if self.bindings > self.broker.limits.bindings_max:
            text = f"vhost '{self.name}' has {self.broker.limits.bindings_max} bindings, the limit"
            raise ChannelError(PRECONDITION_FAILED, text, limit="bindings")

    def unbind(self, source: str, dest: Queue | Exchange, routing_key: str, arguments: dict[str, Any]) -> None:
        """Remove a binding, if there is one."""
        exchange = self.exchange(source)
        gone = exchange.unbind(dest, routing_key, arguments)
        if gone is not None:
            self.bindings -= 1
            self._unbound(exchange, dest, routing_key, gone.arguments)
            self.changed()
            self._auto_delete(exchange)

    def bindings_to(self, dest: Queue | Exchange) -> Iterator[Binding]:
        """Yield the bindings to a destination: first that of the default exchange, then by exchange, in the order of its first binding."""
        yield from self.exchanges[""].bindings_to(dest)
        for exchange in list(self._sources.get(dest, ())):
            yield from exchange.bindings_to(dest)

    def _unbound(self, exchange: Exchange, dest: Any, routing_key: str, arguments: dict[str, Any]) -> None:
        """Note that a binding was removed: delete its definition, and update `_sources` if it was the last one between the two."""
        sources = self._sources.get(dest)
        if sources is not None and not exchange.leads_to(dest):
            sources.pop(exchange, None)
            if not sources:
                del self._sources[dest]
        if exchange.durable and self.is_durable(dest):
            self.broker.undefine("binding", self._binding_key(exchange, dest, routing_key, arguments))

    @staticmethod
    def is_durable(thing: Queue | Exchange) -> bool:
        """Whether the queue or exchange has a definition."""
        return thing.durable if isinstance(thing, Exchange) else thing.log.durable

    def _binding_key(self, source: Exchange, dest: Any, routing_key: str, arguments: dict[str, Any]) -> tuple[Any, ...]:
        kind = "exchange" if isinstance(dest, Exchange) else "queue"
        return (self.name, source.name, kind, dest.name, routing_key, self.broker.pack(arguments))

    def last_source(self, dest: Queue | Exchange) -> Exchange | None:
        """Return the exchange to which `dest` was bound last, or None if there is none but the default exchange."""
        return next(reversed(self._sources.get(dest, NOTHING)), None)

    def drop_binding(self, exchange: Exchange, dest: Queue | Exchange) -> None:
        """Remove the last binding between the two. There must be one."""
        binding = exchange.pop(dest)
        if exchange.name:
            self.bindings -= 1
            self._unbound(exchange, dest, binding.routing_key, binding.arguments)
        self.changed()

    def _auto_delete(self, exchange: Exchange) -> None:
        if exchange.auto_delete and exchange.unused:
            self.broker.jobs.start(removal.delete_exchange(self, exchange, Cost()), owner=self)

    def contain(self, error: Exception) -> None:
        """Log that a job of this virtual host has failed. A StoreError concerns more than one virtual host and is raised again."""
        if isinstance(error, StoreError):
            raise error
        log.error("vhost %r: internal error, what was being deleted is there in part", self.name, exc_info=error)

    def remove(self, thing: Queue | Exchange) -> None:
        """Remove a queue or exchange that has no bindings any more."""
        if isinstance(thing, Exchange):
            del self.exchanges[thing.name]
            thing.deleted = True
            histories.detach(thing)
            if thing.durable:
                self.broker.undefine("exchange", (self.name, thing.name))
            delaying.detach(self, thing)
            passing.detach(self, thing)
        else:
            self._remove_queue(thing)
        self.changed()

    def _mark_of(self, thing: Queue | Exchange) -> dict[str, bool]:
        """Return what the definition of a queue or exchange has if it is being deleted, so that the next start goes on with that."""
        return {DELETING: True} if thing in self.going else {}

    def define_going(self, thing: Queue | Exchange) -> None:
        """Write the definition again, because a deletion of what has bindings has begun or has failed."""
        if self.deleting:
            return  # the definition of the virtual host says enough
        if isinstance(thing, Exchange):
            self.define_exchange(thing)
        else:
            self.define_queue(thing)

    def is_bound(self, thing: Queue | Exchange) -> bool:
        """Whether there is a binding to or from it, but for that of the default exchange."""
        return thing in self._sources or (isinstance(thing, Exchange) and thing.last_dest() is not None)

    def _finish_going(self, thing: Queue | Exchange, kind: str) -> None:
        """Finish a deletion now, because the name is to be used again. Raises ChannelError 405 if that takes long."""
        steps = self.going[thing]
        if steps is None:
            assert not isinstance(thing, Exchange)
            del self.going[thing]
            steps = removal.delete_queue(thing, Cost())
            self.broker.jobs.start(steps, owner=self)
        for _ in islice(steps, FINISH_PIECES):
            pass
        if thing in (self.queues.get(thing.name), self.exchanges.get(thing.name)):
            raise ChannelError(RESOURCE_LOCKED, f"{describe(kind, thing.name, self.name)} is being deleted: try again")

    # -- queues ----------------------------------------------------------------------------------------------

    def queue(self, name: str, owner: object | None = None) -> Queue:
        """Return a queue that `owner` (a connection) may use. Raises ChannelError 404, 405."""
        found = self.queues.get(name)
        if found is None:
            raise ChannelError(NOT_FOUND, f"no {describe('queue', name, self.name)}")
        if found.fault is not None:
            raise walls.out_of_service(found)
        if found.exclusive and owner is not None and found.owner is not owner:
            raise self._locked(found)
        return found

    def _locked(self, queue: Queue) -> ChannelError:
        text = (
            f"cannot obtain exclusive access to locked {describe('queue', queue.name, self.name)}. It could be originally "
            "declared on another connection or the exclusive property value does not match that of the original declaration."
        )
        return ChannelError(RESOURCE_LOCKED, text)

    def declare_queue(
        self,
        name: str,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: dict[str, Any],
        owner: object | None,
        *,
        generated: bool = False,
    ) -> Queue:
        """Declare a queue. `generated`: the name comes from `generated_name`; clients may not choose such a name."""
        self.broker.churn.declared += 1
        lasting = durable and not (exclusive or auto_delete or generated)
        arguments = with_default(arguments, self.default_queue_type, lasting)
        if self.going and (gone := self.queues.get(name)) in self.going:
            assert gone is not None
            self._finish_going(gone, "queue")
        if name in self.queues:
            found = self.queue(name, owner)
            self.check_same(found, durable, exclusive, auto_delete, arguments)
            found.used_ms = self.broker.timers.now_ms
            return found
        self.broker.check_queues(name, self.name)
        if arguments.get("x-queue-type") == "stream":
            check_stream("" if generated else name, self.name, durable, exclusive, auto_delete)
        if not generated:
            self._refuse_reserved("queue", name)
        queue_id = secrets.token_hex(16)
        self.broker.churn.created += 1
        made = self.make_queue(name, queue_id, durable, exclusive, auto_delete, arguments)
        made.owner = owner if exclusive else None
        self.define_queue(made)
        self.broker.notices.without_effect(
            describe("queue", name, self.name), arguments, (TYPE, *EQUIVALENCE_ARGUMENTS)
        )
        return made

    def define_queue(self, queue: Queue) -> None:
        """Write the definition of the queue, if it is durable."""
        if queue.log.durable:
            self.broker.define("queue", (self.name, queue.name), {**queue.definition(), **self._mark_of(queue)})

    def make_queue(
        self, name: str, queue_id: str, durable: bool, exclusive: bool, auto_delete: bool, arguments: dict[str, Any]
    ) -> Queue:
        """Make a queue without writing its definition, for `declare_queue` and for a start."""
        counting = arguments
        if not self.broker.restoring:
            queue_settings(name, self.name, arguments, durable and not exclusive)
        elif unusable := arguments.keys() - (counting := usable(arguments)).keys():
            told = ", ".join(f"{key}={arguments[key]!r}" for key in sorted(unusable))
            log.error("%s is there without arguments that it cannot have: %s", describe("queue", name, self.name), told)
        found = self.policies_of(name, arguments)
        settings = read_settings(policies.for_queue(counting, *found))
        declared = Declaration(name, arguments, durable, exclusive, auto_delete)
        made: Queue
        if settings.stream:
            made = Stream(self.broker, self, stream_log(self.broker.store, queue_id, settings), settings, declared)
        else:
            kind = WorkQueue if settings.deduplication is None else DeduplicatingQueue
            made = kind(
                self.broker, self, self.broker.open_log(queue_id, durable and not exclusive), settings, declared
            )
        made.policy, made.operator_policy = found
        self.queues[name] = made
        self.broker.queues[queue_id] = made
        if settings.archive:
            self.broker.archives.add(made)
        self.exchanges[""].bind(made, name, {})
        self.changed()
        self.broker.expire_unused(made)
        return made

    def check_same(
        self, found: Queue, durable: bool, exclusive: bool, auto_delete: bool, arguments: dict[str, Any]
    ) -> None:
        """Raises ChannelError 405, 406 unless a queue could have been declared like this (D1)."""
        if found.exclusive != exclusive:
            raise self._locked(found)
        thing = describe("queue", found.name, self.name)
        check_field(thing, "durable", found.durable, durable)
        check_field(thing, "auto_delete", found.auto_delete, auto_delete)
        if type_of(found.arguments) != type_of(arguments):
            check_arguments(thing, (TYPE,), found.arguments, arguments)
        check_arguments(thing, EQUIVALENCE_ARGUMENTS, found.arguments, arguments)

    def delete_queue(self, queue: Queue, if_unused: bool = False, if_empty: bool = False) -> int:
        """Run `queue_deletion` without a pause. Returns how many messages were ready."""
        steps = self.queue_deletion(queue, if_unused, if_empty)
        count = queue.ready
        removal.at_once(steps)
        return count

    def queue_deletion(self, queue: Queue, if_unused: bool = False, if_empty: bool = False) -> Steps:
        """Return the steps that remove the queue and its messages. Raises ChannelError 406."""
        thing = describe("queue", queue.name, self.name)
        if if_unused and queue.consumers:
            raise ChannelError(PRECONDITION_FAILED, f"{thing} in use")
        if if_empty and queue.messages > queue.unacked:  # unacked messages do not count, as with RabbitMQ
            raise ChannelError(PRECONDITION_FAILED, f"{thing} not empty")
        return removal.delete_queue(queue, Cost())

    def _remove_queue(self, queue: Queue) -> None:
        if queue.archived and queue.fault is None:
            self.broker.flush(queue)  # settled messages must be in its archive
        queue.deleted = True
        del self.queues[queue.name]
        del self.broker.queues[queue.log.queue_id]
        if queue.owner is not None:
            queue.owner.queues.pop(queue, None)
        self.broker.parking.forget(queue)
        hold.forget(queue)
        queue.cancel_timers()
        self.broker.timers.cancel(self.broker.expire_unused, queue)
        self.exchanges[""].unbind(queue, queue.name, {})
        self.broker.gone.add(queue)
        self.gone.add(queue)
        self.broker.churn.deleted += 1
        consumers = queue.take_consumers()
        if queue.log.durable:
            self.broker.undefine("queue", (self.name, queue.name))
        queue.log.delete()
        if consumers and queue.log.durable:
            self.broker.store.when_defined(partial(self._dismiss, consumers), announced=True)
        elif consumers:
            self._dismiss(consumers)

    def _dismiss(self, consumers: list[Consumer]) -> None:
        self.broker.jobs.start(removal.dismiss(consumers), owner=self)

    def consumer_left(self, queue: Queue) -> None:
        """Delete an auto-delete queue whose last consumer has left."""
        if queue.auto_delete and queue.had_consumer and not queue.consumers and not queue.deleted:
            self.broker.jobs.start(removal.delete_queue(queue, Cost()), owner=self)

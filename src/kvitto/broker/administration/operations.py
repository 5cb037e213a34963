"""The operations of a user in a virtual host: declare, bind, unbind, delete, purge, publish, set a policy. Each checks permissions first.

All rules of permission and admission are here and in `admission.py`. AMQP methods (protocol/methods/) and HTTP requests (http/)
decode the request, call an operation, and answer; `VHost` does the work without any check. A publish on a channel goes through the
compiled `Channel.publish`, which shares `may_publish` and `admission.admit` with this module.
An operation takes effect at once, or returns the steps of a job (broker/jobs.py). Its definitions become durable later, and the
answer to the peer has to wait for that (broker/changes.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from kvitto.base.errors import ACCESS_REFUSED, PRECONDITION_FAILED, ChannelError
from kvitto.broker import walls
from kvitto.broker.administration import admission, policing
from kvitto.broker.administration.auth import DEFAULT_EXCHANGE, Operation, User
from kvitto.broker.administration.parameters import MAX_QUEUES
from kvitto.broker.routing.exchange import alternate_of
from kvitto.broker.routing.route import Route
from kvitto.broker.transfers.copying import copies
from kvitto.broker.vhost import GENERATED, OPERATOR_POLICY, POLICY, generated_name
from kvitto.wire import tables
from kvitto.wire.buf import Buf
from kvitto.wire.properties import Properties

if TYPE_CHECKING:
    from kvitto.broker.administration.policies import Policy
    from kvitto.broker.administration.removal import Steps
    from kvitto.broker.queues.queue import Queue
    from kvitto.broker.routing.exchange import Exchange
    from kvitto.broker.vhost import VHost

Kind = Literal["queue", "exchange"]
OUTSIDER = object()
"""Stands for a caller without a connection. It cannot use exclusive queues (405 RESOURCE_LOCKED)."""
POLICY_TAGS = {POLICY: ("administrator", "policymaker"), OPERATOR_POLICY: ("administrator",)}
"""The tags of users who may set and delete policies of each kind."""


class Operations:
    """The operations of one user in one virtual host. An object is cheap and made for each request.

    `user` is None for the broker itself, which may do everything. `owner` is the connection that owns the exclusive queues which are
    declared, and may use those that it owns. Operations raise ChannelError 403 if the user lacks a permission.
    """

    __slots__ = ("owner", "user", "vhost")

    def __init__(self, vhost: VHost, user: User | None, owner: object = OUTSIDER) -> None:
        self.vhost = vhost
        self.user = user
        self.owner = owner

    def authorise(self, operation: Operation, kind: str, name: str) -> None:
        if self.user is not None:
            self.user.authorise(self.vhost.name, operation, kind, name)

    # -- queues ----------------------------------------------------------------------------------------------

    def declare_queue(
        self, name: str | None, durable: bool, exclusive: bool, auto_delete: bool, arguments: dict[str, Any]
    ) -> tuple[Queue, bool]:
        """Return the queue, and whether it is new. If the name is empty, the broker generates one. Raises ChannelError 405, 406."""
        generated = name is None
        name = generated_name() if name is None else name
        self.authorise("configure", "queue", name)
        known = name in self.vhost.queues
        if not known:
            self._check_queue_limit(name)
        exchange = arguments.get("x-dead-letter-exchange")
        if isinstance(exchange, str) and not known:
            self.authorise("read", "queue", name)
            self.authorise("write", "exchange", exchange)
        queue = self.vhost.declare_queue(
            name, durable, exclusive, auto_delete, arguments, self.owner, generated=generated
        )
        return queue, not known

    def _check_queue_limit(self, name: str) -> None:
        """Raises ChannelError 406 if the virtual host has as many queues as an administrator allows it."""
        most = self.vhost.broker.parameters.limit(self.vhost.name, MAX_QUEUES)
        if most is not None and len(self.vhost.queues) >= most:
            text = f"cannot declare queue '{name}': queue limit in vhost '{self.vhost.name}' ({most}) is reached"
            raise ChannelError(PRECONDITION_FAILED, text, limit="queues")

    def declare_exported_queue(self, name: str, durable: bool, auto_delete: bool, arguments: dict[str, Any]) -> Queue:
        """Declare a queue of an export, whose name a broker may have generated. No limit of the virtual host refuses it."""
        self.authorise("configure", "queue", name)
        generated = name.startswith(GENERATED)
        return self.vhost.declare_queue(name, durable, False, auto_delete, arguments, self.owner, generated=generated)

    def delete_queue(self, name: str, if_unused: bool, if_empty: bool) -> tuple[int, Steps]:
        """Return how many messages are ready, and the steps. An unknown queue is no error. Raises ChannelError 405, 406."""
        self.authorise("configure", "queue", name)
        if name not in self.vhost.queues:
            return 0, iter(())
        queue = self.vhost.queue(name, self.owner)
        return queue.ready, self.vhost.queue_deletion(queue, if_unused, if_empty)

    def purge_queue(self, name: str) -> tuple[int, Steps]:
        """Return how many messages are removed, and the steps. Raises ChannelError 404, 405."""
        self.authorise("read", "queue", name)
        queue = self.vhost.queue(name, self.owner)
        found: tuple[int, Steps] = walls.within(queue, queue.purging)
        return found

    # -- exchanges -------------------------------------------------------------------------------------------

    def declare_exchange(
        self, name: str, kind: str, durable: bool, auto_delete: bool, internal: bool, arguments: dict[str, Any]
    ) -> bool:
        """Declare an exchange. Returns whether it is new. Raises ChannelError 405, 406."""
        refuse_default(name)
        self.authorise("configure", "exchange", name)
        known = name in self.vhost.exchanges
        alternate = alternate_of(arguments)
        if alternate is not None and not known:
            self.authorise("read", "exchange", name)
            self.authorise("write", "exchange", alternate)
        self.vhost.declare_exchange(name, kind, durable, auto_delete, internal, arguments)
        return not known

    def delete_exchange(self, name: str, if_unused: bool) -> Steps:
        """Return the steps that delete the exchange. An unknown one is no error. Raises ChannelError 406."""
        self.authorise("configure", "exchange", name)
        return self.vhost.exchange_deletion(name, if_unused)

    # -- bindings --------------------------------------------------------------------------------------------

    def may_bind(self, source: str, kind: Kind, dest: str) -> None:
        """Raise ChannelError 403 unless the user may bind `dest`, a queue or an exchange, to the exchange `source`, and unbind it."""
        refuse_default(source)
        if kind == "exchange":
            refuse_default(dest)
        self.authorise("write", kind, dest)
        self.authorise("read", "exchange", source)

    def bind(self, source: str, kind: Kind, dest: str, routing_key: str, arguments: dict[str, Any]) -> int:
        """Add a binding. Returns its cost, as `VHost.bind` does. Raises ChannelError 404, 405, 406."""
        self.may_bind(source, kind, dest)
        self.may_use_topic("read", source, routing_key)
        return self.vhost.bind(source, self._dest(kind, dest), routing_key, arguments)

    def unbind(self, source: str, kind: Kind, dest: str, routing_key: str, arguments: dict[str, Any]) -> None:
        """Remove a binding. A missing queue, exchange or binding is no error, as with RabbitMQ, because clients also unbind what was
        deleted automatically. Raises ChannelError 405.
        """
        self.may_bind(source, kind, dest)
        self.may_use_topic("read", source, routing_key)
        there = self.vhost.queues if kind == "queue" else self.vhost.exchanges
        if dest in there and source in self.vhost.exchanges:
            self.vhost.unbind(source, self._dest(kind, dest), routing_key, arguments)

    def _dest(self, kind: Kind, name: str) -> Queue | Exchange:
        return self.vhost.queue(name, self.owner) if kind == "queue" else self.vhost.exchange(name)

    # -- messages --------------------------------------------------------------------------------------------

    def may_publish(self, exchange: str) -> None:
        """Raises ChannelError 403 without permission or for an internal exchange, and 404 for an unknown one."""
        self.authorise("write", "exchange", exchange)
        if self.vhost.exchange(exchange).internal:
            text = f"cannot publish to internal exchange '{exchange}' in vhost '{self.vhost.name}'"
            raise ChannelError(ACCESS_REFUSED, text)

    def may_use_topic(self, operation: Operation, exchange: str, *routing_keys: str) -> None:
        """Raises ChannelError 403 unless the user may publish ("write") or bind ("read") with these keys, if it is a topic exchange."""
        if self.user is None or not self.user.topics:
            return
        found = self.vhost.exchanges.get(exchange)
        if found is not None and found.type == "topic":
            for routing_key in routing_keys:
                self.user.authorise_topic(self.vhost.name, operation, exchange, routing_key)

    def admit(self, properties: Properties) -> int:
        """Call `admission.admit` for a message that comes without a channel. Direct reply-to is refused, as it needs a channel."""
        ttl_ms = admission.admit(properties, self.user, self.vhost.broker.limits.copies_max)
        if properties.reply_to == admission.DIRECT_REPLY_TO:
            raise ChannelError(PRECONDITION_FAILED, "fast reply consumer does not exist")
        return ttl_ms

    def publish(self, exchange: str, routing_key: str, properties: Properties, body: bytes | Buf) -> Publishing:
        """Check a message and return the object that publishes it. Raises ChannelError 404, 406."""
        self.may_publish(exchange)
        ttl_ms = self.admit(properties)
        self.may_use_topic("write", exchange, routing_key, *admission.copy_keys(properties.headers or {}))
        return Publishing(self.vhost, exchange, routing_key, properties, body, ttl_ms)

    # -- policies --------------------------------------------------------------------------------------------

    def set_policy(self, kind: str, policy: Policy) -> Steps:
        """Add or replace a policy. `kind` is POLICY or OPERATOR_POLICY. Raises ChannelError 406 if the virtual host has too many."""
        self._check_policymaker(kind)
        policing.check_room(self.vhost, kind, policy)
        return policing.set_policy(self.vhost, kind, policy)

    def clear_policy(self, kind: str, name: str) -> Steps:
        """Delete a policy that exists."""
        self._check_policymaker(kind)
        return policing.clear_policy(self.vhost, kind, name)

    def _check_policymaker(self, kind: str) -> None:
        tags = POLICY_TAGS[kind]
        if self.user is not None and not set(tags).intersection(self.user.tags):
            raise ChannelError(ACCESS_REFUSED, f"user '{self.user.name}' has none of the tags {', '.join(tags)}")


class Publishing:
    """A message that is published without a channel. `steps` is a job that brings it to its queues. Afterwards `route` says which queues
    these are, `refused` which of them are full, and `props` what consumers see of its properties.
    """

    def __init__(
        self, vhost: VHost, exchange: str, routing_key: str, properties: Properties, body: bytes | Buf, ttl_ms: int
    ) -> None:
        self.vhost = vhost
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        self.headers = properties.headers or {}
        self.body = body
        self.ttl_ms = ttl_ms
        self.props = b""
        self.route = Route("", "", [], False)
        self.refused: list[Queue] = []

    def steps(self) -> Iterator[object]:
        """Route the message, append it to its queues, and dead-letter it for full queues with reject-publish-dlx.

        Raises ChannelError 404, 406.
        """
        vhost, body = self.vhost, self.body
        encoded = self.properties.encode()
        key = tables.encode_shortstr(self.exchange) + tables.encode_shortstr(self.routing_key)
        self.route = vhost.remembered(key) or (yield from vhost.route_steps(key))
        if self.route.dynamic or "CC" in self.headers or "BCC" in self.headers:
            self.route = yield from vhost.message_route_steps(self.exchange, self.routing_key, self.properties)
        props = self.props = admission.as_stored(encoded, self.headers, self.route.queues)
        admission.check_size(props)
        self.route.traffic.add(1, self.route.count)
        yield from copies(self.route.queues, key, props, body, self.ttl_ms, self.refused)
        for queue in self.refused:
            yield from vhost.broker.dead_letters.refused(queue, key, props, body)


def refuse_default(exchange: str) -> None:
    """Raises ChannelError 403 for the default exchange. Nobody can declare it or change its bindings."""
    if exchange == "":
        raise ChannelError(ACCESS_REFUSED, "operation not permitted on the default exchange")


def exchange_name(name: str) -> str:
    """Return an exchange's name in paths and permissions, where the default exchange has a name of its own."""
    return "" if name == DEFAULT_EXCHANGE else name

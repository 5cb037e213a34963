"""What a user does in a virtual host: declare, bind, unbind, delete, purge, publish, set a policy. Each asks first whether the user may.

The rules of permission and admission stand here and in `admission.py`, once. AMQP methods (protocol/methods/) and HTTP requests (http/)
come here, with what they have read from their peers, and answer them; `VHost` does the work and asks nobody. Messages that are published
on a channel take the compiled way of `Channel.publish`, which shares `may_publish` and `admission.admit` with the one here.

What is done takes effect at once, or is returned as the steps of a job (broker/jobs.py); its definitions are durable later, and who
answers a peer waits for them (broker/changes.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from kvitto.base.errors import ACCESS_REFUSED, PRECONDITION_FAILED, ChannelError
from kvitto.broker import walls
from kvitto.broker.administration import admission, policing
from kvitto.broker.administration.auth import DEFAULT_EXCHANGE, Operation, User
from kvitto.broker.routing.exchange import ALTERNATE
from kvitto.broker.routing.route import Route
from kvitto.broker.transfers.copying import copies
from kvitto.broker.vhost import OPERATOR_POLICY, POLICY, generated_name
from kvitto.wire import tables
from kvitto.wire.properties import Properties

if TYPE_CHECKING:
    from kvitto.broker.administration.policies import Policy
    from kvitto.broker.administration.removal import Steps
    from kvitto.broker.queues.queue import Queue
    from kvitto.broker.routing.exchange import Exchange
    from kvitto.broker.vhost import VHost

Kind = Literal["queue", "exchange"]
OUTSIDER = object()
"""In place of a connection: who has none cannot use what is exclusive to one (405 RESOURCE_LOCKED)."""
POLICY_TAGS = {POLICY: ("administrator", "policymaker"), OPERATOR_POLICY: ("administrator",)}
"""Who may set and delete policies."""


class Operations:
    """The operations of one user in one virtual host. Cheap to make: one lasts as long as a request.

    `user`: None for the broker itself, which may do everything. `owner`: the connection that gets the exclusive queues which are
    declared, and may use those that it has. What the user may not do raises ChannelError 403.
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
        """The queue, and whether it is new. Without a name the broker makes one up. ChannelError 405, 406."""
        generated = name is None
        name = generated_name() if name is None else name
        self.authorise("configure", "queue", name)
        known = name in self.vhost.queues
        exchange = arguments.get("x-dead-letter-exchange")
        if isinstance(exchange, str) and not known:
            self.authorise("read", "queue", name)
            self.authorise("write", "exchange", exchange)
        queue = self.vhost.declare_queue(
            name, durable, exclusive, auto_delete, arguments, self.owner, generated=generated
        )
        return queue, not known

    def delete_queue(self, name: str, if_unused: bool, if_empty: bool) -> tuple[int, Steps]:
        """How many messages are ready, and the steps. To delete what is not there is fine. ChannelError 405, 406."""
        self.authorise("configure", "queue", name)
        if name not in self.vhost.queues:
            return 0, iter(())
        queue = self.vhost.queue(name, self.owner)
        return queue.ready, self.vhost.queue_deletion(queue, if_unused, if_empty)

    def purge_queue(self, name: str) -> tuple[int, Steps]:
        """How many messages go, and the steps. ChannelError 404, 405."""
        self.authorise("read", "queue", name)
        queue = self.vhost.queue(name, self.owner)
        found: tuple[int, Steps] = walls.within(queue, queue.purging)
        return found

    # -- exchanges -------------------------------------------------------------------------------------------

    def declare_exchange(
        self, name: str, kind: str, durable: bool, auto_delete: bool, internal: bool, arguments: dict[str, Any]
    ) -> bool:
        """Whether the exchange is new. ChannelError 405, 406."""
        refuse_default(name)
        self.authorise("configure", "exchange", name)
        known = name in self.vhost.exchanges
        alternate = arguments.get(ALTERNATE)
        if isinstance(alternate, str) and not known:
            self.authorise("read", "exchange", name)
            self.authorise("write", "exchange", alternate)
        self.vhost.declare_exchange(name, kind, durable, auto_delete, internal, arguments)
        return not known

    def delete_exchange(self, name: str, if_unused: bool) -> Steps:
        """To delete what is not there is fine. ChannelError 406."""
        self.authorise("configure", "exchange", name)
        return self.vhost.exchange_deletion(name, if_unused)

    # -- bindings --------------------------------------------------------------------------------------------

    def may_bind(self, source: str, kind: Kind, dest: str) -> None:
        """Whether the user may bind `dest`, a queue or an exchange, to the exchange `source`, and unbind it."""
        refuse_default(source)
        if kind == "exchange":
            refuse_default(dest)
        self.authorise("write", kind, dest)
        self.authorise("read", "exchange", source)

    def bind(self, source: str, kind: Kind, dest: str, routing_key: str, arguments: dict[str, Any]) -> None:
        """ChannelError 404, 405, 406."""
        self.may_bind(source, kind, dest)
        self.vhost.bind(source, self._dest(kind, dest), routing_key, arguments)

    def unbind(self, source: str, kind: Kind, dest: str, routing_key: str, arguments: dict[str, Any]) -> None:
        """What is not there is not bound: fine, as with RabbitMQ. Clients unbind what was deleted automatically. ChannelError 405."""
        self.may_bind(source, kind, dest)
        there = self.vhost.queues if kind == "queue" else self.vhost.exchanges
        if dest in there and source in self.vhost.exchanges:
            self.vhost.unbind(source, self._dest(kind, dest), routing_key, arguments)

    def _dest(self, kind: Kind, name: str) -> Queue | Exchange:
        return self.vhost.queue(name, self.owner) if kind == "queue" else self.vhost.exchange(name)

    # -- messages --------------------------------------------------------------------------------------------

    def may_publish(self, exchange: str) -> None:
        """ChannelError 403 for an internal exchange, too, and 404."""
        self.authorise("write", "exchange", exchange)
        if self.vhost.exchange(exchange).internal:
            text = f"cannot publish to internal exchange '{exchange}' in vhost '{self.vhost.name}'"
            raise ChannelError(ACCESS_REFUSED, text)

    def admit(self, properties: Properties) -> int:
        """As `admission.admit`, for a message that comes without a channel, and so can have no direct reply."""
        ttl_ms = admission.admit(properties, self.user, self.vhost.broker.limits.copies_max)
        if properties.reply_to == admission.DIRECT_REPLY_TO:
            raise ChannelError(PRECONDITION_FAILED, "fast reply consumer does not exist")
        return ttl_ms

    def publish(self, exchange: str, routing_key: str, properties: Properties, body: bytes) -> Publishing:
        """A message on its way. ChannelError 404, 406."""
        self.may_publish(exchange)
        return Publishing(self.vhost, exchange, routing_key, properties, body, self.admit(properties))

    # -- policies --------------------------------------------------------------------------------------------

    def set_policy(self, kind: str, policy: Policy) -> Steps:
        """Add or replace one. `kind`: POLICY or OPERATOR_POLICY."""
        self._check_policymaker(kind)
        return policing.set_policy(self.vhost, kind, policy)

    def clear_policy(self, kind: str, name: str) -> Steps:
        """Delete one, which is there."""
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
        self, vhost: VHost, exchange: str, routing_key: str, properties: Properties, body: bytes, ttl_ms: int
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
        """Route the message, append it to its queues, and dead-letter it for those that refuse it and say so. ChannelError 404, 406."""
        vhost, body = self.vhost, self.body
        props = self.props = admission.as_consumers_see(self.properties.encode(), self.headers)
        admission.check_size(props)
        key = tables.encode_shortstr(self.exchange) + tables.encode_shortstr(self.routing_key)
        self.route = vhost.remembered(key) or (yield from vhost.route_steps(key))
        if self.route.dynamic or "CC" in self.headers or "BCC" in self.headers:
            self.route = yield from vhost.message_route_steps(self.exchange, self.routing_key, self.properties)
        yield from copies(self.route.queues, key, props, body, self.ttl_ms, self.refused)
        for queue in self.refused:
            yield from vhost.broker.dead_letters.refused(queue, key, props, body)


def refuse_default(exchange: str) -> None:
    """ChannelError 403 for the default exchange, which is not declared and has no other bindings than its own."""
    if exchange == "":
        raise ChannelError(ACCESS_REFUSED, "operation not permitted on the default exchange")


def exchange_name(name: str) -> str:
    """The name of an exchange where the default exchange goes by a name of its own: in paths, as in permissions."""
    return "" if name == DEFAULT_EXCHANGE else name

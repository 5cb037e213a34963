"""/api/definitions: all definitions in one document, as RabbitMQ exports them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from kvitto.base.version import __version__
from kvitto.broker.administration.queue_types import CLASSIC, TYPE
from kvitto.broker.queues.queue import Queue
from kvitto.broker.routing.exchange import Exchange
from kvitto.broker.vhost import OPERATOR_POLICY, VHost
from kvitto.http import views
from kvitto.http.access import Access
from kvitto.http.api import Call, lasting
from kvitto.http.bindings import all_bindings
from kvitto.http.listing import array
from kvitto.http.nodes import API_LEVEL
from kvitto.http.request import Response, encode, plain
from kvitto.http.slices import Slices

Items = Iterator[dict[str, Any] | None]
"""None stands for an object that does not survive a restart: very many of those take time, too."""


def queues(vhost: VHost) -> Items:
    """Yield the queues that survive a restart: durable and not exclusive ones."""
    for queue in list(vhost.queues.values()):
        yield (
            None
            if not queue.log.durable
            else {
                "name": queue.name,
                "vhost": vhost.name,
                "durable": True,
                "auto_delete": queue.auto_delete,
                "arguments": _arguments(queue),
            }
        )


def _arguments(queue: Queue) -> dict[str, Any]:
    """Return the arguments of a queue. The type is among them if a declaration without one would now make another queue."""
    arguments: dict[str, Any] = plain(queue.arguments)
    if queue.vhost.default_queue_type != CLASSIC and arguments.get(TYPE) is None:
        return {**arguments, TYPE: CLASSIC}
    return arguments


def exchanges(vhost: VHost) -> Items:
    """Yield the exchanges that are not predefined."""
    for exchange in list(vhost.exchanges.values()):
        kept = exchange.durable and exchange.name and not exchange.name.startswith("amq.")
        yield {k: v for k, v in views.exchange(vhost, exchange).items() if k != "policy"} if kept else None


def bindings(vhost: VHost) -> Items:
    """Yield the bindings between objects that survive a restart. Those of the default exchange come with their queues."""
    for binding in all_bindings(vhost):
        if binding is None:
            yield None
            continue
        dest: Any = binding.dest
        kept = dest.durable if isinstance(dest, Exchange) else dest.log.durable
        if kept and binding.source.durable and binding.source.name:
            view = views.binding(vhost, binding)
            del view["properties_key"]
            yield view
        else:
            yield None


def policies(vhost: VHost) -> Items:
    return (views.policy(vhost, policy) for policy in list(vhost.policies.values()))


def parameters(vhost: VHost) -> Items:
    for _, (component, name), value in vhost.broker.parameters.list(vhost.name):
        yield {"component": component, "vhost": vhost.name, "name": name, "value": value}
    for policy in list(vhost.operator_policies.values()):
        yield {"component": OPERATOR_POLICY, "vhost": vhost.name, "name": policy.name, "value": policy.value()}


KINDS: dict[str, Callable[[VHost], Items]] = {
    "queues": queues,
    "exchanges": exchanges,
    "bindings": bindings,
    "policies": policies,
    "parameters": parameters,
}
HEAD = {
    "product_name": "Kvitto",
    "product_version": __version__,
    "rabbitmq_version": API_LEVEL,
    "rabbit_version": API_LEVEL,
}


def get_definitions(call: Call) -> Response:
    """Answer without virtual hosts that are being deleted: an import of the document would make them again in part."""
    broker = call.api.broker
    users = broker.users.list()
    vhosts = sorted((v for v in broker.vhosts.values() if not v.deleting), key=lambda vhost: vhost.name)
    names = {vhost.name for vhost in vhosts}
    permissions = (
        views.permission(user, *given)
        for user in users
        for given in sorted(user.permissions.items(), key=first)
        if given[0] in names
    )
    topics = (view for user in users for view in views.topic_permissions(user) if view["vhost"] in names)
    named = {"cluster_name": broker.cluster_name} if broker.cluster_name else {}
    global_parameters = sorted({**broker.parameters.globals, **named}.items())
    lists: dict[str, Iterable[dict[str, Any] | None]] = {
        "users": (views.user(user) for user in users),
        "vhosts": (views.vhost_definition(vhost) for vhost in vhosts),
        "permissions": permissions,
        "topic_permissions": topics,
        "global_parameters": ({"name": name, "value": value} for name, value in global_parameters),
        **{kind: chain.from_iterable(map(items, vhosts)) for kind, items in KINDS.items()},
    }
    return Response(pieces=document(call.api.slices, HEAD, lists))


def first(pair: tuple[str, Any]) -> str:
    return pair[0]


def get_definitions_of_vhost(call: Call) -> Response:
    """Answer without the name of the virtual host, so that the definitions can go into another one."""
    vhost = lasting(call.vhost())
    lists = {
        kind: (item and {key: value for key, value in item.items() if key != "vhost"} for item in items(vhost))
        for kind, items in KINDS.items()
    }
    return Response(pieces=document(call.api.slices, HEAD, lists))


async def document(
    slices: Slices, head: dict[str, Any], lists: Mapping[str, Iterable[dict[str, Any] | None]]
) -> AsyncIterator[bytes]:
    """Yield `head`, which is not empty, with a field for each list."""
    yield encode(head)[:-1]
    for name, items in lists.items():
        yield b"," + encode(name) + b":"
        async for piece in array(slices, items, lambda item: item):
            yield piece
    yield b"}"


ROUTES = (
    ("GET", "/api/definitions", Access.ADMINISTRATOR, get_definitions),
    ("GET", "/api/definitions/{vhost}", Access.ADMINISTRATOR, get_definitions_of_vhost),
    ("GET", "/api/all-configuration", Access.ADMINISTRATOR, get_definitions),
)

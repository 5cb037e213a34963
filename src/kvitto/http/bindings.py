"""/api/bindings: bindings from exchanges to queues and to other exchanges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from kvitto.broker.administration.operations import OUTSIDER, Kind, exchange_name
from kvitto.broker.queues.queue import Queue
from kvitto.broker.routing.exchange import Binding, Exchange
from kvitto.broker.vhost import VHost
from kvitto.http import fields, views
from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.listing import answer_list
from kvitto.http.request import NO_CONTENT, Response, answer, not_found

Found = tuple[VHost, Binding]


def all_bindings(vhost: VHost) -> Iterator[Binding | None]:
    """Yield all bindings. None stands for an exchange without any: very many of those take time, too."""
    for exchange in list(vhost.exchanges.values()):
        if exchange.unused:
            yield None
        else:
            yield from exchange.bindings()


async def list_bindings(call: Call) -> Response:
    found = (
        None if binding is None else (vhost, binding) for vhost in call.vhosts() for binding in all_bindings(vhost)
    )
    return await _list(call, found)


async def of_queue(call: Call) -> Response:
    queue = call.queue()
    return await _list(call, ((queue.vhost, b) for b in queue.vhost.bindings_to(queue)))


async def from_exchange(call: Call) -> Response:
    vhost = call.vhost()
    return await _list(call, ((vhost, b) for b in vhost.exchange(exchange_name(call.name)).bindings()))


async def to_exchange(call: Call) -> Response:
    vhost = call.vhost()
    exchange = vhost.exchange(exchange_name(call.name))
    return await _list(call, ((vhost, b) for b in vhost.bindings_to(exchange)))


async def between(call: Call) -> Response:
    vhost = call.vhost()
    source, dest = _ends(call, vhost)
    return await _list(call, ((vhost, b) for b in source.bindings_to(dest)))


async def _list(call: Call, found: Iterable[Found | None]) -> Response:
    return await answer_list(call, found, lambda pair: views.binding(*pair))


async def get_binding(call: Call) -> Response:
    vhost = call.vhost()
    return answer(views.binding(vhost, await _binding(call, *_ends(call, vhost))))


async def post_binding(call: Call) -> Response:
    body, operations = call.request.json(), call.operations()
    key, arguments = binding_of(body)
    source, dest = _ends(call, operations.vhost)
    await call.api.change(lambda: operations.bind(source.name, kind_of(dest), dest.name, key, arguments))
    made = views.properties_key(Binding(source, dest, key, arguments))
    location = "/".join(
        quote(part, safe="") for part in (dest.name, made)
    )  # the address is relative, as RabbitMQ's: clients parse it
    return Response(201, headers=(("Location", location),))


async def delete_binding(call: Call) -> Response:
    operations = call.operations()
    source, dest = _ends(call, operations.vhost)
    kind = kind_of(dest)
    operations.may_bind(source.name, kind, dest.name)
    binding = await _binding(call, source, dest)
    key, arguments = binding.routing_key, binding.arguments
    await call.api.change(lambda: operations.unbind(source.name, kind, dest.name, key, arguments))
    return NO_CONTENT


def binding_of(body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return routing key and arguments. Raise Problem 400."""
    key = fields.short(fields.text(body, "routing_key", ""), "routing key")
    return key, fields.table(body, "arguments")


def kind_of(dest: Queue | Exchange) -> Kind:
    return "exchange" if isinstance(dest, Exchange) else "queue"


def _ends(call: Call, vhost: VHost) -> tuple[Exchange, Queue | Exchange]:
    """Return the source and the destination that the path names. Raise ChannelError 404."""
    source = vhost.exchange(exchange_name(call.args["source"]))
    if "queue" in call.args:
        return source, vhost.queue(call.args["queue"], OUTSIDER if call.request.method != "GET" else None)
    return source, vhost.exchange(exchange_name(call.args["destination"]))


async def _binding(call: Call, source: Exchange, dest: Queue | Exchange) -> Binding:
    for binding in source.bindings_to(dest):
        if views.properties_key(binding) == call.args["key"]:
            return binding
        await call.api.slices.rest()
    raise not_found(f"there is no binding {call.args['key']!r} between these two")


TO_QUEUE = "/api/bindings/{vhost}/e/{source}/q/{queue}"
TO_EXCHANGE = "/api/bindings/{vhost}/e/{source}/e/{destination}"

ROUTES = (
    ("GET", "/api/bindings", Access.MANAGEMENT, list_bindings),
    ("GET", "/api/bindings/{vhost}", Access.MANAGEMENT, list_bindings),
    ("GET", TO_QUEUE, Access.MANAGEMENT, between),
    ("POST", TO_QUEUE, Access.MANAGEMENT, post_binding),
    ("GET", TO_EXCHANGE, Access.MANAGEMENT, between),
    ("POST", TO_EXCHANGE, Access.MANAGEMENT, post_binding),
    ("GET", TO_QUEUE + "/{key}", Access.MANAGEMENT, get_binding),
    ("DELETE", TO_QUEUE + "/{key}", Access.MANAGEMENT, delete_binding),
    ("GET", TO_EXCHANGE + "/{key}", Access.MANAGEMENT, get_binding),
    ("DELETE", TO_EXCHANGE + "/{key}", Access.MANAGEMENT, delete_binding),
    ("GET", "/api/queues/{vhost}/{name}/bindings", Access.MANAGEMENT, of_queue),
    ("GET", "/api/exchanges/{vhost}/{name}/bindings/source", Access.MANAGEMENT, from_exchange),
    ("GET", "/api/exchanges/{vhost}/{name}/bindings/destination", Access.MANAGEMENT, to_exchange),
)

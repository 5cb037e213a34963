"""/api/exchanges: look at, declare and delete exchanges, and publish to them."""

from __future__ import annotations

from kvitto.base.errors import ACCESS_REFUSED, ChannelError
from kvitto.http import fields, messages, views
from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.listing import answer_list
from kvitto.http.request import CREATED, NO_CONTENT, Response, answer, bad_request, not_found

DEFAULT = "amq.default"
"""How paths name the exchange that has no name."""


def exchange_name(path_part: str) -> str:
    return "" if path_part == DEFAULT else path_part


async def list_exchanges(call: Call) -> Response:
    found = ((v, exchange) for v in call.vhosts() for exchange in list(v.exchanges.values()))
    return await answer_list(call, found, lambda pair: views.exchange(*pair), lambda pair: pair[1].name)


def get_exchange(call: Call) -> Response:
    vhost = call.vhost()
    return answer(views.exchange(vhost, vhost.exchange(exchange_name(call.name))))


async def put_exchange(call: Call) -> Response:
    body, vhost, name = call.request.json(), call.own_vhost(), fields.declared_name(call.name, "exchange")
    kind = fields.text(body, "type", "direct")
    durable, auto_delete, internal = (fields.flag(body, flag) for flag in ("durable", "auto_delete", "internal"))
    arguments = fields.table(body, "arguments")
    if name == DEFAULT:
        raise ChannelError(ACCESS_REFUSED, "operation not permitted on the default exchange")
    call.authorise("configure", "exchange", name)
    known = name in vhost.exchanges
    alternate = arguments.get("alternate-exchange")
    if isinstance(alternate, str) and not known:
        call.authorise("read", "exchange", name)
        call.authorise("write", "exchange", alternate)
    await call.api.change(lambda: vhost.declare_exchange(name, kind, durable, auto_delete, internal, arguments))
    return NO_CONTENT if known else CREATED


async def delete_exchange(call: Call) -> Response:
    vhost, name = call.own_vhost(), exchange_name(call.name)
    if name not in vhost.exchanges:
        raise not_found(f"no exchange '{name}' in vhost '{vhost.name}'")
    if_unused = call.request.asks("if-unused")
    call.authorise("configure", "exchange", name)
    await call.api.perform(vhost.exchange_deletion(name, if_unused))
    return NO_CONTENT


async def publish(call: Call) -> Response:
    vhost, name = call.own_vhost(), exchange_name(call.name)
    exchange = vhost.exchange(name)
    call.authorise("write", "exchange", name)
    body = call.request.json()
    values = body.get("properties") or {}
    if not isinstance(values, dict):
        raise bad_request("properties must be an object")
    if exchange.internal:
        raise ChannelError(ACCESS_REFUSED, f"cannot publish to internal exchange '{name}' in vhost '{vhost.name}'")
    key = fields.short(fields.text(body, "routing_key"), "routing key")
    properties = messages.properties_of(values, call.user, call.api.broker.limits.copies_max)
    payload = await messages.payload_of(call.api.slices, body)
    message = messages.Outgoing(name, key, payload, properties)
    return answer({"routed": await messages.publish(call.api, vhost, message)})


ROUTES = (
    ("GET", "/api/exchanges", Access.MANAGEMENT, list_exchanges),
    ("GET", "/api/exchanges/{vhost}", Access.MANAGEMENT, list_exchanges),
    ("GET", "/api/exchanges/{vhost}/{name}", Access.MANAGEMENT, get_exchange),
    ("PUT", "/api/exchanges/{vhost}/{name}", Access.MANAGEMENT, put_exchange),
    ("DELETE", "/api/exchanges/{vhost}/{name}", Access.MANAGEMENT, delete_exchange),
    ("POST", "/api/exchanges/{vhost}/{name}/publish", Access.MANAGEMENT, publish),
)

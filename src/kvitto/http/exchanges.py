"""/api/exchanges: shows, declares and deletes exchanges, and publishes to them."""

from __future__ import annotations

from typing import Any

from kvitto.broker.administration.operations import Operations, exchange_name
from kvitto.http import fields, messages, shown
from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.listing import answer_list
from kvitto.http.request import CREATED, NO_CONTENT, Response, answer, bad_request, not_found
from kvitto.http.totals import count_published


async def list_exchanges(call: Call) -> Response:
    await count_published(call.api.slices, call.api.connections)
    found = ((v, exchange) for v in call.vhosts() for exchange in list(v.exchanges.values()))
    return await answer_list(call, found, lambda pair: shown.exchange(call, *pair), lambda pair: pair[1].name)


async def get_exchange(call: Call) -> Response:
    vhost = call.vhost()
    exchange = vhost.exchange(exchange_name(call.name))
    await count_published(call.api.slices, call.api.connections)
    return answer({**shown.exchange(call, vhost, exchange), "incoming": [], "outgoing": []})


async def put_exchange(call: Call) -> Response:
    body, operations = call.request.json(), call.operations()
    new = await call.api.change(lambda: declare(operations, call.name, body))
    return CREATED if new else NO_CONTENT


def declare(operations: Operations, name: str, body: dict[str, Any]) -> bool:
    """Declare an exchange from a body. Return whether it is new. Raise Problem 400, ChannelError 403, 405, 406."""
    name = exchange_name(fields.declared_name(name, "exchange"))
    kind = fields.text(body, "type", "direct")
    durable, auto_delete, internal = (fields.flag(body, flag) for flag in ("durable", "auto_delete", "internal"))
    return operations.declare_exchange(name, kind, durable, auto_delete, internal, fields.table(body, "arguments"))


async def delete_exchange(call: Call) -> Response:
    vhost, name = call.own_vhost(), exchange_name(call.name)
    if name not in vhost.exchanges:
        raise not_found(f"no exchange '{name}' in vhost '{vhost.name}'")
    await call.api.perform(call.operations().delete_exchange(name, call.request.asks("if-unused")))
    return NO_CONTENT


async def publish(call: Call) -> Response:
    operations, name = call.operations(), exchange_name(call.name)
    operations.vhost.exchange(name)
    operations.authorise("write", "exchange", name)
    operations.may_publish(name)
    body, slices = call.request.json(), call.api.slices
    if "messages" not in body:
        return answer(
            {"routed": await messages.publish(call.api, await messages.message_of(slices, operations, name, body))}
        )
    unknown = sorted(set(body) - {"messages"})
    if unknown:
        raise bad_request(f"{unknown[0]} belongs into each of the messages")
    batch = await messages.batch_of(slices, operations, name, body["messages"])
    outcomes = await messages.publish_all(call.api, batch)
    return answer({"results": [result(outcome) for outcome in outcomes]})


def result(outcome: messages.Outcome) -> dict[str, Any]:
    """Return the answer for one message of a batch."""
    refused = {} if outcome.error is None else {"refused": f"{outcome.error.code} {outcome.error.reply_text}"}
    return {"routed": outcome.routed, **refused}


ROUTES = (
    ("GET", "/api/exchanges", Access.MANAGEMENT, list_exchanges),
    ("GET", "/api/exchanges/{vhost}", Access.MANAGEMENT, list_exchanges),
    ("GET", "/api/exchanges/{vhost}/{name}", Access.MANAGEMENT, get_exchange),
    ("PUT", "/api/exchanges/{vhost}/{name}", Access.MANAGEMENT, put_exchange),
    ("DELETE", "/api/exchanges/{vhost}/{name}", Access.MANAGEMENT, delete_exchange),
    ("POST", "/api/exchanges/{vhost}/{name}/publish", Access.MANAGEMENT, publish, "http_body_max"),
)

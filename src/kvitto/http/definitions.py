"""/api/definitions: all that is declared, in one document, as RabbitMQ exports it."""

from __future__ import annotations

from typing import Any

from kvitto.base.version import __version__
from kvitto.broker.vhost import OPERATOR_POLICY, VHost
from kvitto.http import views
from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.bindings import all_bindings
from kvitto.http.request import Response, answer, plain

KINDS = ("queues", "exchanges", "bindings", "policies", "parameters")


def of_vhost(vhost: VHost) -> dict[str, list[dict[str, Any]]]:
    """What survives a restart: durable and not exclusive, and not there by itself."""
    queues = [
        {
            "name": queue.name,
            "vhost": vhost.name,
            "durable": True,
            "auto_delete": queue.auto_delete,
            "arguments": plain(queue.arguments),
        }
        for queue in vhost.queues.values()
        if queue.log.durable
    ]
    exchanges = [
        {key: value for key, value in views.exchange(vhost, exchange).items() if key != "policy"}
        for exchange in vhost.exchanges.values()
        if exchange.durable and exchange.name and not exchange.name.startswith("amq.")
    ]
    kept = {("queue", q["name"]) for q in queues} | {("exchange", e["name"]) for e in exchanges}
    kept |= {("exchange", name) for name in vhost.exchanges if name.startswith("amq.")}
    bindings = []
    for binding in all_bindings(vhost):
        view = views.binding(vhost, binding)
        del view["properties_key"]
        source, dest = ("exchange", view["source"]), (view["destination_type"], view["destination"])
        if source in kept and dest in kept:
            bindings.append(view)
    policies = [views.policy(vhost, policy) for policy in vhost.policies.values()]
    operator = [
        {"component": OPERATOR_POLICY, "vhost": vhost.name, "name": policy.name, "value": policy.value()}
        for policy in vhost.operator_policies.values()
    ]
    return {
        "queues": queues,
        "exchanges": exchanges,
        "bindings": bindings,
        "policies": policies,
        "parameters": operator,
    }


def get_definitions(call: Call) -> Response:
    broker = call.api.broker
    parts = [of_vhost(vhost) for vhost in broker.vhosts.values()]
    users = broker.users.list()
    return answer(
        {
            "product_name": "Kvitto",
            "product_version": __version__,
            "users": [views.user(user) for user in users],
            "vhosts": [views.vhost_definition(vhost) for vhost in broker.vhosts.values()],
            "permissions": [views.permission(user, vhost) for user in users for vhost in user.permissions],
            "topic_permissions": [],
            "global_parameters": [],
            **{kind: [item for part in parts for item in part[kind]] for kind in KINDS},
        }
    )


def get_definitions_of_vhost(call: Call) -> Response:
    """Without the names of the virtual host, so that it can go into another one."""
    found = of_vhost(call.vhost())
    for items in found.values():
        for item in items:
            del item["vhost"]
    return answer({"product_name": "Kvitto", "product_version": __version__, **found})


ROUTES = (
    ("GET", "/api/definitions", Access.ADMINISTRATOR, get_definitions),
    ("GET", "/api/definitions/{vhost}", Access.ADMINISTRATOR, get_definitions_of_vhost),
)

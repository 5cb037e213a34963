"""/api/policies and /api/operator-policies: settings for all queues and exchanges whose names match."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kvitto.broker.administration.operations import Operations
from kvitto.broker.administration.policies import PRIORITY_MAX, InvalidPolicy, Policy, policy
from kvitto.broker.vhost import OPERATOR_POLICY, POLICY
from kvitto.http import fields, views
from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.listing import answer_list
from kvitto.http.request import CREATED, NO_CONTENT, Response, answer, bad_request, not_found

Handler = Callable[[Call], Awaitable[Response]]


def lists(kind: str) -> Handler:
    async def list_policies(call: Call) -> Response:
        found = ((v, one) for v in call.vhosts() for one in list(v.policies_by_name(kind).values()))
        return await answer_list(call, found, lambda pair: views.policy(*pair), lambda pair: pair[1].name)

    return list_policies


def gets(kind: str) -> Callable[[Call], Response]:
    def get_policy(call: Call) -> Response:
        vhost = call.vhost()
        found = vhost.policies_by_name(kind).get(call.name)
        if found is None:
            raise not_found(f"there is no {WORDS[kind]} '{call.name}' in vhost '{vhost.name}'")
        return answer(views.policy(vhost, found))

    return get_policy


def puts(kind: str) -> Handler:
    async def put_policy(call: Call) -> Response:
        body, operations = call.request.json(), Operations(call.governed_vhost(), call.user)
        made = policy_of(kind, call.name, body)
        known = made.name in operations.vhost.policies_by_name(kind)
        await call.api.perform(operations.set_policy(kind, made))
        return NO_CONTENT if known else CREATED

    return put_policy


def policy_of(kind: str, name: str, body: dict[str, Any]) -> Policy:
    """Return the policy in a body. Raise Problem 400."""
    name = fields.new_name(name, WORDS[kind])
    given = {"pattern": fields.text(body, "pattern"), "definition": body.get("definition")}
    given["apply-to"] = fields.text(body, "apply-to", "all")
    given["priority"] = fields.number(body, "priority", -PRIORITY_MAX, PRIORITY_MAX, 0)
    try:
        return policy(name, given, kind == OPERATOR_POLICY)
    except InvalidPolicy as error:
        raise bad_request(str(error)) from None


def deletes(kind: str) -> Handler:
    async def delete_policy(call: Call) -> Response:
        operations = Operations(call.governed_vhost(), call.user)
        if call.name not in operations.vhost.policies_by_name(kind):
            raise not_found(f"there is no {WORDS[kind]} '{call.name}' in vhost '{operations.vhost.name}'")
        await call.api.perform(operations.clear_policy(kind, call.name))
        return NO_CONTENT

    return delete_policy


WORDS = {POLICY: "policy", OPERATOR_POLICY: "operator policy"}

ROUTES = tuple(
    route
    for kind, path, changes in (
        (POLICY, "/api/policies", Access.POLICYMAKER),
        (OPERATOR_POLICY, "/api/operator-policies", Access.ADMINISTRATOR),
    )
    for route in (
        ("GET", path, Access.MANAGEMENT, lists(kind)),
        ("GET", path + "/{vhost}", Access.MANAGEMENT, lists(kind)),
        ("GET", path + "/{vhost}/{name}", Access.MANAGEMENT, gets(kind)),
        ("PUT", path + "/{vhost}/{name}", changes, puts(kind)),
        ("DELETE", path + "/{vhost}/{name}", changes, deletes(kind)),
    )
)

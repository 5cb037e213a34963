"""/api/parameters, /api/global-parameters, /api/vhost-limits and /api/user-limits."""

from __future__ import annotations

from typing import Any

from kvitto.broker.administration.parameters import (
    LIMIT_MAX,
    OF_USERS,
    OF_VHOSTS,
    VHOST_LIMITS,
    InvalidParameter,
    nearest,
)
from kvitto.broker.vhost import OPERATOR_POLICY, POLICY
from kvitto.http import fields
from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.listing import answer_list, as_it_is
from kvitto.http.request import CREATED, NO_CONTENT, Response, answer, bad_request, not_found
from kvitto.http.vhosts import user_named

OWN_PATHS = {
    POLICY: "/api/policies",
    OPERATOR_POLICY: "/api/operator-policies",
    VHOST_LIMITS: "/api/vhost-limits",
}
"""Components whose objects have paths of their own, with checks and rights of their own."""


# -- of virtual hosts ----------------------------------------------------------------------------------------


async def list_parameters(call: Call) -> Response:
    wanted = call.args.get("component")
    found = (
        {"vhost": vhost.name, "component": component, "name": name, "value": value}
        for vhost in call.vhosts()
        for _, (component, name), value in call.api.broker.parameters.list(vhost.name)
        if wanted in (None, component)
    )
    return await answer_list(call, found, as_it_is)


def get_parameter(call: Call) -> Response:
    vhost, component = call.vhost().name, call.args["component"]
    value = call.api.broker.parameters.get(vhost, component, call.name)
    if value is None:
        raise _unknown(call)
    return answer({"vhost": vhost, "component": component, "name": call.name, "value": value})


async def put_parameter(call: Call) -> Response:
    body, vhost, parameters = call.request.json(), call.governed_vhost().name, call.api.broker.parameters
    component, name = call.args["component"], fields.new_name(call.name, "parameter")
    value = body.get("value")
    known = parameters.get(vhost, component, name) is not None
    _refuse_other_paths(component)
    try:
        fields.plain_json(value)
        parameters.check(vhost, component, name, value)
    except InvalidParameter as error:
        raise bad_request(str(error)) from None
    await call.api.change(lambda: parameters.set(vhost, component, name, value))
    return NO_CONTENT if known else CREATED


async def delete_parameter(call: Call) -> Response:
    vhost, parameters = call.governed_vhost().name, call.api.broker.parameters
    _refuse_other_paths(call.args["component"])
    if not await call.api.change(lambda: parameters.clear(vhost, call.args["component"], call.name)):
        raise _unknown(call)
    return NO_CONTENT


def _refuse_other_paths(component: str) -> None:
    if component in OWN_PATHS:
        raise bad_request(f"use {OWN_PATHS[component]} for component '{component}'")


def _unknown(call: Call) -> Exception:
    where = f"component '{call.args['component']}' in vhost '{call.args['vhost']}'"
    return not_found(f"there is no parameter '{call.name}' of {where}")


# -- global --------------------------------------------------------------------------------------------------


def _globals(call: Call) -> dict[str, Any]:
    """Return all of them. The name of the cluster is one, as with RabbitMQ."""
    broker = call.api.broker
    named = {"cluster_name": broker.cluster_name} if broker.cluster_name else {}
    return {**broker.parameters.globals, **named}


async def list_globals(call: Call) -> Response:
    found = ({"name": name, "value": value} for name, value in sorted(_globals(call).items()))
    return await answer_list(call, found, as_it_is)


def get_global(call: Call) -> Response:
    found = _globals(call)
    if call.name not in found:
        raise not_found(f"there is no global parameter '{call.name}'")
    return answer({"name": call.name, "value": found[call.name]})


async def put_global(call: Call) -> Response:
    name, value, broker = fields.new_name(call.name, "parameter"), call.request.json().get("value"), call.api.broker
    if value is None:
        raise bad_request("value is missing")
    fields.plain_json(value)
    known = name in _globals(call)
    if name == "cluster_name":
        new = fields.new_name(fields.text({"value": value}, "value"), "cluster")
        if not new:
            raise bad_request("value is empty")
        await call.api.change(lambda: broker.set_cluster_name(new))
    else:
        await call.api.change(lambda: broker.parameters.set_global(name, value))
    return NO_CONTENT if known else CREATED


async def delete_global(call: Call) -> Response:
    broker = call.api.broker
    if call.name == "cluster_name":
        raise bad_request("the name of the cluster can be changed, not deleted")
    if not await call.api.change(lambda: broker.parameters.clear_global(call.name)):
        raise not_found(f"there is no global parameter '{call.name}'")
    return NO_CONTENT


# -- limits --------------------------------------------------------------------------------------------------


def _most(call: Call, names: tuple[str, ...]) -> int:
    """Return the limit in the body, under a name that is one of these. Raise Problem 400."""
    if call.name not in names:
        raise bad_request(f"there is no limit '{call.name}'{nearest(call.name, names)}")
    body = call.request.json()
    if "value" not in body:
        raise bad_request("value is missing")
    return fields.number(body, "value", -LIMIT_MAX, LIMIT_MAX, 0)


async def list_vhost_limits(call: Call) -> Response:
    parameters = call.api.broker.parameters
    found = ({"vhost": v.name, "value": limits} for v in call.vhosts() if (limits := parameters.limits_of(v.name)))
    return await answer_list(call, found, as_it_is)


async def put_vhost_limit(call: Call) -> Response:
    vhost, most = call.vhost().name, _most(call, OF_VHOSTS)
    await call.api.change(lambda: call.api.broker.parameters.set_limit(vhost, call.name, most))
    return NO_CONTENT


async def delete_vhost_limit(call: Call) -> Response:
    vhost = call.vhost().name
    if not await call.api.change(lambda: call.api.broker.parameters.set_limit(vhost, call.name, None)):
        raise not_found(f"vhost '{vhost}' has no limit '{call.name}'")
    return NO_CONTENT


async def list_user_limits(call: Call) -> Response:
    users = [user_named(call, call.args["user"])] if "user" in call.args else call.api.broker.users.list()
    found = ({"user": user.name, "value": user.limits} for user in users if user.limits)
    return await answer_list(call, found, as_it_is)


async def put_user_limit(call: Call) -> Response:
    user, most = user_named(call, call.args["user"]), _most(call, OF_USERS)
    limits = {**user.limits, call.name: most}
    await call.api.change(lambda: call.api.broker.users.set_limits(user.name, limits))
    return NO_CONTENT


async def delete_user_limit(call: Call) -> Response:
    user = user_named(call, call.args["user"])
    if call.name not in user.limits:
        raise not_found(f"user '{user.name}' has no limit '{call.name}'")
    limits = {name: most for name, most in user.limits.items() if name != call.name}
    await call.api.change(lambda: call.api.broker.users.set_limits(user.name, limits))
    return NO_CONTENT


OF_VHOST, OF_USER = "/api/vhost-limits/{vhost}", "/api/user-limits/{user}"
PARAMETER, GLOBAL = "/api/parameters/{component}/{vhost}/{name}", "/api/global-parameters/{name}"
ROUTES = (
    ("GET", "/api/parameters", Access.POLICYMAKER, list_parameters),
    ("GET", "/api/parameters/{component}", Access.POLICYMAKER, list_parameters),
    ("GET", "/api/parameters/{component}/{vhost}", Access.POLICYMAKER, list_parameters),
    ("GET", PARAMETER, Access.POLICYMAKER, get_parameter),
    ("PUT", PARAMETER, Access.POLICYMAKER, put_parameter),
    ("DELETE", PARAMETER, Access.POLICYMAKER, delete_parameter),
    ("GET", "/api/global-parameters", Access.POLICYMAKER, list_globals),
    ("GET", GLOBAL, Access.POLICYMAKER, get_global),
    ("PUT", GLOBAL, Access.ADMINISTRATOR, put_global),
    ("DELETE", GLOBAL, Access.ADMINISTRATOR, delete_global),
    ("GET", "/api/vhost-limits", Access.MANAGEMENT, list_vhost_limits),
    ("GET", OF_VHOST, Access.MANAGEMENT, list_vhost_limits),
    ("PUT", OF_VHOST + "/{name}", Access.ADMINISTRATOR, put_vhost_limit),
    ("DELETE", OF_VHOST + "/{name}", Access.ADMINISTRATOR, delete_vhost_limit),
    ("GET", "/api/user-limits", Access.ADMINISTRATOR, list_user_limits),
    ("GET", OF_USER, Access.ADMINISTRATOR, list_user_limits),
    ("PUT", OF_USER + "/{name}", Access.ADMINISTRATOR, put_user_limit),
    ("DELETE", OF_USER + "/{name}", Access.ADMINISTRATOR, delete_user_limit),
)

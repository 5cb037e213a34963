"""/api/vhosts and /api/permissions: virtual hosts, and the permissions of users in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from kvitto.base.errors import CONNECTION_FORCED, ConnectionError_
from kvitto.base.limits import KIB
from kvitto.broker.administration import removal
from kvitto.broker.administration.auth import User, Users
from kvitto.broker.broker import Broker
from kvitto.broker.jobs import Cost
from kvitto.broker.vhost import VHost
from kvitto.broker.vhost_settings import QUEUE_TYPES, VHostSettings
from kvitto.http import fields, shown, totals, views
from kvitto.http.access import Access
from kvitto.http.api import Api, Call, lasting
from kvitto.http.counts import Row
from kvitto.http.listing import answer_list
from kvitto.http.request import CREATED, NO_CONTENT, Problem, Response, answer, bad_request, not_found

DESCRIPTION_MAX = 4 * KIB
"""Bytes."""
CLOSE = 60
"""The cost of closing a connection, in the units of jobs.PIECE."""


async def list_vhosts(call: Call) -> Response:
    await totals.count_published(call.api.slices, call.api.connections)
    found = [(vhost, await _sums(call, vhost)) for vhost in call.vhosts()]
    return await answer_list(call, found, lambda pair: shown.vhost(call, *pair), lambda pair: pair[0].name)


async def get_vhost(call: Call) -> Response:
    vhost = call.vhost()
    await totals.count_published(call.api.slices, call.api.connections)
    return answer(shown.vhost(call, vhost, await _sums(call, vhost)))


async def _sums(call: Call, vhost: VHost) -> Row:
    return (await totals.of_vhost(call.api.slices, vhost)).row


async def put_vhost(call: Call) -> Response:
    body = call.request.json()
    new = await call.api.change(lambda: declare(call.api.broker, call.user, call.args["vhost"], body))
    return CREATED if new else NO_CONTENT


def declare(broker: Broker, creator: User, name: str, body: dict[str, Any]) -> bool:
    """Add or change a virtual host. Return whether it is new. The creator gets all permissions in it. Raise Problem 400.

    As with RabbitMQ, an existing one keeps its queue type and tracing if they are not given, and loses its description
    and tags.
    """
    name = fields.new_name(name, "vhost")
    known = broker.vhosts.get(name)
    if known is not None and known.deleting:
        raise bad_request(f"vhost '{name}' is being deleted: try again")
    broker.add_vhost(name, _settings(body, VHostSettings() if known is None else known.settings))
    if known is None:
        broker.users.set_permission(creator.name, name, ".*", ".*", ".*")
    return known is None


def _settings(body: dict[str, Any], before: VHostSettings) -> VHostSettings:
    """Read the settings. Raise Problem 400."""
    description = fields.short(fields.text(body, "description", ""), "description", DESCRIPTION_MAX)
    kind = before.default_queue_type
    if body.get("default_queue_type") not in (None, "", "undefined"):
        kind = fields.text(body, "default_queue_type")
        if kind not in QUEUE_TYPES:
            raise bad_request(f"default_queue_type must be one of {', '.join(QUEUE_TYPES)}")
    tags = fields.names(body, "tags") if body.get("tags") is not None else ()
    tracing = fields.flag(body, "tracing", before.tracing)
    protected = fields.flag(body, "protected_from_deletion", before.protected)
    return VHostSettings(description, tuple(tags), kind, tracing, protected)


async def delete_vhost(call: Call) -> Response:
    """Delete a virtual host with everything in it. Its connections are closed first."""
    vhost, broker = call.vhost(), call.api.broker
    if vhost.settings.protected:
        reason = (
            f"vhost '{vhost.name}' is protected from deletion: DELETE /api/vhosts/.../deletion/protection ends that"
        )
        raise Problem(412, "precondition_failed", reason)
    if vhost.deleting:
        raise bad_request(f"vhost '{vhost.name}' is being deleted already")
    if len([v for v in broker.vhosts.values() if not v.deleting]) == 1:
        raise bad_request("this is the last vhost; a broker has at least one")
    await call.api.perform(chain(close_connections(call.api, vhost), removal.delete_vhost(broker, vhost)))
    return NO_CONTENT


async def protect_vhost(call: Call) -> Response:
    await _protect(call, True)
    return NO_CONTENT


async def unprotect_vhost(call: Call) -> Response:
    await _protect(call, False)
    return NO_CONTENT


async def _protect(call: Call, protected: bool) -> None:
    vhost = lasting(call.vhost())
    settings = replace(vhost.settings, protected=protected)
    await call.api.change(lambda: call.api.broker.add_vhost(vhost.name, settings))


def close_connections(api: Api, vhost: VHost) -> Iterator[None]:
    """Close all connections to a virtual host, some in each piece. From the first piece on no client can connect to it."""
    removal.begin(vhost)  # an auto-delete queue goes when its last connection is closed
    cost = Cost()
    for connection in list(api.connections):
        if connection.vhost is vhost:
            connection.close(ConnectionError_(CONNECTION_FORCED, f"vhost '{vhost.name}' is deleted"))
            if cost.spend(CLOSE):
                yield


# -- permissions ---------------------------------------------------------------------------------------------


async def list_permissions(call: Call) -> Response:
    return await _list(call, call.api.broker.users.list())


async def permissions_of_user(call: Call) -> Response:
    return await _list(call, [user_named(call, call.name)])


async def permissions_in_vhost(call: Call) -> Response:
    vhost = call.vhost().name
    users = call.api.broker.users.list()
    found = ((user, vhost, user.permissions[vhost]) for user in users if user.may_open(vhost))
    return await answer_list(call, found, lambda one: views.permission(*one))


async def _list(call: Call, users: Iterable[User]) -> Response:
    found = ((user, vhost, given) for user in users for vhost, given in list(user.permissions.items()))
    return await answer_list(call, found, lambda one: views.permission(*one))


def get_permission(call: Call) -> Response:
    user, vhost = _holder(call), call.args["vhost"]
    return answer(views.permission(user, vhost, user.permissions[vhost]))


async def put_permission(call: Call) -> Response:
    body, vhost, user = call.request.json(), call.vhost(), user_named(call, call.args["user"])
    new = await call.api.change(lambda: grant(call.api.broker.users, user, vhost.name, body))
    return CREATED if new else NO_CONTENT


def grant(users: Users, user: User, vhost: str, body: dict[str, Any]) -> bool:
    """Give a user the permissions in a body. Return whether it had none in the virtual host. Raise Problem 400."""
    known = user.may_open(vhost)
    try:
        users.set_permission(user.name, vhost, *(fields.text(body, name) for name in ("configure", "write", "read")))
    except ValueError as error:
        raise bad_request(str(error)) from None
    return not known


async def delete_permission(call: Call) -> Response:
    user, vhost = _holder(call), call.args["vhost"]
    await call.api.change(lambda: call.api.broker.users.clear_permission(user.name, vhost))
    return NO_CONTENT


def user_named(call: Call, name: str) -> User:
    """Return the user. Raise Problem 404."""
    user = call.api.broker.users.get(name)
    if user is None:
        raise not_found(f"there is no user '{name}'")
    return user


def _holder(call: Call) -> User:
    """Return the user in the path, who has permissions in the path's virtual host. Raise Problem 404."""
    vhost, user = call.vhost().name, user_named(call, call.args["user"])
    if not user.may_open(vhost):
        raise not_found(f"user '{user.name}' has no permissions in vhost '{vhost}'")
    return user


PROTECTION = "/api/vhosts/{vhost}/deletion/protection"

ROUTES = (
    ("GET", "/api/vhosts", Access.MANAGEMENT, list_vhosts),
    ("GET", "/api/vhosts/{vhost}", Access.MANAGEMENT, get_vhost),
    ("PUT", "/api/vhosts/{vhost}", Access.ADMINISTRATOR, put_vhost),
    ("DELETE", "/api/vhosts/{vhost}", Access.ADMINISTRATOR, delete_vhost),
    ("POST", PROTECTION, Access.ADMINISTRATOR, protect_vhost),
    ("DELETE", PROTECTION, Access.ADMINISTRATOR, unprotect_vhost),
    ("GET", "/api/vhosts/{vhost}/permissions", Access.ADMINISTRATOR, permissions_in_vhost),
    ("GET", "/api/permissions", Access.ADMINISTRATOR, list_permissions),
    ("GET", "/api/permissions/{vhost}", Access.ADMINISTRATOR, permissions_in_vhost),
    ("GET", "/api/permissions/{vhost}/{user}", Access.ADMINISTRATOR, get_permission),
    ("PUT", "/api/permissions/{vhost}/{user}", Access.ADMINISTRATOR, put_permission),
    ("DELETE", "/api/permissions/{vhost}/{user}", Access.ADMINISTRATOR, delete_permission),
    ("GET", "/api/users/{name}/permissions", Access.ADMINISTRATOR, permissions_of_user),
)

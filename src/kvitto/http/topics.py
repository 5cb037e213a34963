"""/api/topic-permissions: which routing keys of topic exchanges users may publish with and bind with."""

from __future__ import annotations

from collections.abc import Iterable

from kvitto.broker.administration.auth import User
from kvitto.http import fields, views
from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.listing import answer_list, as_it_is
from kvitto.http.request import CREATED, NO_CONTENT, Response, answer, bad_request, not_found
from kvitto.http.vhosts import user_named


async def list_all(call: Call) -> Response:
    return await _list(call, call.api.broker.users.list(), None)


async def of_vhost(call: Call) -> Response:
    return await _list(call, call.api.broker.users.list(), call.vhost().name)


async def of_user(call: Call) -> Response:
    return await _list(call, [user_named(call, call.name)], None)


async def _list(call: Call, users: Iterable[User], vhost: str | None) -> Response:
    return await answer_list(call, (view for user in users for view in views.topic_permissions(user, vhost)), as_it_is)


def get_permissions(call: Call) -> Response:
    """Answer with a list: a user may have an entry for each exchange."""
    vhost, user = call.vhost().name, user_named(call, call.args["user"])
    found = views.topic_permissions(user, vhost)
    if "exchange" in call.args:
        found = [view for view in found if view["exchange"] == call.args["exchange"]]
    if not found:
        raise not_found(f"user '{user.name}' has no such topic permissions in vhost '{vhost}'")
    return answer(found)


async def put_permission(call: Call) -> Response:
    body, vhost, user = call.request.json(), call.vhost(), user_named(call, call.args["user"])
    exchange = fields.new_name(fields.text(body, "exchange"), "exchange")
    write, read = fields.text(body, "write"), fields.text(body, "read")
    known = exchange in user.topics.get(vhost.name, {})
    users = call.api.broker.users
    try:
        await call.api.change(lambda: users.set_topic_permission(user.name, vhost.name, exchange, write, read))
    except ValueError as error:
        raise bad_request(str(error)) from None
    return NO_CONTENT if known else CREATED


async def delete_permissions(call: Call) -> Response:
    vhost, user = call.vhost().name, user_named(call, call.args["user"])
    exchange = call.args.get("exchange")
    users = call.api.broker.users
    if not await call.api.change(lambda: users.clear_topic_permissions(user.name, vhost, exchange)):
        raise not_found(f"user '{user.name}' has no such topic permissions in vhost '{vhost}'")
    return NO_CONTENT


OF_USER = "/api/topic-permissions/{vhost}/{user}"
ROUTES = (
    ("GET", "/api/topic-permissions", Access.ADMINISTRATOR, list_all),
    ("GET", "/api/topic-permissions/{vhost}", Access.ADMINISTRATOR, of_vhost),
    ("GET", "/api/vhosts/{vhost}/topic-permissions", Access.ADMINISTRATOR, of_vhost),
    ("GET", "/api/users/{name}/topic-permissions", Access.ADMINISTRATOR, of_user),
    ("GET", OF_USER, Access.ADMINISTRATOR, get_permissions),
    ("PUT", OF_USER, Access.ADMINISTRATOR, put_permission),
    ("DELETE", OF_USER, Access.ADMINISTRATOR, delete_permissions),
    ("GET", OF_USER + "/{exchange}", Access.ADMINISTRATOR, get_permissions),
    ("DELETE", OF_USER + "/{exchange}", Access.ADMINISTRATOR, delete_permissions),
)

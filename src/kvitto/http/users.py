"""/api/users and /api/whoami: the users who may log in. Passwords are never shown; administrators see their hashes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvitto.base.errors import CONNECTION_FORCED, ConnectionError_
from kvitto.base.limits import PASSWORD_MAX
from kvitto.broker.administration.auth import Hash, User, Users
from kvitto.broker.administration.foreign_hashes import UnusableHash
from kvitto.broker.jobs import Cost
from kvitto.http import fields, views
from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.listing import answer_list
from kvitto.http.request import CREATED, NO_CONTENT, Response, answer, bad_request
from kvitto.http.vhosts import user_named

DELETE = 30
"""The cost of deleting a user, in the units of jobs.PIECE."""


def whoami(call: Call) -> Response:
    user = call.user
    return answer({"name": user.name, "tags": [*user.tags], "is_internal_user": True})


async def list_users(call: Call) -> Response:
    return await answer_list(call, call.api.broker.users.list(), views.user, lambda user: user.name)


async def without_permissions(call: Call) -> Response:
    found = [user for user in call.api.broker.users.list() if not user.permissions]
    return await answer_list(call, found, views.user)


def get_user(call: Call) -> Response:
    return answer(views.user(user_named(call, call.name)))


async def put_user(call: Call) -> Response:
    """Add or change a user. A new one needs a password or a password_hash, which is empty for login by certificate. An
    existing one keeps values that are not given."""
    users = call.api.broker.users
    given = user_of(users, call.name, call.request.json())
    hashed = await asyncio.to_thread(users.hash, given.password) if given.password else ""
    try:
        new = await call.api.change(lambda: declare(users, given, hashed))
    except ValueError as error:
        raise bad_request(str(error)) from None
    return CREATED if new else NO_CONTENT


@dataclass(frozen=True, slots=True)
class Given:
    """The values in a body. `password`: None for a user without one, "" to keep the existing one. `tags`: None to keep them.
    `hash`: one that is given in place of a password."""

    name: str
    password: str | None
    tags: list[str] | None
    hash: Hash | None = None


def user_of(users: Users, name: str, body: dict[str, Any]) -> Given:
    """Read the values of a user. Raise Problem 400."""
    name = fields.new_name(name, "user")
    known = name in users
    tags = fields.names(body, "tags") if "tags" in body or not known else None
    without = body.get("password_hash") == ""
    if "password_hash" in body and "password" in body:
        raise bad_request("give a password or a password_hash, not both")
    if "password_hash" in body and not without:
        return Given(name, "", tags, _hash_of(users, body))
    password = None if without else fields.text(body, "password", "" if known else None)
    fields.short(password or "", "password", PASSWORD_MAX)
    if password == "" and ("password" in body or not known):
        raise bad_request("the password is empty")
    return Given(name, password, tags)


def _hash_of(users: Users, body: dict[str, Any]) -> Hash:
    text = fields.short(fields.text(body, "password_hash"), "password_hash", PASSWORD_MAX)
    try:
        given = Hash.of(text, fields.text(body, "hashing_algorithm", ""))
        given.check(users.foreign_hashes)
    except UnusableHash as error:
        raise bad_request(str(error)) from None
    return given


def declare(users: Users, given: Given, hashed: str) -> bool:
    """Add or change a user. Return whether it is new. `hashed` is the hash of the password, if there is one. Raise ValueError."""
    new = given.name not in users
    if given.hash is not None and new:
        users.add_with_hash(given.name, given.hash, given.tags or (), {})
    elif given.hash is not None:
        users.set_hash(given.name, given.hash)
    elif new:
        users.add(given.name, given.password, given.tags or (), hashed)
    elif given.password != "":
        users.set_password(given.name, given.password, hashed)
    if given.tags is not None and not new:
        users.set_tags(given.name, given.tags)
    return new


async def delete_user(call: Call) -> Response:
    await _delete(call, [user_named(call, call.name)])
    return NO_CONTENT


async def delete_users(call: Call) -> Response:
    """Delete all named users, or none if one of them does not exist."""
    names = dict.fromkeys(fields.names(call.request.json(), "users"))
    users = call.api.broker.users
    for name in names:
        if name not in users:
            raise bad_request(f"there is no user '{name}'")
    await _delete(call, [user_named(call, name) for name in names])
    return NO_CONTENT


def _deletion(all_users: Users, going: list[User]) -> Iterator[None]:
    cost = Cost()
    for user in going:
        if all_users.get(user.name) is user:  # another request may have deleted it meanwhile
            all_users.delete(user.name)
        if cost.spend(DELETE):
            yield


async def _delete(call: Call, users: list[User]) -> None:
    """Delete users. First they cannot log in any more, then their connections are closed: there may be ten thousand."""
    going = set(users)
    await call.api.perform(_deletion(call.api.broker.users, users))
    for connection in list(call.api.host.hub.connections):
        if connection.user in going:
            connection.close(ConnectionError_(CONNECTION_FORCED, f"user '{connection.user.name}' was deleted"))
            call.api.host.schedule()
        await call.api.slices.rest()


ROUTES = (
    ("GET", "/api/whoami", Access.MANAGEMENT, whoami),
    ("GET", "/api/users", Access.ADMINISTRATOR, list_users),
    ("GET", "/api/users/without-permissions", Access.ADMINISTRATOR, without_permissions),
    ("POST", "/api/users/bulk-delete", Access.ADMINISTRATOR, delete_users),
    ("GET", "/api/users/{name}", Access.ADMINISTRATOR, get_user),
    ("PUT", "/api/users/{name}", Access.ADMINISTRATOR, put_user),
    ("DELETE", "/api/users/{name}", Access.ADMINISTRATOR, delete_user),
)

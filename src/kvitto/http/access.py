"""Checks who may call a route. The first login costs a slow hash, which runs in a thread; refusals after many failures
are delayed."""

from __future__ import annotations

import logging
from enum import Enum

from kvitto.broker.administration.auth import Attempt, User
from kvitto.broker.administration.operations import POLICY_TAGS
from kvitto.broker.vhost import POLICY
from kvitto.http.api import Api
from kvitto.http.request import Problem, Request, not_authorised

log = logging.getLogger("kvitto.http")

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class Access(Enum):
    """What a route requires of its caller; tags are RabbitMQ's."""

    ANYBODY = ()
    LOOPBACK = ("local",)
    MANAGEMENT = ("administrator", "monitoring", "policymaker", "management")
    MONITORING = ("administrator", "monitoring")
    POLICYMAKER = POLICY_TAGS[POLICY]
    ADMINISTRATOR = ("administrator",)


class Door:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def admit(self, request: Request, access: Access) -> User | None:
        """Return the user, or None if the route needs none. Raise Problem 401 or 403."""
        if access is Access.ANYBODY or (access is Access.LOOPBACK and request.loopback):
            return None
        user = await self._login(request)
        self.check(user, access)
        return user

    def check(self, user: User | None, access: Access) -> None:
        """Raise Problem 401 if the user has no access, or has lost it: the body of a request may take half a minute to arrive."""
        if user is None:
            return
        if self._api.broker.users.get(user.name) is not user:
            raise not_authorised(f"user '{user.name}' has been deleted")
        wanted = (Access.MONITORING if access is Access.LOOPBACK else access).value
        if not set(wanted).intersection(user.tags):
            raise not_authorised(f"user '{user.name}' has none of the tags {', '.join(wanted)}")

    async def _login(self, request: Request) -> User:
        given = request.credentials()
        if given is None:
            raise not_authorised("this needs a login: send an Authorization header of type Basic")
        users = self._api.broker.users
        name, password = given
        attempt = Attempt(users, name, password, request.address, request.loopback)
        user = attempt.check() if attempt.is_remembered else await self._api.host.logins.check(attempt)
        found = users.get(name)
        self._api.broker.attempts["http"].count(found is not None and found is user)
        if found is None or found is not user:
            log.warning("%s: login of user %r refused", request.address, name)
            raise not_authorised(
                f"login of user '{name}' refused: wrong name or password, or guest from another machine"
            )
        return found


def refuse_forgery(request: Request, forms: bool = False) -> None:
    """Raise Problem unless a write comes from a program, or from a page of our own: browsers add remembered passwords
    by themselves.

    Without asking, a page of another origin can send only "simple" requests: POST with a form's content type or none.
    Everything else needs our consent (CORS), which is never given. A route that takes `forms` relies on what all browsers
    say of where a form comes from: the origin, and nowadays Sec-Fetch-Site, which no page can change.
    """
    if request.method in SAFE_METHODS:
        return
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise Problem(403, "forbidden", f"no writing from pages of {origin}")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if forms and kind == "multipart/form-data":
        if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise Problem(403, "forbidden", "no writing from pages of another origin")
        if origin is not None or "referer" not in request.headers:
            return
    if request.method == "POST" and kind != "application/json" and "x-requested-with" not in request.headers:
        raise Problem(415, "unsupported_media_type", "send POST with the header content-type: application/json")

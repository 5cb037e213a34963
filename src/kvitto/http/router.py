"""Finds the handler for a method and a path. Each module of handlers has a table ROUTES; this module combines them.

A line of the table has the method, the pattern of the path, who may call it, the handler, the name of the limit for its body if that
is not the usual one, and whether it gets the body as bytes. `server.py` calls `Router.find`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

from kvitto.base.limits import Limits
from kvitto.http import (
    backups,
    bindings,
    cluster,
    connections,
    definitions,
    delayed,
    exchanges,
    health,
    imports,
    metrics,
    nodes,
    parameters,
    policies,
    queues,
    settings,
    shovels,
    topics,
    unacked,
    upkeep,
    users,
    vhosts,
)
from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.request import Problem, Response, bad_request, not_found

Handler = Callable[[Call], Response | Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    access: Access
    handler: Handler
    limit: str = "http_document_max"
    """The name in `Limits` of the maximum number of bytes of the body."""
    raw: bool = False
    """Whether the handler gets the body as bytes, which may also be a form with a file."""

    def body_max(self, allowed: Limits) -> int:
        """Return the maximum number of bytes of the body."""
        most: int = getattr(allowed, self.limit)
        return most


class Router:
    """Patterns like /api/queues/{vhost}/{name}. A name in braces stands for one part of the path, never an empty one."""

    def __init__(self) -> None:
        self._by_length: dict[int, dict[tuple[str, ...], dict[str, Route]]] = {}
        for module in (
            backups,
            bindings,
            cluster,
            connections,
            definitions,
            delayed,
            exchanges,
            health,
            imports,
            metrics,
            nodes,
            parameters,
            policies,
            queues,
            settings,
            shovels,
            unacked,
            upkeep,
            topics,
            users,
            vhosts,
        ):
            for method, pattern, access, handler, *rest in module.ROUTES:
                parts = tuple(pattern.split("/")[1:])
                same = self._by_length.setdefault(len(parts), {})
                same.setdefault(parts, {})[method] = Route(access, handler, *rest)

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Return the handler. Raise Problem 404 or 405."""
        parts = path.split("/")[1:]
        if len(parts) > 1 and not parts[-1]:
            parts.pop()
        for pattern, methods in self._by_length.get(len(parts), {}).items():
            args = match(pattern, parts)
            if args is None:
                continue
            route = methods.get("GET" if method == "HEAD" else method)
            if route is None:
                allow = ", ".join(sorted({*methods, *(("HEAD",) if "GET" in methods else ()), "OPTIONS"}))
                if method == "OPTIONS":
                    return Route(Access.ANYBODY, partial(possible, allow)), args
                reason = f"{method} is not possible here, only {allow}"
                raise Problem(405, "method_not_allowed", reason, (("Allow", allow),))
            return route, args
        raise not_found("nothing has this path")


def possible(allow: str, _call: Call) -> Response:
    """Answer OPTIONS with the methods of the path. Pages of other origins get no consent (access.py)."""
    return Response(headers=(("Allow", allow),))


def match(pattern: tuple[str, ...], parts: list[str]) -> dict[str, str] | None:
    """Return the values of the names in braces, or None if the path is another one. Raise Problem 400 if a value is not UTF-8."""
    args = {}
    for want, part in zip(pattern, parts, strict=True):
        if want[:1] == "{" and part:
            args[want[1:-1]] = part
        elif want != part:
            return None
    try:
        return {name: unquote(part, errors="strict") for name, part in args.items()}
    except UnicodeDecodeError:
        raise bad_request("the path is not UTF-8") from None

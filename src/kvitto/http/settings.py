"""/api/settings: what this broker was started with, and its log, which can be changed while it runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from kvitto.base import config, log
from kvitto.base.limits import SETTABLE
from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.fields import flag, text
from kvitto.http.request import NO_CONTENT, Response, answer, bad_request

SECRET = ("default_pass",)
PROGRAM = "the program"
"""The source of a value that a program gives to the broker that it embeds. Some of these are computed from the machine."""
BY_API = "the management API"
"""The source of a value that was changed while the broker runs."""


def list_settings(call: Call) -> Response:
    return answer([{"name": name, "value": value, "from": source} for name, value, source in effective(call)])


def effective(call: Call) -> Iterator[tuple[str, Any, str]]:
    """Yield name, value and source of each setting, and of each limit. A password is not shown."""
    given = call.api.host.config
    now = {"log_level": log.level(), "log_json": log.is_json()}
    for field in fields(given):
        if field.name not in config.TYPES:
            continue
        value = getattr(given, field.name)
        source = given.sources.get(field.name) or ("default" if given.sources or value == field.default else PROGRAM)
        if field.name in now and now[field.name] != value:
            value, source = now[field.name], BY_API
        yield field.name, _shown(given, field.name, value), source
    for name in SETTABLE:
        source = given.sources.get("limits", PROGRAM) if name in given.limits else "default"
        yield f"limits.{name}", getattr(call.api.broker.limits, name), source


def _shown(given: config.Config, name: str, value: Any) -> Any:
    if name in SECRET:
        return "(not shown)" if value else None
    if name == "host":
        return [*given.hosts]
    return str(value) if isinstance(value, Path) else value


def put_log(call: Call) -> Response:
    """Change the level or the form of the log until the broker stops."""
    body = call.request.json()
    unknown = sorted(set(body) - {"level", "json"})
    if unknown or not body:
        raise bad_request(
            f"{unknown[0]!r} is no setting of the log: give level or json" if unknown else "give level or json"
        )
    level = text(body, "level", log.level())
    if "level" in body and level not in log.LEVELS:
        raise bad_request(f"level must be one of {', '.join(log.LEVELS)}, not '{level}'")
    as_json = flag(body, "json", log.is_json())
    if "json" in body and not log.set_json(as_json):
        raise bad_request("the log belongs to the program that this broker runs in: its form is decided there")
    logging.getLogger("kvitto").warning(
        "user %r sets the log to level %s, as %s", call.user.name, level, "JSON" if as_json else "text"
    )
    if "level" in body:
        log.set_level(level)
    return NO_CONTENT


ROUTES = (
    ("GET", "/api/settings", Access.ADMINISTRATOR, list_settings),
    ("PUT", "/api/settings/log", Access.ADMINISTRATOR, put_log),
)

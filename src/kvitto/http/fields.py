"""Reads fields of a client's JSON: each function returns a value of the right type or raises Problem 400, which names the field."""

from __future__ import annotations

import math
from typing import Any

from kvitto.base import limits
from kvitto.base.limits import JSON_DEPTH_MAX, KIB, NAME_MAX, SHORTSTR_MAX
from kvitto.http.request import Text, bad_request
from kvitto.wire import tables

HTTP_TEXT_MAX = 256 * KIB
"""Bytes of a text in a value that is only kept."""


def text(body: dict[str, Any], name: str, default: str | None = None) -> str:
    value = body.get(name, default)
    if isinstance(value, Text):
        raise bad_request(f"{name} is too long")
    if not isinstance(value, str):
        raise bad_request(f"{name} must be a string" if name in body else f"{name} is missing")
    return value


def flag(body: dict[str, Any], name: str, default: bool = False) -> bool:
    """Return a boolean. rabbitmqadmin sends flags as strings."""
    value = body.get(name, default)
    if value in ("true", "false"):
        return bool(value == "true")
    if not isinstance(value, bool):
        raise bad_request(f"{name} must be true or false")
    return value


def names(body: dict[str, Any], name: str) -> list[str]:
    """Return a list of strings, which may be given as one string with commas."""
    given = body.get(name)
    parts = given.split(",", limits.HTTP_VALUES_MAX) if isinstance(given, str) else given
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise bad_request(f"{name} must be given: a list of strings, or one string with commas")
    if len(parts) > limits.HTTP_VALUES_MAX:
        raise bad_request(f"{name} has more than {limits.HTTP_VALUES_MAX} parts")
    return [short(part.strip(), name) for part in parts if part.strip()]


def number(body: dict[str, Any], name: str, least: int, most: int, default: int) -> int:
    value = body.get(name, default)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise bad_request(f"{name} must be a number between {least} and {most}")
    return value


def plain_json(value: Any, depth: int = 1) -> None:
    """Raise Problem 400 if a value of any form is nested too deeply, or has text that is too long or not UTF-8, or a
    number that JSON cannot express."""
    if depth > JSON_DEPTH_MAX:
        raise bad_request(f"value has more than {JSON_DEPTH_MAX} levels")
    match value:
        case float() if not math.isfinite(value):
            raise bad_request("a number in value is too large")
        case Text():
            raise bad_request("value has a text that is too long")
        case str():
            short(value, "text in value", HTTP_TEXT_MAX)
        case dict():
            for name, inner in value.items():
                short(name, "name in value", HTTP_TEXT_MAX)
                plain_json(inner, depth + 1)
        case list():
            for inner in value:
                plain_json(inner, depth + 1)


def table(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a field table. It is checked here, because it is encoded only after the change has been made."""
    value = body.get(name)
    if value in (None, "", []):
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"{name} must be an object")
    try:
        encoded = tables.encode(value)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"{name}: {error}") from None
    if len(encoded) > tables.BYTES_MAX:
        raise bad_request(f"{name} takes {len(encoded)} bytes, at most {tables.BYTES_MAX} are possible")
    tables.decode(encoded)  # a table that the next start could not read must not be stored
    return value


def short(value: str, what: str, most: int = SHORTSTR_MAX) -> str:
    """Return `value`, if AMQP can carry it."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise bad_request(f"the {what} is not UTF-8") from None
    if size > most:
        raise bad_request(f"the {what} has {size} bytes, at most {most} are possible")
    return value


def new_name(value: str, what: str) -> str:
    return short(value, f"name of the {what}", NAME_MAX)


def declared_name(value: str, what: str) -> str:
    """Return the name of a queue or an exchange without line ends, as AMQP declares it."""
    return new_name(value.replace("\r", "").replace("\n", ""), what)

"""The lists of `kvitto ctl`: for each command the path of the API, and the fields of its answer that are the columns."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from kvitto.base.table import table
from kvitto.cli.management import USAGE, Failure, Management
from kvitto.cli.parser import meant

Shown = tuple[Any, str, int]
"""The value that --json prints, the text that is printed otherwise, and the exit code."""
Command = Callable[[Management, argparse.Namespace], Shown]
MISSING = object()
"""In place of the value of a field that an object does not have."""

POLICY = {
    "vhost": "vhost",
    "name": "name",
    "pattern": "pattern",
    "apply to": "apply-to",
    "definition": "definition",
    "priority": "priority",
}

LISTS: dict[str, tuple[str, dict[str, str], str]] = {
    "list_queues": (
        "queues",
        {
            "vhost": "vhost",
            "name": "name",
            "ready": "messages_ready",
            "unacked": "messages_unacknowledged",
            "consumers": "consumers",
            "state": "state",
            "durable": "durable",
            "arguments": "arguments",
        },
        "queues and how many messages are in them",
    ),
    "list_exchanges": (
        "exchanges",
        {"vhost": "vhost", "name": "name", "type": "type", "durable": "durable", "arguments": "arguments"},
        "exchanges",
    ),
    "list_bindings": (
        "bindings",
        {
            "vhost": "vhost",
            "source": "source",
            "destination": "destination",
            "type": "destination_type",
            "routing key": "routing_key",
            "arguments": "arguments",
        },
        "bindings from exchanges to queues and exchanges",
    ),
    "list_consumers": (
        "consumers",
        {
            "vhost": "queue.vhost",
            "queue": "queue.name",
            "consumer tag": "consumer_tag",
            "status": "activity_status",
            "acks": "ack_required",
            "prefetch": "prefetch_count",
            "unacked": "messages_unacknowledged",
            "channel": "channel_details.name",
        },
        "consumers",
    ),
    "list_connections": (
        "connections",
        {
            "name": "name",
            "user": "user",
            "vhost": "vhost",
            "state": "state",
            "channels": "channels",
            "received bytes": "recv_oct",
            "sent bytes": "send_oct",
        },
        "connections",
    ),
    "list_channels": (
        "channels",
        {
            "name": "name",
            "user": "user",
            "vhost": "vhost",
            "consumers": "consumer_count",
            "unacked": "messages_unacknowledged",
            "unconfirmed": "messages_unconfirmed",
            "prefetch": "prefetch_count",
        },
        "channels",
    ),
    "list_shovels": (
        "shovels",
        {
            "vhost": "vhost",
            "name": "name",
            "state": "state",
            "moved": "moved",
            "rejected": "rejected",
            "failures": "failures",
            "reason": "reason",
        },
        "shovels and what they do",
    ),
    "list_users": (
        "users",
        {"name": "name", "tags": "tags", "hashing algorithm": "hashing_algorithm"},
        "users",
    ),
    "list_vhosts": ("vhosts", {"name": "name", "messages": "messages"}, "virtual hosts"),
    "list_policies": ("policies", POLICY, "policies"),
    "list_operator_policies": (
        "operator-policies",
        POLICY,
        "operator policies: limits that no argument or policy can exceed",
    ),
    "list_permissions": (
        "permissions",
        {"vhost": "vhost", "user": "user", "configure": "configure", "write": "write", "read": "read"},
        "permissions of users, as regular expressions",
    ),
}
"""Command -> path of the API, columns (title -> field), help text."""
IN_VHOST = ("queues", "exchanges", "bindings", "consumers", "permissions", "policies", "operator-policies")


def add_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    for name, (path, columns, text) in LISTS.items():
        sub = add(name, listing(path, columns), f"list {text}")
        sub.add_argument("columns", nargs="*", metavar="FIELD", help="fields of the API to show, in place of the usual")
        if path in IN_VHOST:
            sub.add_argument("-p", "--vhost", help="only this virtual host (default: all)")
    permissions = {field: field for field in ("vhost", "configure", "write", "read")}
    sub = add("list_user_permissions", of_user(permissions), "list what a user may do, in each virtual host", "user")
    sub.set_defaults(columns=())


def listing(path: str, columns: dict[str, str]) -> Command:
    def show(api: Management, args: argparse.Namespace) -> Shown:
        vhost = getattr(args, "vhost", None)
        found = api.get(path) if vhost is None else api.get(path, vhost)
        return shown(found, columns, args.columns)

    return show


def of_user(columns: dict[str, str]) -> Command:
    return lambda api, args: shown(api.get("users", args.user, "permissions"), columns, args.columns)


def shown(found: list[Any], columns: dict[str, str], wanted: Sequence[str]) -> Shown:
    """Return the list. `wanted` are fields in place of the usual columns; one that no object has is a mistake."""
    for field in wanted:
        if found and all(pick(item, field) is MISSING for item in found):
            known = sorted({name for item in found for name in item})
            raise Failure(USAGE, f"there is no field {field!r}{meant(field, known) or ': --json shows all'}")
    fields = {field: field for field in wanted} or columns
    picked = [[pick(item, field) for field in fields.values()] for item in found]
    rows = [[None if value is MISSING else value for value in row] for row in picked]
    return found, table([*fields], sorted(rows, key=str)), 0


def pick(item: Any, field: str) -> Any:
    """Return a field of an object, or of an object in it; MISSING if it has no such field."""
    for step in field.split("."):
        item = item.get(step, MISSING) if isinstance(item, dict) else MISSING
    return item

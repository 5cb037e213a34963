"""The lists of `kvitto ctl`: for each command the path of the API, and the fields of its answer that are the columns."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from kvitto.base.table import table
from kvitto.cli.management import Management

Shown = tuple[Any, str, int]
"""The value that --json prints, the text that is printed otherwise, and the exit code."""

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
    "list_users": ("users", {"name": "name", "tags": "tags"}, "users"),
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


def listing(path: str, columns: dict[str, str]) -> Callable[[Management, argparse.Namespace], Shown]:
    def show(api: Management, args: argparse.Namespace) -> Shown:
        vhost = getattr(args, "vhost", None)
        found = api.get(path) if vhost is None else api.get(path, vhost)
        rows = [[pick(item, field) for field in columns.values()] for item in found]
        return found, table([*columns], sorted(rows, key=str)), 0

    return show


def pick(item: Any, field: str) -> Any:
    for step in field.split("."):
        item = item.get(step) if isinstance(item, dict) else None
    return item

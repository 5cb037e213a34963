"""The commands of `kvitto ctl` for queues, exchanges, bindings, messages and connections."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Callable
from typing import Any

from kvitto.base.table import table
from kvitto.cli.lists import Shown
from kvitto.cli.management import REFUSED, USAGE, Failure, Management

SHOWN_BYTES = 200
"""The bytes of a body that the table of `get` shows; --json has all of it."""


def add_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    sub = add("declare_queue", declare_queue, "declare a durable queue", "name", vhost=True)
    durability(sub, "consumer")
    sub = add("delete_queue", delete_queue, "delete a queue with its messages", "name", vhost=True)
    sub.add_argument("--if-empty", action="store_true")
    sub.add_argument("--if-unused", action="store_true", help="only without consumers")
    add("purge_queue", purge_queue, "remove all messages that wait in a queue", "name", vhost=True)
    sub = add("declare_exchange", declare_exchange, "declare a durable exchange", "name", vhost=True)
    sub.add_argument("--type", default="direct", help="direct, fanout, topic, headers, ... (default: direct)")
    sub.add_argument("--internal", action="store_true", help="only other exchanges publish to it")
    durability(sub, "binding")
    sub = add("delete_exchange", delete_exchange, "delete an exchange with its bindings", "name", vhost=True)
    sub.add_argument("--if-unused", action="store_true", help="only without bindings")
    for name, command, text in (
        ("bind", bind, "bind a queue to an exchange"),
        ("unbind", unbind, "remove the binding of a queue to an exchange"),
    ):
        sub = add(name, command, text, "exchange", "destination", vhost=True)
        sub.add_argument("key", nargs="?", default="", metavar="ROUTING_KEY")
        sub.add_argument("--to-exchange", action="store_true", help="DESTINATION is an exchange")
        with_arguments(sub)
    add_messages(add)
    reason = {"nargs": "?", "default": "closed by kvitto ctl", "metavar": "REASON"}
    sub = add("close_connection", close_connection, "close a connection, named as in list_connections", "name")
    sub.add_argument("reason", **reason)  # type: ignore[arg-type]
    sub = add("close_all_connections", close_all_connections, "close all connections")
    sub.add_argument("-p", "--vhost", help="only those of this virtual host")
    sub.add_argument("reason", **reason)  # type: ignore[arg-type]
    sub = add("close_all_user_connections", close_all_user_connections, "close all connections of a user", "user")
    sub.add_argument("reason", **reason)  # type: ignore[arg-type]


def add_messages(add: Callable[..., argparse.ArgumentParser]) -> None:
    text = "publish one persistent message; done means that it is on the disk of the broker"
    sub = add("publish", publish, text, "key", vhost=True)
    sub.add_argument("body", nargs="?", metavar="BODY", help="(default: stdin, to its end)")
    sub.add_argument("--exchange", default="amq.default", help="(default: the default exchange, KEY names a queue)")
    sub.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="such as content_type=text/plain, a value in JSON or text; may be repeated",
    )
    sub.add_argument("--transient", action="store_true", help="delivery mode 1")
    sub = add(
        "get",
        get,
        "show the messages that come next in a queue; they stay there, and nothing counts it",
        "name",
        vhost=True,
    )
    sub.add_argument("--count", type=int, default=1, metavar="N", help="at most N messages (1)")
    sub.add_argument("--ack", action="store_true", help="take them out of the queue")


def durability(sub: argparse.ArgumentParser, last: str) -> None:
    sub.add_argument("--transient", action="store_true", help="lost when the broker stops")
    sub.add_argument("--auto-delete", action="store_true", help=f"deleted with its last {last}")
    with_arguments(sub)


def with_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE", help="an argument, a value in JSON or text"
    )


def pairs(option: str, texts: list[str]) -> dict[str, Any]:
    """Return the values of an option that is repeated. A value that is no JSON is text."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise Failure(USAGE, f"{option} {text}: give NAME=VALUE")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


# -- queues, exchanges, bindings -----------------------------------------------------------------------------


def declared(args: argparse.Namespace) -> dict[str, Any]:
    arguments = pairs("--arg", args.arg)
    return {"durable": not args.transient, "auto_delete": args.auto_delete, "arguments": arguments}


def declare_queue(api: Management, args: argparse.Namespace) -> str:
    api.put("queues", args.vhost, args.name, body=declared(args))
    return f"queue '{args.name}' is declared"


def delete_queue(api: Management, args: argparse.Namespace) -> str:
    wanted = [name for name in ("if-empty", "if-unused") if getattr(args, name.replace("-", "_"))]
    api.delete("queues", args.vhost, args.name, query="?" + "&".join(f"{name}=true" for name in wanted))
    return f"queue '{args.name}' is deleted"


def purge_queue(api: Management, args: argparse.Namespace) -> str:
    api.delete("queues", args.vhost, args.name, "contents")
    return f"queue '{args.name}' is purged"


def declare_exchange(api: Management, args: argparse.Namespace) -> str:
    body = {**declared(args), "type": args.type, "internal": args.internal}
    api.put("exchanges", args.vhost, args.name, body=body)
    return f"exchange '{args.name}' is declared"


def delete_exchange(api: Management, args: argparse.Namespace) -> str:
    api.delete("exchanges", args.vhost, args.name, query="?if-unused=true" if args.if_unused else "")
    return f"exchange '{args.name}' is deleted"


def ends(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the path of the bindings between the two."""
    return "bindings", args.vhost, "e", args.exchange, "e" if args.to_exchange else "q", args.destination


def bind(api: Management, args: argparse.Namespace) -> str:
    api.post(*ends(args), body={"routing_key": args.key, "arguments": pairs("--arg", args.arg)})
    return f"'{args.destination}' is bound to exchange '{args.exchange}'"


def unbind(api: Management, args: argparse.Namespace) -> str:
    arguments = pairs("--arg", args.arg)
    for binding in api.get(*ends(args)):
        if (binding["routing_key"], binding["arguments"]) == (args.key, arguments):
            api.delete(*ends(args), binding["properties_key"])
            return f"'{args.destination}' is no longer bound to exchange '{args.exchange}' with key '{args.key}'"
    raise Failure(REFUSED, f"'{args.destination}' has no such binding to exchange '{args.exchange}'")


# -- messages ------------------------------------------------------------------------------------------------


def publish(api: Management, args: argparse.Namespace) -> str:
    properties = {"delivery_mode": 1 if args.transient else 2, **pairs("--property", args.property)}
    content = sys.stdin.buffer.read() if args.body is None else args.body.encode(errors="surrogateescape")
    body = {
        "routing_key": args.key,
        "properties": properties,
        "payload": base64.b64encode(content).decode(),
        "payload_encoding": "base64",
    }
    if not api.post("exchanges", args.vhost, args.exchange, "publish", body=body)["routed"]:
        raise Failure(REFUSED, f"no queue took the message: none is bound to '{args.exchange}' for key '{args.key}'")
    return "the message is published"


def get(api: Management, args: argparse.Namespace) -> Shown:
    body = {"count": args.count, "encoding": "auto", "ackmode": f"ack_requeue_{'false' if args.ack else 'true'}"}
    found = api.post("queues", args.vhost, args.name, "get", body=body)
    rows = [
        (item["exchange"], item["routing_key"], item["redelivered"], item["payload_bytes"], excerpt(item))
        for item in found
    ]
    text = table(("exchange", "routing key", "redelivered", "bytes", "body"), rows)
    return found, text if found else f"no message is ready in queue '{args.name}'", 0


def excerpt(item: dict[str, Any]) -> str:
    if item["payload_encoding"] == "base64" and item["payload_bytes"]:
        return "(binary: --json has it)"
    text = item["payload"]
    return text if len(text) <= SHOWN_BYTES else f"{text[:SHOWN_BYTES]}... (cut: --json has all of it)"


# -- connections ---------------------------------------------------------------------------------------------


def reason(args: argparse.Namespace) -> dict[str, str]:
    return {"X-Reason": " ".join(args.reason.split())}


def close_connection(api: Management, args: argparse.Namespace) -> str:
    api.delete("connections", args.name, headers=reason(args))
    return f"connection '{args.name}' is closed"


def close_all_connections(api: Management, args: argparse.Namespace) -> str:
    found = api.get("connections") if args.vhost is None else api.get("vhosts", args.vhost, "connections")
    closed = 0
    for connection in found:
        try:
            api.delete("connections", connection["name"], headers=reason(args))
        except Failure as failure:
            if failure.code != REFUSED:  # one that has ended by itself meanwhile is refused
                raise
        else:
            closed += 1
    return f"{closed} connections are closed"


def close_all_user_connections(api: Management, args: argparse.Namespace) -> str:
    api.delete("connections", "username", args.user, headers=reason(args))
    return f"all connections of user '{args.user}' are closed"

"""The commands of `kvitto ctl` for messages that wait in an exchange that delays."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from kvitto.base.table import table
from kvitto.cli.lists import Shown
from kvitto.cli.management import Management


def add_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    text = "list messages that wait in an exchange that delays, the first one that is due first"
    sub = add("list_delayed", list_delayed, text, "exchange", vhost=True)
    sub.add_argument("--count", type=int, default=100, metavar="N", help="at most N messages (100)")
    for name, command, text in (
        ("run_delayed", run_delayed, "have a delayed message be routed now"),
        ("cancel_delayed", cancel_delayed, "drop a delayed message"),
    ):
        add(name, command, text, "exchange", "message_id", vhost=True)


def list_delayed(api: Management, args: argparse.Namespace) -> Shown:
    found = api.get("exchanges", args.vhost, args.exchange, "delayed", query=f"?count={args.count}")
    columns = ("message_id", "due_in_ms", "exchange", "routing_key", "payload_bytes")
    titles = ("message id", "due in s", "published to", "routing key", "bytes")
    rows = [[item[name] / 1000 if name == "due_in_ms" else item[name] for name in columns] for item in found]
    return found, table(titles, rows), 0


def run_delayed(api: Management, args: argparse.Namespace) -> str:
    done = api.post("exchanges", args.vhost, args.exchange, "delayed", args.message_id, "run")
    return f"{_messages(done['run'])} with the id '{args.message_id}' routed"


def cancel_delayed(api: Management, args: argparse.Namespace) -> str:
    done = api.delete("exchanges", args.vhost, args.exchange, "delayed", args.message_id)
    return f"{_messages(done['cancelled'])} with the id '{args.message_id}' dropped"


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"

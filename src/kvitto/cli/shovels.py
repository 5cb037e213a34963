"""The commands of `kvitto ctl` for shovels."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from kvitto.cli.management import USAGE, Failure, Management

EPILOG = """VALUE is JSON: '{"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://user:password@there", "dest-queue": "b"}'.
docs/shovels.md has all keys. A shovel of that name is replaced."""


def add_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    sub = add("add_shovel", add_shovel, "carry messages from a queue to another broker or to HTTP", "name", vhost=True)
    sub.add_argument(
        "value", metavar="VALUE", help="the settings in JSON, or - for stdin: passwords are not seen there"
    )
    sub.epilog = EPILOG
    add("delete_shovel", delete_shovel, "end a shovel; its messages stay where they are", "name", vhost=True)
    add("pause_shovel", pause_shovel, "let a shovel rest until resume_shovel, also over restarts", "name", vhost=True)
    add("resume_shovel", resume_shovel, "let a paused shovel go on", "name", vhost=True)
    add("restart_shovel", restart_shovel, "let a shovel connect again at once", "name", vhost=True)


def add_shovel(api: Management, args: argparse.Namespace) -> str:
    text = args.value
    if text == "-":
        text = sys.stdin.read()
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Failure(USAGE, f"the settings are not JSON: {error}") from None
    api.put("parameters", "shovel", args.vhost, args.name, body={"value": value})
    return f"shovel '{args.name}' is set; `kvitto ctl list_shovels` says how it does"


def delete_shovel(api: Management, args: argparse.Namespace) -> str:
    api.delete("shovels", "vhost", args.vhost, args.name)
    return f"shovel '{args.name}' is deleted"


def pause_shovel(api: Management, args: argparse.Namespace) -> str:
    api.put("shovels", args.vhost, args.name, "pause")
    return f"shovel '{args.name}' is paused"


def resume_shovel(api: Management, args: argparse.Namespace) -> str:
    api.put("shovels", args.vhost, args.name, "resume")
    return f"shovel '{args.name}' goes on"


def restart_shovel(api: Management, args: argparse.Namespace) -> str:
    api.delete("shovels", "vhost", args.vhost, args.name, "restart")
    return f"shovel '{args.name}' connects again"

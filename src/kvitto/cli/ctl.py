"""`kvitto ctl`: administers a running broker through its management API.

Exit codes: 0 done, 1 the broker refused, 2 wrong usage, 3 no broker answers, 4 wrong password or not allowed.
`main.main` calls it.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from kvitto.base.table import printable, table
from kvitto.cli.lists import IN_VHOST, LISTS, Shown, listing
from kvitto.cli.management import REFUSED, USAGE, Failure, Management

APPLY_TO = ("all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges")
URL = "http://guest:guest@127.0.0.1:15672"
Command = Callable[[Management, argparse.Namespace], str | Shown]
"""A sentence that says what was done; or the objects to print."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("ctl", help="administer a running broker", description=__doc__.partition("\n")[0])
    _common(parser, os.environ.get("KVITTO_URL", URL), False)
    parser.set_defaults(run=run)
    shared = argparse.ArgumentParser(add_help=False)
    _common(shared, argparse.SUPPRESS, argparse.SUPPRESS)
    subs = parser.add_subparsers(title="commands", metavar="COMMAND", dest="ctl_command", required=True)

    def add(name: str, command: Command, text: str, *arguments: str, vhost: bool = False) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = subs.add_parser(name, help=text, description=text, parents=[shared])
        sub.set_defaults(command=command)
        for argument in arguments:
            sub.add_argument(argument, metavar=argument.upper())
        if vhost:
            sub.add_argument("-p", "--vhost", default="/", help="virtual host (default: /)")
        return sub

    add("status", status, "version, address and state of the broker")
    add("alarms", alarms, "current alarms; exit code 1 if there are any")
    for name, (path, columns, text) in LISTS.items():
        sub = add(name, listing(path, columns), f"list {text}")
        if path in IN_VHOST:
            sub.add_argument("-p", "--vhost", help="only this virtual host (default: all)")
    sub = add("declare_queue", declare_queue, "declare a durable queue", "name", vhost=True)
    sub.add_argument("--transient", action="store_true", help="lost when the broker stops")
    sub.add_argument("--auto-delete", action="store_true", help="deleted with its last consumer")
    sub.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE", help="x-... argument, a value in JSON or text"
    )
    sub = add("delete_queue", delete_queue, "delete a queue with its messages", "name", vhost=True)
    sub.add_argument("--if-empty", action="store_true")
    sub.add_argument("--if-unused", action="store_true", help="only without consumers")
    add("purge_queue", purge_queue, "remove all messages that wait in a queue", "name", vhost=True)
    for name, command, text in (
        ("add_user", add_user, "add a user; asks for the password"),
        ("change_password", change_password, "give a user another password; asks for it"),
    ):
        sub = add(name, command, text, "user")
        sub.add_argument("--password-stdin", action="store_true", help="read it from the first line of stdin")
        sub.add_argument("--no-password", action="store_true", help="the user logs in by a client certificate")
        if name == "add_user":
            sub.add_argument(
                "--tags", default="", help="with commas: administrator, monitoring, management, policymaker"
            )
    add("delete_user", delete_user, "delete a user", "user")
    sub = add(
        "set_user_tags",
        set_user_tags,
        "replace a user's tags: administrator, monitoring, management, policymaker",
        "user",
    )
    sub.add_argument("tags", nargs="*", metavar="TAG")
    text = "set a user's permissions in a virtual host, as regular expressions of names"
    add("set_permissions", set_permissions, text, "user", "configure", "write", "read", vhost=True)
    add("clear_permissions", clear_permissions, "remove a user's permissions in a virtual host", "user", vhost=True)
    add("add_vhost", add_vhost, "add a virtual host", "vhost")
    add("delete_vhost", delete_vhost, "delete a virtual host with everything in it", "vhost")
    for sort, path, text in (
        ("policy", "policies", "settings for all queues and exchanges whose names match PATTERN"),
        (
            "operator_policy",
            "operator-policies",
            "limits for all queues whose names match PATTERN, which no argument or policy can exceed",
        ),
    ):
        sub = add(f"set_{sort}", set_policy, text, "name", "pattern", "definition", vhost=True)
        sub.epilog = """DEFINITION is JSON: '{"max-length": 1000}'. A policy of that name is replaced."""
        sub.add_argument(
            "--priority",
            type=int,
            default=0,
            help="of the policies that match, the one with the highest priority applies (default: 0)",
        )
        sub.add_argument("--apply-to", default="all", choices=APPLY_TO, help="(default: all)")
        sub.set_defaults(path=path)
        sub = add(f"clear_{sort}", clear_policy, f"delete the {sort.replace('_', ' ')} NAME", "name", vhost=True)
        sub.set_defaults(path=path)
    sub = add("close_connection", close_connection, "close a connection, named as in list_connections", "name")
    sub.add_argument("reason", nargs="?", default="closed by kvitto ctl", metavar="REASON")


def _common(parser: argparse.ArgumentParser, url: str, as_json: Any) -> None:
    text = f"management API (default: $KVITTO_URL, or {URL.replace('%', '%%')})"
    parser.add_argument("--url", default=url, help=text)
    parser.add_argument("--json", action="store_true", default=as_json, help="print JSON")


def run(args: argparse.Namespace) -> int:
    try:
        shown: str | Shown = args.command(Management(args.url), args)
    except Failure as failure:
        print(f"kvitto ctl: {printable(str(failure))}", file=sys.stderr)
        return failure.code
    value, text, code = shown if isinstance(shown, tuple) else ({"done": shown}, shown, 0)
    if args.json:
        print(json.dumps(value, indent=2))
    elif text:
        print(text)
    return code


# -- looking -------------------------------------------------------------------------------------------------


def status(api: Management, _args: argparse.Namespace) -> Shown:
    overview = api.get("overview")
    kvitto, totals, messages = overview["kvitto"], overview["object_totals"], overview["queue_totals"]
    listeners = [f"{item['protocol']} {item['ip_address']}:{item['port']}" for item in overview["listeners"]]
    rows = [
        ("version", f"Kvitto {kvitto['version']}{'' if kvitto['compiled'] else ', interpreted (slow)'}"),
        ("process", f"{kvitto['pid']}, up for {kvitto['uptime_ms'] // 1000} s"),
        ("data directory", kvitto["data_dir"]),
        ("sync", "on" if kvitto["sync"] else "OFF: confirms do not wait for the disk"),
        ("listeners", listeners),
        (
            "connections",
            f"{totals['connections']} with {totals['channels']} channels and {totals['consumers']} consumers",
        ),
        ("queues", totals["queues"]),
        ("messages", f"{messages['messages_ready']} ready, {messages['messages_unacknowledged']} unacked"),
        ("alarms", kvitto["alarms"] or "none"),
    ]
    return overview, "\n".join(table(("", ""), rows).splitlines()[1:]), 0


def alarms(api: Management, _args: argparse.Namespace) -> Shown:
    found = api.get("health", "checks", "alarms", accept=(503,)).get("alarms", [])
    texts = [item["alarm"] for item in found]
    return texts, "\n".join(map(printable, texts)) or "no alarms", REFUSED if texts else 0


# -- queues and connections ----------------------------------------------------------------------------------


def declare_queue(api: Management, args: argparse.Namespace) -> str:
    arguments = dict(argument(text) for text in args.arg)
    body = {"durable": not args.transient, "auto_delete": args.auto_delete, "arguments": arguments}
    api.put("queues", args.vhost, args.name, body=body)
    return f"queue '{args.name}' is declared"


def argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Failure(USAGE, f"--arg {text}: give NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def delete_queue(api: Management, args: argparse.Namespace) -> str:
    wanted = [name for name in ("if-empty", "if-unused") if getattr(args, name.replace("-", "_"))]
    api.delete("queues", args.vhost, args.name, query="?" + "&".join(f"{name}=true" for name in wanted))
    return f"queue '{args.name}' is deleted"


def purge_queue(api: Management, args: argparse.Namespace) -> str:
    api.delete("queues", args.vhost, args.name, "contents")
    return f"queue '{args.name}' is purged"


def close_connection(api: Management, args: argparse.Namespace) -> str:
    api.delete("connections", args.name, headers={"X-Reason": " ".join(args.reason.split())})
    return f"connection '{args.name}' is closed"


# -- users, virtual hosts, permissions -----------------------------------------------------------------------


def secret(args: argparse.Namespace) -> dict[str, str]:
    """Return the part of a request that sets a user's password."""
    return {"password_hash": ""} if args.no_password else {"password": password(args)}


def password(args: argparse.Namespace) -> str:
    if args.password_stdin:
        given = sys.stdin.readline().rstrip("\r\n")
    elif sys.stdin.isatty():
        given = getpass.getpass(f"password of {args.user}: ")
        if getpass.getpass("again: ") != given:
            raise Failure(USAGE, "the two passwords differ")
    else:
        raise Failure(USAGE, "there is no terminal to ask for the password: give --password-stdin")
    if not given:
        raise Failure(USAGE, "the password is empty")
    return given


def add_user(api: Management, args: argparse.Namespace) -> str:
    if any(user["name"] == args.user for user in api.get("users")):
        raise Failure(REFUSED, f"user '{args.user}' exists already")
    api.put("users", args.user, body={**secret(args), "tags": args.tags})
    return f"user '{args.user}' is added; `kvitto ctl set_permissions` gives access to virtual hosts"


def change_password(api: Management, args: argparse.Namespace) -> str:
    api.get("users", args.user)
    api.put("users", args.user, body=secret(args))
    return f"user '{args.user}' has {'no' if args.no_password else 'another'} password"


def set_user_tags(api: Management, args: argparse.Namespace) -> str:
    api.get("users", args.user)
    api.put("users", args.user, body={"tags": args.tags})
    return f"user '{args.user}' has the tags: {', '.join(args.tags) or 'none'}"


def delete_user(api: Management, args: argparse.Namespace) -> str:
    api.delete("users", args.user)
    return f"user '{args.user}' is deleted"


def set_permissions(api: Management, args: argparse.Namespace) -> str:
    body = {"configure": args.configure, "write": args.write, "read": args.read}
    api.put("permissions", args.vhost, args.user, body=body)
    return f"user '{args.user}' has permissions in vhost '{args.vhost}'"


def clear_permissions(api: Management, args: argparse.Namespace) -> str:
    api.delete("permissions", args.vhost, args.user)
    return f"vhost '{args.vhost}' is not open to user '{args.user}'"


def set_policy(api: Management, args: argparse.Namespace) -> str:
    try:
        definition = json.loads(args.definition)
    except ValueError as error:
        raise Failure(USAGE, f"the definition is not JSON: {error}") from None
    body = {"pattern": args.pattern, "definition": definition, "priority": args.priority, "apply-to": args.apply_to}
    api.put(args.path, args.vhost, args.name, body=body)
    return f"policy '{args.name}' is set in vhost '{args.vhost}'"


def clear_policy(api: Management, args: argparse.Namespace) -> str:
    api.delete(args.path, args.vhost, args.name)
    return f"policy '{args.name}' is deleted in vhost '{args.vhost}'"


def add_vhost(api: Management, args: argparse.Namespace) -> str:
    api.put("vhosts", args.vhost)
    return f"vhost '{args.vhost}' is added; `kvitto ctl set_permissions -p` gives users access to it"


def delete_vhost(api: Management, args: argparse.Namespace) -> str:
    api.delete("vhosts", args.vhost)
    return f"vhost '{args.vhost}' is deleted"

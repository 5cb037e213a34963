"""`kvitto ctl`: administers a running broker through its management API.

Exit codes: 0 done, 1 the broker refused, 2 wrong usage, 3 no broker answers, 4 wrong password or not allowed.
`main.main` calls it; the commands are in state.py, lists.py, objects.py, accounts.py and definitions.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from kvitto.base.table import printable
from kvitto.cli import accounts, definitions, delayed, lists, objects, shovels, state
from kvitto.cli.lists import Shown
from kvitto.cli.management import URI, Failure, Management, default_uri
from kvitto.cli.parser import Parser

Command = Callable[[Management, argparse.Namespace], str | Shown]
"""A sentence that says what was done; or the objects to print."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("ctl", help="administer a running broker", description=__doc__.partition("\n")[0])
    _common(parser, default_uri(os.environ), False)
    parser.elsewhere = {f"cluster_{name}": f"kvitto cluster {name}" for name in ("init", "force")}
    parser.set_defaults(run=run)
    shared = Parser(add_help=False)
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

    for module in (state, lists, objects, delayed, shovels, accounts, definitions):
        module.add_commands(add)


def _common(parser: argparse.ArgumentParser, uri: str, as_json: Any) -> None:
    text = f"management API (default: $KVITTO_URI, or {URI.replace('%', '%%')})"
    parser.add_argument("--uri", default=uri, help=text)
    parser.add_argument("--json", action="store_true", default=as_json, help="print JSON")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help=argparse.SUPPRESS
    )  # as rabbitmqctl; nothing is to be left out


def run(args: argparse.Namespace) -> int:
    try:
        shown: str | Shown = args.command(Management(args.uri), args)
    except Failure as failure:
        lines = "\n".join(map(printable, str(failure).split("\n")))
        print(f"kvitto ctl: {lines}", file=sys.stderr)
        return failure.code
    value, text, code = shown if isinstance(shown, tuple) else ({"done": shown}, shown, 0)
    if args.json:
        print(json.dumps(value, indent=2))
    elif text:
        print(text)
    return code

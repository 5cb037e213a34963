"""The arguments of `kvitto migrate`, and its steps in their order.

Exit codes: 0 everything has arrived, 1 something is left (the report says what), 2 wrong usage, 3 a broker does not
answer, 4 wrong password or not allowed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import sys
from types import FrameType
from typing import Any

from kvitto.base.table import printable
from kvitto.cli.management import REFUSED, USAGE, Failure
from kvitto.cli.migrate.brokers import read_broker, take_name
from kvitto.cli.migrate.moving import END_S, Mover
from kvitto.cli.migrate.plan import Plan, make_plan, post_definitions
from kvitto.cli.migrate.report import Progress, as_json, planned, summary
from kvitto.cli.options import path
from kvitto.shovel.carry import Pace

INTERRUPTED = 130


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "migrate",
        help="bring definitions and messages from another broker",
        description="Bring definitions and messages from one AMQP 0-9-1 broker with a management API to another.",
        epilog="Run the same command again after any interruption: it goes on where it was.",
    )
    add = parser.add_argument
    add("old", metavar="URI", help="amqp://user@host:port[/vhost]; without a path all virtual hosts")
    add("--to", required=True, metavar="URI", help="the new broker, in the same form")
    add("--source-api", metavar="URL", help="management API of the old broker (default: port 15672 of its host)")
    add("--target-api", metavar="URL", help="management API of the new broker (default: port 15672 of its host)")
    for side, which in (("source", "old"), ("target", "new")):
        text = f"file with the password for the {which} broker, in place of one in the URI (or $KVITTO_{side.upper()}_PASS)"
        add(f"--{side}-pass-file", type=path, metavar="FILE", help=text)
    add("--queues", metavar="PATTERN", default="", help="messages of queues that match this regular expression only")
    add("--rate", type=rate, default=0.0, metavar="N", help="at most N messages per second, over all queues")
    add(
        "--ttl",
        choices=("restart", "timestamp"),
        default="restart",
        help="what becomes of a running expiration "
        "(default: restart): it begins anew, or it is shortened by the message's age, which its timestamp says",
    )
    add("--skip-definitions", action="store_true", help="messages only; the queues have to exist")
    add("--skip-messages", action="store_true", help="definitions only")
    add("--dry-run", action="store_true", help="say what would be done, and change nothing")
    add("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def rate(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("a rate is above 0")
    return value


def run(args: argparse.Namespace) -> int:
    logging.getLogger("kvitto.client").addHandler(logging.NullHandler())  # the report has what matters
    try:
        return _run(args)
    except Failure as failure:
        print(f"kvitto migrate: {printable(str(failure))}", file=sys.stderr)
        return failure.code


def _run(args: argparse.Namespace) -> int:
    source = read_broker("old", "source", args.old, args.source_api, args.source_pass_file, os.environ)
    target = read_broker("--to", "target", args.to, args.target_api, args.target_pass_file, os.environ)
    take_name(target, source)
    if (source.address.host, source.address.port, source.vhost) == (
        target.address.host,
        target.address.port,
        target.vhost,
    ):
        raise Failure(USAGE, "the old and the new broker are the same")
    try:
        pattern = re.compile(args.queues)
    except re.error as error:
        raise Failure(USAGE, f"--queues {args.queues}: {error}") from None
    definitions, messages = not args.skip_definitions, not args.skip_messages
    try:
        plan = make_plan(source, target, pattern, definitions=definitions, messages=messages)
    except KeyboardInterrupt:
        print("kvitto migrate: interrupted while it looked at both brokers; nothing was changed", file=sys.stderr)
        return INTERRUPTED
    if args.dry_run:
        print(json.dumps(as_json(plan), indent=2) if args.json else planned(plan))
        return 0
    try:
        if definitions:
            post_definitions(plan)
    except KeyboardInterrupt:
        print(
            "kvitto migrate: interrupted while the new broker took the definitions, which it may have now; no messages were "
            "moved. Run the same command again to go on",
            file=sys.stderr,
        )
        return INTERRUPTED
    try:
        asyncio.run(_move(plan, args))
    except KeyboardInterrupt:
        print(summary(plan), file=sys.stderr)
        print("kvitto migrate: interrupted; run the same command again to go on", file=sys.stderr)
        return INTERRUPTED
    print(json.dumps(as_json(plan), indent=2) if args.json else summary(plan))
    return REFUSED if any(item.problem for item in plan.items) else 0


async def _move(plan: Plan, args: argparse.Namespace) -> None:
    heed_second_interrupt()
    with Progress(plan) as progress:
        await Mover(plan, Pace(args.rate), args.ttl == "timestamp", progress, progress.waits).run()


def heed_second_interrupt() -> None:
    """Let a second SIGINT end the process at once. The first one is asyncio's, which cancels the task that runs now. It stays ignored if
    it is: a shell has programs in its background do so.
    """
    first = signal.getsignal(signal.SIGINT)

    def interrupted(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, at_once)
        say(f"interrupted, closes its connections, which takes {END_S:g} s at most; Ctrl-C ends it at once")
        assert callable(first)
        first(number, frame)

    def at_once(number: int, frame: FrameType | None) -> None:
        say("ended at once; run the same command again to go on")
        os._exit(INTERRUPTED)

    if callable(first):
        signal.signal(signal.SIGINT, interrupted)


def say(text: str) -> None:
    """Write a line on stderr, from a signal handler: a file object may be in use."""
    with contextlib.suppress(OSError):
        os.write(2, ("\n" * os.isatty(2) + f"kvitto migrate: {text}\n").encode())

"""The `kvitto` command, with a sub-command each for serving, administering, checking and measuring."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from kvitto.base.build import compiled
from kvitto.base.version import __version__
from kvitto.cli.parser import Parser


class Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"kvitto {__version__} ({'compiled' if compiled() else 'interpreted'}, Python {sys.version.split()[0]})")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    try:
        return run(argv)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1
    except OSError as error:
        # errors that no command expects: a full disk behind stdout, a directory that cannot be made
        print(f"kvitto: {error}", file=sys.stderr)
        return 1


def run(argv: Sequence[str] | None) -> int:
    parser = Parser(prog="kvitto", description="A durable message broker for AMQP 0-9-1.")
    parser.add_argument("--version", action=Version, nargs=0, help="show the version and whether it runs compiled")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    wanted = (list(argv) if argv is not None else sys.argv[1:])[:1]
    for name, module in COMMANDS.items():
        if wanted == [name] or wanted not in [[n] for n in COMMANDS]:
            __import__(module, fromlist=["add_parser"]).add_parser(commands)
    args = parser.parse_args(argv)
    return int(args.run(args))


COMMANDS = {
    "serve": "kvitto.cli.serve",
    "ctl": "kvitto.cli.ctl",
    "migrate": "kvitto.cli.migrate",
    "check": "kvitto.cli.check",
    "salvage": "kvitto.cli.salvage",
    "perf": "kvitto.perf.cli",
    "torture": "kvitto.torture.cli",
    "pipeline": "kvitto.pipeline.cli",
}

if __name__ == "__main__":
    sys.exit(main())

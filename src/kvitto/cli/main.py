"""The `kvitto` command, with a sub-command each for serving, administering, checking and measuring."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

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
    except ModuleNotFoundError as error:
        if error.name not in BROKER_NEEDS:
            raise
        package = BROKER_NEEDS[error.name]
        print(
            f"kvitto: this needs the package {package}, which is not installed: pip install {package}", file=sys.stderr
        )
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
    names = wanted if wanted and wanted[0] in COMMANDS else [*COMMANDS]
    for name in names if wanted != ["--version"] else ():
        try:
            import_module(COMMANDS[name]).add_parser(commands)
        except ModuleNotFoundError as error:
            if wanted == [name] or error.name not in BROKER_NEEDS:
                raise
            commands.add_parser(name, help=f"(needs the package {BROKER_NEEDS[error.name]})")
    args = parser.parse_args(argv)
    return int(args.run(args))


BROKER_NEEDS = {"xxhash": "xxhash", "h11": "h11", "re2": "google-re2"}
"""Module -> package. The client does without them, so there may be an installation that has none of them."""
COMMANDS = {
    "serve": "kvitto.cli.serve",
    "ctl": "kvitto.cli.ctl",
    "migrate": "kvitto.cli.migrate",
    "backup": "kvitto.cli.backup",
    "promote": "kvitto.cli.promote",
    "cluster": "kvitto.cli.cluster",
    "check": "kvitto.cli.check",
    "salvage": "kvitto.cli.salvage",
    "perf": "kvitto.perf.cli",
    "torture": "kvitto.torture.cli",
    "pipeline": "kvitto.pipeline.cli",
}

if __name__ == "__main__":
    sys.exit(main())

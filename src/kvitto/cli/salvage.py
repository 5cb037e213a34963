"""`kvitto salvage`: a fresh data directory with everything that can be read of a damaged one.

Exit codes: 0 all has been saved, 1 something was lost, 2 it could not be done.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from kvitto.base.clock import SystemClock
from kvitto.base.errors import StoreError
from kvitto.base.table import printable
from kvitto.cli.check import DAMAGED, SOUND, failed, named, report, show, survey
from kvitto.store.disk import RealDisk
from kvitto.store.repair.readonly import ReadOnlyDisk
from kvitto.store.repair.salvage import Salvage


def add_parser(commands: Any) -> None:
    text = "build a fresh data directory with everything that can be read of a damaged one, which stays as it is"
    parser = commands.add_parser("salvage", help="save what can be read of a damaged data directory", description=text)
    parser.add_argument("directory", type=Path, metavar="DIR", help="damaged data directory; only read")
    parser.add_argument(
        "--to", type=Path, metavar="DIR2", required=True, help="fresh directory; empty, or not there yet"
    )
    parser.add_argument("--json", action="store_true", help="everything as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    target = args.to
    try:
        disk = ReadOnlyDisk(str(args.directory))
        refuse_target(args.directory, target)
        lock = disk.keep_out()
        found = survey(disk)
    except (StoreError, OSError) as error:
        return failed(f"cannot salvage{named(args.directory, error)}")
    job = None
    try:
        job = Salvage(found, RealDisk(str(target)), SystemClock())
        job.run()
    except StoreError as error:
        left = f"; {target} is not complete, no broker starts there: remove it" if job is not None else ""
        return failed(f"cannot salvage {args.directory}: {error}{left}")
    finally:
        if lock is not None:
            lock.close()
    if args.json:
        print(json.dumps({**report(found), "to": os.path.abspath(target), "made": job.made}))
    else:
        print(show(found))
        for directory, name in job.made.items():
            print(f"{directory} is now queue {printable(name)}: its definition could not be read")
        for note in job.notes:
            print(printable(note))
        lost = "; what is listed above as damage could not be saved as it was" if found.findings else ""
        print(f"{target} holds all that could be read{lost}")
    return DAMAGED if found.findings else SOUND


def refuse_target(source: Path, target: Path) -> None:
    """StoreError if the fresh directory is in use for anything."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StoreError(f"{target} exists and is not an empty directory: give --to another one")
    if Path(os.path.realpath(target)).is_relative_to(os.path.realpath(source)):
        raise StoreError(f"{target} lies in {source}: give --to a directory elsewhere")

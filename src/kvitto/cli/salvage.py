"""`kvitto salvage`: builds a new data directory from everything that can be read in a damaged one.

Exit codes: 0 everything has been saved, 1 something was lost, 2 the command could not run. `main.main` calls it.
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
    text = "build a new data directory from everything that can be read in a damaged one, which is not changed"
    parser = commands.add_parser(
        "salvage", help="save all that can be read in a damaged data directory", description=text
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="damaged data directory; it is only read")
    parser.add_argument(
        "--to", type=Path, metavar="DIR2", required=True, help="new directory; it must be empty or must not exist"
    )
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
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
        left = f"; {target} is not complete, and no broker starts in it: remove it" if job is not None else ""
        return failed(f"cannot salvage {args.directory}: {error}{left}")
    finally:
        lock.close()
    if args.json:
        print(json.dumps({**report(found), "to": os.path.abspath(target), "made": job.made}))
    else:
        print(show(found))
        for directory, name in job.made.items():
            print(f"{directory} is now queue {printable(name)}: its definition could not be read")
        for note in job.notes:
            print(printable(note))
        lost = "; the damage listed above could not be saved as it was" if found.findings else ""
        print(f"{target} holds all that could be read{lost}")
    return DAMAGED if found.findings else SOUND


def refuse_target(source: Path, target: Path) -> None:
    """Raise StoreError if the target exists and is not empty, or lies in the source."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StoreError(f"{target} exists and is not an empty directory: give --to another directory")
    if Path(os.path.realpath(target)).is_relative_to(os.path.realpath(source)):
        raise StoreError(f"{target} lies in {source}: give --to a directory elsewhere")

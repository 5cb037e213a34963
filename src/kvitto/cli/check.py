"""`kvitto check`: reads a data directory without a broker and lists all damage.

Exit codes: 0 nothing is damaged, 1 something is, 2 the directory could not be checked. `main.main` calls it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from kvitto.base.errors import StoreError
from kvitto.base.table import printable, table
from kvitto.store.repair.readonly import ReadOnlyDisk
from kvitto.store.repair.survey import Folder, Survey

SOUND, DAMAGED, FAILED = 0, 1, 2
COLUMNS = ("vhost", "queue", "ready", "settled", "damaged", "segments", "directory")


def add_parser(commands: Any) -> None:
    text = "read a whole data directory and list all damage; it changes nothing, and no broker may run on the directory"
    parser = commands.add_parser("check", help="find damage in a data directory", description=text)
    parser.add_argument("directory", type=Path, metavar="DIR", help="data directory")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    try:
        disk = ReadOnlyDisk(str(args.directory))
        lock = disk.keep_out()
        found = survey(disk)
    except StoreError as error:
        return failed(f"cannot check{named(args.directory, error)}")
    if args.json:
        print(json.dumps(report(found)))
    else:
        print(show(found))
        print(verdict(found, args.directory))
    lock.close()
    return DAMAGED if found.findings else SOUND


def survey(disk: ReadOnlyDisk) -> Survey:
    """Examine the directory. Places that the device cannot read come first in the list of damage."""
    found = Survey(disk)
    found.findings[:0] = disk.failures()
    return found


def verdict(found: Survey, directory: Path) -> str:
    if found.ending.of_backup:
        end = "a backup of a running broker"
    elif found.ending.in_order:
        end = "left in order"
    else:
        end = "not left in order: the next start will cut torn tails"
    if not found.findings:
        return f"{directory} is sound ({end})"
    places = "1 damaged place" if len(found.findings) == 1 else f"{len(found.findings)} damaged places"
    return f"{places} in {directory} ({end}); `kvitto salvage {directory} --to DIR2` saves what can be read"


def show(found: Survey) -> str:
    lines = [table(COLUMNS, rows(found))] if found.queues or found.archives else ["no queue has messages"]
    records = sum(len(journal.records) for journal in found.journals.values())
    if records:
        lines.append(f"journal: {records} records")
    lines += [f"note: {printable(note)}" for note in found.notes]
    lines += [f"damage: {printable(str(finding))}" for finding in found.findings]
    return "\n".join(lines)


def rows(found: Survey) -> list[list[Any]]:
    return [
        [*name_of(folder), *folder.counts(), len(folder.parts), folder.path]
        for folder in [*found.queues, *found.archives]
    ]


def name_of(folder: Folder) -> tuple[str, str]:
    """Return the virtual host and the name, as far as they are known."""
    kind, key = folder.defined
    if kind == "stage":
        return key[0], f"(stage of {key[1]}, batch {key[2]}, task {key[3]})"
    if kind == "exchange":
        return key[0], f"(exchange {key[1]})"
    if kind:
        return key[0], key[1]
    said = folder.says
    return (said["vhost"], said["queue"]) if said else ("", "(not defined)" if folder.orphan else "(deleted)")


def report(found: Survey) -> dict[str, Any]:
    """Return everything for programs. Offsets are [first, end)."""
    damage = [
        {"path": f.path, "what": f.text, "byte": f.at, "offsets": list(f.offsets) if f.offsets else None}
        for f in found.findings
    ]
    return {
        "sound": not found.findings,
        "in_order": found.ending.in_order,
        "definitions": len(found.definitions),
        "journal_records": sum(len(journal.records) for journal in found.journals.values()),
        "queues": [dict(zip(COLUMNS, row, strict=True)) for row in rows(found)],
        "damage": damage,
        "notes": found.notes,
    }


def named(directory: Path, error: Exception) -> str:
    """Return the end of a message: the directory, unless the error names it already, and the error."""
    text = str(error)
    return f": {text}" if os.path.abspath(directory) in text else f" {directory}: {text}"


def failed(text: str) -> int:
    print(f"kvitto: {printable(text)}", file=sys.stderr)
    return FAILED

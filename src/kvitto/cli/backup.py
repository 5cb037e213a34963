"""`kvitto backup DIR`: makes a copy of the data directory of a running broker, from which another broker starts.

The broker says what its files have at one moment and keeps them; this process links and copies them, as a user who may read them, and
checks the result. Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no broker answers, 4 wrong password or not allowed, 130
cancelled. `main.main` calls it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kvitto.base.errors import StoreError
from kvitto.base.table import printable
from kvitto.cli import check
from kvitto.cli.management import REFUSED, URI, USAGE, Failure, Management, default_uri
from kvitto.store import paths
from kvitto.store.disk import RealDisk
from kvitto.store.mover import FileMover
from kvitto.store.repair.readonly import ReadOnlyDisk
from kvitto.store.room import ROOM_KEPT
from kvitto.store.taking import Taking

ASK_S = 3.0
"""The broker is asked this often whether it still keeps the files, so that it knows that somebody takes the backup."""
READY_S = 0.02
PAUSES = 2.0
"""After each step of the copying there is a pause of so many times its length, in which the disk is the broker's alone."""
SHOW_S = 0.2
NICENESS = 10
MIB = 1 << 20


def add_parser(commands: Any) -> None:
    text = "copy the data directory of a running broker to DIR, a new or empty directory on the same machine"
    parser = commands.add_parser("backup", help="back up a running broker", description=text)
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the backup will be")
    api = f"management API (default: $KVITTO_URI, or {URI.replace('%', '%%')})"
    parser.add_argument("--uri", default=default_uri(os.environ), help=api)
    parser.add_argument("--copy", action="store_true", help="copy all files, also those that could be hard links")
    parser.add_argument("--no-check", action="store_true", help="do not read the backup to look for damage")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.nice(NICENESS)
    try:
        done = Backup(Management(args.uri), args.directory, linking=not args.copy).take()
        found = None if args.no_check else check.survey(ReadOnlyDisk(str(args.directory)))
    except Failure as failure:
        print(f"kvitto backup: {printable(str(failure))}", file=sys.stderr)
        return failure.code
    except (StoreError, OSError) as error:
        print(f"kvitto backup: {printable(str(error))}", file=sys.stderr)
        return REFUSED
    if args.json:
        sound = {} if found is None else {"sound": not found.findings, "damage": [str(f) for f in found.findings]}
        print(json.dumps({**done, **sound}))
    else:
        print(told(done))
        if found is not None and found.findings:
            print("\n".join(f"damage: {printable(str(finding))}" for finding in found.findings))
            print("the broker's own directory has this damage, and had it before: see docs/reliability.md")
        elif found is not None:
            print(check.verdict(found, args.directory))
    return REFUSED if found is not None and found.findings else 0


def told(done: dict[str, Any]) -> str:
    size, seconds = done["copied_bytes"] / MIB, done["seconds"]
    files = f"{done['linked']} files linked, {done['copied']} copied ({size:.1f} MiB)"
    return f"backup of {done['data_dir']} in {done['directory']}: {files}, {seconds:.1f} s"


class Backup:
    """One backup from its beginning to its end. Whatever stops it, the broker lets go of its files, and no half of it is left."""

    def __init__(self, api: Management, directory: Path, linking: bool) -> None:
        self._api = api
        self._directory = directory
        self._linking = linking
        self._name = ""
        self._asked = 0.0
        self._shown = 0.0

    def take(self) -> dict[str, Any]:
        """Take the backup. Raises Failure, StoreError, or KeyboardInterrupt, and then nothing of it is left."""
        began = time.monotonic()
        refuse_used(self._directory)
        begun = self._api.post("backup")
        self._name, root = begun["name"], begun["data_dir"]
        try:
            self._refuse_place(root, begun["staging"])
            self._wait_until_ready()
            with self._target() as target:
                taking = self._take(ReadOnlyDisk(root), begun["staging"], target)
                own(target.root, root)
        finally:
            with suppress(Failure):  # it may have been killed; its next start removes what it has kept
                self._api.delete("backup", self._name)
            self._show("")
        return {
            "directory": str(self._directory),
            "data_dir": root,
            "linked": taking.linked,
            "copied": taking.copied,
            "copied_bytes": taking.bytes,
            "seconds": round(time.monotonic() - began, 3),
        }

    def _refuse_place(self, root: str, staging: str) -> None:
        """Raise Failure unless the files of the broker are here, and the backup will not be among them."""
        try:
            os.listdir(os.path.join(root, staging))
        except OSError as error:
            text = f"cannot read the broker's data directory {root}: {error.strerror}"
            raise Failure(
                REFUSED, f"{text}; run this on the machine (or in the container) of the broker, as its user or as root"
            ) from None
        inside = os.path.commonpath([os.path.realpath(root), os.path.realpath(self._directory)])
        if inside == os.path.realpath(root):
            raise Failure(USAGE, f"{self._directory} is in the broker's data directory {root}: choose another place")

    def _wait_until_ready(self) -> None:
        while not self._api.get("backup", self._name)["ready"]:
            time.sleep(READY_S)
        self._asked = time.monotonic()

    @contextmanager
    def _target(self) -> Iterator[RealDisk]:
        """Make the directory of the backup, and remove what is in it if an exception comes."""
        made = not self._directory.exists()
        try:
            yield RealDisk(str(self._directory))
        except BaseException:
            self._remove(made)
            raise

    def _remove(self, made: bool) -> None:
        """Remove what has been made, the marker last. `made`: the directory is ours too, and not only what is in it."""
        with suppress(OSError):
            for name in sorted(os.listdir(self._directory), key=lambda name: name == paths.INCOMPLETE):
                full = self._directory / name
                if full.is_dir():
                    shutil.rmtree(full)
                else:
                    full.unlink()
            if made:
                self._directory.rmdir()

    def _take(self, source: ReadOnlyDisk, staging: str, target: RealDisk) -> Taking:
        mover = FileMover(source, target, self._linking)
        taking = Taking(source, staging, target, mover)
        taking.begin()
        mover.try_link(paths.staged(staging, paths.DEFINITIONS))
        for _ in taking.plan():
            self._go_on()
        free = target.free_bytes() - ROOM_KEPT
        if taking.bytes > free:
            need = f"{taking.bytes / MIB:.0f} MiB have to be copied"
            raise Failure(
                REFUSED, f"there is no room in {self._directory}: {need}, {max(free, 0) / MIB:.0f} MiB are free"
            )
        done, began = 0, time.monotonic()
        for size in taking.steps():
            done += size
            self._go_on(f"{done / MIB:.0f} of {taking.bytes / MIB:.0f} MiB copied, {taking.linked} files linked")
            time.sleep(min(PAUSES * (time.monotonic() - began), ASK_S))
            began = time.monotonic()
        self._api.get("backup", self._name)  # it has kept the files until now: nothing is missing
        taking.complete()
        return taking

    def _go_on(self, text: str = "") -> None:
        """Ask the broker now and then. Raises Failure if it does not keep the files any more."""
        now = time.monotonic()
        if now - self._asked > ASK_S:
            self._asked = now
            self._api.get("backup", self._name)
        if text and now - self._shown > SHOW_S:
            self._shown = now
            self._show(text)

    @staticmethod
    def _show(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def refuse_used(directory: Path) -> None:
    """Raise Failure unless the directory is empty, or not there yet."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Failure(USAGE, f"{directory} cannot be used: {error.strerror}") from None
    if paths.INCOMPLETE in names:
        raise Failure(USAGE, f"{directory} has a backup that was never completed: remove it first")
    if names:
        raise Failure(USAGE, f"{directory} is not empty: choose a new directory")


def own(directory: str, root: str) -> None:
    """Give the backup to the owner of the broker's directory, if root has made it."""
    owner = os.stat(root)
    if os.geteuid() != 0 or owner.st_uid == 0:
        return
    for folder, _, names in os.walk(directory):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(path, owner.st_uid, owner.st_gid)

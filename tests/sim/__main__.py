"""Run the simulation: `python -m tests.sim`, or `make sim`; docs/simulation.md tells what it shows and how a run is repeated."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import secrets
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator

import kvitto
from tests.sim.kinds import KINDS
from tests.sim.result import Result

WANTED = {
    "power": 100_000,
    "tx": 10_000,
    "consumers": 10_000,
    "policies": 10_000,
    "torn": 20_000,
    "bitflip": 10_000,
    "eio": 1_500,
    "enospc": 200,
    "prefix": 20_000,
    "replica": 20_000,
    "backup": 2_000,
    "standby": 20_000,
    "cluster": 20_000,
}
"""States or failures of each kind that a full run tries."""
PARTS = {"power": 0.2, "tx": 0.2, "consumers": 0.2, "policies": 0.2, "replica": 0.5, "standby": 0.1, "cluster": 0.1}
"""Of the operations of a run, where all of them would be many states of few lives. A run that is repeated tries all."""


def main(arguments: list[str]) -> int:
    """Exit code: 0 if nothing was wrong, 1 if anything was, 130 if it was stopped; then it tells what had been tried."""
    options = parse(arguments)
    first = secrets.randbits(32) if options.seed is None else options.seed
    form = "compiled" if kvitto.compiled() else "interpreted"
    print(f"kvitto {kvitto.__version__}, {form}; seeds from {first}", flush=True)
    print(f"{'kind':<10}{'tried':>9}{'runs':>7}{'findings':>10}{'seconds':>9}   notes", flush=True)
    wrong, stopped = 0, False
    for kind in options.kind:
        started = time.monotonic()
        least = 1 if options.seed is not None and options.states is None else options.states or WANTED[kind]
        results: list[Result] = []
        try:
            part = 1.0 if options.seed is not None and options.states is None else PARTS.get(kind, 1.0)
            for result in enough(kind, first, least, options.jobs, part):
                results.append(result)
        except KeyboardInterrupt:
            stopped = True
        wrong += tell(kind, results, time.monotonic() - started)
        if stopped:
            print("stopped before all had been tried", flush=True)
            return 130
    return 1 if wrong else 0


def tell(kind: str, results: list[Result], seconds: float) -> int:
    """Print a row of the table, and every finding; gives how many there are."""
    findings = [(result.seed, text) for result in results for text in result.findings]
    notes = sum((result.notes for result in results), Counter[str]())
    tried = sum(result.tried for result in results)
    told = ", ".join(f"{name}: {count}" for name, count in sorted(notes.items()))
    print(f"{kind:<10}{tried:>9}{len(results):>7}{len(findings):>10}{seconds:>9.1f}   {told}", flush=True)
    for seed, text in findings:
        print(f"  make sim KIND={kind} SEED={seed}: {text}", flush=True)
    return len(findings)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, help="repeat the run of this seed; with --states, begin at it")
    parser.add_argument(
        "--states", type=int, help="go on with the next seeds until so much of each kind has been tried"
    )
    parser.add_argument("--kind", type=kinds, default=list(KINDS), help=f"some of {','.join(KINDS)} (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    return parser.parse_args(arguments)


def kinds(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(KINDS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: no such kind, there are {', '.join(KINDS)}")
    return names


def enough(kind: str, first: int, least: int, jobs: int, part: float) -> Iterator[Result]:
    """The runs of the seeds from `first` on, until so much has been tried; the same ones however many processes there are."""
    tried, seeds = 0, itertools.count(first)
    with multiprocessing.Pool(jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        running = deque(pool.apply_async(KINDS[kind], (seed, part)) for seed in itertools.islice(seeds, jobs))
        while tried < least:
            result: Result = running.popleft().get()
            running.append(pool.apply_async(KINDS[kind], (next(seeds), part)))
            yield result
            tried += max(result.tried, 1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

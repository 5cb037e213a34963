"""Compares brokers with the bare system calls of the same traffic: what would be left if a broker's own code took no time?

    python -m benchmarks.floor [--runs N] [--seconds N] [--peer NAME=amqp://...,pid=N]

`floor.c` is a broker and its clients without AMQP, routing, queues and recovery. For each message it receives and sends as many bytes as
AMQP needs, on as many connections, writes them into a file, and syncs that before it confirms. It gives each message to the next consumer,
as RabbitMQ and Kvitto do (A12); "in bursts" it gives all that a round of epoll has brought to one consumer, which takes fewer packets.
Kvitto of this checkout and peers are measured in turn with it, by `kvitto perf`. The columns are messages per second, the broker's CPU for
each, and the percentiles 50, 95 and 99 of the time from publisher to consumer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks import proc
from benchmarks.__main__ import peer
from benchmarks.brokers import Broker, Kvitto
from benchmarks.measure import Settings, measure_load
from benchmarks.scenarios import Load, Scale, scenarios

SOURCE = Path(__file__).with_suffix(".c")
COMPANY_US = 300
"""A sync of messages at a limited rate begins no sooner than this after the one before, about as Kvitto's do (docs/adr/0040)."""
ALL_US = 10_000
"""Publishers that wait for each confirm share a sync, which begins when each has published, or after this time."""


KEYS = ("o-2000", "o-10000", "p", "q-20", "q-100")
"""What is measured, as keys of `scenarios.py`."""


class Figures(NamedTuple):
    """Messages per second, microseconds of the broker's CPU for each, and percentiles from publisher to consumer in milliseconds."""

    rate: float
    cpu_us: float
    p50: float
    p95: float
    p99: float

    def __str__(self) -> str:
        return f"{self.rate:9,.0f}/s {self.cpu_us:6.1f} us   {self.p50:7.3f} {self.p95:7.3f} {self.p99:7.3f}"


def bare(program: Path, load: Load, bursts: bool, seconds: float, settings: Settings) -> Figures:
    """Let the system calls of a load run, on the cores that a broker and a generator have, and return their figures."""
    rate = option(load, "-r", 0)
    company = COMPANY_US if rate else ALL_US
    shape = [option(load, "-x", 1), rate, option(load, "-s", 16), seconds, company, int(bursts)]
    words = [program, *shape, settings.place, max(settings.pins.generator)]
    with proc.on(settings.pins.broker):
        done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, text=True, check=True)
    clients, broker = (line.split() for line in done.stdout.splitlines())
    return Figures(float(broker[0]), float(broker[1]), *(float(value) / 1000 for value in clients))


def option(load: Load, flag: str, default: int) -> int:
    """Return the number behind an option in the command of a load. All loads of this module have as many consumers as publishers."""
    return int(load.command[load.command.index(flag) + 1]) if flag in load.command else default


def real(broker: Broker, load: Load, settings: Settings) -> Figures:
    """Let `kvitto perf` load a broker, and return its figures."""
    values = measure_load(load, broker, settings).values
    times = (values[f"latency_{name}_ms"] for name in ("p50", "p95", "p99"))
    return Figures(values["published_per_s"], values["cpu_us"], *times)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.floor", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument(
        "--peer", type=peer, action="append", default=[], metavar="NAME=amqp://...,pid=N", help="one more broker"
    )
    args = parser.parse_args(argv)
    loads = {load.key: load for load in scenarios(Scale(seconds=args.seconds)) if isinstance(load, Load)}
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvitto-floor-")))
        program = place / "floor"
        subprocess.run(["cc", "-O2", "-o", program, SOURCE], check=True)
        settings = Settings(1, 0, proc.pins(os.sched_getaffinity(0)), place)
        kvitto = Kvitto(place / "kvitto", settings.pins.broker, None)
        kvitto.start()
        stack.callback(kvitto.stop)
        print(f"{os.cpu_count()} cores, medians of {args.runs} runs of {args.seconds:g} s; times in ms")
        for key in KEYS:
            load = loads[key]
            ways: dict[str, Callable[[], Figures]] = {
                "system calls": partial(bare, program, load, False, args.seconds, settings)
            }
            if not option(load, "-r", 0):  # at a limited rate a round seldom brings several messages
                ways["in bursts"] = partial(bare, program, load, True, args.seconds, settings)
            for broker in (kvitto, *args.peer):
                ways[broker.name] = partial(real, broker, load, settings)
            found: dict[str, list[Figures]] = {way: [] for way in ways}
            for _ in range(args.runs):  # in turn, so that other load on the machine disturbs all of them
                for way, measure in ways.items():
                    found[way].append(measure())
            for way, figures in found.items():
                middle = Figures(*(statistics.median(column) for column in zip(*figures, strict=True)))
                print(f"{key:8} {way:14} {middle}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

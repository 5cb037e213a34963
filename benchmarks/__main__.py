"""`make bench`: Kvitto and RabbitMQ (and peers) under the same load; writes benchmarks/results.md, .json and plots."""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import kvitto
from benchmarks import brokers, proc, report, results
from benchmarks.brokers import Broker, BrokerFailed, Kvitto, Peer, RabbitMQ, Started
from benchmarks.measure import Settings, able, alternate, measure_load, measure_standing
from benchmarks.results import Described, Results, Run
from benchmarks.scenarios import FULL, LETTERS, QUICK, Load, Scale, Scenario, Standing, scenarios
from benchmarks.tls import Certificate, make_certificate

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks"
PARTIAL_OUT = ROOT / "build" / "bench" / "results"
PLACE = ROOT / "build" / "bench" / "data"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure Kvitto beside RabbitMQ with the same generator, alternating, on this machine.",
        epilog="Scenarios: " + "; ".join(f"({letter}) {title}" for letter, title in LETTERS.items()),
    )
    flag = parser.add_argument
    flag("--only", type=letters, default="", metavar="a,d,i", help="only these scenarios")
    flag("--quick", action="store_true", help="a second each, one run, few messages: shows that it works, no more")
    flag("--runs", type=int, metavar="N", help="undisturbed runs of each (3; quick: 1)")
    flag("--repeats", type=int, metavar="N", help="runs more in place of disturbed ones, at most (3; quick: 0)")
    flag("--seconds", type=float, metavar="S", help="length of a timed run (10; quick: 1)")
    flag("--peer", type=peer, action="append", default=[], metavar="NAME=amqp://...,pid=N", help="one more broker")
    flag("--against", type=against, metavar="CHECKOUT", help="measure the Kvitto of another checkout, too")
    flag("--no-rabbitmq", action="store_true", help="measure without it")
    flag(
        "--place",
        type=lambda text: Path(text).resolve(),
        default=PLACE,
        help=f"where the brokers keep their data ({PLACE.relative_to(ROOT)})",
    )
    flag("--out", type=Path, help="where the report goes (benchmarks/; quick or --only: build/bench/results)")
    flag("--update", action="store_true", help="replace what is measured again in the report, keep the rest")
    return parser.parse_args(argv)


def letters(text: str) -> str:
    found = text.replace(",", "").replace(" ", "")
    if unknown := set(found) - set(LETTERS):
        raise argparse.ArgumentTypeError(f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(LETTERS)}")
    return found


def peer(text: str) -> Peer:
    try:
        return brokers.parse_peer(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def against(text: str) -> type[Kvitto]:
    try:
        return brokers.kvitto_of(Path(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass
class Bench:
    """One call of this program."""

    settings: Settings
    kinds: list[type[Started]]
    peers: list[Peer]
    certificate: Certificate | None
    found: Results
    save: Callable[[Results], None]
    made: int = field(default=0)

    def make(self, kind: type[Started]) -> Started:
        """A broker that has not been started, on an empty directory."""
        self.made += 1
        place = self.settings.place / f"{self.made:03}-{kind.name.lower()}"
        shutil.rmtree(place, ignore_errors=True)
        return kind(place, self.settings.pins.broker, self.certificate)

    def letter(self, letter: str, group: Sequence[Scenario]) -> None:
        """All scenarios of a letter; those that load a broker share one of each kind."""
        say(f"({letter}) {LETTERS[letter]}")
        loads = [scenario for scenario in group if isinstance(scenario, Load)]
        if loads:
            with ExitStack() as running:
                started = [self.started(kind, running) for kind in self.kinds]
                for scenario in loads:
                    self.load(scenario, [*started, *self.peers])
        for standing in group:
            if isinstance(standing, Standing):
                self.standing(standing)

    def started(self, kind: type[Started], running: ExitStack) -> Broker:
        broker = self.make(kind)
        running.callback(shutil.rmtree, broker.place, ignore_errors=True)
        running.callback(broker.stop)
        broker.start()
        return broker

    def load(self, scenario: Load, among: Sequence[Broker]) -> None:
        turns: dict[str, Callable[[], Run]] = {}
        for broker in among:
            if able(broker, scenario):
                turns[broker.name] = partial(measure_load, scenario, broker, self.settings)
        self.keep(scenario, shlex.join(scenario.command), turns)

    def standing(self, scenario: Standing) -> None:
        turns: dict[str, Callable[[], Run]] = {}
        for kind in self.kinds:
            if issubclass(kind, Kvitto) or not scenario.only_kvitto:
                turns[kind.name] = partial(self.stand, scenario, kind)
        self.keep(scenario, f"{scenario.kind} {scenario.count}", turns)

    def stand(self, scenario: Standing, kind: type[Started]) -> Run:
        broker = self.make(kind)
        try:
            return measure_standing(scenario, broker, self.settings)
        finally:
            shutil.rmtree(broker.place, ignore_errors=True)

    def keep(self, scenario: Scenario, command: str, turns: dict[str, Callable[[], Run]]) -> None:
        """Measure, and save at once: a bench of an hour that is interrupted is not lost."""
        runs, failed = alternate(scenario, turns, self.settings, say)
        self.found.runs += runs
        self.found.failed += failed
        series, x = (scenario.series, scenario.x) if isinstance(scenario, Load) else ("", 0.0)
        self.found.scenarios.append(Described(scenario.key, scenario.letter, scenario.title, command, series, x))
        self.save(self.found)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    if not kvitto.compiled():
        say(
            "benchmarks: Kvitto runs interpreted: its compiled form is missing or older than the sources. "
            "Run `make build` (or `make bench`, which does it) and start again."
        )
        return 2
    kinds: list[type[Started]] = [Kvitto, args.against] if args.against else [Kvitto]
    if not args.no_rabbitmq and brokers.rabbitmq_script() is None:
        say(f"RabbitMQ is not installed, measuring without it; install it with: {brokers.INSTALL_RABBITMQ}")
    elif not args.no_rabbitmq:
        kinds.append(RabbitMQ)
    chosen = scenarios(scale_of(args))
    chosen = [scenario for scenario in chosen if scenario.letter in (args.only or LETTERS)]
    pins = proc.pins(os.sched_getaffinity(0))
    # on the generator's core: never in the way of a broker, where there are cores enough
    with proc.on(pins.generator):
        bench = prepare(args, kinds, pins)
        for letter in LETTERS:
            if group := [scenario for scenario in chosen if scenario.letter == letter]:
                bench.letter(letter, group)
    return 1 if bench.found.failed else 0


def scale_of(args: argparse.Namespace) -> Scale:
    scale = QUICK if args.quick else FULL
    return replace(scale, seconds=args.seconds or scale.seconds)


def prepare(args: argparse.Namespace, kinds: list[type[Started]], pins: proc.Pins) -> Bench:
    """Everything that is the same for all scenarios."""
    runs = args.runs or (1 if args.quick else 3)
    repeats = args.repeats if args.repeats is not None else (0 if args.quick else 3)
    place: Path = args.place.resolve()
    place.mkdir(parents=True, exist_ok=True)
    partial = bool(args.quick or args.only) and not args.update
    out: Path = args.out or (PARTIAL_OUT if partial else OUT)
    certificate = make_certificate(place / "tls")
    scale = scale_of(args)
    found = Results(
        started=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine={**proc.machine(), "file system": proc.filesystem(place)},
        settings={"runs": runs, "seconds": scale.seconds, "share": scale.share},
    )
    if args.quick:
        found.notes.append("A quick run: it shows that the bench works; the figures say little.")
    if found.machine["file system"] == "tmpfs":
        found.notes.append(f"{place} is in memory (tmpfs): a sync costs nothing there. Give --place a disk.")
    if certificate is None:
        found.notes.append("openssl is not installed: nothing was measured over TLS.")
    older = results.load(out / "results.json") if args.update and (out / "results.json").exists() else None
    settings = Settings(runs, repeats, pins, place)
    bench = Bench(settings, kinds, args.peer, certificate, found, lambda new: write(new, older, out, not partial))
    bench.found.versions = versions(bench)
    say(f"{found.machine}; {found.versions}; report: {out}")
    return bench


def versions(bench: Bench) -> dict[str, str]:
    """Starts each broker once: one that cannot start is found at once, not after an hour."""
    found = {}
    for kind in bench.kinds:
        with ExitStack() as running:
            found[kind.name] = brokers.version(bench.started(kind, running))
    return found | {peer.name: brokers.version(peer) for peer in bench.peers}


def write(new: Results, older: Results | None, out: Path, whole: bool) -> None:
    """results.json, results.md and plots; a whole bench also brings its table into docs/performance.md."""
    merged = new
    if older is not None:
        merged = older
        merged.replace(new)
    merged.save(out / "results.json")
    report.write(merged, out)
    if whole:
        report.into_docs(merged, ROOT / "docs" / "performance.md")


def terminated(number: int, frame: object) -> None:
    """As Ctrl-C: the brokers are stopped on the way out."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, terminated)
    try:
        sys.exit(main())
    except BrokerFailed as error:
        say(f"benchmarks: {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)

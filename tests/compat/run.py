"""Runs other people's client test suites against a broker and compares with what RabbitMQ does.

    python -m tests.compat                                    all suites against a fresh `kvitto serve`
    python -m tests.compat --quick                            what `make test` runs
    python -m tests.compat --url amqp://guest:guest@127.0.0.1:5672/ --suites kombu,aiormq
    PIKA_DIR=... AMQPLIB_DIR=... python -m tests.compat       also the suites that live in repositories only

Ends with 1 when a test fails that passes with RabbitMQ and is not written down as a deviation.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

if not __package__:  # started as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.compat import report
from tests.compat.execute import Brokers, Outcome, run_suite
from tests.compat.fetch import CACHE, Unavailable, python_of, tests_of
from tests.compat.services import kvitto, redis
from tests.compat.suites import QUICK, SUITES, Broker, Sdist, Suite

Results = dict[str, tuple[Outcome, report.Verdict]]


def prepare(suites: list[Suite]) -> None:
    """Fetches tests and makes environments, one after the other: suites share them."""
    for suite in suites:
        tests_of(suite)
        if suite.venv:
            python_of(suite)


def run(suites: list[Suite], brokers: Brokers, *, quick: bool = False, jobs: int = 2, select: str = "") -> Results:
    """Runs the suites, `jobs` at a time, each with what `brokers()` gives, and judges the outcome."""
    CACHE.mkdir(parents=True, exist_ok=True)
    prepare(suites)
    baseline = report.load_baseline()
    results: Results = {}
    with contextlib.ExitStack() as stack:
        extra = stack.enter_context(redis()) if any(s.needs_redis for s in suites) else {}

        def one(suite: Suite) -> Outcome:
            try:
                return run_suite(suite, brokers, quick=quick, extra=extra, select=select)
            except Unavailable as reason:
                return Outcome(trouble=str(reason))

        with ThreadPoolExecutor(jobs) as pool:
            for suite, outcome in zip(suites, pool.map(one, suites), strict=True):
                verdict = report.judge(suite.name, outcome, baseline, quick=quick, partial=bool(select))
                results[suite.name] = (outcome, verdict)
    return results


def running(url: str, http_port: int) -> Brokers:
    """The broker at this address, which is somebody else's to start and stop."""
    broker = replace(Broker.from_url(url), http_port=http_port)
    return lambda: contextlib.nullcontext(broker)


def chosen(names: str, quick: bool) -> list[Suite]:
    """The suites asked for. Without names: all that can be run here, and a word about the others."""
    known = {suite.name: suite for suite in SUITES}
    if names:
        unknown = [name for name in names.split(",") if name not in known]
        if unknown:
            raise Unavailable(f"no suite called {', '.join(unknown)}; there are: {', '.join(known)}")
        return [known[name] for name in names.split(",")]
    suites = []
    for suite in SUITES:
        if quick and suite.name not in QUICK:
            continue
        try:
            if not isinstance(suite.source, Sdist):
                tests_of(suite)
            suites.append(suite)
        except Unavailable as reason:
            print(f"{suite.name} is left out: {reason}", file=sys.stderr)
    return suites


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--url", help="broker under test (default: a fresh `kvitto serve`)")
    parser.add_argument("--http-port", type=int, default=0, help="of its management API, which suite rascal needs")
    parser.add_argument("--suites", default="", help="comma-separated; default: all that can be run here")
    parser.add_argument("--quick", action="store_true", help="the part that `make test` runs")
    parser.add_argument("--jobs", type=int, default=2, help="suites at a time (default 2)")
    parser.add_argument("-k", dest="select", default="", help="only tests whose names match, as in pytest")
    parser.add_argument("--record", metavar="NAME", help="write the results to baseline.json as those of broker NAME")
    args = parser.parse_args(argv)
    try:
        suites = chosen(args.suites, args.quick)
        brokers = running(args.url, args.http_port) if args.url else kvitto
        results = run(suites, brokers, quick=args.quick, jobs=args.jobs, select=args.select)
    except (Unavailable, ValueError) as reason:
        print(f"compat: {reason}", file=sys.stderr)
        return 2
    if args.record:
        report.record(results, args.record, quick=args.quick)
    print(report.table(results, report.load_baseline(), quick=args.quick))
    print(report.details(results))
    return 0 if all(verdict.good for _, verdict in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

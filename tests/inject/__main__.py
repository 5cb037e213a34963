"""Raise an exception at each call site of the data plane in turn: `python -m tests.inject --help`. Exit code 1 if anything is wrong."""

from __future__ import annotations

import argparse
import os
import sys


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.inject", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first day that a client has (default: %(default)s)")
    parser.add_argument(
        "--days", type=int, default=6, help="how many days, which reach different sites (default: %(default)s)"
    )
    parser.add_argument(
        "--hits",
        type=int,
        default=2,
        help="how often each site raises on one day: the first time, the last ... (default: %(default)s)",
    )
    parser.add_argument(
        "--most", type=int, default=0, help="at most so many exceptions, chosen by the seed (default: all)"
    )
    parser.add_argument("--site", default="", help="only sites whose description contains this")
    parser.add_argument("--verbose", action="store_true", help="a line for each exception")
    args = parser.parse_args()
    if os.environ.get("KVITTO_PURE") != "1":  # the marked form is the interpreted one
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.inject", *sys.argv[1:]], {**os.environ, "KVITTO_PURE": "1"}
        )
    from tests.inject import sites

    sites.install()
    from tests.inject import runs

    report = runs.run_all(
        args.seed, args.days, args.hits, args.most, args.site, print if args.verbose else lambda _: None
    )
    print(report)
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())

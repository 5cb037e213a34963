"""Look at all states of the model of replication: `python -m tests.ha.model`; docs/cluster-model.md tells what it shows.

Without options: the worlds of `make test`, and each rule left out. The exit code is 1 if a promise is broken where no
rule is left out, or if a rule that is left out is not missed.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Iterator

from tests.ha.model.mutations import BOTH_BELTS, EVERY_NODE, LARGE_WORLDS, SECOND_BELTS, WORLDS, leaving_out
from tests.ha.model.rules import Rule, Setting
from tests.ha.model.search import Finding, search
from tests.ha.model.walk import walks

WIDE = Setting(nodes=4, records=6, epochs=12, requests=3, minimum=2, disk_faults=True)
"""The world of the walks."""


def main(arguments: list[str]) -> int:
    """Exit code: 0 if all was as it must be."""
    options = parse(arguments)
    if options.trace:
        setting = BOTH_BELTS if options.trace == "BOTH" else EVERY_NODE if options.trace == "EVERY" else None
        print(search(setting or leaving_out(Rule[options.trace])).told())
        return 0
    if options.walk:
        seed = secrets.randbits(32) if options.seed is None else options.seed
        print(f"seed {seed}: {WIDE.told()}", flush=True)
        found = walks(WIDE, seed, options.walk)
        print(found.told() if found.wrong else f"nothing found in {found.states} steps")
        return bool(found.wrong)
    return bool(sum([*explored(LARGE_WORLDS if options.large else WORLDS), *([] if options.large else left_out())]))


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.ha.model", description=__doc__.partition("\n")[0])
    names = [*(rule.name for rule in Rule), "BOTH", "EVERY"]
    parser.add_argument("--large", action="store_true", help="larger worlds, which take minutes and some GiB")
    parser.add_argument("--trace", choices=names, metavar="RULE", help=f"what happens without it: {', '.join(names)}")
    parser.add_argument("--walk", type=int, metavar="STEPS", help="go so many random steps through a wide world")
    parser.add_argument("--seed", type=int, help="of the walk (default: one from the operating system)")
    return parser.parse_args(arguments)


def explored(worlds: list[Setting]) -> Iterator[bool]:
    """Whether something was wrong in each of these worlds."""
    print(f"{'states':>9}{'depth':>7}{'seconds':>9}   world", flush=True)
    for world in worlds:
        found = search(world)
        print(f"{row(found)}   {world.told()}", flush=True)
        if found.wrong:
            print(found.told())
        yield not found.complete


def left_out() -> Iterator[bool]:
    """Whether a rule was left out without being missed, or missed although another one is there for the same."""
    print(f"{'states':>9}{'depth':>7}{'seconds':>9}   left out", flush=True)
    for rule in Rule:
        found = search(leaving_out(rule))
        reason = f" (not missed: {SECOND_BELTS[rule]})" if rule in SECOND_BELTS else ""
        print(f"{row(found)}   {rule.value}{reason}", flush=True)
        yield bool(found.wrong) == (rule in SECOND_BELTS)


def row(found: Finding) -> str:
    depth = len(found.trace) or found.depth
    return f"{found.states:>9}{depth:>7}{found.seconds:>9.1f}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""A shovel under kill -9: `python -m tests.shovel --by rabbitmq --kills 20`. docs/shovels.md has results."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import sys
import tempfile
from pathlib import Path

from tests.migrate.trial import node
from tests.shovel.trial import VICTIMS, Trial


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.shovel", description=__doc__)
    parser.add_argument("--by", choices=("kvitto", "rabbitmq"), default="kvitto", help="whose shovel (default: kvitto)")
    parser.add_argument("--source", choices=("kvitto", "rabbitmq"), default="kvitto")
    parser.add_argument("--target", choices=("kvitto", "rabbitmq"), default="kvitto")
    parser.add_argument("--ack-mode", choices=("on-confirm", "on-commit"), default="on-confirm")
    parser.add_argument("--kills", type=int, default=21)
    parser.add_argument("--rate", type=int, default=2000, help="messages per second that are published (default: 2000)")
    parser.add_argument("--pause", type=float, default=1.0, help="mean seconds before each kill (default: 1)")
    parser.add_argument(
        "--victims", nargs="+", choices=VICTIMS, default=VICTIMS, help="what is killed (default: all three)"
    )
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    options = parser.parse_args(arguments)
    print(f"{options.source} to {options.target} by {options.by}, {options.ack_mode}, seed {options.seed}", flush=True)
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvitto-shovel-")))
        source, target = (
            stack.enter_context(node(kind, place / side))
            for kind, side in ((options.source, "source"), (options.target, "target"))
        )
        itself = options.by == options.source == "kvitto"
        carrier = source if itself else stack.enter_context(node(options.by, place / "carrier"))
        trial = Trial(source, target, carrier, options.seed, options.rate, **{"ack-mode": options.ack_mode})
        trial.victims = tuple(options.victims)
        outcome = trial.run(options.kills, (0.5 * options.pause, 1.5 * options.pause))
    print(f"{outcome.confirmed} messages confirmed, {outcome.unsure} without an answer, {outcome.seconds:.1f} s")
    print(f"kills: {outcome.killed}; {outcome}")
    once = options.ack_mode == "on-commit"
    return 1 if outcome.lost or outcome.left or (once and outcome.doubled) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

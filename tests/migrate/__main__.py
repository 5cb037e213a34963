"""Migrate under kill -9: `python -m tests.migrate --source rabbitmq --messages 1000000 --kills 20`. docs/migrate.md has results."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from tests.migrate.trial import VICTIMS, Outcome, Trial, node


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.migrate", description=__doc__)
    parser.add_argument("--source", choices=("kvitto", "rabbitmq"), default="rabbitmq")
    parser.add_argument("--target", choices=("kvitto", "rabbitmq"), default="kvitto")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rate", type=int, default=0, help="messages per second (default: no limit)")
    parser.add_argument("--pause", type=float, default=2.0, help="mean seconds between two kills (default: 2)")
    parser.add_argument(
        "--victims", nargs="+", choices=VICTIMS, default=VICTIMS, help="what is killed (default: all three)"
    )
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    options = parser.parse_args(arguments)
    print(f"{options.source} to {options.target}, {options.messages} messages, seed {options.seed}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="kvitto-migrate-") as place,
        node(options.source, Path(place, "source")) as source,
        node(options.target, Path(place, "target")) as target,
    ):
        trial = Trial(source, target, options.messages, options.queues, options.seed, options.rate)
        trial.victims = tuple(options.victims)
        outcome = trial.run(options.kills, (0.5 * options.pause, 1.5 * options.pause))
    tell(outcome)
    once = options.source == options.target == "kvitto"
    return 1 if outcome.lost or outcome.left or outcome.foreign or (once and outcome.doubled) else 0


def tell(outcome: Outcome) -> None:
    print(f"kills: {outcome.killed}; {outcome.runs} runs of the command, {outcome.seconds:.1f} s")
    print(outcome)
    for report in outcome.reports:
        for item in report["queues"]:
            counts = {
                name: item[name] for name in ("name", "state", "moved", "redelivered", "doubled", "interruptions")
            }
            print(f"last run: {counts} {item['problem']}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

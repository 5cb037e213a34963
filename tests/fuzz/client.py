"""The asyncio client's compiled core, sanitized, against hostile servers: `python -m tests.fuzz.client --seconds 600 --seed 1`.

Each server follows a script of tests/client/aio/test_hostile.py, made at random here. The exit code is 0 if nothing was found.
The script under way is in build/fuzz/client-N.json, N being the seed: `--replay FILE` runs it once more.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz import build

HOME = build.ROOT / "build" / "fuzz"
PADDINGS = [b"\0\0", b"\0\1", b"\0\2", b"\xff\xff"]
KINDS = ["answer"] * 8 + ["odd"] * 3 + ["bytes", "bytes", "half", "ignore", "close"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.client", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU time")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--replay", type=Path, metavar="FILE")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        return inside(arguments)
    if not build.prepared():
        return 2
    HOME.mkdir(parents=True, exist_ok=True)
    print(f"seed {arguments.seed}", flush=True)
    command = [sys.executable, "-m", "tests.fuzz.client", "--inside", f"--seconds={arguments.seconds}"]
    command.append(f"--seed={arguments.seed}")
    if arguments.replay:
        command += ["--replay", str(arguments.replay.resolve())]
    return int(subprocess.run(command, cwd=build.ROOT, env=build.environment(), check=False).returncode != 0)


def inside(arguments: argparse.Namespace) -> int:
    """In a process that has the sanitizers loaded."""
    build.use()
    from tests.client.aio.test_hostile import ODD, run

    if arguments.replay:
        stored = json.loads(arguments.replay.read_text())
        run([(kind, chosen, bytes.fromhex(data)) for kind, chosen, data in stored], False)
        return 0
    rng = random.Random(arguments.seed)
    now = HOME / f"client-{arguments.seed}.json"
    count = 0
    while time.process_time() < arguments.seconds:
        script = [step(rng, len(ODD)) for _ in range(rng.randrange(40))]
        now.write_text(json.dumps([(kind, chosen, data.hex()) for kind, chosen, data in script]))
        run(script, False)
        count += 1
        if count % 500 == 0:
            print(f"{count} scripts, {time.process_time():.0f} s of CPU", flush=True)
    print(f"{count} scripts, {time.process_time():.0f} s of CPU: nothing found")
    return 0


def step(rng: random.Random, odd: int) -> tuple[str, int, bytes]:
    kind = rng.choice(KINDS)
    if kind == "odd":
        return kind, rng.randrange(odd), rng.choice(PADDINGS)
    return kind, 0, rng.randbytes(rng.randrange(41)) if kind == "bytes" else b""


if __name__ == "__main__":
    sys.exit(main())

"""Tell stories for a while: `python -m tests.fuzz.sessions --seconds 600 --seed 1`. Exit code 1 if anything was found.

What is found is in build/sessions/findings: the story, shrunk, and the traceback. `--replay FILE ...` performs such stories once.
`--checkout PATH` takes the broker of another checkout, which must have been built; `--first` ends with the first finding.
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz import build

HOME = build.ROOT / "build" / "sessions"
NOTHING_YET = {"seed": 0, "stories": 0, "actions": 0, "cpu_s": 0.0, "crashes": 0, "hangs": 0}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.sessions", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument(
        "--checkout", type=Path, default=build.ROOT, help="another checkout, whose broker is to be fuzzed"
    )
    parser.add_argument("--first", action="store_true", help="end with the first finding")
    parser.add_argument("--home", type=Path, default=HOME, help=f"where findings go (default: {HOME})")
    parser.add_argument("--replay", type=Path, nargs="+", metavar="FILE", help="perform these stories once")
    arguments = parser.parse_args()
    if not build.prepared(arguments.checkout):
        return 2
    if arguments.replay:
        return max(replay(arguments.checkout, file) for file in arguments.replay)
    return fuzz(arguments)


def python(checkout: Path, stderr: Path | None, *arguments: object) -> int:
    command = [sys.executable, "-m", *map(str, arguments)]
    environment = build.environment(checkout)
    if stderr is None:
        return subprocess.run(command, cwd=build.ROOT, env=environment, check=False).returncode
    with stderr.open("wb") as file:
        return subprocess.run(command, cwd=build.ROOT, env=environment, stderr=file, check=False).returncode


def replay(checkout: Path, file: Path) -> int:
    code = python(checkout, None, "tests.fuzz.sessions.replay", checkout, file)
    print(f"{file}: {'ok' if code == 0 else f'ended with {code}'}")
    return int(code != 0)


def fuzz(arguments: argparse.Namespace) -> int:
    """Workers one after the other: each runs until it is over or a story kills it."""
    home: Path = arguments.home
    home.mkdir(parents=True, exist_ok=True)
    (home / "found.json").write_text("{}")
    state, until = {**NOTHING_YET, "seed": arguments.seed}, time.monotonic() + arguments.seconds
    print(f"seed {arguments.seed}, {arguments.seconds:g} s; what is found is in {home / 'findings'}", flush=True)
    while (left := until - time.monotonic()) > 0:
        (home / "state.json").write_text(json.dumps(state))
        given = (arguments.checkout, home, int(state["seed"]), left, int(arguments.first))
        code = python(arguments.checkout, home / "stderr", "tests.fuzz.sessions.worker", *given)
        state = json.loads((home / "state.json").read_text())
        if code == 0:
            break
        if code > 0 or not kept(home, code, state):
            sys.stderr.buffer.write((home / "stderr").read_bytes())
            return 2
        if arguments.first:
            break
    found = json.loads((home / "found.json").read_text())
    for name, text in found.items():
        print(f"{home / 'findings' / name}: {text}")
    return int(bool(found) or state["crashes"] + state["hangs"] > 0)


def kept(home: Path, code: int, state: dict[str, float]) -> bool:
    """Keep the story that a worker died of, and go on behind it; False if it never got as far as one."""
    data = (home / "current").read_bytes().rstrip(b"\0") if (home / "current").exists() else b""
    if not data:
        return False
    kind = "hangs" if code == -signal.SIGPROF else "crashes"
    state[kind] += 1
    state["seed"] += 1
    path = home / "findings" / f"{kind}-{int(state['seed']) - 1}"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    path.with_suffix(".txt").write_bytes((home / "stderr").read_bytes())
    print(f"{kind.upper()} {path}: the process ended with signal {-code}", flush=True)
    return True


if __name__ == "__main__":
    raise SystemExit(main())

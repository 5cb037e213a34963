"""Fuzz for a while: `python -m tests.fuzz --seconds 600 --seed 1`. Exit code 1 if anything was found.

What it finds is in build/fuzz: `queue` (stories that went new ways), `crashes` and `hangs`, each with what was said. A second run goes
on from there and from tests/fuzz/corpus. `--replay FILE ...` runs stories once, `--distil` puts the smallest stories
that go all known ways into the corpus.
"""

from __future__ import annotations

import argparse
import json
import resource
import secrets
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

from tests.fuzz import build

CORPUS = Path(__file__).with_name("corpus")
HOME = build.ROOT / "build" / "fuzz"
NOTHING_YET = {"cpu_s": 0.0, "executions": 0, "crashes": 0, "hangs": 0, "edges": 0, "queue": 0}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--replay", type=Path, nargs="+", metavar="FILE", help="run these stories once, sanitized")
    parser.add_argument("--distil", action="store_true", help="replace the corpus by the smallest that is as good")
    arguments = parser.parse_args()
    if not build.prepared():
        return 2
    HOME.mkdir(parents=True, exist_ok=True)
    if arguments.replay:
        return replay(arguments.replay)
    if arguments.distil:
        return run_worker("tests.fuzz.distil", HOME, CORPUS).returncode
    return fuzz(arguments.seconds, arguments.seed)


def run_worker(module: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with (HOME / "stderr").open("wb") as stderr:
        return subprocess.run(command, cwd=build.ROOT, env=build.environment(), stderr=stderr, check=False)


def replay(files: list[Path]) -> int:
    """Each in a process of its own; its end is the answer."""
    failed = 0
    for file in files:
        done = run_worker("tests.fuzz.replay", file)
        failed += done.returncode != 0
        print(f"{file}: {'ok' if done.returncode == 0 else f'ended with {done.returncode}'}")
        sys.stderr.buffer.write((HOME / "stderr").read_bytes())
    return int(failed > 0)


def fuzz(seconds: float, seed: int) -> int:
    """Workers one after the other: each runs until it is over or a story kills it."""
    until = time.monotonic() + seconds
    print(f"seed {seed}, {seconds:g} s; what is found is in {HOME}", flush=True)
    state = dict(NOTHING_YET)
    while (left := until - time.monotonic()) > 0:
        (HOME / "state.json").write_text(json.dumps(state))
        (HOME / "now.json").write_text(json.dumps(state))
        done = run_worker("tests.fuzz.worker", HOME, CORPUS, seed, left)
        state = json.loads((HOME / "now.json").read_text())
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        state["cpu_s"] = used.ru_utime + used.ru_stime
        if done.returncode == 0:
            break
        if not kept(done.returncode, state):
            sys.stderr.buffer.write((HOME / "stderr").read_bytes())
            return 2
        seed += 1
    print(
        "{cpu_s:.0f} CPU seconds, {executions} executions, {edges} edges, {crashes} crashes, {hangs} hangs".format(
            **state
        )
    )
    return int(state["crashes"] + state["hangs"] > 0)


def kept(code: int, state: dict[str, float]) -> bool:
    """Keep the story that a worker died of; False if it never got as far as one."""
    current = HOME / "current"
    data = current.read_bytes() if current.exists() else b""
    story = data[4 : 4 + int.from_bytes(data[:4], "big")]
    if code > 0 or not story:
        return False
    kind = "hangs" if code == -signal.SIGPROF else "crashes"
    state[kind] += 1
    path = HOME / kind / sha256(story).hexdigest()[:16]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(story)
    path.with_suffix(".txt").write_bytes((HOME / "stderr").read_bytes())
    print(f"{kind.upper()} {path}: the process ended with signal {-code}", flush=True)
    return True


if __name__ == "__main__":
    raise SystemExit(main())

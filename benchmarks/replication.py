"""What a follower costs: the CPU time of leader and follower per message, and the time of one confirm.

    python -m benchmarks.replication [--messages 8000000] [--runs 3] [--queues-s 10] [--place DIR]

A leader alone, one that only sends its stream, and one whose confirms wait for the follower (`--min-in-sync 2`) get the same load in turn.
Leader, follower and load share this machine, and both directories are on one disk. A message is published with confirms, consumed, and
acked with others: of 20,000 messages that may be unconfirmed 1,000 at once, of 1,000 messages 100. The confirm one by one is of a publisher
that waits for each. The last load goes round 1,000 queues, message by message, with 1,000 that may be unconfirmed, so that each sync is of
hundreds of files; `--queues-s` says for how long.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks import proc
from kvitto.base.table import table
from kvitto.torture.nodes import Node, free_port, kvitto_command, uri_for

PLACE = Path(__file__).resolve().parent.parent / "build" / "bench" / "replication"
LOADS = {"16 B of 20,000": (16, 20_000, 1), "16 B of 1,000": (16, 1000, 4), "1 KB of 1,000": (1024, 1000, 16)}
"""The size of a message, how many may be unconfirmed, and by how much fewer there are than of the first load."""
WAYS = {"alone": [], "a follower": ["--followers"], "confirms wait for it": ["--followers", "--min-in-sync"]}
POLL_S = 0.02
ONE_BY_ONE = 2000
QUEUES = 1000


class Served(Node):
    """A leader or a follower."""

    def __init__(self, place: Path, options: Sequence[str]) -> None:
        super().__init__(place)
        self.port = free_port()
        self.uri = uri_for(self.port)
        self._command = [*kvitto_command(), "serve", "--data-dir", str(self.data), "--port", str(self.port)]
        self._command += ["--http-port", "off", *options]

    def begin(self) -> None:
        self._process = self._spawn(self._command, {})
        self.pid = self._process.pid


def perf(uri: str, *options: object) -> dict[str, float]:
    """Run `kvitto perf throughput` with these options, and return its report."""
    command = [*kvitto_command(), "perf", "throughput", "-q", "-j", "--uri", uri, *map(str, options)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def round_queues(uri: str, seconds: float) -> float:
    """Return how many messages per second are confirmed that go round many queues."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.load",
        "trickle",
        "--uri",
        uri,
        "--queues",
        str(QUEUES),
        "-p",
        "-c",
        "1000",
    ]
    done = subprocess.run([*command, "-z", str(seconds)], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    return float(found["confirmed"]) / float(found["elapsed_seconds"])


def measure(place: Path, way: str, messages: int, queues_s: float) -> dict[str, float]:
    """Return the figures of one run."""
    key, address = place / "key", f"127.0.0.1:{free_port()}"
    place.mkdir(parents=True)
    key.touch(0o600)
    key.write_text(secrets.token_hex(32))
    keyed = ["--cluster-key", str(key)]
    values = {"--followers": [address, *keyed], "--min-in-sync": ["2"]}
    leader = Served(place / "leader", [word for option in WAYS[way] for word in (option, *values[option])])
    follower = Served(place / "follower", ["--follow", address, *keyed]) if WAYS[way] else None
    try:
        leader.begin()
        if follower is not None:
            follower.begin()
            while "is following" not in leader.log.read_text():
                time.sleep(POLL_S)
        leader._wait_ready()
        found: dict[str, float] = {}
        nodes = {"leader": leader, **({"follower": follower} if follower else {})}
        for load, (size, window, less) in LOADS.items():
            before = {name: proc.cpu_s(node.pid) for name, node in nodes.items()}
            count, acks = messages // less, max(window // 20, 100)
            done = perf(leader.uri, "-p", "-c", window, "-a", acks, "-P", window, "-s", size, "-C", count, "-D", count)
            for name, node in nodes.items():
                found[f"{name} us, {load}"] = (proc.cpu_s(node.pid) - before[name]) / count * 1e6
            found[f"k/s, {load}"] = count / done["elapsed_seconds"] / 1e3
        done = perf(leader.uri, "-p", "-c", 1, "-y", 0, "-s", 16, "-C", ONE_BY_ONE)
        found["one confirm, ms"] = done["elapsed_seconds"] / ONE_BY_ONE * 1e3
        found[f"k/s, {QUEUES:,} queues in turn"] = round_queues(leader.uri, queues_s) / 1e3
        if follower is not None:
            found["follower MiB"] = proc.rss_bytes(follower.pid) / (1 << 20)
        found["leader MiB"] = proc.rss_bytes(leader.pid) / (1 << 20)
        return found
    finally:
        leader.close()
        if follower is not None:
            follower.close()
        shutil.rmtree(place, ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replication", description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=8_000_000, help="of the first load")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--queues-s", type=float, default=10.0, help="of the last load")
    parser.add_argument("--place", type=Path, default=PLACE)
    options = parser.parse_args(arguments)
    shutil.rmtree(options.place, ignore_errors=True)
    found: dict[str, dict[str, list[float]]] = {way: defaultdict(list) for way in WAYS}
    for run in range(options.runs):
        for way in WAYS:
            place = options.place / f"{run}-{way.split()[0]}"
            for name, value in measure(place, way, options.messages, options.queues_s).items():
                found[way][name].append(value)
    names = list(dict.fromkeys(name for figures in found.values() for name in figures))
    rows = [
        (name, *(f"{statistics.median(found[way][name]):.3f}" if found[way][name] else "" for way in WAYS))
        for name in sorted(names)
    ]
    print(table(("", *WAYS), rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

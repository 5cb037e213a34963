"""Compares the same connections on one broker, and divided between two brokers that share a disk: what would a second loop bring?

    python -m benchmarks.cores [--runs N] [--seconds N]

Publishers wait for each confirm, and consumers ack each message. CPU is that of the brokers and of the generators, per message.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.measure import program
from benchmarks.proc import cpu_s
from kvitto.torture.nodes import Kvitto

CONNECTIONS = 100
"""Publishers, and as many consumers, over all brokers."""
LOAD = ("-s", "100", "-c", "1", "-a", "1", "-P", "100", "-p", "-j")


def load(broker: Kvitto, connections: int, seconds: int) -> subprocess.Popen[str]:
    """Start a generator for one broker. It prints its figures as JSON."""
    number = str(connections)
    words = program(["perf", "throughput", "--uri", broker.uri, "-x", number, "-y", number, *LOAD, "-z", str(seconds)])
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def run(count: int, seconds: int) -> tuple[float, float, float]:
    """Return messages per second, and the CPU of the brokers and of the generators in us per message."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvitto-cores-")))
        brokers = [Kvitto(place / str(number)) for number in range(count)]
        for broker in brokers:
            stack.callback(broker.close)
            broker.start()
        before = sum(cpu_s(broker.pid) for broker in brokers)
        loads = [load(broker, CONNECTIONS // count, seconds) for broker in brokers]
        printed = [each.communicate()[0] for each in loads]
        if any(each.returncode for each in loads):
            raise SystemExit("benchmarks.cores: a generator has failed, and says above why")
        used = sum(cpu_s(broker.pid) for broker in brokers) - before
    results = [json.loads(text) for text in printed]
    messages = sum(result["published"] + result["consumed"] for result in results) / 2
    generators = sum(result["cpu_seconds"] for result in results)
    return messages / seconds, used * 1e6 / messages, generators * 1e6 / messages


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cores", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    args = parser.parse_args(argv)
    found: dict[int, list[tuple[float, float, float]]] = {1: [], 2: []}
    for _ in range(args.runs):  # in turn, so that other load on the machine disturbs both
        for count in found:
            found[count].append(run(count, args.seconds))
    print(f"{os.cpu_count()} cores, medians of {args.runs} runs of {args.seconds} s")
    for count, figures in found.items():
        rate, broker, generator = (statistics.median(column) for column in zip(*figures, strict=True))
        print(f"{count} broker(s): {rate:,.0f}/s, brokers {broker:.1f} us, generators {generator:.1f} us per message")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Instructions per message of the compiled broker, by stage: callgrind counts them, so the figures do not depend on the machine's load.

    .venv/bin/python -m benchmarks.instructions

Needs `make build` and valgrind (Debian: apt install valgrind). The broker's start is measured apart and taken off. What the
kernel does is not counted. Prints the table of docs/performance.md.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

MESSAGES = 400_000
SCENARIOS = {
    "(a) auto-ack": (),
    "(b) publish only": ("-y", "0"),
    "(d) durable": ("-p", "-c", "1000", "-a", "100", "-P", "1000"),
}
STAGES = {
    "scan: frames of the peer": r"connection_10Connection_(scan|publish|receive)|_check_|wire_5check",
    "publish: route, properties": r"7channel_7Channel_publish",
    "append: into the queue's tail": r"5queue_5Queue_append|5batch_5Batch_add",
    "deliver: credit, tags, frames of ours": r"Queue_(pump|took|pick|window)|deliver|6output_6Output_put|Batch_(body_|live)|[Cc]onsumer_",
    "settle: acks, settlements": r"settle|Settlements|Queue_ack",
    "checksum of a batch": r"XXH",
    "copies (libc)": r"memcpy|memmove|memset",
}
REST = "per turn and batch: the interpreter and all else"
LINE = re.compile(r"^\s*([\d,]+) \(\s*[\d.]+%\)\s+(.*)$")


class NotPossible(Exception):
    """Something is missing; the text says what."""


def measure(flags: Sequence[str] | None) -> Counter[str]:
    """Instructions by function of a broker that lives through one run of the generator; None: it only starts."""
    with tempfile.TemporaryDirectory(prefix="kvitto-instructions-") as place:
        out = Path(place, "callgrind")
        command = [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={out}",
            sys.executable,
            "-m",
            "kvitto.cli.main",
        ]
        command += ["serve", "--data-dir", f"{place}/data", "--port", "0", "--http-port", "off"]
        broker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert broker.stdout is not None
            found = re.match(r"kvitto ready amqp=(\S+)", broker.stdout.readline())
            if found is None:
                raise NotPossible("the broker did not start under valgrind")
            if flags is not None:
                uri = f"amqp://guest:guest@{found[1]}/%2f?heartbeat=0"
                count = ["-C", str(MESSAGES), *([] if "-y" in flags else ["-D", str(MESSAGES)])]
                generator = [
                    sys.executable,
                    "-m",
                    "kvitto.cli.main",
                    "perf",
                    "throughput",
                    "--uri",
                    uri,
                    *count,
                    *flags,
                ]
                subprocess.run(generator, check=True, stdout=subprocess.DEVNULL)
        finally:
            broker.send_signal(signal.SIGTERM)
            broker.wait()
        listing = ["callgrind_annotate", "--auto=no", "--threshold=100", str(out)]
        text = subprocess.run(listing, check=True, capture_output=True, text=True).stdout
    cost: Counter[str] = Counter()
    for line in text.splitlines():
        if (entry := LINE.match(line)) and entry[2] != "PROGRAM TOTALS":
            cost[entry[2]] += int(entry[1].replace(",", ""))
    return cost


def by_stage(cost: Counter[str]) -> dict[str, float]:
    """Per message."""
    stages = dict.fromkeys([*STAGES, REST], 0.0)
    for name, count in cost.items():
        stage = next((s for s, pattern in STAGES.items() if re.search(pattern, name)), REST)
        stages[stage] += count / MESSAGES
    return stages


def main() -> int:
    try:
        missing = [tool for tool in ("valgrind", "callgrind_annotate") if shutil.which(tool) is None]
        if missing:
            raise NotPossible(f"{missing[0]} is not installed (Debian: apt install valgrind)")
        import kvitto.broker.queues.queue

        if str(kvitto.broker.queues.queue.__file__).endswith(".py"):
            raise NotPossible("the broker is not compiled: run `make build`")
        start = measure(None)
        columns = {}
        for name, flags in SCENARIOS.items():
            cost = measure(flags)
            cost.subtract(start)
            columns[name] = by_stage(cost)
    except NotPossible as error:
        print(f"benchmarks.instructions: {error}", file=sys.stderr)
        return 1
    print("| instructions per message, 16 bytes | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for stage in [*STAGES, REST]:
        print(f"| {stage} | " + " | ".join(f"{max(c[stage], 0):,.0f}" for c in columns.values()) + " |")
    print("| all | " + " | ".join(f"{sum(c.values()):,.0f}" for c in columns.values()) + " |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

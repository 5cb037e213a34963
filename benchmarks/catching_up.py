"""How fast a node with an empty directory gets what waits, and what publishers feel of it meanwhile.

    python -m benchmarks.catching_up [--nodes 3] [--gb 10] [--queues 1000] [--place DIR] [--other-disk DIR]

Nodes and an etcd run on this machine, so all directories are on one disk, unless `--other-disk` names a directory on another one for the
node that catches up. `--gb` of durable messages of 100 KB wait in `--queues` queues. A follower is killed, and started with an empty
directory. Its rate is compared with that of a plain copy of the leader's directory to the same disk as the follower's, each file synced. A
probe publishes one message after the other to the leader: its 99th percentile when nothing else happens, while the plain copy is made,
which shows what the disk alone does to it, and while the node catches up. The last row shows what the processors alone do to it: two
programs copy memory, and use as many cores as the leader and the node have used. Nodes on machines of their own do not share processors.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.failover import Probe, fill, parser_for, whole
from benchmarks.proc import cpu_s
from kvitto.base.table import table
from kvitto.server.etcd import Etcd
from kvitto.torture.cluster import KvittoCluster

PLACE = Path(__file__).resolve().parent.parent / "build" / "bench" / "catching-up"
QUIET_S = 15.0
COPY_BYTES = 1 << 20
BUSY_S = 0.001
"""A program that copies memory does so for this time, and then sleeps."""
SHARE_LEAST, SHARE_MOST = 0.01, 0.95
"""The smallest and the largest part of the time for which such a program can copy."""


def copy(source: Path, target: Path) -> int:
    """Copy a directory, and sync each file. Return its bytes."""
    total = 0
    for path in source.rglob("*"):
        if path.is_file() and path.name != "lock":
            to = target / path.relative_to(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as read, to.open("wb") as written:
                shutil.copyfileobj(read, written, COPY_BYTES)
                written.flush()
                os.fdatasync(written.fileno())
                total += written.tell()
    return total


def compute(share: float) -> None:
    """Copy memory for this part of the time, without end."""
    memory = bytearray(64 * COPY_BYTES)
    view, half = memoryview(memory), len(memory) // 2
    while True:
        for at in range(0, half, COPY_BYTES):
            began = time.monotonic()
            while time.monotonic() < began + BUSY_S:
                view[at : at + COPY_BYTES] = view[half + at : half + at + COPY_BYTES]
            time.sleep(BUSY_S * (1 - share) / share)


def p99_ms(taken: Sequence[float]) -> str:
    return f"{statistics.quantiles(taken, n=100)[-1] * 1000:.1f} ms"


def main(arguments: Sequence[str]) -> int:
    parser = parser_for("catching_up", __doc__, PLACE)
    parser.add_argument("--other-disk", type=Path, metavar="DIR", help="where the node that catches up has its files")
    options = parser.parse_args(arguments)
    there = options.place if options.other_disk is None else options.other_disk / "kvitto-catching-up"
    for place in (options.place, there):
        shutil.rmtree(place, ignore_errors=True)
    cluster = KvittoCluster(options.place, options.nodes)
    probe: Probe | None = None
    try:
        cluster.start()
        register = Etcd([cluster.etcd_url], "kvitto")
        whole(register, options.nodes)
        fill(cluster.uri, int(options.gb * 1e9), options.queues)
        whole(register, options.nodes)
        node = cluster.nodes[cluster.nodes.index(cluster.leader) - 1]
        node.kill()
        shutil.rmtree(node.data)
        if options.other_disk is not None:
            (there / "node").mkdir(parents=True)
            node.data.symlink_to(there / "node")
        probe = Probe(cluster.leader)
        time.sleep(QUIET_S)
        quiet, probe.taken = probe.taken, []
        began = time.monotonic()
        size = copy(cluster.leader.data, there / "copy")
        copied_s = time.monotonic() - began
        copying = probe.taken
        shutil.rmtree(there / "copy")
        time.sleep(QUIET_S)
        probe.taken = []
        began, used_s = time.monotonic(), cpu_s(cluster.leader.pid)
        node.begin()
        whole(register, options.nodes)
        caught_up_s = time.monotonic() - began
        catching_up = probe.taken
        shares = [(cpu_s(cluster.leader.pid) - used_s) / caught_up_s, cpu_s(node.pid) / caught_up_s]
        time.sleep(QUIET_S)
        spawn = multiprocessing.get_context("spawn")
        programs = [
            spawn.Process(target=compute, args=(max(SHARE_LEAST, min(share, SHARE_MOST)),), daemon=True)
            for share in shares
        ]
        for program in programs:
            program.start()
        time.sleep(1)
        probe.taken = []
        time.sleep(QUIET_S)
        computing = probe.taken
        for program in programs:
            program.kill()
            program.join()
    finally:
        if probe is not None:
            probe.end()
        cluster.close()
        for place in (options.place, there):
            shutil.rmtree(place, ignore_errors=True)
    rows = [
        ("nothing", "", "", p99_ms(quiet)),
        ("a plain copy", f"{copied_s:.1f} s", f"{size / copied_s / 1e6:.0f} MB/s", p99_ms(copying)),
        ("catching up", f"{caught_up_s:.1f} s", f"{size / caught_up_s / 1e6:.0f} MB/s", p99_ms(catching_up)),
        (f"copying memory on {shares[0]:.2f} and {shares[1]:.2f} cores", "", "", p99_ms(computing)),
    ]
    print(table((f"{size / 1e9:.1f} GB", "time", "rate", "p99 of a confirm"), rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

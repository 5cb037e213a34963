"""How long a cluster confirms nothing when its leader is lost, with much that waits.

    python -m benchmarks.failover [--nodes 3] [--gb 10] [--queues 1000] [--times 5] [--network] [--place DIR]

Nodes and an etcd run on this machine (`kvitto torture --nodes` uses the same), so all directories are on one disk and all processes share
its cores. `--gb` of durable messages of 100 KB wait in `--queues` queues. A probe for each node publishes one message after the other to
it. Then the leader is killed, stands still, or is ended in order, `--times` times each; the time is from that moment to the first confirm
by another node that leads. All nodes are in sync again before the next one.

With `--network` each node, etcd and the probes are on hosts of their own, in network namespaces, and the leader is also cut off from its
followers only, and from everything: like a machine without power it answers nobody, and resets no connection. That needs root.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from kvitto.base.table import table
from kvitto.client import AMQPError, Connection, Properties
from kvitto.server.etcd import Etcd
from kvitto.torture import network
from kvitto.torture.cluster import KvittoCluster, Member, hosts_of

PLACE = Path(__file__).resolve().parent.parent / "build" / "bench" / "failover"
BODY = bytes(100_000)
WINDOW = 500
DURABLE = Properties(delivery_mode=2)
POLL_S = 0.01
BETWEEN_S = 1.0
PROBED = "failover.probed"


class Probe:
    """Publishes one message after the other to a node. If that does not lead it passes them on to whichever does."""

    def __init__(self, node: Member) -> None:
        self.node = node
        self.confirmed_at = 0.0
        self.taken: list[float] = []
        """The seconds that each confirm has taken."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            with (
                suppress(AMQPError, OSError, TimeoutError),
                Connection(f"{self.node.uri}&connection_timeout=500") as connection,
            ):
                channel = connection.channel()
                channel.queue_declare(PROBED, durable=True, arguments={"x-max-length": 10})
                channel.confirm_select()
                while not self._ended.is_set():
                    began = time.monotonic()
                    channel.publish(b"probe", "", PROBED, DURABLE)
                    channel.wait_for_confirms(2)
                    self.confirmed_at = time.monotonic()
                    self.taken.append(self.confirmed_at - began)
                    time.sleep(POLL_S)
            time.sleep(POLL_S)

    def leads_since(self, lost_at: float) -> bool:
        """Return whether the node has been elected since then, and has confirmed something itself."""
        return self.confirmed_at > self.node.leads_since > lost_at

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def fill(uri: str, size: int, queues: int) -> None:
    """Publish so many bytes to so many queues."""
    with Connection(uri) as connection:
        channel = connection.channel()
        for number in range(queues):
            channel.queue_declare(f"failover.{number}", durable=True)
        channel.confirm_select()
        for number in range(size // len(BODY)):
            channel.publish(BODY, "", f"failover.{number % queues}", DURABLE)
            if number % WINDOW == WINDOW - 1:
                channel.wait_for_confirms(600)
        channel.wait_for_confirms(600)


def whole(register: Etcd, count: int) -> None:
    """Wait until all nodes are in sync."""
    while (document := register.read().document) is None or len(document.members) < count:
        time.sleep(10 * POLL_S)


def parser_for(name: str, text: str, place: Path) -> argparse.ArgumentParser:
    """Return a parser of the options that benchmarks of clusters share. `text`: the first line says what the benchmark measures."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=text.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--gb", type=float, default=10.0)
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--place", type=Path, default=place)
    return parser


def ways_of(cluster: KvittoCluster) -> dict[str, Callable[[], object]]:
    """Return what can be done to the leader of a cluster."""
    ways: dict[str, Callable[[], object]] = {"kill -9": cluster.kill, "SIGSTOP": cluster.pause, "SIGTERM": cluster.stop}
    links = cluster.network
    if links is not None:

        def cut_from(others: Iterable[str]) -> None:
            leader = cluster.host(cluster.leader)
            links.cut([leader], [host for host in others if host != leader])

        ways["cut from its followers"] = lambda: cut_from(map(cluster.host, cluster.nodes))
        ways["cut from everything"] = lambda: cut_from(links.hosts)
    return ways


def main(arguments: Sequence[str]) -> int:
    parser = parser_for("failover", __doc__, PLACE)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--network", action="store_true")
    options = parser.parse_args(arguments)
    if options.network:
        if why := network.refusal():
            parser.error(f"--network: {why}")
        network.set_apart()  # before there is any thread
    shutil.rmtree(options.place, ignore_errors=True)
    links = network.Network(hosts_of(options.nodes)) if options.network else None
    cluster = KvittoCluster(options.place, options.nodes, network=links)
    ways = ways_of(cluster)
    found: dict[str, list[float]] = {way: [] for way in ways}
    probes: list[Probe] = []
    try:
        cluster.start()
        register = Etcd([cluster.etcd_url], "kvitto")
        whole(register, options.nodes)
        began = time.monotonic()
        fill(cluster.uri, int(options.gb * 1e9), options.queues)
        whole(register, options.nodes)
        print(f"{options.gb:g} GB wait in {options.queues} queues after {time.monotonic() - began:.0f} s", flush=True)
        probes = [Probe(node) for node in cluster.nodes]
        for _ in range(options.times):
            for way, do in ways.items():
                time.sleep(BETWEEN_S)
                lost_at = time.monotonic()
                do()
                while not (new := [probe for probe in probes if probe.leads_since(lost_at)]):
                    time.sleep(POLL_S / 10)
                found[way].append(new[0].confirmed_at - lost_at)
                cluster.resume()
                cluster.start()
                whole(register, options.nodes)
                print(f"{way}: {found[way][-1]:.2f} s", flush=True)
    finally:
        for probe in probes:
            probe.end()
        cluster.close()
        shutil.rmtree(options.place, ignore_errors=True)
    rows = [(way, f"{statistics.median(times):.2f} s", f"{max(times):.2f} s") for way, times in found.items()]
    print(table(("the leader's end", "without a confirm, median", "longest"), rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

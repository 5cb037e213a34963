"""Exactly once, for real: a standalone cluster, and everything in it killed with SIGKILL while messages flow.

    .venv/bin/python -m tests.spark.chaos.run [--messages 1000000] [--kills 10] [--nodes N] [--seed N] [--place DIR]

One publisher, a fanout to queues `a`, `b` and `c`. Spark writes `a` to a Parquet table and sends `b`, transformed, to queue `out`;
`kvitto pipeline land` writes `c` to another table (driver.py). Meanwhile driver, executors and broker are killed at random, `--kills`
times each. At the end each message that the broker confirmed must be in both tables and in `out`, and no message of a queue may be in
one of them twice.

With `--nodes 3` the broker is a cluster: its leader is killed, stands still, or ends in order, and another node is elected.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

from pyarrow.dataset import dataset

from benchmarks.sink_table import read
from examples.flights.children import Child
from kvitto.client import AMQPError, Connection, Properties
from kvitto.torture.cluster import KvittoCluster
from kvitto.torture.proxy import Proxy
from tests.spark.chaos.cluster import Cluster
from tests.spark.conftest import BrokerProcess

READ = ("a", "b", "c")
"""The queues that Spark reads."""
VICTIMS = ("driver", "executor", "broker")
SPARKS_OWN = "Task serialization failed: java.lang.IllegalStateException: Illegal size"
"""Two queries of one driver: now and then Spark serialises a task while the other changes what goes with it."""
CHUNK = 500
PAUSE_S = 4.0
"""From one kill to the next, on average."""
BATCHES = 40
END_S = 300.0
"""After the last kill the rest must have gone through by then."""


class Replicated:
    """A cluster of several nodes behind one address, which is always the leader's."""

    def __init__(self, place: Path, nodes: int, rng: Random) -> None:
        self._cluster = KvittoCluster(place / "nodes", nodes)
        self._rng = rng
        self._proxy = Proxy()
        self._proxy.start()
        self.url = f"amqp://guest:guest@127.0.0.1:{self._proxy.port}/%2f"
        self.start()

    def kill(self) -> None:
        """Lose the leader in one of three ways."""
        self._proxy.target = None
        self._rng.choice((self._cluster.kill, self._cluster.pause, self._cluster.stop))()
        self._proxy.cut(lambda: True, reset=True)

    def start(self) -> None:
        """Wait until another node leads, and all of them are in sync."""
        before = self._cluster.uri
        self._cluster.start()
        while self._cluster.uri == before:
            threading.Event().wait(0.1)
            self._cluster.look()
        self._proxy.target = "127.0.0.1", urlsplit(self._cluster.uri).port or 0
        self._cluster.resume()
        self._cluster.wait_in_sync()

    def close(self) -> None:
        self._cluster.close()
        self._proxy.close()


@dataclass
class Report:
    seed: int
    messages: int
    kills: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    stored: tuple[int, ...] = (0, 0, 0)
    table_rows: int = 0
    out_rows: int = 0
    landed_rows: int = 0
    lost_in_table: int = 0
    lost_in_out: int = 0
    lost_in_landed: int = 0
    doubled_in_table: int = 0
    doubled_in_out: int = 0
    doubled_in_landed: int = 0
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        lost = self.lost_in_table or self.lost_in_out or self.lost_in_landed
        return not (lost or self.doubled_in_table or self.doubled_in_out or self.doubled_in_landed)

    def __str__(self) -> str:
        kills = ", ".join(f"{what} {n}x" for what, n in sorted(self.kills.items())) or "none"
        return (
            f"seed {self.seed}: {self.messages:,} messages confirmed; stored in a, b and c: {', '.join(f'{n:,}' for n in self.stored)}"
            f" (the rest were sent again after a kill); killed: {kills}; ended by"
            f" Spark's own race: {self.restarts}x; {self.seconds:.0f} s\n"
            f"table: {self.table_rows:,} rows, lost {self.lost_in_table}, doubled {self.doubled_in_table}\n"
            f"queue out: {self.out_rows:,} messages, lost {self.lost_in_out}, doubled {self.doubled_in_out}\n"
            f"land: {self.landed_rows:,} rows, lost {self.lost_in_landed}, doubled {self.doubled_in_landed}"
        )


class Publisher(threading.Thread):
    """Publishes 0 .. messages-1 in chunks; one that is not confirmed is sent again. `done` counts what is confirmed."""

    def __init__(self, url: str, messages: int, seconds: float) -> None:
        super().__init__(name="publisher", daemon=True)
        self.url = url
        self.messages = messages
        self.pause = seconds * CHUNK / messages
        self.done = 0
        self.stop = threading.Event()

    def run(self) -> None:
        while self.done < self.messages and not self.stop.is_set():
            with contextlib.suppress(AMQPError, TimeoutError, OSError):
                self.publish()
            self.stop.wait(0.1)

    def publish(self) -> None:
        with Connection(self.url, buffer_bytes=1 << 16) as connection:
            channel = connection.channel()
            channel.confirm_select()
            while self.done < self.messages and not self.stop.is_set():
                end = min(self.done + CHUNK, self.messages)
                for n in range(self.done, end):
                    channel.publish(b'{"n":%d}' % n, "amq.fanout", "", Properties(delivery_mode=2))
                if not channel.wait_for_confirms(60):
                    return
                self.done = end
                self.stop.wait(self.pause)


class Chaos:
    """`kills`: how often each of VICTIMS is killed. `cluster`: nobody else uses it meanwhile. `nodes`: those of the broker."""

    def __init__(
        self, place: Path, messages: int, kills: Mapping[str, int], seed: int, cluster: Cluster, nodes: int = 1
    ) -> None:
        self.nodes = nodes
        self.place = place
        self.cluster = cluster
        self.rng = Random(seed)
        self.report = Report(seed, messages)
        self.todo = [what for what, n in kills.items() for _ in range(n)]
        self.rng.shuffle(self.todo)

    def run(self) -> Report:
        started = time.monotonic()
        self.broker: BrokerProcess | Replicated
        if self.nodes == 1:
            self.broker = BrokerProcess(self.place)
        else:
            self.broker = Replicated(self.place, self.nodes, self.rng)
        try:
            with Connection(self.broker.url) as connection:
                channel = connection.channel()
                for queue in (*READ, "out"):
                    channel.queue_declare(queue, durable=True)
                for queue in READ:
                    channel.queue_bind(queue, "amq.fanout", "")
            self.publish_and_kill()
            self.check()
        finally:
            if isinstance(self.broker, Replicated):
                self.broker.close()
            else:
                self.broker.kill()
        self.report.seconds = time.monotonic() - started
        return self.report

    def publish_and_kill(self) -> None:
        """Until all is through."""
        self.driver = self.start_driver()
        try:
            publisher = Publisher(self.broker.url, self.report.messages, PAUSE_S * len(self.todo))
            publisher.start()
            # killed in the midst of its very first entry, a checkpoint is refused by Spark itself
            while not all((self.place / f"checkpoint-{queue}" / "commits" / "0").exists() for queue in READ):
                self.wait(0.1)
            for what in self.todo:
                self.wait(self.rng.uniform(0.2, 2 * PAUSE_S))
                self.kill(what)
            while publisher.is_alive():
                self.wait(0.2)
            self.drain()
        finally:
            self.driver.kill()

    def start_driver(self) -> Child:
        most = max(self.report.messages // BATCHES, 1000)
        arguments = [self.broker.url, self.cluster.url, str(self.place), str(most)]
        return Child("driver", ["tests.spark.chaos.driver", *arguments], self.place / "driver.log")

    def kill(self, what: str) -> None:
        if what == "driver":
            self.driver.kill()
            self.driver = self.start_driver()
        elif what == "broker":
            self.broker.kill()
            self.broker.start()
        else:
            while not self.cluster.kill_executor(self.rng):
                self.wait(0.2)
        self.report.kills[what] += 1
        print(f"killed: {what}", file=sys.stderr, flush=True)

    def wait(self, seconds: float) -> None:
        """A driver that has ended is a mistake of ours: nothing that is killed may end a query. But see SPARKS_OWN."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not self.driver.running and SPARKS_OWN in self.driver.log.read_text(errors="replace"):
                self.report.restarts += 1
                self.driver.kill()
                self.driver.log.rename(self.place / f"driver-{self.report.restarts}.log")
                self.driver = self.start_driver()
            elif not self.driver.running:
                said = [line for line in self.driver.take() if line.startswith("failed")]
                raise RuntimeError(self.driver.why(f"has ended: {' '.join(said)}"))
            threading.Event().wait(min(left, 0.1))

    def drain(self) -> None:
        """Until all is settled: Spark has committed it."""
        deadline = time.monotonic() + END_S
        with Connection(self.broker.url) as connection:
            channel = connection.channel()
            while True:
                found = [channel.log_inspect(queue) for queue in READ]
                if all(at.settled == at.next for at in found):
                    break
                if time.monotonic() > deadline:
                    raise RuntimeError(f"not done after {END_S:g} s: {[(at.settled, at.next) for at in found]}")
                self.wait(0.5)
            self.report.stored = tuple(at.next for at in found)

    def check(self) -> None:
        report = self.report
        wanted = range(report.messages)
        table = read(self.place / "table", ["body", "offset"])
        rows = Counter(table.column("offset").to_pylist())
        bodies = {int(json.loads(body)["n"]) for body in table.column("body").to_pylist()}
        report.table_rows = table.num_rows
        report.doubled_in_table = sum(n - 1 for n in rows.values())
        report.lost_in_table = sum(n not in bodies for n in wanted)
        ids: Counter[str] = Counter()
        numbers: set[int] = set()
        with Connection(self.broker.url) as connection:
            channel = connection.channel()
            count = channel.queue_declare("out", passive=True).message_count
            for batch in channel.log_batches("out", 0, channel.log_inspect("out").next):
                for delivery in batch:
                    ids[delivery.properties.message_id or ""] += 1
                    numbers.add(int(json.loads(delivery.body)["N"]))
        report.out_rows = sum(ids.values())
        assert report.out_rows == count
        report.doubled_in_out = sum(n - 1 for n in ids.values())
        report.lost_in_out = sum(n not in numbers for n in wanted)
        landed = dataset(self.place / "landed").to_table(columns=["n", "_offset"])
        rows = Counter(landed.column("_offset").to_pylist())
        bodies = set(landed.column("n").to_pylist())
        report.landed_rows = landed.num_rows
        report.doubled_in_landed = sum(n - 1 for n in rows.values())
        report.lost_in_landed = sum(n not in bodies for n in wanted)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.spark.chaos.run", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=10, help="of each: driver, executor, broker")
    parser.add_argument("--nodes", type=int, default=1, help="3 or more: a cluster that elects its leader")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--place", type=Path, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else Random().randrange(1 << 32)
    with contextlib.ExitStack() as stack:
        place = arguments.place or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvitto-chaos-")))
        place.mkdir(parents=True, exist_ok=True)
        cluster = Cluster(place)
        stack.callback(cluster.stop)
        kills = dict.fromkeys(VICTIMS, arguments.kills)
        report = Chaos(place, arguments.messages, kills, seed, cluster, arguments.nodes).run()
    print(report)
    return 0 if report.right else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Exactly once, for real: a standalone cluster, and everything in it killed with SIGKILL while messages flow.

    .venv/bin/python -m tests.spark.chaos.run [--messages 1000000] [--kills 10] [--nodes N] [--seed N] [--place DIR]

One publisher, a fanout to queues `a`, `b` and `c`; Spark writes `a` to a Parquet table, sends `b`, transformed, to queue `out`,
and lands `c` in a table with `kvitto.pipeline.land` (driver.py). One of ten messages is not JSON: `land` sets it aside in a
second table. Meanwhile driver, executors and broker are killed at random, `--kills` times each. At the end each message that
the broker confirmed must be in the table, in `out` and in what was landed, and no message of `a`, `b` or `c` may be in there twice.

Queue `c` has an archive, which keeps each of its messages under its offset. What was landed under an offset must be the message
that has it in the archive: else the message was invented, or the offset was used again for another one.

With `--nodes 3` the broker is a cluster: its leader is killed, stands still, or ends in order, and another node is elected.
Then the archive of each node must fit.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq

from benchmarks.sink_table import read
from examples.flights.children import Child
from kvitto.client import AMQPError, Connection, Properties
from kvitto.spark.archive.files import find
from kvitto.spark.archive.reading import segment_messages
from kvitto.spark.archive.segment import Wanted
from kvitto.torture.cluster import KvittoCluster
from kvitto.torture.proxy import Proxy
from tests.spark.chaos.cluster import Cluster
from tests.spark.conftest import BrokerProcess

VICTIMS = ("driver", "executor", "broker")
QUEUES = ("a", "b", "c")
SPARKS_OWN = "Task serialization failed: java.lang.IllegalStateException: Illegal size"
"""Two queries of one driver: now and then Spark serialises a task while the other changes what goes with it."""
CHUNK = 500
PAUSE_S = 4.0
"""From one kill to the next, on average."""
BATCHES = 40
END_S = 300.0
"""After the last kill the rest must have gone through by then."""


def body_of(number: int) -> bytes:
    return b"message %d" % number if number % 10 == 9 else b'{"n": %d}' % number


def number_of(body: bytes | str) -> int:
    """The number of a message, however it was transformed."""
    (digits,) = re.findall(r"\d+", body if isinstance(body, str) else body.decode())
    return int(digits)


class Replicated:
    """A cluster of several nodes behind one address, which is always the leader's."""

    def __init__(self, place: Path, nodes: int, rng: Random) -> None:
        self._cluster = KvittoCluster(place / "nodes", nodes)
        self._rng = rng
        self.lost: Counter[str] = Counter()
        """How the leader was lost, and how often."""
        self._proxy = Proxy()
        self._proxy.start()
        self.url = f"amqp://guest:guest@127.0.0.1:{self._proxy.port}/%2f"
        self.start()

    def kill(self) -> None:
        """Lose the leader in one of three ways."""
        ways = {"killed": self._cluster.kill, "stood still": self._cluster.pause, "ended in order": self._cluster.stop}
        way = self._rng.choice(list(ways))
        self._proxy.target = None
        ways[way]()
        self._proxy.cut(lambda: True, reset=True)
        self.lost[way] += 1

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

    def copies(self) -> list[Path]:
        """Wait until all nodes are in sync, and return their directories."""
        self._cluster.wait_in_sync()
        return [node.data for node in self._cluster.nodes]

    def close(self) -> None:
        self._cluster.close()
        self._proxy.close()


class Single(BrokerProcess):
    """A broker that is one process."""

    def copies(self) -> list[Path]:
        return [self.directory / "data"]

    def close(self) -> None:
        self.kill()


@dataclass
class Landed:
    """What `land` has made of the messages of its queue, good ones and bad ones."""

    rows: int = 0
    bad: int = 0
    batches: int = 0
    lost: int = 0
    """Confirmed messages that are not there, and stored ones that are not there under their offset."""
    doubled: int = 0
    invented: int = 0
    """Numbers that nobody has sent, and offsets that no message has."""
    reused: int = 0
    """Offsets with another message than the one that was landed."""
    archives: int = 0

    @property
    def right(self) -> bool:
        return not (self.lost or self.doubled or self.invented or self.reused)

    def __str__(self) -> str:
        return (
            f"landed: {self.rows:,} rows and {self.bad:,} bad records in {self.batches:,} batches, lost {self.lost}, doubled"
            f" {self.doubled}; compared with {self.archives} archives: invented {self.invented}, offsets used again {self.reused}"
        )


@dataclass
class Report:
    seed: int
    messages: int
    kills: Counter[str] = field(default_factory=Counter)
    leaders: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    stored: Sequence[int] = (0, 0, 0)
    table_rows: int = 0
    out_rows: int = 0
    lost_in_table: int = 0
    lost_in_out: int = 0
    doubled_in_table: int = 0
    doubled_in_out: int = 0
    landed: Landed = field(default_factory=Landed)
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        wrong = self.lost_in_table or self.lost_in_out or self.doubled_in_table or self.doubled_in_out
        return not wrong and self.landed.right

    def __str__(self) -> str:
        stored = ", ".join(f"{n:,} in {queue}" for queue, n in zip(QUEUES, self.stored, strict=True))
        leaders = f" (leaders: {times(self.leaders)})" if self.leaders else ""
        return (
            f"seed {self.seed}: {self.messages:,} messages confirmed; stored: {stored}"
            f" (the rest were sent again after a kill); killed: {times(self.kills)}{leaders}; ended by"
            f" Spark's own race: {self.restarts}x; {self.seconds:.0f} s\n"
            f"table: {self.table_rows:,} rows, lost {self.lost_in_table}, doubled {self.doubled_in_table}\n"
            f"queue out: {self.out_rows:,} messages, lost {self.lost_in_out}, doubled {self.doubled_in_out}\n"
            f"{self.landed}"
        )


def times(counted: Counter[str]) -> str:
    return ", ".join(f"{what} {n}x" for what, n in sorted(counted.items())) or "none"


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
                    channel.publish(body_of(n), "amq.fanout", "", Properties(delivery_mode=2))
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
        self.broker: Single | Replicated
        if self.nodes == 1:
            self.broker = Single(self.place)
        else:
            self.broker = Replicated(self.place, self.nodes, self.rng)
            self.report.leaders = self.broker.lost
        try:
            with Connection(self.broker.url) as connection:
                channel = connection.channel()
                for queue in ("a", "b", "out"):
                    channel.queue_declare(queue, durable=True)
                channel.queue_declare("c", durable=True, arguments={"x-archive": True})
                for queue in QUEUES:
                    channel.queue_bind(queue, "amq.fanout", "")
            self.publish_and_kill()
            self.check()
            copies = self.broker.copies()
        finally:
            self.broker.close()
        self.report.landed = compare(self.place / "landed", copies, self.report.messages)
        self.report.seconds = time.monotonic() - started
        return self.report

    def publish_and_kill(self) -> None:
        """Until all is through."""
        self.driver = self.start_driver()
        try:
            publisher = Publisher(self.broker.url, self.report.messages, PAUSE_S * len(self.todo))
            publisher.start()
            # killed in the midst of its very first entry, a checkpoint is refused by Spark itself
            while not all((self.place / f"checkpoint-{queue}" / "commits" / "0").exists() for queue in QUEUES):
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
                found = [channel.log_inspect(queue) for queue in QUEUES]
                if all(at.settled == at.next for at in found):
                    break
                if time.monotonic() > deadline:
                    raise RuntimeError(f"not done after {END_S:g} s: {[(at.settled, at.next) for at in found]}")
                self.wait(0.5)
            self.report.stored = [at.next for at in found]

    def check(self) -> None:
        report = self.report
        wanted = range(report.messages)
        table = read(self.place / "table", ["body", "offset"])
        rows = Counter(table.column("offset").to_pylist())
        bodies = {number_of(body) for body in table.column("body").to_pylist()}
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
                    numbers.add(number_of(delivery.body))
        report.out_rows = sum(ids.values())
        assert report.out_rows == count
        report.doubled_in_out = sum(n - 1 for n in ids.values())
        report.lost_in_out = sum(n not in numbers for n in wanted)


def compare(table: Path, directories: Sequence[Path], messages: int) -> Landed:
    """What was landed, as a reader without Spark sees it, with what was sent, and with the archive of each node."""
    good = list(rows_of(table, "n", "_offset"))
    aside = table.with_name(f"{table.name}.bad")
    bad = [(number_of(body), offset) for body, offset in rows_of(aside, "body", "offset")]
    landed = {offset: number for number, offset in (*good, *bad)}
    sent, numbers = set(range(messages)), set(landed.values())
    found = Landed(len(good), len(bad), archives=len(directories))
    found.batches = len({file.name.rpartition("-")[0] for file in table.glob("[!_.]*.parquet")})
    found.doubled = len(good) + len(bad) - len(landed)
    found.lost, found.invented = len(sent - numbers), len(numbers - sent)
    for directory in directories:
        stored = set()
        for offset, number in archived(directory):
            stored.add(offset)
            found.lost += offset not in landed
            found.reused += landed.get(offset, number) != number
        found.invented += len(landed.keys() - stored)
    return found


def rows_of(table: Path, *columns: str) -> Iterable[tuple[Any, ...]]:
    for file in table.glob("[!_.]*.parquet"):
        part = pq.ParquetFile(file).read(columns=list(columns))
        yield from zip(*(part.column(name).to_pylist() for name in columns), strict=True)


def archived(directory: Path) -> Iterable[tuple[int, int]]:
    """The offset and the number of each message that a broker's directory has in the archive, or on its way there."""
    for segment in find(directory):
        for some, _ in segment_messages(segment, Wanted(0, 1 << 62), None, False):
            for row, offset in enumerate(some.offsets.tolist()):
                yield offset, number_of(bytes(some.bodies[some.body_ends[row] : some.body_ends[row + 1]]))


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

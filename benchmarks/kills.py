"""Kill the Spark driver again and again while it lands a queue of RabbitMQ in mode `staged`; count what is lost or doubled.

    python -m benchmarks.kills --kills 50 [--without-spark]

Messages with ids are published all the time. Each turn starts a driver and sends SIGKILL at a moment by chance: to all of
its processes, or to Java alone, so that the Python that consumes and acks lives on for a moment. A real Spark is killed at
any time, while it starts, just when a file is staged, or just when the sink has committed what is not in Spark's log yet
(AIMS); what it was hit in is read off what it left on disk. In the end one more run drains the queue, and the rows that
the sink has committed are counted.

A Spark takes ten seconds or more to start. Without it a small process calls the source in Spark's order (offset log, read,
sink, commit log), which makes many more kills in the same time, and more of them in the middle of something.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import sink_table
from benchmarks.brokers import RabbitMQ
from examples.flights.children import Child
from kvitto.base.process import session_members
from kvitto.client import Connection, Properties

QUEUE = "kills"
BATCH = 500
START_S = 180.0
DRAIN_S = 1800.0
AIMS = ("any time", "any time", "starting", "staging", "committing")
AIM_S = 10.0
"""So long a moment is waited for; then the kill comes anyway."""


@dataclass
class Count:
    """What came out of it."""

    kills: int = 0
    published: int = 0
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    java_only: int = 0
    redelivered: int = 0
    seconds: float = 0.0
    hit: Counter[str] = field(default_factory=Counter)
    """By what `state` says of the moment."""

    def __str__(self) -> str:
        hit = ", ".join(f"{n} {what}" for what, n in self.hit.most_common())
        return (
            f"{self.kills} kills ({self.java_only} of Java alone) in {self.seconds:.0f} s; the driver was {hit}\n"
            f"{self.published:,} messages published, {self.rows:,} rows landed: {self.lost} lost, {self.doubled} doubled;"
            f" {self.redelivered:,} rows had been delivered before"
        )


class Publisher(threading.Thread):
    """Publishes messages 0, 1, 2, ... with confirms until it is told to stop."""

    def __init__(self, uri: str, rate: int) -> None:
        super().__init__(daemon=True)
        self.uri = uri
        self.rate = rate
        self.confirmed = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        with Connection(self.uri, buffer_bytes=1 << 16) as connection:
            channel = connection.channel()
            channel.confirm_select()
            chunk = max(1, self.rate // 10)
            while not self.stopping.wait(0.1):
                for n in range(self.confirmed, self.confirmed + chunk):
                    channel.publish(b"message %d" % n, routing_key=QUEUE, properties=Properties(message_id=f"id-{n}"))
                if not channel.wait_for_confirms(60):
                    raise RuntimeError("RabbitMQ did not take a message")
                self.confirmed += chunk


class Driver:
    """The program that lands the queue. It is killed with its session, and must not end by itself."""

    def __init__(self, uri: str, place: Path, *, spark: bool) -> None:
        self.place = place
        self.spark = spark
        self.arguments = ["benchmarks.kills", "--query" if spark else "--imitate", uri, str(place)]
        self.start_s = 0.0
        """What the last one took until it had committed a batch."""

    def start(self, *more: str) -> Child:
        return Child("driver", [*self.arguments, *more], self.place / "driver.log")

    def kill_at(self, aim: str, rng: random.Random) -> bool:
        """Start one and kill it; whether its Java went alone, a moment before the rest."""
        place, before, launched = self.place, commits(self.place), time.monotonic()
        child = self.start()
        if aim == "starting":
            time.sleep(rng.uniform(0.5, 1) * self.start_s)
        else:
            wait(child, lambda: commits(place) > before, START_S)
            self.start_s = time.monotonic() - launched
            time.sleep(rng.uniform(0, 3 if self.spark else 1.5))
        java = java_of(child)  # looked up before, so that the kill hits the moment
        if aim == "staging":
            newest = newest_file(place)
            wait_briefly(lambda: newest_file(place) > newest)
        if aim == "committing":
            wait_briefly(lambda: sunk(place) > commits(place))
        if not child.running:
            raise RuntimeError(child.why("ended by itself"))
        for pid in java:
            os.kill(pid, signal.SIGKILL)
        alone = bool(java) and rng.random() < 0.5
        if alone:
            time.sleep(rng.uniform(0, 0.5))
        child.kill()
        return alone

    def drain(self) -> None:
        """One more, until nothing is left."""
        child = self.start("--drain")
        try:
            wait(child, lambda: not child.running, DRAIN_S, alive=False)
            if child.process.returncode != 0:
                raise RuntimeError(child.why("failed"))
        finally:
            child.kill()


def run(
    uri: str, place: Path, kills: int, rate: int, *, spark: bool, seed: int = 0, say: Callable[[str], None] = print
) -> Count:
    """So many kills, then the count. `place`: an empty directory."""
    rng = random.Random(seed)
    count = Count(kills)
    began = time.monotonic()
    driver = Driver(uri, place, spark=spark)
    with Connection(uri) as connection:
        connection.channel().queue_declare(QUEUE, durable=True)
    publisher = Publisher(uri, rate)
    publisher.start()
    for k in range(kills):
        # the first turn has to commit: Spark refuses a checkpoint that was killed within its very first entry
        aim = rng.choice(AIMS) if spark and k else "any time"
        count.java_only += driver.kill_at(aim, rng)
        count.hit[state(place)] += 1
        say(
            f"kill {k + 1} of {kills}, {state(place)}: {commits(place)} batches, {publisher.confirmed:,} messages published"
        )
    publisher.stopping.set()
    publisher.join()
    driver.drain()
    with Connection(uri) as connection:
        left = connection.channel().queue_declare(QUEUE, passive=True).message_count
    if left:
        raise RuntimeError(f"the last run left {left} messages in the queue")
    rows = spark_rows(place) if spark else imitated_rows(place)
    ids = [name for name, _ in rows]
    count.published = publisher.confirmed
    count.rows = len(ids)
    count.lost = len({f"id-{n}" for n in range(publisher.confirmed)} - set(ids))
    count.doubled = len(ids) - len(set(ids))
    count.redelivered = sum(again for _, again in rows)
    count.seconds = time.monotonic() - began
    return count


def spark_rows(place: Path) -> list[tuple[str, bool]]:
    """(message id, redelivered) of all rows in files that the sink has committed."""
    landed = sink_table.read(place / "table", ["message_id", "redelivered"])
    return list(zip(*(landed.column(name).to_pylist() for name in ("message_id", "redelivered")), strict=True))


def imitated_rows(place: Path) -> list[tuple[str, bool]]:
    """The same of the imitation's sink: a file per batch."""
    return [tuple(row) for path in place.glob("table/[0-9]*") for row in json.loads(path.read_text())]


def wait(child: Child, condition: Callable[[], bool], timeout_s: float, *, alive: bool = True) -> None:
    """Until it holds; RuntimeError with the end of the child's log if it will not."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if alive and not child.running:
            raise RuntimeError(child.why("ended by itself"))
        if time.monotonic() > deadline:
            child.kill()
            raise RuntimeError(child.why(f"did not get ready within {timeout_s:g} s"))
        time.sleep(0.02)


def wait_briefly(condition: Callable[[], bool]) -> None:
    """Until it holds, looking all the time: it may hold for milliseconds."""
    deadline = time.monotonic() + AIM_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)


def commits(place: Path) -> int:
    """Batches that Spark has committed, by the highest number."""
    return count_of(place / "checkpoint" / "commits")


def sunk(place: Path) -> int:
    """Batches that the sink has committed."""
    log = place / "table" / "_spark_metadata"
    return count_of(log if log.exists() else place / "table")


def count_of(log: Path) -> int:
    """The highest number of a file in one of Spark's logs, and one more; some are named `9.compact`."""
    return max((int(path.name.partition(".")[0]) + 1 for path in log.glob("[0-9]*")), default=0)


def newest_file(place: Path) -> int:
    """The number of the last staged file that is there, -1 if none is."""
    return max((int(path.stem) for path in place.glob("staging/queue-*/*.arrow")), default=-1)


def state(place: Path) -> str:
    """What a driver was doing when it was killed, by what it left."""
    offsets = place / "checkpoint" / "offsets"
    planned = count_of(offsets)
    if planned > commits(place):
        return "between the sink's commit and Spark's" if sunk(place) >= planned else "within a batch"
    last = json.loads((offsets / str(planned - 1)).read_text().splitlines()[-1])
    (at,) = last["queues"].values()
    return "between a staged file and Spark's log" if newest_file(place) >= at["next"] else "between two batches"


def java_of(child: Child) -> list[int]:
    """The Java of a driver, by process id; nothing if it has none yet."""
    found: list[int] = []
    for pid in session_members(child.pid):
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                found.append(pid)
        except OSError:
            continue
    return found


def query(uri: str, place: Path, drain: bool) -> None:
    """The driver that is killed."""
    from examples.flights.query import SETTINGS
    from kvitto.pipeline.session import open_session

    spark = open_session("kills", "local[2]", SETTINGS)
    messages = (
        spark.readStream.format("amqp")
        .option("uri", uri)
        .option("queue", QUEUE)
        .option("stagingLocation", str(place / "staging"))
        .option("maxOffsetsPerTrigger", BATCH if not drain else 400 * BATCH)
        .schema("message_id string, offset long, redelivered boolean")
        .load()
    )
    writer = messages.writeStream.format("parquet").option("path", str(place / "table"))
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    if drain:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


def imitate(uri: str, place: Path, drain: bool) -> None:
    """What Spark does with a source and an idempotent sink, in its order. A file that has its name is whole."""
    from pyspark.sql.streaming.datasource import ReadMaxRows
    from pyspark.sql.types import StructType

    from kvitto.spark.options import read_options
    from kvitto.spark.schema import full_schema
    from kvitto.spark.source import AmqpStreamReader

    given = {"uri": uri, "queue": QUEUE, "stagingLocation": str(place / "staging"), "maxOffsetsPerTrigger": str(BATCH)}
    schema = StructType([full_schema(False)[name] for name in ("message_id", "redelivered")])
    reader = AmqpStreamReader(read_options(given), schema)
    offsets, done, sink = (place / name for name in ("checkpoint/offsets", "checkpoint/commits", "table"))
    for directory in (offsets, done, sink):
        directory.mkdir(parents=True, exist_ok=True)

    def write(path: Path, value: object) -> None:
        torn = path.with_name(f".{path.name}")
        torn.write_text(json.dumps(value))
        torn.rename(path)

    def run_batch(batch: int, start: dict[str, object], end: dict[str, object]) -> None:
        rows = [
            tuple(row.values())
            for part in reader.partitions(start, end)
            for piece in reader.read(part)
            for row in piece.to_pylist()
        ]
        write(sink / str(batch), rows)
        write(done / str(batch), {})

    if drain:
        reader.prepareForTriggerAvailableNow()
    batch = max((int(path.name) for path in offsets.glob("[0-9]*")), default=-1)
    if batch > 0:
        start = json.loads((offsets / str(batch - 1)).read_text())
    else:
        start = reader.initialOffset()
    if batch >= 0:
        end = json.loads((offsets / str(batch)).read_text())
        if not (done / str(batch)).exists():
            run_batch(batch, start, end)
        start = end
    while True:
        end = reader.latestOffset(start, ReadMaxRows(BATCH))
        if json.dumps(end) == json.dumps(start):
            if drain:
                break
            continue
        batch += 1
        write(offsets / str(batch), end)
        reader.commit(start)
        run_batch(batch, start, end)
        start = end
    reader.stop()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50, metavar="N")
    parser.add_argument("--rate", type=int, default=1000, metavar="N", help="messages published per second")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--without-spark", action="store_true", help="a process that calls the source as Spark does")
    parser.add_argument("--imitate", nargs=2, metavar=("URI", "DIR"), help=argparse.SUPPRESS)
    parser.add_argument("--query", nargs=2, metavar=("URI", "DIR"), help=argparse.SUPPRESS)
    parser.add_argument("--drain", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.query:
        query(given.query[0], Path(given.query[1]), given.drain)
        return 0
    if given.imitate:
        imitate(given.imitate[0], Path(given.imitate[1]), given.drain)
        return 0
    with tempfile.TemporaryDirectory(prefix="kvitto-kills-") as name:
        place = Path(name)
        node = RabbitMQ(place / "rabbitmq", frozenset(os.sched_getaffinity(0)), None)
        node.start()
        try:
            count = run(node.uri, place, given.kills, given.rate, spark=not given.without_spark, seed=given.seed)
        finally:
            node.stop()
    print(count)
    return 0 if count.lost == count.doubled == 0 else 1


if __name__ == "__main__":
    sys.exit(main())

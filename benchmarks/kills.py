"""Kill the Spark driver again and again while it lands a queue of RabbitMQ in mode `staged`; count what is lost or doubled.

    python -m benchmarks.kills --kills 50 [--without-spark]

Messages with ids are published all the time. Each turn starts a driver, lets it commit a batch, and sends SIGKILL at a
moment by chance: to all of its processes, or to Java alone, so that the Python that consumes and acks lives on for a
moment. In the end one more run drains the queue, and the rows that the sink has committed are counted.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import sink_table
from benchmarks.brokers import RabbitMQ
from kvitto.client import Connection, Properties
from kvitto.demo.children import Child, session_members

QUEUE = "kills"
BATCH = 500
START_S = 180.0
DRAIN_S = 600.0


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

    def __str__(self) -> str:
        return (
            f"{self.kills} kills ({self.java_only} of Java alone), {self.published} messages published, {self.rows} rows landed:"
            f" {self.lost} lost, {self.doubled} doubled; {self.redelivered} rows had been delivered before"
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


def run(
    uri: str, place: Path, kills: int, rate: int, *, spark: bool, seed: int = 0, say: Callable[[str], None] = print
) -> Count:
    """So many kills, then the count. `place`: an empty directory."""
    rng = random.Random(seed)
    count = Count(kills)
    arguments = ["benchmarks.kills", "--query" if spark else "--imitate", uri, str(place)]
    with Connection(uri) as connection:
        connection.channel().queue_declare(QUEUE, durable=True)
    publisher = Publisher(uri, rate)
    publisher.start()
    for k in range(kills):
        before = commits(place)
        child = Child("driver", arguments, place / "driver.log")
        wait(child, lambda before=before: commits(place) > before, START_S)  # type: ignore[misc]
        time.sleep(rng.uniform(0, 1.5))
        if spark and rng.random() < 0.5:
            count.java_only += kill_java(child)
            time.sleep(rng.uniform(0, 0.5))
        child.kill()
        say(f"kill {k + 1} of {kills}: {commits(place)} batches, {publisher.confirmed} messages published")
    publisher.stopping.set()
    publisher.join()
    last = Child("driver", [*arguments, "--drain"], place / "driver.log")
    try:
        wait(last, lambda: not last.running, DRAIN_S, alive=False)
        if last.process.returncode != 0:
            raise RuntimeError(last.why("failed"))
    finally:
        last.kill()
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


def commits(place: Path) -> int:
    """Batches that Spark has committed, by the highest number."""
    return max((int(path.name) + 1 for path in place.glob("checkpoint/commits/[0-9]*")), default=0)


def kill_java(child: Child) -> int:
    """SIGKILL for the Java of a driver, and nothing else."""
    killed = 0
    for pid in session_members(child.pid):
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                os.kill(pid, signal.SIGKILL)
                killed = 1
        except OSError:
            continue
    return killed


def query(uri: str, place: Path, drain: bool) -> None:
    """The driver that is killed."""
    from kvitto.demo.query import SETTINGS
    from kvitto.pipeline.session import open_session

    spark = open_session("kills", "local[2]", SETTINGS)
    messages = (
        spark.readStream.format("amqp")
        .option("uri", uri)
        .option("queue", QUEUE)
        .option("stagingLocation", str(place / "staging"))
        .option("maxOffsetsPerTrigger", BATCH if not drain else 100 * BATCH)
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

"""Spark's source, sink, archive and ledger on this machine: `.venv/bin/python -m benchmarks.spark` writes benchmarks/spark.md.

Each job is one Spark action in `local[2]` against a Kvitto that runs beside it, timed from its start to its end as a user
would: planning, tasks, commit. Beside it the same with pika inside of the tasks, and with Spark's own files.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pika
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import kvitto
from benchmarks import brokers, proc
from benchmarks.measure import disturbance
from kvitto.client import Connection
from kvitto.pipeline.ledger import ledger
from kvitto.spark.rows import Layout, to_messages, with_ids

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "bench" / "spark"
OUT = ROOT / "benchmarks" / "spark.md"
BODY_BYTES = 100
COLUMNS = "body binary, message_id string, offset bigint"
ARCHIVE_COLUMNS = "offset bigint, body binary"
ALL_COLUMNS = "queue string, offset bigint, published timestamp, outcome string, settled timestamp, body binary"
PREFETCH = 20_000
PIKA_PREFETCH = 1000
LEDGER_S = 60
WAIT_S = 60.0


Action = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Job:
    """One row of the table: `prepare` gives the action that is timed. `target` in rows/s, 0 = it is there for comparison."""

    title: str
    rows: int
    prepare: Callable[[], Action]
    target: int = 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    flag = parser.add_argument
    flag("--read", type=int, default=2_000_000, metavar="N", help="messages that are read (2,000,000)")
    flag("--write", type=int, default=1_000_000, metavar="N", help="rows that are written (1,000,000)")
    flag("--archive", type=int, default=10_000_000, metavar="N", help="messages in the archive (10,000,000)")
    flag("--runs", type=int, default=3, metavar="N", help="runs of each job after one to warm up (3)")
    flag("--only", default="", metavar="TEXT", help="only jobs with this in their title")
    flag("--out", type=Path, default=OUT, help="where the report goes (benchmarks/spark.md)")
    return parser.parse_args()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- what is read and written


def fill(uri: str, queue: str, count: int, arguments: dict[str, Any] | None = None) -> None:
    """Messages of 100 bytes with a message_id, confirmed."""
    layout = Layout(("body",), None, "", queue)
    with Connection(uri, buffer_bytes=1 << 20) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, arguments=arguments)
        channel.confirm_select()
        for first in range(0, count, 10_000):
            size = min(10_000, count - first)
            data = pa.py_buffer(os.urandom(BODY_BYTES) * size)
            ends = pa.py_buffer(np.arange(0, BODY_BYTES * (size + 1), BODY_BYTES, dtype=np.int32))
            body = pa.Array.from_buffers(pa.binary(), size, [None, ends, data])
            batch = with_ids(pa.RecordBatch.from_arrays([body], names=["body"]), "id-", first)
            rows = to_messages(batch, layout)
            channel.publish_rows(rows.bodies, rows.exchanges, rows.routing_keys, rows.properties, 0, size)
            channel.wait_until_outstanding(20_000, 60)
        if not channel.wait_for_confirms(60):
            raise SystemExit("the broker refused some of the messages to be read")


def settle(uri: str, queue: str, count: int) -> None:
    """Consume and acknowledge at least so many."""
    with Connection(uri) as connection:
        channel = connection.channel()
        channel.qos(PREFETCH)
        channel.consume(queue)
        while count > 0:
            batch = channel.receive(WAIT_S)
            channel.ack(batch.delivery_tags()[-1], multiple=True)
            count -= len(batch)


def wait_for(uri: str, queue: str, count: int) -> None:
    """Until the queue holds exactly so many messages."""
    deadline = time.monotonic() + WAIT_S
    with Connection(uri) as connection:
        channel = connection.channel()
        while (found := channel.log_inspect(queue).next) != count:
            if time.monotonic() > deadline or found > count:
                raise SystemExit(f"{count:,} rows were written, and queue {queue} has {found:,} messages")
            time.sleep(0.05)


def session(place: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("kvitto benchmark")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(place / "tmp"),
        "spark.ui.showConsoleProgress": "false",
        "spark.python.unix.domain.socket.enabled": "true",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


@dataclass(slots=True)
class Bench:
    """What the jobs share."""

    spark: SparkSession
    uri: str
    place: Path
    reads: int
    writes: int
    kept: int
    data: Path
    """The broker's data directory."""
    made: int = 0
    written: str = ""
    """The queue of the sink's last run."""

    def fresh(self) -> str:
        """A directory or a queue that was not there."""
        self.made += 1
        return f"{self.made:03}"

    def jobs(self) -> Iterator[Job]:
        few = max(self.reads // 20 // 2 * 2, 2)
        yield Job("source -> noop", self.reads, lambda: partial(noop, self.messages()), 600_000)
        yield Job("source -> Parquet", self.reads, lambda: self.parquet(self.messages()), 400_000)
        yield Job("pika in mapInArrow -> noop", few, lambda: self.pika_source(few))
        yield Job("Spark's text files -> noop", self.reads, lambda: partial(noop, self.lines()))
        yield Job("Spark's text files -> Parquet", self.reads, lambda: self.parquet(self.lines()))
        few = max(self.writes // 50, 2)
        yield Job("sink", self.writes, self.sink, 150_000)
        yield Job("pika in foreachPartition, confirmed", few, lambda: self.pika_sink(few))
        yield Job("Spark's text files as sink", self.writes, self.text)
        yield Job(f"archive ({ARCHIVE_COLUMNS}) -> noop", self.kept, lambda: self.archive(ARCHIVE_COLUMNS), 4_000_000)
        yield Job(f"archive ({ALL_COLUMNS}) -> noop", self.kept, lambda: self.archive(ALL_COLUMNS))
        yield Job("ledger", self.kept, lambda: self.ledger(False), self.kept // LEDGER_S)
        yield Job("ledger, with a receipt for each", self.kept, lambda: self.ledger(True), self.kept // LEDGER_S)

    def path(self) -> str:
        return str(self.place / "out" / self.fresh())

    def numbers(self, count: int) -> DataFrame:
        """Rows with a body of 100 bytes."""
        body = f.rpad(f.col("id").cast("string"), BODY_BYTES, "x").alias("body")
        return self.spark.range(0, count, 1, 2).select(body)

    def messages(self) -> DataFrame:
        return self.spark.read.format("amqp").option("uri", self.uri).option("queue", "read").schema(COLUMNS).load()

    def lines(self) -> DataFrame:
        path = self.place / "lines"
        if not path.exists():
            self.numbers(self.reads).write.text(str(path))
        return self.spark.read.text(str(path))

    def parquet(self, df: DataFrame) -> Action:
        return partial(df.write.parquet, self.path())

    def text(self) -> Action:
        return partial(self.numbers(self.writes).write.text, self.path())

    def queue(self) -> str:
        name = f"written-{self.fresh()}"
        with Connection(self.uri) as connection:
            connection.channel().queue_declare(name, durable=True)
        return name

    def sink(self) -> Action:
        """Not before the last run's messages have moved from their stages to their queue, which goes on behind the commit."""
        if self.written:
            wait_for(self.uri, self.written, self.writes)
        self.written = self.queue()
        writer = self.numbers(self.writes).write.format("amqp").mode("append")
        return writer.option("uri", self.uri).option("routingKey", self.written).save

    def archived(self) -> Path:
        """The data directory, once it has an archive: all but a twentieth settled. Beside it a receipt for each message."""
        receipts = self.place / "receipts.txt"
        if not receipts.exists():
            fill(self.uri, "archived", self.kept, {"x-archive": True})
            settle(self.uri, "archived", self.kept - self.kept // 20)
            with receipts.open("w") as file:
                file.writelines(f"id-{k}\n" for k in range(self.kept))
        return self.data

    def archive(self, columns: str) -> Action:
        return partial(noop, self.spark.read.format("kvitto-archive").schema(columns).load(str(self.archived())))

    def ledger(self, receipts: bool) -> Action:
        data, files = self.archived(), [self.place / "receipts.txt"] if receipts else []

        def run() -> None:
            found = ledger(self.spark, data, files)
            if found.published != self.kept or not found.even:
                raise SystemExit(f"the ledger has {found.published:,} messages of {self.kept:,}, even: {found.even}")

        return run

    def pika_source(self, count: int) -> Action:
        """Two tasks, each with a queue of its own."""
        uri, queues, share = self.uri, [self.queue(), self.queue()], count // 2
        for queue in queues:
            fill(uri, queue, share)

        def consume(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            (queue,) = (name for batch in batches for name in batch.column(0).to_pylist())
            connection = pika.BlockingConnection(pika.URLParameters(uri))
            channel = connection.channel()
            channel.basic_qos(prefetch_count=PIKA_PREFETCH)
            bodies: list[bytes] = []
            for method, _, body in channel.consume(queue):
                bodies.append(body)
                if len(bodies) % PIKA_PREFETCH == 0 or len(bodies) == share:
                    channel.basic_ack(method.delivery_tag, multiple=True)
                if len(bodies) == share:
                    break
            connection.close()
            yield pa.RecordBatch.from_arrays([pa.array(bodies, pa.binary())], names=["body"])

        tasks = self.spark.sparkContext.parallelize([(queue,) for queue in queues], 2)
        return partial(noop, tasks.toDF("queue string").mapInArrow(consume, "body binary"))

    def pika_sink(self, count: int) -> Action:
        uri, queue = self.uri, self.queue()
        properties = pika.BasicProperties(delivery_mode=2)

        def publish(rows: Iterator[Any]) -> None:
            connection = pika.BlockingConnection(pika.URLParameters(uri))
            channel = connection.channel()
            channel.confirm_delivery()
            for row in rows:
                channel.basic_publish("", queue, row.body.encode(), properties, mandatory=True)
            connection.close()

        return partial(self.numbers(count).foreachPartition, publish)


def noop(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


# --- the report


@dataclass(frozen=True, slots=True)
class Timed:
    """One run: rows/s, and what else kept the machine busy."""

    rate: float
    disturbed: str


def measure(job: Job, runs: int, broker: int) -> list[Timed]:
    """Each run but the first, in which the JVM compiles and Python starts."""
    found = []
    for _ in range(runs + 1):
        action = job.prepare()
        before = proc.snapshot()
        started = time.perf_counter()
        action()
        rate = job.rows / (time.perf_counter() - started)
        others = proc.others_between(before, proc.snapshot(), (), (os.getpid(), broker))
        found.append(Timed(rate, disturbance(others)))
    return found[1:]


def row(job: Job, found: list[Timed]) -> str:
    rates = [timed.rate for timed in found]
    median = statistics.median(rates)
    verdict = "" if not job.target else "met" if median >= job.target else "**missed**"
    target = f"≥ {job.target:,}" if job.target else ""
    disturbed = "; ".join(sorted({timed.disturbed for timed in found if timed.disturbed}))
    spread = f"{median:,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
    return f"| {job.title} | {job.rows:,} | {spread} | {target} | {verdict} | {disturbed} |"


def report(args: argparse.Namespace, rows: list[str], place: Path) -> str:
    facts = {**proc.machine(), "file system": proc.filesystem(place)}
    head = [
        "# Spark benchmark results",
        "",
        f"Written by `.venv/bin/python -m benchmarks.spark`. {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC,"
        f" Kvitto {kvitto.__version__}, `local[2]` with the broker on the same machine; "
        + ", ".join(f"{name} {value}" for name, value in facts.items())
        + f". Bodies of {BODY_BYTES} bytes; columns read from queues: {COLUMNS}. Rows to and from Python over Unix sockets"
        f" (spark.python.unix.domain.socket.enabled). Median of {args.runs} runs (least to most) after one to"
        " warm up; a run is a whole Spark action with planning and commit.",
        "",
        "| job | rows | rows/s | target | | disturbed |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, ""])


def main() -> int:
    args = arguments()
    if not kvitto.compiled():
        say("benchmarks.spark: Kvitto runs interpreted; run `make build` and start again")
        return 2
    shutil.rmtree(PLACE, ignore_errors=True)
    with ExitStack() as running:
        running.callback(shutil.rmtree, PLACE, ignore_errors=True)
        broker = brokers.Kvitto(PLACE / "broker", frozenset(os.sched_getaffinity(0)), None)
        broker.start()
        running.callback(broker.stop)
        fill(broker.uri, "read", args.read)
        spark = session(PLACE)
        running.callback(spark.stop)
        rows = []
        for job in Bench(
            spark, broker.uri, PLACE, args.read, args.write, args.archive, PLACE / "broker" / "data"
        ).jobs():
            if args.only in job.title:
                rows.append(row(job, measure(job, args.runs, broker.pid)))
                say(rows[-1])
        text = report(args, rows, PLACE)
    args.out.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

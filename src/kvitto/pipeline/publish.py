"""`publish` and `replay`: rows of a table, or messages of an archive, -> an exchange; once, and resumable.

Each source of rows (a file of the table, a queue of the archive) is a writer of class `stage`. Its rows are committed
in chunks, and the position of a chunk's last row is the number of the writer's batch. So the broker knows the progress
of each source, and a retried task, or a second run with the same checkpoint, goes on after that row.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kvitto.client import AMQPError, Channel, Connection
from kvitto.pipeline.arguments import add_common, count
from kvitto.pipeline.session import JobError, run_job, session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row, SparkSession

    from kvitto.spark.rows import Layout
    from kvitto.spark.sink_options import SinkOptions

CHUNK: Final = 10_000
"""The number of rows in one commit, if there is no rate."""
SOURCE, POSITION = "_source", "_position"
"""The columns with the source of a row: its writer, and a number that increases within it."""
POLL_S: Final = 0.2
REPORT_S: Final = 1.0
RESULT: Final = "writer string, published long, skipped long"
ARCHIVED: Final = (
    "body", "routing_key", "message_id", "correlation_id", "content_type", "content_encoding", "priority", "type",
    "app_id", "reply_to", "timestamp", "headers",
)  # fmt: skip
"""The properties of an archived message that are published again: all but its exchange, its expiration, and the user,
who is another now."""


@dataclass
class Published:
    """The rows that this run published, and those that an earlier run had published."""

    published: int = 0
    skipped: int = 0
    seconds: float = 0.0


def publish(
    spark: SparkSession,
    uri: str,
    table: str,
    *,
    format: str = "parquet",
    schema: str | None = None,
    exchange: str = "",
    routing_key: str | None = None,
    body: str = "json",
    checkpoint: str | None = None,
    rate: float = 0.0,
    progress: Callable[[str], None] = lambda text: None,
) -> Published:
    """Publish a table of files that Spark reads (parquet, json, csv, orc, avro, text).

    `body` is json: each row as a JSON object; or column: the columns are those of the sink (docs/spark.md), with
    `body`. `rate`: maximum messages/s, 0 for no limit. With `checkpoint` a second run publishes only the rows that the
    first one did not.
    """
    from pyspark.sql import functions as f

    reader = spark.read.format(format).option("header", "true").option("inferSchema", "true")
    with _whole_files(spark):
        rows = (reader.schema(schema) if schema else reader).load(table)
        changed = f.unix_micros("_metadata.file_modification_time")
        known = [f.col("_metadata.file_path"), f.col("_metadata.file_size").cast("string"), changed.cast("string")]
        rows = rows.select("*", f.concat_ws("|", *known).alias(SOURCE))
        tasks = min(rows.rdd.getNumPartitions(), spark.sparkContext.defaultParallelism)
        return _Run(spark, uri, exchange, routing_key, body, checkpoint, rate).run(rows, max(1, tasks), progress)


def replay(
    spark: SparkSession,
    uri: str,
    archive: str,
    *,
    queue: str,
    since: str | None = None,
    until: str | None = None,
    where: str | None = None,
    exchange: str = "",
    routing_key: str | None = None,
    checkpoint: str | None = None,
    rate: float = 0.0,
    progress: Callable[[str], None] = lambda text: None,
) -> Published:
    """Publish archived messages of a queue again, selected by time of publishing [since, until) and a Spark filter expression."""
    from pyspark.sql import functions as f

    reader = spark.read.format("kvitto-archive").option("queue", queue).option("includeHeaders", "true")
    for option, value in (("startingTimestamp", since), ("endingTimestamp", until)):
        if value is not None:
            reader = reader.option(option, value)
    messages = reader.load(archive)
    if where:
        messages = messages.where(where)
    rows = messages.select(*ARCHIVED, f.col("queue_id").alias(SOURCE), f.col("offset").alias(POSITION))
    if routing_key is not None:
        rows = rows.drop("routing_key")
    rows = rows.repartition(1).sortWithinPartitions(SOURCE, POSITION)
    return _Run(spark, uri, exchange, routing_key, "column", checkpoint, rate).run(rows, 1, progress)


class _Run:
    def __init__(
        self,
        spark: SparkSession,
        uri: str,
        exchange: str,
        routing_key: str | None,
        body: str,
        checkpoint: str | None,
        rate: float,
    ) -> None:
        from kvitto.spark.sink_options import read_sink_options

        self.spark = spark
        self.rate = rate
        self.chunk = max(1, min(CHUNK, int(rate))) if rate else CHUNK
        self.done: list[Row] = []
        self.error: Exception | None = None
        given = {"uri": uri, "exchange": exchange} | ({"value": "json"} if body == "json" else {})
        self.options = read_sink_options(given | ({} if routing_key is None else {"routingKey": routing_key}))
        _need_stages(uri)
        self.id = f"publish-{uuid.uuid4().hex[:16]}" if checkpoint is None else self._kept_id(checkpoint)
        # an attempt that Spark has not ended yet would begin a deleted source again
        self.forgets = checkpoint is None and spark.sparkContext.getConf().get("spark.speculation") != "true"

    def run(self, rows: DataFrame, tasks: int, progress: Callable[[str], None]) -> Published:
        """Publish them, `tasks` partitions at a time."""
        from pyspark import InheritableThread
        from pyspark.sql.types import StructType

        from kvitto.spark.rows import layout_of

        fields = [each for each in rows.schema.fields if each.name not in (SOURCE, POSITION)]
        layout = layout_of(StructType(fields), self.options)
        began = time.monotonic()
        with Reports(self.options.uri) as reports:
            task = Task(self.options, layout, self.id, self.chunk, self.rate / tasks, reports.queue)
            job = rows.mapInArrow(task.run, RESULT)
            thread = InheritableThread(target=self._collect, args=(job,), daemon=True)
            thread.start()
            while thread.is_alive():
                published, skipped = reports.take(POLL_S)
                progress(f"{published:,} published, {skipped:,} of an earlier run")
        if self.error is not None:
            raise self.error
        if self.forgets:
            self._forget()
        published, skipped = sum(row.published for row in self.done), sum(row.skipped for row in self.done)
        return Published(published, skipped, time.monotonic() - began)

    def _collect(self, job: DataFrame) -> None:
        try:
            self.done = job.collect()
        except Exception as error:  # noqa: BLE001 - top of a thread: run() raises it
            self.error = error

    def _forget(self) -> None:
        from kvitto.spark.writing import forget

        for writer in {row.writer for row in self.done}:
            forget(self.options, writer)

    def _kept_id(self, checkpoint: str) -> str:
        """Return the name of this work, which is the same in each run."""
        from kvitto.pipeline.files import read_text, write_text

        place = f"{checkpoint.rstrip('/')}/kvitto-publish"
        kept = read_text(self.spark, place)
        if kept is None:
            fresh = f"publish-{uuid.uuid4().hex[:16]}"
            write_text(self.spark, place, json.dumps({"writer": fresh}))
            return fresh
        try:
            return str(json.loads(kept)["writer"])
        except (ValueError, KeyError, TypeError):
            raise JobError(
                f"{place} is damaged: it holds {kept[:80]!r}; give another --checkpoint to publish all rows anew"
            ) from None


def _last(writer: str, channel: Channel) -> int:
    return channel.stage_last(writer)


@dataclass
class Source:
    """`last`: the position of the last committed row, -1 if there is none."""

    writer: str
    last: int
    published: int = 0
    skipped: int = 0


class Task:
    """The executor's work on one partition: chunk after chunk, each committed before the next is begun."""

    def __init__(self, options: SinkOptions, layout: Layout, id: str, chunk: int, rate: float, reports: str) -> None:
        self.options = options
        self.layout = layout
        self.id = id
        self.chunk = chunk
        self.rate = rate
        self.reports = reports

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from kvitto.spark.writing import call

        sources: dict[str, Source] = {}
        name, began, told = uuid.uuid4().hex[:12], time.monotonic(), 0.0
        for key, positions, rows in self._chunks(batches):
            if key not in sources:
                writer = f"{self.id}-{hashlib.sha256(key.encode()).hexdigest()[:24]}"
                sources[key] = Source(writer, call(self.options, partial(_last, writer)))
            self._put(sources[key], positions, pa.Table.from_batches(rows))
            published = sum(source.published for source in sources.values())
            if time.monotonic() - told >= REPORT_S:
                told = time.monotonic()
                skipped = sum(source.skipped for source in sources.values())
                call(self.options, partial(report, self.reports, [name, published, skipped]))
            if self.rate and (ahead := began + published / self.rate - time.monotonic()) > 0:
                time.sleep(ahead)
        done = [asdict(source) for source in sources.values()]
        schema = pa.schema([("writer", pa.string()), ("published", pa.int64()), ("skipped", pa.int64())])
        yield pa.RecordBatch.from_pylist(done, schema=schema)

    def _put(self, source: Source, positions: list[int], rows: pa.Table) -> None:
        """Publish the rows after the last one that was committed, by this attempt or by another."""
        from pyspark import TaskContext

        from kvitto.spark.errors import SinkError
        from kvitto.spark.writing import Part, call, commit, write_rows

        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        while (start := bisect_right(positions, source.last)) < len(positions):
            part = Part(source.writer, positions[-1], partition, uuid.uuid4().hex[:8], repeatable=True)
            written = write_rows(self.options, self.layout, part, rows.slice(start).to_batches())
            before, source.last = source.last, call(self.options, partial(_last, source.writer))
            if source.last < before:
                raise SinkError(f"writer {source.writer!r} was forgotten by the broker: this run is over")
            if source.last == before:
                commit(self.options, [written], alone=False)
                source.last = positions[-1]
                source.published += len(positions) - start
                source.skipped += start
                return
        source.skipped += len(positions)

    def _chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, list[int], list[pa.RecordBatch]]]:
        """Yield (source, positions, rows): rows of a source whose positions have the same quotient by the size of a chunk."""
        held: list[pa.RecordBatch] = []
        places: list[int] = []
        at: tuple[str, int] | None = None
        counted: dict[str, int] = {}
        for batch in batches:
            for key, positions, rows in self._pieces(batch, counted):
                if at is not None and key != at:
                    yield at[0], places, held
                    held, places = [], []
                at = key
                held.append(rows)
                places += positions
        if at is not None:
            yield at[0], places, held

    def _pieces(
        self, batch: pa.RecordBatch, counted: dict[str, int]
    ) -> Iterator[tuple[tuple[str, int], list[int], pa.RecordBatch]]:
        """Yield a batch, cut where the source or the chunk changes."""
        sources = batch.column(SOURCE).to_pylist()
        given = batch.column(POSITION).to_pylist() if POSITION in batch.schema.names else None
        rows = batch.select(list(self.layout.names))
        keys: list[tuple[str, int]] = []
        positions: list[int] = []
        for k, source in enumerate(sources):
            position = given[k] if given is not None else counted.get(source, 0)
            counted[source] = position + 1
            positions.append(position)
            keys.append((source, position // self.chunk))
        start = 0
        for k in range(1, len(keys) + 1):
            if k == len(keys) or keys[k] != keys[start]:
                yield keys[start], positions[start:k], rows.slice(start, k - start)
                start = k


class Reports:
    """The tasks' counts on their way to the driver, in a queue that is deleted with it. For progress only."""

    def __init__(self, uri: str) -> None:
        self.queue = f"kvitto.publish.{uuid.uuid4().hex[:12]}"
        self.uri = uri
        self.counts: dict[str, tuple[int, int]] = {}
        self._connection: Connection | None = None
        self._channel: Channel | None = None

    def __enter__(self) -> Reports:
        return self

    def __exit__(self, *error: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def take(self, wait_s: float) -> tuple[int, int]:
        """Return the sums, after receiving for that time. If the broker is unreachable, the next call tries again."""
        try:
            if self._channel is None:
                self._connection = Connection(self.uri, name="kvitto pipeline publish")
                self._channel = self._connection.channel()
                self._channel.queue_declare(self.queue, exclusive=True)
                self._channel.consume(self.queue, no_ack=True)
            for message in self._channel.receive(wait_s):
                name, published, skipped = json.loads(message.body)
                self.counts[name] = (published, skipped)
        except (AMQPError, TimeoutError, OSError):
            if self._connection is not None:
                self._connection.close()
            self._connection = self._channel = None
            time.sleep(wait_s)
        return sum(each[0] for each in self.counts.values()), sum(each[1] for each in self.counts.values())


def report(queue: str, counts: list[Any], channel: Channel) -> None:
    """Send the counts of a task. They may be lost."""
    channel.publish(json.dumps(counts).encode(), "", queue)


@contextmanager
def _whole_files(spark: SparkSession) -> Iterator[None]:
    """Make each file a partition: files are not cut, and opening one counts as much as a partition may hold."""
    settings = {f"spark.sql.files.{name}": str(1 << 40) for name in ("maxPartitionBytes", "openCostInBytes")}
    before = {name: str(spark.conf.get(name)) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def _need_stages(uri: str) -> None:
    from kvitto.spark.writing import has_stages

    try:
        with Connection(uri, name="kvitto pipeline") as connection:
            if not has_stages(connection):
                raise JobError(
                    f"{connection.address}: this job needs Kvitto; write.format('amqp') works with any broker"
                )
    except (AMQPError, TimeoutError) as error:
        raise JobError(str(error)) from None


# --- the commands


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `publish` and `replay`."""
    codes = " Exit codes: 0 all is published, 2 it could not be done; run it again with the same --checkpoint to go on."
    parser = subparsers.add_parser(
        "publish",
        help="publish a table to an exchange, once",
        description="Publish the rows of a table, each once." + codes,
    )
    parser.add_argument("table", help="file or directory")
    parser.add_argument(
        "--format", default="parquet", help="parquet, json, csv or another of Spark's (default: parquet)"
    )
    parser.add_argument("--schema", metavar="DDL", help="of json or csv (default: inferred)")
    parser.add_argument(
        "--body", choices=("json", "column"), default="json", help="each row as JSON, or its column body"
    )
    _add_target(parser)
    parser.set_defaults(run=lambda args: run_job("publish", lambda: _run("publish", args)))
    parser = subparsers.add_parser(
        "replay",
        help="publish archived messages to an exchange, once",
        description="Publish messages of a queue's archive again, each once." + codes,
    )
    parser.add_argument("archive", help="a broker's data directory, or an archive directory")
    parser.add_argument("--queue", required=True)
    parser.add_argument("--since", metavar="TIME", help="published at or after: 2026-03-01T12:00:00Z, or ms since 1970")
    parser.add_argument("--until", metavar="TIME", help="published before")
    parser.add_argument(
        "--where", metavar="EXPRESSION", help="Spark SQL on the archive's columns: \"outcome = 'acked'\""
    )
    _add_target(parser)
    parser.set_defaults(run=lambda args: run_job("replay", lambda: _run("replay", args)))


def _add_target(parser: argparse.ArgumentParser) -> None:
    add_common(parser)
    parser.add_argument("--exchange", default="", help="default: the default exchange, where the key is a queue's name")
    parser.add_argument("--key", help="routing key (default: column routing_key)")
    parser.add_argument("--checkpoint", metavar="DIR", help="go on where an earlier run with this directory ended")
    parser.add_argument("--rate", type=count, default=0, metavar="N", help="most messages per second")


def _run(name: str, args: argparse.Namespace) -> int:
    from kvitto.pipeline.stopping import Progress

    with session(name, args.master) as spark, Progress() as progress:
        common: dict[str, Any] = {
            "exchange": args.exchange,
            "routing_key": args.key,
            "checkpoint": args.checkpoint,
            "rate": float(args.rate),
            "progress": progress,
        }
        if name == "publish":
            own: dict[str, Any] = {"format": args.format, "schema": args.schema, "body": args.body}
            result = publish(spark, args.uri, args.table, **own, **common)
        else:
            own = {"queue": args.queue, "since": args.since, "until": args.until, "where": args.where}
            result = replay(spark, args.uri, args.archive, **own, **common)
    speed = result.published / result.seconds if result.seconds else 0.0
    print(f"  published   {result.published:,} messages")
    print(f"  skipped     {result.skipped:,} of an earlier run")
    print(f"  time        {result.seconds:.1f} s, {speed:,.0f} messages/s")
    return 0

"""`kvitto pipeline ledger DIR`: what became of every message, from the archive and the live segments.

One scan counts by queue and hour of publishing. A second one finds message ids that are stored twice in a queue, and
receipts whose message is missing. Both read the files directly (docs/archive.md) without a broker, in tasks of Spark
that return only sums and hashes (ledger_scan.py).
"""

from __future__ import annotations

import argparse
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvitto.pipeline.arguments import count
from kvitto.pipeline.session import JobError, run_job, session, told

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from kvitto.pipeline.ledger_scan import Keys, Scan, Task

OUTCOMES: Final = ("acked", "rejected", "dead-lettered", "expired", "dropped", "purged", "range-settled")
LISTED: Final = 20


@dataclass(frozen=True, slots=True)
class Counts:
    """The messages of a queue, all or those of one hour of publishing. Latencies are ms from publishing to settling."""

    vhost: str
    queue: str
    hour: datetime | None
    published: int
    settled: dict[str, int]
    waiting: int
    redelivered: int
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True, slots=True)
class Finding:
    """A message id that is lost (`queue`: the queue in its receipt, if any), or stored more than once."""

    message_id: str
    vhost: str | None
    queue: str | None
    offsets: tuple[int, ...] = ()


@dataclass(slots=True)
class Findings:
    """The number of findings, and the first of them."""

    count: int = 0
    listed: list[Finding] = field(default_factory=list)


@dataclass(slots=True)
class Ledger:
    """`lost` is None if there were no receipts to compare with. `queues` are sums of `hours`."""

    directory: str
    queues: list[Counts]
    hours: list[Counts]
    doubled: Findings
    receipts: int | None = None
    lost: Findings | None = None
    seconds: float = 0.0

    @property
    def published(self) -> int:
        return sum(each.published for each in self.queues)

    @property
    def even(self) -> bool:
        """Whether nothing is lost and nothing is doubled."""
        return not self.doubled.count and not (self.lost and self.lost.count)


@dataclass(frozen=True, slots=True)
class Step:
    """One event in the life of a message."""

    time: datetime | None
    vhost: str
    queue: str
    offset: int
    what: str


def ledger(
    spark: SparkSession,
    directory: str | Path,
    receipts: Sequence[str | Path] = (),
    limit: int = LISTED,
    ignore_damage: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Ledger:
    """Count everything in `directory`, a data directory or an archive. `tell` is called with progress texts.

    Receipts are files with a message id per line, or an id, a tab and the queue. Raises JobError if the directory or a
    file cannot be read.
    """
    started = time.monotonic()
    files = check(directory)
    paths = [_readable(path) for path in receipts]
    tell(f"{files} in {directory}")
    with told():
        found = _ledger(spark, directory, paths, limit, ignore_damage, tell)
    found.seconds = time.monotonic() - started
    return found


def _ledger(
    spark: SparkSession,
    directory: str | Path,
    paths: Sequence[str],
    limit: int,
    ignore_damage: bool,
    tell: Callable[[str], None],
) -> Ledger:
    started = time.monotonic()
    scan = _scan(directory, ignore_damage)
    queues, hours = _count(spark, scan)
    total = sum(each.published for each in queues)
    tell(
        f"{total:,} messages of {len(queues)} queues counted in {time.monotonic() - started:.0f} s; comparing message ids"
    )
    verdicts = _compare(spark, scan, paths)
    found = Ledger(str(directory), queues, hours, _doubled(spark, scan, verdicts, limit))
    if paths:
        found.receipts, found.lost = _lost(spark, scan, verdicts, paths, limit)
    return found


def life(spark: SparkSession, directory: str | Path, message_id: str, ignore_damage: bool = False) -> list[Step]:
    """Return the events of the messages with this id, in all queues, in order of time; nothing if there is none."""
    check(directory)
    with told():
        return _life(spark, directory, message_id, ignore_damage)


def _life(spark: SparkSession, directory: str | Path, message_id: str, ignore_damage: bool) -> list[Step]:
    from pyspark.sql import functions as f

    from kvitto.pipeline.ledger_scan import STORED, key_of, rows_of

    scan = _scan(directory, ignore_damage)
    stored = _run(spark, scan, rows_of(scan, key_of(message_id, scan.seed)), STORED)
    found = stored.where(f.col("message_id") == message_id).collect()
    rows = sorted(found, key=lambda row: (row.published, row.dead_letter, row.offset))
    tried = [(row.queue_id, row.offset) for row in rows if row.deliveries > 1]
    again = _delivered_again(spark, directory, tried, ignore_damage) if tried else {}
    steps = [step for row in rows for step in _steps(row, again.get((row.queue_id, row.offset), []))]
    return sorted(steps, key=lambda step: (step.time is None, step.time))  # stable: events in the same ms stay in order


def _delivered_again(
    spark: SparkSession, directory: str | Path, tried: list[tuple[str, int]], ignore_damage: bool
) -> dict[tuple[str, int], list[Row]]:
    """Return the entries for further deliveries of each (queue id, offset) that has some."""
    from pyspark.sql import functions as f

    reader = spark.read.format("kvitto-archive").schema(_AGAIN).option("table", "settlements")
    reader = reader.option("ignoreDamage", ignore_damage)
    entries = reader.load(str(Path(directory).resolve())).where("outcome = 'redelivered'")
    wanted = f.broadcast(spark.createDataFrame(tried, "id STRING, at BIGINT"))
    found: dict[tuple[str, int], list[Row]] = {}
    for row in entries.join(wanted, f.expr("queue_id = id AND offset <= at AND at < offset + count")).collect():
        found.setdefault((row.id, row.at), []).append(row)
    return found


def check(directory: str | Path) -> str:
    """Return a text that says what will be read. Raise JobError if there is nothing."""
    from kvitto.spark.archive.files import find
    from kvitto.spark.errors import SourceError

    try:
        segments = find(Path(directory))
    except SourceError as error:
        raise JobError(str(error)) from None
    except OSError as error:
        raise JobError(f"cannot read {error.filename}: {error.strerror}") from None
    if not segments:
        raise JobError(
            f"{directory} has no segment of a queue with an archive: declare queues with the argument x-archive (docs/archive.md)"
        )
    size = sum(each.size for each in segments)
    archived = sum(each.archived for each in segments)
    return f"{archived:,} archived and {len(segments) - archived:,} live segments, {size / 1e9:,.2f} GB,"


def _steps(row: Row, again: list[Row]) -> Iterable[Step]:
    def step(time: datetime | None, what: str) -> Step:
        return Step(time and time.astimezone(UTC), row.vhost, row.queue, row.offset, what)

    how = "put there as a dead letter" if row.dead_letter else "published"
    yield step(row.published, f"{how}, exchange {row.exchange!r}, routing key {row.routing_key!r}")
    for entry in again:
        yield step(entry.settled, f"delivered again, delivery {entry.deliveries}")
    times = {0: "never delivered", 1: "delivered once"}
    delivered = times.get(row.deliveries, f"delivered {row.deliveries} times")
    if row.outcome is None:
        yield step(None, f"waiting, {delivered}")
    else:
        after = (row.settled - row.published).total_seconds()
        yield step(row.settled, f"{row.outcome} after {after:,.3f} s, {delivered}")


# --- the scans

_AGAIN: Final = "queue_id STRING, offset BIGINT, count BIGINT, outcome STRING, settled TIMESTAMP, deliveries INT"


def _scan(directory: str | Path, ignore_damage: bool) -> Scan:
    from kvitto.pipeline.ledger_scan import Scan
    from kvitto.spark.archive.files import find
    from kvitto.spark.archive.planning import marks, together
    from kvitto.spark.archive.reading import SegmentPartition

    segments = find(Path(directory).resolve())
    delivered = marks(segments)
    parts = [SegmentPartition(group, delivered) for group in together(segments)]
    return Scan(parts, ignore_damage, secrets.randbits(64))


def _run(spark: SparkSession, scan: Scan, task: Task, schema: pa.Schema) -> DataFrame:
    """The task on each partition of the scan."""
    from pyspark.sql.pandas.types import from_arrow_schema

    count = len(scan.parts)
    return spark.range(0, count, 1, count).mapInArrow(task, from_arrow_schema(schema))


def _count(spark: SparkSession, scan: Scan) -> tuple[list[Counts], list[Counts]]:
    """Return (sums of each queue, those of each queue and hour)."""
    from pyspark.sql import functions as f

    from kvitto.pipeline.ledger_scan import TALLIES, tallies

    counted = _run(spark, scan, tallies(scan), TALLIES)

    def total(condition: Column) -> Column:
        return f.coalesce(f.sum(f.when(condition, f.col("n"))), f.lit(0))

    sums = [
        f.sum("n").alias("published"),
        total(f.col("outcome").isNull()).alias("waiting"),
        total(f.col("again")).alias("redelivered"),
        f.percentile("about", [0.5, 0.95, 0.99], f.col("n")).alias("percentiles"),
        f.max("longest").alias("longest"),
        *(total(f.col("outcome") == name).alias(name) for name in OUTCOMES),
    ]
    rows = counted.rollup("vhost", "queue", "hour").agg(f.grouping_id().alias("level"), *sums).collect()
    # level: the keys that are summed over; 0 none, 1 the hour, more the queue too
    queues = sorted((_counts(row) for row in rows if row.level == 1), key=lambda each: (each.vhost, each.queue))
    hours = sorted((row for row in rows if row.level == 0), key=lambda row: (row.vhost, row.queue, row.hour))
    return queues, [_counts(row) for row in hours]


def _counts(row: Row) -> Counts:
    p50, p95, p99 = row.percentiles or (None, None, None)
    hour = None if row.hour is None else datetime.fromtimestamp(row.hour * 3600, UTC)
    settled = {name: row[name] for name in OUTCOMES if row[name]}
    return Counts(
        row.vhost, row.queue, hour, row.published, settled, row.waiting, row.redelivered, p50, p95, p99, row.longest
    )


def _compare(spark: SparkSession, scan: Scan, paths: Sequence[str]) -> list[Row]:
    """Return rows of VERDICTS: hashes of message ids that are in a queue more than once, and receipts without a message."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from kvitto.pipeline.ledger_scan import KEYS, VERDICTS, compare, keys, receipt_keys

    hashed = _run(spark, scan, keys(scan), KEYS)
    if paths:
        lines = spark.read.text(list(paths))
        hashed = hashed.unionByName(lines.mapInArrow(receipt_keys(scan.seed), from_arrow_schema(KEYS)))
    return hashed.groupBy("bucket").applyInArrow(compare, from_arrow_schema(VERDICTS)).collect()


def _doubled(spark: SparkSession, scan: Scan, verdicts: list[Row], limit: int) -> Findings:
    """Return ids that were published into a queue more than once. A dead letter that returns to its queue does not count."""
    from pyspark.sql import functions as f

    from kvitto.pipeline.ledger_scan import DOUBLED, STORED, rows_of

    wanted = _keys(row for row in verdicts if row.kind == DOUBLED)
    if not len(wanted):
        return Findings()
    published = _run(spark, scan, rows_of(scan, wanted), STORED).where("NOT dead_letter")
    twice = published.groupBy("vhost", "queue", "queue_id", "message_id")
    found = twice.agg(f.count(f.lit(1)).alias("n"), f.min("offset").alias("first"), f.max("offset").alias("last"))
    found = found.where("n > 1").cache()
    count = found.count()
    rows = found.orderBy("vhost", "queue", "first").limit(limit).collect()
    found.unpersist()
    return Findings(count, [Finding(row.message_id, row.vhost, row.queue, (row.first, row.last)) for row in rows])


def _lost(
    spark: SparkSession, scan: Scan, verdicts: list[Row], paths: Iterable[str], limit: int
) -> tuple[int, Findings]:
    """Return (different receipts, those whose message is in no segment)."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from kvitto.pipeline.ledger_scan import DIFFERENT, LOST, RECEIPTS, receipt_rows

    count = sum(row.n for row in verdicts if row.kind == DIFFERENT)
    found = Findings(sum(row.n for row in verdicts if row.kind == LOST))
    if found.count:
        lost = [row for row in verdicts if row.kind == LOST]
        wanted = {queue: _keys(row for row in lost if row.queue == queue) for queue in {row.queue for row in lost}}
        lines = spark.read.text(list(paths)).mapInArrow(receipt_rows(scan.seed, wanted), from_arrow_schema(RECEIPTS))
        rows = lines.distinct().orderBy("message_id", "queue").limit(limit).collect()
        found.listed = [Finding(row.message_id, None, row.queue) for row in rows]
    return count, found


def _keys(rows: Iterable[Row]) -> Keys:
    import numpy as np

    return np.frombuffer(b"".join(bytes(row["keys"]) for row in rows), np.uint64)


# --- the command


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `ledger`."""
    parser = commands.add_parser(
        "ledger",
        help="report what became of every message",
        description="Count what became of every message in a data directory or an archive: settled how and when, waiting, lost, doubled. "
        "Exit code 0: nothing lost, nothing doubled (with --message-id: found); 1: something is; 2: it could not be done.",
    )
    add = parser.add_argument
    add("directory", metavar="DIR", help="a broker's data directory, or an archive directory")
    add(
        "--receipts",
        nargs="+",
        default=[],
        metavar="FILE",
        help="what publishers have receipts for: a message id per line, or id<TAB>queue",
    )
    add("--message-id", metavar="ID", help="only this message: its life in all queues")
    add("--limit", type=count, default=LISTED, metavar="N", help=f"list at most N lost and doubled ids ({LISTED})")
    add("--html", metavar="FILE", help="write a report with plots, too")
    add("--json", action="store_true", help="JSON on stdout instead of text")
    add(
        "--ignore-damage",
        action="store_true",
        help="read the undamaged part of damaged segments, instead of ending with an error",
    )
    add("--master", default="local[*]", help="Spark master (local[*])")
    parser.set_defaults(run=lambda args: run_job("ledger", lambda: run(args)))


def run(args: argparse.Namespace) -> int:
    """The command."""
    from kvitto.pipeline.ledger_report import as_json, page, text

    def tell(said: str) -> None:
        print(said, file=sys.stderr, flush=True)

    if args.message_id is not None and (args.receipts or args.html):
        raise JobError("--message-id is for one message; leave --receipts and --html out")
    check(args.directory)  # before seconds are spent on starting Spark
    for path in args.receipts:
        _readable(path)
    tell("starting Spark")
    with session("ledger", args.master, _SETTINGS) as spark:
        if args.message_id is not None:
            return _show_life(args, life(spark, args.directory, args.message_id, args.ignore_damage))
        found = ledger(spark, args.directory, args.receipts, args.limit, args.ignore_damage, tell)
    print(as_json(found) if args.json else text(found))
    if args.html:
        try:
            Path(args.html).write_text(page(found), encoding="utf-8")
        except OSError as error:
            raise JobError(f"cannot write {args.html}: {error.strerror}") from None
    return 0 if found.even else 1


def _show_life(args: argparse.Namespace, steps: list[Step]) -> int:
    from kvitto.pipeline.ledger_report import life_as_json, life_text

    print(life_as_json(args.message_id, steps) if args.json else life_text(args.message_id, steps, args.directory))
    return 0 if steps else 1


_SETTINGS: Final = {"spark.sql.shuffle.partitions": "16", "spark.driver.memory": "2g"}
"""For one machine and tens of millions of messages; a cluster's own configuration is not touched by the second."""


def _readable(path: str | Path) -> str:
    """The file of receipts by the name that Spark takes. JobError if Spark would not read it, or see nothing in it."""
    found = Path(path).resolve()
    if found.exists() and not found.is_file():
        raise JobError(f"cannot read the receipts {path}: it is no plain file, and is read more than once")
    try:
        found.open("rb").close()
    except OSError as error:
        raise JobError(f"cannot read the receipts {path}: {error.strerror}") from None
    if found.name.startswith(("_", ".")):
        raise JobError(
            f"cannot read the receipts {path}: Spark leaves out files whose name begins with _ or ., rename it"
        )
    return re.sub(r"[\\{}\[\]*?]", r"\\\g<0>", str(found))

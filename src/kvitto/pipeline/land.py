"""`land`: queues -> typed rows in a table, each message once. Records that do not fit the schema are set aside, never dropped."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvitto.client import AMQPError, Connection
from kvitto.pipeline.arguments import add_common, count, seconds
from kvitto.pipeline.behind import Behind
from kvitto.pipeline.rest import REST, STRING, fields_of, prune, rest, without_rest
from kvitto.pipeline.session import JobError, run_job, session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructField, StructType

MESSAGE_COLUMNS: Final = ("queue", "offset", "message_id", "exchange", "routing_key", "timestamp")
"""The columns of each row for properties of its message, under these names with _ before."""
MESSAGES: Final = "body BINARY, queue STRING, offset BIGINT, message_id STRING, exchange STRING, routing_key STRING, timestamp TIMESTAMP"
PARQUET: Final = "parquet"
DELTA: Final = "delta"
FORMATS: Final = (PARQUET, DELTA)
SAMPLE: Final = 1000
"""The number of messages from which a schema is inferred."""
BATCH: Final = 1_000_000
POLL_S: Final = 0.2
SOME_BAD: Final = 1
"""Exit code: everything is written, and some records were bad."""
_CORRUPT: Final = "_corrupt"


@dataclass
class Landed:
    """The result of one run of `land`. `lag` is the number of messages that waited behind the last batch, None if it is
    not known."""

    schema: str = ""
    rows: int = 0
    rest: int = 0
    """The number of rows with a value in column `_rest`."""
    bad: int = 0
    batches: int = 0
    seconds: float = 0.0
    lag: int | None = None
    samples: list[str] = field(default_factory=list)
    """The reasons of some bad records."""

    @property
    def rate(self) -> float:
        return (self.rows + self.bad) / self.seconds if self.seconds else 0.0


def land(
    spark: SparkSession,
    uri: str,
    queues: Sequence[str],
    to: str,
    checkpoint: str,
    *,
    format: str = PARQUET,
    schema: str | StructType | None = None,
    bad_records: str | None = None,
    drop_duplicates: bool = False,
    available_now: bool = False,
    trigger_s: float = 1.0,
    batch_size: int = BATCH,
    stop_after_idle_s: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[str], None] = lambda text: None,
) -> Landed:
    """Write JSON messages to the table `to` until `stop()`, idleness or (`available_now`) the last message that is
    there.

    `format`: one of FORMATS. `schema` is DDL or a StructType; None means that of an earlier run with this checkpoint,
    or one inferred from SAMPLE messages. Bad records go to the exchange `bad_records`, or to the table `<to>.bad`.
    `drop_duplicates`: only one of the messages of a queue with the same id is written; give the same value with each
    run of a checkpoint. Raises JobError, or Spark's error, if it cannot go on.
    """
    _check_table(spark, to, format)
    typed = _schema(spark, uri, queues, checkpoint, schema)
    result = Landed(schema=typed.toDDL())
    progress(f"schema: {result.schema}")
    target = Target(spark, uri, to, typed, bad_records, result, drop_duplicates, format, checkpoint)
    source = spark.readStream.format("amqp").options(uri=uri, queues=",".join(queues), readMode="range")
    messages = source.option("maxOffsetsPerTrigger", batch_size).schema(MESSAGES).load()
    if drop_duplicates:
        messages = each_id_once(messages)
    writer = messages.writeStream.foreachBatch(target.put).option("checkpointLocation", checkpoint)
    writer = (
        writer.trigger(availableNow=True)
        if available_now
        else writer.trigger(processingTime=f"{round(trigger_s * 1000)} milliseconds")
    )
    began = time.monotonic()
    query = writer.start()
    try:
        with Behind(uri, queues) as behind:
            _watch(query, behind, result, stop_after_idle_s, stop, progress)
            result.lag = behind.count(query)
    finally:
        query.stop()
    result.seconds = time.monotonic() - began
    return result


class Target:
    """Writes a batch: files of the table, and bad records."""

    def __init__(
        self,
        spark: SparkSession,
        uri: str,
        to: str,
        schema: StructType,
        bad_records: str | None,
        result: Landed,
        keep: bool = False,
        format: str = PARQUET,
        checkpoint: str = "",
    ) -> None:
        """`keep`: the messages of a batch are read once, for all that is done with them.

        `checkpoint` is the query's; it identifies a second driver.
        """
        self.spark = spark
        self.uri = uri
        self.to = to.rstrip("/")
        self.schema = schema
        self.bad_records = bad_records
        self.result = result
        self.keep = keep
        self.format = format
        self.checkpoint = checkpoint
        self._query = ""
        self._first = True

    def put(self, messages: DataFrame, batch: int) -> None:
        """Write one batch. Spark may repeat it, so every step can be repeated."""
        self._begin(messages)
        self._check_driver(batch)
        if not self.keep:
            return self._put(messages, batch)
        messages = messages.persist()
        try:
            self._put(messages, batch)
        finally:
            messages.unpersist()

    def _put(self, messages: DataFrame, batch: int) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        seen = Observation()
        parsed = parse(messages, self.schema)
        counts = [f.count_if("ok").alias("good"), f.count(f.lit(1)).alias("all")]
        counts.append(f.count_if(f.col("ok") & f.col("rest").isNotNull()).alias("rest"))
        observed = parsed.observe(seen, *counts)
        names = [
            f.col("rest").alias(name) if name == REST else f.col("row").getField(name).alias(name)
            for name in self.schema.names
        ]
        rows = observed.where("ok").select(*names, *(f.col(name).alias(f"_{name}") for name in MESSAGE_COLUMNS))
        self.good.put(batch, rows)
        landed, bad = seen.get["good"], seen.get["all"] - seen.get["good"]
        if bad or self._first:
            self._put_aside(parsed.where("not ok").withColumn("reason", reason(self.schema)), batch, bad)
        self._first = False
        self.result.rows += landed
        self.result.rest += seen.get["rest"]
        self.result.bad += bad
        self.result.batches += 1

    def _begin(self, messages: DataFrame) -> None:
        if self._query:
            return
        from kvitto.pipeline.delta import DeltaBatches
        from kvitto.pipeline.files import BatchFiles

        kind: type[BatchFiles] | type[DeltaBatches] = DeltaBatches if self.format == DELTA else BatchFiles
        spark = messages.sparkSession
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:  # files of two queries must never have the same names
            raise JobError("Spark has not told which query this is (sql.streaming.queryId); use Spark 4.3")
        self._query = query
        self.good = kind(spark, self.to, self._query)
        self.bad = kind(spark, f"{self.to}.bad", self._query)

    def _check_driver(self, batch: int) -> None:
        """Write and delete nothing for a batch that Spark has noted as done: another driver did that."""
        from kvitto.pipeline.files import exists

        if self.checkpoint and exists(self.spark, f"{self.checkpoint.rstrip('/')}/commits/{batch}"):
            raise JobError(
                f"batch {batch} of checkpoint {self.checkpoint} is done already: another driver with the same checkpoint is"
                " running. Stop one of them; this one has changed nothing"
            )

    def _put_aside(self, bad: DataFrame, batch: int, count: int) -> None:
        from pyspark.sql import functions as f

        if self.bad_records is None:
            columns = bad.select("body", "reason", "queue", "offset", "message_id")
            self.bad.put(batch, columns if count else None)
        elif count:
            made_up = f.concat_ws("-", "queue", "offset")
            headers = {"x-reason": "reason", "x-queue": "queue", "x-offset": "offset"}
            pairs = [part for name, column in headers.items() for part in (f.lit(name), f.col(column).cast("string"))]
            messages = bad.select(
                "body",
                "routing_key",
                f.coalesce("message_id", made_up).alias("message_id"),
                f.create_map(*pairs).alias("headers"),
            )
            writer = messages.write.format("amqp").option("uri", self.uri).option("exchange", self.bad_records)
            writer.option("writerId", f"{self._query}-bad").mode("append").save()
        if count and not self.result.samples:
            # in this order: a worker that has to stop in the middle of a read prints a traceback
            shown = bad.select("queue", "offset", "reason").orderBy("queue", "offset").limit(3).collect()
            self.result.samples = [f"{row.queue} {row.offset}: {row.reason}" for row in shown]


# --- records


def each_id_once(messages: DataFrame) -> DataFrame:
    """Return one message of each queue and id, and all without an id or with an empty one. The ids stay in the
    checkpoint for ever."""
    from pyspark.sql import functions as f

    unnamed = f.when(f.coalesce("message_id", f.lit("")) == "", f.col("offset"))
    return messages.withColumn("unnamed", unnamed).dropDuplicates(["queue", "message_id", "unnamed"])


def parse(messages: DataFrame, schema: StructType) -> DataFrame:
    """Add the columns `row`, the body as a struct of that schema, `rest`, the values without a column in it, and `ok`.

    `ok`: the body is an object with all required columns, and exactly of that schema if there is no column for the
    rest.
    """
    from pyspark.sql import functions as f

    schema, keeps = without_rest(schema)
    text, misfit = f.col("body").cast("string"), f.col(f"parsed.{_CORRUPT}").isNotNull()
    parsed = messages.withColumn("parsed", _from_json(schema))
    parsed = parsed.withColumn("fields", fields_of(text) if keeps else f.lit(None))
    parsed = parsed.withColumn("row", f.get(f.col("parsed.r"), f.lit(0)))
    row = f.col("row")
    ok = f.is_valid_utf8(text) & (f.size("parsed.r") == 1) & row.isNotNull()
    ok = ok & (f.col("fields").isNotNull() if keeps else ~misfit)
    for name in _required(schema):
        ok = ok & row.getField(name).isNotNull()
    left = rest(f.col("fields"), row, schema, misfit) if keeps else f.lit(None).cast("string")
    return parsed.withColumn("ok", f.coalesce(ok, f.lit(False))).withColumn("rest", left)


def reason(schema: StructType) -> Column:
    """Return why a record is bad, for rows of `parse` that are not ok."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    schema, keeps = without_rest(schema)
    text = f.col("body").cast("string")
    wrong = []
    for each in [each for each in schema.fields if not (keeps and each.nullable)]:
        alone = _from_json(StructType([each]))
        said = f.when(alone.getField(_CORRUPT).isNotNull(), f"{each.name} is no {each.dataType.simpleString()}")
        if not each.nullable:
            value = f.get(alone.getField("r"), f.lit(0)).getField(each.name)
            said = said.when(value.isNull(), f"{each.name} is missing")
        wrong.append(said)
    all_wrong = f.concat_ws(", ", *wrong)
    return (
        f.when(f.length("body") == 0, f.lit("the body is empty"))
        .when(~f.is_valid_utf8(text), f.lit("the body is not UTF-8"))
        .when(
            f.try_parse_json(text).isNull(), f.lit("the body is not JSON" + (", or has a name twice" if keeps else ""))
        )
        .when((f.size("parsed.r") != 1) | f.col("row").isNull(), f.lit("the body is not one JSON object"))
        .when(all_wrong == "", f.lit("the body does not fit the schema"))
        .otherwise(all_wrong)
    )


def _from_json(schema: StructType) -> Column:
    """Parse the body as the one element of an array, because text after the first object would be ignored otherwise."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType

    wrapped = StructType([StructField("r", ArrayType(schema)), StructField(_CORRUPT, StringType())])
    text = f.concat(f.lit('{"r":['), f.col("body").cast("string"), f.lit("]}"))
    return f.from_json(text, wrapped, {"columnNameOfCorruptRecord": _CORRUPT})


def _required(schema: StructType) -> list[str]:
    return [each.name for each in schema.fields if not each.nullable]


# --- the schema


def _check_table(spark: SparkSession, to: str, format: str) -> None:
    """Raise JobError if the table has another format."""
    from kvitto.pipeline.delta import check
    from kvitto.pipeline.files import exists

    if format not in FORMATS:
        raise JobError(f"the format is {' or '.join(FORMATS)}, not {format!r}")
    if format == DELTA:
        check(to)
    elif exists(spark, f"{to.rstrip('/')}/_delta_log"):
        raise JobError(f"{to} is a Delta table: land in it with --format delta, or give another directory")


def _schema(
    spark: SparkSession, uri: str, queues: Sequence[str], checkpoint: str, given: str | StructType | None
) -> StructType:
    """Return the given schema, else that of the checkpoint, else one inferred from waiting messages; it is stored in
    the checkpoint."""
    from pyspark.errors import PySparkException

    from kvitto.pipeline.files import read_text, write_text

    place = f"{checkpoint.rstrip('/')}/kvitto-schema"
    if given is None and (kept := read_text(spark, place)) is not None:
        return _parsed(kept)
    try:
        schema = _parsed(given) if isinstance(given, str) else given
    except PySparkException as error:
        first = str(error).strip().splitlines()[0]
        raise JobError(f"the schema is not like 'order_id BIGINT, customer STRING': {first}") from None
    if schema is None:
        schema = infer(spark, uri, queues)
        write_text(spark, place, schema.toDDL())
    _check(schema.fields)
    return schema


def _parsed(ddl: str) -> StructType:
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(ddl)
    if not isinstance(schema, StructType):
        raise JobError(f"the schema is not like 'order_id BIGINT, customer STRING': {ddl!r} is one type")
    return schema


def _check(fields: Sequence[StructField]) -> None:
    reserved = _reserved()
    for each in fields:
        if each.name == REST and each.dataType.simpleString() != STRING:
            raise JobError(
                f"the schema's column {REST!r}, for what has no other, is a STRING, not {each.dataType.simpleString()}"
            )
        if each.name.lower() in reserved:
            raise JobError(f"the schema has a column {each.name!r}, which is a name for what is known of the message")


def _reserved() -> set[str]:
    return {f"_{name}" for name in MESSAGE_COLUMNS} | {_CORRUPT}


def infer(spark: SparkSession, uri: str, queues: Sequence[str]) -> StructType:
    """Return the schema of most of the JSON objects among the first messages of the queues, with a column for the rest.

    Raise JobError if there are none.
    """
    bodies: list[str] = []
    with _connect(uri) as connection:
        for queue in queues:
            try:
                channel = connection.channel()
                first = channel.log_inspect(queue).first
                sample = channel.log_read(queue, first, first + SAMPLE)
            except AMQPError as error:
                raise JobError(f"queue {queue!r}: {error}") from None
            bodies += [body.decode("utf-8", "replace") for body in sample.bodies.tolist()]
    objects = prune(bodies, _reserved() | {REST})
    rows = spark.createDataFrame([(each,) for each in objects], "value string").rdd.map(lambda row: row[0])
    schema = spark.read.option("mode", "DROPMALFORMED").json(rows).schema if objects else None
    if schema is None or not schema.fields:
        what = f"{len(bodies):,} messages, none of them a JSON object" if bodies else "no messages yet"
        raise JobError(f"no schema: {', '.join(queues)} has {what}; say --schema 'order_id BIGINT, ...'")
    return schema.add(REST, STRING)


# --- progress


def _watch(
    query: StreamingQuery,
    behind: Behind,
    result: Landed,
    idle_s: float | None,
    stop: Callable[[], bool],
    progress: Callable[[str], None],
) -> None:
    """Wait until the query ends, `stop()`, or nothing arrived and nothing waits for `idle_s`. Raise the error that
    ended the query."""
    batches, moved_at = -1, time.monotonic()
    while not stop() and not query.awaitTermination(POLL_S):  # type: ignore[arg-type]
        if result.batches != batches:
            batches, moved_at = result.batches, time.monotonic()
        rest = f" ({result.rest:,} with a rest)" if result.rest else ""
        progress(f"{result.rows:,} landed{rest}, {result.bad:,} bad, {result.batches:,} batches, {behind.text(query)}")
        if idle_s is not None and time.monotonic() - moved_at >= idle_s and behind.count(None) == 0:
            return
    if (error := query.exception()) is not None:
        raise error


def _connect(uri: str) -> Connection:
    try:
        return Connection(uri, name="kvitto pipeline")
    except (AMQPError, TimeoutError) as error:
        raise JobError(str(error)) from None


# --- the command


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `land`."""
    parser = subparsers.add_parser(
        "land",
        help="write JSON messages of queues to a table, each once",
        description="Land the JSON messages of durable queues in a table, each once, and settle them. Exit codes:"
        " 0 all that was read is landed, 1 the same, but some records were bad, 2 it could not be done.",
    )
    add_common(parser)
    parser.add_argument("--queue", action="append", required=True, help="a queue to land; may be given again")
    parser.add_argument("--to", required=True, metavar="TABLE", help="directory of the table")
    parser.add_argument("--format", choices=FORMATS, default=PARQUET, help="of the table (default: %(default)s)")
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="directory for Spark's progress")
    parser.add_argument(
        "--schema", metavar="DDL", help="'order_id BIGINT NOT NULL, ...' (default: inferred from a sample)"
    )
    parser.add_argument("--bad-records", metavar="EXCHANGE", help="where bad records go (default: the table TABLE.bad)")
    parser.add_argument(
        "--drop-duplicates", action="store_true", help="land one message per message id: publishers may send again"
    )
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--available-now", action="store_true", help="write the messages that are there and end")
    when.add_argument("--trigger", type=seconds, default=1.0, metavar="TIME", help="time between batches (default: 1s)")
    parser.add_argument(
        "--batch-size", type=count, default=BATCH, metavar="N", help="maximum number of messages in one batch"
    )
    parser.add_argument(
        "--stop-after-idle", type=seconds, metavar="TIME", help="end when no message has come for this time"
    )
    parser.set_defaults(run=lambda args: run_job("land", lambda: _run(args)))


def _run(args: argparse.Namespace) -> int:
    from kvitto.pipeline.stopping import Progress, Stop

    with session("land", args.master, _SETTINGS) as spark, Stop() as stop, Progress() as progress:
        result = land(
            spark,
            args.uri,
            args.queue,
            args.to,
            args.checkpoint,
            format=args.format,
            schema=args.schema,
            bad_records=args.bad_records,
            drop_duplicates=args.drop_duplicates,
            available_now=args.available_now,
            trigger_s=args.trigger,
            batch_size=args.batch_size,
            stop_after_idle_s=args.stop_after_idle,
            stop=stop,
            progress=progress,
        )
    _print(result, args.to, args.bad_records)
    return SOME_BAD if result.bad else 0


_SETTINGS: Final = {"spark.sql.shuffle.partitions": "8"}
"""For --drop-duplicates: the state of a checkpoint has this many parts for ever; Spark's default of 200 makes each batch slow."""


def _print(result: Landed, to: str, bad_records: str | None) -> None:
    print(f"  schema      {result.schema}")
    print(f"  landed      {result.rows:,} rows in {to}")
    if result.rest:
        print(
            f"  rest        {result.rest:,} of them have fields or values that do not fit the schema: in column {REST}"
        )
    print(
        f"  bad         {result.bad:,}"
        + (f" in {f'exchange {bad_records}' if bad_records else f'{to}.bad'}" if result.bad else "")
    )
    for sample in result.samples:
        print(f"              {sample}")
    print(f"  batches     {result.batches:,}")
    print(f"  time        {result.seconds:.1f} s, {result.rate:,.0f} messages/s")
    print(
        "  lag         " + ("unknown: the broker does not answer" if result.lag is None else f"{result.lag:,} messages")
    )

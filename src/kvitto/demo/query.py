"""The Spark side of the run: queue -> typed rows -> a Parquet table partitioned by day, each flight once.

Exactly once comes from three parts: the source reads the same offsets again after a crash and settles only what Spark has
committed; the file sink lists the files of a batch in one step; and a flight that the publisher had to send again, and
that the queue therefore holds twice, is dropped by its message id, in state that Spark keeps in the same checkpoint.

A process of its own: `python -m kvitto.demo.query URI DIR MAX_OFFSETS [MASTER]`. Each line on stdout that begins with {
is a message for the run; SIGTERM ends the query in order.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from kvitto.demo.data import QUEUE

FLIGHT = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay DOUBLE, arr_time INT, sched_arr_time INT,"
    " arr_delay DOUBLE, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time DOUBLE,"
    " distance DOUBLE, hour INT, minute INT, time_hour TIMESTAMP"
)
POLL_S = 0.25


def session(master: str) -> SparkSession:
    """A quiet Spark in this process, with this Python for its workers."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("flights")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
        # a program that runs for a minute: the better compiler would cost more than it gives
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def landing(spark: SparkSession, uri: str, max_offsets: int) -> DataFrame:
    """Typed flights out of the queue, each message id once."""
    messages = (
        spark.readStream.format("amqp")
        .option("uri", uri)
        .option("queue", QUEUE)
        .option("readMode", "range")
        .option("maxOffsetsPerTrigger", max_offsets)
        .schema("body STRING, offset BIGINT, message_id STRING")
        .load()
    )
    typed = messages.select("message_id", "offset", f.from_json("body", FLIGHT).alias("flight"))
    flights = typed.select("message_id", "offset", "flight.*")
    dated = flights.withColumn("date", f.make_date("year", "month", "day"))
    return dated.dropDuplicates(["message_id"])


def start(flights: DataFrame, directory: str) -> StreamingQuery:
    """Land them; the checkpoint remembers how far."""
    return (
        flights.writeStream.format("parquet")
        .partitionBy("date")
        .option("path", f"{directory}/table")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(processingTime="500 milliseconds")
        .start()
    )


def warm_up(spark: SparkSession, uri: str) -> None:
    """Have Spark start its Python workers before there is anything to do: the first job takes seconds."""
    spark.read.format("amqp").option("uri", uri).option("queue", QUEUE).load().count()


def tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main(uri: str, directory: str, max_offsets: int, master: str = "local[2]") -> int:
    """Run until SIGTERM, the end of the run that started this process, or an error."""
    parent = os.getppid()
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    spark = session(master)
    if not os.path.exists(f"{directory}/checkpoint"):
        warm_up(spark, uri)
    query = start(landing(spark, uri, max_offsets), directory)
    tell(event="started")
    batch = -1
    while not stopping and os.getppid() == parent and not query.awaitTermination(POLL_S):  # type: ignore[arg-type]
        progress = query.lastProgress
        if progress is not None and progress["batchId"] != batch:
            batch = progress["batchId"]
            tell(event="batch", batch=batch, rows=progress["numInputRows"])
    if (error := query.exception()) is not None:
        tell(event="failed", why=str(error))
        return 1
    query.stop()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:]))

"""The program that is killed: queue `a` to a Parquet table, queue `b` through a transformation into queue `out`, and
queue `c` to a table by `land`.

`python -m tests.spark.chaos.driver URI MASTER DIR MAX_OFFSETS`; SIGTERM ends it in order.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from kvitto.pipeline.land import land

SCHEMA = "n BIGINT NOT NULL"
TRIGGER_S = 0.25


def session(master: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "1",
        "spark.task.maxFailures": "100",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    builder = SparkSession.builder.master(master).appName("kvitto chaos")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def queries(spark: SparkSession, uri: str, place: str, most: int) -> list[StreamingQuery]:
    def source(queue: str, columns: str) -> object:
        options = {"uri": uri, "queue": queue, "readMode": "range", "maxOffsetsPerTrigger": str(most)}
        return spark.readStream.format("amqp").options(**options).schema(columns).load()

    rows = source("a", "body STRING, offset BIGINT")
    table = (
        rows.writeStream.format("parquet")  # type: ignore[attr-defined]
        .option("path", f"{place}/table")
        .option("checkpointLocation", f"{place}/checkpoint-a")
        .start()
    )
    moved = source("b", "body STRING, offset BIGINT").select(  # type: ignore[attr-defined]
        f.upper("body").alias("body"), f.col("offset").cast("string").alias("message_id")
    )
    sink = (
        moved.writeStream.format("amqp")
        .option("uri", uri)
        .option("exchange", "")
        .option("routingKey", "out")
        .option("checkpointLocation", f"{place}/checkpoint-b")
        .start()
    )
    return [table, sink]


def main(uri: str, master: str, place: str, most: int) -> int:
    parent, stopping = os.getppid(), False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    spark = session(master)
    running = queries(spark, uri, place, most)
    print("started", flush=True)

    def ended() -> bool:
        return stopping or os.getppid() != parent or not all(query.isActive for query in running)

    try:
        to, checkpoint = f"{place}/landed", f"{place}/checkpoint-c"
        land(spark, uri, ["c"], to, checkpoint, schema=SCHEMA, trigger_s=TRIGGER_S, batch_size=most, stop=ended)
    except Exception as error:  # noqa: BLE001 - Spark raises many kinds; whoever started this wants to know it
        print(f"failed {error}", flush=True)
        return 1
    for query in running:
        if not query.isActive:
            print(f"failed {query.exception()}", flush=True)
            return 1
    for query in running:
        query.stop()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))

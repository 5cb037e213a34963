"""`format("amqp")` in a real Spark against RabbitMQ: streams, and queues that can only be consumed.

Kills of the driver take minutes: `python -m benchmarks.kills`; without Spark's weight they are in test_staged.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kvitto.client import Connection
from tests.support.wait import wait_until

from .conftest import Publish
from .test_source import fails, land

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def stream(spark: SparkSession, url: str, queue: str, **options: Any) -> DataFrame:
    reader = spark.readStream.format("amqp").option("uri", url).option("queue", queue).options(**options)
    return reader.schema("message_id string, offset long").load()


def landed(spark: SparkSession, directory: Path) -> list[int]:
    rows = spark.read.parquet(f"{directory}/table").select("message_id").collect()
    return sorted(int(row.message_id.removeprefix("id-")) for row in rows)


def forget_the_last_commit(directory: Path) -> None:
    """The sink has committed the batch, and Spark died before it could note it."""
    commits = directory / "checkpoint" / "commits"
    last = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)


def test_a_queue_of_rabbitmq_lands_once(
    spark: SparkSession, rabbitmq: str, queue: str, publish: Publish, tmp_path: Path
) -> None:
    publish(rabbitmq, queue, 0, 1000)
    place = tmp_path / "staging"
    fails(stream(spark, rabbitmq, queue), tmp_path / "none", "needs option stagingLocation")
    df = stream(spark, rabbitmq, queue, stagingLocation=str(place), maxOffsetsPerTrigger=400)
    assert land(df, tmp_path) == 3
    assert landed(spark, tmp_path) == list(range(1000))
    with Connection(rabbitmq) as connection:
        assert connection.channel().queue_declare(queue, passive=True).message_count == 0
    assert list(place.glob("queue-*/*.arrow")) == []
    publish(rabbitmq, queue, 1000, 1200)
    land(df, tmp_path)
    assert landed(spark, tmp_path) == list(range(1200))


def test_a_staged_batch_that_fails_is_read_again(
    spark: SparkSession, rabbitmq: str, queue: str, publish: Publish, tmp_path: Path
) -> None:
    publish(rabbitmq, queue, 0, 200)
    batches: list[list[int]] = []

    def fail_in_the_second(df: DataFrame, batch: int) -> None:
        batches.append(sorted(int(row.message_id.removeprefix("id-")) for row in df.collect()))
        if len(batches) == 2:
            raise ValueError("not today")

    def run() -> None:
        df = stream(spark, rabbitmq, queue, stagingLocation=f"{tmp_path}/staging", maxOffsetsPerTrigger=100)
        writer = df.writeStream.foreachBatch(fail_in_the_second).option("checkpointLocation", f"{tmp_path}/c")
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(PySparkException, match="not today"):
        run()
    publish(rabbitmq, queue, 200, 250)
    run()
    assert batches == [list(range(100)), list(range(100, 200)), list(range(100, 200)), list(range(200, 250))]


def test_a_stream_of_rabbitmq_lands_once(
    spark: SparkSession, rabbitmq: str, queue: str, publish: Publish, tmp_path: Path
) -> None:
    publish(rabbitmq, queue, 0, 1000, x_queue_type="stream")
    df = stream(spark, rabbitmq, queue, maxOffsetsPerTrigger=400)
    assert land(df, tmp_path) == 3
    forget_the_last_commit(tmp_path)
    publish(rabbitmq, queue, 1000, 1200, x_queue_type="stream")
    land(df, tmp_path)
    assert landed(spark, tmp_path) == list(range(1200))
    reader = spark.read.format("amqp").option("uri", rabbitmq).option("queue", queue)
    assert reader.option("minPartitions", 3).load().count() == 1200
    staged = stream(spark, rabbitmq, queue, readMode="staged", stagingLocation=str(tmp_path / "staging"))
    fails(staged, tmp_path, "this checkpoint was made with readMode stream")


def test_a_sink_that_had_committed_what_spark_had_not_gets_nothing_twice(
    spark: SparkSession, rabbitmq: str, queue: str, publish: Publish, tmp_path: Path
) -> None:
    """The staging directory is as it was before the last batch was settled, and the checkpoint lacks its commit."""
    publish(rabbitmq, queue, 0, 500)
    place = tmp_path / "staging"
    df = stream(spark, rabbitmq, queue, stagingLocation=str(place), maxOffsetsPerTrigger=200)
    query = (
        df.writeStream.format("parquet")
        .option("path", f"{tmp_path}/table")
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .trigger(processingTime="1 hour")  # one batch; the next trigger, which settles it, never comes
        .start()
    )
    wait_until(lambda: any((tmp_path / "checkpoint" / "commits").glob("[0-9]*")), 60)
    wait_until(lambda: query.lastProgress is not None, 60)
    (progress,) = query.lastProgress["sources"]  # type: ignore[index]
    assert json.loads(progress["latestOffset"])["waiting"] == {f"/:{queue}": 300}
    query.stop()
    kept = list(place.glob("queue-*/*.arrow"))
    assert kept
    forget_the_last_commit(tmp_path)
    land(df, tmp_path)
    assert landed(spark, tmp_path) == list(range(500))
    assert not any(file.exists() for file in kept)

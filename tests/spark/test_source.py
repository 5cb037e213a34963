"""`format("amqp")` in a real Spark."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

import kvitto
from kvitto.client import Channel, Connection
from kvitto.spark.driver import Driver
from kvitto.spark.offsets import Offsets
from kvitto.spark.options import read_options
from tests.support.wait import wait_until

from .conftest import HasUrl, Publish

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
NARROW = "message_id string, offset long"


def stream(spark: SparkSession, url: str, schema: str = NARROW, **options: Any) -> DataFrame:
    reader = spark.readStream.format("amqp").option("uri", url).option("queue", "q").options(**options)
    return reader.schema(schema).load()


def land(df: DataFrame, directory: Path) -> int:
    """Everything there is into a table; the number of batches."""
    writer = df.writeStream.format("parquet").option("path", f"{directory}/table")
    query = writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    return len([progress for progress in query.recentProgress if progress["numInputRows"]])


def landed(spark: SparkSession, directory: Path) -> list[int]:
    return sorted(row.offset for row in spark.read.parquet(f"{directory}/table").select("offset").collect())


@pytest.fixture
def channel(kvitto_broker: HasUrl) -> Iterator[Channel]:
    with Connection(kvitto_broker.url) as connection:
        yield connection.channel()


def test_a_batch_read_has_all_columns(spark: SparkSession, kvitto_broker: HasUrl, publish: Publish) -> None:
    publish(kvitto_broker.url, "q", 0, 300)
    reader = spark.read.format("amqp").option("uri", kvitto_broker.url).option("queue", "q")
    df = reader.option("includeHeaders", "true").option("minPartitions", 2).load()
    assert df.rdd.getNumPartitions() == 2
    rows = df.orderBy("offset").collect()
    assert len(rows) == 300
    row = rows[7].asDict()
    assert row["body"] == b"message 7"
    assert (row["queue"], row["offset"], row["routing_key"], row["message_id"]) == ("q", 7, "q", "id-7")
    assert row["headers"] == {"n": "7"}
    assert row["reply_to"] is None
    assert df.select(f.unix_timestamp("timestamp").alias("s")).orderBy("s").first() == Row(s=1_700_000_000)


def test_a_stream_lands_each_message_once_and_settles_it(
    spark: SparkSession, kvitto_broker: HasUrl, channel: Channel, publish: Publish, tmp_path: Path
) -> None:
    publish(kvitto_broker.url, "q", 0, 1000)
    assert land(stream(spark, kvitto_broker.url, maxOffsetsPerTrigger=400), tmp_path) == 3
    assert landed(spark, tmp_path) == list(range(1000))
    assert channel.log_inspect("q").settled == 1000
    publish(kvitto_broker.url, "q", 1000, 1200)
    assert land(stream(spark, kvitto_broker.url), tmp_path) == 1
    assert landed(spark, tmp_path) == list(range(1200))


def test_messages_are_settled_only_after_their_batch_is_committed(
    spark: SparkSession, kvitto_broker: HasUrl, channel: Channel, publish: Publish, tmp_path: Path
) -> None:
    publish(kvitto_broker.url, "q", 0, 300)
    seen: list[tuple[int, int]] = []

    def look(df: DataFrame, batch: int) -> None:
        first = df.agg(f.min("offset")).collect()[0][0]
        # a second action on the same batch reads it again
        assert df.count() == 100
        with Connection(kvitto_broker.url) as own:  # Spark calls from a thread of its own
            seen.append((first, own.channel().log_inspect("q").settled))

    df = stream(spark, kvitto_broker.url, maxOffsetsPerTrigger=100)
    writer = df.writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path))
    query = writer.trigger(processingTime="100 milliseconds").start()
    wait_until(lambda: channel.log_inspect("q").settled == 300, 60)
    query.stop()
    assert seen == [(0, 0), (100, 100), (200, 200)]


def test_a_failed_batch_is_read_again_and_not_settled(
    spark: SparkSession, kvitto_broker: HasUrl, channel: Channel, publish: Publish, tmp_path: Path
) -> None:
    publish(kvitto_broker.url, "q", 0, 200)
    batches: list[list[int]] = []

    def fail_in_the_second(df: DataFrame, batch: int) -> None:
        batches.append([row.offset for row in df.orderBy("offset").collect()])
        if len(batches) == 2:
            raise ValueError("not today")

    def run() -> None:
        df = stream(spark, kvitto_broker.url, maxOffsetsPerTrigger=100)
        writer = df.writeStream.foreachBatch(fail_in_the_second).option("checkpointLocation", str(tmp_path))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(PySparkException, match="not today"):
        run()
    assert channel.log_inspect("q").settled == 100
    publish(kvitto_broker.url, "q", 200, 250)
    run()
    assert batches == [list(range(100)), list(range(100, 200)), list(range(100, 200)), list(range(200, 250))]
    assert channel.log_inspect("q").settled == 250


def test_a_sink_that_had_committed_what_spark_had_not_gets_nothing_twice(
    spark: SparkSession, publish: Publish, tmp_path: Path
) -> None:
    """The driver died between the sink's commit and Spark's: its queue is as it was, its checkpoint lacks the last commit."""
    data = tmp_path / "data"
    with kvitto.Broker(data) as broker:
        publish(broker.url, "q", 0, 500)
    shutil.copytree(data, tmp_path / "before")
    with kvitto.Broker(data) as broker:
        land(stream(spark, broker.url, maxOffsetsPerTrigger=200), tmp_path)
    commits = sorted((int(path.name), path) for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    last = commits[-1][1]
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    with kvitto.Broker(tmp_path / "before") as broker:
        publish(broker.url, "q", 500, 600)
        land(stream(spark, broker.url, maxOffsetsPerTrigger=200), tmp_path)
        assert landed(spark, tmp_path) == list(range(600))
        with Connection(broker.url) as connection:
            assert connection.channel().log_inspect("q").settled == 600


def fails(df: DataFrame, directory: Path, said: str) -> None:
    with pytest.raises(PySparkException) as caught:
        land(df, directory)
    assert said in str(caught.value)


def test_what_cannot_be_read_is_told(
    spark: SparkSession, kvitto_broker: HasUrl, channel: Channel, publish: Publish, tmp_path: Path
) -> None:
    unknown = stream(spark, kvitto_broker.url, startingOffset="latest")
    fails(unknown, tmp_path / "0", "did you mean 'startingOffsets'")
    fails(stream(spark, kvitto_broker.url), tmp_path / "1", "declare the queue first")
    publish(kvitto_broker.url, "q", 0, 10)
    wrong = kvitto_broker.url.replace("guest:guest", "guest:wrong")
    fails(stream(spark, wrong), tmp_path / "2", "check user and password")
    fails(stream(spark, kvitto_broker.url, "mesage_id string"), tmp_path / "3", "did you mean 'message_id'")
    land(stream(spark, kvitto_broker.url), tmp_path / "4")
    channel.queue_delete("q")
    publish(kvitto_broker.url, "q", 0, 20)
    fails(stream(spark, kvitto_broker.url), tmp_path / "4", "was deleted and declared again")


def test_a_purge_between_two_actions_on_a_batch_ends_the_query(
    spark: SparkSession, kvitto_broker: HasUrl, publish: Publish, tmp_path: Path
) -> None:
    publish(kvitto_broker.url, "q", 0, 100)

    def look(df: DataFrame, batch: int) -> None:
        assert df.count() == 100
        with Connection(kvitto_broker.url) as own:
            own.channel().queue_purge("q")
        df.count()

    writer = stream(spark, kvitto_broker.url).writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path))
    with pytest.raises(PySparkException, match=r"messages that were planned to be read .* the queue was purged"):
        writer.trigger(availableNow=True).start().awaitTermination()


def test_a_second_driver_with_the_same_checkpoint_is_refused(
    spark: SparkSession, kvitto_broker: HasUrl, channel: Channel, publish: Publish, tmp_path: Path
) -> None:
    publish(kvitto_broker.url, "q", 0, 100)
    land(stream(spark, kvitto_broker.url), tmp_path)
    publish(kvitto_broker.url, "q", 100, 200)
    last = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
    place = Offsets.from_json(json.loads(last), "/")
    first = Driver(read_options({"uri": kvitto_broker.url, "queue": "q"}))
    first.advance(place, 0)
    fails(stream(spark, kvitto_broker.url), tmp_path, "another driver with the same checkpoint reads it")
    assert channel.log_inspect("q").settled == 100
    first.close()
    land(stream(spark, kvitto_broker.url), tmp_path)
    assert landed(spark, tmp_path) == list(range(200))


def test_a_query_ends_when_its_offset_has_aged_out_of_a_stream(
    spark: SparkSession, kvitto_broker: HasUrl, channel: Channel, publish: Publish, tmp_path: Path
) -> None:
    limits = {"x_max_length_bytes": 100_000, "x_stream_max_segment_size_bytes": 50_000}
    publish(kvitto_broker.url, "q", 0, 100, x_queue_type="stream", **limits)
    land(stream(spark, kvitto_broker.url), tmp_path)
    publish(kvitto_broker.url, "q", 100, 5000, x_queue_type="stream", **limits)
    fails(stream(spark, kvitto_broker.url), tmp_path, "are gone before they were read: the stream's retention")
    land(stream(spark, kvitto_broker.url, failOnDataLoss="false"), tmp_path)
    got = landed(spark, tmp_path)
    assert got[:100] == list(range(100))
    assert got[100] > 100
    assert got[100:] == list(range(got[100], 5000))

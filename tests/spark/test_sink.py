"""`df.write.format("amqp")` and `df.writeStream.format("amqp")` in a real Spark."""

import datetime
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kvitto.client import Channel, Connection, Delivery, Properties
from tests.support.wait import wait_until

from .conftest import BrokerProcess, HasUrl

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def channel(kvitto_broker: HasUrl) -> Iterator[Channel]:
    """Of a broker with an empty queue `q`."""
    with Connection(kvitto_broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        yield channel


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Arrow batches of 500 rows: a task has several."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, 500)
    yield
    spark.conf.set(name, before or 10_000)


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    """Bodies "0", "1", ..."""
    return spark.range(0, count, 1, partitions).select(f.col("id").cast("string").alias("body"))


def save(df: DataFrame, url: str, **options: Any) -> None:
    df.write.format("amqp").mode("append").option("uri", url).options(**{"routingKey": "q", **options}).save()


def run(df: DataFrame, url: str, checkpoint: Path, **options: Any) -> None:
    """A streaming query until nothing is left to do."""
    writer = df.writeStream.format("amqp").option("uri", url).options(**{"routingKey": "q", **options})
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def arrived(channel: Channel, count: int, queue: str = "q") -> list[Delivery]:
    """All messages of the queue, of which there must be `count`."""
    wait_until(lambda: channel.log_inspect(queue).next >= count)
    got = [delivery for batch in channel.log_batches(queue, 0, 1 << 40) for delivery in batch]
    assert len(got) == count
    return got


def bodies(channel: Channel, count: int) -> list[int]:
    return sorted(int(delivery.body) for delivery in arrived(channel, count))


def test_rows_arrive_once_with_all_properties(spark: SparkSession, kvitto_broker: HasUrl, channel: Channel) -> None:
    channel.exchange_declare("events", "topic", durable=True)
    channel.queue_bind("q", "events", "eu.#")
    texts = ["correlation_id", "content_type", "content_encoding", "type", "app_id", "reply_to"]
    rows = numbers(spark, 300).withColumns(
        {
            "body": f.col("body").cast("binary"),
            "routing_key": f.concat(f.lit("eu."), f.col("body")),
            "message_id": f.concat(f.lit("id-"), f.col("body")),
            "priority": (f.col("body").cast("int") % 10),
            "expiration": f.lit("3600000"),
            "user_id": f.lit("guest"),
            "timestamp": f.timestamp_seconds(f.col("body").cast("long") + 1_700_000_000),
            "headers": f.create_map(f.lit("n"), f.col("body"), f.lit("none"), f.lit(None).cast("string")),
            **{name: f.lit(name) for name in texts},
        }
    )
    save(rows, kvitto_broker.url, exchange="events")
    got = sorted(arrived(channel, 300), key=lambda delivery: int(delivery.body))
    full: dict[str, Any] = {name: name for name in texts}
    for n in (0, 1, 299):
        assert (got[n].body, got[n].exchange, got[n].routing_key) == (b"%d" % n, "events", f"eu.{n}")
        assert got[n].properties == Properties(
            **full,
            delivery_mode=2,
            message_id=f"id-{n}",
            priority=n % 10,
            expiration="3600000",
            user_id="guest",
            timestamp=1_700_000_000 + n,
            headers={"n": str(n), "none": None},
        )


def test_all_other_columns_become_json(spark: SparkSession, kvitto_broker: HasUrl, channel: Channel) -> None:
    at = datetime.datetime(2024, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
    df = spark.createDataFrame([(1, 'a "b"', at, "id-1")], "n int, s string, at timestamp, message_id string")
    save(df, kvitto_broker.url, value="json")
    (got,) = arrived(channel, 1)
    assert json.loads(got.body) == {"n": 1, "s": 'a "b"', "at": "2024-02-03T04:05:06.000000Z"}
    assert got.properties == Properties(content_type="application/json", delivery_mode=2, message_id="id-1")


@pytest.mark.usefixtures("small_batches")
def test_a_task_that_fails_after_half_its_rows_leaves_none_of_them(
    spark: SparkSession, kvitto_broker: HasUrl, channel: Channel
) -> None:
    """The second attempt's rows count; those of the first were confirmed, and never seen."""

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for k, batch in enumerate(batches):
            if k == 2 and context.attemptNumber() == 0:
                raise RuntimeError("not today")
            yield batch

    save(numbers(spark, 4_000).mapInArrow(fail_once, "body string"), kvitto_broker.url)
    assert bodies(channel, 4_000) == list(range(4_000))


@pytest.mark.usefixtures("small_batches")
def test_a_broker_that_is_killed_in_the_middle_costs_no_row_and_doubles_none(
    spark: SparkSession, broker_process: BrokerProcess, tmp_path: Path
) -> None:
    """P2"""
    half, go = str(tmp_path / "half"), str(tmp_path / "go")
    os.mkfifo(half)
    os.mkfifo(go)

    def stop_half_way(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for k, batch in enumerate(batches):
            if k == 2:
                for fifo, mode in ((half, "w"), (go, "r")):
                    with open(fifo, mode):  # until the other end is opened as well
                        pass
            yield batch

    def kill() -> None:
        with open(half):
            pass
        broker_process.kill()
        with open(go, "w"):
            pass
        broker_process.start()

    with Connection(broker_process.url) as connection:
        connection.channel().queue_declare("q", durable=True)
    thread = threading.Thread(target=kill)
    thread.start()
    save(numbers(spark, 4_000, 1).mapInArrow(stop_half_way, "body string"), broker_process.url)
    thread.join()
    with Connection(broker_process.url) as connection:
        assert bodies(connection.channel(), 4_000) == list(range(4_000))


def test_a_query_goes_on_after_its_broker_has_been_away(
    spark: SparkSession, broker_process: BrokerProcess, tmp_path: Path
) -> None:
    """P2: from a queue to a queue, each message once. KVITTO_AWAY_S=60 for a minute."""
    away_s = float(os.environ.get("KVITTO_AWAY_S", "1"))
    url = broker_process.url

    def publish(first: int, last: int) -> None:
        with Connection(url) as connection:
            channel = connection.channel()
            channel.confirm_select()
            for n in range(first, last):
                channel.publish(b"%d" % n, routing_key="in")
            assert channel.wait_for_confirms(30)

    def count() -> int:
        with Connection(url) as connection:
            return connection.channel().queue_declare("q", passive=True).message_count

    with Connection(url) as connection:
        for name in ("in", "q"):
            connection.channel().queue_declare(name, durable=True)
    publish(0, 1000)
    rows = spark.readStream.format("amqp").option("uri", url).option("queue", "in").schema("body string").load()
    writer = rows.writeStream.format("amqp").option("uri", url).option("routingKey", "q")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    wait_until(lambda: count() == 1000, 60)
    broker_process.kill()
    killed = time.monotonic()
    wait_until(lambda: time.monotonic() - killed > away_s, away_s + 1)
    assert query.isActive
    broker_process.start()
    publish(1000, 2000)
    wait_until(lambda: count() == 2000, 60)
    query.stop()
    with Connection(url) as connection:
        assert bodies(connection.channel(), 2000) == list(range(2000))


def files(directory: Path, spark: SparkSession, names: list[str]) -> DataFrame:
    """A stream that reads one file per batch, and files that hold ten numbers each."""
    directory.mkdir(exist_ok=True)
    for k, name in enumerate(names):
        (directory / name).write_text("".join(f"{n}\n" for n in range(10 * k, 10 * k + 10)))
    reader = spark.readStream.option("maxFilesPerTrigger", 1)
    return reader.text(str(directory)).withColumnRenamed("value", "body")


def drop_last_commit(checkpoint: Path) -> int:
    """As if the driver had been killed between the sink's commit and Spark's own; the batch's number."""
    last = max((path for path in (checkpoint / "commits").glob("[0-9]*")), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    return int(last.name)


def test_a_driver_killed_between_the_sink_s_commit_and_spark_s_doubles_nothing(
    spark: SparkSession, kvitto_broker: HasUrl, channel: Channel, tmp_path: Path
) -> None:
    df = files(tmp_path / "in", spark, ["a", "b"])
    run(df, kvitto_broker.url, tmp_path / "checkpoint")
    assert bodies(channel, 20) == list(range(20))
    assert drop_last_commit(tmp_path / "checkpoint") == 1
    files(tmp_path / "in", spark, ["a", "b", "c"])
    run(df, kvitto_broker.url, tmp_path / "checkpoint")
    assert bodies(channel, 30) == list(range(30))
    assert (tmp_path / "checkpoint" / "commits" / "2").exists()


def test_a_batch_job_with_a_writer_id_writes_once_however_often_it_runs(
    spark: SparkSession, kvitto_broker: HasUrl, channel: Channel
) -> None:
    for _ in range(2):
        save(numbers(spark, 100), kvitto_broker.url, writerId="nightly", batchId="20261103")
    save(numbers(spark, 10), kvitto_broker.url, writerId="nightly", batchId="20261104")
    save(numbers(spark, 10), kvitto_broker.url)
    save(numbers(spark, 10), kvitto_broker.url)
    assert len(arrived(channel, 130)) == 130
    fails(numbers(spark, 10), kvitto_broker.url, "give option batchId", writerId="nightly")


def test_foreach_batch_knows_its_batch(
    spark: SparkSession, kvitto_broker: HasUrl, channel: Channel, tmp_path: Path
) -> None:
    """With option writerId a batch that is repeated is recognised, as in a stream."""

    def write(df: DataFrame, batch: int) -> None:
        save(df, kvitto_broker.url, writerId="my query")

    def land() -> None:
        writer = df.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    df = files(tmp_path / "in", spark, ["a", "b"])
    land()
    drop_last_commit(tmp_path / "checkpoint")
    land()
    assert bodies(channel, 20) == list(range(20))
    assert channel.stage_last("my query") == 1


def fails(df: DataFrame, url: str, said: str, **options: Any) -> None:
    with pytest.raises(PySparkException) as caught:
        save(df, url, **options)
    assert said in str(caught.value)


def test_what_cannot_be_written_is_told(
    spark: SparkSession, kvitto_broker: HasUrl, channel: Channel, tmp_path: Path
) -> None:
    url, df = kvitto_broker.url, numbers(spark, 10, 1)
    fails(df, url, "no queue took a message with routing key 'nowhere'", routingKey="nowhere")
    fails(df, url.replace("guest:guest", "guest:wrong"), "check user and password")
    fails(df, url, "did you mean 'mandatory'", mandatry="false")
    fails(df.withColumn("offset", f.lit(1)), url, "no part of a message: offset")
    fails(df.select(f.col("body").alias("type")), url, "there is no column body")
    with pytest.raises(PySparkException, match=r"say mode\('append'\)"):
        df.write.format("amqp").mode("overwrite").option("uri", url).option("routingKey", "q").save()
    with pytest.raises(PySparkException, match="routing key 'nowhere'"):
        run(files(tmp_path / "in", spark, ["a"]), url, tmp_path / "checkpoint", routingKey="nowhere")
    assert channel.log_inspect("q").next == 0

"""`format("amqp")` through Spark Connect, on a cluster of two workers that speculates.

The client is this process, the server and the executors are others: what is read and written is seen in the queues.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from kvitto.client import Channel, Connection
from kvitto.demo.children import Child
from tests.support.wait import wait_until

from .chaos.cluster import SPARK_CLASS, Cluster, wait_for
from .conftest import QUICK_JVM, HasUrl, Publish

connect: Any = pytest.importorskip(
    "pyspark.sql.connect.session", reason="needs pip install 'pyspark[connect]'", exc_type=ImportError
)
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
STARTED = "Spark Connect server started at"
SETTINGS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.efficiency.enabled": "false",
}


@pytest.fixture(scope="module")
def spark(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client of a server that has the whole cluster."""
    log = tmp_path_factory.mktemp("connect") / "connect.log"
    settings = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    arguments = ["--master", cluster.url, "--class", SERVER, *settings, "spark-internal"]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("SPARK_DAEMON_MEMORY", "1g")  # Spark takes this server for a daemon
        server = Child("connect", arguments, log, [str(SPARK_CLASS.with_name("spark-submit"))])
    try:
        wait_for(server, STARTED)
        (port,) = re.findall(rf"{STARTED}: \S+:(\d+)", log.read_text())
        session = connect.SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
        yield session
        session.stop()
    finally:
        server.kill()


@pytest.fixture
def channel(kvitto_broker: HasUrl) -> Iterator[Channel]:
    """Of a broker with an empty queue `out`."""
    with Connection(kvitto_broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("out", durable=True)
        yield channel


def arrived_once(channel: Channel, count: int) -> bool:
    """Whether queue `out` has each message id once, when so many have come."""
    end = wait_until(lambda: (at := channel.log_inspect("out").next) >= count and at)
    ids = [delivery.properties.message_id or "" for batch in channel.log_batches("out", 0, end) for delivery in batch]
    return sorted(ids) == sorted(f"id-{n}" for n in range(count))


def test_a_client_of_spark_connect_reads_and_writes(
    spark: Any, kvitto_broker: HasUrl, channel: Channel, publish: Publish
) -> None:
    """The server finds the format by itself, and its errors reach the client with what to do."""
    publish(kvitto_broker.url, "q", 0, 1000)
    reader = spark.read.format("amqp").option("uri", kvitto_broker.url)
    rows = reader.option("queue", "q").schema("body string, message_id string, offset long").load()
    got = {(row.offset, row.body, row.message_id) for row in rows.collect()}
    assert got == {(n, f"message {n}", f"id-{n}") for n in range(1000)}
    writer = rows.select("body", "message_id").write.format("amqp").mode("append").option("uri", kvitto_broker.url)
    writer.option("routingKey", "out").save()
    assert arrived_once(channel, 1000)
    with pytest.raises(Exception, match="did you mean 'queue'"):
        reader.option("queu", "q").load().count()


def test_a_speculative_attempt_doubles_nothing(
    spark: Any, kvitto_broker: HasUrl, channel: Channel, publish: Publish, tmp_path: Path
) -> None:
    """Two attempts of one partition publish all of its rows, both confirmed: the rows of one of them count."""
    publish(kvitto_broker.url, "q", 0, 1000)
    place, fifo = str(tmp_path), str(tmp_path / "fifo")
    os.mkfifo(fifo)

    def first_is_slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        attempt = (context.partitionId(), context.attemptNumber())
        open(f"{place}/began {attempt}", "w").close()
        for k, batch in enumerate(batches):
            if k == 2 and attempt == (1, 0):
                open(fifo).close()  # waits for the other attempt
            yield batch
        if attempt == (1, 1):
            open(fifo, "w").close()

    reader = spark.readStream.format("amqp").option("uri", kvitto_broker.url).option("queue", "q")
    rows = reader.option("minPartitions", 2).schema("body string, message_id string").load()
    writer = rows.mapInArrow(first_is_slow, rows.schema).writeStream.format("amqp").option("uri", kvitto_broker.url)
    writer = writer.option("routingKey", "out").option("checkpointLocation", f"{place}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    assert {path.name for path in tmp_path.glob("began (1, *")} == {"began (1, 0)", "began (1, 1)"}
    assert arrived_once(channel, 1000)
    assert channel.log_inspect("q").settled == 1000


def test_a_task_tried_again_after_half_its_rows_doubles_nothing(
    spark: Any, kvitto_broker: HasUrl, channel: Channel
) -> None:
    """The rows of the first attempt were confirmed, and are never seen; the second runs on any executor."""

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for k, batch in enumerate(batches):
            if k == 2 and context.attemptNumber() == 0:
                raise RuntimeError("not today")
            yield batch

    rows = spark.range(0, 1000, 1, 2).selectExpr("'a message' as body", "concat('id-', id) as message_id")
    writer = rows.mapInArrow(fail_once, rows.schema).write.format("amqp").mode("append")
    writer.option("uri", kvitto_broker.url).option("routingKey", "out").save()
    assert arrived_once(channel, 1000)

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

from examples.flights.children import Child
from kvitto.client import Channel, Connection
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
    "spark.speculation.multiplier": "1.1",
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
    """Whether queue `out` has each of so many messages once, when they have come."""
    end = wait_until(lambda: (at := channel.log_inspect("out").next) >= count and at)
    got = [
        (delivery.properties.message_id, delivery.body)
        for batch in channel.log_batches("out", 0, end)
        for delivery in batch
    ]
    return sorted(got) == sorted((f"id-{n}", b"message %d" % n) for n in range(count))


def test_attempts_that_fail_half_way_or_run_at_once_double_nothing(
    spark: Any, kvitto_broker: HasUrl, channel: Channel, publish: Publish, tmp_path: Path
) -> None:
    """Read and written through Spark Connect: the rows of one attempt of each partition count, the others' are never seen.

    The first task fails after half its rows. Of the second, two attempts run: the first goes on when the other has
    published all of its rows.
    """
    publish(kvitto_broker.url, "q", 0, 1000)
    place, fifo = str(tmp_path), str(tmp_path / "fifo")
    os.mkfifo(fifo)

    def fail_or_wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        attempt = (context.partitionId(), context.attemptNumber())
        open(f"{place}/began {attempt}", "w").close()
        for k, batch in enumerate(batches):
            if k == 2 and attempt == (0, 0):
                raise RuntimeError("not today")
            if k == 2 and attempt == (1, 0):
                open(fifo).close()  # until the other end is opened as well
            yield batch
        if attempt == (1, 1):
            open(fifo, "w").close()

    reader = spark.readStream.format("amqp").option("uri", kvitto_broker.url).option("queue", "q")
    rows = reader.option("minPartitions", 2).schema("body string, message_id string").load()
    writer = rows.mapInArrow(fail_or_wait, rows.schema).writeStream.format("amqp").option("uri", kvitto_broker.url)
    writer = writer.option("routingKey", "out").option("checkpointLocation", f"{place}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    began = {path.name for path in tmp_path.glob("began *")}
    assert began == {f"began ({partition}, {attempt})" for partition in (0, 1) for attempt in (0, 1)}
    assert arrived_once(channel, 1000)
    assert channel.log_inspect("q").settled == 1000


def test_an_error_reaches_the_client_with_what_to_do(spark: Any) -> None:
    with pytest.raises(Exception, match="did you mean 'queue'"):
        _ = spark.read.format("amqp").option("queu", "q").load().schema  # asks the server

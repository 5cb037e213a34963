"""A real broker's data directory, read by a real Spark while the broker runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import kvitto
from kvitto.client import Connection, Delivery, Properties
from tests.support.wait import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ARCHIVED: dict[str, Any] = {"x-archive": True}


def name_queues(data: Path, url: str, *queues: str) -> dict[str, str]:
    """Queue -> id; and a queue.json for each, should the broker not have written one."""
    ids: dict[str, str] = {}
    with Connection(url) as connection:
        for queue in queues:
            ids[queue] = connection.channel().log_inspect(queue).incarnation
    for queue, queue_id in ids.items():
        path = data / "queues" / queue_id / "queue.json"
        if not path.exists() and path.parent.exists():
            path.write_text(json.dumps({"vhost": "/", "queue": queue, "id": queue_id, "arguments": {}}))
    return ids


def archive(spark: SparkSession, data: Path, schema: str = "", **options: Any) -> DataFrame:
    reader = spark.read.format("kvitto-archive").options(**options)
    return (reader.schema(schema) if schema else reader).load(str(data))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A broker with two queues: of 1000 orders some are acked, rejected, dead-lettered, some come back, the rest waits."""
    data = tmp_path_factory.mktemp("shop") / "data"
    with kvitto.Broker(data) as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("failed", durable=True, arguments=ARCHIVED)
        letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "failed"}
        channel.queue_declare("orders", durable=True, arguments=ARCHIVED | letters)
        channel.confirm_select()
        for n in range(1000):
            properties = Properties(message_id=f"order-{n}", headers={"n": n})
            channel.publish(b"%d" % n, routing_key="orders", properties=properties)
        assert channel.wait_for_confirms(30)
        consumer = connection.channel()
        consumer.qos(100)
        tag = consumer.consume("orders")
        taken: list[Delivery] = []
        while len(taken) < 100:
            taken += consumer.receive(10)
        consumer.cancel(tag)
        for n, delivery in enumerate(taken[:90]):
            assert delivery.body == b"%d" % n
            if n < 80:
                consumer.ack(delivery.delivery_tag)
            else:
                consumer.reject(delivery.delivery_tag, requeue=False)
        consumer.close()  # the last ten come back
        again = connection.channel()
        for n in range(90, 95):
            found = again.get("orders")
            assert found is not None and found.redelivered and found.body == b"%d" % n
            again.ack(found.delivery_tag)
        wait_until(lambda: channel.log_inspect("failed").next == 10)
        ids = name_queues(data, broker.url, "orders", "failed")
        yield data, ids, broker.url


def test_outcomes_of_a_running_brokers_messages(spark: SparkSession, shop: Any) -> None:
    data, ids, _ = shop
    found = archive(spark, data).where("queue = 'orders'")
    counts = {row.outcome: row["count"] for row in found.groupBy("outcome").count().collect()}
    assert counts == {"acked": 85, "dead-lettered": 10, None: 905}
    row = found.where("offset = 92").first()
    assert row is not None
    assert (row.body, row.message_id, row.deliveries, row.queue_id) == (b"92", "order-92", 2, ids["orders"])
    assert (row.vhost, row.exchange, row.routing_key, row.dead_letter) == ("/", "", "orders", False)
    assert row.published <= row.settled
    counts = {
        row.deliveries: row["count"] for row in found.where("outcome IS NULL").groupBy("deliveries").count().collect()
    }
    assert counts == {1: 5, 0: 900}
    letters = archive(spark, data, queue="failed", includeHeaders=True).orderBy("offset").collect()
    assert [row.message_id for row in letters] == [f"order-{n}" for n in range(80, 90)]
    assert all(row.dead_letter and row.outcome is None and "rejected" in row.headers["x-death"] for row in letters)


def test_settlements(spark: SparkSession, shop: Any) -> None:
    data, _, _ = shop
    found = archive(spark, data, table="settlements").groupBy("queue", "outcome").agg(f.sum("count").alias("n"))
    counts = {(row.queue, row.outcome): row.n for row in found.collect()}
    assert counts == {("orders", "acked"): 85, ("orders", "dead-lettered"): 10, ("orders", "redelivered"): 5}


def test_filters_are_pushed_down(spark: SparkSession, shop: Any) -> None:
    """With the option and Spark's own switch; the answer is the same without."""
    data, _, _ = shop
    middle = archive(spark, data, "published timestamp").agg(f.percentile_approx("published", 0.5)).first()[0]  # type: ignore[index]
    condition = (f.col("queue") == "failed") | (f.col("published") <= middle)

    def answer(**options: Any) -> list[int]:
        found = archive(spark, data, "queue string, offset long, published timestamp", **options)
        both = found.where((f.col("queue") == "orders") & (f.col("published") > middle))
        return [found.where(condition).count(), both.count(), found.where("queue = 'no such'").count()]

    plain = answer()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert answer(pushFilters=True) == plain
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert sum(plain[:2]) == 1010


def test_a_narrow_schema_and_a_wrong_one(spark: SparkSession, shop: Any) -> None:
    data, _, _ = shop
    assert (
        archive(spark, data, "body string", queue="orders").agg(f.sum(f.col("body").cast("long"))).first()[0] == 499_500  # type: ignore[index]
    )
    with pytest.raises(PySparkException, match="did you mean 'offset'"):
        archive(spark, data, "ofset long").collect()
    with pytest.raises(PySparkException, match="there is no directory"):
        archive(spark, data / "nowhere").collect()


def test_it_is_read_while_it_is_written(spark: SparkSession, shop: Any) -> None:
    """Every read sees a beginning of what was confirmed, without gaps, and never less than the one before."""
    data, _, url = shop
    with Connection(url) as connection:
        channel = connection.channel()
        channel.queue_declare("busy", durable=True, arguments=ARCHIVED)
        channel.confirm_select()
        sent = seen = 0
        for _ in range(3):
            confirmed = sent
            for _ in range(3000):
                channel.publish(b"x" * 200, routing_key="busy")
                sent += 1
            connection.process(0)
            name_queues(data, url, "busy")
            row = (
                archive(spark, data, "offset long", queue="busy")
                .agg(f.count("*").alias("n"), f.max("offset").alias("last"))
                .first()
            )
            assert row is not None
            assert row.n >= max(confirmed, seen) and row.n == (row.last if row.last is not None else -1) + 1
            seen = row.n
            assert channel.wait_for_confirms(30)
        assert archive(spark, data, "offset long", queue="busy").count() == sent == 9000

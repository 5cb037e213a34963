"""`kvitto pipeline publish` and `replay`: each row once, also when a run broke off and is started again."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

import kvitto
from kvitto.client import Channel, Connection, Properties
from kvitto.pipeline.publish import POSITION, SOURCE, Published, Task, publish, replay
from kvitto.spark.rows import layout_of
from kvitto.spark.sink_options import read_sink_options
from tests.support.wait import wait_until

from .conftest import HasUrl

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def table(directory: Path, files: int, rows: int) -> str:
    """Files of `rows` rows each, numbered through."""
    directory.mkdir()
    for k in range(files):
        n = pa.array(range(k * rows, (k + 1) * rows))
        text = [f"row {i.as_py()}" for i in n]
        pq.write_table(pa.table({"n": n, "text": text}), directory / f"part-{k}.parquet")
    return str(directory)


def taken(channel: Channel, queue: str, count: int) -> list[bytes]:
    """All bodies of a queue, once at least so many have come: what is committed moves there a moment later."""
    wait_until(lambda: channel.queue_declare(queue, passive=True).message_count >= count, 30)
    bodies = []
    while (got := channel.get(queue, no_ack=True)) is not None:
        bodies.append(got.body)
    return bodies


def test_rows_are_published_once_though_the_first_run_broke_off(
    spark: SparkSession, kvitto_broker: HasUrl, tmp_path: Path
) -> None:
    """40 rows at a time, then 30; the first run ends in the second chunk, where a row's key has no queue yet."""
    url, place = kvitto_broker.url, tmp_path / "rows.parquet"
    bodies = [f"row {n:02}" for n in range(100)]
    pq.write_table(pa.table({"body": bodies, "routing_key": ["here"] * 50 + ["later"] * 50}), place)

    def run(rate: float) -> Published:
        return publish(spark, url, str(place), body="column", checkpoint=str(tmp_path / "checkpoint"), rate=rate)

    with Connection(url) as connection:
        channel = connection.channel()
        channel.queue_declare("here", durable=True)
        with pytest.raises(Exception, match="no queue took a message with routing key 'later'"):
            run(40.0)
        assert taken(channel, "here", 40) == [body.encode() for body in bodies[:40]]
        channel.queue_declare("later", durable=True)
        result = run(30.0)
        assert (result.published, result.skipped) == (60, 40)
        assert taken(channel, "here", 10) == [body.encode() for body in bodies[40:50]]
        assert taken(channel, "later", 50) == [body.encode() for body in bodies[50:]]
        result = run(30.0)
        assert (result.published, result.skipped) == (0, 100)


def test_rows_become_json_in_their_order_and_files_that_came_later_are_published(
    spark: SparkSession, kvitto_broker: HasUrl, tmp_path: Path
) -> None:
    place = table(tmp_path / "rows", 1, 50)
    options = {"routing_key": "rows", "checkpoint": str(tmp_path / "checkpoint")}
    with Connection(kvitto_broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("rows", durable=True)
        assert publish(spark, kvitto_broker.url, place, **options).published == 50  # type: ignore[arg-type]
        bodies = [json.loads(body) for body in taken(channel, "rows", 50)]
        assert bodies == [{"n": n, "text": f"row {n}"} for n in range(50)]
        pq.write_table(pa.table({"n": [50], "text": ["more"]}), f"{place}/part-9.parquet")
        result = publish(spark, kvitto_broker.url, place, **options)  # type: ignore[arg-type]
        assert (result.published, result.skipped) == (1, 50)
        assert taken(channel, "rows", 1) == [b'{"n":50,"text":"more"}']


@contextmanager
def archiving(data: Path) -> Iterator[tuple[kvitto.Broker, Channel]]:
    """A broker with queues `orders`, which has an archive, and `again`, and a channel with confirms."""
    with kvitto.Broker(data) as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True, arguments={"x-archive": True})
        channel.queue_declare("again", durable=True)
        channel.confirm_select()
        yield broker, channel


def test_archived_messages_are_replayed_once(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with archiving(data) as (broker, channel):
        for n in range(100):
            channel.publish(b"%d" % n, "", "orders", Properties(message_id=f"id-{n}", headers={"n": str(n)}))
        assert channel.wait_for_confirms(30)
        options = {
            "queue": "orders",
            "where": "offset % 2 = 0",
            "routing_key": "again",
            "checkpoint": str(tmp_path / "c"),
        }
        result = replay(spark, broker.url, str(data), **options)  # type: ignore[arg-type]
        assert (result.published, result.skipped) == (50, 0)
        wait_until(lambda: channel.queue_declare("again", passive=True).message_count == 50, 30)
        got = channel.get("again")
        assert got is not None
        assert (got.body, got.properties.message_id, got.properties.headers) == (b"0", "id-0", {"n": "0"})
        again = replay(spark, broker.url, str(data), **options)  # type: ignore[arg-type]
        assert (again.published, again.skipped) == (0, 50)
        none = replay(spark, broker.url, str(data), queue="orders", until="2020-01-01T00:00:00Z", routing_key="again")
        assert none.published == 0


def test_a_source_that_grew_is_gone_on_with_behind_its_last_row(spark: SparkSession, tmp_path: Path) -> None:
    """500 archived messages are less than a chunk; the 400 that come after them belong to the same 10,000 positions."""
    data = tmp_path / "data"
    with archiving(data) as (broker, channel):

        def replayed(start: int, end: int) -> Published:
            for n in range(start, end):
                channel.publish(b"%d" % n, "", "orders", Properties(delivery_mode=2))
            assert channel.wait_for_confirms(30)
            checkpoint = str(tmp_path / "c")
            return replay(spark, broker.url, str(data), queue="orders", routing_key="again", checkpoint=checkpoint)

        first, second = replayed(0, 500), replayed(500, 900)
        assert (first.published, first.skipped) == (500, 0)
        assert (second.published, second.skipped) == (400, 500)
        assert taken(channel, "again", 900) == [b"%d" % n for n in range(900)]


def positioned(count: int) -> pa.RecordBatch:
    """So many rows of one source."""
    columns = {"body": [b"%d" % n for n in range(count)], SOURCE: ["source"] * count, POSITION: list(range(count))}
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(("ahead", "published"), [(20, 5), (8, 17)], ids=["by all rows", "into the next chunk"])
def test_an_attempt_that_was_overtaken_publishes_only_what_is_behind(
    kvitto_broker: HasUrl, ahead: int, published: int
) -> None:
    """Chunks of 5 rows; another attempt commits the first `ahead` rows while this one is behind its first chunk."""
    queue = f"overtaken-{ahead}"
    options = read_sink_options({"uri": kvitto_broker.url, "exchange": "", "routingKey": queue})
    layout = layout_of(StructType([StructField("body", BinaryType())]), options)
    with Connection(kvitto_broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.queue_declare("reports", exclusive=True)
        one, other = (Task(options, layout, queue, 5, 0.0, "reports") for _ in range(2))
        counts: list[tuple[int, int]] = []

        def count(done: Iterator[pa.RecordBatch]) -> None:
            counts.extend((row["published"], row["skipped"]) for batch in done for row in batch.to_pylist())

        def batches() -> Iterator[pa.RecordBatch]:
            rows = positioned(20)
            yield rows.slice(0, 6)  # its first chunk is committed when it asks for more
            count(other.run([rows.slice(0, ahead)]))
            yield rows.slice(6)

        count(one.run(batches()))
        assert counts == [(ahead - 5, 5), (published, 20 - published)]
        assert taken(channel, queue, 20) == [b"%d" % n for n in range(20)]


def test_without_a_checkpoint_the_broker_keeps_no_writer(spark: SparkSession, tmp_path: Path) -> None:
    place = table(tmp_path / "rows", 2, 50)
    with kvitto.Broker() as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("rows", durable=True)
        assert broker._server is not None
        writers = broker._server.broker.stages.writers
        kept = publish(spark, broker.url, place, routing_key="rows", checkpoint=str(tmp_path / "checkpoint"))
        assert (kept.published, len(writers)) == (100, 2)
        assert publish(spark, broker.url, place, routing_key="rows").published == 100
        assert len(taken(channel, "rows", 200)) == 200
        wait_until(lambda: len(writers) == 2, 30)

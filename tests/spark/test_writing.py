"""What executors and driver do to write, against real brokers, without the weight of a Spark."""

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from kvitto import Broker
from kvitto.client import Connection, Delivery
from kvitto.spark import writing
from kvitto.spark.errors import SinkError
from kvitto.spark.rows import layout_of
from kvitto.spark.sink_options import SinkOptions, read_sink_options
from kvitto.spark.writing import Part, Written, commit, disconnect, forget, write_rows
from tests.support.wait import wait_until

from .conftest import BrokerProcess

BODY = StructType([StructField("body", StringType())])


def options(url: str, **given: str) -> SinkOptions:
    return read_sink_options({"uri": url, "routingKey": "q", **given})


def rows(first: int, last: int, size: int = 1000) -> Iterator[pa.RecordBatch]:
    for start in range(first, last, size):
        texts = [f"row {n}" for n in range(start, min(start + size, last))]
        yield pa.RecordBatch.from_arrays([pa.array(texts)], names=["body"])


def write(given: SinkOptions, part: Part, batches: Iterator[pa.RecordBatch]) -> Written:
    return write_rows(given, layout_of(BODY, given), part, batches)


def part(batch: int = 0, partition: int = 0, attempt: str = "a", writer: str = "w") -> Part:
    return Part(writer, batch, partition, attempt)


def depth(url: str, queue: str = "q") -> int:
    with Connection(url) as connection:
        return connection.channel().queue_declare(queue, passive=True).message_count


def drain(url: str, count: int, queue: str = "q") -> list[Delivery]:
    """The messages of a queue once there are so many."""
    wait_until(lambda: depth(url, queue) >= count)
    with Connection(url) as connection:
        channel = connection.channel()
        return [got for _ in range(depth(url, queue)) if (got := channel.get(queue, no_ack=True)) is not None]


def bodies(url: str, count: int) -> list[str]:
    return [message.body.decode() for message in drain(url, count)]


def texts(first: int, last: int) -> list[str]:
    return [f"row {n}" for n in range(first, last)]


@pytest.fixture
def url(kvitto_broker: Broker) -> Iterator[str]:
    """A broker with an empty queue `q`."""
    with Connection(kvitto_broker.url) as connection:
        connection.channel().queue_declare("q", durable=True)
    yield kvitto_broker.url
    disconnect(kvitto_broker.url)


def test_nobody_sees_rows_before_the_commit_and_everybody_once_after_it(url: str) -> None:
    given = options(url)
    written = [write(given, part(partition=p), rows(500 * p, 500 * p + 500)) for p in range(2)]
    assert [(len(one.stages), one.rows) for one in written] == [(1, 500), (1, 500)]
    assert depth(url) == 0
    commit(given, written)
    with pytest.raises(SinkError, match="committed by somebody else"):
        commit(given, written)
    commit(given, written, alone=False)
    assert bodies(url, 1000) == texts(0, 1000)


def test_only_the_winner_of_two_attempts_counts(url: str) -> None:
    """Speculation, or a task that Spark took for dead."""
    given = options(url)
    write(given, part(attempt="slow"), rows(0, 300))
    winner = write(given, part(attempt="fast"), rows(0, 300))
    commit(given, [winner])
    assert bodies(url, 300) == texts(0, 300)
    with Connection(url) as connection:
        assert connection.channel().stage_last("w") == 0


def test_a_batch_that_is_repeated_is_not_published_again(url: str) -> None:
    given = options(url)
    commit(given, [write(given, part(batch=3), rows(0, 100))])
    again = write(given, part(batch=3, attempt="b"), rows(0, 100))
    assert again == Written("w", 3, (), 0)
    commit(given, [again])
    commit(given, [write(given, part(batch=4), rows(100, 150))])
    assert bodies(url, 150) == texts(0, 150)


def test_a_batch_older_than_the_last_one_is_an_error(url: str) -> None:
    given = options(url)
    commit(given, [write(given, part(batch=3), rows(0, 10))])
    with pytest.raises(SinkError, match="has written batch 3 already, this is batch 1: the checkpoint was set back"):
        write(given, part(batch=1), rows(0, 10))


def test_a_forgotten_writer_leaves_what_it_committed(url: str) -> None:
    given = options(url)
    commit(given, [write(given, part(), rows(0, 10))])
    write(given, part(batch=1), rows(10, 20))
    forget(given, "w")
    assert bodies(url, 10) == texts(0, 10)
    with Connection(url) as connection:
        assert connection.channel().stage_last("w") == -1


def test_a_full_stage_is_followed_by_another(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "STAGE_BYTES", 10_000)
    given = options(url)
    written = write(given, part(), rows(0, 5000, 500))
    assert len(written.stages) > 3
    commit(given, [written])
    assert bodies(url, 5000) == texts(0, 5000)


def test_one_connection_serves_all_tasks_of_a_process(url: str) -> None:
    given = options(url)
    before = writing.connect(url)
    for p in range(3):
        write(given, part(partition=p), rows(0, 10))
    assert writing.connect(url) is before
    assert list(before.channels) == []


@pytest.mark.parametrize("staged", [True, False])
def test_a_broker_that_is_killed_in_the_middle_costs_no_row(
    broker_process: BrokerProcess, monkeypatch: pytest.MonkeyPatch, staged: bool
) -> None:
    """P2: without stages a row may come twice, and then with the same message_id."""
    url = broker_process.url
    if not staged:
        monkeypatch.setattr(writing, "has_stages", lambda connection: False)
    monkeypatch.setattr(writing, "STAGE_BYTES", 50_000)
    given = options(url)
    with Connection(url) as connection:
        connection.channel().queue_declare("q", durable=True)

    def batches() -> Iterator[pa.RecordBatch]:
        for k, batch in enumerate(rows(0, 20_000, 500)):
            if k == 20:
                broker_process.kill()
                thread.start()
            yield batch

    thread = threading.Thread(target=broker_process.start)
    written = write(given, part(), batches())
    thread.join()
    commit(given, [written])
    with Connection(url) as connection:
        channel = connection.channel()
        wait_until(lambda: channel.log_inspect("q").next >= 20_000)
        got = [delivery for batch in channel.log_batches("q", 0, 1 << 40) for delivery in batch]
    disconnect(url)
    found = [delivery.body.decode() for delivery in got]
    if staged:
        assert found == texts(0, 20_000)
    else:
        by_id = {delivery.properties.message_id: delivery.body.decode() for delivery in got}
        assert list(by_id.values()) == sorted(texts(0, 20_000), key=lambda text: int(text[4:]))
        assert len(found) - 20_000 <= writing.WINDOW_ROWS


def test_a_row_that_no_queue_takes_fails_the_task(url: str) -> None:
    """C4"""
    with pytest.raises(SinkError, match="no queue took a message with routing key 'nowhere' on the default exchange"):
        write(options(url, routingKey="nowhere"), part(), rows(0, 10))
    with pytest.raises(SinkError, match=r"on exchange 'amq.topic'.*mandatory = false"):
        write(options(url, exchange="amq.topic"), part(), rows(0, 10))
    lenient = options(url, routingKey="nowhere", mandatory="false")
    assert write(lenient, part(), rows(0, 10)).rows == 10


def test_what_the_broker_refuses_is_told(url: str) -> None:
    with pytest.raises(SinkError, match="declare the exchange first"):
        write(options(url, exchange="nope"), part(), rows(0, 10))
    with pytest.raises(SinkError, match="check user and password"):
        write(options(url.replace("guest:guest", "guest:wrong")), part(), rows(0, 10))
    with pytest.raises(SinkError, match=r"tried again for 0\.1 s"):
        write(options("amqp://127.0.0.1:1", reconnectTimeout="100ms"), part(), rows(0, 10))


def test_a_row_that_is_no_message_is_named(url: str) -> None:
    """Its headers do not fit into a frame."""
    kind = pa.map_(pa.string(), pa.string())
    headers = pa.array([[], [("big", "x" * 200_000)]], kind)
    batch = pa.RecordBatch.from_arrays([pa.array(["a", "b"]), headers], names=["body", "headers"])
    with pytest.raises(SinkError, match="row 1: the properties have 200"):
        write(options(url), part(), iter([batch]))
    assert depth(url) == 0


def test_rows_that_a_full_queue_refuses_come_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: a nack is no loss; rows that were taken are not published twice."""
    monkeypatch.setattr(writing, "has_stages", lambda connection: False)
    given = options(url, routingKey="small")
    with Connection(url) as connection:
        channel = connection.channel()
        limits: dict[str, Any] = {"x-max-length": 700, "x-overflow": "reject-publish"}
        channel.queue_declare("small", durable=True, arguments=limits)
        thread = threading.Thread(target=lambda: write(given, part(), rows(0, 1000, 100)))
        thread.start()
        wait_until(lambda: depth(url, "small") >= 700)
        found: set[str] = set()
        count = 0
        while len(found) < 1000:
            got = channel.get("small", no_ack=True)
            if got is not None:
                found.add(got.body.decode())
                count += 1
        thread.join()
    disconnect(url)
    assert found == set(texts(0, 1000))
    assert count == 1000
    with pytest.raises(SinkError, match=r"refused \d+ messages.*tried again"):
        write(options(url, routingKey="small", reconnectTimeout="200ms"), part(), rows(0, 2000))


def test_rabbitmq_gets_every_row_with_an_id(rabbitmq: str, queue: str) -> None:
    given = options(rabbitmq, routingKey=queue)
    with Connection(rabbitmq) as connection:
        connection.channel().queue_declare(queue, durable=True)
    written = write(given, part(batch=2, partition=5), rows(0, 3000))
    assert written.stages == ()
    commit(given, [written])
    got = drain(rabbitmq, 3000, queue)
    assert [message.body.decode() for message in got] == texts(0, 3000)
    assert [message.properties.message_id for message in got] == [f"w-2-5-{n}" for n in range(3000)]
    with pytest.raises(SinkError, match="routing key 'nowhere'"):
        write(options(rabbitmq, routingKey="nowhere"), part(), rows(0, 10))

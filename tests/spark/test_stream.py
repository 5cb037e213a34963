"""Read mode `stream` without the weight of a Spark, against each broker that has streams."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.types import StructType

from kvitto.client import Batch, Channel, Connection, Properties
from kvitto.spark import stream
from kvitto.spark.errors import DataLossError, SourceError
from kvitto.spark.modes import choose
from kvitto.spark.options import Options, read_options
from kvitto.spark.reading import StreamPartition
from kvitto.spark.schema import full_schema
from kvitto.spark.stream import StreamDriver, read_stream, stream_offsets

from .conftest import BrokerProcess, HasUrl, Publish

OFFSET = StructType([full_schema(False)["offset"]])
STREAM = {"x_queue_type": "stream"}


_drivers: list[StreamDriver] = []


@pytest.fixture(autouse=True)
def _closed(request: pytest.FixtureRequest) -> Iterator[None]:
    for name in {"any_broker", "kvitto_broker"} & set(request.fixturenames):
        request.getfixturevalue(name)  # first, so that it ends last: it waits for those who are connected
    yield
    while _drivers:
        _drivers.pop().close()


def driver_of(given: Options) -> StreamDriver:
    _drivers.append(StreamDriver(given))
    return _drivers[-1]


def options(url: str, queue: str, **given: str) -> Options:
    return read_options({"uri": url, "queue": queue, "readMode": "stream", **given})


def offsets_of(given: Options, parts: list[StreamPartition]) -> list[int]:
    return [n for part in parts for piece in read_stream(given, OFFSET, part) for n in piece.column(0).to_pylist()]


@pytest.fixture
def url(any_broker: str, queue: str, publish: Publish) -> str:
    """A broker with 1000 messages in a stream."""
    publish(any_broker, queue, 0, 1000, **STREAM)
    return any_broker


def declare_again(url: str, queue: str, count: int, body: bytes) -> None:
    with Connection(url) as connection:
        channel: Channel = connection.channel()
        channel.queue_delete(queue)
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_select()
        for n in range(count):
            channel.publish(b"%s %d" % (body, n), routing_key=queue)
        assert channel.wait_for_confirms(30)


def test_a_range_is_read_as_often_as_asked(url: str, queue: str) -> None:
    given = options(url, queue, minPartitions="3")
    parts = driver_of(given).plan_once()
    assert len(parts) == 3
    assert offsets_of(given, parts) == offsets_of(given, parts) == list(range(1000))


def test_all_columns_of_a_message_of_a_stream(url: str, queue: str) -> None:
    given = options(url, queue, includeHeaders="true", startingOffsets=f'{{"{queue}": 7}}')
    parts = driver_of(given).plan_once()
    row = next(read_stream(given, full_schema(True), parts[0])).to_pylist()[0]
    assert (row["body"], row["queue"], row["offset"], row["message_id"]) == (b"message 7", queue, 7, "id-7")
    assert dict(row["headers"])["n"] == "7"


def test_starting_and_ending_offsets_of_a_batch(url: str, queue: str) -> None:
    given = options(url, queue, startingOffsets=f'{{"{queue}": 100}}', endingOffsets=f'{{"{queue}": 150}}')
    assert offsets_of(given, driver_of(given).plan_once()) == list(range(100, 150))
    assert driver_of(options(url, queue, startingOffsets="latest")).plan_once() == []


def test_a_batch_follows_the_one_before(url: str, queue: str, publish: Publish) -> None:
    given = options(url, queue)
    driver = driver_of(given)
    begin = driver.begin()
    first = driver.advance(begin, 300)
    assert first.queues[queue].next == 300
    second = driver.advance(first, 0)
    assert offsets_of(given, driver.plan(begin, first)) == list(range(300))
    assert offsets_of(given, driver.plan(first, second)) == list(range(300, 1000))
    assert driver.advance(second, 0) == second
    publish(url, queue, 1000, 3000, **STREAM)
    third = driver.advance(second, 0)
    assert offsets_of(given, driver.plan(second, third)) == list(range(1000, 3000))
    assert driver.latest == third


def test_bytes_limit_a_batch(url: str, queue: str) -> None:
    driver = driver_of(options(url, queue))
    assert 80 <= driver.advance(driver.begin(), 0, 1000).queues[queue].next <= 120


def test_a_batch_can_be_planned_again_after_a_crash(url: str, queue: str, publish: Publish) -> None:
    given = options(url, queue, startingOffsets="latest")
    driver = driver_of(given)
    begin = driver.begin()
    publish(url, queue, 1000, 1100, **STREAM)
    end = driver.advance(begin, 0)
    driver.close()
    publish(url, queue, 1100, 1200, **STREAM)
    again = driver_of(given)
    assert offsets_of(given, again.plan(again.begin(), end)) == list(range(1000, 1100))
    assert again.advance(end, 0).queues[queue].next == 1200


def test_a_query_begins_at_a_time(url: str, queue: str) -> None:
    """A broker finds a time by chunks of messages: never later than asked."""
    before, after = "2001-01-01T00:00:00Z", datetime.fromtimestamp(4_000_000_000, UTC).isoformat()
    assert driver_of(options(url, queue, startingTimestamp=before)).begin().queues[queue].next == 0
    assert driver_of(options(url, queue, startingTimestamp=after)).begin().queues[queue].next == 1000


def test_an_empty_stream_is_read_from_its_first_message(
    any_broker: str, queue: str, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "FIRST_S", 0.2)
    publish(any_broker, queue, 0, 0, **STREAM)
    given = options(any_broker, queue)
    driver = driver_of(given)
    begin = driver.begin()
    assert driver.advance(begin, 0) == begin
    publish(any_broker, queue, 0, 10, **STREAM)
    end = driver.advance(begin, 0)
    assert offsets_of(given, driver.plan(begin, end)) == list(range(10))


def test_available_now_has_an_end(url: str, queue: str, publish: Publish) -> None:
    driver = driver_of(options(url, queue))
    driver.fix_target()
    publish(url, queue, 1000, 1500, **STREAM)
    end = driver.advance(driver.begin(), 0)
    assert end.queues[queue].next == 1000
    assert driver.advance(end, 0) == end


def test_a_shorter_stream_is_another_one(url: str, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "FIRST_S", 0.1)
    driver = driver_of(options(url, queue))
    end = driver.advance(driver.begin(), 0)
    declare_again(url, queue, 20, b"new")
    with pytest.raises(DataLossError, match="ends at offset 20, but this query has read up to 1000"):
        driver.advance(end, 0)
    driver.close()
    with pytest.raises(DataLossError, match="ends at offset 20, but this query has read up to 1000"):
        driver_of(options(url, queue)).advance(end, 0)


def test_a_longer_stream_is_known_by_its_messages(url: str, queue: str) -> None:
    driver = driver_of(options(url, queue))
    end = driver.advance(driver.begin(), 500)
    driver.close()
    declare_again(url, queue, 2000, b"new")
    with pytest.raises(DataLossError, match="message at offset 499 is another one"):
        driver_of(options(url, queue)).advance(end, 0)


def test_without_fail_on_data_loss_the_new_stream_is_read(
    url: str, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "FIRST_S", 0.1)
    given = options(url, queue, failOnDataLoss="false")
    driver = driver_of(given)
    end = driver.advance(driver.begin(), 0)
    declare_again(url, queue, 20, b"new")
    after = driver.advance(end, 0)
    assert offsets_of(given, driver.plan(end, after)) == list(range(20))


def test_an_executor_does_not_wait_for_what_is_gone(url: str, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SILENT_S", 0.2)
    given = options(url, queue)
    part = StreamPartition(queue, 900, 1100)
    with pytest.raises(DataLossError, match="ends at offset 1000, but Spark was promised messages up to 1100"):
        offsets_of(given, [part])
    lenient = options(url, queue, failOnDataLoss="false")
    assert offsets_of(lenient, [part]) == list(range(900, 1000))


def test_an_executor_gives_up_after_a_time(url: str, queue: str) -> None:
    given = options(url, queue, reconnectTimeout="200ms")
    with pytest.raises(SourceError, match=r"no message for 0 s \(option reconnectTimeout\) from offset 1000"):
        offsets_of(given, [StreamPartition(queue, 990, 1001)])


def test_messages_that_aged_out_are_data_loss(any_broker: str, queue: str) -> None:
    with Connection(any_broker, buffer_bytes=1 << 16) as connection:
        channel = connection.channel()
        arguments: dict[str, Any] = {
            "x-queue-type": "stream",
            "x-max-length-bytes": 100_000,
            "x-stream-max-segment-size-bytes": 50_000,
        }
        channel.queue_declare(queue, durable=True, arguments=arguments)
        channel.confirm_select()
        driver = driver_of(options(any_broker, queue, startingOffsets="earliest"))
        channel.publish(bytes(1000), routing_key=queue)
        assert channel.wait_for_confirms(10)
        begin = driver.begin()
        for _ in range(40):
            for _ in range(50):
                channel.publish(bytes(1000), routing_key=queue)
            assert channel.wait_for_confirms(30)
    end = driver.advance(begin, 0)
    with pytest.raises(DataLossError, match=r"messages from offset 0 to \d+ are gone.*retention"):
        driver.plan(begin, end)
    with pytest.raises(DataLossError, match=r"messages from offset 0 to \d+ are gone.*retention"):
        offsets_of(options(any_broker, queue), [StreamPartition(queue, 0, end.queues[queue].next)])
    given = options(any_broker, queue, failOnDataLoss="false")
    got = offsets_of(given, driver_of(given).plan(begin, end))
    # RabbitMQ takes an offset for itself now and then
    assert 0 < got[0] < got[-1] == end.queues[queue].next - 1
    assert got == sorted(set(got))


def test_a_deleted_stream_is_told(url: str, queue: str) -> None:
    driver = driver_of(options(url, queue))
    end = driver.advance(driver.begin(), 0)
    with Connection(url) as connection:
        connection.channel().queue_delete(queue)
    with pytest.raises(SourceError, match="declare the queue first"):
        driver.advance(end, 0)
    with pytest.raises(SourceError, match="declare the queue first"):
        offsets_of(options(url, queue), [StreamPartition(queue, 0, 10)])


def test_kvitto_is_read_by_range_unless_it_is_a_stream(kvitto_broker: HasUrl, queue: str, publish: Publish) -> None:
    url = kvitto_broker.url
    publish(url, "plain", 0, 1)
    publish(url, "stream", 0, 1, **STREAM)
    assert choose(read_options({"uri": url, "queue": "plain"})) == "range"
    assert choose(read_options({"uri": url, "queue": "stream"})) == "stream"
    with Connection(url) as connection:
        message = connection.channel().get("plain")
    assert message is not None
    assert not message.redelivered


def test_the_read_mode_follows_from_the_queue(rabbitmq: str, queue: str, publish: Publish) -> None:
    url, plain = rabbitmq, f"{queue}-plain"
    publish(url, queue, 0, 3, **STREAM)
    publish(url, plain, 0, 3)

    def mode(given: dict[str, str]) -> str:
        return choose(read_options({"uri": url, **given}))

    assert mode({"queue": queue}) == "stream"
    assert mode({"queue": plain, "stagingLocation": "/tmp/nothing"}) == "staged"
    with pytest.raises(SourceError, match="needs option stagingLocation"):
        mode({"queue": plain})
    with pytest.raises(SourceError, match="read them with two queries"):
        mode({"queues": f"{queue},{plain}"})
    with pytest.raises(SourceError, match="is no stream: leave option readMode out, or say staged"):
        mode({"queue": plain, "readMode": "stream"})
    with pytest.raises(SourceError, match="is a stream: leave option readMode out, or say stream"):
        mode({"queue": queue, "readMode": "staged", "stagingLocation": "/tmp/nothing"})
    with pytest.raises(SourceError, match="declare the queue first"):
        mode({"queue": "nothing"})
    with Connection(url) as connection:
        quorum = f"{queue}-quorum"
        arguments: dict[str, Any] = {"x-queue-type": "quorum"}
        connection.channel().queue_declare(quorum, durable=True, arguments=arguments)
    assert mode({"queue": quorum, "stagingLocation": "/tmp/nothing"}) == "staged"


def test_a_choice_takes_no_message(rabbitmq: str, queue: str, publish: Publish) -> None:
    publish(rabbitmq, queue, 0, 3)
    assert choose(read_options({"uri": rabbitmq, "queue": queue, "stagingLocation": "/tmp/nothing"})) == "staged"
    with Connection(rabbitmq) as connection:
        channel = connection.channel()
        channel.consume(queue)
        batch = channel.receive(10, least=3)
        assert batch.bodies.tolist() == [b"message 0", b"message 1", b"message 2"]


def test_a_stream_is_read_on_over_a_kill_of_the_broker(
    broker_process: BrokerProcess, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "PREFETCH", 100)
    url = broker_process.url
    publish(url, "q", 0, 20_000, **STREAM)
    given = options(url, "q", minPartitions="1")
    driver = driver_of(given)
    begin = driver.begin()
    end = driver.advance(begin, 10_000)
    (part,) = driver.plan(begin, end)
    pieces = read_stream(given, OFFSET, part)
    first = next(pieces).column(0).to_pylist()
    broker_process.kill()
    broker_process.start()
    assert first + [n for piece in pieces for n in piece.column(0).to_pylist()] == list(range(10_000))
    assert driver.advance(end, 0).queues["q"].next == 20_000


def test_what_cannot_be_is_told(broker_process: BrokerProcess, publish: Publish) -> None:
    url = broker_process.url
    publish(url, "q", 0, 10, **STREAM)
    with pytest.raises(SourceError, match="check user and password"):
        driver_of(options(url.replace("guest:guest", "guest:wrong"), "q")).begin()
    with pytest.raises(DataLossError, match="holds 0 to 10: choose one of those"):
        driver_of(options(url, "q", startingOffsets='{"q": 20}')).begin()
    given = options(url, "q", reconnectTimeout="200ms")
    driver = driver_of(given)
    begin = driver.begin()
    broker_process.kill()
    with pytest.raises(SourceError, match="reconnectTimeout"):
        driver.advance(begin, 0)
    with pytest.raises(SourceError, match="reconnectTimeout"):
        offsets_of(given, [StreamPartition("q", 0, 10)])


def batch_of(headers: list[dict[str, Any] | None]) -> Batch:
    batch = Batch()
    for each in headers:
        batch.properties.data.add(Properties(message_id="m", headers=each).encode())
        batch.properties.ends.add(batch.properties.data.n.to_bytes(4, "little"))
        batch.count += 1
    return batch


def test_the_offset_is_that_of_the_broker() -> None:
    """A publisher may write what looks like the header into a message."""
    big = 1 << 40
    forged = b"\x0fx-stream-offsetl\0\0\0\0\0\0\0\x07".decode("latin-1")
    plain = batch_of([{"a": 1, "x-stream-offset": big}, {"x-stream-offset": big + 2, "z": "z"}])
    assert stream_offsets(plain, "q").tolist() == [big, big + 2]
    assert stream_offsets(batch_of([{"a": forged, "x-stream-offset": big}]), "q").tolist() == [big]
    assert stream_offsets(batch_of([{"x-stream-offset": 3}]), "q").tolist() == [3]
    for headers in (None, {"a": 1}):
        with pytest.raises(SourceError, match="is no stream"):
            stream_offsets(batch_of([headers]), "q")

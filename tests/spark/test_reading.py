"""What driver and executors do, against a real broker, without the weight of a Spark."""

import threading

import pytest
from pyspark.sql.types import StructType

from kvitto.client import Channel, Connection
from kvitto.spark import link, reading
from kvitto.spark.driver import Driver
from kvitto.spark.errors import DataLossError, SourceError
from kvitto.spark.options import Options, read_options
from kvitto.spark.reading import RangePartition, read_range
from kvitto.spark.schema import full_schema

from .conftest import BrokerProcess, HasUrl, Publish

OFFSET = StructType([full_schema(False)["offset"]])


def options(url: str, queue: str = "q", **given: str) -> Options:
    return read_options({"uri": url, "queue": queue, **given})


def offsets_of(given: Options, parts: list[RangePartition]) -> list[int]:
    return [n for part in parts for piece in read_range(given, OFFSET, part) for n in piece.column(0).to_pylist()]


def settled(url: str, queue: str = "q") -> int:
    with Connection(url) as connection:
        return connection.channel().log_inspect(queue).settled


@pytest.fixture
def url(kvitto_broker: HasUrl, publish: Publish) -> str:
    """A broker with 1000 messages in queue `q`."""
    publish(kvitto_broker.url, "q", 0, 1000)
    return kvitto_broker.url


def test_a_range_is_read_as_often_as_asked(url: str) -> None:
    given = options(url, minPartitions="3")
    parts = Driver(given).plan_once()
    assert len(parts) == 3
    assert offsets_of(given, parts) == offsets_of(given, parts) == list(range(1000))


def test_a_query_that_wants_no_more_leaves_no_rest_behind(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 100)
    given = options(url)
    parts = Driver(given).plan_once()
    next(read_range(given, OFFSET, parts[0]))
    assert offsets_of(given, parts) == list(range(1000))


def test_starting_and_ending_offsets_of_a_batch(url: str) -> None:
    given = options(url, startingOffsets='{"q": 100}', endingOffsets='{"q": 150}')
    assert offsets_of(given, Driver(given).plan_once()) == list(range(100, 150))
    given = options(url, startingOffsets="latest")
    assert Driver(given).plan_once() == []


def test_settling_follows_the_start_of_the_next_batch(url: str) -> None:
    driver = Driver(options(url))
    begin = driver.begin()
    first = driver.advance(begin, 300)
    assert first.queues["q"].next == 300
    assert settled(url) == 0
    second = driver.advance(first, 300)
    assert (second.queues["q"].next, settled(url)) == (600, 300)
    assert driver.advance(first, 300) == second  # nothing is settled twice, and the place is the same text


def test_bytes_limit_a_batch(url: str) -> None:
    driver = Driver(options(url))
    assert 80 <= driver.advance(driver.begin(), 0, 1000).queues["q"].next <= 120


def test_a_time_is_found_in_streams_only(url: str) -> None:
    with pytest.raises(SourceError, match="is no stream, its messages are not found by time"):
        Driver(options(url, startingTimestamp="2026-01-01")).begin()


def test_commit_settles_and_may_come_again(url: str) -> None:
    driver = Driver(options(url))
    end = driver.advance(driver.begin(), 300)
    driver.settle(end)
    driver.settle(end)
    assert settled(url) == 300


def test_a_batch_can_be_planned_again_after_a_crash(url: str) -> None:
    given = options(url)
    driver = Driver(given)
    begin = driver.begin()
    end = driver.advance(begin, 300)
    driver.close()
    again = Driver(given)
    assert offsets_of(given, again.plan(again.begin(), end)) == list(range(300))


def test_the_first_batch_from_latest_keeps_its_start_over_a_crash(url: str, publish: Publish) -> None:
    given = options(url, startingOffsets="latest")
    driver = Driver(given)
    begin = driver.begin()
    publish(url, "q", 1000, 1100)
    end = driver.advance(begin, 0)
    driver.close()
    publish(url, "q", 1100, 1200)
    again = Driver(given)
    assert offsets_of(given, again.plan(again.begin(), end)) == list(range(1000, 1100))


def test_two_queries_do_not_share_a_queue(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "TAKEN_S", 0.1)
    one = Driver(options(url))
    one.begin()
    with pytest.raises(SourceError, match="another query reads this queue"):
        Driver(options(url)).begin()


def test_a_query_waits_until_a_killed_one_is_gone(url: str) -> None:
    one = Driver(options(url))
    one.begin()
    threading.Timer(0.3, one.close).start()
    assert Driver(options(url)).begin().queues["q"].next == 0


def test_a_restarted_query_is_the_same_reader(url: str) -> None:
    one, two = Driver(options(url)), Driver(options(url))
    end = one.advance(one.begin(), 10)
    threading.Timer(0.3, one.close).start()  # the Python of a driver that was killed lives a moment longer
    assert two.advance(end, 10).queues["q"].next == 20


def test_a_queue_with_consumers_is_not_read_by_range(url: str) -> None:
    with Connection(url) as connection:
        channel = connection.channel()
        channel.qos(1)
        channel.consume("q")
        with pytest.raises(SourceError, match="end the ordinary consumers"):
            Driver(options(url)).begin()


def test_a_missing_queue_is_named(url: str) -> None:
    with pytest.raises(SourceError, match=r"queue 'nothing'.*declare the queue first"):
        Driver(options(url, "nothing")).begin()


def test_a_wrong_password_is_told_at_once(url: str) -> None:
    wrong = url.replace("guest:guest", "guest:wrong")
    with pytest.raises(SourceError, match="check user and password"):
        Driver(options(wrong)).begin()
    part = RangePartition("q", "", 0, 10, 10)
    with pytest.raises(SourceError, match="check user and password"):
        list(read_range(options(wrong), OFFSET, part))


def test_a_broker_that_stays_away_ends_the_query(broker_process: BrokerProcess, publish: Publish) -> None:
    url = broker_process.url
    publish(url, "q", 0, 10)
    given = options(url, reconnectTimeout="200ms")
    driver = Driver(given)
    begin = driver.begin()
    parts = driver.plan_once()
    broker_process.kill()
    with pytest.raises(SourceError, match="reconnectTimeout"):
        driver.advance(begin, 0)
    with pytest.raises(SourceError, match="reconnectTimeout"):
        offsets_of(given, parts)


def declare_again(url: str) -> None:
    with Connection(url) as connection:
        channel: Channel = connection.channel()
        channel.queue_delete("q")
        channel.queue_declare("q", durable=True)
        channel.confirm_select()
        for n in range(20):
            channel.publish(b"new %d" % n, routing_key="q")
        channel.wait_for_confirms(10)


def test_a_queue_that_is_another_one_now_is_data_loss(url: str) -> None:
    given = options(url)
    driver = Driver(given)
    end = driver.advance(driver.begin(), 300)
    parts = driver.plan(driver.begin(), end)
    declare_again(url)
    with pytest.raises(DataLossError, match="declared again"):
        driver.advance(end, 0)
    with pytest.raises(DataLossError, match="declared again"):
        driver.plan(driver.begin(), end)
    with pytest.raises(DataLossError, match="declared again"):
        offsets_of(given, parts)


def test_without_fail_on_data_loss_the_new_queue_is_read(url: str) -> None:
    given = options(url, failOnDataLoss="false")
    driver = Driver(given)
    end = driver.advance(driver.begin(), 300)
    declare_again(url)
    after = driver.advance(end, 0)
    assert offsets_of(given, driver.plan(end, after)) == list(range(20))
    assert offsets_of(given, driver.plan(end, end)) == []


def test_messages_that_went_unread_are_data_loss(url: str) -> None:
    driver = Driver(options(url))
    begin = driver.begin()
    with Connection(url) as connection:
        connection.channel().queue_purge("q")
    with pytest.raises(DataLossError, match="0 to 1000 are gone"):
        driver.advance(begin, 0)
    driver.close()
    assert Driver(options(url, failOnDataLoss="false", group=begin.group)).advance(begin, 0).queues["q"].next == 1000


def test_an_offset_outside_of_the_queue_is_told(url: str) -> None:
    with pytest.raises(DataLossError, match="0 to 1000"):
        Driver(options(url, startingOffsets='{"q": 2000}')).begin()


def test_available_now_has_an_end(url: str, publish: Publish) -> None:
    driver = Driver(options(url))
    driver.fix_target()
    publish(url, "q", 1000, 1500)
    end = driver.advance(driver.begin(), 0)
    assert end.queues["q"].next == 1000
    assert driver.advance(end, 0) == end
    assert settled(url) == 1000


def test_several_queues_are_one_source(url: str, publish: Publish) -> None:
    publish(url, "other", 0, 100)
    given = read_options({"uri": url, "queues": "q,other"})
    driver = Driver(given)
    end = driver.advance(driver.begin(), 110)
    assert {name: at.next for name, at in end.queues.items()} == {"q": 100, "other": 10}


def test_planning_and_settling_survive_a_kill_of_the_broker(broker_process: BrokerProcess, publish: Publish) -> None:
    url = broker_process.url
    publish(url, "q", 0, 1000)
    driver = Driver(options(url))
    end = driver.advance(driver.begin(), 300)
    broker_process.kill()
    broker_process.start()
    assert driver.advance(end, 300).queues["q"].next == 600
    assert settled(url) == 300
    broker_process.kill()
    broker_process.start()
    assert settled(url) == 300


def test_a_range_is_whole_when_the_broker_dies_in_the_middle(
    broker_process: BrokerProcess, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 1000)
    url = broker_process.url
    publish(url, "q", 0, 40_000)
    given = options(url, minPartitions="1")
    parts = Driver(given).plan_once()
    pieces = read_range(given, OFFSET, parts[0])
    first = next(pieces).column(0).to_pylist()
    assert len(first) < 40_000
    broker_process.kill()
    broker_process.start()
    assert first + [n for piece in pieces for n in piece.column(0).to_pylist()] == list(range(40_000))

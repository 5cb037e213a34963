"""What a driver has planned is read whole, or the query ends and says so; and a queue has one driver."""

from dataclasses import replace
from typing import Any

import pytest

from kvitto.client import Channel, Connection
from kvitto.spark import link, reading
from kvitto.spark.driver import Driver
from kvitto.spark.errors import DataLossError, TakenError
from kvitto.spark.offsets import Offsets
from kvitto.spark.reading import read_range
from tests.support.wait import wait_until

from .conftest import HasUrl, Publish
from .test_reading import OFFSET, offsets_of, options, settled, url

__all__ = ["url"]


# --- what leaves the queue between a batch's plan and its reading


def queue_with(url: str, count: int = 100, **arguments: Any) -> str:
    """A queue with so many messages; what expires or is dropped goes to the queue `dead`."""
    with Connection(url) as connection:
        channel = connection.channel()
        channel.queue_declare("dead", durable=True)
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("limited", durable=True, arguments=dead | arguments)
        send(channel, count)
    return "limited"


def send(channel: Channel, count: int) -> None:
    channel.confirm_select()
    for _ in range(count):
        channel.publish(b"a message", routing_key="limited")
    channel.wait_for_confirms(10)


def ready(url: str, queue: str) -> int:
    with Connection(url) as connection:
        return connection.channel().queue_declare(queue, passive=True).message_count


def purge(url: str, queue: str = "q") -> None:
    with Connection(url) as connection:
        connection.channel().queue_purge(queue)


def test_a_batch_does_not_expire_and_is_no_dead_letter_too(kvitto_broker: HasUrl) -> None:
    url = kvitto_broker.url
    given = options(url, queue_with(url, 0, **{"x-message-ttl": 3000}))
    driver = Driver(given)
    begin = driver.begin()
    with Connection(url) as connection:
        send(connection.channel(), 100)
    end = driver.advance(begin, 60)
    wait_until(lambda: ready(url, "dead") == 40)
    assert offsets_of(given, driver.plan(begin, end)) == list(range(60))
    with pytest.raises(DataLossError, match="60 to 100 are gone before they were read"):
        driver.advance(end, 0)
    assert ready(url, "dead") == 40


def test_a_batch_is_not_dropped_by_a_length_limit(kvitto_broker: HasUrl) -> None:
    url = kvitto_broker.url
    given = options(url, queue_with(url, **{"x-max-length": 100}))
    driver = Driver(given)
    begin = driver.begin()
    end = driver.advance(begin, 60)
    with Connection(url) as connection:
        send(connection.channel(), 100)
    assert ready(url, "dead") == 40
    assert offsets_of(given, driver.plan(begin, end)) == list(range(60))


def test_a_purge_between_plan_and_read_ends_the_query(url: str) -> None:
    given = options(url, minPartitions="3")
    driver = Driver(given)
    begin = driver.begin()
    end = driver.advance(begin, 300)
    parts = driver.plan(begin, end)
    assert len(parts) == 3
    purge(url)
    for part in parts:
        with pytest.raises(DataLossError, match=r"of the 100 messages .* 100 are gone: the queue was purged"):
            offsets_of(given, [part])
    with pytest.raises(DataLossError, match=r"of the 300 messages .* 300 are gone"):
        driver.plan(begin, end)
    assert offsets_of(options(url, failOnDataLoss="false"), parts) == []


def test_a_purge_in_the_middle_of_reading_ends_the_query(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK_OFFSETS", 100)
    given = options(url, minPartitions="1")
    driver = Driver(given)
    begin = driver.begin()
    rows = read_range(given, OFFSET, *driver.plan(begin, driver.advance(begin, 0)))
    next(rows)
    purge(url)
    with pytest.raises(DataLossError, match="of the 1000 messages"):
        list(rows)


def test_a_purge_before_the_first_look_is_not_overlooked(url: str, publish: Publish) -> None:
    """Between the look at the queue and the plan: new messages come at once, as many as were there."""
    driver = Driver(options(url))
    begin = driver.begin()
    purge(url)
    publish(url, "q", 0, 1000)
    with pytest.raises(DataLossError, match="0 to 1000 are gone"):
        driver.advance(begin, 0)


def test_what_somebody_else_consumed_while_the_query_was_stopped_ends_it(url: str) -> None:
    """Also out of the middle, so that the first message of the batch is still there."""
    given = options(url)
    driver = Driver(given)
    begin = driver.begin()
    end = driver.advance(begin, 300)
    driver.close()
    with Connection(url) as connection:
        channel = connection.channel()
        tags = [delivery.delivery_tag for _ in range(100) if (delivery := channel.get("q")) is not None]
        for tag in tags[50:]:
            channel.ack(tag)
    again = Driver(given)
    with pytest.raises(DataLossError, match=r"of the 300 messages .* 50 are gone"):
        again.plan(begin, end)


def test_a_batch_read_misses_nothing_that_it_has_planned(url: str) -> None:
    given = options(url, minPartitions="1")
    parts = Driver(given).plan_once()
    purge(url)
    with pytest.raises(DataLossError, match="of the 1000 messages"):
        offsets_of(given, parts)


def test_a_checkpoint_of_before_has_no_counts_and_goes_on(url: str) -> None:
    given = options(url)
    driver = Driver(given)
    begin = driver.begin()
    end = driver.advance(begin, 300)
    old = Offsets(end.group, {"q": replace(end.queues["q"], count=None)})
    assert "count" not in str(old.to_json("/"))
    assert offsets_of(given, driver.plan(begin, old)) == list(range(300))
    assert driver.advance(old, 0).queues["q"].count == 700
    purge(url)
    with pytest.raises(DataLossError, match="holds offsets 1000 to 1000"):
        driver.plan(begin, old)


def test_gaps_in_a_queue_are_no_loss(url: str) -> None:
    """What others had settled before the query began; also where one batch ends and the next begins."""
    with Connection(url) as connection:
        channel = connection.channel()
        channel.consume("q")
        tags = channel.receive(10, least=1000).delivery_tags()
        for tag in tags:
            if tag % 10 < 5:
                channel.ack(tag)
    given = options(url)
    driver = Driver(given)
    at = driver.begin()
    found: list[int] = []
    while (end := driver.advance(at, 7)) != at:
        found += offsets_of(given, driver.plan(at, end))
        at = end
    assert found == [offset for offset in range(1000) if (offset + 1) % 10 >= 5]


def test_a_query_that_starts_in_a_gap_starts_with_the_message_behind_it(url: str) -> None:
    with Connection(url) as connection:
        channel = connection.channel()
        channel.consume("q")
        for tag in channel.receive(10, least=1000).delivery_tags()[400:600]:
            channel.ack(tag)
    driver = Driver(options(url, startingOffsets='{"q": 500}'))
    begin = driver.begin()
    assert begin.queues["q"].next == 600
    assert driver.advance(begin, 10).queues["q"].count == 10


# --- two drivers


def test_a_second_driver_with_the_same_checkpoint_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "TAKEN_S", 0.1)
    given = options(url)
    one = Driver(given)
    begin = one.begin()
    end = one.advance(begin, 300)
    for call in (
        lambda: Driver(given).plan(begin, end),
        lambda: Driver(given).advance(end, 0),
        lambda: Driver(given).settle(end),
    ):
        with pytest.raises(TakenError, match=r"403 .* another driver with the same checkpoint reads it"):
            call()
    assert settled(url) == 0
    assert offsets_of(given, one.plan(begin, end)) == list(range(300))


def test_a_driver_that_lost_its_queue_to_another_one_finds_its_batch_incomplete(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hung, its connection ended, a second one with the same checkpoint did the batch and settled it."""
    monkeypatch.setattr(link, "TAKEN_S", 0.1)
    given = options(url)
    one = Driver(given)
    begin = one.begin()
    end = one.advance(begin, 300)
    parts = one.plan(begin, end)
    one.close()
    two = Driver(given)
    two.advance(end, 300)
    with pytest.raises(DataLossError, match=r"of the 300 messages .* 300 are gone"):
        offsets_of(given, parts)
    with pytest.raises(TakenError):
        one.plan(begin, end)

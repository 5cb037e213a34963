from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvitto
from kvitto.client import Connection
from kvitto.wire import methods as m
from kvitto.wire.properties import Properties
from tests.alike.conftest import answers
from tests.http.api import Http
from tests.migrate.trial import Steady, api_of, node
from tests.shovel.running import bodies, count, declare, publish, shovelling
from tests.shovel.trial import Trial, shovel_process
from tests.support.wait import wait_until


@pytest.fixture
def broker() -> Iterator[kvitto.Broker]:
    with kvitto.Broker() as running:
        yield running


@pytest.fixture
def other() -> Iterator[kvitto.Broker]:
    with kvitto.Broker() as running:
        yield running


def test_messages_go_from_queue_to_queue_in_order(broker: kvitto.Broker, other: kvitto.Broker) -> None:
    declare(broker.url, "a")
    publish(broker.url, "a", *(b"%d" % n for n in range(500)))
    with shovelling(src_uri=broker.url, src_queue="a", dest_uri=other.url, dest_queue="b") as shovel:
        wait_until(lambda: shovel.status.moved == 500)
        publish(broker.url, "a", b"500")
        wait_until(lambda: shovel.status.moved == 501)
        wait_until(lambda: count(broker.url, "a") == 0)
    assert bodies(other.url, "b") == [b"%d" % n for n in range(501)]


def test_it_is_exactly_once_by_commits_and_reserves_the_queue(broker: kvitto.Broker, other: kvitto.Broker) -> None:
    declare(broker.url, "a")
    publish(broker.url, "a", *(b"%d" % n for n in range(100)))
    ends = {"src_uri": broker.url, "src_queue": "a", "dest_uri": other.url, "dest_queue": "b"}
    with shovelling(**ends, ack_mode="on-commit") as shovel:
        wait_until(lambda: shovel.status.moved == 100)
        with Connection(broker.url) as connection, pytest.raises(kvitto.client.errors.ChannelClosed):
            connection.channel().consume("a")
    with shovelling(**ends, ack_mode="on-commit") as shovel:
        publish(broker.url, "a", b"100")
        wait_until(lambda: shovel.status.moved == 1)
        wait_until(lambda: count(other.url, "b") == 101)
    assert bodies(other.url, "b") == [b"%d" % n for n in range(101)]


def test_exactly_once_with_another_consumer_says_why_it_does_not_run(
    broker: kvitto.Broker, other: kvitto.Broker
) -> None:
    declare(broker.url, "a")
    with Connection(broker.url) as connection:
        connection.channel().consume("a")
        ends = {"src_uri": broker.url, "src_queue": "a", "dest_uri": other.url, "dest_queue": "b"}
        with shovelling(**ends, ack_mode="on-commit") as shovel:
            wait_until(lambda: shovel.status.state == "terminated")
            assert "403" in shovel.status.reason


def test_from_exchange_to_exchange_the_routing_key_stays(broker: kvitto.Broker) -> None:
    declare(broker.url, "end")
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.call(m.ExchangeDeclare("in", "topic", False, True, False, False, False, {}), m.ExchangeDeclareOk)
        channel.call(m.ExchangeDeclare("out", "topic", False, True, False, False, False, {}), m.ExchangeDeclareOk)
        channel.call(m.QueueBind("end", "out", "a.#", False, {}), m.QueueBindOk)
    ends = {"src_uri": broker.url, "src_exchange": "in", "src_exchange_key": "#", "dest_uri": broker.url}
    more = {"dest_exchange": "out", "dest_add_forward_headers": True, "dest_add_timestamp_header": True}
    properties = Properties(delivery_mode=2, headers={"kept": 1}, priority=3)
    with shovelling(**ends, **more, dest_publish_properties={"app-id": "s"}) as shovel:
        wait_until(lambda: shovel.status.state == "running")
        publish(broker.url, "a.b", b"1", exchange="in", properties=properties)
        publish(broker.url, "b.b", b"nobody takes this one", exchange="in")
        wait_until(lambda: shovel.status.moved == 2)
    with Connection(broker.url) as connection:
        got = connection.channel().get("end", no_ack=True)
    assert got is not None and got.routing_key == "a.b" and got.exchange == "out"
    assert got.properties.app_id == "s" and got.properties.priority == 3
    headers = got.properties.headers or {}
    assert headers["kept"] == 1 and isinstance(headers["x-shovelled-timestamp"], int)
    hops: Any = headers["x-shovelled"]
    (hop,) = hops
    assert hop["shovel-name"] == "s" and hop["src-exchange"] == "in" and "guest" not in str(hop)


@pytest.mark.parametrize("after", ["queue-length", 3])
def test_it_ends_after_what_it_was_to_carry(broker: kvitto.Broker, other: kvitto.Broker, after: object) -> None:
    declare(broker.url, "a")
    publish(broker.url, "a", b"0", b"1", b"2")
    ends = {"src_uri": broker.url, "src_queue": "a", "dest_uri": other.url, "dest_queue": "b"}
    with shovelling(**ends, src_delete_after=after) as shovel:
        wait_until(lambda: shovel.status.state == "terminated")
        assert shovel.status.moved == 3 and "carried" in shovel.status.reason
        publish(broker.url, "a", b"3")
    assert bodies(other.url, "b") == [b"0", b"1", b"2"] and bodies(broker.url, "a") == [b"3"]


def test_a_destination_that_is_full_blocks_and_loses_nothing(broker: kvitto.Broker, other: kvitto.Broker) -> None:
    declare(broker.url, "a")
    declare(other.url, "b", x_max_length=2, x_overflow="reject-publish")
    publish(broker.url, "a", *(b"%d" % n for n in range(5)))
    with shovelling(src_uri=broker.url, src_queue="a", dest_uri=other.url, dest_queue="b") as shovel:
        wait_until(lambda: shovel.status.state == "blocked" and "full" in shovel.status.reason)
        got: list[bytes] = []
        wait_until(lambda: len(got.extend(bodies(other.url, "b")) or got) == 5)
        wait_until(lambda: shovel.status.moved == 5)
    assert sorted(got) == [b"%d" % n for n in range(5)]


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[tuple[Steady, Steady]]:
    """A source with the queue `a`, and a target. Both may be killed, and come back at their addresses."""
    source, target = Steady(tmp_path / "a"), Steady(tmp_path / "b")
    try:
        source.start(), target.start()
        declare(source.uri, "a")
        yield source, target
    finally:
        source.close()
        target.close()


def between(source: Steady, target: Steady) -> dict[str, str]:
    """The settings of a shovel from queue `a` to queue `b`."""
    return {"src_uri": source.uri, "src_queue": "a", "dest_uri": target.uri, "dest_queue": "b"}


def test_it_goes_on_after_either_side_was_killed(sides: tuple[Steady, Steady]) -> None:
    source, target = sides
    with shovelling(**between(source, target), ack_mode="on-commit") as shovel:
        sent = 0
        for killed in (source, target, source, target):
            publish(source.uri, "a", *(b"%d" % n for n in range(sent, sent + 1000)))
            sent += 1000
            wait_until(lambda: shovel.status.moved >= sent - 900)  # noqa: B023 - called at once
            killed.kill()
            wait_until(lambda: shovel.status.state == "terminated" or shovel.status.failures > 0)
            killed.start()
        wait_until(lambda: count(target.uri, "b") == sent, 60.0)
        wait_until(lambda: count(source.uri, "a") == 0)
    assert bodies(target.uri, "b") == [b"%d" % n for n in range(sent)]


def test_a_shovel_that_was_told_to_end_does_so_though_its_source_has_died(sides: tuple[Steady, Steady]) -> None:
    """The ack to the dead source failed in place of the cancellation, and the shovel went on for ever, beside its successor."""
    source, target = sides
    try:
        with shovelling(**between(source, target)) as shovel:
            publish(source.uri, "a", *(b"%d" % n for n in range(500)))
            wait_until(lambda: shovel.status.moved > 0)
            target.pause()
            publish(source.uri, "a", b"500")
            wait_until(lambda: shovel.status.state == "blocked" or count(source.uri, "a") == 0)
            source.kill()
            threading.Timer(0.3, target.resume).start()
        # the end of the block waits for the shovel's end
    finally:
        target.resume()


def test_no_process_of_shovels_outlives_a_broker_that_was_killed(tmp_path: Path) -> None:
    broker = Steady(tmp_path)
    try:
        broker.start()
        wait_until(lambda: answers(api_of(broker)))
        value = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}
        path = "/api/parameters/shovel/%2f/s"
        for orderly in (False, True):
            assert Http(api_of(broker)).call("PUT", path, {"value": value}).status in (201, 204)
            pid = wait_until(lambda: shovel_process(broker.pid))
            broker.stop() if orderly else broker.kill()
            wait_until(lambda: not Path(f"/proc/{pid}").exists())  # noqa: B023 - called at once
            broker.start()
            wait_until(lambda: answers(api_of(broker)))
    finally:
        broker.close()


@pytest.mark.slow
@pytest.mark.parametrize("ack_mode", ["on-confirm", "on-commit"])
def test_nothing_is_lost_under_kills_of_either_side_and_of_the_process(tmp_path: Path, ack_mode: str) -> None:
    with node("kvitto", tmp_path / "a") as source, node("kvitto", tmp_path / "b") as target:
        outcome = Trial(source, target, source, seed=1, rate=1000, **{"ack-mode": ack_mode}).run(6, (0.1, 0.5))
    assert (outcome.lost, outcome.left) == (0, 0) and sum(outcome.kills.values()) == 6
    assert not outcome.doubled or ack_mode == "on-confirm"

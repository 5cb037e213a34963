"""Getting messages over HTTP: looks leave no trace, and what is asked for wrongly takes nothing."""

from __future__ import annotations

import base64
from typing import Any

import pytest

import kvitto
from kvitto.client import Connection, Properties
from tests.http.api import Http
from tests.http.test_queues import depth, publish
from tests.support.wait import wait_until

LOOK = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}


def look(api: Http, queue: str, **change: Any) -> list[dict[str, Any]]:
    answer = api.post(f"/api/queues/%2F/{queue}/get", {**LOOK, **change})
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json
    return found


@pytest.mark.parametrize(
    "mode", ["ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false"]
)
@pytest.mark.parametrize(
    "wrong", [{"encoding": "rot13"}, {"truncate": "x"}, {"truncate": -1}, {"count": "many"}, {"encoding": None}]
)
def test_a_get_that_is_refused_takes_nothing(api: Http, mode: str, wrong: dict[str, Any]) -> None:
    """The messages were taken, and then 400 was answered: with ack_requeue_false they were gone."""
    api.put("/api/queues/%2F/refused", {"durable": True})
    api.delete("/api/queues/%2F/refused/contents")
    publish(api, "refused", "kept")
    body = {"count": 1, "ackmode": mode, "encoding": "auto", **wrong}
    assert api.post("/api/queues/%2F/refused/get", body).status == 400
    assert depth(api, "refused") == (1, 0, 1)
    assert [(m["payload"], m["redelivered"]) for m in look(api, "refused")] == [("kept", False)]


def test_looking_counts_nothing_and_flags_nothing(api: Http, broker: kvitto.Broker) -> None:
    """The third look dead-lettered a message with a delivery limit of 2."""
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 2, "x-dead-letter-exchange": "amq.fanout"}
    api.put("/api/queues/%2F/looked-at", {"durable": True, "arguments": arguments})
    for payload in ("one", "two"):
        publish(api, "looked-at", payload)
    before = api.get("/api/queues/%2F/looked-at")["message_stats"]
    first = look(api, "looked-at")
    assert [(m["payload"], m["redelivered"], m["message_count"]) for m in first] == [
        ("one", False, 1),
        ("two", False, 0),
    ]
    for _ in range(5):
        assert look(api, "looked-at") == first
    found = api.get("/api/queues/%2F/looked-at")
    stats = {name: count for name, count in found["message_stats"].items() if not name.endswith("_details")}
    assert stats == {name: before[name] for name in stats}
    assert depth(api, "looked-at") == (2, 0, 2)
    with Connection(broker.url) as connection:
        delivery = connection.channel().get("looked-at", no_ack=True)
        assert delivery is not None and delivery.body == b"one"
        assert not delivery.redelivered and "x-delivery-count" not in (delivery.properties.headers or {})


def test_a_look_shows_what_a_consumer_would_get(api: Http, broker: kvitto.Broker) -> None:
    """What came back is first, and says how often it was delivered; what has expired is not shown."""
    api.put("/api/queues/%2F/shown", {"durable": True})
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        for body, properties in (
            (b"back", Properties()),
            (b"gone", Properties(expiration="1")),
            (b"new", Properties()),
        ):
            channel.publish(body, routing_key="shown", properties=properties)
        channel.wait_for_confirms()
        delivery = channel.get("shown")
        assert delivery is not None
        wait_until(lambda: [m["payload"] for m in look(api, "shown")] == ["new"])
        channel.nack(delivery.delivery_tag, requeue=True)
        back, new = wait_until(lambda: len(found := look(api, "shown")) == 2 and found)
        assert (back["payload"], back["redelivered"], new["payload"], new["redelivered"]) == (
            "back",
            True,
            "new",
            False,
        )
        assert back["properties"]["headers"] == {"x-delivery-count": 1}
        for expected in (back, new):
            delivered = channel.get("shown", no_ack=True)
            assert delivered is not None
            assert (delivered.body.decode(), delivered.redelivered) == (expected["payload"], expected["redelivered"])
            assert (delivered.properties.headers or {}) == expected["properties"].get("headers", {})


def test_a_look_follows_the_priorities(api: Http) -> None:
    api.put("/api/queues/%2F/ranked", {"durable": True, "arguments": {"x-max-priority": 9}})
    for payload, priority in (("low", 1), ("high", 9), ("middle", 5), ("low too", 1)):
        publish(api, "ranked", payload, priority=priority)
    assert [m["payload"] for m in look(api, "ranked", count=3)] == ["high", "middle", "low"]
    assert [m["redelivered"] for m in look(api, "ranked")] == [False] * 4


def test_a_look_reaches_over_what_others_hold(api: Http, broker: kvitto.Broker) -> None:
    api.put("/api/queues/%2F/held", {"durable": True})
    for n in range(6):
        publish(api, "held", str(n))
    with Connection(broker.url) as connection:
        channel = connection.channel()
        taken = [channel.get("held") for _ in range(4)]
        for delivery in taken[1::2]:
            assert delivery is not None
            channel.nack(delivery.delivery_tag, requeue=True)
        wait_until(lambda: depth(api, "held") == (4, 2, 6))
        assert [m["payload"] for m in look(api, "held", count=10)] == ["1", "3", "4", "5"]
        assert [m["payload"] for m in look(api, "held", count=3)] == ["1", "3", "4"]


def test_a_stream_cannot_be_got_from(api: Http) -> None:
    api.put("/api/queues/%2F/flow", {"durable": True, "arguments": {"x-queue-type": "stream"}})
    answer = api.post("/api/queues/%2F/flow/get", LOOK)
    assert answer.status == 400 and "not supported by stream queues" in answer.reason


def test_bodies_of_all_lengths_and_letters_come_whole(api: Http, broker: kvitto.Broker) -> None:
    """They are rendered in pieces, which must cut neither a letter nor three bytes of base64."""
    api.put("/api/queues/%2F/long", {"durable": True})
    bodies = [("€" * 50_000).encode(), b"x" * 49_151 + "🙂".encode() + b'"\\\n', b"\xff" * 100_001, b""]
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        for body in bodies:
            channel.publish(body, routing_key="long")
        channel.wait_for_confirms()
    for mode in ("ack_requeue_true", "reject_requeue_true", "ack_requeue_false"):
        got = look(api, "long", ackmode=mode)
        assert [m["payload_encoding"] for m in got] == ["string", "string", "base64", "string"]
        texts = [
            base64.b64decode(m["payload"]) if m["payload_encoding"] == "base64" else m["payload"].encode() for m in got
        ]
        assert texts == bodies
    assert depth(api, "long") == (0, 0, 0)

"""Exchanges, bindings and definitions over HTTP against a real broker."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urljoin

import pytest

import kvitto
from kvitto.broker.administration import operations
from kvitto.broker.routing import exchange
from kvitto.broker.transfers import copying
from tests.http.api import Http
from tests.protocol.test_exchange_type import NAME, PropertyIndex
from tests.support.wait import wait_until


def test_exchanges_are_declared_listed_and_deleted(api: Http) -> None:
    assert api.put("/api/exchanges/%2F/events", {"type": "topic", "durable": True}) == 201
    assert api.put("/api/exchanges/%2F/events", {"type": "topic", "durable": True}) == 204
    assert api.put("/api/exchanges/%2F/events", {"type": "fanout", "durable": True}) == 400
    assert api.put("/api/exchanges/%2F/odd", {"type": "no-such-type"}) == 400
    found = api.get("/api/exchanges/%2F/events")
    assert (found["type"], found["durable"], found["auto_delete"], found["internal"]) == ("topic", True, False, False)
    assert {"", "amq.direct", "amq.topic", "events"} <= {e["name"] for e in api.get("/api/exchanges/%2F")}
    assert api.delete("/api/exchanges/%2F/events") == 204
    assert api.delete("/api/exchanges/%2F/events") == 404


def test_a_publish_is_routed_by_the_property_that_its_exchange_type_needs(
    api: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(exchange.TYPES, NAME, PropertyIndex)
    given = {"type": NAME, "arguments": {"property": "message_id"}}
    assert api.put("/api/exchanges/%2F/by-id", given) == 201
    assert api.put("/api/exchanges/%2F/by-id", {"type": NAME}) == 400, "the type checks its arguments"
    assert api.put("/api/queues/%2F/by-id") == 201
    assert api.post("/api/bindings/%2F/e/by-id/q/by-id", {"routing_key": "1"}).status == 201
    for message_id, expected in (("1", True), ("2", False)):
        message = {"routing_key": "k", "payload": "x", "properties": {"message_id": message_id}}
        assert api.post("/api/exchanges/%2F/by-id/publish", message).json == {"routed": expected}
    assert api.delete("/api/exchanges/%2F/by-id") == 204


def test_predeclared_exchanges_stay(api: Http) -> None:
    assert api.delete("/api/exchanges/%2F/amq.topic") == 401
    assert api.delete("/api/exchanges/%2F/amq.default") == 401
    assert api.put("/api/exchanges/%2F/amq.default", {"type": "direct"}) == 401


def test_an_internal_exchange_takes_no_message(api: Http) -> None:
    """W5"""
    api.put("/api/exchanges/%2F/inside", {"type": "fanout", "internal": True})
    answer = api.post("/api/exchanges/%2F/inside/publish", {"routing_key": "", "payload": "x"})
    assert answer.status == 401
    assert "internal exchange" in answer.reason


def test_a_binding_is_made_found_used_and_deleted(api: Http) -> None:
    api.put("/api/exchanges/%2F/logs", {"type": "topic", "durable": True})
    api.put("/api/queues/%2F/all-logs", {"durable": True})
    answer = api.post("/api/bindings/%2F/e/logs/q/all-logs", {"routing_key": "a.#", "arguments": {}})
    assert answer.status == 201
    location = urljoin("/api/bindings/%2F/e/logs/q/all-logs", answer.headers["Location"])
    assert answer.headers["Location"] == "all-logs/a.%2523", "as RabbitMQ's, which clients take apart"
    expected = {
        "source": "logs",
        "vhost": "/",
        "destination": "all-logs",
        "destination_type": "queue",
        "routing_key": "a.#",
        "arguments": {},
        "properties_key": "a.%23",
    }
    assert api.get(location) == expected
    for path in (
        "/api/bindings/%2F/e/logs/q/all-logs",
        "/api/exchanges/%2F/logs/bindings/source",
    ):
        assert api.get(path) == [expected]
    assert expected in api.get("/api/bindings/%2F")
    assert expected in api.get("/api/queues/%2F/all-logs/bindings")
    body = {"routing_key": "a.b", "payload": "x"}
    assert api.post("/api/exchanges/%2F/logs/publish", body).json == {"routed": True}
    assert api.delete(location) == 204
    assert api.delete(location) == 404
    assert api.post("/api/exchanges/%2F/logs/publish", body).json == {"routed": False}


def test_bindings_that_differ_in_arguments_only_are_told_apart(api: Http) -> None:
    api.put("/api/queues/%2F/by-headers", {"durable": True})
    path = "/api/bindings/%2F/e/amq.headers/q/by-headers"
    keys = []
    for colour in ("red", "blue"):
        answer = api.post(path, {"arguments": {"x-match": "all", "colour": colour}})
        assert answer.status == 201
        keys.append(urljoin(path, answer.headers["Location"]))
    assert len(set(keys)) == 2
    message = {"routing_key": "", "payload": "x", "properties": {"headers": {"colour": "blue"}}}
    assert api.post("/api/exchanges/%2F/amq.headers/publish", message).json == {"routed": True}
    assert api.delete(keys[1]) == 204
    assert [b["arguments"]["colour"] for b in api.get(path)] == ["red"]
    assert api.post("/api/exchanges/%2F/amq.headers/publish", message).json == {"routed": False}


def test_exchanges_are_bound_to_exchanges(api: Http) -> None:
    api.put("/api/exchanges/%2F/front", {"type": "fanout"})
    api.put("/api/exchanges/%2F/back", {"type": "fanout"})
    assert api.post("/api/bindings/%2F/e/front/e/back", {}).status == 201
    (found,) = api.get("/api/exchanges/%2F/back/bindings/destination")
    assert (found["source"], found["destination_type"], found["properties_key"]) == ("front", "exchange", "~")
    assert api.delete("/api/bindings/%2F/e/front/e/back/~") == 204
    assert api.get("/api/bindings/%2F/e/front/e/back") == []


def test_the_default_exchange_cannot_be_bound(api: Http) -> None:
    api.put("/api/queues/%2F/unbound", {})
    assert api.post("/api/bindings/%2F/e/amq.default/q/unbound", {"routing_key": "x"}).status == 401
    assert api.post("/api/bindings/%2F/e/no-such/q/unbound", {}).status == 404
    assert api.post("/api/bindings/%2F/e/amq.direct/q/no-such", {}).status == 404


def test_definitions_hold_what_survives_a_restart(api: Http) -> None:
    api.put("/api/exchanges/%2F/defined", {"type": "direct", "durable": True})
    api.put("/api/queues/%2F/defined", {"durable": True, "arguments": {"x-max-length": 7}})
    api.put("/api/queues/%2F/fleeting", {})
    for queue in ("defined", "fleeting"):
        api.post(f"/api/bindings/%2F/e/defined/q/{queue}", {"routing_key": "k"})
    found = api.get("/api/definitions")
    assert "defined" in {e["name"] for e in found["exchanges"]}
    assert not {e["name"] for e in found["exchanges"]} & {"", "amq.direct"}
    (queue,) = (q for q in found["queues"] if q["name"] in ("defined", "fleeting"))
    assert (queue["name"], queue["arguments"]) == ("defined", {"x-max-length": 7})
    assert [b["destination"] for b in found["bindings"] if b["source"] == "defined"] == ["defined"]
    assert "/" in {vhost["name"] for vhost in found["vhosts"]}
    assert "guest" in {u["name"] for u in found["users"]}
    of_vhost = api.get(f"/api/definitions/{quote('/', safe='')}")
    assert all("vhost" not in q for q in of_vhost["queues"]) and "users" not in of_vhost


def test_a_message_for_many_queues_is_copied_in_pieces(
    broker: kvitto.Broker, api: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body of 12 MiB for 60 queues was copied to all of them in one step."""
    pieces: list[int] = []

    def counted(*arguments: Any) -> Iterator[bool]:
        pieces.append(0)
        for step in copying.copies(*arguments):
            pieces[-1] += 1
            yield step

    monkeypatch.setattr(operations, "copies", counted)
    api.put("/api/exchanges/%2F/many", {"type": "fanout"})
    for number in range(5):
        api.put(f"/api/queues/%2F/many{number}", {})
        api.post(f"/api/bindings/%2F/e/many/q/many{number}", {"routing_key": ""})
    body = "x" * (2 * copying.COPIES_BYTES)
    message = {"routing_key": "", "payload": body, "payload_encoding": "string", "properties": {}}
    assert api.post("/api/exchanges/%2F/many/publish", message).json == {"routed": True}
    assert [api.get(f"/api/queues/%2F/many{number}")["messages"] for number in range(5)] == [1] * 5
    assert len(pieces) == 1 and pieces[0] >= 5


def test_an_exchange_with_deduplication_tells_of_its_keys_and_is_part_of_the_definitions(api: Http) -> None:
    """A publish over HTTP is compared like any other, and is routed if a queue gets it."""
    arguments = {"x-message-deduplication": True, "x-deduplication-by": "message-id", "x-cache-size": 10}
    given = {"type": "direct", "durable": True, "arguments": arguments}
    assert api.put("/api/exchanges/%2F/once", given) == 201
    assert api.put("/api/exchanges/%2F/once", given) == 204
    other = {**given, "arguments": {**arguments, "x-cache-size": 11}}
    assert api.put("/api/exchanges/%2F/once", other) == 400
    assert api.put("/api/exchanges/%2F/wrong", {**given, "arguments": {**arguments, "x-cache-size": 0}}) == 400
    assert api.put("/api/queues/%2F/once", {"durable": True}) == 201
    assert api.post("/api/bindings/%2F/e/once/q/once", {"routing_key": "k"}).status == 201
    for message_id, key, routed in (("a", "k", True), ("b", "other", False), ("a", "k", True), ("b", "k", True)):
        message = {"routing_key": key, "payload": message_id, "properties": {"message_id": message_id}}
        assert api.post("/api/exchanges/%2F/once/publish", message).json == {"routed": routed}
    wait_until(lambda: api.get("/api/queues/%2F/once")["messages"] == 2)
    found = api.get("/api/exchanges/%2F/once")
    assert found["deduplication"] == {"keys": 2, "duplicates": 1} and found["messages_passing"] == 0
    assert "deduplication" not in api.get("/api/exchanges/%2F/amq.direct")
    assert not [queue for queue in api.get("/api/queues") if "passage" in queue["name"]]
    exported = api.get("/api/definitions")
    (exchange,) = [item for item in exported["exchanges"] if item["name"] == "once"]
    assert exchange["arguments"] == arguments and exchange.keys() == {
        *("name", "vhost", "type", "durable", "auto_delete", "internal", "arguments")
    }
    assert api.delete("/api/exchanges/%2F/once") == 204
    assert api.post("/api/definitions", exported).status < 300
    assert api.get("/api/exchanges/%2F/once")["deduplication"] == {"keys": 0, "duplicates": 0}
    for path in ("/api/exchanges/%2F/once", "/api/queues/%2F/once"):
        api.delete(path)

"""Publishing a batch over HTTP: checked as a whole before anything is done, durable before it is answered, one answer per message."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvitto
from kvitto.base.limits import HTTP_BATCH_MAX
from tests.http.api import Answer, Http

QUEUE = "/api/queues/%2F/batch"


@pytest.fixture(autouse=True)
def queue(api: Http) -> Iterator[str]:
    api.delete(QUEUE)
    assert api.put(QUEUE, {"durable": True}) == 201
    yield QUEUE
    api.delete(QUEUE)


def publish(api: Http, *messages: Any, exchange: str = "amq.default") -> Answer:
    return api.post(f"/api/exchanges/%2F/{exchange}/publish", {"messages": list(messages)})


def message(payload: str = "x", key: str = "batch", **more: Any) -> dict[str, Any]:
    return {"routing_key": key, "payload": payload, **more}


def kept(api: Http) -> list[str]:
    look = {"count": 1000, "ackmode": "ack_requeue_true", "encoding": "auto"}
    return [found["payload"] for found in api.post(f"{QUEUE}/get", look).json]


def test_each_message_has_its_answer(api: Http) -> None:
    encoded = base64.b64encode(b"b").decode()
    answer = publish(
        api,
        message("a"),
        message("lost", "nowhere"),
        message(encoded, payload_encoding="base64", properties={"priority": 3}),
    )
    assert answer.status == 200
    assert answer.json == {"results": [{"routed": True}, {"routed": False}, {"routed": True}]}
    assert kept(api) == ["a", "b"]


def test_a_full_queue_refuses_some_of_them(api: Http) -> None:
    api.delete(QUEUE)
    assert api.put(QUEUE, {"durable": True, "arguments": {"x-max-length": 2, "x-overflow": "reject-publish"}}) == 201
    results = publish(api, *map(message, "abc")).json["results"]
    assert [one["routed"] for one in results] == [True, True, False]
    assert "is full" in results[2]["refused"] and "refused" not in results[1]
    assert kept(api) == ["a", "b"]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (message(key=7), "messages[1]: routing_key must be a string"),  # type: ignore[arg-type]
        ({"payload": "x"}, "messages[1]: routing_key is missing"),
        (message(payload_encoding="base64", payload="!"), "messages[1]: the payload is not base64"),
        (message(properties={"nonsense": 1}), "messages[1]: there is no property 'nonsense'"),
        (message(properties={"expiration": "-1"}), "messages[1]: 406 PRECONDITION_FAILED - invalid expiration"),
        (message(properties={"user_id": "somebody"}), "messages[1]: 406 PRECONDITION_FAILED - user_id"),
    ],
)
def test_if_one_is_wrong_none_is_published(api: Http, wrong: dict[str, Any], text: str) -> None:
    answer = publish(api, message("a"), wrong)
    assert answer.status == 400 and answer.reason.startswith(text)
    assert kept(api) == []


@pytest.mark.parametrize("messages", [[], "x", {}, [7], [[]], [message()] * (HTTP_BATCH_MAX + 1)])
def test_it_must_be_a_list_of_messages_and_not_too_long(api: Http, messages: Any) -> None:
    answer = api.post("/api/exchanges/%2F/amq.default/publish", {"messages": messages})
    assert answer.status == 400 and "messages" in answer.reason
    assert kept(api) == []


def test_values_beside_the_messages_are_refused(api: Http) -> None:
    body = {"messages": [message()], "routing_key": "batch"}
    answer = api.post("/api/exchanges/%2F/amq.default/publish", body)
    assert answer.status == 400 and "routing_key belongs into each" in answer.reason


def test_the_longest_batch_is_in_order(api: Http) -> None:
    sent = [str(n) for n in range(HTTP_BATCH_MAX)]
    full: dict[str, Any] = {"payload_encoding": "string", "properties": {"message_id": "m"}}
    results = publish(api, *(message(payload, **full) for payload in sent)).json["results"]
    assert results == [{"routed": True}] * HTTP_BATCH_MAX
    assert kept(api) == sent


def test_what_is_answered_is_there_after_a_kill(tmp_path: Path) -> None:
    """The copy is what a kill at the moment of the answer would leave."""
    with kvitto.Broker(tmp_path / "data", http_port=0) as broker:
        api = Http(broker.http_url)
        assert api.put(QUEUE, {"durable": True}) == 201
        assert publish(api, *map(message, "abc")).json["results"] == [{"routed": True}] * 3
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
    (tmp_path / "copy" / "lock").unlink(missing_ok=True)
    with kvitto.Broker(tmp_path / "copy", http_port=0) as broker:
        assert kept(Http(broker.http_url)) == ["a", "b", "c"]


def test_who_may_not_publish_there_publishes_nothing(api: Http) -> None:
    assert api.put("/api/users/reader", {"password": "secret", "tags": "management"}) == 201
    assert api.put("/api/permissions/%2F/reader", {"configure": "", "write": "", "read": ".*"}) == 201
    assert publish(api.as_user("reader"), message()).status == 401
    assert kept(api) == []
    api.delete("/api/users/reader")

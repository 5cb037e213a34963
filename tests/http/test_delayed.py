"""Delayed messages over HTTP: listed, run now, cancelled and purged."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import kvitto
from kvitto.broker.queues.delay_queue import DelayQueue, Done
from tests.http.api import Http
from tests.support.wait import wait_until


def delaying(api: Http, name: str) -> str:
    """Declare an exchange that delays, and a queue of the same name that gets its messages. Return the path of the exchange."""
    given = {"type": "x-delayed-message", "durable": True, "arguments": {"x-delayed-type": "fanout"}}
    assert api.put(f"/api/exchanges/%2F/{name}", given) == 201
    assert api.put(f"/api/queues/%2F/{name}", {"durable": True}) == 201
    assert api.post(f"/api/bindings/%2F/e/{name}/q/{name}", {}).status == 201
    return f"/api/exchanges/%2F/{name}"


def send(api: Http, path: str, message_id: str, delay_ms: int, payload: str = "x") -> None:
    properties = {"message_id": message_id, "headers": {"x-delay": delay_ms}}
    message = {"routing_key": "key", "payload": payload, "properties": properties}
    assert api.post(path + "/publish", message).json == {"routed": True}


def payloads(api: Http, name: str) -> list[str]:
    got = api.post(f"/api/queues/%2F/{name}/get", {"count": 100, "ackmode": "ack_requeue_true", "encoding": "auto"})
    return [message["payload"] for message in got.json]


def test_waiting_messages_are_listed_by_due_time(api: Http) -> None:
    path = delaying(api, "listed")
    for number in (3, 1, 2):
        send(api, path, f"id {number}", 100_000 * number, "x" * number)
    found = api.get(path + "/delayed")
    assert [m["message_id"] for m in found] == ["id 1", "id 2", "id 3"]
    first: dict[str, Any] = found[0]
    assert (first["exchange"], first["routing_key"], first["payload_bytes"]) == ("listed", "key", 1)
    assert 90_000 < first["due_in_ms"] <= 100_000 and first["properties"]["headers"] == {"x-delay": 100_000}
    assert [m["message_id"] for m in api.get(path + "/delayed?count=2")] == ["id 1", "id 2"]
    assert api.get(path)["messages_delayed"] == 3
    assert api.call("GET", path + "/delayed?count=0").status == 400
    assert "payload" not in first


def test_a_message_is_run_and_another_one_cancelled(api: Http) -> None:
    path = delaying(api, "chosen")
    for name in ("keep", "run/now", "cancel"):
        send(api, path, name, 1_000_000, name)
    assert api.post(path + "/delayed/run%2Fnow/run", {}).json == {"run": 1}
    assert payloads(api, "chosen") == ["run/now"]
    assert api.call("DELETE", path + "/delayed/cancel").json == {"cancelled": 1}
    for method, of in (("POST", "/delayed/cancel/run"), ("DELETE", "/delayed/cancel"), ("DELETE", "/delayed/ru")):
        answer = api.call(method, path + of, {} if method == "POST" else None)
        assert answer.status == 404 and "no message with the id" in answer.reason
    assert [m["message_id"] for m in api.get(path + "/delayed")] == ["keep"]
    assert api.call("DELETE", path + "/delayed").status == 204
    assert api.get(path + "/delayed") == [] and api.get(path)["messages_delayed"] == 0


def test_an_exchange_that_is_deleted_under_a_run_is_not_there(api: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer was 503 and said that the messages stay, although they had gone with their exchange."""
    path = delaying(api, "goes")
    send(api, path, "m", 1_000_000)
    begun = threading.Event()

    def never_ends(_queue: DelayQueue, _offset: int, _size: int, _id: str, _done: Done) -> bool:
        begun.set()
        return True

    monkeypatch.setattr(DelayQueue, "run_now", never_ends)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(api.post, path + "/delayed/m/run", {})
        assert begun.wait(30)
        assert api.call("DELETE", path).status == 204
        got = answer.result(30)
    assert got.status == 404 and "0 of 1 messages are run" in got.reason and "stay" not in got.reason


def test_a_delayed_message_comes_by_itself(api: Http) -> None:
    path = delaying(api, "soon")
    send(api, path, "m", 20)
    wait_until(lambda: payloads(api, "soon") == ["x"])


def test_only_an_exchange_that_delays_has_waiting_messages(api: Http) -> None:
    answer = api.call("GET", "/api/exchanges/%2F/amq.topic/delayed")
    assert answer.status == 404 and "delays no messages" in answer.reason
    assert api.call("GET", "/api/exchanges/%2F/nowhere/delayed").status == 404


def test_who_may_write_may_run_and_cancel(api: Http, broker: kvitto.Broker) -> None:
    path = delaying(api, "guarded")
    send(api, path, "m", 1_000_000)
    assert api.put("/api/users/reader", {"password": "secret", "tags": "management"}) == 201
    assert api.put("/api/permissions/%2F/reader", {"configure": ".*", "write": "", "read": ".*"}) == 201
    reader = api.as_user("reader")
    assert [m["message_id"] for m in reader.get(path + "/delayed")] == ["m"]
    for method, of in (("POST", "/delayed/m/run"), ("DELETE", "/delayed/m"), ("DELETE", "/delayed")):
        assert reader.call(method, path + of, {} if method == "POST" else None).status == 401
    assert api.get(path)["messages_delayed"] == 1
    writer, watcher = api.as_user("writer"), api.as_user("watcher")
    assert api.put("/api/users/writer", {"password": "secret", "tags": "management"}) == 201
    assert api.put("/api/permissions/%2F/writer", {"configure": "", "write": ".*", "read": ""}) == 201
    assert api.put("/api/users/watcher", {"password": "secret", "tags": "monitoring"}) == 201
    for user in (writer, watcher):
        assert user.call("GET", path + "/delayed").status == 401, "properties and headers belong to those who may read"
    assert writer.post(path + "/delayed/m/run", {}).status == 200


def test_the_count_of_a_list_is_a_number_in_its_bounds(api: Http) -> None:
    """Only the first nine digits were looked at: a count of 5,000 digits was an internal error, one of 20 any number."""
    path = delaying(api, "counted")
    for count in ("10001", "0000000019999999999", "1" + "0" * 5000, "0" * 5000, "x", "-1", ""):
        assert api.call("GET", f"{path}/delayed?count={count}").status == 400, count[:30]


def test_what_was_cancelled_stays_away_after_a_restart(tmp_path: Any) -> None:
    with kvitto.Broker(http_port=0, data_dir=tmp_path) as broker:
        api = Http(broker.http_url)
        path = delaying(api, "again")
        for name in ("a", "b", "c"):
            send(api, path, name, 1_000_000, name)
        assert api.call("DELETE", path + "/delayed/a").status == 200
        assert api.post(path + "/delayed/b/run", {}).status == 200
    with kvitto.Broker(http_port=0, data_dir=tmp_path) as broker:
        api = Http(broker.http_url)
        wait_until(lambda: [m["message_id"] for m in api.get(path + "/delayed")] == ["c"])
        assert payloads(api, "again") == ["b"]

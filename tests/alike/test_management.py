"""What the management API does as RabbitMQ's does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin

import pytest

from tests.http.api import Http


@pytest.fixture
def queue(api: Http, request: pytest.FixtureRequest) -> Iterator[str]:
    """The path of a durable queue."""
    path = f"/api/queues/%2F/{request.function.__name__[:100]}"
    api.delete(path)
    assert api.put(path, {"durable": True}) == 201
    yield path
    api.delete(path)


def publish(api: Http, queue: str, payload: str) -> None:
    key = queue.rpartition("/")[2]
    body = {"routing_key": key, "payload": payload, "payload_encoding": "string", "properties": {}}
    assert api.post("/api/exchanges/%2F/amq.default/publish", body).json == {"routed": True}


def get(api: Http, queue: str, **change: Any) -> Any:
    return api.post(f"{queue}/get", {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto", **change})


@pytest.mark.parametrize("wrong", [{"encoding": "rot13"}, {"truncate": "x"}, {"count": "many"}])
@pytest.mark.parametrize("mode", ["ack_requeue_false", "ack_requeue_true"])
def test_a_get_that_is_refused_takes_nothing(api: Http, queue: str, mode: str, wrong: dict[str, Any]) -> None:
    publish(api, queue, "kept")
    assert get(api, queue, ackmode=mode, **wrong).status == 400
    assert [m["payload"] for m in get(api, queue, ackmode="ack_requeue_false").json] == ["kept"]


def test_a_look_has_these_fields(api: Http, queue: str) -> None:
    publish(api, queue, "one")
    publish(api, queue, "two")
    first, second = get(api, queue).json
    name = queue.rpartition("/")[2]
    common = {
        "payload_bytes": 3,
        "redelivered": False,
        "exchange": "",
        "routing_key": name,
        "payload_encoding": "string",
    }
    for message, payload, left in ((first, "one", 1), (second, "two", 0)):
        assert {**common, "payload": payload, "message_count": left} == {
            k: v for k, v in message.items() if k != "properties"
        }
    assert get(api, queue, count=0).json == []


def test_who_creates_a_vhost_may_do_everything_in_it(api: Http) -> None:
    api.delete("/api/vhosts/made")
    assert api.put("/api/vhosts/made", {"description": "d", "tags": "a,b", "tracing": True}) == 201
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert api.get("/api/vhosts/made/permissions") == [{"user": "guest", "vhost": "made", **everything}]
    found = api.get("/api/vhosts/made")
    assert (found["description"], found["tags"], found["tracing"]) == ("d", ["a", "b"], True)
    assert api.put("/api/vhosts/made", {"description": "e"}) == 204
    found = api.get("/api/vhosts/made")
    assert (found["description"], found["tags"], found["tracing"]) == ("e", [], True)
    assert api.delete("/api/vhosts/made") == 204


def test_the_location_of_a_binding_is_relative(api: Http, queue: str) -> None:
    name = queue.rpartition("/")[2]
    path = f"/api/bindings/%2F/e/amq.direct/q/{name}"
    for key, location in (("k", "k"), ("", "~"), ("a.#", "a.%2523"), ("a/b~", "a%252Fb%257E")):
        answer = api.post(path, {"routing_key": key})
        assert (answer.status, answer.headers["Location"]) == (201, f"{name}/{location}")
        assert api.get(urljoin(path, answer.headers["Location"]))["routing_key"] == key


def test_ten_and_ten_point_nought_are_two(api: Http, queue: str) -> None:
    api.delete(queue)
    for argument in ("x-message-ttl", "x-max-length", "x-expires"):
        assert api.put(queue, {"arguments": {argument: 100_000}}) == 201
        answer = api.call("PUT", queue, {"arguments": {argument: 100_000.0}})
        assert answer.status == 400 and "received '100000.0' but current is '100000'" in answer.body.decode().replace(
            "1.0e5", "100000.0"
        )
        assert api.put(queue, {"arguments": {argument: 100_000}}) == 204
        api.delete(queue)


def test_names_in_pages_are_found_by_a_part_or_a_pattern_whatever_their_case(api: Http) -> None:
    names = ["Alike-1", "alike-2", "other-alike"]  # as they are sorted; no other test has such a name
    for name in names:
        api.put(f"/api/queues/%2F/{name}")
    for query, found in (("name=ALIKE", names), ("name=^ALIKE&use_regex=true", ["Alike-1", "alike-2"])):
        page = api.get(f"/api/queues/%2F?page=1&page_size=100&sort=name&columns=name&{query}")
        assert [item["name"] for item in page["items"]] == found
        assert (page["filtered_count"], page["item_count"], page["page_count"]) == (len(found), len(found), 1)
    assert api.get("/api/queues/%2F?page=1&name=no-such-thing")["page_count"] == 0
    assert api.call("GET", "/api/queues/%2F?page=1&name=(&use_regex=true").status == 400
    for name in names:
        api.delete(f"/api/queues/%2F/{name}")


def test_line_ends_in_names_are_left_out(api: Http) -> None:
    for kind in ("queues", "exchanges"):
        assert api.put(f"/api/{kind}/%2F/line%0D%0Aend") == 201
        assert api.get(f"/api/{kind}/%2F/lineend")["name"] == "lineend"
        assert api.delete(f"/api/{kind}/%2F/lineend") == 204


@pytest.mark.parametrize(
    ("check", "status"),
    [
        ("virtual-hosts", 200),
        ("protocol-listener/amqp", 200),
        ("protocol-listener/http", 200),
        ("protocol-listener/amqps", 503),
        ("port-listener/1", 503),
        ("certificate-expiration/1/days", 200),
        ("certificate-expiration/x/days", 400),
        ("certificate-expiration/1/eons", 400),
        ("node-is-quorum-critical", 200),
        ("node-is-mirror-sync-critical", 200),
    ],
)
def test_health_checks(api: Http, check: str, status: int) -> None:
    answer = api.call("GET", f"/api/health/checks/{check}")
    assert answer.status == status
    assert answer.json.get("status", "") == {200: "ok", 503: "failed", 400: ""}[status]


def test_fields_that_tools_read(api: Http) -> None:
    [node] = api.get("/api/nodes")
    assert (node["running"], node["type"]) == (True, "disc")
    assert {flag["name"]: flag["state"] for flag in api.get("/api/feature-flags")}["stream_queue"] == "enabled"
    assert api.get("/api/connections/username/nobody") == []
    assert api.put("/api/cluster-name", {"name": "lund"}) == 204
    assert api.get("/api/cluster-name") == {"name": "lund"}
    assert api.call("PUT", "/api/cluster-name", {"nam": "x"}).status == 400


def test_several_users_are_deleted_together(api: Http) -> None:
    for name in ("bulk-1", "bulk-2"):
        assert api.put(f"/api/users/{name}", {"password": "secret", "tags": ""}) in (201, 204)
    assert api.post("/api/users/bulk-delete", {"users": ["no-such"]}).status == 400
    assert api.post("/api/users/bulk-delete", {"users": ["bulk-1", "bulk-2"]}).status == 204
    assert api.call("GET", "/api/users/bulk-1").status == 404

"""What the management API does as RabbitMQ's does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from urllib.parse import quote, urljoin

import pytest

from kvitto.client import Connection
from tests.http.api import Http
from tests.support.wait import wait_until


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


SPANS = "&".join(f"{kind}_age=60&{kind}_incr=5" for kind in ("lengths", "msg_rates", "data_rates", "node_stats"))
COUNTED_S = 40.0
"""RabbitMQ counts every five seconds in one place, and then in the next."""
DETAILS = {"rate", "samples", "avg", "avg_rate"}


@pytest.fixture
def traffic(api: Http, queue: str) -> Iterator[str]:
    """A queue with messages of each fate, and its connection."""
    [port] = [one["port"] for one in api.get("/api/overview")["listeners"] if one["protocol"] == "amqp"]
    name = queue.rpartition("/")[2]
    with Connection(f"amqp://guest:guest@127.0.0.1:{port}/%2f") as connection:
        channel = connection.channel()
        channel.confirm_select()
        for _ in range(30):
            channel.publish(b"x" * 10, exchange="", routing_key=name)
        for mandatory in (True, True, False, False, False):
            channel.publish(b"x", exchange="amq.topic", routing_key="nowhere", mandatory=mandatory)
        channel.wait_for_confirms()
        other = connection.channel()
        other.qos(prefetch_count=5)
        other.consume(name, consumer_tag="c")
        other.get(name, no_ack=True)
        other.get(name)
        other.get(name)
        yield queue


def numbers(stats: dict[str, Any]) -> dict[str, int]:
    return {key: value for key, value in stats.items() if not key.endswith("_details") and value}


def test_messages_are_counted_by_kind(api: Http, traffic: str) -> None:
    expected = {"publish": 30, "deliver": 5, "deliver_get": 8, "get": 2, "get_no_ack": 1}

    def seen() -> bool:
        found = api.get(traffic)
        return bool(numbers(found.get("message_stats", {})) == expected and found.get("message_bytes") == 290)

    wait_until(seen, COUNTED_S)
    found = api.get(traffic)
    assert (found["message_bytes_ready"], found["message_bytes_unacknowledged"]) == (220, 70)
    kinds = [numbers(channel["message_stats"]) for channel in api.get("/api/channels")]
    assert {"publish": 35, "confirm": 35, "return_unroutable": 2, "drop_unroutable": 3} in kinds
    topic = api.get("/api/exchanges/%2F/amq.topic")["message_stats"]
    assert topic["publish_in"] >= 5 and topic["publish_in_details"]["rate"] >= 0


def test_samples_have_this_form(api: Http, traffic: str) -> None:
    """13 of them in 60 seconds by 5, the newest first; what is older than the queue is 0."""

    def sampled() -> bool:
        found = api.get(f"{traffic}?{SPANS}")
        [*samples] = found.get("messages_details", {}).get("samples", ())
        return len(samples) == 13 and samples[0]["sample"] == 29

    wait_until(sampled, COUNTED_S)
    details = api.get(f"{traffic}?{SPANS}")["messages_details"]
    assert set(details) == DETAILS
    times = [sample["timestamp"] for sample in details["samples"]]
    assert {a - b for a, b in pairwise(times)} == {5000} and times[0] % 5000 == 0
    values = [sample["sample"] for sample in details["samples"]]
    assert values[-1] == 0
    assert details["avg"] == pytest.approx(sum(values) / 13)
    assert details["avg_rate"] == pytest.approx((values[0] - values[-1]) / 60)
    [node] = api.get(f"/api/nodes?{SPANS}")
    assert set(node["mem_used_details"]) == DETAILS
    assert set(api.get(f"/api/overview?{SPANS}")["message_stats"]["publish_details"]) == DETAILS
    [connection] = api.get(f"/api/connections?{SPANS}")
    assert set(connection["recv_oct_details"]) == DETAILS


def test_calls_that_look_after_nodes(api: Http, queue: str) -> None:
    node = quote(api.get("/api/overview")["node"], safe="")
    attempts = {one["protocol"]: one for one in api.get(f"/api/auth/attempts/{node}")}
    assert set(attempts["http"]) == {"protocol"} | {f"auth_attempts{end}" for end in ("", "_failed", "_succeeded")}
    assert api.get(f"/api/auth/attempts/{node}/source") == []
    assert api.get(f"/api/nodes/{node}/memory")["memory"]["total"]["rss"] > 0
    assert api.get(f"/api/nodes/{node}/memory/relative")["memory"]["total"] == 100
    for method, path, body, status in (
        ("POST", f"{queue}/actions", {"action": "sync"}, 204),
        ("POST", f"{queue}/actions", {"action": "nonsense"}, 400),
        ("POST", "/api/rebalance/queues", {}, 204),
        ("POST", f"/api/vhosts/%2F/start/{node}", {}, 204),
        ("POST", "/api/vhosts/%2F/start/none", {}, 400),
        ("DELETE", "/api/reset", None, 204),
        ("DELETE", f"/api/reset/{node}", None, 204),
        ("GET", "/api/all-configuration", None, 200),
        ("GET", "/api/auth", None, 200),
    ):
        assert api.call(method, path, body).status == status, path
    answer = api.call("OPTIONS", "/api/queues")
    assert answer.status == 200 and {"GET", "HEAD", "OPTIONS"} == set(answer.headers["Allow"].split(", "))

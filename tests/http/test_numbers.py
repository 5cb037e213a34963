"""Counters by kind, bytes, and who holds which messages, after traffic over AMQP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

import kvitto
from kvitto.client import Channel, Connection
from kvitto.wire.properties import Properties
from tests.http.api import Http
from tests.support.wait import wait_until

PUBLISHED = 30
SPANS = "&".join(f"{kind}_age=60&{kind}_incr=5" for kind in ("lengths", "msg_rates", "data_rates", "node_stats"))


@pytest.fixture
def connection(broker: kvitto.Broker) -> Iterator[Connection]:
    opened = Connection(broker.url)
    yield opened
    opened.close()


@pytest.fixture
def name(connection: Connection, api: Http, request: pytest.FixtureRequest) -> Iterator[str]:
    """A queue with 30 messages of 10 bytes, published in a channel that also publishes 3 + 2 that reach no queue."""
    queue = request.function.__name__
    channel = connection.channel()
    channel.confirm_select()
    channel.queue_declare(queue, durable=True)
    for _ in range(PUBLISHED):
        channel.publish(b"x" * 10, exchange="", routing_key=queue)
    for _ in range(3):
        channel.publish(b"x", exchange="amq.topic", routing_key="nowhere")
    for _ in range(2):
        channel.publish(b"x", exchange="amq.topic", routing_key="nowhere", mandatory=True)
    channel.wait_for_confirms()
    yield queue
    api.delete(f"/api/queues/%2F/{queue}")


def consume(connection: Connection, queue: str, **more: Any) -> Channel:
    channel = connection.channel()
    channel.qos(prefetch_count=5)
    channel.consume(queue, consumer_tag="c", **more)
    return channel


def counted(stats: dict[str, Any]) -> dict[str, int]:
    return {key: value for key, value in stats.items() if not key.endswith("_details") and value}


def test_deliveries_count_by_kind(api: Http, connection: Connection, name: str) -> None:
    channel = consume(connection, name)
    channel.get(name, no_ack=True)
    channel.get(name)
    channel.get(name)
    path = f"/api/queues/%2F/{name}"
    expected = {"deliver": 5, "deliver_get": 8, "get": 2, "get_no_ack": 1}
    wait_until(lambda: api.get(path)["message_stats"]["deliver"] == 5)
    assert counted(api.get(path)["message_stats"]) == {"publish": PUBLISHED, **expected}
    publisher, consumer = sorted(api.get("/api/channels"), key=lambda found: int(found["number"]))
    assert counted(consumer["message_stats"]) == expected
    assert counted(publisher["message_stats"]) == {
        "publish": PUBLISHED + 5,
        "confirm": PUBLISHED + 5,
        "return_unroutable": 2,
        "drop_unroutable": 3,
    }
    own = quote(publisher["connection_details"]["name"], safe="")
    both = counted(api.get(f"/api/connections/{own}")["message_stats"])
    assert both == {**counted(publisher["message_stats"]), **expected}


def test_acks_count_without_deliveries_that_need_none(api: Http, connection: Connection, name: str) -> None:
    channel = consume(connection, name)
    channel.receive()
    channel.ack(1)
    channel.get(name, no_ack=True)
    path = f"/api/queues/%2F/{name}"
    wait_until(lambda: api.get(path)["message_stats"]["ack"] == 1)
    [found] = [c for c in api.get("/api/channels") if c["consumer_count"]]
    assert found["message_stats"]["ack"] == 1
    channel.nack(2, requeue=True)
    wait_until(lambda: api.get(path)["message_stats"]["redeliver"] == 1)
    [found] = [c for c in api.get("/api/channels") if c["consumer_count"]]
    assert found["message_stats"]["redeliver"] == 1


def test_consumers_without_ack_and_empty_gets_count(api: Http, connection: Connection, name: str) -> None:
    channel = consume(connection, name, no_ack=True)
    path = f"/api/queues/%2F/{name}"
    wait_until(lambda: api.get(path)["message_stats"]["deliver_no_ack"] == PUBLISHED)
    channel.get(name)
    stats = counted(api.get(path)["message_stats"])
    assert stats == {
        "publish": PUBLISHED,
        "deliver_get": PUBLISHED,
        "deliver_no_ack": PUBLISHED,
        "get_empty": 1,
    }
    channel.cancel("c")  # what the consumer had stays counted
    [found] = [c for c in api.get("/api/channels") if c["message_stats"]["get_empty"]]
    assert found["message_stats"]["deliver_no_ack"] == PUBLISHED


def test_exchanges_count_what_comes_and_goes(api: Http, connection: Connection) -> None:
    assert api.put("/api/exchanges/%2F/counted", {"type": "fanout"}) == 201

    def stats() -> dict[str, int]:
        return counted(api.get("/api/exchanges/%2F/counted")["message_stats"])

    channel = connection.channel()
    for queue in ("counted-1", "counted-2"):
        channel.queue_declare(queue, durable=True)
    channel.publish(b"x", exchange="counted", routing_key="")
    wait_until(lambda: stats() == {"publish_in": 1})
    for queue in ("counted-1", "counted-2"):
        channel.queue_bind(queue, "counted", "")
    for _ in range(3):
        channel.publish(b"x", exchange="counted", routing_key="")
    wait_until(lambda: stats() == {"publish_in": 4, "publish_out": 6})
    channel.publish(b"x", exchange="counted", routing_key="", properties=Properties(headers={"CC": ["also"]}))
    wait_until(lambda: stats() == {"publish_in": 5, "publish_out": 8})
    body = {"routing_key": "", "payload": "x", "payload_encoding": "string", "properties": {}}
    assert api.post("/api/exchanges/%2F/counted/publish", body).json == {"routed": True}
    assert stats() == {"publish_in": 6, "publish_out": 10}
    channel.tx_select()
    channel.publish(b"x", exchange="counted", routing_key="")
    channel.tx_commit()
    assert stats() == {"publish_in": 7, "publish_out": 12}
    channel.close()
    assert stats() == {"publish_in": 7, "publish_out": 12}
    for queue in ("counted-1", "counted-2"):
        api.delete(f"/api/queues/%2F/{queue}")
    assert api.delete("/api/exchanges/%2F/counted") == 204


def test_a_virtual_host_and_the_overview_count_each_message_once(api: Http, broker: kvitto.Broker) -> None:
    assert api.put("/api/vhosts/counting") == 201

    def stats() -> dict[str, int]:
        return counted(api.get("/api/vhosts/counting")["message_stats"])

    before = api.get("/api/overview")["message_stats"]["publish"]
    connection = Connection(broker.url.replace("%2f", "counting"))
    channel = connection.channel()
    channel.confirm_select()
    for queue in ("a", "b"):
        channel.queue_declare(queue)
        channel.queue_bind(queue, "amq.fanout", "")
    channel.publish(b"x", exchange="amq.fanout", routing_key="")
    channel.publish(b"x", exchange="", routing_key="nowhere")
    channel.wait_for_confirms()
    channel.get("a", no_ack=True)
    channel.queue_delete("a")  # its counts stay
    expected = {"publish": 2, "confirm": 2, "drop_unroutable": 1, "deliver_get": 1, "get_no_ack": 1}
    assert stats() == expected
    connection.close()
    assert stats() == expected
    assert api.get("/api/overview")["message_stats"]["publish"] == before + 2
    assert api.put("/api/users/counts", {"password": "secret", "tags": "management"}) == 201
    assert api.put("/api/permissions/counting/counts", dict.fromkeys(("configure", "write", "read"), "")) == 201
    seen = api.as_user("counts").get("/api/overview")
    assert counted(seen["message_stats"]) == expected
    assert (seen["queue_totals"]["messages"], seen["object_totals"]["queues"]) == (1, 1)
    assert api.delete("/api/users/counts") == 204
    assert api.delete("/api/vhosts/counting") == 204
    assert api.get("/api/overview")["message_stats"]["publish"] == before + 2


def test_bytes_of_messages(api: Http, connection: Connection, name: str) -> None:
    path = f"/api/queues/%2F/{name}"
    found = api.get(path)
    assert (found["message_bytes"], found["message_bytes_ready"], found["message_bytes_unacknowledged"]) == (
        300,
        300,
        0,
    )
    assert (found["message_bytes_persistent"], found["messages_persistent"]) == (300, 30)
    assert found["memory"] > 0 and found["consumer_capacity"] == found["consumer_utilisation"] == 0
    channel = consume(connection, name)
    channel.get(name)
    wait_until(lambda: api.get(path)["messages_unacknowledged"] == 6)
    assert api.get(path)["message_bytes_unacknowledged"] == 60
    channel.receive()
    channel.ack(1)
    channel.nack(2, requeue=True)
    channel.reject(3, requeue=False)
    taken = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert len(api.post(f"{path}/get", taken).json) == 1
    back = {"count": 1, "ackmode": "reject_requeue_true", "encoding": "auto"}
    assert len(api.post(f"{path}/get", back).json) == 1

    def consistent() -> bool:
        found = api.get(path)
        return bool(
            found["message_bytes_unacknowledged"] == 10 * found["messages_unacknowledged"]
            and found["message_bytes"] == 10 * found["messages"]
        )

    wait_until(consistent)
    connection.close()
    wait_until(lambda: api.get(path)["messages_unacknowledged"] == 0)
    assert api.get(path)["message_bytes"] == 10 * api.get(path)["messages"]


def test_the_timestamp_of_the_first_message(api: Http, connection: Connection) -> None:
    path = "/api/queues/%2F/stamped"
    channel = connection.channel()
    channel.queue_declare("stamped")
    assert api.get(path)["head_message_timestamp"] is None
    for stamp in (1_700_000_000, 1_800_000_000):
        body = {"routing_key": "stamped", "payload": "x", "properties": {"timestamp": stamp}}
        api.post("/api/exchanges/%2F/amq.default/publish", body)
    assert api.get(path)["head_message_timestamp"] == 1_700_000_000
    channel.get("stamped", no_ack=True)
    wait_until(lambda: api.get(path)["head_message_timestamp"] == 1_800_000_000)
    api.delete(path)


def test_who_holds_which_messages(api: Http, connection: Connection, name: str) -> None:
    path = f"/api/queues/%2F/{name}/unacked"
    assert api.get(path) == []
    channel = consume(connection, name)
    channel.get(name)
    wait_until(lambda: len(api.get(path)) == 6)
    found = api.get(path)
    assert [(h["delivery_tag"], h["consumer_tag"]) for h in found] == [(tag, "c") for tag in range(1, 6)] + [(6, "")]
    assert {h["payload_bytes"] for h in found} == {10} and {h["user"] for h in found} == {"guest"}
    assert all(0 <= h["unacked_for_seconds"] < 60 for h in found)
    assert found[0]["channel_name"] == f"{found[0]['connection_name']} (2)"
    page = api.get(f"{path}?page=2&page_size=4")
    assert [h["delivery_tag"] for h in page["items"]] == [5, 6] and page["total_count"] >= 6
    channel.receive()
    channel.ack(3)
    wait_until(lambda: 3 not in [h["delivery_tag"] for h in api.get(path)])
    assert api.call("GET", "/api/queues/%2F/no-such-queue/unacked").status == 404


def test_very_many_held_messages_are_listed(api: Http, connection: Connection) -> None:
    channel = connection.channel()
    channel.confirm_select()
    channel.queue_declare("many-held")
    for _ in range(1500):
        channel.publish(b"", exchange="", routing_key="many-held")
    channel.wait_for_confirms()
    other = connection.channel()
    other.consume("many-held", consumer_tag="c")
    path = "/api/queues/%2F/many-held/unacked"
    wait_until(lambda: len(api.get(path)) == 1500)
    assert [h["delivery_tag"] for h in api.get(path)] == list(range(1, 1501))
    api.delete("/api/queues/%2F/many-held")


def test_a_consumer_is_cancelled(api: Http, connection: Connection, name: str) -> None:
    consume(connection, name)
    wait_until(lambda: api.get(f"/api/queues/%2F/{name}")["messages_unacknowledged"] == 5)
    [found] = api.get("/api/consumers/%2F")
    path = f"/api/consumers/%2F/{quote(found['channel_details']['connection_name'], safe='')}/2"
    assert api.call("DELETE", f"{path}/nobody").status == 404
    assert api.call("DELETE", f"{path[:-1]}7/c").status == 404
    assert api.put("/api/users/watcher", {"password": "secret", "tags": "monitoring"}) == 201
    assert api.as_user("watcher").call("DELETE", f"{path}/c").status == 401
    assert api.delete(f"{path}/c") == 204
    assert api.get("/api/consumers/%2F") == []
    assert api.get(f"/api/queues/%2F/{name}")["messages_unacknowledged"] == 5  # it still holds them
    assert api.delete(f"{path}/c") == 404
    assert api.delete("/api/users/watcher") == 204


def test_the_last_consumer_that_is_cancelled_takes_its_queue_with_it(api: Http, connection: Connection) -> None:
    channel = connection.channel()
    channel.queue_declare("leaves", auto_delete=True)
    channel.consume("leaves", consumer_tag="c")
    wait_until(lambda: len(api.get("/api/consumers/%2F")) == 1)
    own = quote(api.get("/api/consumers/%2F")[0]["channel_details"]["connection_name"], safe="")
    assert api.delete(f"/api/consumers/%2F/{own}/{'1' * 5000}/c") == 404, "more digits than Python reads"
    assert api.delete(f"/api/consumers/%2F/{own}/1/c") == 204
    wait_until(lambda: api.call("GET", "/api/queues/%2F/leaves").status == 404)


@pytest.mark.parametrize("path", ["queues", "exchanges", "vhosts", "channels", "connections", "nodes", "overview"])
def test_samples_are_given_to_whoever_asks(api: Http, connection: Connection, name: str, path: str) -> None:
    """Everything that has rates answers with samples, too; the first sample may not have been taken yet."""

    def details(value: Any) -> list[dict[str, Any]]:
        if not isinstance(value, dict):
            return []
        own = [value] if set(value) >= {"rate"} else []
        return own + [inner for part in value.values() for inner in details(part)]

    def all_have_samples() -> bool:
        answer = api.get(f"/api/{path}?{SPANS}")
        items = answer if isinstance(answer, list) else [answer]
        found = [one for item in items for one in details(item)]
        return bool(found) and all("samples" in one and "avg" in one and "avg_rate" in one for one in found)

    wait_until(all_have_samples)


def test_too_many_samples_are_refused(api: Http) -> None:
    answer = api.call("GET", "/api/overview?msg_rates_age=86400&msg_rates_incr=5")
    assert answer.status == 400 and "samples" in answer.reason


def test_attempts_to_log_in_are_counted(api: Http, broker: kvitto.Broker) -> None:
    path = f"/api/auth/attempts/{quote(api.get('/api/nodes')[0]['name'], safe='')}"
    assert api.delete(path) == 204
    assert Http(broker.http_url, "guest", "wrong").call("GET", "/api/whoami").status == 401
    found = {one["protocol"]: one for one in api.get(path)}
    assert found["http"] == {
        "protocol": "http",
        "auth_attempts": 2,
        "auth_attempts_failed": 1,
        "auth_attempts_succeeded": 1,
    }
    Connection(broker.url).close()
    found = {one["protocol"]: one for one in api.get(path)}
    assert found["amqp091"]["auth_attempts_succeeded"] == 1
    assert api.get(f"{path}/source") == []

"""Queues and messages over HTTP against a real broker, seen from AMQP too."""

import base64
from urllib.parse import quote

import pytest

import kvitto
from kvitto.client import Connection, Properties
from tests.http.api import Http
from tests.support.wait import wait_until


def publish(api: Http, queue: str, payload: str, **properties: object) -> None:
    body = {"routing_key": queue, "payload": payload, "payload_encoding": "string", "properties": properties}
    answer = api.post("/api/exchanges/%2F/amq.default/publish", body)
    assert (answer.status, answer.json) == (200, {"routed": True})


def depth(api: Http, queue: str) -> tuple[int, int, int]:
    found = api.get(f"/api/queues/%2F/{queue}")
    return found["messages_ready"], found["messages_unacknowledged"], found["messages"]


def test_declaring_answers_201_then_204_and_refuses_another_form(api: Http) -> None:
    """D1"""
    assert api.put("/api/queues/%2F/declared", {"durable": True, "arguments": {"x-max-length": 5}}) == 201
    assert api.put("/api/queues/%2F/declared", {"durable": "true", "arguments": {"x-max-length": 5}}) == 204
    answer = api.call("PUT", "/api/queues/%2F/declared", {"durable": True})
    assert answer.status == 400
    assert answer.json["error"] == "bad_request"
    assert "inequivalent arg 'x-max-length'" in answer.reason


def test_a_queue_declared_over_http_is_there_after_a_restart(tmp_path: str) -> None:
    """D2: answered means durable."""
    with kvitto.Broker(tmp_path, http_port=0) as broker:
        api = Http(broker.http_url)
        assert api.put("/api/queues/%2F/kept", {"durable": True, "arguments": {"x-message-ttl": 60000}}) == 201
        publish(api, "kept", "stays")
    with kvitto.Broker(tmp_path, http_port=0) as broker:
        found = Http(broker.http_url).get("/api/queues/%2F/kept")
        assert (found["messages_ready"], found["arguments"], found["durable"]) == (1, {"x-message-ttl": 60000}, True)


def test_the_fields_of_a_queue_are_rabbitmqs(api: Http, broker: kvitto.Broker) -> None:
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("fields", durable=True)
        for i in range(3):
            channel.publish(b"x%d" % i, routing_key="fields")
        wait_until(lambda: depth(api, "fields") == (3, 0, 3))
        channel.qos(2)
        channel.consume("fields")
        wait_until(lambda: depth(api, "fields") == (1, 2, 3))
        found = api.get("/api/queues/%2F/fields")
        assert (found["name"], found["vhost"], found["state"], found["consumers"]) == ("fields", "/", "running", 1)
        assert (found["durable"], found["auto_delete"], found["exclusive"]) == (True, False, False)
        stats = found["message_stats"]
        assert (stats["publish"], stats["deliver_get"], stats["ack"], stats["redeliver"]) == (3, 2, 0, 0)
        assert all(stats[f"{name}_details"]["rate"] >= 0 for name in ("publish", "deliver_get", "ack", "redeliver"))
        (consumer,) = found["consumer_details"]
        assert (consumer["prefetch_count"], consumer["ack_required"]) == (2, True)
        assert [c["queue"]["name"] for c in api.get("/api/consumers/%2F")].count("fields") == 1
    wait_until(lambda: depth(api, "fields") == (3, 0, 3))


@pytest.mark.parametrize(
    ("mode", "left"),
    [("ack_requeue_true", 2), ("reject_requeue_true", 2), ("ack_requeue_false", 0), ("reject_requeue_false", 0)],
)
def test_getting_settles_as_asked(api: Http, mode: str, left: int) -> None:
    name = f"get-{mode}"
    api.put(f"/api/queues/%2F/{name}", {"durable": True})
    publish(api, name, "one", message_id="m1", headers={"n": 1, "deep": {"list": [True, None, "x"]}})
    publish(api, name, "two")
    answer = api.post(f"/api/queues/%2F/{name}/get", {"count": "5", "ackmode": mode, "encoding": "auto"})
    assert answer.status == 200
    first, second = answer.json
    assert (first["payload"], first["payload_encoding"], first["payload_bytes"]) == ("one", "string", 3)
    assert (first["exchange"], first["routing_key"], first["redelivered"]) == ("", name, False)
    assert first["properties"] == {"message_id": "m1", "headers": {"n": 1, "deep": {"list": [True, None, "x"]}}}
    assert (first["message_count"], second["message_count"], second["payload"]) == (1, 0, "two")
    assert depth(api, name) == (left, 0, left)
    again = api.post(f"/api/queues/%2F/{name}/get", {"count": 5}).json
    redelivered = mode == "reject_requeue_true"  # a look leaves no trace
    assert [(m["payload"], m["redelivered"]) for m in again] == [("one", redelivered), ("two", redelivered)][:left]


def test_bytes_that_are_no_text_come_in_base64_and_are_cut_if_wanted(api: Http, broker: kvitto.Broker) -> None:
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("binary", durable=True)
        channel.confirm_select()
        channel.publish(b"\xff\x00\x01", routing_key="binary", properties=Properties(content_type="x"))
        channel.wait_for_confirms()
    (message,) = api.post("/api/queues/%2F/binary/get", {"truncate": 2}).json
    assert message["payload_encoding"] == "base64"
    assert base64.b64decode(message["payload"]) == b"\xff\x00"
    assert message["payload_bytes"] == 3


def test_what_fits_no_frame_is_not_taken(api: Http) -> None:
    """W8: no consumer could be sent it, nor what is behind it."""
    api.put("/api/queues/%2F/framed", {})
    for size, status in ((131_000, 200), (131_072, 400)):
        body = {"routing_key": "framed", "payload": "x", "properties": {"headers": {"h": "x" * size}}}
        assert api.post("/api/exchanges/%2F/amq.default/publish", body).status == status


def test_published_over_http_consumed_over_amqp(api: Http, broker: kvitto.Broker) -> None:
    api.put("/api/queues/%2F/crossing", {"durable": True})
    body = {"routing_key": "crossing", "payload": "AAH/", "payload_encoding": "base64", "properties": {"priority": 3}}
    assert api.post("/api/exchanges/%2F/amq.default/publish", body).json == {"routed": True}
    with Connection(broker.url) as connection:
        delivery = connection.channel().get("crossing", no_ack=True)
        assert delivery is not None
        assert (delivery.body, delivery.properties.priority) == (b"\x00\x01\xff", 3)


def test_an_unroutable_message_is_not_routed(api: Http) -> None:
    body = {"routing_key": "nowhere", "payload": "x", "properties": {}}
    assert api.post("/api/exchanges/%2F/amq.direct/publish", body).json == {"routed": False}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"payload": 5}, "payload must be a string"),
        ({"routing_key": "x" * 256}, "256 bytes"),
        ({"payload_encoding": "hex"}, "payload_encoding"),
        ({"payload_encoding": "base64", "payload": "?"}, "base64"),
        ({"properties": {"nonsense": 1}}, "nonsense"),
        ({"properties": {"priority": 256}}, "priority"),
        ({"properties": {"expiration": "-1"}}, "invalid expiration"),
        ({"properties": {"user_id": "somebody"}}, "user_id"),
        ({"properties": {"headers": {"CC": "x"}}}, "CC"),
        ({"properties": {"headers": {"big": 1 << 70}}}, "headers"),
        ({"properties": []}, None),
    ],
)
def test_what_cannot_be_published_is_a_400_with_its_reason(api: Http, change: dict[str, object], reason: str) -> None:
    body = {"routing_key": "x", "payload": "x", "properties": {}, **change}
    answer = api.post("/api/exchanges/%2F/amq.default/publish", body)
    assert answer.status == (400 if reason else 200)
    assert (reason or "") in answer.body.decode()


def test_a_full_queue_that_rejects_is_a_400(api: Http) -> None:
    """C6: never a success for a message that was dropped."""
    api.put("/api/queues/%2F/full", {"arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}})
    publish(api, "full", "fits")
    answer = api.post("/api/exchanges/%2F/amq.default/publish", {"routing_key": "full", "payload": "too much"})
    assert answer.status == 400
    assert "is full" in answer.reason
    assert depth(api, "full") == (1, 0, 1)


def test_purge_and_delete(api: Http) -> None:
    api.put("/api/queues/%2F/going", {"durable": True})
    publish(api, "going", "x")
    assert api.call("DELETE", "/api/queues/%2F/going?if-empty=true").status == 400
    assert api.delete("/api/queues/%2F/going/contents") == 204
    assert depth(api, "going") == (0, 0, 0)
    assert api.delete("/api/queues/%2F/going?if-empty=true") == 204
    assert api.delete("/api/queues/%2F/going") == 404
    assert api.call("GET", "/api/queues/%2F/going").status == 404


def test_another_connections_exclusive_queue_is_locked(api: Http, broker: kvitto.Broker) -> None:
    """W5"""
    with Connection(broker.url) as connection:
        connection.channel().queue_declare("mine", exclusive=True)
        for method, path in (("DELETE", ""), ("DELETE", "/contents"), ("POST", "/get")):
            answer = api.call(method, f"/api/queues/%2F/mine{path}", {"count": 1})
            assert answer.status == 400
            assert "RESOURCE_LOCKED" in answer.reason
        assert api.get("/api/queues/%2F/mine")["exclusive"] is True


def test_counters_of_the_whole_broker_keep_what_deleted_queues_counted(api: Http) -> None:
    def totals() -> tuple[int, int, int]:
        stats = api.get("/api/overview")["message_stats"]
        return stats["publish"], stats["deliver_get"], stats["ack"]

    api.put("/api/queues/%2F/counted", {"durable": True})
    before = totals()
    publish(api, "counted", "x")
    api.post("/api/queues/%2F/counted/get", {"ackmode": "ack_requeue_false"})
    assert totals() == tuple(n + 1 for n in before)
    api.delete("/api/queues/%2F/counted")
    assert totals() == tuple(n + 1 for n in before)


def test_the_aliveness_test_passes_a_message_through(api: Http) -> None:
    assert api.get("/api/aliveness-test/%2F") == {"status": "ok"}
    assert api.get("/api/aliveness-test/%2F") == {"status": "ok"}
    stats = api.get("/api/queues/%2F/aliveness-test")["message_stats"]
    assert (stats["publish"], stats["ack"]) == (2, 2)
    assert depth(api, "aliveness-test") == (0, 0, 0)


def test_lists_can_be_paged_sorted_and_cut_to_columns(api: Http) -> None:
    for i in range(7):
        api.put(f"/api/queues/%2F/page-{i}", {"durable": i % 2 == 0})
    page = api.get("/api/queues?page=2&page_size=3&name=page-&sort=name&sort_reverse=true&columns=name")
    assert page["items"] == [{"name": f"page-{i}"} for i in (3, 2, 1)]
    assert (page["filtered_count"], page["page_count"], page["item_count"], page["page"]) == (7, 3, 3, 2)
    assert page["total_count"] == len(api.get("/api/queues"))
    rates = api.get("/api/queues/%2F?columns=message_stats.publish_details.rate,name&name=page-1")
    assert rates == [{"message_stats": {"publish_details": {"rate": 0.0}}, "name": "page-1"}]
    for query in ("page=0", "page=99", "page=x", "page=1&page_size=501", "name=(&use_regex=true"):
        assert api.call("GET", f"/api/queues?{query}").status == 400


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("name=LISTED", ["Listed-b", "listed-a"]),
        ("name=^LISTED-a$&use_regex=true", ["listed-a"]),
        ("name=^(%3F!listed-a)listed&use_regex=true&pagination=false", ["Listed-b"]),
        ("name=^listed&use_regex=false", []),
    ],
)
def test_names_in_lists_are_found_by_a_part_or_a_regular_expression_whatever_their_case(
    api: Http, query: str, found: list[str]
) -> None:
    """As from RabbitMQ; KEDA asks like this."""
    for name in ("listed-a", "Listed-b"):
        api.put(f"/api/queues/%2F/{name}")
    page = api.get(f"/api/queues/%2F?page=1&sort=name&columns=name&{query}")
    assert [queue["name"] for queue in page["items"]] == found
    assert (page["filtered_count"], page["page_count"]) == (len(found), min(len(found), 1))


@pytest.mark.parametrize("name", ["with space", "slash/inside", "ümläut", "50%", "a?b#c", '"quoted"', "x" * 255])
def test_any_name_can_be_in_a_path(api: Http, name: str) -> None:
    path = f"/api/queues/%2F/{quote(name, safe='')}"
    assert api.put(path, {"durable": True}) == 201
    assert api.get(path)["name"] == name
    assert api.delete(path) == 204


def test_a_name_that_amqp_cannot_carry_is_refused(api: Http) -> None:
    assert api.put(f"/api/queues/%2F/{'x' * 256}") == 400
    assert api.put("/api/queues/%2F/%ff") == 400
    assert api.put("/api/queues/%2F/amq.mine") == 401


def test_a_stream_is_listed_as_one_and_gives_no_messages_here(api: Http, broker: kvitto.Broker) -> None:
    """Q: messages = next - first; get and purge are refused, as over AMQP."""
    assert api.put("/api/queues/%2F/log", {"durable": True, "arguments": {"x-queue-type": "stream"}}) == 201
    for i in range(3):
        publish(api, "log", f"m{i}")
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.qos(10)
        channel.consume("log", arguments={"x-stream-offset": "first"})
        wait_until(lambda: api.get("/api/queues/%2F/log")["message_stats"]["deliver_get"] == 3)
        found = api.get("/api/queues/%2F/log")
        assert (found["type"], found["durable"], found["consumers"]) == ("stream", True, 1)
        assert depth(api, "log") == (3, 0, 3)
        assert found["consumer_details"][0]["messages_unacknowledged"] == 3
    asked = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    answer = api.post("/api/queues/%2F/log/get", asked)
    assert answer.status == 400 and "basic.get not supported by stream queues" in answer.reason
    answer = api.call("DELETE", "/api/queues/%2F/log/contents")
    assert answer.status == 400 and "queue.purge not supported by stream queues" in answer.reason
    assert api.delete("/api/queues/%2F/log") == 204


def test_a_queue_with_deduplication_tells_of_its_keys(api: Http) -> None:
    """A publish over HTTP is compared like any other."""
    arguments = {"x-message-deduplication": True, "x-deduplication-by": "message-id", "x-cache-size": 10}
    assert api.put("/api/queues/%2F/once", {"durable": True, "arguments": arguments}) == 201
    for message_id in ("a", "b", "a"):
        publish(api, "once", message_id, message_id=message_id)
    assert depth(api, "once") == (2, 0, 2)
    assert api.get("/api/queues/%2F/once")["deduplication"] == {"keys": 2, "duplicates": 1}
    api.delete("/api/queues/%2F/once")

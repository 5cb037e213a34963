"""/metrics, /healthz, /api/overview: the numbers are right and in the form that monitoring reads."""

import re

import kvitto
from kvitto.client import Connection
from tests.http.api import Http
from tests.support.wait import wait_until

LINE = re.compile(r'^([a-z_:][a-z0-9_:]*)(\{(?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*\})? (-?[0-9.e+-]+)$')
PART = re.compile(r"_(bucket|sum|count)$")


def read(api: Http) -> dict[str, float]:
    """Name with labels -> value; every line must be in Prometheus' text format."""
    answer = api.as_user("").call("GET", "/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    values, typed = {}, {}
    for line in answer.body.decode().removesuffix("\n").split("\n"):
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in typed, f"two groups of {name}"
            typed[name] = kind
        elif not line.startswith("# HELP "):
            match = LINE.match(line)
            assert match, line
            of_histogram = PART.sub("", match[1])
            if typed.get(of_histogram) != "histogram":
                assert match[1] in typed, f"{match[1]} has no type"
                assert (typed[match[1]] == "counter") == match[1].endswith("_total"), line
            values[match[1] + (match[2] or "")] = float(match[3])
    return values


def test_metrics_count_what_happened(api: Http, broker: kvitto.Broker) -> None:
    before = read(api)
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        channel.queue_declare("measured", durable=True)
        for _ in range(10):
            channel.publish(b"12345", routing_key="measured")
        channel.publish(b"x", routing_key="nowhere")
        channel.wait_for_confirms()
        delivery = channel.get("measured", no_ack=True)
        assert delivery is not None
        now = wait_until(lambda: v if (v := read(api))["kvitto_messages_delivered_total"] else None)
        label = '{vhost="/",queue="measured"}'
        assert now[f"kvitto_queue_messages_ready{label}"] == 9
        assert now[f"kvitto_queue_messages_ready_bytes{label}"] == 45
        assert now[f"kvitto_queue_messages_published_total{label}"] == 10
        assert (now["kvitto_connections"], now["kvitto_channels"]) == (1, 1)

        def grown(name: str) -> float:
            return now[name] - before[name]

        assert grown("kvitto_messages_published_total") == 10
        assert grown("kvitto_messages_confirmed_total") == 11
        assert grown("kvitto_messages_unroutable_total") == 1
        assert grown("kvitto_messages_acknowledged_total") == 1
        assert grown("kvitto_store_syncs_total") >= 1
    assert now["kvitto_sync_enabled"] == 1
    assert now["kvitto_alarms"] == 0
    assert now["process_resident_memory_bytes"] > 1e6
    assert now["process_cpu_seconds_total"] > 0


def test_counters_do_not_go_down_when_a_queue_is_deleted(api: Http) -> None:
    api.put("/api/queues/%2F/short-lived", {})
    api.post("/api/exchanges/%2F/amq.default/publish", {"routing_key": "short-lived", "payload": "x"})
    before = read(api)["kvitto_messages_published_total"]
    api.delete("/api/queues/%2F/short-lived")
    assert read(api)["kvitto_messages_published_total"] == before


def test_names_with_special_characters_are_escaped(api: Http) -> None:
    api.put("/api/vhosts/a%22b%5Cc%0Ad")
    api.put("/api/queues/a%22b%5Cc%0Ad/%22%5C", {})
    assert read(api)['kvitto_queue_messages_ready{vhost="a\\"b\\\\c\\nd",queue="\\"\\\\"}'] == 0


def test_healthz_needs_no_login(api: Http) -> None:
    answer = api.as_user("").call("GET", "/healthz")
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    assert api.get("/api/health/checks/alarms") == {"status": "ok"}


def test_an_alarm_makes_the_broker_unhealthy() -> None:
    with kvitto.Broker(http_port=0) as broker:
        api = Http(broker.http_url)
        server = broker._server
        assert server is not None
        server.store.alarms.append("segment damaged")
        answer = api.as_user("").call("GET", "/healthz")
        assert (answer.status, answer.json["status"]) == (503, "failed")
        assert "segment" not in answer.body.decode()
        answer = api.call("GET", "/api/health/checks/alarms")
        assert (answer.status, answer.json["alarms"][0]["alarm"]) == (503, "segment damaged")
        assert read(api)["kvitto_alarms"] == 1


def test_the_overview_says_whether_sync_is_on(api: Http) -> None:
    """C2"""
    found = api.get("/api/overview")
    assert found["kvitto"]["sync"] is True
    assert found["product_name"] == "Kvitto"
    assert {"connections", "channels", "queues", "consumers", "exchanges"} == set(found["object_totals"])
    assert {item["protocol"] for item in found["listeners"]} == {"amqp", "http"}
    with kvitto.Broker(http_port=0, sync=False) as broker:
        unsafe = Http(broker.http_url)
        assert unsafe.get("/api/overview")["kvitto"]["sync"] is False
        assert read(unsafe)["kvitto_sync_enabled"] == 0
        assert unsafe.put("/api/queues/%2F/q", {"durable": True}) == 201


def test_what_monitoring_asks_for_is_there(api: Http) -> None:
    (node,) = api.get("/api/nodes")
    assert node["running"] and node["mem_used"] > 1e6 and node["fd_used"] > 0
    assert api.get(f"/api/nodes/{node['name']}")["name"] == node["name"]
    for name in ("policies", "operator-policies", "parameters", "vhost-limits", "topic-permissions"):
        assert api.get(f"/api/{name}") == []

"""RabbitMQ's metrics: the names that its dashboards and alerts ask for, with the right numbers."""

from __future__ import annotations

import re
import subprocess

import pytest

import kvitto
from kvitto.client import Connection
from tests.http.api import Answer, Http
from tests.http.rabbitmq_overview import NAMES
from tests.support.prometheus import promtool
from tests.support.wait import wait_until

LINE = re.compile(r'^([a-z_:][a-z0-9_:]*)(\{(?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*\})? (-?[0-9.e+-]+)$')
PATHS = {
    "aggregated": "/metrics?prefix=rabbitmq",
    "per-object": "/metrics/per-object",
    "detailed": "/metrics/detailed?family=queue_coarse_metrics&family=queue_delivery_metrics&family=exchange_bindings",
}


def ask(api: Http, path: str) -> Answer:
    return api.as_user("").call("GET", path)


def read(api: Http, path: str) -> dict[str, float]:
    answer = ask(api, path)
    assert answer.status == 200, answer.body
    values = {}
    for line in answer.body.decode().splitlines():
        if not line.startswith("#"):
            match = LINE.match(line)
            assert match, line
            name = match[1] + (match[2] or "")
            assert name not in values, f"{name} is there twice"
            values[name] = float(match[3])
    return values


def bare(values: dict[str, float]) -> set[str]:
    return {name.partition("{")[0] for name in values}


def total(values: dict[str, float], name: str) -> float:
    (found,) = (value for key, value in values.items() if key.partition("{")[0] == name)
    return found


def test_every_name_of_the_dashboard_is_there(api: Http) -> None:
    assert len(NAMES) == 40
    assert NAMES - bare(read(api, PATHS["aggregated"])) == set()


def test_the_dashboard_finds_the_broker_by_its_labels(api: Http) -> None:
    for endpoint, path in PATHS.items():
        (identity,) = (name for name in read(api, path) if name.startswith("rabbitmq_identity_info{"))
        assert f'rabbitmq_endpoint="{endpoint}"' in identity
        assert 'rabbitmq_cluster="' in identity and 'rabbitmq_node="kvitto@' in identity
        (build,) = (name for name in read(api, path) if name.startswith("rabbitmq_build_info{"))
        assert 'rabbitmq_version="' in build and 'erlang_version="' in build


def test_messages_are_counted_by_kind(api: Http, broker: kvitto.Broker) -> None:
    before = read(api, PATHS["aggregated"])
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("kinds", durable=True)
        channel.confirm_select()
        for _ in range(10):
            channel.publish(b"12345", routing_key="kinds")
        channel.publish(b"x", routing_key="nowhere")
        channel.publish(b"x", routing_key="nowhere", mandatory=True)
        channel.wait_for_confirms(10)
        plain = connection.channel()
        plain.publish(b"12345", routing_key="kinds")
        assert channel.get("kinds") is not None
        wait_until(lambda: plain.get("kinds", no_ack=True))
        plain.consume("kinds", no_ack=False)
        plain.receive(10, least=9)
        plain.ack(0, multiple=True)
        assert channel.get("kinds") is None
        connection.channel().close()

        def grown(name: str) -> float:
            return total(now, f"rabbitmq_{name}") - total(before, f"rabbitmq_{name}")

        def done() -> dict[str, float] | None:
            found = read(api, PATHS["aggregated"])
            acked = total(found, "rabbitmq_global_messages_acknowledged_total")
            return found if acked >= total(before, "rabbitmq_global_messages_acknowledged_total") + 9 else None

        now = wait_until(done)
        counts = {
            "received": 13,
            "received_confirm": 12,
            "routed": 11,
            "confirmed": 12,
            "unroutable_dropped": 1,
            "unroutable_returned": 1,
            "delivered": 11,
            "delivered_consume_manual_ack": 9,
            "delivered_consume_auto_ack": 0,
            "delivered_get_manual_ack": 1,
            "delivered_get_auto_ack": 1,
            "get_empty": 1,
            "redelivered": 0,
            "acknowledged": 9,
        }
        assert {name: grown(f"global_messages_{name}_total") for name in counts} == counts
        assert grown("global_publishers") == 2
        assert grown("global_consumers") == grown("consumers") == 1
        assert (grown("connections"), grown("channels"), grown("queues")) == (1, 2, 1)
        assert (grown("channels_opened_total"), grown("channels_closed_total")) == (3, 1)
        assert (grown("queues_declared_total"), grown("queues_created_total")) == (1, 1)
        assert grown("queue_messages_unacked") == 1
        assert grown("message_size_bytes_count") == 11
        assert grown("message_size_bytes_sum") == 55
    api.delete("/api/queues/%2F/kinds")
    later = read(api, PATHS["aggregated"])
    fallen = {name for name in now if name.partition("{")[0].endswith("_total") and later[name] < now[name]}
    assert fallen == set(), "counters never fall, not even when a queue is deleted"


def test_per_object_each_queue_channel_connection_and_exchange_has_lines(api: Http, broker: kvitto.Broker) -> None:
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("each", durable=True)
        channel.publish(b"12345", routing_key="each")
        found = wait_until(
            lambda: (
                v
                if (v := read(api, PATHS["per-object"]))['rabbitmq_queue_messages_ready{vhost="/",queue="each"}']
                else None
            )
        )
        assert found['rabbitmq_queue_messages_bytes{vhost="/",queue="each"}'] == 5
        info = '{vhost="/",queue="each",queue_type="rabbit_classic_queue",membership="leader"}'
        assert found[f"rabbitmq_queue_info{info}"] == 1
        assert found['rabbitmq_exchange_messages_published_total{vhost="/",exchange=""}'] >= 1
        names = bare(found)
        assert {"rabbitmq_channel_messages_published_total", "rabbitmq_connection_incoming_bytes_total"} <= names
        assert {"rabbitmq_global_messages_received_total", "rabbitmq_queues", "rabbitmq_process_open_fds"} <= names


def test_detailed_has_only_what_was_asked_for(api: Http) -> None:
    api.put("/api/vhosts/one")
    api.put("/api/queues/one/alpha", {"durable": True})
    api.put("/api/queues/one/beta", {"durable": True})
    api.put("/api/queues/%2F/alpha", {"durable": True})
    own = {"rabbitmq_identity_info", "rabbitmq_build_info"}
    assert bare(read(api, "/metrics/detailed")) == own
    path = "/metrics/detailed?family=queue_coarse_metrics&vhost=one&vhost=two"
    ready = {name for name in read(api, path) if name.startswith("rabbitmq_detailed_queue_messages_ready{")}
    label = 'vhost="one",queue='
    assert ready == {f'rabbitmq_detailed_queue_messages_ready{{{label}"{q}"}}' for q in ("alpha", "beta")}
    ready = {name for name in read(api, f"{path}&queue=^al") if "_queue_messages_ready{" in name}
    assert ready == {f'rabbitmq_detailed_queue_messages_ready{{{label}"alpha"}}'}
    both = read(api, "/metrics/detailed?family=queue_metrics&family=queue_consumer_count")
    assert 'rabbitmq_detailed_queue_consumers{vhost="one",queue="beta"}' in both
    rest = read(api, "/metrics/detailed?family=vhost_status&family=exchange_bindings&family=exchange_names&vhost=one")
    assert rest['rabbitmq_cluster_vhost_status{vhost="one"}'] == 1
    assert rest['rabbitmq_cluster_exchange_bindings{vhost="one",exchange=""}'] == 2
    logins = read(api, "/metrics/detailed?family=auth_attempt_metrics")
    assert logins['rabbitmq_detailed_auth_attempts_succeeded_total{protocol="http"}'] >= 1
    assert logins['rabbitmq_detailed_auth_attempts_failed_total{protocol="amqp091"}'] == 0
    assert rest['rabbitmq_cluster_exchange_name{vhost="one",exchange="amq.topic"}'] == 1
    assert bare(read(api, "/metrics/detailed?family=ra_metrics")) == own


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/metrics?prefix=other", "prefix must be kvitto or rabbitmq"),
        ("/metrics/detailed?family=queue_corse_metrics", "no family 'queue_corse_metrics'"),
        ("/metrics/detailed?family=queue_metrics&queue=a&queue=b", "give queue once"),
        ("/metrics/detailed?family=queue_metrics&queue=(", "("),
    ],
)
def test_what_cannot_be_meant_is_refused(api: Http, path: str, reason: str) -> None:
    answer = ask(api, path)
    assert (answer.status, reason in answer.reason) == (400, True), answer.body


def test_names_with_special_characters_are_escaped(api: Http) -> None:
    api.put("/api/vhosts/a%22b%5Cc%0Ad")
    api.put("/api/queues/a%22b%5Cc%0Ad/%22%5C", {})
    assert read(api, PATHS["per-object"])['rabbitmq_queue_messages_ready{vhost="a\\"b\\\\c\\nd",queue="\\"\\\\"}'] == 0


@pytest.mark.parametrize("path", PATHS.values(), ids=[*PATHS])
def test_promtool_can_read_it(api: Http, path: str) -> None:
    """RabbitMQ's names break some of promtool's advice on names; what it cannot parse is an error."""
    body = ask(api, path).body
    done = subprocess.run([promtool(), "check", "metrics"], input=body, capture_output=True, check=False)
    assert done.returncode in (0, 3), done.stderr
    assert b"error while linting" not in done.stderr


def test_who_may_read_them(api: Http, broker: kvitto.Broker) -> None:
    api.put("/api/users/nobody", {"password": "secret", "tags": ""})
    api.put("/api/users/watcher", {"password": "secret", "tags": "monitoring"})
    for path in PATHS.values():
        assert api.as_user("watcher").call("GET", path).status == 200
        assert api.call("POST", path).status == 405

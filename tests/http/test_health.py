"""RabbitMQ's health checks, and what its tools read of nodes, features and users."""

from __future__ import annotations

import pathlib
from dataclasses import replace
from typing import Any

import pytest

import kvitto
from kvitto.client import Connection, ConnectionLost
from tests.http.api import Http
from tests.http.test_users import make_user
from tests.support.certificates import Authority
from tests.support.wait import wait_until


def check(api: Http, name: str) -> tuple[int, str]:
    answer = api.call("GET", f"/api/health/checks/{name}")
    return answer.status, answer.json.get("status", answer.json.get("error"))


@pytest.mark.parametrize(
    "name",
    [
        "alarms",
        "local-alarms",
        "virtual-hosts",
        "protocol-listener/amqp",
        "protocol-listener/http",
        "certificate-expiration/1/years",
        "node-is-quorum-critical",
        "node-is-mirror-sync-critical",
        "ready-to-serve-clients",
        "is-in-service",
        "below-node-connection-limit",
    ],
)
def test_a_healthy_broker_passes_each_check(api: Http, name: str) -> None:
    assert check(api, name) == (200, "ok")


def test_a_listener_that_is_not_there_fails_its_check(api: Http, broker: kvitto.Broker) -> None:
    assert check(api, f"port-listener/{broker.port}") == (200, "ok")
    assert check(api, "port-listener/1") == (503, "failed")
    assert check(api, "protocol-listener/amqps") == (503, "failed")
    assert check(api, "protocol-listener/stomp") == (503, "failed")


@pytest.mark.parametrize(
    "name",
    [
        "port-listener/x",
        "certificate-expiration/x/days",
        "certificate-expiration/1/eons",
        "certificate-expiration/-1/days",
        "certificate-expiration/000000999999999999/days",
    ],
)
def test_a_check_that_makes_no_sense_is_a_400(api: Http, name: str) -> None:
    assert check(api, name) == (400, "bad_request")


def test_a_certificate_that_expires_soon_fails_its_check(tmp_path: pathlib.Path) -> None:
    pair = Authority(tmp_path).sign("server", "/CN=localhost", days=20)
    with kvitto.Broker(http_port=0) as broker:
        api = Http(broker.http_url)
        server: Any = broker._server
        server.config = replace(server.config, tls_cert=pair.cert, tls_key=pair.key, tls_port=5671)
        server.tls_port = 5671
        assert check(api, "certificate-expiration/2/weeks") == (200, "ok")
        assert check(api, "certificate-expiration/1/months") == (503, "failed")
        assert check(api, "protocol-listener/amqps") == (200, "ok")
        pair.cert.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        assert check(api, "certificate-expiration/1/days") == (503, "failed")


def test_a_broker_with_all_the_connections_that_it_may_have_is_not_ready() -> None:
    with kvitto.Broker(http_port=0) as broker, Connection(broker.url):
        api = Http(broker.http_url)
        server: Any = broker._server
        server.config = replace(server.config, max_connections=1)
        for name in ("below-node-connection-limit", "ready-to-serve-clients"):
            answer = api.call("GET", f"/api/health/checks/{name}")
            assert (answer.status, answer.json["limit"], answer.json["connections"]) == (503, 1, 1)


def test_what_rabbitmqadmin_reads_is_there(api: Http, broker: kvitto.Broker) -> None:
    """It gives up where a field is missing, or is of another type."""
    [node] = api.get("/api/nodes")
    for name in (
        "uptime",
        "run_queue",
        "processors",
        "fd_total",
        "proc_total",
        "sockets_total",
        "mem_limit",
        "disk_free_limit",
    ):
        assert isinstance(node[name], int) and not isinstance(node[name], bool), name
    assert node["enabled_plugins"] == [] and node["being_drained"] is False and node["rates_mode"] == "basic"
    overview = api.get("/api/overview")
    [context] = overview["contexts"]
    assert (context["port"], context["path"]) == (str(api.port), "/")
    churn = overview["churn_rates"]
    assert {f"{thing}_{what}" for thing in ("connection", "channel") for what in ("created", "closed")} <= churn.keys()
    api.put("/api/queues/%2F/churned")
    api.delete("/api/queues/%2F/churned")
    after = api.get("/api/overview")["churn_rates"]
    assert [after[f"queue_{what}"] - churn[f"queue_{what}"] for what in ("declared", "created", "deleted")] == [1, 1, 1]
    api.put("/api/queues/%2F/timed", {"arguments": {"x-consumer-timeout": 90_000}})
    with Connection(broker.url) as connection:
        connection.channel().consume("timed")
        [consumer] = wait_until(lambda: [c for c in api.get("/api/consumers") if c["queue"]["name"] == "timed"])
        assert consumer["consumer_timeout"] == 90_000


def test_feature_flags_say_what_is_there(api: Http) -> None:
    flags = {flag["name"]: flag["state"] for flag in api.get("/api/feature-flags")}
    assert flags["stream_queue"] == flags["quorum_queue"] == "enabled"


def test_the_name_of_the_cluster_is_kept(tmp_path: pathlib.Path) -> None:
    with kvitto.Broker(tmp_path, http_port=0) as broker:
        api = Http(broker.http_url)
        assert api.get("/api/cluster-name")["name"] == api.get("/api/nodes")[0]["name"]
        assert api.put("/api/cluster-name", {"name": "lund"}) == 204
        for wrong in ({}, {"name": 7}, {"name": ""}):
            assert api.call("PUT", "/api/cluster-name", wrong).status == 400
    with kvitto.Broker(tmp_path, http_port=0) as broker:
        api = Http(broker.http_url)
        assert api.get("/api/cluster-name") == {"name": "lund"}
        assert api.get("/api/overview")["cluster_name"] == "lund"
        assert api.get("/api/definitions")["global_parameters"] == [{"name": "cluster_name", "value": "lund"}]


def test_several_users_are_deleted_together_or_none(api: Http) -> None:
    for name in ("bulk-1", "bulk-2", "bulk-3"):
        make_user(api, name, "")
    assert api.post("/api/users/bulk-delete", {"users": ["bulk-1", "no-such"]}).status == 400
    assert api.get("/api/users/bulk-1")["name"] == "bulk-1"
    assert api.post("/api/users/bulk-delete", {"users": ["bulk-1", "bulk-2", "bulk-1"]}).status == 204
    assert not {"bulk-1", "bulk-2"} & {user["name"] for user in api.get("/api/users")}
    assert api.get("/api/users/bulk-3")["name"] == "bulk-3"
    assert api.post("/api/users/bulk-delete", {"users": []}).status == 204


def test_connections_of_a_user_are_listed_and_closed(api: Http, broker: kvitto.Broker) -> None:
    own = make_user(api, "owner", "management", "%2F")
    make_user(api, "neighbour", "management", "%2F")
    path = "/api/connections/username/owner"

    def names(user: Http) -> list[Any]:
        return [connection["user"] for connection in user.get(path)]

    connection = Connection(broker.url.replace("guest:guest", "owner:secret"))
    with Connection(broker.url) as other:
        wait_until(lambda: names(api) == ["owner"])
        assert names(own) == ["owner"]
        assert api.as_user("neighbour").call("GET", path).status == 401
        assert api.as_user("neighbour").call("DELETE", path).status == 401
        assert api.delete(path) == 204
        with pytest.raises(ConnectionLost):
            connection.channel()
        wait_until(lambda: names(api) == [])
        other.channel()
    assert api.get("/api/connections/username/nobody") == []


def test_line_ends_in_names_are_left_out(api: Http) -> None:
    """As RabbitMQ does it, over HTTP and AMQP."""
    for kind in ("queues", "exchanges"):
        assert api.put(f"/api/{kind}/%2F/line%0D%0Aend") == 201
        assert api.get(f"/api/{kind}/%2F/lineend")["name"] == "lineend"
        assert api.put(f"/api/{kind}/%2F/line%0D%0Aend") == 204


def test_a_broker_without_a_cluster_leads_and_says_so(api: Http) -> None:
    found = api.get("/api/cluster")
    assert (found["name"], found["leads"], found["nodes"]) == (None, True, [])
    assert found["node"] == api.get("/api/nodes")[0]["name"]
    for path in ("live", "ready", "leader"):
        assert api.as_user("").call("GET", f"/healthz/{path}").status == 200
    assert "kvitto_cluster" not in api.call("GET", "/metrics").body.decode()

"""Parameters, global parameters, limits and topic permissions over HTTP: what RabbitMQ's tools do with them."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

import kvitto
from kvitto.broker.administration.parameters import Component, InvalidParameter, Parameters
from kvitto.client import Connection
from tests.http.api import Http
from tests.http.test_users import make_user
from tests.support.harness import BrokerHarness

NESTED: Any = []
for _ in range(900):
    NESTED = [NESTED]
UPSTREAM = "/api/parameters/federation-upstream/%2F/move"


def test_a_parameter_is_set_shown_and_deleted(api: Http) -> None:
    value = {"src-uri": "amqp://", "src-queue": "a", "nested": [1, {"x": None}]}
    body = {"vhost": "/", "component": "federation-upstream", "name": "move", "value": value}
    assert api.put(UPSTREAM, body) == 201 and api.put(UPSTREAM, body) == 204
    assert api.get(UPSTREAM) == body
    for path in ("/api/parameters", "/api/parameters/federation-upstream", "/api/parameters/federation-upstream/%2F"):
        assert api.get(path) == [body]
    assert api.get("/api/parameters/federation-upstream-set") == []
    assert body in api.get("/api/definitions")["parameters"]
    assert api.delete(UPSTREAM) == 204 and api.delete(UPSTREAM) == 404 and api.call("GET", UPSTREAM).status == 404


@pytest.mark.parametrize("path", [UPSTREAM, "/api/global-parameters/swapped"])
def test_a_value_of_another_type_replaces_one_that_python_takes_for_the_same(api: Http, path: str) -> None:
    for value in (1, True, 1.0, {"a": [0]}, {"a": [False]}):
        assert api.put(path, {"value": value}) in (201, 204)
        assert repr(api.get(path)["value"]) == repr(value)
    assert api.delete(path) == 204


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("shuvel/%2F/x", {"value": {}}, "component 'shuvel' not found; is it 'shovel'?"),
        ("federation-upstream/%2F/x", {}, "value is missing"),
        ("federation-upstream/%2F/x", {"value": "\ud800"}, "the text in value is not UTF-8"),
        ("federation-upstream/%2F/x", {"value": {"a": NESTED}}, "value has more than 40 levels"),
        ("vhost-limits/%2F/limits", {"value": {"max-queues": 1}}, "use /api/vhost-limits for component 'vhost-limits'"),
        ("policy/%2F/p", {"value": {}}, "use /api/policies for component 'policy'"),
        ("operator_policy/%2F/p", {"value": {}}, "use /api/operator-policies"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused(api: Http, path: str, body: dict[str, Any], reason: str) -> None:
    answer = api.call("PUT", f"/api/parameters/{path}", body)
    assert answer.status == 400 and answer.reason.startswith(reason)
    assert api.call("PUT", "/api/parameters/federation-upstream/nowhere/x", {"value": {}}).status == 404


def test_a_number_that_json_cannot_express_is_refused(api: Http) -> None:
    answer = api.call("PUT", UPSTREAM, b'{"value": {"a": [1e999]}}', {"Content-Type": "application/json"})
    assert answer.status == 400 and answer.reason == "a number in value is too large"
    body = b'{"global_parameters": [{"name": "g", "value": 1e999}]}'
    assert api.call("POST", "/api/definitions", body, {"Content-Type": "application/json"}).status == 400
    deep = b'{"global_parameters": [{"name": "g", "value": ' + b"[" * 900 + b"]" * 900 + b"}]}"
    assert api.call("POST", "/api/definitions", deep, {"Content-Type": "application/json"}).status == 400


def test_global_parameters(api: Http) -> None:
    path = "/api/global-parameters/mqtt_default_vhosts"
    assert api.put(path, {"value": {"a": "/"}}) == 201 and api.put(path, {"value": [1]}) == 204
    assert api.get(path) == {"name": "mqtt_default_vhosts", "value": [1]}
    assert api.put("/api/global-parameters/cluster_name", {"name": "cluster_name", "value": "lund"}) in (201, 204)
    assert api.get("/api/cluster-name") == {"name": "lund"}
    assert api.get("/api/global-parameters") == [
        {"name": "cluster_name", "value": "lund"},
        {"name": "mqtt_default_vhosts", "value": [1]},
    ]
    assert api.delete(path) == 204 and api.delete(path) == 404
    assert api.delete("/api/global-parameters/cluster_name") == 400
    assert api.put("/api/global-parameters/cluster_name", {"value": 7}) == 400
    assert api.put(path, {}) == 400


def test_limits_of_a_vhost(api: Http) -> None:
    api.put("/api/vhosts/limited")
    path = "/api/vhost-limits/limited"
    assert api.get(path) == []
    assert api.put(f"{path}/max-queues", {"value": 3}) == 204
    assert api.put(f"{path}/max-connections", {"value": "0"}) == 204
    shown = [{"vhost": "limited", "value": {"max-queues": 3, "max-connections": 0}}]
    assert api.get(path) == shown and shown[0] in api.get("/api/vhost-limits")
    assert api.get("/api/parameters/vhost-limits/limited")[0]["value"] == shown[0]["value"]
    assert api.delete(f"{path}/max-connections") == 204 and api.delete(f"{path}/max-connections") == 404
    answer = api.call("PUT", f"{path}/max-queue", {"value": 3})
    assert answer.status == 400 and "is it 'max-queues'?" in answer.reason
    for wrong in ({}, {"value": 1.5}, {"value": None}, {"value": 1 << 40}):
        assert api.put(f"{path}/max-queues", wrong) == 400
    for number in range(3):
        assert api.put(f"/api/queues/limited/{number}", {}) == 201
    answer = api.call("PUT", "/api/queues/limited/more", {})
    assert answer.status == 400 and "queue limit in vhost 'limited' (3) is reached" in answer.reason
    assert api.delete("/api/vhosts/limited") == 204 and api.put("/api/vhosts/limited") == 201
    assert api.get(path) == [], "limits go with the virtual host"


def test_limits_of_a_user_stay_over_a_restart(tmp_path: pathlib.Path) -> None:
    with kvitto.Broker(tmp_path, http_port=0) as broker:
        api = Http(broker.http_url)
        api.put("/api/users/u", {"password": "u", "tags": ""})
        api.put("/api/permissions/%2F/u", {"configure": ".*", "write": ".*", "read": ".*"})
        assert api.put("/api/user-limits/u/max-connections", {"value": 1}) == 204
        assert api.put("/api/user-limits/u/max-channels", {"value": 5}) == 204
        assert api.delete("/api/user-limits/u/max-channels") == 204
        assert api.delete("/api/user-limits/u/max-channels") == 404
        assert api.put("/api/user-limits/u/max-queues", {"value": 5}) == 400
        assert api.put("/api/user-limits/nobody/max-channels", {"value": 5}) == 404
    with kvitto.Broker(tmp_path, http_port=0) as broker:
        api = Http(broker.http_url)
        shown = [{"user": "u", "value": {"max-connections": 1}}]
        assert api.get("/api/user-limits/u") == shown == api.get("/api/user-limits")
        url = broker.url.replace("guest:guest", "u:u")
        with Connection(url), pytest.raises(Exception, match=r"user connection limit \(1\) is reached"):
            Connection(url).close()


def test_topic_permissions(api: Http) -> None:
    make_user(api, "topical", "")
    path = "/api/topic-permissions/%2F/topical"
    given = {"exchange": "amq.topic", "write": "^a", "read": "^b"}
    shown = {"user": "topical", "vhost": "/", **given}
    assert api.call("GET", path).status == 404
    assert api.put(path, given) == 201 and api.put(path, given) == 204
    assert api.put(path, {**given, "exchange": "x"}) == 201
    assert api.get(path) == [shown, {**shown, "exchange": "x"}]
    assert api.get(f"{path}/amq.topic") == [shown]
    for where in (
        "/api/topic-permissions",
        "/api/vhosts/%2F/topic-permissions",
        "/api/users/topical/topic-permissions",
    ):
        assert shown in api.get(where)
    assert shown in api.get("/api/definitions")["topic_permissions"]
    assert api.delete(f"{path}/x") == 204 and api.get(path) == [shown]
    assert api.delete(path) == 204 and api.delete(path) == 404
    for wrong in ({}, {**given, "write": "("}, {**given, "read": 7}, {"exchange": 1, "read": "", "write": ""}):
        assert api.put(path, wrong) == 400


def test_publishing_over_http_checks_the_routing_key(api: Http) -> None:
    make_user(api, "poster", tags="management")
    api.put("/api/permissions/%2F/poster", {"configure": ".*", "write": ".*", "read": ".*"})
    api.put("/api/topic-permissions/%2F/poster", {"exchange": "amq.topic", "write": "^a", "read": ""})
    user = api.as_user("poster")
    for key, headers, status in (
        ("a", {}, 200),
        ("b", {}, 401),
        ("a", {"CC": ["b"]}, 401),
        ("a", {"BCC": ["a1"]}, 200),
    ):
        body = {"routing_key": key, "payload": "", "payload_encoding": "string", "properties": {"headers": headers}}
        assert user.post("/api/exchanges/%2F/amq.topic/publish", body).status == status, (key, headers)
    api.put("/api/queues/%2F/posted")
    assert user.post("/api/bindings/%2F/e/amq.topic/q/posted", {"routing_key": "x"}).status == 401


def test_only_policymakers_see_parameters_and_only_administrators_set_limits(api: Http) -> None:
    make_user(api, "plain", tags="management")
    make_user(api, "maker", tags="policymaker")
    assert api.as_user("plain").call("GET", "/api/parameters").status == 401
    assert api.as_user("maker").call("GET", "/api/parameters").status == 200
    for path in ("/api/vhost-limits/%2F/max-queues", "/api/user-limits/plain/max-channels", "/api/global-parameters/x"):
        assert api.as_user("maker").put(path, {"value": 1}) == 401
    assert api.as_user("maker").put("/api/parameters/federation-upstream/%2F/x", {"value": {}}) == 401, (
        "it has no permissions there"
    )


def test_a_component_gives_its_parameters_a_meaning() -> None:
    said: list[tuple[Any, ...]] = []

    def check(_vhost: str, _name: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise InvalidParameter("must be an object")

    component = Component(
        check, lambda *given: said.append(("set", *given)), lambda *given: said.append(("clear", *given))
    )
    harness = BrokerHarness()
    parameters: Parameters = harness.broker.parameters
    parameters.set("/", "shovel", "early", {"a": 1})
    parameters.register("shovel", component)
    assert said == [("set", "/", "early", {"a": 1})]
    with pytest.raises(InvalidParameter, match="must be an object"):
        parameters.check("/", "shovel", "s", 7)
    parameters.set("/", "shovel", "s", {"b": 2})
    parameters.set("/", "shovel", "s", {"b": 2})
    assert said[1:] == [("set", "/", "s", {"b": 2})], "an equal value is no change"
    parameters.forget_vhost("/")
    assert sorted(said[2:]) == [("clear", "/", "early"), ("clear", "/", "s")]
    harness.settle_down()
    harness.restart()
    assert not list(harness.broker.parameters.list())

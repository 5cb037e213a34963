"""Policies over HTTP: in RabbitMQ's form, for policymakers; seen in queues, exchanges and the definitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import kvitto
from tests.http.api import Http
from tests.http.test_users import make_user

LIMIT = {"pattern": "^lim", "definition": {"max-length": 3}, "priority": 2, "apply-to": "queues"}


def test_a_policy_comes_changes_and_goes(api: Http) -> None:
    """A8, D2: a queue that is there has it at once."""
    assert api.put("/api/queues/%2F/limited", {"durable": True, "arguments": {"x-max-length": 9}}) == 201
    assert api.put("/api/policies/%2F/p", LIMIT) == 201
    queue = api.get("/api/queues/%2F/limited")
    assert (queue["policy"], queue["operator_policy"]) == ("p", None)
    assert queue["effective_policy_definition"] == {"max-length": 3}
    assert queue["arguments"] == {"x-max-length": 9}
    for i in range(5):
        api.post("/api/exchanges/%2F/amq.default/publish", {"routing_key": "limited", "payload": str(i)})
    assert api.get("/api/queues/%2F/limited")["messages"] == 3
    assert api.put("/api/policies/%2F/p", LIMIT | {"definition": {"max-length": 2}}) == 204
    assert api.get("/api/queues/%2F/limited")["messages"] == 2
    assert api.get("/api/policies") == [{"vhost": "/", "name": "p", **LIMIT, "definition": {"max-length": 2}}]
    assert api.get("/api/policies/%2F") == api.get("/api/policies")
    assert api.get("/api/policies/%2F/p")["name"] == "p"
    assert api.call("DELETE", "/api/policies/%2F/p").status == 204
    assert api.call("DELETE", "/api/policies/%2F/p").status == api.call("GET", "/api/policies/%2F/p").status == 404
    assert api.get("/api/queues/%2F/limited")["policy"] is None


def test_operator_policies_and_definitions(api: Http) -> None:
    """As RabbitMQ exports them: operator policies are parameters."""
    value = {"pattern": "", "definition": {"max-length": 7}, "priority": 0, "apply-to": "queues"}
    assert api.put("/api/operator-policies/%2F/op", value) == 201
    assert api.put("/api/policies/%2F/p", LIMIT) == 201
    assert api.put("/api/queues/%2F/limited", {"durable": True}) == 201
    queue = api.get("/api/queues/%2F/limited")
    assert (queue["policy"], queue["operator_policy"]) == ("p", "op")
    assert queue["effective_policy_definition"] == {"max-length": 3}
    assert api.get("/api/operator-policies") == [{"vhost": "/", "name": "op", **value}]
    found = api.get("/api/definitions")
    assert found["policies"] == api.get("/api/policies")
    assert found["parameters"] == [{"component": "operator_policy", "vhost": "/", "name": "op", "value": value}]
    assert api.get("/api/definitions/%2F")["policies"] == [{"name": "p", **LIMIT}]


def test_exchanges_show_theirs(api: Http) -> None:
    assert (
        api.put("/api/policies/%2F/alt", {"pattern": "^e", "definition": {"alternate-exchange": "amq.fanout"}}) == 201
    )
    assert api.put("/api/exchanges/%2F/e", {"type": "direct"}) == 201
    assert [api.get(f"/api/exchanges/%2F/{name}")["policy"] for name in ("e", "amq.direct")] == ["alt", None]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"pattern": "("}, "no regular expression"),
        (
            {"definition": {"max-lenght": 1}},
            "'max-lenght' is no setting of policies, is it 'max-length'?",
        ),
        ({"definition": {}}, "definition is missing"),
        ({"definition": [1]}, "definition is missing"),
        ({"apply-to": "all of it"}, "apply-to 'all of it' is none of all"),
        ({"priority": "high"}, "priority must be a number"),
        ({"pattern": 1}, "pattern must be a string"),
    ],
)
def test_what_is_wrong_is_said(api: Http, change: dict[str, object], why: str) -> None:
    answer = api.call("PUT", "/api/policies/%2F/p", LIMIT | change)
    assert answer.status == 400 and why in answer.reason
    assert api.get("/api/policies") == []


def test_administrators_set_policies_and_parameters_everywhere_policymakers_where_they_have_permissions(
    api: Http,
) -> None:
    """As with RabbitMQ: an administrator needs no permissions for that."""
    assert api.put("/api/vhosts/far") == 201
    users = [make_user(api, f"far-{tag}", tag) for tag in ("administrator", "policymaker")]
    value = {"pattern": "^q", "definition": {"max-length": 5}}
    for user, allowed in zip(users, (True, False), strict=True):
        for path, body in (("policies/far/p", value), ("parameters/federation-upstream/far/p", {"value": {}})):
            assert user.put(f"/api/{path}", body) == (201 if allowed else 401), path
            assert user.delete(f"/api/{path}") == (204 if allowed else 401), path
        assert user.put("/api/queues/far/q", {}) == 401, "what is in the virtual host needs permissions"
    assert api.delete("/api/vhosts/far") == 204


def test_the_patterns_of_a_vhost_may_not_take_long_to_search(api: Http) -> None:
    """300 of these made each declaration in the virtual host, by whomever, hold the loop for 30 ms, and further ones longer."""
    assert api.put("/api/vhosts/slow") == 201
    heavy = {"pattern": "(a|b|c|d|.)*[^x]{180}y.{30}$", "definition": {"max-length": 5}}
    refused = [n for n in range(60) if api.put(f"/api/policies/slow/p{n}", heavy) == 400]
    assert 40 <= refused[0] <= 50 and refused[-1] == 59
    answer = api.call("PUT", "/api/operator-policies/slow/more", heavy)
    assert answer.status == 400 and "all policies of vhost 'slow' would take too long to search" in answer.reason
    items = [{"vhost": "slow", "name": f"q{n}", "priority": 0, "apply-to": "all", **heavy} for n in range(10)]
    answer = api.post("/api/definitions", {"policies": items})
    assert answer.status == 400 and "too long to search" in answer.reason
    assert api.put("/api/policies/slow/p0", {**heavy, "definition": {"max-length": 6}}) == 204
    assert api.put("/api/policies/slow/p0", {**heavy, "pattern": "^x"}) == 204
    assert api.put("/api/policies/slow/again", heavy) == 201
    assert api.delete("/api/vhosts/slow") == 204


def test_policymakers_set_policies_operators_limits(api: Http) -> None:
    """A policymaker where he may open the virtual host; operator policies are for administrators."""
    api.put("/api/vhosts/other")
    maker, manager = make_user(api, "maker", "policymaker", "%2F"), make_user(api, "manager", "management", "%2F")
    assert maker.put("/api/policies/%2F/p", LIMIT) == 201
    assert maker.call("PUT", "/api/policies/other/p", LIMIT).status == 401
    assert maker.call("PUT", "/api/operator-policies/%2F/p", LIMIT).status == 401
    assert manager.get("/api/policies")[0]["name"] == "p"
    assert manager.call("DELETE", "/api/policies/%2F/p").status == 401
    assert maker.call("DELETE", "/api/policies/%2F/p").status == 204


@pytest.fixture
def api() -> Iterator[Http]:
    """A broker for each test: policies reach everywhere."""
    with kvitto.Broker(http_port=0) as broker:
        yield Http(broker.http_url)

"""RabbitMQ's own export of a rich set-up comes here, goes out again, and is taken by RabbitMQ: equal where both know it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import kvitto
from kvitto.client import Connection
from tests.http.api import Http

VHOSTS = ("fd-orders", "fd-logs")
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


def set_up(api: Http) -> None:
    """Every kind of object, made by the management API."""
    api.put("/api/vhosts/fd-orders", {"description": "orders of Lund", "tags": "red,blue"})
    api.put("/api/vhosts/fd-logs", {})
    for name, tags in (("fd-ann", "administrator"), ("fd-bob", "monitoring,management"), ("fd-eve", "")):
        api.put(f"/api/users/{name}", {"password": f"pw-{name}", "tags": tags})
    api.put("/api/users/fd-cert", {"password_hash": "", "tags": ""})
    api.put("/api/permissions/fd-orders/fd-ann", EVERYTHING)
    api.put("/api/permissions/fd-orders/fd-bob", {"configure": "", "write": "^x", "read": "^(?!secret)"})
    api.put("/api/topic-permissions/fd-orders/fd-bob", {"exchange": "x", "write": "^{username}\\.", "read": ".*"})
    api.put("/api/vhost-limits/fd-orders/max-queues", {"value": 500})
    api.put("/api/vhost-limits/fd-orders/max-connections", {"value": 100})
    api.put("/api/user-limits/fd-bob/max-channels", {"value": 7})
    policy = {"pattern": "^q", "definition": {"ha-mode": "all", "max-length": 50}, "apply-to": "queues", "priority": 3}
    assert api.put("/api/policies/fd-orders/ha", policy) == 201
    limit = {"pattern": "^q", "definition": {"message-ttl": 1000}, "apply-to": "queues"}
    assert api.put("/api/operator-policies/fd-orders/ttl", limit) == 201
    assert api.put("/api/global-parameters/fd-global", {"name": "fd-global", "value": {"a": [1, "x", None]}}) == 201
    queues: dict[str, dict[str, Any]] = {
        "q-classic": {},
        "q-lazy": {"x-queue-mode": "lazy", "x-queue-version": 2},
        "q-quorum": {"x-queue-type": "quorum", "x-delivery-limit": 5},
        "q-stream": {"x-queue-type": "stream", "x-max-age": "7D"},
        "q-\u00e9\u4e2d": {"x-max-priority": 5, "x-dead-letter-exchange": "x", "x-dead-letter-routing-key": "dead"},
        "q-odd/name %2F": {"x-message-ttl": 60000, "x-expires": 3600000, "x-overflow": "reject-publish", "unknown": [1, {"a": 2.5}]},
    }  # fmt: skip
    for name, arguments in queues.items():
        path = f"/api/queues/fd-orders/{quoted(name)}"
        assert api.put(path, {"durable": True, "auto_delete": False, "arguments": arguments}) == 201, name
    assert api.put("/api/queues/fd-logs/goes", {"durable": True, "auto_delete": True}) == 201
    exchanges: dict[str, dict[str, Any]] = {
        "x": {"type": "topic", "arguments": {"alternate-exchange": "unrouted"}},
        "unrouted": {"type": "fanout", "internal": True},
        "h": {"type": "headers", "auto_delete": True},
    }
    for name, body in exchanges.items():
        assert api.put(f"/api/exchanges/fd-orders/{name}", {"durable": True, **body}) == 201
    to = "/api/bindings/fd-orders/e"
    for path, body in (
        (f"{to}/x/q/q-classic", {"routing_key": "a.*.#"}),
        (f"{to}/x/q/q-classic", {"routing_key": "b"}),
        (f"{to}/x/e/unrouted", {"routing_key": "#"}),
        (f"{to}/h/q/q-quorum", {"arguments": {"x-match": "any", "size": 10, "red": True, "name": "\u00e9"}}),
        (f"{to}/amq.direct/q/q-lazy", {"routing_key": "k"}),
    ):
        assert api.post(path, body).status == 201, path
    with Connection(amqp(api, "fd-logs")) as connection:
        declared = connection.channel().queue_declare("", durable=True, exclusive=False, auto_delete=False)
        assert "amq.gen-" in str(declared)


def quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def amqp(api: Http, vhost: str) -> str:
    listeners = api.get("/api/overview")["listeners"]
    port = next(each["port"] for each in listeners if each["protocol"] == "amqp")
    return f"amqp://guest:guest@127.0.0.1:{port}/{vhost}"


def comparable(document: dict[str, Any]) -> dict[str, list[str]]:
    """The objects of the set-up that both brokers know, each as text, sorted."""
    found: dict[str, list[str]] = {}
    for kind in (
        "users",
        "vhosts",
        "permissions",
        "topic_permissions",
        "parameters",
        "policies",
        "queues",
        "exchanges",
        "bindings",
    ):
        items = []
        for item in document[kind]:
            owner = item.get("vhost", item.get("name", item.get("user", "")))
            if str(owner).startswith("fd-") or (kind == "global_parameters" and item["name"].startswith("fd-")):
                kept = {
                    k: v
                    for k, v in item.items()
                    if k not in ("metadata", "default_queue_type", "tracing", "type") or kind == "exchanges"
                }
                if kind == "users":
                    kept["tags"] = sorted(kept["tags"])
                if kind == "vhosts":
                    kept.update(tags=sorted(kept.get("tags", [])), description=kept.get("description", ""), limits=[])
                items.append(json.dumps(kept, sort_keys=True))
        found[kind] = sorted(items)
    return found


def remove(api: Http) -> None:
    for vhost in VHOSTS:
        api.delete(f"/api/vhosts/{vhost}")
    for user in ("fd-ann", "fd-bob", "fd-eve", "fd-cert"):
        api.delete(f"/api/users/{user}")
    api.delete("/api/global-parameters/fd-global")


@pytest.fixture
def theirs(rabbitmq_url: str) -> Iterator[Http]:
    api = Http(rabbitmq_url)
    remove(api)
    yield api
    remove(api)


def test_their_export_arrives_here_and_goes_back(theirs: Http) -> None:
    set_up(theirs)
    export = theirs.get("/api/definitions")
    with kvitto.Broker(http_port=0) as broker:
        ours = Http(broker.http_url)
        answer = ours.post("/api/definitions", export)
        assert answer.status == 200 and answer.json["refused"] == [], answer.body
        assert set(answer.json["without_effect"]) >= {"policy setting 'ha-mode'", "argument of queues 'x-queue-mode'"}
        back = ours.get("/api/definitions")
        assert comparable(back) == comparable(export)
        back["users"] = [user for user in back["users"] if user["hashing_algorithm"] != "kvitto_scrypt"]
        remove(theirs)
        assert theirs.post("/api/definitions", back).status in (200, 201, 204)
        there, again = comparable(export), comparable(theirs.get("/api/definitions"))
        for items in (again["queues"], there["queues"]):  # RabbitMQ does not take its own generated names back
            items[:] = [item for item in items if "amq.gen-" not in item]
        assert [(kind, set(again[kind]) ^ set(items)) for kind, items in there.items() if again[kind] != items] == []
        for user in ("fd-ann", "fd-bob"):
            assert ours.as_user(user, f"pw-{user}").call("GET", "/api/whoami").status == 200, (
                "with the password that they have"
            )


def test_one_vhost_of_theirs_arrives(theirs: Http) -> None:
    set_up(theirs)
    export = theirs.get("/api/definitions/fd-orders")
    with kvitto.Broker(http_port=0) as broker:
        ours = Http(broker.http_url)
        ours.put("/api/vhosts/here")
        answer = ours.post("/api/definitions/here", export)
        assert answer.status == 200 and answer.json["refused"] == []
        back = ours.get("/api/definitions/here")
        for kind in ("queues", "exchanges", "bindings", "policies", "parameters"):
            assert len(back[kind]) == len(export[kind]), kind


# -- the same script against both ----------------------------------------------------------------------------


@pytest.fixture
def user(api: Http) -> Iterator[Http]:
    """A user with all permissions in a virtual host of its own."""
    remove(api)
    api.put("/api/vhosts/fd-orders")
    api.put("/api/users/fd-ann", {"password": "pw", "tags": "administrator"})
    api.put("/api/permissions/fd-orders/fd-ann", EVERYTHING)
    yield api
    remove(api)


def refused(url: str, act: Any) -> str:
    """The text with which the broker closes channel or connection."""
    with pytest.raises(Exception) as caught, Connection(url) as connection:
        act(connection.channel())
    return str(caught.value)


def test_topic_permissions_are_refused_alike(user: Http) -> None:
    path = "/api/topic-permissions/fd-orders/fd-ann"
    assert user.put(path, {"exchange": "amq.topic", "write": "^{username}$", "read": "^{vhost}$"}) in (201, 204)
    url = amqp(user, "fd-orders").replace("guest:guest", "fd-ann:pw")
    user.put("/api/queues/fd-orders/q", {"durable": True})
    with Connection(url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        channel.publish(b"x", "amq.topic", "fd-ann")
        channel.wait_for_confirms(10.0)
        channel.queue_bind("q", "amq.topic", "fd-orders")

    def publish(channel: Any) -> None:
        channel.confirm_select()
        channel.publish(b"x", "amq.topic", "other")
        channel.wait_for_confirms(10.0)

    text = "access to topic 'other' in exchange 'amq.topic' in vhost 'fd-orders' refused for user 'fd-ann'"
    # RabbitMQ 3.11 and later says "write access" and "read access", and so does Kvitto
    assert text in refused(url, publish)
    assert text in refused(url, lambda channel: channel.queue_bind("q", "amq.topic", "other"))


def test_limits_are_refused_alike(user: Http) -> None:
    url = amqp(user, "fd-orders").replace("guest:guest", "fd-ann:pw")
    user.put("/api/vhost-limits/fd-orders/max-queues", {"value": 0})
    text = "cannot declare queue 'q': queue limit in vhost 'fd-orders' (0) is reached"
    assert text in refused(url, lambda channel: channel.queue_declare("q"))
    user.put("/api/user-limits/fd-ann/max-channels", {"value": 0})
    text = "number of channels opened for user 'fd-ann' has reached the maximum allowed user limit of (0)"
    assert text in refused(url, lambda channel: None)
    user.put("/api/user-limits/fd-ann/max-connections", {"value": 0})
    text = "connection refused for user 'fd-ann': user connection limit (0) is reached"
    assert text in refused(url, lambda channel: None)
    user.put("/api/vhost-limits/fd-orders/max-connections", {"value": 0})
    text = "access to vhost 'fd-orders' refused for user 'fd-ann': connection limit (0) is reached"
    assert text in refused(url, lambda channel: None)

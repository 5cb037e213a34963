"""Every route that changes something, with wrong values in every field: what is refused has changed nothing.

A request is checked as a whole before anything is done. The requests are generated: from a right one of each route, which a new
route must have here, with one thing in it replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

import kvitto
from kvitto.client import Connection
from tests.http.api import Http
from tests.http.test_access import CHANGES, LATE, Route, named
from tests.support.wait import wait_until

WRONG: tuple[Any, ...] = (
    None,
    True,
    7,
    -1,
    1.5,
    "",
    "wrong",
    "(",
    "x" * 70_000,
    "\ud800",
    "\x00",
    [],
    [7],
    {},
    {"deep": {"number": 1 << 70}},
    {"wrong": "x"},
)
BODIES = (b"[", b"[]", b"7", b"\xff", b'"', b"[" * 5000, b'{"a":' * 5000, b"NaN", b'{"arguments": {"x": NaN}}')
QUEUE = "/api/queues/{vhost}/{name}"
EXCHANGE = "/api/exchanges/{vhost}/{name}"
BINDINGS = "/api/bindings/{vhost}/e/{source}/q/{queue}"
TO_EXCHANGE = "/api/bindings/{vhost}/e/{source}/e/{destination}"
POLICY = {"pattern": "^thing$", "definition": {"max-length": 5}, "priority": 1, "apply-to": "queues"}
DEFINITIONS: dict[str, Any] = {
    "vhosts": [{"name": "more"}],
    "queues": [{"name": "more", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}],
}
BINDING = {"routing_key": "k", "arguments": {"x": 1}}
RIGHT: dict[str, Any] = {
    f"PUT {QUEUE}": {"durable": True, "auto_delete": False, "arguments": {"x-queue-type": "classic"}},
    f"DELETE {QUEUE}": {},
    f"DELETE {QUEUE}/contents": {},
    f"POST {QUEUE}/get": {
        "count": 1,
        "ackmode": "ack_requeue_false",
        "encoding": "auto",
        "truncate": 9,
        "requeue": True,
    },
    f"PUT {EXCHANGE}": {"type": "direct", "durable": True, "auto_delete": False, "internal": False, "arguments": {}},
    f"DELETE {EXCHANGE}": {},
    f"POST {EXCHANGE}/publish": {
        "routing_key": "k",
        "payload": "x",
        "payload_encoding": "string",
        "properties": {
            "headers": {"h": 1},
            "priority": 3,
            "expiration": "60000",
            "delivery_mode": 2,
            "user_id": "guest",
        },
    },
    f"POST {BINDINGS}": BINDING,
    f"POST {TO_EXCHANGE}": BINDING,
    f"DELETE {BINDINGS}/{{key}}": {},
    f"DELETE {TO_EXCHANGE}/{{key}}": {},
    "PUT /api/policies/{vhost}/{name}": POLICY,
    "DELETE /api/policies/{vhost}/{name}": {},
    "PUT /api/operator-policies/{vhost}/{name}": POLICY,
    "DELETE /api/operator-policies/{vhost}/{name}": {},
    "PUT /api/users/{name}": {"password": "other", "tags": "monitoring"},
    "DELETE /api/users/{name}": {},
    "PUT /api/vhosts/{vhost}": {"description": "d", "tags": "t", "default_queue_type": "quorum", "tracing": True},
    "DELETE /api/vhosts/{vhost}": {},
    "PUT /api/permissions/{vhost}/{user}": {"configure": "^t", "write": "^t", "read": "^t"},
    "DELETE /api/permissions/{vhost}/{user}": {},
    "DELETE /api/connections/{name}": {},
    "DELETE /api/connections/username/{username}": {},
    "POST /api/users/bulk-delete": {"users": ["somebody"]},
    "PUT /api/cluster-name": {"name": "lund"},
    "POST /api/cluster/transfer": {"to": "90ab12cd"},
    "POST /api/cluster/remove": {"node": "90ab12cd"},
    "PUT /api/settings/log": {"level": "info"},
    f"POST {QUEUE}/actions": {"action": "sync"},
    "DELETE /api/consumers/{vhost}/{connection}/{channel}/{tag}": {},
    "PUT /api/topic-permissions/{vhost}/{user}": {"exchange": "other", "write": "^t", "read": "^t"},
    "DELETE /api/topic-permissions/{vhost}/{user}": {},
    "DELETE /api/topic-permissions/{vhost}/{user}/{exchange}": {},
    "PUT /api/parameters/{component}/{vhost}/{name}": {"value": {"new": 1}},
    "DELETE /api/parameters/{component}/{vhost}/{name}": {},
    "PUT /api/global-parameters/{name}": {"value": {"new": 1}},
    "DELETE /api/global-parameters/{name}": {},
    "PUT /api/vhost-limits/{vhost}/{name}": {"value": 9},
    "DELETE /api/vhost-limits/{vhost}/{name}": {},
    "PUT /api/user-limits/{user}/{name}": {"value": 9},
    "DELETE /api/user-limits/{user}/{name}": {},
    "POST /api/definitions": DEFINITIONS,
    "POST /api/all-configuration": DEFINITIONS,
    "POST /api/definitions/{vhost}": {"queues": DEFINITIONS["queues"]},
}
OF_CLUSTERS = {"POST /api/cluster/transfer", "POST /api/cluster/remove", "POST /api/cluster/upgrade"}
"""`tests/cluster/test_clients.py` and `test_levels.py` there show that these are done."""
WITHOUT_BODY: dict[str, Any] = {
    "POST /api/vhosts/{vhost}/start/{node}": {},
    f"DELETE {EXCHANGE}/delayed": {},
    f"DELETE {EXCHANGE}/delayed/{{message_id}}": {},
    f"POST {EXCHANGE}/delayed/{{message_id}}/run": {},
    "POST /api/vhosts/{vhost}/deletion/protection": {},
    "DELETE /api/vhosts/{vhost}/deletion/protection": {},
    "PUT /api/feature-flags/{name}/enable": {},
    "POST /api/rebalance/queues": {},
    "POST /api/cluster/upgrade": {},
    "DELETE /api/reset": {},
    "POST /api/backup": {},
    "PUT /api/shovels/{vhost}/{name}/pause": {},
    "PUT /api/shovels/{vhost}/{name}/resume": {},
    "DELETE /api/shovels/vhost/{vhost}/{name}": {},
    "DELETE /api/shovels/vhost/{vhost}/{name}/restart": {},
    "DELETE /api/backup/{name}": {},
    "DELETE /api/reset/{node}": {},
    "DELETE /api/auth/attempts/{node}": {},
    "DELETE /api/auth/attempts/{node}/source": {},
}
"""What is in the body does not matter, and only the path can be wrong."""
NAMES = {
    "vhost": "/",
    "name": "thing",
    "user": "somebody",
    "source": "thing",
    "queue": "thing",
    "destination": "other",
    "key": "k",
    "username": "guest",
    "channel": "1",
    "tag": "c",
    "component": "federation-upstream",
    "exchange": "thing",
    "message_id": "late-1",
}
KINDS = {
    "users": "somebody",
    "vhosts": "side",
    "feature-flags": "quorum_queue",
    "vhost-limits": "max-queues",
    "user-limits": "max-channels",
}

Request = tuple[str, str, Any]


SHOVEL = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b", "paused": True}


class World:
    """A broker with one thing of each kind."""

    def __init__(self, broker: kvitto.Broker, connection: Connection) -> None:
        self.api = Http(broker.http_url)
        assert broker._server is not None
        broker._server.broker.users.cost = 4
        for path, body in (
            ("vhosts/side", {"description": "beside"}),
            ("users/somebody", {"password": "secret", "tags": "management"}),
            ("permissions/%2F/somebody", {"configure": "", "write": "", "read": ""}),
            ("queues/%2F/thing", {"durable": True}),
            ("queues/%2F/other", {"durable": True}),
            ("exchanges/%2F/thing", {"durable": True}),
            ("exchanges/%2F/other", {"durable": True}),
            ("exchanges/%2F/late", LATE),
            ("policies/%2F/thing", {"pattern": "^none$", "definition": {"max-length": 9}}),
            ("operator-policies/%2F/thing", {"pattern": "^none$", "definition": {"max-length": 9}}),
            ("parameters/federation-upstream/%2F/thing", {"value": {}}),
            ("parameters/shovel/%2F/thing", {"value": SHOVEL}),
            ("global-parameters/thing", {"value": 1}),
            ("topic-permissions/%2F/somebody", {"exchange": "thing", "write": "", "read": ""}),
        ):
            assert self.api.put(f"/api/{path}", body) == 201
        for path in ("vhost-limits/%2F/max-queues", "user-limits/somebody/max-channels"):
            assert self.api.put(f"/api/{path}", {"value": 5}) == 204
        for target in ("q/thing", "e/other"):
            assert self.api.post(f"/api/bindings/%2F/e/thing/{target}", {"routing_key": "k"}).status == 201
        delayed = {"message_id": "late-1", "headers": {"x-delay": 3_600_000}}
        self.api.post("/api/exchanges/%2F/late/publish", {"routing_key": "", "payload": "", "properties": delayed})
        for payload in ("one", "two"):
            self.api.post("/api/exchanges/%2F/thing/publish", {"routing_key": "k", "payload": payload})
        connection.channel().consume("other", consumer_tag="c")
        wait_until(lambda: self.api.get("/api/consumers") != [])
        self.connection = self.api.get("/api/connections")[0]["name"]
        self.node = self.api.get("/api/overview")["node"]
        self.backup = ""

    def path(self, pattern: str) -> str:
        kind = pattern.split("/")[2]
        if kind == "backup" and "{name}" in pattern:
            self.backup = self.backup or self.api.post("/api/backup", {}).json["name"]
        kinds = {**KINDS, "connections": self.connection, "backup": self.backup}
        names = {**NAMES, "name": kinds.get(kind, "thing")}
        names |= {"vhost": "side" if kind == "vhosts" else "/", "connection": self.connection, "node": self.node}
        if "/delayed" in pattern:
            names["name"] = "late"
        return "/".join(quote(names[p[1:-1]], safe="") if p[:1] == "{" else p for p in pattern.split("/"))

    def send(self, request: Request) -> int:
        method, path, body = request
        headers = {"Content-Type": "application/json"}
        return self.api.call(method, path, body, headers).status

    def state(self) -> Any:
        look = {"count": 10, "ackmode": "ack_requeue_true", "encoding": "auto"}
        found = self.api.get("/api/queues/%2F/thing")
        return (
            self.api.get("/api/definitions"),
            self.api.post("/api/queues/%2F/thing/get", look).json,
            (found["messages_ready"], found["messages_unacknowledged"], found["message_stats"]["publish"]),
            [connection["name"] for connection in self.api.get("/api/connections")],
            [consumer["consumer_tag"] for consumer in self.api.get("/api/consumers")],
            [message["message_id"] for message in self.api.get("/api/exchanges/%2F/late/delayed")],
        )


@pytest.fixture
def world() -> Iterator[World]:
    with kvitto.Broker(http_port=0) as broker, Connection(broker.url) as connection:
        yield World(broker, connection)


def replaced(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """`value` with each of its fields, and theirs, replaced by each of the wrong values, and with one field too many."""
    for key, inner in value.items():
        for wrong in WRONG:
            yield (*path, key), {**value, key: wrong}
        if isinstance(inner, dict):
            for where, made in replaced(inner, (*path, key)):
                yield where, {**value, key: made}
    if path:
        yield (*path, "too-much"), {**value, "too-much": {"a": [1 << 70]}}


def requests(world: World, route: Route) -> list[Request]:
    """With a body that has something wrong in it; not all of them are refused."""
    method, pattern, _ = route
    if named(route) in WITHOUT_BODY:
        return [(method, world.path(pattern) + end, b"") for end in ("-not-there", "%FF")]
    bodies = [json.dumps(body).encode() for _, body in replaced(RIGHT[named(route)])]
    return [(method, world.path(pattern), body) for body in (*bodies, *BODIES)]


def deletions(world: World, pattern: str) -> list[Request]:
    """All of them are to be refused."""
    path = world.path(pattern)
    paths = [path + "%FF"]
    if "{username}" not in pattern:  # of somebody unknown there are no connections
        paths.append(path + "-not-there")
    if pattern in (QUEUE, EXCHANGE):
        paths += [f"{path}?if-unused={value}" for value in ("maybe", "", "1")]
    if pattern == QUEUE:
        paths += [f"{path}?if-empty={value}" for value in ("maybe", "", "true")]
    return [("DELETE", wrong, None) for wrong in paths]


def test_every_route_that_changes_something_has_a_right_request_here() -> None:
    assert {named(route) for route in CHANGES} == RIGHT.keys() | WITHOUT_BODY.keys()


@pytest.mark.parametrize("route", CHANGES, ids=named)
def test_a_request_that_is_refused_has_changed_nothing(world: World, route: Route) -> None:
    """Twice: the first time only to find which are refused, since the others do change something."""
    if route[0] == "DELETE":
        refused = deletions(world, route[1])
    else:
        with kvitto.Broker(http_port=0) as broker, Connection(broker.url) as connection:
            other = World(broker, connection)
            pairs = zip(requests(world, route), requests(other, route), strict=True)
            refused = [here for here, there in pairs if other.send(there) >= 400]
        assert len(refused) > len(BODIES) or named(route) in WITHOUT_BODY
    before = world.state()
    answers = [world.send(request) for request in refused]
    assert all(400 <= status < 500 for status in answers), "a wrong value is the caller's mistake, not ours"
    assert world.state() == before
    right = {**RIGHT, **WITHOUT_BODY}[named(route)]
    status = world.send((route[0], world.path(route[1]), right))
    if named(route) in OF_CLUSTERS:
        assert status == 400 and world.state() == before, (
            "a broker that stands alone has nobody to hand over to, and no level"
        )
    else:
        assert status < 300, "the right request is refused, too"

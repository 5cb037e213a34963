"""Every route, new ones included, with users who may not: nobody, without a tag, without permissions, with `monitoring` alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

import kvitto
from kvitto.client import Connection
from kvitto.http.access import Access
from kvitto.http.router import Router
from kvitto.http.server import is_loopback
from tests.http.api import Answer, Http

HIDDEN = "hidden-thing"
"""In the name of all that is in the virtual host."""
LATE = {"type": "x-delayed-message", "durable": True, "arguments": {"x-delayed-type": "fanout"}}
DELAYED = {
    "routing_key": HIDDEN,
    "payload": "x",
    "properties": {"message_id": HIDDEN, "headers": {"x-delay": 3_600_000}},
}
BODIES: dict[str, Any] = {
    "/api/exchanges/{vhost}/{name}/publish": {"routing_key": HIDDEN, "payload": "x"},
    "/api/queues/{vhost}/{name}/get": {"count": 1, "ackmode": "ack_requeue_false"},
    "/api/policies/{vhost}/{name}": {"pattern": "", "definition": {"max-length": 0}},
    "/api/operator-policies/{vhost}/{name}": {"pattern": "", "definition": {"max-length": 0}},
    "/api/users/bulk-delete": {"users": ["plain"]},
    "/api/cluster-name": {"name": "taken"},
    "/api/queues/{vhost}/{name}/actions": {"action": "sync"},
    "/api/users/{name}": {"password": "new", "tags": "administrator"},
    "/api/topic-permissions/{vhost}/{user}": {"exchange": HIDDEN, "write": "", "read": ""},
    "/api/parameters/{component}/{vhost}/{name}": {"value": {"new": 1}},
    "/api/global-parameters/{name}": {"value": "new"},
    "/api/vhost-limits/{vhost}/{name}": {"value": 1},
    "/api/user-limits/{user}/{name}": {"value": 1},
    "/api/definitions": {"vhosts": [{"name": "new"}]},
    "/api/permissions/{vhost}/{user}": {"configure": ".*", "write": ".*", "read": ".*"},
}

Route = tuple[str, str, Access]


def routes() -> list[Route]:
    """Method, pattern and access of all."""
    found = []
    for by_pattern in Router()._by_length.values():
        for parts, methods in by_pattern.items():
            found += [(method, "/" + "/".join(parts), route.access) for method, route in methods.items()]
    return sorted(found, key=lambda route: route[1::-1])


def named(route: Route) -> str:
    return f"{route[0]} {route[1]}"


ALL = routes()
OPEN = (Access.ANYBODY, Access.LOOPBACK)
"""From this machine."""
CLOSING = (
    "/api/connections/{name}",
    "/api/connections/username/{username}",
    "/api/consumers/{vhost}/{connection}/{channel}/{tag}",
)
"""An administrator may, whosever it is."""
CHANGES = [route for route in ALL if route[0] != "GET"]


SHOVEL = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b", "paused": True}


class World:
    """A broker with something to hide, and users."""

    def __init__(self, broker: kvitto.Broker, connection: Connection) -> None:
        self.admin = Http(broker.http_url)
        assert broker._server is not None
        broker._server.broker.users.cost = 4
        for path, body in (
            (f"queues/%2F/{HIDDEN}", {"durable": True}),
            (f"exchanges/%2F/{HIDDEN}", {"type": "fanout", "durable": True}),
            (f"exchanges/%2F/{HIDDEN}-2", {"type": "fanout", "durable": True}),
            (f"exchanges/%2F/{HIDDEN}-late", LATE),
            (f"policies/%2F/{HIDDEN}", {"pattern": HIDDEN, "definition": {"max-length": 9}}),
            (f"operator-policies/%2F/{HIDDEN}", {"pattern": HIDDEN, "definition": {"max-length": 9}}),
            (f"parameters/federation-upstream/%2F/{HIDDEN}", {"value": {}}),
            (f"parameters/shovel/%2F/{HIDDEN}", {"value": SHOVEL}),
            (f"global-parameters/{HIDDEN}", {"value": 1}),
            ("topic-permissions/%2F/guest", {"exchange": HIDDEN, "write": ".*", "read": ".*"}),
        ):
            assert self.admin.put(f"/api/{path}", body) == 201
        assert self.admin.post(f"/api/exchanges/%2F/{HIDDEN}-late/publish", DELAYED).json == {"routed": True}
        for target in (f"q/{HIDDEN}", f"e/{HIDDEN}-2"):
            assert self.admin.post(f"/api/bindings/%2F/e/{HIDDEN}/{target}", {"routing_key": "k"}).status == 201
        for user, tags in (
            ("plain", ""),
            ("manager", "management"),
            ("watcher", "monitoring"),
            ("root", "administrator"),
        ):
            assert self.admin.put(f"/api/users/{user}", {"password": "secret", "tags": tags}) == 201
        self.channel = connection.channel()
        self.channel.consume(HIDDEN, no_ack=False)
        [self.tag] = [c["consumer_tag"] for c in self.admin.get("/api/consumers")]
        [self.connection] = [c["name"] for c in self.admin.get("/api/connections")]
        self.node = self.admin.get("/api/overview")["node"]
        self.backup = self.admin.post("/api/backup", {}).json["name"]

    def path(self, pattern: str) -> str:
        """The pattern with names of what is there."""
        kind = pattern.split("/")[2] if pattern.count("/") > 1 else ""
        names = {
            "users": "guest",
            "connections": self.connection,
            "nodes": self.node,
            "channels": f"{self.connection} (1)",
            "feature-flags": "quorum_queue",
            "backup": self.backup,
        }
        filled = {
            "vhost": "/",
            "name": names.get(kind, HIDDEN),
            "user": "guest",
            "source": HIDDEN,
            "queue": HIDDEN,
            "destination": f"{HIDDEN}-2",
            "key": "k",
            "username": "guest",
            "component": "federation-upstream",
            "exchange": HIDDEN,
            "port": str(self.admin.port),
            "protocol": "http",
            "within": "1",
            "unit": "days",
            "node": self.node,
            "connection": self.connection,
            "channel": "1",
            "tag": self.tag,
            "password": "open",
            "pattern": "q",
            "message_id": HIDDEN,
        }
        if "/delayed" in pattern:
            filled["name"] = f"{HIDDEN}-late"
        return "/".join(quote(filled[p[1:-1]], safe="") if p[:1] == "{" else p for p in pattern.split("/"))

    def call(self, user: str, route: Route) -> Answer:
        method, pattern, _ = route
        api = self.admin.as_user(user)
        body = None if method == "GET" else BODIES.get(pattern, {})
        headers = {} if method == "GET" else {"Content-Type": "application/json"}
        return api.call(method, self.path(pattern), body, headers)

    def state(self) -> Any:
        queue = self.admin.get(f"/api/queues/%2F/{HIDDEN}")
        return self.admin.get("/api/definitions"), queue["messages"], self.admin.get("/api/connections")[0]["name"]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with kvitto.Broker(http_port=0) as broker, Connection(broker.url) as connection:
        made = World(broker, connection)
        before = made.state()
        yield made
        assert made.state() == before, "a refused request has changed something"


def test_all_routes_are_walked_and_can_be_reached(world: World) -> None:
    """The walk is worth something only if the paths are those of things that are there."""
    assert len(ALL) > 70 and len(CHANGES) > 15
    for method, pattern, _ in ALL:
        if method == "GET" and "aliveness" not in pattern:
            assert world.admin.call("GET", world.path(pattern)).status == 200, pattern


@pytest.mark.parametrize("route", ALL, ids=named)
def test_without_a_login_there_is_nothing(world: World, route: Route) -> None:
    """W7: no user, a wrong password, or a user without a tag."""
    for user in ("", "plain"):
        answer = world.call(user, route)
        if route[2] in OPEN:
            assert answer.status == 200
            assert route[1].startswith("/metrics") or HIDDEN not in answer.body.decode()
        else:
            assert answer.status == 401, (user, answer.status, answer.body)


@pytest.mark.parametrize("route", ALL, ids=named)
def test_who_may_open_no_vhost_sees_and_changes_nothing_in_it(world: World, route: Route) -> None:
    """W5: tag `management`, no permission."""
    answer = world.call("manager", route)
    if route[0] != "GET" or route[2] in (Access.MONITORING, Access.ADMINISTRATOR):
        assert answer.status == 401 or (answer.status == 404 and HIDDEN not in answer.body.decode())
    elif not route[1].startswith("/metrics"):
        assert answer.status in (200, 401, 404)
        assert answer.status != 200 or HIDDEN not in answer.body.decode()


@pytest.mark.parametrize("route", CHANGES, ids=named)
def test_who_watches_changes_nothing(world: World, route: Route) -> None:
    """W5: tag `monitoring`."""
    assert world.call("watcher", route).status == 401


@pytest.mark.parametrize("route", [r for r in ALL if r[2] is Access.ADMINISTRATOR], ids=named)
def test_who_watches_sees_no_users(world: World, route: Route) -> None:
    """Hashes of passwords above all."""
    assert world.call("watcher", route).status == 401


@pytest.mark.parametrize("route", [r for r in CHANGES if r[2] is Access.MANAGEMENT and r[1] not in CLOSING], ids=named)
def test_an_administrator_needs_permissions_for_what_is_in_a_vhost(world: World, route: Route) -> None:
    """W5: as over AMQP."""
    assert world.call("root", route).status == 401


def test_the_aliveness_test_needs_permissions_although_it_is_a_get(world: World) -> None:
    for user in ("manager", "watcher", "root"):
        assert world.admin.as_user(user).call("GET", "/api/aliveness-test/%2F").status == 401


def test_metrics_are_open_to_this_machine_alone() -> None:
    """Elsewhere they need the tag `monitoring`; a name of this machine that is none of its own addresses does not count."""
    assert (
        is_loopback(("127.0.0.1", 1)) and is_loopback(("::1", 1, 0, 0)) and is_loopback(("::ffff:127.0.0.1", 1, 0, 0))
    )
    assert not any(map(is_loopback, [("10.0.0.1", 1), ("::ffff:10.0.0.1", 1, 0, 0), ("", 1), None]))


def test_no_answer_invites_pages_from_elsewhere(world: World) -> None:
    """No CORS header, no cookie, on any route, whatever a browser asks; writes are refused (CSRF)."""
    asks = {"Origin": "http://evil.example", "Access-Control-Request-Method": "PUT"}
    for method, pattern, _ in [route for route in ALL if "aliveness" not in route[1]]:
        for given in (method, "OPTIONS"):
            answer = world.admin.call(given, world.path(pattern), None, asks)
            names = {name.lower() for name in answer.headers}
            assert not [name for name in names if name.startswith("access-control-")] and "set-cookie" not in names
            assert (
                answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["Cache-Control"] == "no-cache"
            )
            if given == "OPTIONS":
                assert answer.status == 200 and not answer.body
            elif method != "GET":
                assert answer.status == 403, (method, pattern)

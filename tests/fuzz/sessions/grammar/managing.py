"""The management API on the same objects."""

from __future__ import annotations

import json
from typing import Any

from tests.fuzz.sessions.grammar.base import ARGUMENTS, EXCHANGES, FOLLOWED, KEYS, ODD_ARGUMENTS, QUEUES, Grammar
from tests.fuzz.sessions.story import Action

LISTS = (
    *(
        "overview",
        "nodes",
        "connections",
        "channels",
        "consumers",
        "consumers/%2F",
        "queues",
        "queues/%2F",
        "exchanges",
    ),
    *(
        "bindings",
        "bindings/%2F",
        "policies",
        "definitions",
        "definitions/%2F",
        "vhosts",
        "users",
        "permissions",
        "whoami",
    ),
    *("queues?page=1&page_size=2", "queues?sort=messages&sort_reverse=true&name=q", "queues?columns=name,messages"),
    *("queues?name=(&use_regex=true", "health/checks/alarms", "vhosts/v", "aliveness-test/%2F", "extensions"),
)
DEFINITIONS: tuple[dict[str, Any], ...] = (
    {"message-ttl": 100},
    {"max-length": 1},
    {"max-length": 2, "overflow": "reject-publish"},
    {"expires": 2000},
    {"delivery-limit": 1, "dead-letter-exchange": "", "dead-letter-routing-key": "dead"},
    {"consumer-timeout": 1000},
    {"retry-delay-min": 100, "retry-delay-max": 1000},
    {"on-alarm": "nack"},
    {"max-age": "1s"},
    {"alternate-exchange": "e1"},
    {"federation-upstream-set": "all"},
    {"max-length": -1},
)


def http(g: Grammar, method: str, path: str, body: object = "", user: str = "") -> list[Action]:
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    after: list[Action] = [("turn",)] if g.chance(0.5) else []
    return [
        ("http", user or g.one("guest", "guest", "guest", "guest", "u2", "u3", "nobody"), method, "/api/" + path, data),
        *after,
    ]


def look(g: Grammar) -> list[Action]:
    return http(g, "GET", g.one(*LISTS))


def get(g: Grammar) -> list[Action]:
    name = g.one(*QUEUES)
    modes = (
        "ack_requeue_true",
        "ack_requeue_true",
        "reject_requeue_true",
        "ack_requeue_false",
        "reject_requeue_false",
        "odd",
    )
    if name in FOLLOWED and g.chance(0.7):
        name = "q1"
    body: dict[str, Any] = {
        "count": g.one(1, 3, 100, -1),
        "ackmode": g.one(*modes),
        "encoding": g.one("auto", "base64", "odd"),
    }
    if g.chance(0.2):
        body["truncate"] = g.one(0, 5, -1, "no")
    return http(g, "POST", f"queues/%2F/{name}/get", body)


def publish(g: Grammar) -> list[Action]:
    exchange = g.one("amq.default", *EXCHANGES[2:])
    properties: dict[str, Any] = g.one(
        {}, {"expiration": "1"}, {"headers": {"CC": [g.queue()]}}, {"priority": 300}, {"odd": 1}
    )
    key = g.one(*KEYS)
    body = {
        "properties": properties,
        "routing_key": key,
        "payload": "http",
        "payload_encoding": g.one("string", "base64"),
    }
    return http(g, "POST", f"exchanges/%2F/{exchange}/publish", body)


def change_queue(g: Grammar) -> list[Action]:
    name = g.one(*QUEUES)
    if name in FOLLOWED and g.chance(0.7):
        return look(g)
    arguments = g.one(*ARGUMENTS[name], *ODD_ARGUMENTS[:3])
    body = {
        "durable": True,
        "auto_delete": False,
        "arguments": {k: v for k, v in arguments.items() if not isinstance(v, bytes)},
    }
    return g.one(
        http(g, "DELETE", f"queues/%2F/{name}{g.one('', '?if-unused=true', '?if-empty=true')}"),
        http(g, "DELETE", f"queues/%2F/{name}/contents"),
        http(g, "PUT", f"queues/%2F/{name}", body),
        http(g, "GET", f"queues/%2F/{name}"),
        http(g, "GET", f"queues/%2F/{name}/bindings"),
    )


def bind(g: Grammar) -> list[Action]:
    source, queue = g.one("amq.topic", "amq.match", "e1"), g.queue()
    path = f"bindings/%2F/e/{source}/q/{queue}"
    body = {"routing_key": g.one("a", "#", ""), "arguments": g.one({}, {"k": 1})}
    return g.one(
        http(g, "POST", path, body), http(g, "GET", path), http(g, "DELETE", f"{path}/{g.one('a', '~', 'k~1')}")
    )


def policy(g: Grammar) -> list[Action]:
    kind, name = g.one("policies", "operator-policies"), g.one("p1", "p2")
    if g.chance(0.35):
        return http(g, "DELETE", f"{kind}/%2F/{name}")
    pattern = g.one("^q", "^q", "^q", "^dead", "^log", "^e", "nothing", ".*", "(")
    body = {
        "pattern": pattern,
        "definition": g.one(*DEFINITIONS),
        "priority": g.one(0, 1),
        "apply-to": g.one("all", "queues", "odd"),
    }
    return http(g, "PUT", f"{kind}/%2F/{name}", body)


def close_connection(g: Grammar) -> list[Action]:
    return http(g, "DELETE", f"connections/test:{g.slot()}")


def look_at_connection(g: Grammar) -> list[Action]:
    name = f"test:{g.slot()}"
    return http(g, "GET", g.one(f"connections/{name}", f"connections/{name}/channels", f"channels/{name}%20(1)"))


def people(g: Grammar) -> list[Action]:
    user, vhost = g.one("u1", "u2", "u3", "u4"), g.one("%2F", "v", "v2")
    allowed = {"configure": g.one(".*", "", "^q"), "write": g.one(".*", "^k"), "read": g.one(".*", "^(q|k)", "(")}
    return g.one(
        http(g, "PUT", f"permissions/{vhost}/{user}", allowed),
        http(g, "DELETE", f"permissions/{vhost}/{user}"),
        http(g, "PUT", f"users/{user}", {"password": user, "tags": g.one("", "management", "administrator", "odd")}),
        http(g, "DELETE", f"users/{user}"),
        http(g, "PUT", f"vhosts/{g.one('v', 'v2')}", {}),
        http(g, "DELETE", f"vhosts/{g.one('v', 'v2')}"),
    )


def garbage(g: Grammar) -> list[Action]:
    line = g.one(
        b"GET /",
        b"POST /api/queues HTTP/1.1\r\n",
        b"GET /api/queues/%ff HTTP/1.1\r\nHost: a\r\n\r\n",
        g.rng.randbytes(30),
    )
    return [("bytes", line)]


THEME = [
    (2, look),
    (1.5, get),
    (1, publish),
    (1.5, change_queue),
    (0.5, bind),
    (2, policy),
    (0.5, close_connection),
    (0.5, look_at_connection),
    (0.7, people),
    (0.1, garbage),
]

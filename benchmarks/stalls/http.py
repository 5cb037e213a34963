"""Rows: requests to the management API."""

from __future__ import annotations

import json
import socket
from base64 import b64encode
from contextlib import suppress
from typing import Any

from benchmarks.overload import connect
from benchmarks.stalls.limits import descriptors
from benchmarks.stalls.rows import Site, Steps, row
from kvitto.wire import methods as m


def bound(site: Site, name: str) -> None:
    """A queue with 100,000 bindings."""
    peer = site.peer()
    peer.queue(name, durable=False)
    binds = (m.QueueBind(name, "amq.direct", str(number)) for number in range(site.count(100_000)))
    peer.all(binds, m.QueueBindOk)


def get(site: Site, path: str) -> None:
    for _ in range(3):
        status, _ = site.http("GET", path)
        assert status == 200, status


@row("GET /api/bindings with 100,000 bindings")
def get_bindings(site: Site) -> Steps:
    bound(site, "get_bindings")
    yield
    get(site, "bindings")


@row("POST /api/definitions with 9,000 queues and 100,000 bindings: with a mistake at its end, new, and once more")
def post_definitions(site: Site) -> Steps:
    queues, bindings = site.count(9000), site.count(100_000)  # more queues need more than 20,000 descriptors
    common = {"vhost": "/", "arguments": {}}
    document: dict[str, list[dict[str, Any]]] = {
        "queues": [
            {"name": f"post_definitions.{number}", "durable": True, "auto_delete": False, **common}
            for number in range(queues)
        ],
        "bindings": [
            {
                "source": "amq.topic" if number % 2 else "amq.direct",
                "destination": f"post_definitions.{number % queues}",
                "destination_type": "queue",
                "routing_key": f"post_definitions.{number}",
                **common,
            }
            for number in range(bindings)
        ],
    }
    good = json.dumps(document).encode()
    document["bindings"].append({**document["bindings"][0], "destination": "nowhere"})
    bad = json.dumps(document).encode()
    yield
    for body, expected in ((bad, 400), (good, 204), (good, 204)):
        status, text = site.http("POST", "definitions", body)
        assert status == expected, text[:200]


@row("GET of exchanges, bindings and definitions with 90,000 exchanges, also sorted and one page of them")
def get_exchanges(site: Site) -> Steps:
    peer = site.peer()
    names = [f"get_exchanges.{number * 7919 % 90_001}" for number in range(site.count(90_000))]
    peer.all((m.ExchangeDeclare(name, "fanout", durable=False) for name in names), m.ExchangeDeclareOk)
    yield
    for path in (
        "exchanges",
        "exchanges?sort=name&sort_reverse=true",
        "exchanges?page=1&page_size=100",
        "exchanges?page=1&page_size=100&name=9&sort=type",
        "exchanges/%2f",
        "bindings",
        "definitions",
        "overview",
        "vhosts",
    ):
        assert site.http("GET", path)[0] == 200


@row("GET /api/definitions with 100,000 bindings")
def get_definitions(site: Site) -> Steps:
    bound(site, "get_definitions")
    yield
    get(site, "definitions")


@row("GET /api/queues and /metrics with 9,000 queues")
def get_queues(site: Site) -> Steps:
    peer = site.peer()
    peer.queues([f"get_queues.{number}" for number in range(site.count(9000))], durable=False)
    yield
    get(site, "queues")
    get(site, "queues?page=1&page_size=100&sort=messages")
    get(site, "/metrics")


@row("POST publish with 16 MiB of nested JSON")
def nested(site: Site) -> Steps:
    depth = site.count(8 * 1024 * 1024 - 100)
    body = b'{"properties": {}, "payload": ' + b"[" * depth + b"]" * depth + b"}"
    wide = b'{"properties": {"headers": ' + b'{"a":' * 10 + b"[" + b"[],{}," * (depth // 4) + b"1]" + b"}" * 10 + b"}}"
    yield
    site.http("POST", "exchanges/%2f/amq.default/publish", body)
    site.http("POST", "exchanges/%2f/amq.default/publish", wide)


@row("HTTP heads and trailers of 16,000 empty headers, and 400 requests in one packet")
def http_heads(site: Site) -> Steps:
    lines, requests = site.count(16_000), site.count(400)
    many = b"a:\r\n" * lines + b"\r\n"
    auth = b"Authorization: Basic " + b64encode(b"guest:guest") + b"\r\n"
    chunked = b"PUT /api/vhosts/http_heads HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    attacks = (
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + many,
        chunked + auth + b"\r\n2\r\n{}\r\n0\r\n" + many,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * requests,
    )
    yield
    for attack in attacks * 5:
        with socket.create_connection(("127.0.0.1", site.http_port), timeout=30) as sock, suppress(OSError):
            sock.sendall(attack)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 20):
                pass


@row("POST get of 10,000 messages")
def get_messages(site: Site) -> Steps:
    peer, count = site.peer(), site.count(10_000)
    peer.queue("get_messages")
    peer.fill("get_messages", count, bytes(500), headers={"some": "header", "list": [1, 2, 3]})
    yield
    body = {"count": count, "ackmode": "ack_requeue_true", "encoding": "auto"}
    status, _ = site.http("POST", "queues/%2f/get_messages/get", body)
    assert status == 200, status


@row("POST publish of 11 MiB in base64")
def large_published(site: Site) -> Steps:
    peer = site.peer()
    peer.queue("large_published")
    payload = b64encode(bytes(site.count(11 << 20))).decode()
    publish = {"properties": {}, "routing_key": "large_published", "payload": payload, "payload_encoding": "base64"}
    yield
    status, _ = site.http("POST", "exchanges/%2f/amq.default/publish", publish)
    assert status == 200, status


@row("POST get of a message of 128 MiB")
def large_got(site: Site) -> Steps:
    peer = site.peer()
    peer.queue("large_got")
    peer.fill("large_got", 1, bytes(site.count(128 << 20)))
    look = {"count": 2, "ackmode": "ack_requeue_true", "encoding": "auto"}
    yield
    for mode in ("ack_requeue_true", "reject_requeue_true", "ack_requeue_false"):
        status, answer = site.http("POST", "queues/%2f/large_got/get", {**look, "ackmode": mode})
        assert status == 200, (status, answer[:200])


@row("GET /api/connections, channels and consumers with 5,000 of each, then all connections of the user are closed")
def connections_listed(site: Site) -> Steps:
    descriptors()
    peer = site.peer()
    peer.queue("connections_listed")
    site.http("PUT", "users/many", {"password": "many", "tags": ""})
    site.http("PUT", "permissions/%2f/many", {"configure": "", "write": "", "read": ".*"})
    for sock in connect(site.port, site.count(5000), user="many"):
        site.keep(sock)
    yield
    get(site, "connections")
    get(site, "channels")
    get(site, "consumers")
    get(site, "overview")
    status, _ = site.http("DELETE", "connections/username/many")
    assert status == 204, status
    site.watch()


@row("a virtual host with 5,000 connections, 5,000 queues and 20,000 bindings is deleted")
def vhost_deleted(site: Site) -> Steps:
    descriptors()
    site.http("PUT", "vhosts/vhost_deleted", {})
    peer, queues = site.peer(vhost="vhost_deleted"), site.count(5000)
    peer.queues([f"q{number}" for number in range(queues)])
    binds = (m.QueueBind(f"q{number % queues}", "amq.topic", f"a.{number}") for number in range(4 * queues))
    peer.all(binds, m.QueueBindOk)
    for sock in connect(site.port, queues, vhost="vhost_deleted"):
        site.keep(sock)
    yield
    status, _ = site.http("DELETE", "vhosts/vhost_deleted")
    assert status == 204, status
    site.watch()

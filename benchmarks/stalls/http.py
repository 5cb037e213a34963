"""Rows: requests to the management API."""

from __future__ import annotations

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


@row("POST get of 10,000 messages")
def get_messages(site: Site) -> Steps:
    peer, count = site.peer(), site.count(10_000)
    peer.queue("get_messages")
    peer.fill("get_messages", count, bytes(500), headers={"some": "header", "list": [1, 2, 3]})
    yield
    body = {"count": count, "ackmode": "ack_requeue_true", "encoding": "auto"}
    status, _ = site.http("POST", "queues/%2f/get_messages/get", body)
    assert status == 200, status

"""Rows: requests to the management API."""

from __future__ import annotations

from benchmarks.stalls.rows import Site, Steps, row
from kvitto.wire import methods as m


@row("GET /api/bindings with 100,000 bindings")
def get_bindings(site: Site) -> Steps:
    peer = site.peer()
    peer.queue("get_bindings", durable=False)
    binds = (m.QueueBind("get_bindings", "amq.direct", str(number)) for number in range(site.count(100_000)))
    peer.all(binds, m.QueueBindOk)
    yield
    for _ in range(3):
        status, _ = site.http("GET", "bindings")
        assert status == 200, status

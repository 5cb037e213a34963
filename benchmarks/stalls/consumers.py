"""Rows: consumers, in numbers and with options that make each message dearer."""

from __future__ import annotations

from benchmarks.stalls.rows import Site, Steps, row
from kvitto.wire import methods as m


@row("20,000 basic.qos global on a channel with 2,000 consumers")
def qos_global(site: Site) -> Steps:
    peer = site.peer()
    peer.queue("qos_global")
    consumes = (m.BasicConsume("qos_global", str(number)) for number in range(site.count(2000)))
    peer.all(consumes, m.BasicConsumeOk)
    yield
    peer.all((m.BasicQos(0, 1 + number % 2, True) for number in range(site.count(20_000))), m.BasicQosOk)

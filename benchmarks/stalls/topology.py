"""Rows: queues, exchanges and bindings that come and go, and routes through many of them."""

from __future__ import annotations

from benchmarks.stalls.rows import Site, Steps, row
from kvitto.wire import methods as m


@row("a connection with 2,000 exclusive queues ends in a virtual host with 20,000 exchanges")
def exclusive_queues(site: Site) -> Steps:
    other, peer = site.peer(), site.peer()
    names = [f"exclusive_queues.{number}" for number in range(site.count(20_000))]
    other.all((m.ExchangeDeclare(name, "direct") for name in names), m.ExchangeDeclareOk)
    names = [f"exclusive_queues.{number}" for number in range(site.count(2000))]
    peer.all((m.QueueDeclare(name, exclusive=True) for name in names), m.QueueDeclareOk)
    yield
    peer.close()
    other.ask(m.QueueDeclare("exclusive_queues", durable=True), m.QueueDeclareOk)

"""Rows: what peers do with deliveries that they have not settled."""

from __future__ import annotations

from benchmarks.stalls.peer import method
from benchmarks.stalls.rows import Site, Steps, row
from kvitto.wire import methods as m


@row("two consumers without prefetch have 400,000 out alternately, both connections end")
def alternating_ends(site: Site) -> Steps:
    count = site.count(400_000)
    first, second, other = site.peer(), site.peer(), site.peer()
    first.queue("alternating_ends")
    first.ask(m.BasicConsume("alternating_ends", "all"), m.BasicConsumeOk)
    other.fill("alternating_ends", count)
    first.wait(m.BasicDeliver, count)
    first.ask(m.BasicCancel("all"), m.BasicCancelOk)
    second.ask(m.BasicConsume("alternating_ends"), m.BasicConsumeOk)
    first.send(b"".join(method(1, m.BasicNack(tag, requeue=True)) for tag in range(2, count + 1, 2)))
    second.wait(m.BasicDeliver, count // 2)
    yield
    first.close()
    second.close()
    site.wait(lambda: other.ready("alternating_ends") >= count, "all messages back in the queue")


@row("200,000 single nacks with requeue, last first")
def nacks_last_first(site: Site) -> Steps:
    count = site.count(200_000)
    peer = site.peer()
    peer.queue("nacks_last_first")
    peer.fill("nacks_last_first", count)
    peer.ask(m.BasicConsume("nacks_last_first", consumer_tag="c"), m.BasicConsumeOk)
    peer.wait(m.BasicDeliver, count)
    peer.ask(m.BasicCancel("c"), m.BasicCancelOk)
    nacks = b"".join(method(1, m.BasicNack(tag, requeue=True)) for tag in range(count, 0, -1))
    yield
    peer.send(nacks)
    peer.ask(m.QueueDeclare("nacks_last_first", passive=True), m.QueueDeclareOk)

"""Rows: consumers, in numbers and with options that make each message dearer."""

from __future__ import annotations

from benchmarks.stalls.rows import Site, Steps, row
from kvitto.wire import methods as m

PAGE = 512 * 1024


@row("20,000 basic.qos global on a channel with 2,000 consumers")
def qos_global(site: Site) -> Steps:
    peer = site.peer()
    peer.queue("qos_global")
    consumes = (m.BasicConsume("qos_global", str(number)) for number in range(site.count(2000)))
    peer.all(consumes, m.BasicConsumeOk)
    yield
    peer.all((m.BasicQos(0, 1 + number % 2, True) for number in range(site.count(20_000))), m.BasicQosOk)


@row("9,990 consumers with x-priority, 5,000 messages")
def priorities(site: Site) -> Steps:
    peer, count = site.peer(), site.count(5000)
    peer.queue("priorities")
    consumes = (
        m.BasicConsume("priorities", str(number), arguments={"x-priority": number})
        for number in range(site.count(9990))
    )
    peer.all(consumes, m.BasicConsumeOk)
    other = site.peer()
    yield
    other.fill("priorities", count)
    peer.wait(m.BasicDeliver, count)


@row("5,000 consumers leave at once with 100,000 unacked")
def consumers_leave(site: Site) -> Steps:
    peer, other = site.peer(), site.peer()
    consumers, count = site.count(5000), site.count(100_000)
    peer.queue("consumers_leave")
    peer.ask(m.BasicQos(0, 20), m.BasicQosOk)
    peer.all((m.BasicConsume("consumers_leave", str(n)) for n in range(consumers)), m.BasicConsumeOk)
    other.fill("consumers_leave", count)
    peer.wait(m.BasicDeliver, min(count, 20 * consumers))
    yield
    peer.close()
    site.wait(lambda: other.ready("consumers_leave") >= count, "all messages back in the queue")


@row("10,000 consumers of one queue, each cancelled by a method of its own")
def cancels(site: Site) -> Steps:
    peer, count = site.peer(), site.count(10_000)
    peer.queue("cancels")
    peer.all((m.BasicConsume("cancels", str(n)) for n in range(count)), m.BasicConsumeOk)
    yield
    peer.all((m.BasicCancel(str(n)) for n in range(count)), m.BasicCancelOk)


@row("basic.get as often as fits into one read, of 8 KiB each")
def gets(site: Site) -> Steps:
    peer = site.peer()
    count = site.count(PAGE // 16, 500)
    peer.queue("gets")
    peer.fill("gets", count, bytes(8192))
    yield
    peer.all((m.BasicGet("gets") for _ in range(count)), m.BasicGetOk)


@row("the queue of 10,000 consumers is deleted")
def consumed_queue_deleted(site: Site) -> Steps:
    peer, other = site.peer(), site.peer()
    peer.queue("consumed_queue_deleted")
    count = site.count(10_000)
    peer.all((m.BasicConsume("consumed_queue_deleted", str(n)) for n in range(count)), m.BasicConsumeOk)
    yield
    other.ask(m.QueueDelete("consumed_queue_deleted"), m.QueueDeleteOk)

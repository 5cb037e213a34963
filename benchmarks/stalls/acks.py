"""Rows: what peers do with deliveries that they have not settled."""

from __future__ import annotations

from benchmarks.stalls.peer import Peer, message, method
from benchmarks.stalls.rows import Site, Steps, row
from kvitto.wire import methods as m


def holding(site: Site, queue: str, count: int, **arguments: object) -> Peer:
    """A peer that has so many messages of a new queue unacked, by consumer "c" of channel 1."""
    peer = site.peer()
    peer.queue(queue, arguments)
    peer.ask(m.BasicConsume(queue, "c"), m.BasicConsumeOk)
    peer.fill(queue, count)
    peer.wait(m.BasicDeliver, count)
    return peer


def transacting(site: Site, queue: str, count: int) -> Peer:
    """A peer in whose transaction so many messages of a queue, which has them, are unacked."""
    peer = site.peer()
    peer.ask(m.TxSelect(), m.TxSelectOk)
    peer.ask(m.BasicConsume(queue), m.BasicConsumeOk)
    peer.wait(m.BasicDeliver, count)
    return peer


@row("two consumers without prefetch have 400,000 out alternately, both connections end")
def alternating_ends(site: Site) -> Steps:
    count = site.count(400_000)
    first, second, other = holding(site, "alternating_ends", count), site.peer(), site.peer()
    first.ask(m.BasicCancel("c"), m.BasicCancelOk)
    second.ask(m.BasicConsume("alternating_ends"), m.BasicConsumeOk)
    first.send(b"".join(method(1, m.BasicNack(tag, requeue=True)) for tag in range(2, count + 1, 2)))
    second.wait(m.BasicDeliver, count // 2)
    yield
    first.close()
    second.close()
    site.wait(lambda: other.ready("alternating_ends") >= count, "all messages back in the queue")


@row("200,000 single nacks with requeue, every second message, last first")
def nacks_last_first(site: Site) -> Steps:
    count = site.count(400_000)
    peer = holding(site, "nacks_last_first", count)
    peer.ask(m.BasicCancel("c"), m.BasicCancelOk)
    nacks = b"".join(method(1, m.BasicNack(tag, requeue=True)) for tag in range(count, 0, -2))
    yield
    peer.send(nacks)
    peer.ready("nacks_last_first")


@row("200,000 single nacks without requeue, last first")
def rejects_last_first(site: Site) -> Steps:
    count = site.count(200_000)
    peer = holding(site, "rejects_last_first", count)
    nacks = b"".join(method(1, m.BasicNack(tag)) for tag in range(count, 0, -1))
    yield
    peer.send(nacks)
    peer.ready("rejects_last_first")


@row("10,000 consumers on a channel with global qos have 60,000 unacked, one ack with multiple")
def ack_of_many_consumers(site: Site) -> Steps:
    names, count = site.count(10_000), site.count(60_000)
    peer = site.peer()
    peer.queue("ack_of_many_consumers")
    peer.ask(m.BasicQos(0, 65_000, True), m.BasicQosOk)
    peer.all((m.BasicConsume("ack_of_many_consumers", str(n)) for n in range(names)), m.BasicConsumeOk)
    for _ in range(60):  # by turns, so that runs of one consumer are short
        peer.fill("ack_of_many_consumers", count // 60)
    peer.wait(m.BasicDeliver, count // 60 * 60)
    yield
    peer.say(m.BasicAck(0, True))
    peer.ready("ack_of_many_consumers")


@row("1,000,000 unacked: an ack with multiple, then a million more and the connection ends")
def million_unacked(site: Site) -> Steps:
    count = site.count(1_000_000)
    peer, other = holding(site, "million_unacked", count), site.peer()
    yield
    peer.say(m.BasicAck(0, True))
    peer.ready("million_unacked")
    peer.fill("million_unacked", count)
    peer.wait(m.BasicDeliver, count)
    peer.close()
    site.wait(lambda: other.ready("million_unacked") >= count, "all messages back in the queue")


@row("500,000 unacked in a channel with a transaction, 50 times one ack and tx.commit")
def commits_with_unacked(site: Site) -> Steps:
    count = site.count(500_000)
    peer = site.peer()
    peer.queue("commits_with_unacked")
    peer.fill("commits_with_unacked", count)
    peer = transacting(site, "commits_with_unacked", count)
    yield
    for tag in range(count, count - 50, -1):
        peer.say(m.BasicAck(max(tag, 1)), m.TxCommit())
        peer.wait(m.TxCommitOk)


@row("100 queues with an x-consumer-timeout each, 50,000 unacked")
def consumer_timeouts(site: Site) -> Steps:
    count, queues = site.count(50_000), site.count(100, 10)
    peer = site.peer()
    for number in range(queues):
        name = f"consumer_timeouts.{number}"
        peer.queue(name, {"x-consumer-timeout": 600_000 + number})
        peer.ask(m.BasicConsume(name), m.BasicConsumeOk)
        peer.fill(name, count // queues)
    peer.wait(m.BasicDeliver, count // queues * queues)
    yield
    site.watch()


@row("300,000 unacked, one nack with multiple, x-retry-delay")
def nacks_with_delay(site: Site) -> Steps:
    arguments = {"x-retry-delay-min": 100_000, "x-retry-delay-max": 200_000}
    peer = holding(site, "nacks_with_delay", site.count(300_000), **arguments)
    yield
    peer.say(m.BasicNack(0, True, True))
    peer.ready("nacks_with_delay")


@row("300,000 unacked, one nack with multiple, x-delivery-limit")
def nacks_at_limit(site: Site) -> Steps:
    peer = holding(site, "nacks_at_limit", site.count(300_000), **{"x-delivery-limit": 0})
    yield
    peer.say(m.BasicNack(0, True, True))
    peer.ready("nacks_at_limit")


@row("300,000 unacked, one nack with multiple, dead letters to another queue")
def nacks_dead_lettered(site: Site) -> Steps:
    other, count = site.peer(), site.count(300_000)
    other.queue("nacks_dead_lettered.letters")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "nacks_dead_lettered.letters"}
    peer = holding(site, "nacks_dead_lettered", count, **arguments)
    yield
    peer.say(m.BasicNack(0, True, False))
    site.wait(lambda: other.ready("nacks_dead_lettered.letters") >= count, "all dead letters")


@row("400,000 given back at once to 50 consumers")
def given_back(site: Site) -> Steps:
    count = site.count(400_000)
    first = holding(site, "given_back", count)
    other = site.peer()
    other.ask(m.BasicQos(0, 2000), m.BasicQosOk)
    other.all((m.BasicConsume("given_back", str(number)) for number in range(50)), m.BasicConsumeOk)
    yield
    first.close()
    taken = 0
    while taken < count:
        other.wait(m.BasicDeliver, min(count - taken, 1000))
        taken += 1000
        other.say(m.BasicAck(min(taken, count), True))


@row("500,000 unacked, basic.recover")
def recover(site: Site) -> Steps:
    count = site.count(500_000)
    peer = holding(site, "recover", count)
    peer.ask(m.BasicCancel("c"), m.BasicCancelOk)
    yield
    peer.ask(m.BasicRecover(True), m.BasicRecoverOk)
    peer.ready("recover")


@row("a transaction of 300,000 publishes is committed")
def large_commit(site: Site) -> Steps:
    peer = site.peer()
    peer.queue("large_commit")
    peer.ask(m.TxSelect(), m.TxSelectOk)
    peer.send(message(b"x", "large_commit") * site.count(300_000))
    peer.ready("large_commit")
    yield
    peer.ask(m.TxCommit(), m.TxCommitOk)


@row("a transaction of 250,000 single acks, every second message, is committed, and another one rolled back")
def commit_of_acks(site: Site) -> Steps:
    count = site.count(500_000)
    filler = site.peer()
    filler.queue("commit_of_acks")
    filler.fill("commit_of_acks", count)
    peer = transacting(site, "commit_of_acks", count)
    acks = b"".join(method(1, m.BasicAck(tag)) for tag in range(1, count, 2))
    peer.send(acks)
    peer.ready("commit_of_acks")
    yield
    peer.ask(m.TxRollback(), m.TxRollbackOk)
    peer.send(acks)
    peer.ask(m.TxCommit(), m.TxCommitOk)


@row("a transaction of 100,000 rejects with dead letters is committed")
def commit_of_rejects(site: Site) -> Steps:
    count = site.count(100_000)
    filler = site.peer()
    filler.queue("commit_of_rejects.dead")
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "commit_of_rejects.dead"}
    filler.queue("commit_of_rejects", dead)
    filler.fill("commit_of_rejects", count)
    peer = transacting(site, "commit_of_rejects", count)
    peer.say(m.BasicNack(0, True))
    peer.ready("commit_of_rejects")
    yield
    peer.ask(m.TxCommit(), m.TxCommitOk)


@row("300,000 delayed messages are counted 100 times, attached to, and purged")
def delayed(site: Site) -> Steps:
    count, delay = site.count(300_000), {"x-retry-delay-min": 600_000, "x-retry-delay-max": 600_000}
    for name in ("delayed.attached", "delayed.purged"):
        peer = holding(site, name, count, **delay)
        peer.ask(m.BasicCancel("c"), m.BasicCancelOk)
        peer.say(m.BasicNack(0, True, True))
        peer.ready(name)
    yield
    peer.all([m.LogCount("delayed.attached", "", 0, count)] * 100, m.LogCountOk)
    peer.ask(m.LogAttach("delayed.attached", "group"), m.LogAttachOk)
    peer.ask(m.QueuePurge("delayed.purged"), m.QueuePurgeOk)


@row("a transaction of 100,000 publishes to two queues is committed")
def tx_commit_many_publishes(site: Site) -> Steps:
    peer = site.peer()
    names = ("tx_commit_many_publishes.a", "tx_commit_many_publishes.b")
    peer.queues(names)
    peer.ask(m.ExchangeDeclare("tx_commit_many_publishes", "fanout"), m.ExchangeDeclareOk)
    peer.all((m.QueueBind(name, "tx_commit_many_publishes") for name in names), m.QueueBindOk)
    peer.ask(m.TxSelect(), m.TxSelectOk)
    peer.send(message(bytes(100), "", "tx_commit_many_publishes") * site.count(100_000))
    peer.ready(names[0])
    yield
    peer.ask(m.TxCommit(), m.TxCommitOk)
    peer.ready(names[1])


@row("a transaction of 1,000 rejects whose dead letters go through 2,000 exchanges is committed")
def tx_commit_rejects_through_exchanges(site: Site) -> Steps:
    count, exchanges = site.count(1000), site.count(2000)
    peer, name = site.peer(), "tx_commit_rejects"
    peer.all((m.ExchangeDeclare(f"{name}.{n}", "fanout") for n in range(exchanges)), m.ExchangeDeclareOk)
    peer.all((m.ExchangeBind(f"{name}.{n}", f"{name}.{n - 1}") for n in range(1, exchanges)), m.ExchangeBindOk)
    peer.queue(f"{name}.dead")
    peer.ask(m.QueueBind(f"{name}.dead", f"{name}.{exchanges - 1}"), m.QueueBindOk)
    peer.queue(name, {"x-dead-letter-exchange": f"{name}.0"})
    peer.fill(name, count)
    peer = transacting(site, name, count)
    peer.say(m.BasicNack(0, True))
    peer.ready(name)
    yield
    peer.ask(m.TxCommit(), m.TxCommitOk)


@row("a transaction of 1,000,000 settlements, no two of them in a row, is rolled back, and another one committed")
def tx_commit_settles(site: Site) -> Steps:
    count = site.count(1_000_000)
    filler = site.peer()
    filler.queue("tx_commit_settles")
    filler.fill("tx_commit_settles", count)
    peer = transacting(site, "tx_commit_settles", count)
    acks = b"".join(method(1, m.BasicAck(tag)) for tag in range(1, count, 2))
    yield
    for end, answer in ((m.TxRollback(), m.TxRollbackOk), (m.TxCommit(), m.TxCommitOk)):
        peer.send(acks)
        peer.say(m.BasicAck(0, True))
        peer.ask(end, answer)
    peer.ready("tx_commit_settles")


@row("100,000 publishes into a transaction: plain, with expiration, to no queue; then the connection ends")
def tx_publishes(site: Site) -> Steps:
    peer, other, count = site.peer(), site.peer(), site.count(100_000)
    peer.queue("tx_publishes")
    peer.ask(m.TxSelect(), m.TxSelectOk)
    plain = message(b"", "tx_publishes")
    pages = [one * count for one in (plain, message(b"", "tx_publishes", expiration="60000"), message(b"", "nowhere"))]
    yield
    for page in pages:
        peer.send(page)
    peer.ready("tx_publishes")
    peer.close()
    other.queue("tx_publishes.other")

"""Rows: large messages, and many bytes in one queue."""

from __future__ import annotations

import json

from benchmarks.stalls.peer import Peer, message, method
from benchmarks.stalls.rows import Site, Steps, row
from kvitto.wire import methods as m

MIB = 1 << 20


@row("one message of 32 MiB to 60 queues")
def large_to_many(site: Site) -> Steps:
    peer = site.peer()
    names = [f"large_to_many.{number}" for number in range(60)]
    peer.queues(names)
    for name in names:
        peer.ask(m.QueueBind(name, "amq.fanout"), m.QueueBindOk)
    peer.ask(m.ConfirmSelect(), m.ConfirmSelectOk)
    size = site.count(32 * MIB)
    yield
    peer.send(message(bytes(size), "", "amq.fanout"))
    peer.settled(1)
    peer.all((m.QueueDelete(name) for name in names), m.QueueDeleteOk)


@row("messages of 128 MiB, published and delivered")
def largest(site: Site) -> Steps:
    peer, size = site.peer(), site.count(128 * MIB)
    peer.queue("largest")
    peer.ask(m.ConfirmSelect(), m.ConfirmSelectOk)
    one = message(bytes(size), "largest")
    yield
    for number in range(3):
        peer.send(one)
        peer.settled(number + 1)
    peer.ask(m.BasicConsume("largest"), m.BasicConsumeOk)
    peer.wait(m.BasicDeliver, 3)
    peer.ready("largest")  # behind the last body


@row("messages of 120 MiB in a transaction, then 240 of 1 MiB")
def large_in_transactions(site: Site) -> Steps:
    peer, size = site.peer(), site.count(120 * MIB)
    peer.queue("large_in_transactions")
    peer.ask(m.TxSelect(), m.TxSelectOk)
    one, several = (
        message(bytes(size), "large_in_transactions"),
        message(bytes(site.count(MIB)), "large_in_transactions"),
    )
    yield
    peer.send(one)
    peer.ask(m.TxCommit(), m.TxCommitOk)
    for _ in range(240):
        peer.send(several)
    peer.ask(m.TxCommit(), m.TxCommitOk)
    peer.send(one)
    peer.ask(m.TxRollback(), m.TxRollbackOk)


@row("messages of 128 MiB become dead letters: one is rejected, one has expired, one is beyond the length")
def large_letters(site: Site) -> Steps:
    peer, size = site.peer(), site.count(128 * MIB)
    names = ["large_letters.rejected", "large_letters.expired", "large_letters.over"]
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "large_letters"}
    more = [{}, {"x-message-ttl": 100}, {"x-max-length": 1}]
    peer.queue("large_letters")
    for name, arguments in zip(names, more, strict=True):
        peer.queue(name, {**letters, **arguments})
        peer.fill(name, 1, bytes(size))
    peer.ask(m.BasicConsume(names[0]), m.BasicConsumeOk)
    peer.wait(m.BasicDeliver)
    yield
    peer.say(m.BasicReject(1, requeue=False))
    peer.fill(names[2], 1)
    other = site.peer()
    site.wait(lambda: other.ready("large_letters") == 3, "all dead letters")


@row("messages of 128 MiB are read by offset, staged and committed, and taken with basic.get")
def large_read(site: Site) -> Steps:
    peer, size = site.peer(), site.count(128 * MIB)
    peer.queue("large_read")
    peer.fill("large_read", 2, bytes(size))
    for channel in (2, 3):
        peer.ask(m.ChannelOpen(), m.ChannelOpenOk, channel=channel)
    one = message(bytes(size), "large_read", channel=3)
    yield
    peer.say(m.LogRead("large_read", "t", 0, 2), channel=2)
    peer.wait(m.LogReadOk)
    peer.ask(m.BasicGet("large_read", no_ack=False), m.BasicGetOk)
    peer.ask(m.StageOpen("large_read", 1, "task"), m.StageOpenOk, channel=3)
    peer.send(one)
    peer.ask(m.StageCommit("large_read", 1, b"task"), m.StageCommitOk, channel=3)
    site.wait(lambda: peer.ready("large_read") == 2, "the message that was staged")


@row("messages of 128 MiB are returned, as no queue takes them, and sent as direct replies")
def large_returned(site: Site) -> Steps:
    peer, size = site.peer(), site.count(128 * MIB)
    asks = site.peer()
    peer.queue("large_returned")
    asks.ask(m.BasicConsume("amq.rabbitmq.reply-to", "replies", no_ack=True), m.BasicConsumeOk)
    asks.send(message(b"a question", "large_returned", reply_to="amq.rabbitmq.reply-to"))
    asks.ready("large_returned")
    content = message(bytes(size), "")[len(message_head()) :]
    yield
    peer.send(method(1, m.BasicPublish("", "nowhere", mandatory=True)) + content)
    peer.wait(m.BasicReturn)
    peer.ready("large_returned")  # behind the last body
    status, got = site.http("POST", "queues/%2f/large_returned/get", {"count": 1, "ackmode": "ack_requeue_false"})
    assert status == 200, status
    peer.send(message(bytes(size), json.loads(got)[0]["properties"]["reply_to"]))
    asks.wait(m.BasicDeliver)
    asks.ready("large_returned")


def message_head() -> bytes:
    """The method frame of a publish to the queue without a name."""
    return method(1, m.BasicPublish("", ""))


@row("20 readers that never read, a message of 40 MiB for each")
def deaf_readers(site: Site) -> Steps:
    peer, size = site.peer(), site.count(40 * MIB)
    peer.queue("deaf_readers")
    peer.fill("deaf_readers", 20, bytes(size))
    yield
    for _ in range(20):
        deaf = site.peer()
        deaf.ask(m.BasicQos(0, 1), m.BasicQosOk)
        deaf.say(m.BasicConsume("deaf_readers"))
    site.wait(lambda: peer.ready("deaf_readers") == 0, "all deliveries")


@row("a queue with 1.5 GB is purged, another one deleted")
def large_deleted(site: Site) -> Steps:
    peer = site.peer()
    for name in ("large_deleted.1", "large_deleted.2"):
        peer.queue(name)
        peer.fill(name, site.count(1500), bytes(MIB))
    yield
    peer.ask(m.QueuePurge("large_deleted.1"), m.QueuePurgeOk)
    peer.ask(m.QueueDelete("large_deleted.2"), m.QueueDeleteOk)


@row("10,000,000 messages are purged, and as many expire at once")
def many_expire(site: Site) -> Steps:
    peer, count = site.peer(), site.count(10_000_000)
    peer.queue("many_expire.purged")
    peer.fill("many_expire.purged", count)
    peer.queue("many_expire", {"x-message-ttl": site.count(120_000, 100)})
    peer.fill("many_expire", count // 4)
    yield
    peer.ask(m.QueuePurge("many_expire.purged"), m.QueuePurgeOk)
    site.wait(lambda: peer.ready("many_expire") == 0, "all messages to expire")


@row("1,000,000 messages expire at once, dead letters to another queue")
def letters_of_expired(site: Site) -> Steps:
    peer, count = site.peer(), site.count(1_000_000)
    arguments = {
        "x-message-ttl": site.count(20_000, 100),
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "letters_of_expired.letters",
    }
    peer.queue("letters_of_expired.letters")
    peer.queue("letters_of_expired", arguments)
    peer.fill("letters_of_expired", count)
    yield
    site.wait(lambda: peer.ready("letters_of_expired.letters") >= count, "all dead letters")


@row("bodies that are never complete: 120 MB on connections of one user")
def unfinished(site: Site) -> Steps:
    peers = [site.peer() for _ in range(8)]
    part = message(bytes(site.count(15 * MIB)), "unfinished")
    yield
    for peer in peers:
        _begin(peer, part)
    other = site.peer()
    other.queue("unfinished")
    other.fill("unfinished", 1, bytes(site.count(MIB)))


def _begin(peer: Peer, part: bytes) -> None:
    """A body of 128 MiB of which so much comes, one eighth of its frames."""
    announced = part.replace(b"\x00\x3c\x00\x00", b"\x00\x3c\x00\x00", 1)
    at = announced.index(b"\x00\x3c\x00\x00") + 4
    peer.send(announced[:at] + (128 * MIB).to_bytes(8, "big") + announced[at + 8 :])

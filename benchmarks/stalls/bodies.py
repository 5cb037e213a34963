"""Rows: large messages, and many bytes in one queue."""

from __future__ import annotations

from benchmarks.stalls.peer import Peer, message
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

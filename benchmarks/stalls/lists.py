"""Rows: long queues that are read by offset, in order of priority, or as a stream."""

from __future__ import annotations

from typing import Any

from benchmarks.stalls.acks import holding
from benchmarks.stalls.peer import method
from benchmarks.stalls.rows import Site, Steps, row
from kvitto.wire import methods as m


@row("20 log.read over 1,000,000 settled messages")
def log_reads(site: Site) -> Steps:
    count = site.count(1_000_000, 1000)
    peer = holding(site, "log_reads", count)
    peer.ask(m.BasicCancel("c"), m.BasicCancelOk)
    peer.say(m.BasicNack(1, requeue=True), m.BasicAck(0, True))  # the first one stays, so nothing is dropped
    channels = range(2, 22)
    for channel in channels:
        peer.ask(m.ChannelOpen(), m.ChannelOpenOk, channel=channel)
    yield
    for channel in channels:
        peer.say(m.LogRead("log_reads", "t", 0, count), channel=channel)
    peer.wait(m.LogReadOk, len(channels))


@row("log.read, log.hold and log.settle over 400,000 messages of which every second is settled")
def log_of_holes(site: Site) -> Steps:
    count = site.count(400_000)
    peer = holding(site, "log_of_holes", count)
    peer.ask(m.BasicCancel("c"), m.BasicCancelOk)
    peer.send(b"".join(method(1, m.BasicNack(tag, requeue=True)) for tag in range(2, count + 1, 2)))
    peer.ask(m.ChannelOpen(), m.ChannelOpenOk, channel=2)
    peer.say(m.BasicAck(0, True))
    peer.ready("log_of_holes")
    yield
    peer.say(m.LogRead("log_of_holes", "t", 0, count), channel=2)
    peer.wait(m.LogReadOk)
    peer.ask(m.LogAttach("log_of_holes", "group"), m.LogAttachOk, channel=2)
    peer.ask(m.LogHold("log_of_holes", "group", "", 0, count), m.LogHoldOk, channel=2)
    peer.ask(m.LogSettle("log_of_holes", "group", "", count), m.LogSettleOk, channel=2)


@row("what a group holds, 200,000 runs, is released and purged")
def released(site: Site) -> Steps:
    count = site.count(400_000)
    peer = holding(site, "released", count, **{"x-max-length-bytes": 1 << 40})
    peer.ask(m.BasicCancel("c"), m.BasicCancelOk)
    peer.send(b"".join(method(1, m.BasicNack(tag, requeue=True)) for tag in range(2, count + 1, 2)))
    peer.ask(m.ChannelOpen(), m.ChannelOpenOk, channel=2)
    peer.say(m.BasicAck(0, True))
    peer.ready("released")
    peer.ask(m.LogAttach("released", "group"), m.LogAttachOk, channel=2)
    peer.ask(m.LogHold("released", "group", "", 0, count), m.LogHoldOk, channel=2)
    yield
    peer.ask(m.LogDetach("released", "group"), m.LogDetachOk, channel=2)
    peer.ask(m.QueuePurge("released"), m.QueuePurgeOk, channel=2)


@row("1,000,000 messages of 10 priorities, given out and given back")
def priorities_given_back(site: Site) -> Steps:
    peer, other, count = site.peer(), site.peer(), site.count(1_000_000)
    peer.queue("priorities_given_back", {"x-max-priority": 9})
    for priority in range(10):
        peer.fill("priorities_given_back", count // 10, priority=priority)
    peer.ask(m.BasicConsume("priorities_given_back"), m.BasicConsumeOk)
    yield
    peer.wait(m.BasicDeliver, count // 10 * 10)
    peer.close()
    site.wait(lambda: other.ready("priorities_given_back") >= count // 10 * 10, "all messages back in the queue")


@row("20 readers of a stream of 1,000,000 messages, by offsets anywhere and times")
def stream_readers(site: Site) -> Steps:
    peer, count = site.peer(), site.count(1_000_000)
    peer.queue("stream_readers", {"x-queue-type": "stream"})
    peer.fill("stream_readers", count)
    yield
    for number in range(20):
        reader = site.peer()
        reader.ask(m.BasicQos(0, 100), m.BasicQosOk)
        start: dict[str, Any] = {"x-stream-offset": count * number // 20}
        reader.ask(m.BasicConsume("stream_readers", arguments=start), m.BasicConsumeOk)
        reader.wait(m.BasicDeliver, 50)


@row("x-max-length of 10 by a policy on a queue of 1,000,000")
def shortened(site: Site) -> Steps:
    peer, count = site.peer(), site.count(1_000_000)
    peer.queue("shortened")
    peer.fill("shortened", count)
    yield
    body = {"pattern": "^shortened$", "definition": {"max-length": 10}, "apply-to": "queues"}
    assert site.http("PUT", "policies/%2f/shortened", body)[0] in (201, 204)
    site.wait(lambda: peer.ready("shortened") <= 10, "the queue to be short")

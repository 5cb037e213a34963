"""Consumers and gets with prefetch of both kinds, and all ways to settle what they bring."""

from __future__ import annotations

from typing import Any

from kvitto.wire import methods as m
from kvitto.wire.codec import Method
from tests.fuzz.sessions.grammar.base import FOLLOWED, TAGS, Grammar
from tests.fuzz.sessions.story import Action


def qos(g: Grammar) -> list[Action]:
    count = g.one(0, 1, 1, 2, 2, 3, 5, 65535)
    return g.anyhow(m.BasicQos(0, count, g.chance(0.5)))


def arguments(g: Grammar, queue: str) -> dict[str, Any]:
    if queue == "log1":
        start = {"x-stream-offset": g.one("first", "last", "next", 0, 3, 1000, "1h", -1)}
        wanted = g.one("a", ["a", "b"], {"k": 1}, {"x-stream-filter": "a", "k": "1"}, [], 5)
        return start | (
            {"x-stream-filter": wanted, "x-stream-match-unfiltered": g.chance(0.5)} if g.chance(0.3) else {}
        )
    if g.chance(0.7):
        return {}
    if g.chance(0.05):
        return {"x-priority": "no"}
    return g.one({"x-priority": g.one(-1, 0, 5)}, {"x-offset-header": True}, {"x-consumer-timeout": 1000})


def consume(g: Grammar) -> list[Action]:
    queue = g.queue() if g.chance(0.97) else "amq.rabbitmq.reply-to"
    no_ack = g.chance(0.03 if queue in FOLLOWED else 0.3) or queue.startswith("amq.")
    tag = g.one(*TAGS) if g.chance(0.97) else ""
    method = m.BasicConsume(queue, tag, False, no_ack, g.chance(0.07), bool(tag) and g.chance(0.1), arguments(g, queue))
    free = g.channel(lambda channel: tag not in channel.consumers)
    if free is None:
        return []
    first = [m.BasicQos(0, g.one(1, 2, 10), False)] if queue == "log1" or g.chance(0.2) else []
    return g.put(free[0], free[1].number, *first, method)


def get(g: Grammar) -> list[Action]:
    queue = g.queue()
    no_ack = g.chance(0.03 if queue in FOLLOWED else 0.3)
    return g.anyhow(*[m.BasicGet(queue, no_ack)] * g.one(1, 1, 2, 3))


def get_where_it_consumes(g: Grammar) -> list[Action]:
    found = g.channel(lambda channel: bool(channel.consumers))
    if found is None:
        return []
    client, channel = found
    queue = g.one(*channel.consumers.values()) or g.queue()
    return g.put(client, channel.number, *[m.BasicGet(queue, False)] * g.one(1, 2))


def settle(g: Grammar) -> list[Action]:
    """What a channel has out: one, several, all, or what it has not."""
    found = g.channel(lambda channel: bool(channel.out))
    if found is None:
        return []
    client, channel = found
    tags = sorted(channel.out)
    methods: list[Method] = []
    for _ in range(g.one(1, 1, 1, 2, 4)):
        tag = g.rng.choice(tags)
        methods.append(
            g.one(
                m.BasicAck(tag, False),
                m.BasicAck(tag, False),
                m.BasicAck(tag, True),
                m.BasicNack(tag, False, True),
                m.BasicNack(tag, True, True),
                m.BasicNack(tag, g.chance(0.3), False),
                m.BasicReject(tag, True),
                m.BasicReject(tag, False),
            )
        )
        gone = getattr(methods[-1], "multiple", False)
        tags = [t for t in tags if t != tag and not (gone and t < tag)]
        if not tags:
            break
    return g.put(client, channel.number, *methods)


def settle_all(g: Grammar) -> list[Action]:
    found = g.channel(lambda channel: bool(channel.out))
    if found is None:
        return []
    return g.put(
        found[0], found[1].number, g.one(m.BasicAck(0, True), m.BasicNack(0, True, True), m.BasicNack(0, True, False))
    )


def settle_unknown(g: Grammar) -> list[Action]:
    return g.anyhow(g.one(m.BasicAck, m.BasicReject)(g.one(0, 1, 2, 1000, (1 << 64) - 1), False))


def recover(g: Grammar) -> list[Action]:
    if g.chance(0.05):
        return g.anyhow(m.BasicRecover(False))
    return g.anyhow(g.one(m.BasicRecover(True), m.BasicRecover(True), m.BasicRecoverAsync(True)))


def cancel(g: Grammar) -> list[Action]:
    found = g.channel(lambda channel: bool(channel.consumers))
    if found is None:
        return []
    client, channel = found
    return g.put(client, channel.number, m.BasicCancel(g.one(*channel.consumers, *TAGS), g.chance(0.1)))


def two_at_one_queue(g: Grammar) -> list[Action]:
    """Two channels consume from the same queue, perhaps of two connections, with prefetches of their own."""
    found = list(g.anywhere())
    if len(found) < 2:
        return []
    queue, actions = g.queue(), []
    for client, channel in g.rng.sample(found, 2):
        tag = g.one(*TAGS)
        if tag in channel.consumers:
            continue
        methods = [m.BasicQos(0, g.one(1, 2, 3), g.chance(0.5)), m.BasicConsume(queue, tag, False, False)]
        actions += g.put(client, channel.number, *methods)
    return actions


THEME = [
    (2, qos),
    (3, consume),
    (1.5, get),
    (1.5, get_where_it_consumes),
    (8, settle),
    (0.3, settle_all),
    (0.2, settle_unknown),
    (0.6, recover),
    (1, cancel),
    (1, two_at_one_queue),
]

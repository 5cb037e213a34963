"""Transactions, stages, reading by range, and streams."""

from __future__ import annotations

from kvitto.wire import methods as m
from kvitto.wire.methods import Method
from tests.fuzz.sessions.grammar import publishing
from tests.fuzz.sessions.grammar.base import FOLLOWED, TAGS, WRITERS, Grammar
from tests.fuzz.sessions.story import Action


def select(g: Grammar) -> list[Action]:
    return g.anyhow(m.TxSelect())


def transaction(g: Grammar) -> list[Action]:
    """Publishes and settlements, then their end."""
    found = g.channel(lambda channel: channel.tx)
    if found is None:
        return select(g)
    client, channel = found
    data = [
        g.message(client, channel.number, "", g.one(*FOLLOWED, g.queue()), **publishing.properties(g))
        for _ in range(g.one(0, 1, 2, 4))
    ]
    actions = g.send(client, b"".join(data)) if data else []
    if channel.out:
        tag = g.rng.choice(sorted(channel.out))
        settled = g.one(
            m.BasicAck(tag, g.chance(0.3)), m.BasicNack(tag, False, g.chance(0.5)), m.BasicReject(tag, False)
        )
        actions += g.put(client, channel.number, settled)
    ends: list[Method] = g.one([m.TxCommit()], [m.TxCommit()], [m.TxRollback()], [])
    return actions + (g.put(client, channel.number, *ends) if ends else [])


def commit(g: Grammar) -> list[Action]:
    found = g.channel(lambda channel: channel.tx)
    return [] if found is None else g.put(found[0], found[1].number, g.one(m.TxCommit(), m.TxCommit(), m.TxRollback()))


def stage(g: Grammar) -> list[Action]:
    batch, task = g.one(0, 1, 2, 3), g.one("0", "1", "")
    found = g.channel()
    if found is None:
        return []
    client, channel = found
    actions = g.put(client, channel.number, m.StageOpen(g.one(*WRITERS), batch, task))
    for _ in range(g.one(0, 1, 3)):
        actions += g.send(client, g.message(client, channel.number, *publishing.address(g), **publishing.properties(g)))
    return actions


def commit_stage(g: Grammar) -> list[Action]:
    method = m.StageCommit(g.one(*WRITERS), g.one(0, 1, 2, 3), g.one(b"", b"0", b"0\n1"))
    rare = m.StageLast(g.one(*WRITERS)), m.StageForget(g.one(*WRITERS)), m.StageClaim(g.one(*WRITERS), g.one("0", "1"))
    return g.anyhow(g.one(method, method, method, *rare))


def attach(g: Grammar) -> list[Action]:
    return g.anyhow(g.one(m.LogAttach, m.LogAttach, m.LogDetach)(g.queue(), g.one("g1", "g2")))


def read(g: Grammar) -> list[Action]:
    start = g.one(0, 0, 1, 3, 100)
    found = g.channel()
    if found is None or found[0].frame_max not in (0, 131072):
        return []
    end = start + g.one(0, 1, 3, 100, 1 << 40)
    return g.put(found[0], found[1].number, m.LogRead(g.queue(), g.one("r", *TAGS), start, end))


def settle_range(g: Grammar) -> list[Action]:
    queue = g.queue()
    if queue in FOLLOWED and g.chance(0.8):
        return []
    return g.anyhow(m.LogSettle(queue, g.one("g1", "g2"), "", g.one(0, 1, 3, 100)), m.LogInspect(queue))


THEME = [
    (0.7, select),
    (4, transaction),
    (1, commit),
    (1.5, stage),
    (1.5, commit_stage),
    (1, attach),
    (1.5, read),
    (0.5, settle_range),
]

"""Queues, exchanges and bindings are made, changed and deleted."""

from __future__ import annotations

from typing import Any

from kvitto.broker.routing.exchange import TYPES
from kvitto.wire import methods as m
from tests.fuzz.sessions.grammar.base import ARGUMENTS, FOLLOWED, KEYS, ODD_ARGUMENTS, QUEUES, Grammar
from tests.fuzz.sessions.story import Action

NAMED = ("e1", "e2", "e3")
SOURCES = ("amq.topic", "amq.fanout", "amq.direct", "amq.match", *NAMED)


def declare(g: Grammar) -> list[Action]:
    name = g.one(*QUEUES, "keep", "q1", "q2")
    arguments = g.one(*ARGUMENTS[name]) if g.chance(0.95) else g.one(*ODD_ARGUMENTS)
    durable = name in (*FOLLOWED, "log1") or g.chance(0.7)
    exclusive = name == "q4" and g.chance(0.3)
    auto_delete = name == "q3" and g.chance(0.4)
    if g.chance(0.03):
        name = ""
    return g.anyhow(m.QueueDeclare(name, g.chance(0.05), durable, exclusive, auto_delete, g.chance(0.1), arguments))


def declare_several(g: Grammar) -> list[Action]:
    found = g.channel()
    if found is None:
        return []
    names = g.rng.sample(QUEUES, 3)
    methods = [m.QueueDeclare(name, durable=True, arguments=g.one(*ARGUMENTS[name])) for name in ("keep", *names)]
    return g.put(found[0], found[1].number, *methods)


def declare_exchange(g: Grammar) -> list[Action]:
    kind = g.one(*TYPES, "none")
    own: dict[str, Any] = g.one({"hash-header": "k"}, {"hash-property": "message_id"}, {"x-recent-history-length": 2})
    arguments = g.one({}, {}, {"alternate-exchange": g.one(*NAMED, "amq.fanout")}, own, *ODD_ARGUMENTS[-6:])
    method = m.ExchangeDeclare(g.one(*NAMED), kind, g.chance(0.05), g.chance(0.6), g.chance(0.1), g.chance(0.1))
    method.arguments = arguments
    return g.anyhow(method)


def bind(g: Grammar) -> list[Action]:
    arguments = g.one({}, {}, {"x-match": "any", "k": 1}, {"x-match": "all", "k": 1, "l": "a"}, *ODD_ARGUMENTS[5:9])
    kind = g.one(m.QueueBind, m.QueueBind, m.QueueBind, m.QueueUnbind)
    if kind is m.QueueBind:
        return g.anyhow(m.QueueBind(g.queue(), g.one(*SOURCES), g.one(*KEYS), False, arguments))
    return g.anyhow(m.QueueUnbind(g.queue(), g.one(*SOURCES), g.one(*KEYS), arguments))


def bind_exchange(g: Grammar) -> list[Action]:
    kind = g.one(m.ExchangeBind, m.ExchangeBind, m.ExchangeUnbind)
    return g.anyhow(kind(g.one(*SOURCES), g.one(*SOURCES), g.one(*KEYS), False, {}))


def delete(g: Grammar) -> list[Action]:
    if g.chance(0.5):
        return g.anyhow(m.ExchangeDelete(g.one(*NAMED), g.chance(0.3)))
    name = g.queue()
    if name in FOLLOWED and g.chance(0.8):
        return []
    return g.anyhow(m.QueueDelete(name, g.chance(0.3), g.chance(0.3), g.chance(0.1)))


def purge(g: Grammar) -> list[Action]:
    name = g.queue()
    if name in FOLLOWED and g.chance(0.7):
        return []
    return g.anyhow(m.QueuePurge(name, g.chance(0.1)))


THEME = [
    (3, declare),
    (1.5, declare_several),
    (1, declare_exchange),
    (2, bind),
    (0.5, bind_exchange),
    (0.7, delete),
    (0.5, purge),
]

"""Publishes of all kinds: with confirms, large headers, times to live, copies, priorities, to full queues, and in pieces."""

from __future__ import annotations

from typing import Any

from kvitto.wire import methods as m
from tests.fuzz.sessions.client import Channel, Client
from tests.fuzz.sessions.grammar.base import EXCHANGES, FOLLOWED, KEYS, Grammar
from tests.fuzz.sessions.story import Action

LARGE = (3000, 4000, 4070, 4084, 8100)
"""Bytes of headers: about what a connection with a small frame_max can take, and more."""


def address(g: Grammar) -> tuple[str, str]:
    return ("", g.queue()) if g.chance(0.8) else (g.one(*EXCHANGES), g.one(*KEYS))


def properties(g: Grammar) -> dict[str, Any]:
    match g.rng.randrange(14):
        case 0:
            return {"expiration": g.one("0", "1", "20", "1000", "100000")}
        case 1:
            return {"headers": {"big": "h" * g.one(*LARGE)}}
        case 2:
            return {"headers": {"CC": [g.queue(), g.queue()], "BCC": [g.queue()]}}
        case 3:
            return {"priority": g.one(0, 1, 4, 255), "delivery_mode": g.one(1, 2)}
        case 4:
            return {"reply_to": g.one("amq.rabbitmq.reply-to", "q1", "q1"), "correlation_id": "c"}
        case 5:
            odd = ({"user_id": "other"}, {"expiration": "-1"}, {"headers": {"CC": "a"}}, {"expiration": "9" * 30})
            filtered = (
                {"headers": {"x-stream-filter-value": "a", "k": 1}},
                {"headers": {"x-recent-history-no-store": True}},
            )
            return g.one({"user_id": "guest"}, {"headers": {"k": 1}}, *filtered, *odd) if g.chance(0.2) else {}
        case 6:
            death = [{"count": 5, "queue": "q1", "reason": "expired"}, 5]
            return {"headers": {"x-death": death, "x-delivery-count": "no", "x-stream-offset": 3}}
    return {}


def publisher(g: Grammar) -> tuple[Client, Channel] | None:
    """Mostly one that waits for confirms."""
    confirming = g.channel(lambda channel: channel.confirm)
    return confirming if confirming is not None and g.chance(0.75) else g.channel()


def publish(g: Grammar) -> list[Action]:
    found = publisher(g)
    if found is None:
        return []
    client, channel = found
    exchange, key = address(g)
    data = b"".join(
        g.message(client, channel.number, exchange, key, **properties(g)) for _ in range(g.one(1, 1, 2, 3, 10))
    )
    return g.send(client, data)


def publish_followed(g: Grammar) -> list[Action]:
    found = g.channel(lambda channel: channel.confirm) or g.channel(lambda channel: channel.tx)
    if found is None:
        return []
    client, channel = found
    return g.send(
        client, b"".join(g.message(client, channel.number, "", g.one(*FOLLOWED)) for _ in range(g.one(1, 2, 6)))
    )


def publish_short_lived(g: Grammar) -> list[Action]:
    """Many that expire, and behind them one that does not, which perhaps somebody gets."""
    found = publisher(g)
    if found is None:
        return []
    client, channel = found
    queue = g.queue()
    first = g.message(client, channel.number, "", queue) if g.chance(0.5) else b""
    data = b"".join(g.message(client, channel.number, "", queue, expiration="1") for _ in range(g.one(2, 4, 8, 20)))
    large = {"headers": {"big": "h" * g.one(*LARGE)}}
    last = g.message(client, channel.number, "", queue, **g.one({}, large, large))
    actions: list[Action] = [
        *g.send(client, first + data + last),
        (g.one("time", "later", "later"), g.one(0.0, 0.005, 0.05)),
    ]
    small = [(client, channel) for client, channel in g.anywhere() if client.frame_max == 4096]
    getter = g.rng.choice(small) if small and g.chance(0.6) else g.channel()
    if getter is not None and g.chance(0.6):
        actions += g.put(getter[0], getter[1].number, *[m.BasicGet(queue, False)] * g.one(1, 2))
    return actions


def confirm(g: Grammar) -> list[Action]:
    return g.anyhow(m.ConfirmSelect(g.chance(0.1)))


def unfinished(g: Grammar) -> list[Action]:
    """A message that ends with the next one, or never."""
    found = publisher(g)
    if found is None:
        return []
    client, channel = found
    data = g.message(client, channel.number, *address(g))
    at = g.rng.randrange(len(data))
    between: list[Action] = g.one([("turn",)], [("sync",)], [("time", 1.0)], [("choke", client.slot, 0)])
    return [("send", client.slot, 0, data[:at]), *between, ("send", client.slot, 0, data[at:]), ("turn",)]


THEME = [
    (4, publish),
    (3, publish_followed),
    (3, publish_short_lived),
    (1, confirm),
    (0.7, unfinished),
]

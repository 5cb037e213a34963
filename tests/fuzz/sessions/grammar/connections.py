"""Connections and channels that come, go, vanish at any byte, or do not read."""

from __future__ import annotations

from kvitto.wire import methods as m
from kvitto.wire.methods import Method
from tests.fuzz.sessions.grammar.base import Grammar, encoded
from tests.fuzz.sessions.story import Action


def connect(g: Grammar) -> list[Action]:
    free = [slot for slot in range(4) if slot not in g.world.peers]
    if not free and g.chance(0.7):
        return []
    slot = g.rng.choice(free) if free else g.slot()
    user = g.one("guest", "guest", "guest", "u1", "u1", "u2") if g.chance(0.95) else "u3"
    vhost = "/" if g.chance(0.95) else g.one("v", "none")
    frame_max = g.one(131072, 131072, 4096, 4096, 8192, 0) if g.chance(0.99) else 500
    actions: list[Action] = [("connect", slot, user, vhost, frame_max, g.rng.randrange(16), g.one(0, 0, 0, 2))]
    modes: tuple[list[Method], ...] = ([], [], [m.ConfirmSelect()], [m.ConfirmSelect()], [m.TxSelect()])
    opened = [encoded(n, m.ChannelOpen(), *g.one(*modes)) for n in range(1, 1 + g.one(1, 2, 2, 3))]
    return [*actions, ("turn",), ("send", slot, 0, b"".join(opened)), ("turn",)]


def open_channel(g: Grammar) -> list[Action]:
    """One that the broker has closed first needs our answer."""
    client = g.client()
    if client is None:
        return connect(g)
    closed = [n for n, lives in client.channels.items() if lives[-1].closed and not lives[-1].left]
    if closed:
        return g.put(client, g.rng.choice(closed), m.ChannelCloseOk(), m.ChannelOpen())
    free = [n for n in (1, 2, 3) if n not in client.channels or client.channels[n][-1].left]
    return g.put(client, g.rng.choice(free), m.ChannelOpen()) if free else []


def close_channel(g: Grammar) -> list[Action]:
    return g.anyhow(m.ChannelClose(200, "done", 0, 0))


def close_connection(g: Grammar) -> list[Action]:
    client = g.client()
    return [] if client is None else g.put(client, 0, m.ConnectionClose(200, "bye", 0, 0))


def vanish(g: Grammar) -> list[Action]:
    """Perhaps in the middle of a frame."""
    found = g.channel()
    if found is None:
        return []
    client, channel = found
    data = g.message(client, channel.number, "", g.queue())
    half: list[Action] = [("send", client.slot, 0, data[: g.rng.randrange(len(data))])] if g.chance(0.5) else []
    return [*half, ("vanish", client.slot), ("turn",)]


def clear_away(g: Grammar) -> list[Action]:
    """Peers that were closed, or whose stream is garbage, end their sockets."""
    ended = [slot for slot, p in g.world.peers.items() if p.closed or p.client.wild or p.client.told_to_close]
    return [("vanish", slot) for slot in ended]


def choke(g: Grammar) -> list[Action]:
    return [("choke", g.slot(), g.one(0, 0, 1))]


def unchoke(g: Grammar) -> list[Action]:
    return [("choke", slot, 1) for slot, peer in g.world.peers.items() if not peer.taking]


def flow(g: Grammar) -> list[Action]:
    return g.anyhow(m.ChannelFlow(False)) if g.chance(0.4) else g.anyhow(m.ChannelFlow(True))


def wait_in_handshake(g: Grammar) -> list[Action]:
    """Somebody who does not finish it."""
    slot = g.slot()
    if slot in g.world.peers:
        return []
    return [("connect", slot, g.one("guest", "nobody", "u1"), g.one("/", "none"), g.one(100, 0, 4096), 0, 0), ("turn",)]


THEME = [
    (4, connect),
    (4, open_channel),
    (1, close_channel),
    (0.3, close_connection),
    (0.7, vanish),
    (3, clear_away),
    (0.7, choke),
    (3, unchoke),
    (0.3, flow),
    (0.2, wait_in_handshake),
]
